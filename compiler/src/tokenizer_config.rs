//! The `tokenizer.json` of a model as `transformers` loads it: some settings of `tokenizer_config.json` take precedence.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{config::ConfigFile, files};
use kivu::{
    error::{Error, Result},
    tokenizer::{Tokenizer, Truncation},
};

/// The name of the file.
const NAME: &str = "tokenizer_config.json";
/// Classes whose settings replace those of a `BertNormalizer`.
const BERT: [&str; 4] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", MPNET];
/// It leaves Chinese characters to the file.
const MPNET: &str = "MPNetTokenizer";
/// Classes whose settings replace those of byte pairs.
const ROBERTA: [&str; 2] = ["RobertaTokenizer", "BartTokenizer"];

/// Classes whose tokenizers return no types of tokens.
const WITHOUT_TYPES: [&str; 39] = [
    "BartTokenizer",
    "BarthezTokenizer",
    "BigBirdTokenizer",
    "BlenderbotTokenizer",
    "BloomTokenizer",
    "CLIPTokenizer",
    "CamembertTokenizer",
    "CodeGenTokenizer",
    "CodeLlamaTokenizer",
    "CohereTokenizer",
    "DPRReaderTokenizer",
    "DistilBertTokenizer",
    "GPT2Tokenizer",
    "GPTNeoXTokenizer",
    "GemmaTokenizer",
    "LEDTokenizer",
    "LayoutLMv3Tokenizer",
    "LayoutXLMTokenizer",
    "LlamaTokenizer",
    "LongformerTokenizer",
    "MBart50Tokenizer",
    "MBartTokenizer",
    MPNET,
    "MT5Tokenizer",
    "MvpTokenizer",
    "NllbTokenizer",
    "NougatTokenizer",
    "OpenAIGPTTokenizer",
    "PegasusTokenizer",
    "Qwen2Tokenizer",
    "ReformerTokenizer",
    "RetriBertTokenizer",
    "RobertaTokenizer",
    "SeamlessM4TTokenizer",
    "T5Tokenizer",
    "UdopTokenizer",
    "WhisperTokenizer",
    "XGLMTokenizer",
    "XLMRobertaTokenizer",
];
/// Models whose tokenizers are of such a class if no file names it.
const MODELS_WITHOUT_TYPES: [&str; 4] = ["roberta", "xlm-roberta", "camembert", "mpnet"];

/// An entry of `added_tokens_decoder`, by the fields of a `tokenizer.json`, with the defaults of `AddedToken`.
#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

/// The `tokenizer.json` in `folder` with the settings of its `tokenizer_config.json`.
pub(super) fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    let json = files::read_tokenizer(folder)?;
    let unreadable = |error| Error::model_because("cannot read the tokenizer", error);
    let before: Map<String, Value> = serde_json::from_slice(&json).map_err(unreadable)?;
    let config = ConfigFile::open_or_empty(folder, NAME)?;
    let mut tokenizer = before.clone();
    match class(folder, &config)?.trim_end_matches("Fast") {
        class if BERT.contains(&class) => set_normalizer(&mut tokenizer, &config, class)?,
        class if ROBERTA.contains(&class) => set_byte_pairs(&mut tokenizer, &config)?,
        _ => {}
    }
    add_tokens(&mut tokenizer, &config)?;
    if !returns_types(folder, &config)? {
        remove_types(&mut tokenizer);
    }
    check_truncation(&tokenizer, &config)?;
    if tokenizer == before {
        return Ok(json);
    }
    serde_json::to_vec(&tokenizer).map_err(|error| Error::model_because("cannot write the tokenizer", error))
}

