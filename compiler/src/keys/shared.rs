//! `config.json` keys shared between kinds of models.

use super::rules::{
    SCORES, Unused,
    Values::{Any, Only, SameAs},
};

/// Keys read for all families.
pub const SHARED_READ: &[&str] = &[
    "architectures",
    "auto_map",
    "model_type",
    "tokenizer_class",
    "vocab_size",
];

/// Keys that any family's files may have.
pub const SHARED: &[Unused] = &[
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
    // Implementation choices without effect on results.
    ("_attn_implementation", Any),
    ("_attn_implementation_autoset", Any),
    ("attn_implementation", Any),
    ("chunk_size_feed_forward", Any),
    ("dtype", Any),
    ("torch_dtype", Any),
    ("use_bfloat16", Any),
    ("use_cache", Only("[true, false]")),
    // `transformers` outputs besides the result.
    ("output_attentions", Any),
    ("output_hidden_states", Any),
    ("output_past", Any),
    ("return_dict", Any),
    ("torchscript", Any),
    ("tf_legacy_loss", Any),
    ("label2id", Any),
    // Options for other kinds of models.
    ("add_cross_attention", Only("[false]")),
    ("cross_attention_hidden_size", Only("[]")),
    ("is_decoder", Only("[false]")),
    ("pruned_heads", Only("[{}]")),
    ("quantization_config", Only("[]")),
    ("tie_encoder_decoder", Only("[false]")),
    CROSS_ENCODER_FUNCTION,
];

/// A CrossEncoder's score function, before version 4 of sentence-transformers.
pub const CROSS_ENCODER_FUNCTION: Unused = ("sbert_ce_default_activation_function", SCORES);

/// Keys for training.
pub const TRAINING: &[Unused] = &[
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

/// T5 layer keys.
pub const T5_READ: &[&str] = &[
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
];
/// Keys with two names in T5's code.
pub const T5_ALIASES: &[Unused] = &[
    ("head_dim", SameAs("d_kv")),
    ("hidden_size", SameAs("d_model")),
    ("num_attention_heads", SameAs("num_heads")),
    ("num_hidden_layers", SameAs("num_layers")),
    ("is_encoder_decoder", Any),
];
/// Unread keys in BART's and its successors' files.
pub const BART_LEGACY: &[Unused] = &[
    // For other forms of fairseq's and Marian's models. No `transformers` version since 4.0 reads them.
    ("add_bias_logits", Any),
    ("add_final_layer_norm", Any),
    ("extra_pos_embeddings", Any),
    ("normalize_before", Any),
    ("normalize_embedding", Any),
    ("static_position_embeddings", Any),
    // For distillation.
    ("replacing_rate", Any),
    ("save_step", Any),
    ("student_decoder_layers", Any),
    ("student_encoder_layers", Any),
];
