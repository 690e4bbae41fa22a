//! The keys of a model's `config.json`, by family.

use super::{
    generation,
    rules::{
        Rules, Unused,
        Values::{Any, Every, Only, SameAs},
    },
};

/// Keys that files of all families may have.
const SHARED: &[Unused] = &[
    // Records of how the file was written.
    ("_commit_hash", Any),
    ("_name_or_path", Any),
    ("_num_labels", Any),
    ("finetuning_task", Any),
    ("gradient_checkpointing", Any),
    ("language", Any),
    ("model_max_length", Any),
    ("name_or_path", Any),
    ("transformers.js_config", Any),
    ("transformers_version", Any),
    // How a computation is done, but not what is computed.
    ("_attn_implementation", Any),
    ("_attn_implementation_autoset", Any),
    ("attn_implementation", Any),
    ("chunk_size_feed_forward", Any),
    ("dtype", Any),
    ("torch_dtype", Any),
    ("use_bfloat16", Any),
    ("use_cache", Any),
    // Outputs of `transformers` besides the result.
    ("output_attentions", Any),
    ("output_hidden_states", Any),
    ("output_past", Any),
    ("return_dict", Any),
    ("torchscript", Any),
    ("tf_legacy_loss", Any),
    ("label2id", Any),
    // Other models than these.
    ("add_cross_attention", Only("[false]")),
    ("cross_attention_hidden_size", Only("[]")),
    ("is_decoder", Only("[false]")),
    ("pruned_heads", Only("[{}]")),
    ("quantization_config", Only("[]")),
    ("tie_encoder_decoder", Only("[false]")),
    ("sbert_ce_default_activation_function", super::rules::SCORES),
];

/// The settings of a CrossEncoder.
const CROSS_ENCODER: Rules =
    Rules { read: &[], unused: &[&[("activation_fn", super::rules::SCORES), ("version", Any)]], nested: &[] };

/// Keys for training.
const TRAINING: &[Unused] = &[
    ("activation_dropout", Any),
    ("attention_dropout", Any),
    ("attention_probs_dropout_prob", Any),
    ("attn_pdrop", Any),
    ("classif_dropout", Any),
    ("classifier_dropout", Any),
    ("classifier_dropout_prob", Any),
    ("cls_dropout", Any),
    ("decoder_layerdrop", Any),
    ("dropout", Any),
    ("dropout_rate", Any),
    ("embd_pdrop", Any),
    ("embedding_dropout", Any),
    ("encoder_layerdrop", Any),
    ("hidden_dropout", Any),
    ("hidden_dropout_prob", Any),
    ("init_std", Any),
    ("initializer_cutoff_factor", Any),
    ("initializer_factor", Any),
    ("initializer_range", Any),
    ("layerdrop", Any),
    ("mlp_dropout", Any),
    ("pooler_dropout", Any),
    ("qa_dropout", Any),
    ("resid_pdrop", Any),
    ("seq_classif_dropout", Any),
];

/// Ids of tokens that an encoder does not read, and settings of a generation that it does not do.
const ENCODER: &[Unused] = &[
    ("bos_token_id", Any),
    ("cls_token_id", Any),
    ("decoder_start_token_id", Any),
    ("eos_token_id", Any),
    ("is_encoder_decoder", Only("[false]")),
    ("mask_token_id", Any),
    ("prefix", Any),
    ("sep_token_id", Any),
    ("task_specific_params", Any),
    ("unk_token_id", Any),
];

/// Keys of heads that predict words.
const MASKED: &[Unused] = &[("tie_word_embeddings", Any)];
/// The id of padding, in families whose positions do not depend on it.
const PADDING: &[Unused] = &[("pad_token_id", Any)];

/// Attention to tokens before each token. Without it, Gemma 3 is bidirectional in `transformers` 5, with windows unlike
/// those of `use_bidirectional_attention`.
const CAUSAL: &[Unused] = &[("is_causal", Only("[true]"))];

const UNUSED: [&[Unused]; 5] = [SHARED, TRAINING, ENCODER, MASKED, generation::WITHOUT_GENERATION];

