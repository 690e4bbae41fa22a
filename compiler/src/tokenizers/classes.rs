//! Tokenizer classes, from `classes.toml`, without the `Fast` at the end of their names.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::vocabularies::content;
use crate::{files::config::ConfigFile, model_types::Family};

/// A class; `classes.toml` describes the fields.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Class {
    is_supported: bool,
    is_for_texts: bool,
    keys: String,
    returns_types: bool,
    tokens: Vec<String>,
    made: Option<Made>,
}

/// Parts of a `tokenizer.json`, and settings with which a class makes them.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Made {
    #[serde(default)]
    settings: Map<String, Value>,
    #[serde(default)]
    normalizer: Value,
    pre_tokenizer: Value,
    model: Map<String, Value>,
}

impl Default for Class {
    fn default() -> Self {
        Self {
            is_supported: false,
            is_for_texts: false,
            keys: "tokenizer.other".to_owned(),
            returns_types: true,
            tokens: Vec::new(),
            made: None,
        }
    }
}

static CLASSES: LazyLock<BTreeMap<String, Class>> =
    LazyLock::new(|| toml::from_str(include_str!("classes.toml")).unwrap_or_default());

/// Translators' classes, which put language tokens around texts, or have no `tokenizer.json`. Translators are built like
/// these only, whatever class is named.
const TRANSLATORS: [(&str, &str); 5] = [
    ("m2m_100", "M2M100Tokenizer"),
    ("m2m_100", "NllbTokenizer"),
    ("marian", "MarianTokenizer"),
    ("mbart", "MBart50Tokenizer"),
    ("mbart", "MBartTokenizer"),
];

/// Classes of version 5 of `transformers` for models' own tokenizers.
const OWN: [&str; 2] = ["PreTrainedTokenizer", "TokenizersBackend"];

/// Whether a class of version 5 of `transformers` reads a model's own tokenizer.
pub fn is_own(class: &str) -> bool {
    OWN.contains(&class)
}

/// Classes whose tokenizers are made from the vocabulary as version 5 of `transformers` makes them.
const MADE: [&str; 2] = ["BertTokenizer", "XLMRobertaTokenizer"];

/// Whether Kivu makes a tokenizer of this class from the vocabulary, for a model with a tokenizer of its own.
pub fn is_made(class: &str, model_type: &str) -> bool {
    let family = Family::named(model_type);
    MADE.contains(&class) && family.is_some_and(|family| family.has_own_tokenizer)
}

/// Whether a class is supported in models of GLiNER, which read words.
pub fn is_known_for_words(class: &str) -> bool {
    let class = CLASSES.get(class);
    class.is_some_and(|class| class.is_supported && !class.is_for_texts)
}

/// Whether a class is supported.
pub fn is_known(class: &str, model_type: &str) -> bool {
    if Family::named(model_type).is_some_and(|family| family.has_own_tokenizer) {
        return is_own(class) || is_made(class, model_type);
    }
    match TRANSLATORS
        .iter()
        .any(|(translator, _)| *translator == model_type)
    {
        true => TRANSLATORS.contains(&(model_type, class)),
        false => CLASSES.get(class).is_some_and(|class| class.is_supported),
    }
}

/// Whether version 5 of `transformers` wrote these settings of a tokenizer.
pub fn are_newer(settings: &ConfigFile) -> bool {
    settings.fields().contains_key("backend")
}

/// Whether a class returns token types, which distinguish the texts in a pair.
pub fn returns_types(class: &str) -> bool {
    CLASSES.get(class).is_none_or(|class| class.returns_types)
}

/// Special tokens that a class has if no file names them, with their keys.
pub fn special_tokens(class: &str) -> impl Iterator<Item = (&str, &str)> {
    const KEYS: [&str; 6] = [
        "cls_token",
        "sep_token",
        "unk_token",
        "pad_token",
        "mask_token",
        "eos_token",
    ];
    let tokens = CLASSES
        .get(class)
        .into_iter()
        .flat_map(|class| &class.tokens);
    KEYS.into_iter().zip(tokens.map(String::as_str))
}

/// The same in files from version 5 of `transformers`.
pub fn returns_types_since_5(class: &str) -> bool {
    returns_types(class) && !["AlbertTokenizer", "XLNetTokenizer"].contains(&class)
}

/// Whether a tokenizer is what version 5 of `transformers`, which makes those of this class from their vocabularies, makes of
/// it with these settings.
pub fn is_as_made(class: &str, tokenizer: &Value, settings: &Map<String, Value>) -> bool {
    const MODEL: [&str; 8] = [
        "type",
        "unk_token",
        "fuse_unk",
        "byte_fallback",
        "dropout",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "ignore_merges",
    ];
    let Some(made) = CLASSES.get(class).and_then(|class| class.made.as_ref()) else {
        return false;
    };
    let is_default = |value: &Value| value.is_null() || *value == false || *value == "";
    let is_same = |key: &str| {
        let found = &tokenizer["model"][key];
        match made.model.get(key) {
            Some(made) if key == "unk_token" => {
                let named = settings.get(key).and_then(content);
                found.as_str() == named.or(made.as_str())
            }
            Some(made) => found == made,
            None => is_default(found),
        }
    };
    let is_set = |(key, value): (&String, &Value)| {
        settings
            .get(key)
            .is_none_or(|found| found.is_null() || found == value)
    };
    tokenizer["normalizer"] == made.normalizer
        && tokenizer["pre_tokenizer"] == made.pre_tokenizer
        && MODEL.into_iter().all(is_same)
        && made.settings.iter().all(is_set)
}

/// The supported class to use in place of an unsupported one.
pub fn expected(class: &str) -> &'static str {
    match class {
        "RoFormerTokenizer" => {
            "a `tokenizer_class` that divides texts without a dictionary (jieba's is not part of Kivu)"
        }
        _ => "a `tokenizer_class` that matches `tokenizer.json`",
    }
}

/// The set of keys for a class.
pub fn keys(class: &str) -> String {
    let class = CLASSES.get(class);
    class.map_or(Class::default().keys, |class| class.keys.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_models_have_classes_of_their_own() {
        assert!(is_known("MarianTokenizer", "marian") && is_known("NllbTokenizer", "m2m_100"));
        assert!(!is_known("XLNetTokenizer", "marian") && !is_known("AlbertTokenizer", "mbart"));
        assert!(is_known("XLNetTokenizer", "bert") && !is_known("MarianTokenizer", "bert"));
        assert!(is_known_for_words("DebertaV2Tokenizer") && is_known("LlamaTokenizer", "llama"));
        assert!(!is_known_for_words("LlamaTokenizer") && !is_known_for_words("MarianTokenizer"));
        assert!(
            is_known("TokenizersBackend", "eurobert") && !is_known("Qwen2Tokenizer", "eurobert")
        );
        assert!(is_known("BertTokenizer", "ultrabert") && is_made("BertTokenizer", "ultrabert"));
        assert!(!is_made("BertTokenizer", "bert") && !is_made("TokenizersBackend", "ultrabert"));
    }
}