/// Refuses tokens without a row in a table of `rows` rows, which no text that has them could be computed with.
///
/// Special tokens that were added for other models, such as those of images, are removed: the model's texts do not have
/// them.
pub(super) fn within_vocabulary(json: Vec<u8>, rows: usize) -> Result<Vec<u8>> {
    let invalid = |error| Error::model_because("cannot read the tokenizer", error);
    let first = u32::try_from(rows).unwrap_or(u32::MAX);
    let beyond = Tokenizer::from_json(&json)?.tokens_from(first);
    if beyond.is_empty() {
        return Ok(json);
    }
    let mut file: Map<String, Value> = serde_json::from_slice(&json).map_err(invalid)?;
    let mut removed = Vec::new();
    if let Some(Value::Array(added)) = file.get_mut("added_tokens") {
        let is_beyond = |token: &Value| token["id"].as_u64().is_some_and(|id| id >= u64::from(first));
        removed.extend(added.extract_if(.., |token| token["special"] == true && is_beyond(token)));
    }
    if let Some(Value::Object(vocabulary)) = file.get_mut("model").and_then(|model| model.get_mut("vocab")) {
        removed
            .iter()
            .filter_map(|token| token["content"].as_str())
            .for_each(|token| drop(vocabulary.remove(token)));
    }
    let json = serde_json::to_vec(&file).map_err(invalid)?;
    let tokenizer = Tokenizer::from_json(&json)?;
    let pair = tokenizer.encode_pair(["", ""], usize::MAX, Truncation::Off)?;
    let around = pair.ids.into_iter().chain(tokenizer.special_ids().concat());
    let around = around.filter(|id| *id >= first).map(|id| (id, "around texts".to_owned()));
    match tokenizer.tokens_from(first).into_iter().chain(around).next() {
        None => {
            tracing::warn!(
                "leaving out {} special tokens of the tokenizer, from `{}` on, which the model has no vectors for",
                beyond.len(),
                beyond[0].1
            );
            Ok(json)
        }
        Some((id, token)) => Err(Error::model(format!(
            "expected tokens with ids below {rows}, the rows of the model's table, but found `{token}` with {id}; resize \
             the model's table (`resize_token_embeddings`), or remove the token from the tokenizer"
        ))),
    }
}

/// Whether the model gets the types of tokens, which distinguish the texts of a pair: by the names of inputs in the file,
/// or by the class. Without, all tokens have the type 0.
fn returns_types(folder: &Path, config: &ConfigFile) -> Result<bool> {
    if let Some(names) = config.get::<Vec<String>>("model_input_names")? {
        return Ok(names.iter().any(|name| name == "token_type_ids"));
    }
    let model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let default = if model.model_type() == "bert" { 2 } else { 0 };
    if model.get::<usize>("type_vocab_size")?.unwrap_or(default) < 2 {
        // The graph has no types.
        return Ok(true);
    }
    let class = config.get::<String>("tokenizer_class")?.or(model.get("tokenizer_class")?);
    Ok(match class {
        Some(class) => !WITHOUT_TYPES.contains(&class.trim_end_matches("Fast")),
        None => !MODELS_WITHOUT_TYPES.contains(&model.model_type()),
    })
}

