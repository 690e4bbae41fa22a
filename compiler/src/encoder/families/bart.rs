//! BART's label head: a decoder reads the encoder's text, shifted by one token, and the head its last token.

use super::fields::{activation, expect};
pub use crate::seq2seq::fairseq::BART;
use crate::{
    encoder::config::{
        Decoder, Details, EncoderConfig, EncoderLimits, FeedForward, Gate, Head, HeadInput,
        HeadKind, HeadRead, Heads, PositionTable, Positions, Span,
    },
    files::config::{ConfigFile, head_width},
    onnx::layers::AttentionWindow,
    seq2seq::fairseq::{LABELS, UNUSED_POSITIONS},
};
use kivu::{
    Error, Result,
    tokenizer::{Tokenizer, Truncation},
};

/// The end token that `config.json` need not name; it is the decoder's first token, too.
const END: i64 = 2;
/// PyTorch's default, which BART's code uses.
const EPSILON: f32 = 1e-5;

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    if config.names_head() && Head::kind(config) != Some(HeadKind::Text) {
        return Err(Error::model(format!(
            "expected BART with a label head (`…ForSequenceClassification`), but found `{}`",
            config.architecture()
        )));
    }
    for (field, expected) in [
        ("is_decoder", false),
        ("is_encoder_decoder", true),
        ("tie_word_embeddings", true),
    ] {
        expect(config, field, &expected)?;
    }
    let start = config.get("decoder_start_token_id")?.unwrap_or(END);
    let vocabulary = config.require_size("vocab_size")?;
    if !usize::try_from(start).is_ok_and(|start| start < vocabulary) {
        return Err(Error::model(format!(
            "expected `decoder_start_token_id` below {vocabulary}, the `vocab_size`, but found {start}"
        )));
    }
    let decoder = Decoder {
        end: config.get("eos_token_id")?.unwrap_or(END),
        start: usize::try_from(start).unwrap_or_default(),
        layers: EncoderConfig {
            spans: vec![Span {
                window: AttentionWindow::BEFORE,
                rotary: None,
            }],
            ..half(config, "decoder", "bart-decoder")?
        },
    };
    Ok(EncoderConfig {
        decoder: Some(Box::new(decoder)),
        head: Head::read(config)?,
        ..half(config, "encoder", "bart")?
    })
}

/// The encoder or decoder.
fn half(config: &ConfigFile, half: &'static str, names: &str) -> Result<EncoderConfig> {
    let hidden = config.require_size("d_model")?;
    let size = |field: &str| config.require_size(&format!("{half}_{field}"));
    let heads = size("attention_heads")?;
    let scale = config
        .is_set("scale_embedding")?
        .then(|| (hidden as f32).sqrt());
    let positions = if half == "encoder" {
        "encoder.embed_positions.weight"
    } else {
        "decoder.embed_positions.weight"
    };
    let max_positions = config.require_size("max_position_embeddings")?;
    let encoder_limits = EncoderLimits {
        architecture: config.architecture().to_owned(),
        hidden,
        max_positions,
        longest: max_positions,
    };
    let heads = Heads {
        queries: heads,
        keys: heads,
        width: head_width(hidden, heads)?,
    };
    let feed_forward = FeedForward {
        width: size("ffn_dim")?,
        activation: activation(config, &["activation_function"])?,
        gate: Gate::None,
    };
    let layers = size("layers")?;
    let shared =
        EncoderConfig::without_head(config, names, encoder_limits, layers, heads, feed_forward)?;
    Ok(EncoderConfig {
        epsilon: EPSILON,
        positions: Positions::Table,
        head_input: HeadInput {
            read: HeadRead::Last,
            ..shared.head_input
        },
        details: Details {
            word_scale: scale,
            ties_words: true,
            position_table: PositionTable {
                name: positions,
                unused: UNUSED_POSITIONS,
            },
            ..shared.details
        },
        ..shared
    })
}

/// Refuses BART without a label head, which generates texts.
pub fn check_head(config: &EncoderConfig) -> Result<()> {
    match config.decoder.is_some() && config.head.is_none() {
        true => Err(Error::model(format!(
            "expected BART with a label head (`{LABELS}.weight`), but found no such weight"
        ))),
        false => Ok(()),
    }
}

/// Refuses tokenizers whose texts do not end with the end token, which the head reads.
pub fn check_end(end: i64, tokenizer: &[u8]) -> Result<()> {
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    let text = tokenizer.encode("a", usize::MAX, Truncation::Off)?;
    let pair = tokenizer.encode_pair(["a", "a"], usize::MAX, Truncation::Off)?;
    match [text, pair]
        .iter()
        .map(|encoding| encoding.ids.last())
        .find(|last| last.map(|id| i64::from(*id)) != Some(end))
    {
        None => Ok(()),
        Some(last) => Err(Error::model(format!(
            "expected texts that end with the token {end}, the `eos_token_id`, but found {}",
            last.map_or("none".to_owned(), u32::to_string)
        ))),
    }
}
