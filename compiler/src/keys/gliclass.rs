//! Keys in a GLiClass model's `config.json`.

use super::{
    encoders::ENCODER,
    generation,
    rules::{Rules, Values::Any},
    shared::{SHARED, SHARED_READ, TRAINING},
};

/// `config.json`, without the encoder's settings.
pub const GLICLASS: Rules = Rules {
    read: &[
        SHARED_READ,
        &[
            "architecture_type",
            "class_token_index",
            "class_token_pooling",
            "embed_class_token",
            "encoder_config",
            "encoder_layer_id",
            "extract_text_features",
            "hidden_size",
            "max_labels_alloc",
            "normalize_features",
            "pooling_strategy",
            "projector_hidden_act",
            "prompt_first",
            "scorer_type",
            "squeeze_layers",
            "text_token_index",
            "use_lstm",
            "use_segment_embeddings",
        ],
    ],
    unused: &[
        SHARED,
        TRAINING,
        ENCODER,
        generation::WITHOUT_GENERATION,
        &[
            // Labels of the class that all configs have.
            ("id2label", Any),
            ("num_labels", Any),
            // For another encoder for labels, which this architecture does not have.
            ("label_model_config", Any),
            ("label_model_name", Any),
            // Examples in requests.
            ("example_token_index", Any),
            ("encoder_model_name", Any),
            // The number of labels in a fixed allocation.
            ("max_num_classes", Any),
            ("pad_token_id", Any),
            ("problem_type", Any),
            // A scorer that is not supported, and a size that the package does not pass on.
            ("scorer_attn_dropout", Any),
            ("scorer_mlp_hidden_size", Any),
            ("scorer_num_heads", Any),
            // The weight has the value.
            ("logit_scale_init_value", Any),
            // Training settings.
            ("contrastive_loss_coef", Any),
            ("focal_loss_alpha", Any),
            ("focal_loss_gamma", Any),
            ("focal_loss_reduction", Any),
            ("ignore_index", Any),
            ("layer_wise", Any),
        ],
    ],
    nested: &[],
};
