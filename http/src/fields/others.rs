//! Fields of Cohere's embeddings, vLLM's classification, chat completions, Amazon Bedrock, KServe and GLiNER2.

use super::{NONE, hub, refused, tei};
use kivu::json::{Fields, Known};

/// The body of `/v1/embed` and `/v2/embed`.
pub const COHERE_EMBED: Known = &[&COHERE_EMBED_V2, &COHERE_EMBED_V1];
/// The body of `/classify`.
pub const CLASSIFY: Known = &[&VLLM_CLASSIFY, &tei::KIVU_LABELS];
/// The body of `/v1/chat/completions`.
pub const CHAT: Known = &[&NVIDIA_CHAT, &OPENAI_CHAT];
/// The body of `/gliner-2`.
pub const EXTRACTION: Known = &[&GLINER2, &KIVU_GLINER2];
/// Titan Text Embeddings' body.
pub const TITAN: Known = &[&TITAN_FIELDS];
/// Cohere Embed's body in Bedrock.
pub const BEDROCK_EMBED: Known = &[&BEDROCK_EMBED_FIELDS];
/// The body of Bedrock's ranking models.
pub const BEDROCK_RANK: Known = &[&BEDROCK_RANK_FIELDS];
/// The body of `/v2/models/{model}/infer`.
pub const INFER: Known = &[&KSERVE_INFER];
/// The body of `/v2/repository/index`.
pub const INDEX: Known = &[&KSERVE_INDEX];

pub static COHERE_EMBED_V2: Fields = Fields {
    read: &[
        "embedding_types",
        "input_type",
        "inputs",
        "max_tokens",
        "model",
        "output_dimension",
        "texts",
        "truncate",
    ],
    without_effect: &["priority"],
    refused: &[refused("images", &[], "models read texts")],
    ..NONE
};

pub static COHERE_EMBED_V1: Fields = Fields {
    read: &[
        "embedding_types",
        "input_type",
        "model",
        "texts",
        "truncate",
    ],
    refused: &[refused("images", &[], "models read texts")],
    ..NONE
};

pub static VLLM_CLASSIFY: Fields = Fields {
    read: &[
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
        refused("add_special_tokens", &["true"], "leave it out"),
        refused("messages", &[], "send texts in `input`"),
        refused("padding", &["\"do_not_pad\""], "texts are not padded"),
    ],
    ..NONE
};

pub static NVIDIA_CHAT: Fields = Fields {
    read: &[
        "chunk_length",
        "flat_ner",
        "labels",
        "messages",
        "model",
        "overlap",
        "threshold",
    ],
    // Sampling options of NVIDIA's servers and of vLLM.
    without_effect: &["min_p", "repetition_penalty", "top_k"],
    ..NONE
};

const NO_TEXT: &str = "models here find entities and generate no text";

