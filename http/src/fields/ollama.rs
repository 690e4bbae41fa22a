//! Fields of Ollama's and llama.cpp's APIs.

use super::{NONE, refused};
use kivu::json::{Fields, Known};

/// The body of `/api/embed`.
pub const EMBED: Known = &[&EMBED_FIELDS];
/// The body of `/api/embeddings`.
pub const EMBEDDINGS: Known = &[&EMBEDDINGS_FIELDS];
/// The body of `/api/show`.
pub const SHOW: Known = &[&SHOW_FIELDS];
/// The body of `/api/pull`.
pub const PULL: Known = &[&PULL_FIELDS];
/// The body of `/embedding`.
pub const LLAMA_CPP: Known = &[&LLAMA_CPP_FIELDS];

pub static EMBED_FIELDS: Fields = Fields {
    read: &[
        "dimensions",
        "input",
        "keep_alive",
        "model",
        "options",
        "truncate",
    ],
    inner: &[("options", &[&OPTIONS])],
    ..NONE
};

pub static EMBEDDINGS_FIELDS: Fields = Fields {
    read: &["keep_alive", "model", "options", "prompt"],
    inner: &[("options", &[&OPTIONS])],
    ..NONE
};

/// Most options are about generated texts, or about the memory and the processors of Ollama's models.
pub static OPTIONS: Fields = Fields {
    read: &["num_ctx"],
    without_effect: &[
        "draft_num_predict",
        "embedding_only",
        "f16_kv",
        "frequency_penalty",
        "logits_all",
        "low_vram",
        "main_gpu",
        "min_p",
        "mirostat",
        "mirostat_eta",
        "mirostat_tau",
        "num_batch",
        "num_gpu",
        "num_gqa",
        "num_keep",
        "num_predict",
        "num_thread",
        "numa",
        "penalize_newline",
        "presence_penalty",
        "repeat_last_n",
        "repeat_penalty",
        "rope_frequency_base",
        "rope_frequency_scale",
        "seed",
        "stop",
        "temperature",
        "tfs_z",
        "top_k",
        "top_p",
        "typical_p",
        "use_mlock",
        "use_mmap",
        "vocab_only",
    ],
    ..NONE
};

pub static SHOW_FIELDS: Fields = Fields {
    read: &["model", "name"],
    without_effect: &["options", "system", "template", "verbose"],
    ..NONE
};

pub static PULL_FIELDS: Fields = Fields {
    read: &["model", "name", "stream"],
    without_effect: &["password", "username"],
    refused: &[refused(
        "insecure",
        &["false"],
        "the hub's certificate is always checked",
    )],
    ..NONE
};

pub static LLAMA_CPP_FIELDS: Fields = Fields {
    read: &["content", "embd_normalize", "input", "model"],
    refused: &[
        refused(
            "encoding_format",
            &["\"float\""],
            "`/v1/embeddings` returns base64",
        ),
        refused("image_data", &[], "models read texts"),
    ],
    ..NONE
};
