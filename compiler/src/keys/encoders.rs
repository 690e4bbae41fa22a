//! Keys in an encoder's `config.json`, by family, that its reader does not ask for, always or in some files.

use super::{
    generation,
    rules::{
        Rules, SCORES, Unused,
        Values::{Any, Only, SameAs},
    },
    shared::{BART_LEGACY, CROSS_ENCODER_FUNCTION, SHARED, SHARED_READ, T5_ALIASES, TRAINING},
};
use crate::model_types::Family;

/// Head keys, which are read if the class, or the weights, have a head.
const HEADS: &[&str] = &["id2label", "num_labels", "problem_type"];

/// CrossEncoder settings.
const CROSS_ENCODER: Rules = Rules {
    read: &[],
    unused: &[&[("activation_fn", SCORES), ("version", Any)]],
    nested: &[],
};

/// How a CrossEncoder makes scores from logits.
pub const SCORE_FUNCTION: Rules = Rules {
    read: &[],
    unused: &[&[CROSS_ENCODER_FUNCTION]],
    nested: &[("sentence_transformers", &CROSS_ENCODER)],
};

/// Label names, which the readers of all classifiers compare.
pub const LABELS: Rules = Rules {
    read: &[&["id2label", "label2id"]],
    unused: &[],
    nested: &[],
};

/// Token ids and settings read only by word prediction or text generation heads.
pub const ENCODER: &[Unused] = &[
    ("bos_token_id", Any),
    ("cls_token_id", Any),
    ("decoder_start_token_id", Any),
    ("eos_token_id", Any),
    ("is_encoder_decoder", Only("[false]")),
    ("mask_token_id", Any),
    ("prefix", Any),
    ("sep_token_id", Any),
    ("task_specific_params", Any),
    ("tie_word_embeddings", Any),
    ("unk_token_id", Any),
];

/// Padding id, in families with positions independent of it.
const PADDING: &[Unused] = &[("pad_token_id", Any)];

/// Causal attention. Without it, Gemma 3 is bidirectional in `transformers` 5, with windows unlike
/// `use_bidirectional_attention`'s.
const CAUSAL: &[Unused] = &[("is_causal", Only("[true]"))];

macro_rules! family {
    ($name:ident, [$($unused:expr),* $(,)?] $(, nested $($nested:expr),*)?) => {
        const $name: Rules = Rules {
            read: &[SHARED_READ, HEADS],
            unused: &[SHARED, TRAINING, ENCODER, generation::WITHOUT_GENERATION, $($unused),*],
            nested: &[("sentence_transformers", &CROSS_ENCODER), $($($nested),*)?],
        };
    };
}

