//! Keys in text generators' `config.json`, by family.

use super::{
    rules::{
        Rules, Unused,
        Values::{Any, Only, SameAs},
    },
    shared::{BART_LEGACY, SHARED, SHARED_READ, T5_ALIASES, T5_READ, TRAINING},
};

/// Keys for heads, and unread token keys.
const OTHERS: &[Unused] = &[
    ("cls_token_id", Any),
    ("id2label", Any),
    ("is_encoder_decoder", Only("[true]")),
    ("mask_token_id", Any),
    ("num_labels", Any),
    ("problem_type", Any),
    ("sep_token_id", Any),
    ("unk_token_id", Any),
];

macro_rules! seq2seq {
    ($name:ident, [$($read:expr),* $(,)?], [$($unused:expr),* $(,)?]) => {
        const $name: Rules = Rules {
            read: &[SHARED_READ, &["prefix", "task_specific_params", "tie_word_embeddings"], $($read),*],
            unused: &[SHARED, TRAINING, OTHERS, $($unused),*],
            nested: &[],
        };
    };
}
seq2seq!(
    BART,
    [&[
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
        "share_encoder_decoder_embeddings"
    ]],
    [
        &[
            ("hidden_size", SameAs("d_model")),
            ("num_attention_heads", SameAs("encoder_attention_heads")),
            ("num_hidden_layers", Any),
        ],
        BART_LEGACY
    ]
);
seq2seq!(
    T5_WHOLE,
    [
        T5_READ,
        &[
            "bos_token_id",
            "eos_token_id",
            "num_decoder_layers",
            "pad_token_id",
            "scale_decoder_outputs"
        ]
    ],
    [T5_ALIASES]
);

/// `config.json` rules for a text generator.
pub fn rules(model_type: &str) -> Option<&'static Rules> {
    Some(match model_type {
        "bart" | "mbart" | "pegasus" | "marian" | "m2m_100" => &BART,
        "t5" | "mt5" => &T5_WHOLE,
        _ => return None,
    })
}
