//! Fields for ranking and scoring in the APIs of Cohere, Jina, Voyage, vLLM, infinity and llama.cpp.

use super::{NONE, refused};
use kivu::json::{Fields, Known};

/// A query and texts, in TEI's form.
pub const TEXTS: Known = &[&super::tei::RERANK, &super::tei::KIVU_RERANK];

/// A query and documents.
pub const DOCUMENTS: Known = &[
    &COHERE_V2, &COHERE_V1, &JINA, &VOYAGE, &VLLM, &INFINITY, &LLAMA_CPP, &KIVU,
];

/// The body of `/rerank`, in TEI's form or with documents.
pub const RERANK: Known = &[
    &super::tei::RERANK,
    &super::tei::KIVU_RERANK,
    &COHERE_V2,
    &COHERE_V1,
    &JINA,
    &VOYAGE,
    &VLLM,
    &INFINITY,
    &LLAMA_CPP,
    &KIVU,
];

/// The body of `/score`.
pub const SCORE: Known = &[&VLLM_SCORE];

pub static COHERE_V2: Fields = Fields {
    read: &["documents", "max_tokens_per_doc", "model", "query", "top_n"],
    without_effect: &["priority"],
    refused: &[refused(
        "relevant_spans",
        &[r#"{"mode":"disabled"}"#],
        "documents are ranked as a whole",
    )],
    ..NONE
};

pub static COHERE_V1: Fields = Fields {
    read: &["documents", "model", "query", "return_documents", "top_n"],
    refused: &[
        refused(
            "max_chunks_per_doc",
            &["1"],
            "a document is read up to the model's token limit",
        ),
        refused(
            "rank_fields",
            &["\"text\""],
            "send documents as texts with these fields",
        ),
    ],
    ..NONE
};

pub static JINA: Fields = Fields {
    read: &["documents", "model", "query", "return_documents", "top_n"],
    refused: &[
        refused(
            "max_doc_length",
            &[],
            "a document is read up to the model's token limit",
        ),
        refused(
            "max_query_length",
            &[],
            "a query is read up to the model's token limit",
        ),
        refused(
            "return_embeddings",
            &["false"],
            "`/v1/embeddings` returns vectors",
        ),
    ],
    ..NONE
};

pub static VOYAGE: Fields = Fields {
    read: &[
        "documents",
        "model",
        "query",
        "return_documents",
        "top_k",
        "truncation",
    ],
    ..NONE
};

pub static VLLM: Fields = Fields {
    read: &[
        "documents",
        "instruction",
        "max_tokens_per_doc",
        "model",
        "query",
        "top_n",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_activation",
    ],
    without_effect: &[
        "additional_data",
        "cache_salt",
        "mm_processor_kwargs",
        "priority",
        "request_id",
        "user",
    ],
    refused: VLLM_PAIRS,
    ..NONE
};

/// What vLLM's ranking and scoring have in common.
const VLLM_PAIRS: &[kivu::json::Refused] = &[
    refused(
        "chat_template_kwargs",
        &[],
        "send an instruction in `instruction`",
    ),
    refused(
        "max_tokens_per_query",
        &["0"],
        "a query is read up to the model's token limit",
    ),
    refused("padding", &["\"do_not_pad\""], "texts are not padded"),
];

pub static INFINITY: Fields = Fields {
    read: &[
        "documents",
        "model",
        "query",
        "raw_scores",
        "return_documents",
        "top_n",
    ],
    ..NONE
};

pub static LLAMA_CPP: Fields = Fields {
    read: &["documents", "model", "query", "top_n"],
    ..NONE
};

static KIVU: Fields = Fields {
    read: &["prompt", "truncate"],
    ..NONE
};

pub static VLLM_SCORE: Fields = Fields {
    read: &[
        "data_1",
        "data_2",
        "documents",
        "instruction",
        "items",
        "max_tokens_per_doc",
        "model",
        "queries",
        "text_1",
        "text_2",
        "truncate_prompt_tokens",
        "truncation_side",
        "use_activation",
    ],
    without_effect: &[
        "cache_salt",
        "mm_processor_kwargs",
        "priority",
        "request_id",
        "user",
    ],
    refused: VLLM_PAIRS,
    ..NONE
};
