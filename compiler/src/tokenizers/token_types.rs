//! Token types, which distinguish the texts in a pair.

use serde_json::{Map, Value, json};

use super::{classes, parts::Template};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder},
    model_types::Family,
};
use kivu::Result;

/// Whether the model gets token types, which distinguish the texts in a pair: according to the file's input names, or
/// the class. Without token types, all tokens have type 0.
pub fn returns_types(folder: &ModelFolder, config: &ConfigFile) -> Result<bool> {
    if let Some(names) = config.get::<Vec<String>>("model_input_names")? {
        return Ok(names.iter().any(|name| name == "token_type_ids"));
    }
    let model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let family = Family::named(model.model_type());
    let default = family.map_or(0, |family| family.types);
    if model.get::<usize>("type_vocab_size")?.unwrap_or(default) < 2 {
        // The graph has no input for token types.
        return Ok(true);
    }
    let class = config
        .get::<String>("tokenizer_class")?
        .or(model.get("tokenizer_class")?);
    Ok(match class {
        Some(class) if classes::are_newer(config) => {
            classes::returns_types_since_5(class.trim_end_matches("Fast"))
        }
        Some(class) => classes::returns_types(class.trim_end_matches("Fast")),
        None => family.is_none_or(|family| family.returns_types),
    })
}

/// Gives the type 0 to all tokens.
pub fn remove_types(tokenizer: &mut Map<String, Value>) {
    let processor = tokenizer.get("post_processor").cloned().unwrap_or_default();
    let zeroed = without_types(processor);
    // Processors without a template keep the second text's type.
    let plain = Template::<u32> {
        before: &[],
        after: &[],
        between: 1,
        second_type: 0,
    };
    let plain = plain.post_processor();
    let kind = zeroed["type"].as_str().map(str::to_owned);
    let has_template = zeroed.to_string().contains("TemplateProcessing");
    let processor = match kind.as_deref() {
        Some("RobertaProcessing") => zeroed,
        _ if has_template => zeroed,
        None => plain,
        _ => json!({"type": "Sequence", "processors": [zeroed, plain]}),
    };
    tokenizer.insert("post_processor".to_owned(), processor);
}

/// Returns the post-processor with all template types set to 0.
fn without_types(mut processor: Value) -> Value {
    let kind = processor["type"].as_str().map(str::to_owned);
    match kind.as_deref() {
        Some("Sequence") => {
            if let Some(Value::Array(processors)) = processor.get_mut("processors") {
                processors
                    .iter_mut()
                    .for_each(|inner| *inner = without_types(inner.take()));
            }
            processor
        }
        Some("TemplateProcessing") => {
            for field in ["single", "pair"] {
                let pieces = processor.get_mut(field).and_then(Value::as_array_mut);
                let pieces = pieces
                    .into_iter()
                    .flatten()
                    .filter_map(Value::as_object_mut);
                for piece in pieces
                    .flat_map(Map::values_mut)
                    .filter_map(Value::as_object_mut)
                {
                    piece.insert("type_id".to_owned(), 0.into());
                }
            }
            processor
        }
        Some("BertProcessing") => template(&processor["cls"], &processor["sep"]),
        _ => processor,
    }
}

/// A `BertProcessing` template with type 0 for all tokens.
fn template(first: &Value, last: &Value) -> Value {
    fn token(token: &Value) -> (&str, &Value) {
        (token[0].as_str().unwrap_or_default(), &token[1])
    }
    let template = Template {
        before: &[token(first)],
        after: &[token(last)],
        between: 1,
        second_type: 0,
    };
    template.post_processor()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use kivu::tokenizer::{Tokenizer, Truncation};

    use super::*;
    use crate::{fixture::tokenizer, tokenizers::tokenizer_config::NAME};

    #[test]
    fn types_are_removed_from_every_processor() {
        let pair = |processor: Value| {
            let mut file = tokenizer();
            file["post_processor"] = processor;
            let types = |file: &Map<String, Value>| {
                let tokenizer = Tokenizer::from_json(&serde_json::to_vec(file).unwrap()).unwrap();
                let pair = tokenizer
                    .encode_pair(["a", "e"], 64, Truncation::Off)
                    .unwrap();
                (pair.ids, pair.type_ids)
            };
            let (ids, before) = types(&file);
            remove_types(&mut file);
            let (same, after) = types(&file);
            assert_eq!(ids, same);
            assert!(after.iter().all(|kind| *kind == 0), "{after:?}");
            before
        };
        let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]});
        assert_eq!(pair(tokenizer()["post_processor"].clone()), [0, 0, 0, 1, 1]);
        assert_eq!(pair(bert.clone()), [0, 0, 0, 1, 1]);
        assert_eq!(pair(json!(null)), [0, 1]);
        assert_eq!(pair(byte_level.clone()), [0, 1]);
        assert_eq!(
            pair(json!({"type": "Sequence", "processors": [byte_level, bert]})),
            [0, 0, 0, 1, 1]
        );
        let roberta = json!({
            "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": true,
            "add_prefix_space": false,
        });
        assert_eq!(pair(roberta), [0; 6]);
    }

    #[test]
    fn template_parts_in_an_unknown_form_are_refused_by_the_tokenizer() {
        let mut file = tokenizer();
        let part = json!({"SpecialToken": {"id": "[CLS]", "type_id": 1}, "unknown_key": true});
        file["post_processor"]["pair"][0] = part;
        remove_types(&mut file);
        assert!(Tokenizer::from_json(&serde_json::to_vec(&file).unwrap()).is_err());
    }

    #[test]
    fn files_and_classes_decide_on_types() {
        let returns = |config: Value, tokenizer: Value| {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let tokenizer = ConfigFile::new(NAME, tokenizer.as_object().cloned().unwrap());
            returns_types(&ModelFolder::new(folder.path()), &tokenizer).unwrap()
        };
        let [bert, roberta] =
            ["bert", "roberta"].map(|kind| json!({"model_type": kind, "type_vocab_size": 2}));
        assert!(returns(bert.clone(), json!({})));
        assert!(!returns(
            bert.clone(),
            json!({"model_input_names": ["input_ids", "attention_mask"]})
        ));
        for class in ["RobertaTokenizerFast", "TokenizersBackend"] {
            assert!(!returns(bert.clone(), json!({"tokenizer_class": class})));
        }
        let albert = json!({"model_type": "albert", "type_vocab_size": 2});
        let mut class = json!({"tokenizer_class": "AlbertTokenizer"});
        assert!(returns(albert.clone(), class.clone()));
        class["backend"] = json!("tokenizers");
        assert!(!returns(albert, class.clone()));
        class["tokenizer_class"] = json!("BertTokenizer");
        assert!(returns(bert.clone(), class));
        assert!(!returns(roberta.clone(), json!({})));
        let prelayernorm = json!({"model_type": "roberta-prelayernorm", "type_vocab_size": 2});
        assert!(!returns(prelayernorm, json!({})));
        assert!(returns(
            roberta,
            json!({"tokenizer_class": "BertTokenizer"})
        ));
    }
}