macro_rules! family {
    ($name:ident, [$($read:literal),* $(,)?], [$($unused:expr),* $(,)?] $(, nested $($nested:expr),*)?) => {
        const $name: Rules = Rules {
            read: &[
                "architectures", "auto_map", "id2label", "model_type", "num_labels", "problem_type",
                "tokenizer_class", "vocab_size", $($read),*
            ],
            unused: &[UNUSED[0], UNUSED[1], UNUSED[2], UNUSED[3], UNUSED[4], $($unused),*],
            nested: &[("sentence_transformers", &CROSS_ENCODER), $($($nested),*)?],
        };
    };
}

family!(
    BERT,
    [
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "position_embedding_type",
        "type_vocab_size",
    ],
    [PADDING, BERT_LEGACY]
);
/// Keys of the first multilingual files, which no version of `transformers` reads.
const BERT_LEGACY: &[Unused] = &[
    ("directionality", Any),
    ("pooler_fc_size", Any),
    ("pooler_num_attention_heads", Any),
    ("pooler_num_fc_layers", Any),
    ("pooler_size_per_head", Any),
    ("pooler_type", Any),
];
family!(
    ROBERTA,
    [
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "pad_token_id",
        "position_embedding_type",
        "type_vocab_size",
    ],
    []
);
family!(
    DISTILBERT,
    [
        "activation",
        "dim",
        "hidden_dim",
        "hidden_size",
        "max_position_embeddings",
        "n_heads",
        "n_layers",
        "num_attention_heads",
        "num_hidden_layers",
    ],
    [
        PADDING,
        // The table of positions is in the file, however it was made.
        &[("sinusoidal_pos_embds", Any), ("tie_weights_", Any)],
        // Those of BERT, from which the model was distilled.
        &[
            ("hidden_act", Any),
            ("intermediate_size", SameAs("hidden_dim")),
            ("layer_norm_eps", Any),
            ("type_vocab_size", Any),
            ("position_embedding_type", Only(r#"["absolute"]"#)),
        ],
    ]
);
family!(
    MPNET,
    [
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "position_embedding_type",
        "relative_attention_num_buckets",
    ],
    // The model's code has the id itself, and no types.
    [PADDING, &[("type_vocab_size", Any)]]
);
family!(
    DEBERTA,
    [
        "attention_head_size",
        "conv_act",
        "conv_groups",
        "conv_kernel_size",
        "embedding_size",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "max_relative_positions",
        "norm_rel_ebd",
        "num_attention_heads",
        "num_hidden_layers",
        "pooler_hidden_act",
        "pooler_hidden_size",
        "pos_att_type",
        "position_biased_input",
        "position_buckets",
        "relative_attention",
        "share_att_key",
        "type_vocab_size",
    ],
    // Of the head that predicts words.
    [PADDING, &[("legacy", Any)], &[("z_steps", Only("[0]"))]]
);
family!(
    MODERNBERT,
    [
        "attention_bias",
        "classifier_activation",
        "classifier_bias",
        "classifier_pooling",
        "decoder_bias",
        "global_attn_every_n_layers",
        "global_rope_theta",
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "local_attention",
        "local_rope_theta",
        "max_position_embeddings",
        "mlp_bias",
        "norm_bias",
        "norm_eps",
        "num_attention_heads",
        "num_hidden_layers",
    ],
    [
        PADDING,
        &[
            ("deterministic_flash_attn", Any),
            ("reference_compile", Any),
            ("repad_logits_with_grad", Any),
            // Which words a prediction computes while it trains.
            ("sparse_pred_ignore_index", Any),
            ("sparse_prediction", Any),
        ],
        // Those of BERT, which the model's code has under other names.
        &[
            ("layer_norm_eps", Any),
            ("position_embedding_type", Any),
            ("rope_theta", SameAs("global_rope_theta")),
            ("type_vocab_size", Any),
        ],
    ],
    nested("rope_parameters", &ROPE_BY_LAYER),
    ("rope_scaling", &ROPE)
);
family!(
    NOMIC,
    [
        "activation_function",
        "causal",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "layer_norm_epsilon",
        "max_position_embeddings",
        "max_trained_positions",
        "mlp_fc1_bias",
        "mlp_fc2_bias",
        "moe_every_n_layers",
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "num_attention_heads",
        "num_hidden_layers",
        "pad_vocab_size_multiple",
        "parallel_block",
        "prenorm",
        "qkv_proj_bias",
        "rope_theta",
        "rotary_emb_base",
        "rotary_emb_fraction",
        "rotary_emb_interleaved",
        "rotary_emb_scale_base",
        "rotary_scaling_factor",
        "scale_attn_by_inverse_layer_idx",
        "type_vocab_size",
        "use_rms_norm",
    ],
    [
        PADDING,
        // How a computation is done.
        &[
            ("fused_bias_fc", Any),
            ("fused_dropout_add_ln", Any),
            ("reorder_and_upcast_attn", Any),
            ("unpad_inputs", Any),
            ("use_flash_attn", Any),
        ],
        // Of blocks that are parallel, which are refused, and of heads and losses.
        &[
            ("add_pooling_layer", Any),
            ("dense_seq_output", Any),
            ("last_layer_subset", Any),
            ("parallel_block_tied_norm", Any),
            ("summary_activation", Any),
            ("summary_first_dropout", Any),
            ("summary_proj_to_labels", Any),
            ("summary_type", Any),
            ("summary_use_proj", Any),
            ("use_xentropy", Any),
        ],
        // Of GPT-2's code, which the model's own does not use.
        &[("scale_attn_weights", Any)],
        // Of layers of experts, which are refused.
        &[
            ("expert_choice_router", Any),
            ("ffn_div", Only("[1]")),
            ("moe_impl", Any),
            ("moe_normalize_expert_weights", Any),
            ("moe_resid_pdrop", Any),
            ("moe_top_k", Any),
            ("num_experts", Any),
            ("num_shared_experts", Any),
            ("router_aux_loss_coef", Any),
        ],
    ],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    GTE,
    [
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "layer_norm_eps",
        "layer_norm_type",
        "logn_attention_scale",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "pack_qkv",
        "position_embedding_type",
        "rope_theta",
        "type_vocab_size",
    ],
    [
        PADDING,
        &[("unpad_inputs", Any), ("use_memory_efficient_attention", Any)],
        // It limits a scale of attention that is refused.
        &[("logn_attention_clip1", Any)],
    ],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    JINA,
    [
        "feed_forward_type",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "position_embedding_type",
        "type_vocab_size",
    ],
    // The pooling of a method of the model's own class.
    [PADDING, &[("emb_pooler", Any)]]
);
family!(
    QWEN3,
    [
        "attention_bias",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "is_causal",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "rms_norm_eps",
        "rope_theta",
        "use_sliding_window",
    ],
    [
        PADDING,
        // Of windows, which are refused.
        &[("layer_types", Every("full_attention")), ("max_window_layers", Any), ("sliding_window", Any),],
    ],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    GEMMA3,
    [
        "attention_bias",
        "attn_logit_softcapping",
        "head_dim",
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "layer_types",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "query_pre_attn_scalar",
        "rms_norm_eps",
        "rope_local_base_freq",
        "rope_theta",
        "sliding_window",
        "sliding_window_pattern",
        "use_bidirectional_attention",
    ],
    [
        PADDING,
        CAUSAL,
        // The period that `layer_types` was made with.
        &[("_sliding_window_pattern", Any)],
        // Of the logits of words.
        &[("final_logit_softcapping", Any)],
        &[("cache_implementation", Any), ("hidden_act", SameAs("hidden_activation"))],
    ],
    nested("rope_parameters", &ROPE_BY_LAYER),
    ("rope_scaling", &ROPE)
);

/// Keys that T5's code has under two names.
const T5_ALIASES: &[Unused] = &[
    ("head_dim", SameAs("d_kv")),
    ("hidden_size", SameAs("d_model")),
    ("num_attention_heads", SameAs("num_heads")),
    ("num_hidden_layers", SameAs("num_layers")),
    ("is_encoder_decoder", Any),
];
family!(
    T5,
    [
        "d_ff",
        "d_kv",
        "d_model",
        "dense_act_fn",
        "feed_forward_proj",
        "is_gated_act",
        "layer_norm_epsilon",
        "n_positions",
        "num_heads",
        "num_layers",
        "relative_attention_max_distance",
        "relative_attention_num_buckets",
    ],
    // Of the decoder.
    [PADDING, T5_ALIASES, &[("num_decoder_layers", Any), ("scale_decoder_outputs", Any)]]
);

/// The rotation of queries and keys.
const ROPE: Rules = Rules {
    read: &[
        "factor",
        "mixed_b",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
        "rope_type",
        "type",
    ],
    unused: &[],
    nested: &[],
};
const ROPE_BY_LAYER: Rules = Rules {
    read: ROPE.read,
    unused: &[],
    nested: &[("full_attention", &ROPE), ("sliding_attention", &ROPE)],
};

/// The keys of models that generate texts, besides those of generation.
const SEQ2SEQ_UNUSED: [&[Unused]; 3] = [
    SHARED,
    TRAINING,
    &[
        ("cls_token_id", Any),
        ("id2label", Any),
        ("is_encoder_decoder", Only("[true]")),
        ("mask_token_id", Any),
        ("num_labels", Any),
        ("problem_type", Any),
        ("sep_token_id", Any),
        ("unk_token_id", Any),
    ],
];

macro_rules! seq2seq {
    ($name:ident, [$($read:literal),* $(,)?], [$($unused:expr),* $(,)?]) => {
        const $name: Rules = Rules {
            read: &[
                "architectures", "auto_map", "model_type", "prefix", "task_specific_params", "tie_word_embeddings",
                "tokenizer_class", "vocab_size", $($read),*
            ],
            unused: &[SEQ2SEQ_UNUSED[0], SEQ2SEQ_UNUSED[1], SEQ2SEQ_UNUSED[2], $($unused),*],
            nested: &[],
        };
    };
}
seq2seq!(
    BART,
    [
        "activation_function",
        "bos_token_id",
        "d_model",
        "decoder_attention_heads",
        "decoder_ffn_dim",
        "decoder_layers",
        "decoder_vocab_size",
        "encoder_attention_heads",
        "encoder_ffn_dim",
        "encoder_layers",
        "eos_token_id",
        "force_bos_token_to_be_generated",
        "max_position_embeddings",
        "pad_token_id",
        "scale_embedding",
        "share_encoder_decoder_embeddings",
    ],
    [&[
        ("hidden_size", SameAs("d_model")),
        ("num_attention_heads", SameAs("encoder_attention_heads")),
        ("num_hidden_layers", Any),
        // Of fairseq's and Marian's models of other forms. No version of `transformers` since 4.0 reads them.
        ("add_bias_logits", Any),
        ("add_final_layer_norm", Any),
        ("extra_pos_embeddings", Any),
        ("normalize_before", Any),
        ("normalize_embedding", Any),
        ("static_position_embeddings", Any),
        // Of a distillation.
        ("replacing_rate", Any),
        ("save_step", Any),
        ("student_decoder_layers", Any),
        ("student_encoder_layers", Any),
    ]]
);
seq2seq!(
    T5_WHOLE,
    [
        "bos_token_id",
        "d_ff",
        "d_kv",
        "d_model",
        "dense_act_fn",
        "eos_token_id",
        "feed_forward_proj",
        "is_gated_act",
        "layer_norm_epsilon",
        "n_positions",
        "num_decoder_layers",
        "num_heads",
        "num_layers",
        "pad_token_id",
        "relative_attention_max_distance",
        "relative_attention_num_buckets",
        "scale_decoder_outputs",
    ],
    [T5_ALIASES]
);

/// model2vec's settings of a table of vectors.
const STATIC: Rules = Rules {
    read: &["model_type", "normalize"],
    unused: &[
        SHARED,
        &[
            // Records of how the table was made, which has its final values.
            ("apply_pca", Any),
            ("apply_zipf", Any),
            ("architectures", Any),
            ("embedding_dtype", Any),
            ("hidden_dim", Any),
            ("max_length", Any),
            ("pooling", Only(r#"["mean"]"#)),
            ("seq_length", Any),
            ("sif_coefficient", Any),
            ("tokenizer_name", Any),
            ("vocabulary_quantization", Any),
        ],
    ],
    nested: &[],
};

/// Code of families that were published with code of their own, after which they are built here: the type, the files and
/// the beginning of the names of classes.
const KNOWN_CODE: [(&str, [&str; 2], &str); 4] = [
    ("bert", ["configuration_bert", "modeling_bert"], "JinaBert"),
    ("gte", ["configuration_hf_alibaba_nlp_gte", "modeling_hf_alibaba_nlp_gte"], "Gte"),
    ("new", ["configuration", "modeling"], "New"),
    ("nomic_bert", ["configuration_hf_nomic_bert", "modeling_hf_nomic_bert"], "NomicBert"),
];

/// Whether the code that an entry of `auto_map` names, such as `ORG/NAME--modeling.NewModel`, is that of a family.
pub(super) fn is_known_code(model_type: &str, code: &str) -> bool {
    let path = code.rsplit_once("--").map_or(code, |(_, path)| path);
    let Some((file, class)) = path.split_once('.') else { return false };
    KNOWN_CODE.iter().any(|(known, files, classes)| {
        *known == model_type && files.contains(&file) && class.starts_with(classes)
    })
}

/// The rules of `config.json` for an encoder of a supported `model_type`. JinaBERT has that of BERT.
pub(super) fn encoder(model_type: &str, is_jina: bool) -> Option<&'static Rules> {
    Some(match model_type {
        "bert" if is_jina => &JINA,
        "bert" => &BERT,
        "roberta" | "xlm-roberta" | "camembert" => &ROBERTA,
        "distilbert" => &DISTILBERT,
        "mpnet" => &MPNET,
        "deberta-v2" => &DEBERTA,
        "modernbert" => &MODERNBERT,
        "nomic_bert" => &NOMIC,
        "new" | "gte" => &GTE,
        "qwen3" => &QWEN3,
        "gemma3_text" => &GEMMA3,
        "t5" | "mt5" => &T5,
        "model2vec" => &STATIC,
        _ => return None,
    })
}

/// The rules of `config.json` for a model that generates texts.
pub(super) fn seq2seq(model_type: &str) -> Option<&'static Rules> {
    Some(match model_type {
        "bart" | "mbart" | "pegasus" | "marian" | "m2m_100" => &BART,
        "t5" | "mt5" => &T5_WHOLE,
        _ => return None,
    })
}

/// `gliner_config.json`, besides the settings of its encoder.
pub(super) const GLINER: Rules = Rules {
    read: &[
        "class_token_index",
        "embed_ent_token",
        "encoder_config",
        "ent_token",
        "fuse_layers",
        "hidden_size",
        "labels_decoder",
        "labels_encoder",
        "max_len",
        "max_width",
        "model_name",
        "model_type",
        "num_rnn_layers",
        "post_fusion_schema",
        "precomputed_prompts_mode",
        "relations_layer",
        "sep_token",
        "span_encoder_config",
        "span_mode",
        "subtoken_pooling",
        "words_splitter_type",
    ],
    unused: &[
        SHARED,
        TRAINING,
        &[
            ("architectures", Any),
            ("has_rnn", Only("[true]")),
            // The table of words has its own number of rows.
            ("vocab_size", Any),
            // Of a fusion of layers and of classes by id, both of which are refused.
            ("num_post_fusion_layers", Any),
            ("id_to_classes", Any),
            ("represent_spans", Only("[false]")),
            // Names, and settings of a training.
            ("name", Any),
            ("eval_every", Any),
            ("fine_tune", Any),
            ("freeze_components", Any),
            ("freeze_token_rep", Any),
            ("label_smoothing", Any),
            ("log_dir", Any),
            ("loss_alpha", Any),
            ("loss_gamma", Any),
            ("loss_reduction", Any),
            ("lr_encoder", Any),
            ("lr_others", Any),
            ("max_ent_types", Any),
            ("max_grad_norm", Any),
            ("max_neg_type_ratio", Any),
            ("max_types", Any),
            ("neg_spans_ratio", Any),
            ("num_steps", Any),
            ("prev_path", Any),
            ("random_drop", Any),
            ("root_dir", Any),
            ("save_total_limit", Any),
            ("scheduler_type", Any),
            ("shuffle_types", Any),
            ("size_sup", Any),
            ("span_loss_coef", Any),
            ("token_loss_coef", Any),
            ("train_batch_size", Any),
            ("train_data", Any),
            ("val_data_dir", Any),
            ("warmup_ratio", Any),
            ("weight_decay_encoder", Any),
            ("weight_decay_other", Any),
        ],
    ],
    nested: &[],
};
