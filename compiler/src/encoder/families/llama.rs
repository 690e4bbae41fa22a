//! Llama, and EuroBERT, which is the same without a causal mask.

use super::{
    decoders::{self, Defaults},
    rope,
};
use crate::{
    encoder::config::{Biases, EncoderConfig, HeadInput, HeadRead, Span},
    files::config::ConfigFile,
    onnx::layers::{Activation, AttentionWindow},
};
use kivu::{Error, Result};

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    let [span, _] = decoders::spans(config, &Defaults::LLAMA, None)?;
    let shared = decoders::read(config, "llama", &Defaults::LLAMA, vec![span])?;
    Ok(EncoderConfig {
        biases: biases(config)?,
        ..shared
    })
}

pub fn read_eurobert(config: &ConfigFile) -> Result<EncoderConfig> {
    let defaults = Defaults {
        epsilon: 1e-5,
        ..Defaults::LLAMA
    };
    let width = decoders::heads(config, &defaults)?.width;
    let spans = vec![Span {
        window: AttentionWindow::ALL,
        rotary: Some(rope::of_decoder(config, width)?),
    }];
    let shared = decoders::read(config, "eurobert", &defaults, spans)?;
    let read = match config.get::<String>("classifier_pooling")?.as_deref() {
        None | Some("late") => HeadRead::MeanOfActivated,
        Some("mean") => HeadRead::Mean,
        Some("bos") => HeadRead::First,
        Some(other) => {
            return Err(Error::model(format!(
                "expected `classifier_pooling` `late`, `mean` or `bos`, but found `{other}`"
            )));
        }
    };
    Ok(EncoderConfig {
        biases: biases(config)?,
        head_input: HeadInput {
            read,
            ..HeadInput::first(Activation::Gelu)
        },
        ..shared
    })
}

pub fn biases(config: &ConfigFile) -> Result<Biases> {
    let bias = config.is_set("mlp_bias")?;
    Ok(Biases {
        up: bias,
        down: bias,
        ..decoders::attention_biases(config)?
    })
}
