//! Keys in sentence-transformers' and PyLate's files.

use super::rules::{
    Rules,
    Values::{Any, Only},
};

/// An entry in [`modules.json`](MODULES).
pub const MODULE: Rules = Rules {
    read: &[&["path", "type"]],
    // Request parameters that a module reads; Kivu has separate settings for the ones it passes on.
    unused: &[&[("idx", Any), ("kwargs", Any), ("name", Any)]],
    nested: &[],
};

/// `config_sentence_transformers.json`.
pub const SETTINGS: Rules = Rules {
    read: &[&[
        "attend_to_expansion_tokens",
        "default_prompt_name",
        "do_query_expansion",
        "document_length",
        "document_prefix",
        "model_type",
        "prompts",
        "query_length",
        "query_prefix",
        "similarity_fn_name",
        "skiplist_words",
        "truncate_dim",
    ]],
    unused: &[&[
        ("__version__", Any),
        ("activation_fn", super::rules::SCORES),
    ]],
    nested: &[],
};

/// An embedding model's `sentence_bert_config.json`.
pub const TRANSFORMER: Rules = Rules {
    read: &[&[
        "do_lower_case",
        "document_length",
        "max_seq_length",
        "query_expansion",
        "query_length",
        "transformer_task",
    ]],
    unused: &[&[
        ("unpad_inputs", Any),
        (
            "module_output_name",
            Only(r#"["token_embeddings", "causal_logits", "scores"]"#),
        ),
        ("processing_kwargs", Only("[{}]")),
        ("tokenizer_name_or_path", Only("[]")),
    ]],
    nested: &[
        ("config_args", &CONFIG_ARGUMENTS),
        ("config_kwargs", &CONFIG_ARGUMENTS),
        ("modality_config", &MODALITIES),
        ("model_args", &MODEL_ARGUMENTS),
        ("model_kwargs", &MODEL_ARGUMENTS),
        ("processor_kwargs", &TOKENIZER_ARGUMENTS),
        ("tokenizer_args", &TOKENIZER_ARGUMENTS),
    ],
};

/// Input modalities; Kivu's models read only texts.
const MODALITIES: Rules = Rules {
    read: &[],
    // For messages, images and sounds.
    unused: &[&[
        ("audio", Any),
        ("image", Any),
        ("message", Any),
        ("video", Any),
    ]],
    nested: &[("text", &MODALITY)],
};
const MODALITY: Rules = Rules {
    read: &[],
    unused: &[&[
        ("format", Any),
        ("method", Only(r#"["forward"]"#)),
        (
            "method_output_name",
            Only(r#"["last_hidden_state", "logits"]"#),
        ),
    ]],
    nested: &[],
};

const CONFIG_ARGUMENTS: Rules = Rules {
    read: &[],
    unused: &[&[("trust_remote_code", Any)]],
    nested: &[],
};
const MODEL_ARGUMENTS: Rules = Rules {
    read: &[],
    unused: &[&[
        // Implementation and device choices without effect on results.
        ("attn_implementation", Any),
        ("device_map", Any),
        ("dtype", Any),
        ("low_cpu_mem_usage", Any),
        ("torch_dtype", Any),
        ("trust_remote_code", Any),
        ("use_safetensors", Any),
        ("unpad_inputs", Any),
        ("use_memory_efficient_attention", Any),
        ("add_pooling_layer", Any),
    ]],
    nested: &[],
};
const TOKENIZER_ARGUMENTS: Rules = Rules {
    read: &[],
    unused: &[&[
        ("padding_side", Any),
        ("trust_remote_code", Any),
        ("use_fast", Only("[true]")),
        // `max_seq_length` takes precedence, and is checked against it.
    ]],
    nested: &[],
};

const POOLING: Rules = Rules {
    read: &[&[
        "include_prompt",
        "pooling_mode",
        "pooling_mode_cls_token",
        "pooling_mode_lasttoken",
        "pooling_mode_max_tokens",
        "pooling_mode_mean_sqrt_len_tokens",
        "pooling_mode_mean_tokens",
        "pooling_mode_weightedmean_tokens",
    ]],
    // The hidden size, which is read from the transformer's config.
    unused: &[&[
        ("embedding_dimension", Any),
        ("word_embedding_dimension", Any),
    ]],
    nested: &[],
};
const DENSE: Rules = Rules {
    read: &[&[
        "activation_function",
        "bias",
        "in_features",
        "module_input_name",
        "module_output_name",
        "out_features",
        "use_residual",
    ]],
    unused: &[],
    nested: &[],
};
const NORMALIZE: Rules = Rules {
    read: &[&["module_input_name", "module_output_name"]],
    unused: &[],
    nested: &[],
};
const LAYER_NORM: Rules = Rules {
    read: &[&["dimension"]],
    unused: &[],
    nested: &[],
};
const DROPOUT: Rules = Rules {
    read: &[],
    unused: &[&[("dropout", Any)]],
    nested: &[],
};
const SPLADE: Rules = Rules {
    read: &[&["activation_function", "pooling_strategy"]],
    unused: &[&[
        ("chunk_size", Any),
        ("embedding_dimension", Any),
        ("word_embedding_dimension", Any),
    ]],
    nested: &[],
};
const LOGIT_SCORE: Rules = Rules {
    read: &[&["false_token_id", "true_token_id"]],
    unused: &[&[("module_input_name", Only(r#"["causal_logits"]"#))]],
    nested: &[],
};
const MASK: Rules = Rules {
    read: &[&["keep_only_token_ids", "skiplist_tasks", "skiplist_words"]],
    unused: &[],
    nested: &[],
};
const STATIC_QUERIES: Rules = Rules {
    read: &[],
    unused: &[&[("frozen", Any)]],
    nested: &[],
};

/// `router_config.json`.
pub const ROUTER: Rules = Rules {
    read: &[&["structure", "types"]],
    unused: &[],
    nested: &[("parameters", &ROUTER_PARAMETERS)],
};
const ROUTER_PARAMETERS: Rules = Rules {
    read: &[&["default_route", "route_mappings"]],
    unused: &[&[("allow_empty_key", Any)]],
    nested: &[],
};

/// Stanford ColBERT's `artifact.metadata`.
pub const ARTIFACT: Rules = Rules {
    read: &[&[
        "attend_to_mask_tokens",
        "dim",
        "doc_maxlen",
        "doc_token_id",
        "mask_punctuation",
        "query_maxlen",
        "query_token_id",
    ]],
    // Training records and index settings.
    unused: &[&[
        ("accumsteps", Any),
        ("amp", Any),
        ("avoid_fork_if_possible", Any),
        ("bsize", Any),
        ("centroid_score_threshold", Any),
        ("checkpoint", Any),
        ("collection", Any),
        ("distillation_alpha", Any),
        ("doc_token", Any),
        ("experiment", Any),
        ("gpus", Any),
        ("ignore_scores", Any),
        ("index_bsize", Any),
        ("index_name", Any),
        ("index_path", Any),
        ("interaction", Only(r#"["colbert"]"#)),
        ("kmeans_niters", Any),
        ("load_index_with_mmap", Any),
        ("lr", Any),
        ("maxsteps", Any),
        ("meta", Any),
        ("model_name", Any),
        ("name", Any),
        ("nbits", Any),
        ("ncandidates", Any),
        ("ncells", Any),
        ("ndocs", Any),
        ("nprobe", Any),
        ("nranks", Any),
        ("nway", Any),
        ("only_approx", Any),
        ("overwrite", Any),
        ("partitions", Any),
        ("queries", Any),
        ("query_token", Any),
        ("rank", Any),
        ("relu", Only("[false]")),
        ("reranker", Any),
        ("resume", Any),
        ("root", Any),
        ("save_every", Any),
        ("schedule", Any),
        ("seed", Any),
        ("similarity", Only(r#"["cosine"]"#)),
        ("threshold", Any),
        ("total_visible_gpus", Any),
        ("triples", Any),
        ("use_ib_negatives", Any),
        ("use_rel_loss", Any),
        ("warmup", Any),
        ("warmup_bert", Any),
    ]],
    nested: &[],
};

/// Rules for a module's `config.json`, by class.
pub fn module(class: &str) -> Option<&'static Rules> {
    Some(match class {
        "Dense" => &DENSE,
        "Dropout" => &DROPOUT,
        "LayerNorm" => &LAYER_NORM,
        "LogitScore" => &LOGIT_SCORE,
        "MultiVectorMask" => &MASK,
        "Normalize" => &NORMALIZE,
        "Pooling" => &POOLING,
        "SparseStaticEmbedding" => &STATIC_QUERIES,
        "SpladePooling" => &SPLADE,
        _ => return None,
    })
}
