//! Tokenizer classes, and the keys in their settings.

use crate::model_types::Family;

/// Classes with the same tokenizer as `tokenizer.json`, apart from settings that are read, or built as in
/// `transformers`.
const CLASSES: [&str; 23] = [
    "AlbertTokenizer",
    "BarthezTokenizer",
    "BartTokenizer",
    "BertTokenizer",
    "CamembertTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    "GPT2Tokenizer",
    "GemmaTokenizer",
    "LlamaTokenizer",
    "MPNetTokenizer",
    "MT5Tokenizer",
    "MobileBertTokenizer",
    "PegasusTokenizer",
    "PreTrainedTokenizer",
    "Qwen2Tokenizer",
    "RobertaTokenizer",
    "T5Tokenizer",
    "TokenizersBackend",
    "XLMRobertaTokenizer",
    "XLNetTokenizer",
];

/// Translators' classes, which put language tokens around texts, or have no `tokenizer.json`. Translators are built like
/// these only, whatever class is named.
const TRANSLATORS: [(&str, &str); 5] = [
    ("m2m_100", "M2M100Tokenizer"),
    ("m2m_100", "NllbTokenizer"),
    ("marian", "MarianTokenizer"),
    ("mbart", "MBart50Tokenizer"),
    ("mbart", "MBartTokenizer"),
];

/// Classes that tokenize texts like `tokenizer.json`, but not single words, as the package `gliner` passes them.
const FOR_TEXTS: [&str; 2] = ["GemmaTokenizer", "LlamaTokenizer"];

/// Whether a class, without the `Fast` at its end, is supported in models of GLiNER, which read words.
pub fn is_known_for_words(class: &str) -> bool {
    CLASSES.contains(&class) && !FOR_TEXTS.contains(&class)
}

/// Whether a class, without the `Fast` at its end, is supported.
pub fn is_known(class: &str, model_type: &str) -> bool {
    let own = Family::named(model_type).map_or(&[][..], |family| family.own_tokenizer_classes);
    if !own.is_empty() {
        return own.contains(&class);
    }
    match TRANSLATORS
        .iter()
        .any(|(translator, _)| *translator == model_type)
    {
        true => TRANSLATORS.contains(&(model_type, class)),
        false => CLASSES.contains(&class),
    }
}

/// The supported class to use in place of an unsupported one, without the suffix `Fast`.
pub fn expected(class: &str) -> &'static str {
    match class {
        "RoFormerTokenizer" => {
            "a `tokenizer_class` that divides texts without a dictionary (jieba's is not part of Kivu)"
        }
        _ => "a `tokenizer_class` that matches `tokenizer.json`",
    }
}

/// The set of keys for a class, without the `Fast` at its end.
pub fn keys(class: &str) -> &'static str {
    match class {
        "BertTokenizer"
        | "DistilBertTokenizer"
        | "ElectraTokenizer"
        | "MPNetTokenizer"
        | "MobileBertTokenizer" => "tokenizer.bert",
        "RobertaTokenizer" | "BartTokenizer" | "GPT2Tokenizer" => "tokenizer.byte_pairs",
        "LlamaTokenizer" | "GemmaTokenizer" => "tokenizer.llama",
        "T5Tokenizer" => "tokenizer.t5",
        _ => "tokenizer.other",
    }
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
    }
}
