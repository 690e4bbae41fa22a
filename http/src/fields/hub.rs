//! Fields of the model hub's API, by task. Parameters may also be beside `inputs`.

use super::{NONE, refused, tei};
use kivu::json::{Fields, Known};

/// For embedding models, in TEI's form as well.
pub const FEATURES: Known = &[
    &FEATURES_BODY,
    &tei::EMBED_FIELDS,
    &tei::KIVU_EMBED,
    &tei::COMMON,
];
/// For classification models, in TEI's form as well.
pub const CLASSIFICATION: Known = &[
    &CLASSIFICATION_BODY,
    &tei::PREDICT_FIELDS,
    &CLASSIFICATION_PARAMETERS,
    &tei::COMMON,
];
/// For models that find entities with their own labels.
pub const TOKENS: Known = &[
    &TOKENS_BODY,
    &TOKENS_PARAMETERS,
    &KIVU_TOKENS,
    &REDACTION,
    &tei::COMMON,
];
/// For models that find entities with a request's labels.
pub const ENTITIES: Known = &[
    &ENTITIES_BODY,
    &ENTITIES_PARAMETERS,
    &REDACTION,
    &tei::COMMON,
];
/// For zero-shot classification models.
pub const ZERO_SHOT: Known = &[&ZERO_SHOT_BODY, &ZERO_SHOT_PARAMETERS, &tei::COMMON];
/// For ranking models, in TEI's form as well.
pub const RANKING: Known = &[&RANKING_BODY, &tei::RERANK, &tei::KIVU_RERANK, &tei::COMMON];
/// For models that generate texts, which refuse all unknown `parameters`.
pub const GENERATION: Known = &[
    &GENERATION_BODY,
    &GENERATION_PARAMETERS,
    &GENERATE,
    &tei::COMMON,
];

/// How the hub's servers handle a request: `use_cache`, `wait_for_model` and others.
const OPTIONS: &[&str] = &["options"];

pub static FEATURES_BODY: Fields = Fields {
    read: &[
        "inputs",
        "normalize",
        "parameters",
        "prompt_name",
        "truncate",
        "truncation_direction",
    ],
    without_effect: OPTIONS,
    inner: &[(
        "parameters",
        &[&tei::EMBED_FIELDS, &tei::KIVU_EMBED, &tei::COMMON],
    )],
    ..NONE
};

pub static CLASSIFICATION_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    inner: &[
        ("inputs", &[&TEXT_AND_PAIR]),
        ("parameters", &[&CLASSIFICATION_PARAMETERS, &tei::COMMON]),
    ],
    ..NONE
};

/// A text in an object.
static TEXT_AND_PAIR: Fields = Fields {
    read: &["text", "text_pair"],
    ..NONE
};

pub static CLASSIFICATION_PARAMETERS: Fields = Fields {
    read: &["function_to_apply", "top_k"],
    refused: &[refused(
        "return_all_scores",
        &["true"],
        "send `top_k` 1 for the best label",
    )],
    ..NONE
};

pub static TOKENS_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    inner: &[(
        "parameters",
        &[&TOKENS_PARAMETERS, &KIVU_TOKENS, &REDACTION, &tei::COMMON],
    )],
    ..NONE
};

pub static TOKENS_PARAMETERS: Fields = Fields {
    read: &["aggregation_strategy", "ignore_labels", "stride"],
    refused: &[
        refused("grouped_entities", &["true"], STRATEGY),
        refused("ignore_subwords", &["false"], STRATEGY),
    ],
    ..NONE
};

/// For models whose labels mark ends of entities.
pub static KIVU_TOKENS: Fields = Fields {
    read: &["transition_biases"],
    ..NONE
};

/// Patterns and replacements, for all models that find entities.
pub static REDACTION: Fields = Fields {
    read: &[
        "patterns",
        "redact",
        "redact_key",
        "redact_mapping",
        "redact_scope",
        "redact_style",
    ],
    ..NONE
};

/// The body of `/restore`.
pub const RESTORE: Known = &[&RESTORE_FIELDS];

static RESTORE_FIELDS: Fields = Fields {
    read: &["inputs", "redact_key", "redact_mapping"],
    ..NONE
};

const STRATEGY: &str = "send an `aggregation_strategy`";

pub static ENTITIES_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    inner: &[(
        "parameters",
        &[&ENTITIES_PARAMETERS, &REDACTION, &tei::COMMON],
    )],
    ..NONE
};

static ENTITIES_PARAMETERS: Fields = Fields {
    read: &["flat", "flat_ner", "multi_label", "stride", "threshold"],
    ..NONE
};

pub static ZERO_SHOT_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    inner: &[("parameters", &[&ZERO_SHOT_PARAMETERS, &tei::COMMON])],
    ..NONE
};

pub static ZERO_SHOT_PARAMETERS: Fields = Fields {
    read: &[
        "candidate_labels",
        "hypothesis_template",
        "multi_class",
        "multi_label",
        "prompt",
    ],
    ..NONE
};

pub static RANKING_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    inner: &[
        ("inputs", &[&tei::RERANK, &tei::KIVU_RERANK]),
        (
            "parameters",
            &[&tei::RERANK, &tei::KIVU_RERANK, &tei::COMMON],
        ),
    ],
    ..NONE
};

pub static GENERATION_BODY: Fields = Fields {
    read: &["inputs", "parameters"],
    without_effect: OPTIONS,
    ..NONE
};

pub static GENERATION_PARAMETERS: Fields = Fields {
    read: &[
        "clean_up_tokenization_spaces",
        "generate_parameters",
        "src_lang",
        "tgt_lang",
        "truncation",
    ],
    ..NONE
};

/// Options of `generate`.
pub static GENERATE: Fields = Fields {
    read: &[
        "bad_words_ids",
        "begin_suppress_tokens",
        "decoder_start_token_id",
        "do_sample",
        "early_stopping",
        "epsilon_cutoff",
        "eta_cutoff",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "length_penalty",
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "min_p",
        "no_repeat_ngram_size",
        "num_beams",
        "num_return_sequences",
        "renormalize_logits",
        "repetition_penalty",
        "seed",
        "suppress_tokens",
        "temperature",
        "top_k",
        "top_p",
        "typical_p",
    ],
    ..NONE
};
