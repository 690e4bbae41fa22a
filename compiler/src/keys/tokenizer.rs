//! Keys in `tokenizer_config.json`, `special_tokens_map.json` and `tokenizer.json`.

use super::rules::{
    Rules, Unused,
    Values::{Any, Only},
};
use crate::model_types::Family;

/// Keys that any class's files may have.
const SHARED: &[Unused] = &[
    // Records of how the file was written.
    ("_commit_hash", Any),
    ("_name_or_path", Any),
    ("backend", Any),
    ("is_local", Any),
    ("local_files_only", Any),
    ("name_or_path", Any),
    ("processor_class", Any),
    ("special_tokens_map_file", Any),
    ("tokenizer_file", Any),
    ("transformers_version", Any),
    ("vocab_file", Any),
    ("merges_file", Any),
    ("max_len", Any),
    // `tokenizer.json` contains the fast tokenizer.
    ("use_fast", Any),
    ("do_basic_tokenize", Any),
    ("never_split", Any),
    ("from_slow", Only("[false]")),
    ("init_inputs", Only("[[]]")),
    ("legacy", Any),
    ("sp_model_kwargs", Only("[{}]")),
    ("slow_tokenizer_class", Any),
    // Padding; texts are batched without it.
    ("pad_to_max_length", Any),
    ("pad_to_multiple_of", Any),
    ("pad_token_type_id", Any),
    ("padding", Any),
    ("padding_side", Any),
    // A call's own parameters take precedence.
    ("max_length", Any),
    ("return_token_type_ids", Any),
    ("stride", Any),
    ("truncation", Any),
    ("truncation_strategy", Any),
    // Decoding.
    ("clean_up_tokenization_spaces", Any),
    ("errors", Any),
    ("spaces_between_special_tokens", Any),
    // Chats, and tokens for other media, which are special tokens too.
    ("audio_token", Any),
    ("boa_token", Any),
    ("boi_token", Any),
    ("eoa_token", Any),
    ("eoi_token", Any),
    ("image_token", Any),
    ("chat_template", Any),
    ("model_specific_special_tokens", Only("[{}]")),
    ("response_schema", Any),
    ("use_default_system_prompt", Any),
    ("split_special_tokens", Only("[false]")),
    ("auto_map", Only("[]")),
    ("trust_remote_code", Any),
    ("device", Any),
    ("language", Any),
];

/// Keys for all classes. Special token keys are also in `special_tokens_map.json`.
pub const ALL: Rules = Rules {
    read: &[&[
        "added_tokens_decoder",
        "additional_special_tokens",
        "bos_token",
        "cls_token",
        "eos_token",
        "extra_special_tokens",
        "mask_token",
        "model_input_names",
        "model_max_length",
        "pad_token",
        "sep_token",
        "tokenizer_class",
        "truncation_side",
        "unk_token",
    ]],
    unused: &[SHARED],
    nested: &[],
};

pub const SPECIAL_TOKENS: Rules = Rules {
    read: &[&[
        "additional_special_tokens",
        "bos_token",
        "cls_token",
        "eos_token",
        "extra_special_tokens",
        "mask_token",
        "pad_token",
        "sep_token",
        "unk_token",
    ]],
    unused: &[],
    nested: &[],
};

/// `tokenizer.json`. The crate `tokenizers` ignores unknown keys below the top level.
pub static FILE: Rules = Rules {
    read: &[&["version"]],
    // Requests and the model's limit decide.
    unused: &[&[("padding", Any), ("truncation", Any)]],
    nested: &[
        ("added_tokens", &ADDED_TOKEN),
        ("decoder", &DECODER),
        ("model", &MODEL),
        ("normalizer", &NORMALIZER),
        ("post_processor", &POST_PROCESSOR),
        ("pre_tokenizer", &PRE_TOKENIZER),
    ],
};
const ADDED_TOKEN: Rules = Rules {
    read: &[&[
        "content",
        "id",
        "lstrip",
        "normalized",
        "rstrip",
        "single_word",
        "special",
    ]],
    unused: &[],
    nested: &[],
};
const MODEL: Rules = Rules {
    read: &[&[
        "byte_fallback",
        "continuing_subword_prefix",
        "dropout",
        "end_of_word_suffix",
        "fuse_unk",
        "ignore_merges",
        "max_input_chars_per_word",
        "merges",
        "type",
        "unk_id",
        "unk_token",
        "vocab",
    ]],
    unused: &[],
    nested: &[],
};
const PATTERN: Rules = Rules {
    read: &[&["Regex", "String"]],
    unused: &[],
    nested: &[],
};
static NORMALIZER: Rules = Rules {
    read: &[&[
        "clean_text",
        "content",
        "handle_chinese_chars",
        "lowercase",
        "precompiled_charsmap",
        "prepend",
        "strip_accents",
        "strip_left",
        "strip_right",
        "type",
    ]],
    unused: &[],
    nested: &[("normalizers", &NORMALIZER), ("pattern", &PATTERN)],
};
/// Keys of byte-level parts.
const BYTE_LEVEL: &[&str] = &["add_prefix_space", "trim_offsets", "use_regex"];
/// Keys of `Metaspace`.
const METASPACE: &[&str] = &["prepend_scheme", "replacement", "split"];
/// Another form of `Metaspace`'s `replacement` in old files.
const OLD_METASPACE: &[Unused] = &[("str_rep", Any)];
static PRE_TOKENIZER: Rules = Rules {
    read: &[
        BYTE_LEVEL,
        METASPACE,
        &[
            "behavior",
            "delimiter",
            "individual_digits",
            "invert",
            "length",
            "type",
        ],
    ],
    unused: &[OLD_METASPACE],
    nested: &[("pattern", &PATTERN), ("pretokenizers", &PRE_TOKENIZER)],
};
static POST_PROCESSOR: Rules = Rules {
    read: &[
        BYTE_LEVEL,
        &["cls", "pair", "sep", "single", "special_tokens", "type"],
    ],
    unused: &[],
    nested: &[("processors", &POST_PROCESSOR)],
};
static DECODER: Rules = Rules {
    read: &[
        BYTE_LEVEL,
        METASPACE,
        &[
            "cleanup",
            "content",
            "pad_token",
            "prefix",
            "start",
            "stop",
            "suffix",
            "type",
            "word_delimiter_token",
        ],
    ],
    unused: &[OLD_METASPACE],
    nested: &[("decoders", &DECODER), ("pattern", &PATTERN)],
};

