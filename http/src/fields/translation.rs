//! Fields of the translation APIs of DeepL and LibreTranslate, and of Kivu's own.

use super::{NONE, refused};
use kivu::json::{Fields, Known};

/// DeepL's body.
pub const DEEPL: Known = &[&DEEPL_FIELDS];
/// LibreTranslate's body for translation.
pub const LIBRE_TRANSLATE: Known = &[&LIBRE_TRANSLATE_FIELDS];
/// LibreTranslate's body for language identification.
pub const DETECT: Known = &[&DETECT_FIELDS];
/// Kivu's own body for translation.
pub const TRANSLATE: Known = &[&KIVU];

const LEAVE_OUT: &str = "leave it out";
const NO_GLOSSARY: &str = "the models have no glossaries";

pub static DEEPL_FIELDS: Fields = Fields {
    read: &["source_lang", "split_sentences", "target_lang", "text"],
    without_effect: &[
        "enable_beta_languages",
        "ignore_tags",
        "model_type",
        "non_splitting_tags",
        "outline_detection",
        "preserve_formatting",
        "show_billed_characters",
        "splitting_tags",
        "tag_handling_version",
        "translation_memory_threshold",
    ],
    refused: &[
        refused("context", &[], "the models read each text by itself"),
        refused("custom_instructions", &[], LEAVE_OUT),
        refused(
            "formality",
            &["\"default\"", "\"prefer_less\"", "\"prefer_more\""],
            "send `default`, `prefer_more` or `prefer_less`",
        ),
        refused("glossary_id", &[], NO_GLOSSARY),
        refused("glossary_ids", &[], NO_GLOSSARY),
        refused("style_id", &[], LEAVE_OUT),
        refused("tag_handling", &[], "send texts without tags"),
        refused("translation_memory_id", &[], LEAVE_OUT),
    ],
    ..NONE
};

pub static LIBRE_TRANSLATE_FIELDS: Fields = Fields {
    read: &["alternatives", "q", "source", "target"],
    without_effect: &["api_key"],
    refused: &[refused("format", &["\"text\""], "send texts without tags")],
    ..NONE
};

pub static DETECT_FIELDS: Fields = Fields {
    read: &["q"],
    without_effect: &["api_key"],
    ..NONE
};

static KIVU: Fields = Fields {
    read: &[
        "clean_up_tokenization_spaces",
        "generate_parameters",
        "inputs",
        "model",
        "split",
        "src_lang",
        "tgt_lang",
        "truncate",
    ],
    ..NONE
};
