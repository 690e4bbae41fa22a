//! Fields of TEI's API, and of Vertex AI's, which has the same bodies in a list.

use super::{NONE, refused};
use kivu::json::{Fields, Known};

/// The body of `/embed`, `/embed_all` and `/embed_sparse`.
pub const EMBED: Known = &[&EMBED_FIELDS, &KIVU_EMBED];
/// The body of `/predict`.
pub const PREDICT: Known = &[&PREDICT_FIELDS, &KIVU_LABELS];
/// The body of `/similarity`, whose parameters may also be beside `inputs`.
pub const SIMILARITY: Known = &[
    &SIMILARITY_FIELDS,
    &SIMILARITY_PARAMETERS,
    &KIVU_EMBED,
    &COMMON,
];
/// The body of `/tokenize`.
pub const TOKENIZE: Known = &[&TOKENIZE_FIELDS, &KIVU_TOKENIZE];
/// The body of `/decode`.
pub const DECODE: Known = &[&DECODE_FIELDS, &MODEL];
/// The body of `/vertex`.
pub const VERTEX: Known = &[&VERTEX_FIELDS];

/// Names that all tasks take in `parameters` or beside `inputs`. Labels for models that take none are refused with the
/// model's name.
pub static COMMON: Fields = Fields {
    read: &[
        "candidate_labels",
        "labels",
        "model",
        "truncate",
        "truncation",
        "truncation_direction",
    ],
    ..NONE
};

pub static EMBED_FIELDS: Fields = Fields {
    read: &[
        "dimensions",
        "inputs",
        "normalize",
        "prompt_name",
        "truncate",
        "truncation_direction",
    ],
    ..NONE
};

pub static KIVU_EMBED: Fields = Fields {
    read: &[
        "dimensions",
        "encoding_format",
        "instruction",
        "max_active_dims",
        "model",
        "normalize",
        "output_dtype",
        "outputs",
        "prompt",
        "task",
        "words",
    ],
    ..NONE
};

pub static PREDICT_FIELDS: Fields = Fields {
    read: &["inputs", "raw_scores", "truncate", "truncation_direction"],
    ..NONE
};

/// Labels are refused with the model's name.
pub static KIVU_LABELS: Fields = Fields {
    read: &["candidate_labels", "labels", "model"],
    ..NONE
};

pub static RERANK: Fields = Fields {
    read: &[
        "query",
        "raw_scores",
        "return_text",
        "texts",
        "truncate",
        "truncation_direction",
    ],
    ..NONE
};

pub static KIVU_RERANK: Fields = Fields {
    read: &["instruction", "model", "prompt", "top_n"],
    ..NONE
};

pub static SIMILARITY_FIELDS: Fields = Fields {
    read: &["inputs", "parameters"],
    inner: &[
        ("inputs", &[&SIMILARITY_INPUTS]),
        (
            "parameters",
            &[&SIMILARITY_PARAMETERS, &KIVU_EMBED, &COMMON],
        ),
    ],
    ..NONE
};

pub static SIMILARITY_INPUTS: Fields = Fields {
    read: &["sentences", "source_sentence"],
    ..NONE
};

pub static SIMILARITY_PARAMETERS: Fields = Fields {
    read: &["prompt_name", "truncate", "truncation_direction"],
    ..NONE
};

pub static TOKENIZE_FIELDS: Fields = Fields {
    read: &["add_special_tokens", "inputs", "prompt_name"],
    ..NONE
};

static KIVU_TOKENIZE: Fields = Fields {
    read: &[
        "instruction",
        "model",
        "prompt",
        "src_lang",
        "task",
        "tgt_lang",
    ],
    ..NONE
};

pub static DECODE_FIELDS: Fields = Fields {
    read: &["ids", "skip_special_tokens"],
    ..NONE
};

static MODEL: Fields = Fields {
    read: &["model"],
    ..NONE
};

pub static VERTEX_FIELDS: Fields = Fields {
    read: &["instances"],
    refused: &[refused(
        "parameters",
        &[],
        "put them into each of the `instances`",
    )],
    ..NONE
};