pub static OPENAI_CHAT: Fields = Fields {
    read: &["messages", "model"],
    without_effect: &[
        "frequency_penalty",
        "function_call",
        "logit_bias",
        "max_completion_tokens",
        "max_tokens",
        "metadata",
        "parallel_tool_calls",
        "prediction",
        "presence_penalty",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "reasoning_effort",
        "safety_identifier",
        "seed",
        "service_tier",
        "stop",
        "store",
        "stream_options",
        "temperature",
        "tool_choice",
        "top_p",
        "user",
        "verbosity",
    ],
    refused: &[
        refused("audio", &[], NO_TEXT),
        refused("functions", &[], NO_TEXT),
        refused("logprobs", &["false"], NO_TEXT),
        refused("modalities", &["\"text\""], NO_TEXT),
        refused("moderation", &[], NO_TEXT),
        refused("n", &["1"], NO_TEXT),
        refused("response_format", &[r#"{"type":"text"}"#], NO_TEXT),
        refused("stream", &["false"], NO_TEXT),
        refused("tools", &[], NO_TEXT),
        refused("top_logprobs", &["0"], NO_TEXT),
        refused("web_search_options", &[], NO_TEXT),
    ],
    ..NONE
};

pub static GLINER2: Fields = Fields {
    read: &[
        "format_results",
        "include_confidence",
        "include_spans",
        "schema",
        "task",
        "text",
        "threshold",
    ],
    ..NONE
};

static KIVU_GLINER2: Fields = Fields {
    read: &["model", "truncate"],
    ..NONE
};

/// Bedrock refuses all other fields.
pub static TITAN_FIELDS: Fields = Fields {
    read: &["dimensions", "embeddingTypes", "inputText", "normalize"],
    ..NONE
};

pub static BEDROCK_EMBED_FIELDS: Fields = Fields {
    read: &[
        "embedding_types",
        "input_type",
        "inputs",
        "max_tokens",
        "output_dimension",
        "texts",
        "truncate",
    ],
    refused: &[refused("images", &[], "models read texts")],
    ..NONE
};

pub static BEDROCK_RANK_FIELDS: Fields = Fields {
    read: &[
        "api_version",
        "documents",
        "query",
        "return_documents",
        "top_n",
    ],
    ..NONE
};

pub static KSERVE_INFER: Fields = Fields {
    read: &["id", "inputs", "outputs", "parameters"],
    inner: &[
        ("inputs", &[&KSERVE_INPUT]),
        ("outputs", &[&KSERVE_OUTPUT]),
        (
            "parameters",
            &[&KSERVE_PARAMETERS, &KIVU_PARAMETERS, &hub::GENERATE],
        ),
    ],
    ..NONE
};

pub static KSERVE_INPUT: Fields = Fields {
    read: &["data", "datatype", "name", "parameters", "shape"],
    inner: &[("parameters", &[&KSERVE_INPUT_PARAMETERS])],
    ..NONE
};

pub static KSERVE_INPUT_PARAMETERS: Fields = Fields {
    read: &["binary_data_size"],
    refused: SHARED_MEMORY,
    ..NONE
};

pub static KSERVE_OUTPUT: Fields = Fields {
    read: &["name", "parameters"],
    inner: &[("parameters", &[&KSERVE_OUTPUT_PARAMETERS])],
    ..NONE
};

pub static KSERVE_OUTPUT_PARAMETERS: Fields = Fields {
    read: &["binary_data"],
    refused: &[
        refused(
            "classification",
            &["0"],
            "`/predict` and `POST /models/MODEL` return labels",
        ),
        SHARED_MEMORY[0],
        SHARED_MEMORY[1],
        SHARED_MEMORY[2],
    ],
    ..NONE
};

const SHARED_MEMORY: &[kivu::json::Refused; 3] = &[
    refused(
        "shared_memory_byte_size",
        &["0"],
        "send tensors in the body",
    ),
    refused("shared_memory_offset", &["0"], "send tensors in the body"),
    refused("shared_memory_region", &[], "send tensors in the body"),
];

const NO_SEQUENCES: &str = "each request is independent";

pub static KSERVE_PARAMETERS: Fields = Fields {
    read: &["binary_data_output"],
    without_effect: &["priority", "timeout"],
    refused: &[
        refused("sequence_end", &["false"], NO_SEQUENCES),
        refused("sequence_id", &["0"], NO_SEQUENCES),
        refused("sequence_start", &["false"], NO_SEQUENCES),
    ],
    ..NONE
};

/// Parameters of all tasks.
static KIVU_PARAMETERS: Fields = Fields {
    read: &[
        "aggregation_strategy",
        "clean_up_tokenization_spaces",
        "dimensions",
        "flat",
        "flat_ner",
        "generate_parameters",
        "hypothesis_template",
        "ignore_labels",
        "instruction",
        "max_active_dims",
        "multi_class",
        "multi_label",
        "normalize",
        "patterns",
        "prompt",
        "prompt_name",
        "raw_scores",
        "redact",
        "redact_key",
        "redact_mapping",
        "redact_scope",
        "redact_style",
        "split",
        "src_lang",
        "stride",
        "task",
        "tgt_lang",
        "threshold",
        "transition_biases",
        "truncate",
        "truncation_direction",
        "words",
    ],
    refused: &[
        refused(
            "output_dtype",
            &["\"float\""],
            "vectors are tensors of `FP32`",
        ),
        refused("outputs", &[], "name outputs in the request's `outputs`"),
    ],
    ..NONE
};

pub static KSERVE_INDEX: Fields = Fields {
    read: &["ready"],
    ..NONE
};