/// BERT settings, which take precedence over `tokenizer.json`.
const BERT: Rules = Rules {
    read: &[&["do_lower_case", "strip_accents", "tokenize_chinese_chars"]],
    unused: &[
        &[
            ("add_prefix_space", Any),
            ("wordpieces_prefix", Only(r###"["##"]"###)),
        ],
        LANGUAGE_MODELS,
    ],
    nested: &[],
};
/// Byte-pair settings.
const BYTE_PAIRS: Rules = Rules {
    read: &[&["add_prefix_space", "trim_offsets"]],
    unused: &[LANGUAGE_MODELS, BERT_ONLY],
    nested: &[],
};
/// Llama and Gemma settings.
const LLAMA: Rules = Rules {
    read: &[&["add_bos_token", "add_eos_token"]],
    // With `add_prefix_space`, the tokenizer would differ from `tokenizer.json`.
    unused: &[&[("add_prefix_space", Only("[]"))], BERT_ONLY],
    nested: &[],
};
const T5: Rules = Rules {
    read: &[&["extra_ids"]],
    unused: &[
        &[("add_prefix_space", Only("[]"))],
        LANGUAGE_MODELS,
        BERT_ONLY,
    ],
    nested: &[],
};
const OTHER: Rules = Rules {
    read: &[&["add_prefix_space"]],
    unused: &[LANGUAGE_MODELS, BERT_ONLY, &[("trim_offsets", Any)]],
    nested: &[],
};
/// Keys read only by Llama's classes.
const LANGUAGE_MODELS: &[Unused] = &[("add_bos_token", Any), ("add_eos_token", Any)];
/// Keys read only by BERT's classes, or by tokenizers without a `tokenizer.json`.
const BERT_ONLY: &[Unused] = &[
    ("do_lower_case", Any),
    ("keep_accents", Any),
    ("lowercase", Any),
    ("remove_space", Any),
    ("split_by_punct", Any),
    ("strip_accents", Any),
    ("tokenize_chinese_chars", Any),
    ("vocab_type", Any),
    ("wordpieces_prefix", Any),
];

/// Settings for text generators.
pub const SEQ2SEQ: Rules = Rules {
    read: &[&[
        "extra_ids",
        "legacy_behaviour",
        "offset",
        "separate_vocabs",
        "source_lang",
        "src_lang",
        "target_lang",
    ]],
    unused: &[&[
        // A request must state its target, or it is refused.
        ("tgt_lang", Any),
        // Ids at the table's end without tokens.
        ("num_madeup_words", Any),
        ("language_codes", Any),
        ("full_tokenizer_file", Any),
        ("mask_token_sent", Any),
        ("spm_file", Any),
        ("source_spm", Any),
        ("target_spm", Any),
    ]],
    nested: &[],
};

/// Classes with the same tokenizer as `tokenizer.json`, apart from settings that are read, or built as in
/// `transformers`.
const CLASSES: [&str; 22] = [
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

/// Rules for a class, without the `Fast` at its end.
pub fn class(class: &str) -> &'static Rules {
    match class {
        "BertTokenizer" | "DistilBertTokenizer" | "ElectraTokenizer" | "MPNetTokenizer" => &BERT,
        "RobertaTokenizer" | "BartTokenizer" | "GPT2Tokenizer" => &BYTE_PAIRS,
        "LlamaTokenizer" | "GemmaTokenizer" => &LLAMA,
        "T5Tokenizer" => &T5,
        _ => &OTHER,
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