/// Gives the type 0 to all tokens.
fn remove_types(tokenizer: &mut Map<String, Value>) {
    let processor = tokenizer.get("post_processor").cloned().unwrap_or_default();
    let zeroed = without_types(processor);
    let sequence = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    // Processors without a template leave the second text its type.
    let plain = json!({
        "type": "TemplateProcessing", "single": [sequence("A")], "pair": [sequence("A"), sequence("B")],
        "special_tokens": {},
    });
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

/// A post-processor with templates whose types are 0.
fn without_types(mut processor: Value) -> Value {
    let kind = processor["type"].as_str().map(str::to_owned);
    match kind.as_deref() {
        Some("Sequence") => {
            if let Some(Value::Array(processors)) = processor.get_mut("processors") {
                processors.iter_mut().for_each(|inner| *inner = without_types(inner.take()));
            }
            processor
        }
        Some("TemplateProcessing") => {
            for field in ["single", "pair"] {
                let pieces = processor.get_mut(field).and_then(Value::as_array_mut);
                let pieces = pieces.into_iter().flatten().filter_map(Value::as_object_mut);
                pieces.flat_map(Map::values_mut).for_each(|piece| piece["type_id"] = 0.into());
            }
            processor
        }
        Some("BertProcessing") => template(&processor["cls"], &processor["sep"]),
        _ => processor,
    }
}

/// The template of a `BertProcessing`, with the type 0 for all tokens.
fn template(first: &Value, last: &Value) -> Value {
    let special = |token: &Value| json!({"SpecialToken": {"id": token[0], "type_id": 0}});
    let text = |id: &str| json!({"Sequence": {"id": id, "type_id": 0}});
    let single = [special(first), text("A"), special(last)];
    let pair = [&single[..], &[text("B"), special(last)]].concat();
    let describe = |token: &Value| {
        let name = token[0].as_str().unwrap_or_default().to_owned();
        (name, json!({"id": token[0], "ids": [token[1]], "tokens": [token[0]]}))
    };
    let special_tokens: Map<String, Value> = [describe(first), describe(last)].into_iter().collect();
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": special_tokens})
}

/// The class of the tokenizer, which depends on the model if no file names it.
fn class(folder: &Path, config: &ConfigFile) -> Result<String> {
    let of_model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let class = config.get("tokenizer_class")?.or(of_model.get("tokenizer_class")?);
    Ok(class.unwrap_or_else(|| match of_model.model_type() {
        "bert" => "BertTokenizer".to_owned(),
        "distilbert" => "DistilBertTokenizer".to_owned(),
        "mpnet" => MPNET.to_owned(),
        "roberta" => "RobertaTokenizer".to_owned(),
        "bart" => "BartTokenizer".to_owned(),
        _ => String::new(),
    }))
}

/// Sets letter case, accents and Chinese characters, where the file normalizes like BERT.
fn set_normalizer(tokenizer: &mut Map<String, Value>, config: &ConfigFile, class: &str) -> Result<()> {
    let normalizer = tokenizer.get_mut("normalizer").and_then(Value::as_object_mut);
    let Some(normalizer) = normalizer.filter(|normalizer| normalizer["type"] == "BertNormalizer") else {
        return Ok(());
    };
    let or_true = |field| Ok::<_, Error>(config.get(field)?.unwrap_or(true).into());
    normalizer.insert("lowercase".to_owned(), or_true("do_lower_case")?);
    normalizer.insert("strip_accents".to_owned(), config.get::<bool>("strip_accents")?.into());
    if class != MPNET {
        normalizer.insert("handle_chinese_chars".to_owned(), or_true("tokenize_chinese_chars")?);
    }
    Ok(())
}

/// Sets whether texts begin with a space, and whether the places of tokens exclude spaces.
fn set_byte_pairs(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let settings = [
        ("add_prefix_space", config.is_set("add_prefix_space")?),
        ("trim_offsets", config.get("trim_offsets")?.unwrap_or(true)),
    ];
    for (part, settings) in [("pre_tokenizer", &settings[..1]), ("post_processor", &settings[..])] {
        let Some(fields) = tokenizer.get_mut(part).and_then(Value::as_object_mut) else { continue };
        for (field, value) in settings {
            if let Some(found) = fields.get_mut(*field) {
                *found = (*value).into();
            }
        }
    }
    Ok(())
}

/// Refuses tokenizers that cut off the beginning of long texts: here, requests choose the side, and the end is the default.
fn check_truncation(tokenizer: &Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let of_file = tokenizer.get("truncation").and_then(|truncation| truncation["direction"].as_str());
    let side = config.get::<String>("truncation_side")?.or(of_file.map(str::to_owned));
    match side.filter(|side| !side.eq_ignore_ascii_case("right")) {
        None => Ok(()),
        Some(found) => Err(Error::model(format!(
            "expected `truncation_side` `right` in `{NAME}`, but found `{found}`; set it to `right`, and \
             `truncation_direction` to `left` in requests"
        ))),
    }
}

/// Adds the tokens of `added_tokens_decoder`, by ascending id; those that the file has keep their place.
fn add_tokens(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let added: BTreeMap<u32, AddedToken> = config.get("added_tokens_decoder")?.unwrap_or_default();
    let Some(Value::Array(known)) = tokenizer.get_mut("added_tokens") else { return Ok(()) };
    for (id, AddedToken { content, single_word, lstrip, rstrip, normalized, special }) in added {
        let found = known.iter().position(|token| token["content"] == content);
        let id = found.map_or_else(|| id.into(), |place| known[place]["id"].clone());
        let token = json!({
            "id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized.unwrap_or(!special), "special": special,
        });
        match found {
            Some(place) => known[place] = token,
            None => known.push(token),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn file() -> Map<String, Value> {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/models/tiny-bert/tokenizer.json");
        serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
    }

    fn with_token(special: bool) -> Vec<u8> {
        let mut file = file();
        let token = json!({
            "id": 900, "content": "<image>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        });
        file["added_tokens"].as_array_mut().unwrap().push(token);
        serde_json::to_vec(&file).unwrap()
    }

    #[test]
    fn tokens_without_a_row_are_refused() {
        let json = serde_json::to_vec(&file()).unwrap();
        let rows = Tokenizer::from_json(&json).unwrap().vocabulary_size();
        assert_eq!(within_vocabulary(json.clone(), rows).unwrap(), json);
        let refusal = |json: Vec<u8>| within_vocabulary(json, rows - 1).unwrap_err().to_string();
        let last = Tokenizer::from_json(&json).unwrap().tokens_from(rows as u32 - 1).remove(0).1;
        let expected = format!(
            "expected tokens with ids below {}, the rows of the model's table, but found `{last}`",
            rows - 1
        );
        assert!(refusal(json).starts_with(&expected), "{expected}");
        let added = within_vocabulary(with_token(false), rows).unwrap_err().to_string();
        assert!(added.contains(&format!("found `<image>` with {rows}")), "{added}");
    }

    #[test]
    fn special_tokens_of_other_models_are_left_out() {
        let rows = Tokenizer::from_json(&serde_json::to_vec(&file()).unwrap()).unwrap().vocabulary_size();
        // The crate gives added tokens the next free id.
        let mut json: Value = serde_json::from_slice(&with_token(true)).unwrap();
        let last = json["added_tokens"].as_array().unwrap().len() - 1;
        json["added_tokens"][last]["id"] = rows.into();
        let json = within_vocabulary(serde_json::to_vec(&json).unwrap(), rows).unwrap();
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        assert_eq!(tokenizer.id("<image>"), None);
        assert_eq!(tokenizer.vocabulary_size(), rows);
        // Special tokens around texts cannot be.
        let refusal = within_vocabulary(json, 1).unwrap_err().to_string();
        assert!(refusal.contains("expected tokens with ids below 1"), "{refusal}");
    }

    #[test]
    fn types_are_removed_from_every_processor() {
        let pair = |processor: Value| {
            let mut file = file();
            file["post_processor"] = processor;
            let types = |file: &Map<String, Value>| {
                let tokenizer = Tokenizer::from_json(&serde_json::to_vec(file).unwrap()).unwrap();
                let pair = tokenizer.encode_pair(["a", "e"], 64, Truncation::Off).unwrap();
                (pair.ids, pair.type_ids)
            };
            let (ids, before) = types(&file);
            remove_types(&mut file);
            let (same, after) = types(&file);
            assert_eq!(ids, same);
            assert!(after.iter().all(|kind| *kind == 0), "{after:?}");
            before
        };
        let byte_level =
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true});
        let bert = json!({"type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]});
        assert_eq!(pair(file()["post_processor"].clone()), [0, 0, 0, 1, 1]);
        assert_eq!(pair(bert.clone()), [0, 0, 0, 1, 1]);
        assert_eq!(pair(json!(null)), [0, 1]);
        assert_eq!(pair(byte_level.clone()), [0, 1]);
        assert_eq!(pair(json!({"type": "Sequence", "processors": [byte_level, bert]})), [0, 0, 0, 1, 1]);
        let roberta = json!({
            "type": "RobertaProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2], "trim_offsets": true,
            "add_prefix_space": false,
        });
        assert_eq!(pair(roberta), [0; 6]);
    }

    #[test]
    fn files_and_classes_decide_on_types() {
        let returns = |config: Value, tokenizer: Value| {
            let folder = tempfile::tempdir().unwrap();
            fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
            let tokenizer = ConfigFile::new(NAME, tokenizer.as_object().cloned().unwrap());
            returns_types(folder.path(), &tokenizer).unwrap()
        };
        let [bert, roberta] =
            ["bert", "roberta"].map(|kind| json!({"model_type": kind, "type_vocab_size": 2}));
        assert!(returns(bert.clone(), json!({})));
        assert!(!returns(bert.clone(), json!({"model_input_names": ["input_ids", "attention_mask"]})));
        assert!(!returns(bert, json!({"tokenizer_class": "RobertaTokenizerFast"})));
        assert!(!returns(roberta.clone(), json!({})));
        assert!(returns(roberta, json!({"tokenizer_class": "BertTokenizer"})));
    }
}