family!(BERT, [PADDING, BERT_LEGACY]);
/// Keys from the first multilingual files, which no `transformers` version reads.
const BERT_LEGACY: &[Unused] = &[
    ("directionality", Any),
    ("pooler_fc_size", Any),
    ("pooler_num_attention_heads", Any),
    ("pooler_num_fc_layers", Any),
    ("pooler_size_per_head", Any),
    ("pooler_type", Any),
];
family!(
    ELECTRA,
    // For multiple choice.
    [
        PADDING,
        &[
            ("summary_activation", Any),
            ("summary_last_dropout", Any),
            ("summary_type", Any),
            ("summary_use_proj", Any),
        ]
    ]
);
family!(
    ALBERT,
    [
        PADDING,
        // Keys from the authors' code, which no `transformers` version reads.
        &[
            ("down_scale_factor", Any),
            ("gap_size", Any),
            ("net_structure_type", Any),
            ("num_memory_blocks", Any),
        ],
    ]
);
family!(
    ERNIE,
    [
        PADDING,
        // Keys from the authors' code, which no `transformers` version reads.
        &[
            ("enable_recompute", Any),
            ("fuse", Any),
            ("pool_act", Only(r#"["tanh"]"#)),
            // For task types, if they are used.
            ("task_type_vocab_size", Any),
        ],
    ]
);
family!(ROBERTA, []);
family!(
    DISTILBERT,
    [
        PADDING,
        // The file contains the position table, sinusoidal or learned.
        &[("sinusoidal_pos_embds", Any), ("tie_weights_", Any)],
        // BERT keys, since the model was distilled from BERT.
        &[
            ("hidden_act", Any),
            ("intermediate_size", SameAs("hidden_dim")),
            ("layer_norm_eps", Any),
            ("type_vocab_size", Any),
        ],
    ]
);
family!(
    MPNET,
    // The model's code has a fixed padding id, and no token types.
    [PADDING, &[("type_vocab_size", Any)]]
);
family!(
    DEBERTA,
    // For the word prediction head, and for a convolution, if there is one.
    [
        PADDING,
        &[("legacy", Any)],
        &[("z_steps", Only("[0]"))],
        &[("conv_act", Any)]
    ]
);
family!(
    DEBERTA_V1,
    // For the word prediction head, and another name for the padding id.
    [
        PADDING,
        &[("legacy", Any), ("padding_idx", Any)],
        &[("talking_head", Only("[false]"))]
    ]
);
family!(
    MODERNBERT,
    [
        PADDING,
        &[
            ("deterministic_flash_attn", Any),
            ("reference_compile", Any),
            ("repad_logits_with_grad", Any),
            // Which words a prediction computes during training.
            ("sparse_pred_ignore_index", Any),
            ("sparse_prediction", Any),
            // For files without `layer_types`.
            ("global_attn_every_n_layers", Any),
        ],
        // BERT keys; the model's code uses other names.
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
        PADDING,
        // Implementation choices without effect on results.
        &[
            ("fused_bias_fc", Any),
            ("fused_dropout_add_ln", Any),
            ("reorder_and_upcast_attn", Any),
            ("unpad_inputs", Any),
            ("use_flash_attn", Any),
        ],
        // For parallel blocks, which are refused, and for heads and losses.
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
        // From GPT-2's code; the model's own code does not use it.
        &[("scale_attn_weights", Any)],
        // For experts, if there are any, and for their implementation and training.
        &[
            ("expert_choice_router", Any),
            ("ffn_div", Any),
            ("moe_impl", Any),
            ("moe_normalize_expert_weights", Any),
            ("moe_resid_pdrop", Any),
            ("moe_top_k", Any),
            ("num_experts", Any),
            ("num_shared_experts", Any),
            ("router_aux_loss_coef", Any)
        ],
        // For files without `intermediate_size`.
        &[("n_inner", Any)],
    ],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    GTE,
    [
        PADDING,
        &[
            ("unpad_inputs", Any),
            ("use_memory_efficient_attention", Any)
        ],
        // Limits an attention scale, which is refused.
        &[("logn_attention_clip1", Any)],
    ],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    JINA,
    // Pooling in a method that Kivu does not call.
    [PADDING, &[("emb_pooler", Any)]]
);
family!(
    JINA_V3,
    // No version of `transformers` reads the kind of positions.
    [PADDING, &[("position_embedding_type", Any)]],
    nested("rope_parameters", &ROPE),
    ("rope_scaling", &ROPE)
);
family!(
    JINA_V3_AUTHORS,
    [
        // Implementation choices without effect on results.
        &[("use_flash_attn", Any), ("use_reentrant", Any)],
        // For rotary positions, and for adapters, if there are any.
        &[
            ("lora_alpha", Any),
            ("lora_rank", Any),
            ("rotary_emb_base", Any),
            ("task_instructions", Any),
        ],
        // For training. Adapters are recognized by their weights.
        &[
            ("load_trained_adapters", Any),
            ("lora_dropout_p", Any),
            ("lora_main_params_trainable", Any),
            ("lora_main_params_trained", Any),
        ],
        // Pooling in a method that Kivu does not call, and lengths for which vectors were trained.
        &[("emb_pooler", Any), ("matryoshka_dimensions", Any)],
        // Only that method truncates vectors.
        &[("truncate_dim", Only("[]"))],
    ]
);
/// Keys for tensor parallel training, and for implementations of the same layers.
const PARALLEL: &[Unused] = &[
    ("_flash_attn_2_enabled", Any),
    ("pretraining_tp", Only("[1]")),
];
family!(
    LLAMA,
    [PADDING, PARALLEL],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
/// Names of tokens, which only tokenizers read.
const TOKEN_NAMES: &[Unused] = &[
    ("bos_token", Any),
    ("eos_token", Any),
    ("mask_token", Any),
    ("pad_token", Any),
];
family!(
    EUROBERT,
    // The authors' own code has another key for the pooling, which `transformers` does not read.
    [
        PADDING,
        PARALLEL,
        TOKEN_NAMES,
        &[("clf_pooling", SameAs("classifier_pooling"))],
        &[("clf_pooling", Only(r#"["late"]"#))]
    ],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
family!(
    MISTRAL,
    [PADDING, PARALLEL],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
family!(
    QWEN2,
    // For images and sounds, and for a rotation by sections of them.
    [PADDING, &[("use_mrope", Only("[false]"))]],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
family!(
    QWEN3,
    [PADDING],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
/// Keys of all Gemma versions for generating texts.
const GEMMA_CACHE: &[Unused] = &[
    ("cache_implementation", Any),
    ("final_logit_softcapping", Any),
];
family!(
    GEMMA,
    // Version 4.57 of `transformers` has neither.
    [
        PADDING,
        GEMMA_CACHE,
        &[
            ("hidden_activation", Any),
            ("use_bidirectional_attention", Only("[false]"))
        ]
    ],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
family!(
    GEMMA2,
    [
        PADDING,
        GEMMA_CACHE,
        &[
            ("hidden_act", SameAs("hidden_activation")),
            ("sliding_window_size", SameAs("sliding_window")),
            // Changes no mask in `transformers`, but some of its attention implementations read it.
            ("use_bidirectional_attention", Only("[false]")),
        ],
    ],
    nested("rope_parameters", &SCALED_ROPE),
    ("rope_scaling", &SCALED_ROPE)
);
family!(
    GEMMA3,
    [
        PADDING,
        CAUSAL,
        GEMMA_CACHE,
        // The period from which `layer_types` was made.
        &[
            ("_sliding_window_pattern", Any),
            ("sliding_window_pattern", Any)
        ],
        &[("hidden_act", SameAs("hidden_activation"))],
    ],
    nested("rope_parameters", &ROPE_BY_LAYER),
    ("rope_scaling", &ROPE)
);

family!(
    T5,
    // For the decoder.
    [
        PADDING,
        T5_ALIASES,
        &[("num_decoder_layers", Any), ("scale_decoder_outputs", Any)]
    ]
);

family!(
    BART,
    [
        PADDING,
        BART_LEGACY,
        &[
            ("force_bos_token_to_be_generated", Any),
            ("hidden_size", SameAs("d_model")),
            ("num_attention_heads", SameAs("encoder_attention_heads")),
            ("num_hidden_layers", Any),
        ],
    ]
);

/// Rotary position keys.
const ROPE: Rules = Rules {
    read: &[&[
        "factor",
        "mixed_b",
        "original_max_position_embeddings",
        "partial_rotary_factor",
        "rope_theta",
        "rope_type",
        "type",
    ]],
    unused: &[],
    nested: &[],
};
/// Keys of a decoder's rotary positions.
const SCALED_ROPE: Rules = Rules {
    read: &[
        ROPE.read[0],
        &[
            "attention_factor",
            "beta_fast",
            "beta_slow",
            "high_freq_factor",
            "long_factor",
            "low_freq_factor",
            "mscale",
            "mscale_all_dim",
            "short_factor",
            "truncate",
        ],
    ],
    unused: &[],
    nested: &[],
};
const ROPE_BY_LAYER: Rules = Rules {
    read: ROPE.read,
    unused: &[],
    nested: &[("full_attention", &ROPE), ("sliding_attention", &ROPE)],
};

/// model2vec's settings for a vector table.
pub const STATIC: Rules = Rules {
    read: &[&["model_type", "normalize"]],
    unused: &[
        SHARED,
        &[
            // Records of how the table was made; it contains the final values.
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

/// Whether the code named by an `auto_map` entry, such as `ORG/NAME--modeling.NewModel`, belongs to a family.
pub fn is_known_code(model_type: &str, code: &str) -> bool {
    let path = code.rsplit_once("--").map_or(code, |(_, path)| path);
    let Some((file, class)) = path.split_once('.') else {
        return false;
    };
    Family::named(model_type)
        .and_then(|family| family.code.as_ref())
        .is_some_and(|code| code.files.contains(&file) && class.starts_with(code.classes))
}

/// `config.json` rules for an encoder with a supported `model_type`. Jina's families have those of BERT and XLM-RoBERTa.
pub fn encoder(model_type: &str, is_jina: bool) -> Option<&'static Rules> {
    Some(match model_type {
        "bert" if is_jina => &JINA,
        "bert" | "megatron-bert" => &BERT,
        "xlm-roberta" if is_jina => &JINA_V3_AUTHORS,
        "jina_embeddings_v3" => &JINA_V3,
        "roberta"
        | "xlm-roberta"
        | "camembert"
        | "data2vec-text"
        | "xlm-roberta-xl"
        | "roberta-prelayernorm" => &ROBERTA,
        "electra" => &ELECTRA,
        "albert" => &ALBERT,
        "ernie" => &ERNIE,
        "distilbert" => &DISTILBERT,
        "mpnet" => &MPNET,
        "deberta" => &DEBERTA_V1,
        "deberta-v2" => &DEBERTA,
        "modernbert" => &MODERNBERT,
        "nomic_bert" => &NOMIC,
        "new" | "gte" => &GTE,
        "llama" => &LLAMA,
        "eurobert" => &EUROBERT,
        "mistral" => &MISTRAL,
        "qwen2" => &QWEN2,
        "qwen3" => &QWEN3,
        "gemma" => &GEMMA,
        "gemma2" => &GEMMA2,
        "gemma3_text" => &GEMMA3,
        "t5" | "mt5" => &T5,
        "bart" => &BART,
        _ => return None,
    })
}
