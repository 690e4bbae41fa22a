//! Fields of `/v1/embeddings` in the APIs that share it.

use super::{NONE, refused};
use kivu::json::{Fields, Known};

/// The body of `/v1/embeddings`.
pub const EMBEDDINGS: Known = &[&OPENAI, &VOYAGE, &JINA, &MISTRAL, &NVIDIA, &VLLM, &KIVU];

const TEXTS_ONLY: &str = "models read texts";

pub static OPENAI: Fields = Fields {
    read: &["dimensions", "encoding_format", "input", "model"],
    without_effect: &["user"],
    ..NONE
};

pub static VOYAGE: Fields = Fields {
    read: &[
        "encoding_format",
        "input",
        "input_type",
        "model",
        "output_dimension",
        "output_dtype",
        "truncation",
    ],
    ..NONE
};

pub static JINA: Fields = Fields {
    read: &[
        "dimensions",
        "embedding_type",
        "input",
        "late_chunking",
        "model",
        "normalized",
        "task",
        "truncate",
    ],
    refused: &[
        refused(
            "return_multivector",
            &["false"],
            "`/embed_all` returns a vector per token",
        ),
        refused(
            "return_tokenized_input",
            &["false"],
            "`/tokenize` returns tokens",
        ),
    ],
    inner: &[("input", &[&JINA_INPUT])],
    ..NONE
};

/// An object in `input`.
pub static JINA_INPUT: Fields = Fields {
    read: &["text"],
    refused: &[
        refused("bytes", &[], TEXTS_ONLY),
        refused("image", &[], TEXTS_ONLY),
        refused("pdf", &[], TEXTS_ONLY),
        refused("url", &[], TEXTS_ONLY),
    ],
    ..NONE
};

pub static MISTRAL: Fields = Fields {
    read: &[
        "encoding_format",
        "input",
        "model",
        "output_dimension",
        "output_dtype",
    ],
    without_effect: &["metadata"],
    ..NONE
};

pub static NVIDIA: Fields = Fields {
    read: &[
        "dimensions",
        "embedding_type",
        "encoding_format",
        "input",
        "input_type",
        "model",
        "truncate",
    ],
    without_effect: &["user"],
    refused: &[refused("modality", &["\"text\""], TEXTS_ONLY)],
    ..NONE
};

pub static VLLM: Fields = Fields {
    read: &[
        "dimensions",
        "encoding_format",
        "input",
        "model",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_activation",
    ],
    without_effect: &[
        "add_generation_prompt",
        "cache_salt",
        "chat_template",
        "chat_template_kwargs",
        "continue_final_message",
        "media_io_kwargs",
        "mm_processor_kwargs",
        "priority",
        "request_id",
        "user",
    ],
    refused: &[
        refused(
            "add_special_tokens",
            &["true"],
            "token ids with `token_encoding` `model` are used unchanged",
        ),
        refused("embed_dtype", &["\"float32\""], "send `output_dtype`"),
        refused(
            "endianness",
            &["\"native\"", "\"little\""],
            "numbers are little-endian",
        ),
        refused("messages", &[], "send texts in `input`"),
        refused("padding", &["\"do_not_pad\""], "texts are not padded"),
    ],
    ..NONE
};

static KIVU: Fields = Fields {
    read: &[
        "instruction",
        "normalize",
        "prompt",
        "prompt_name",
        "token_encoding",
    ],
    ..NONE
};
