//! Keys in a GLiNER2 model's `config.json`.

use super::{
    generation,
    rules::{
        Rules,
        Values::{Any, Only},
    },
    shared::{SHARED, SHARED_READ, TRAINING},
};

/// `config.json`; the encoder's settings are in a file of their own.
pub const GLINER2: Rules = Rules {
    read: &[
        SHARED_READ,
        &[
            "architecture",
            "counting_layer",
            "max_width",
            "span_head",
            "token_pooling",
        ],
    ],
    unused: &[
        SHARED,
        TRAINING,
        generation::WITHOUT_GENERATION,
        &[
            // Forms of this file, which the package migrates.
            ("architecture_version", Only("[1]")),
            ("config_version", Only("[1, 2, 3]")),
            // For the other architecture.
            ("boundary_head", Only("[null]")),
            // For training.
            ("max_len", Any),
            ("model_name", Any),
            // Labels of the class that all configs have.
            ("id2label", Any),
            ("num_labels", Any),
            ("pad_token_id", Any),
            ("problem_type", Any),
        ],
    ],
    nested: &[("span_head", &SPAN_HEAD)],
};

const SPAN_HEAD: Rules = Rules {
    read: &[&["max_width", "span_mode"]],
    unused: &[&[("dropout", Any)]],
    nested: &[],
};
