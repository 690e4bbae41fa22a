//! The architectures whose graphs are written from weights.

use std::path::Path;

use super::{
    deberta::{self, DebertaConfig},
    encoder::{self, EncoderConfig, Facts, Head, RawConfig, read_config},
    onnx::proto::ModelProto,
    weights::Weights,
};
use crate::{error::Result, repository::manifest::Precision};

/// A model as its `config.json` describes it.
pub(super) enum Architecture {
    /// BERT and those after it, which add positions to words.
    Encoder(EncoderConfig),
    /// DeBERTa, which looks at distances.
    Deberta(DebertaConfig),
}

impl Architecture {
    /// Reads the `config.json` in `folder`; what is not supported is refused by name.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let raw: RawConfig = read_config(folder)?;
        if raw.model_type.as_deref() == Some(deberta::MODEL_TYPE) {
            return Ok(Self::Deberta(DebertaConfig::open(folder)?));
        }
        Ok(Self::Encoder(EncoderConfig::open(folder)?))
    }

    /// What pooling and truncation need.
    pub(super) fn facts(&self) -> &Facts {
        match self {
            Self::Encoder(config) => &config.facts,
            Self::Deberta(config) => &config.facts,
        }
    }

    /// What the model makes of its tokens' vectors, if it has a head.
    pub(super) fn head(&self) -> Option<&Head> {
        match self {
            Self::Encoder(config) => config.head.as_ref(),
            Self::Deberta(config) => config.head.as_ref(),
        }
    }

    /// The same body under a head for labels, which an adapter brings.
    pub(super) fn with_head(self, labels: usize) -> Self {
        match self {
            Self::Encoder(config) => Self::Encoder(config.with_head(labels)),
            Self::Deberta(config) => Self::Deberta(config.with_head(labels)),
        }
    }

    /// The prefix under which a model with a head stores its body, and a weight to tell by whether it does.
    pub(super) fn prefix(&self) -> (&'static str, &'static str) {
        match self {
            Self::Encoder(config) => config.prefix(),
            Self::Deberta(_) => deberta::PREFIX,
        }
    }

    /// The model's graph, from token ids to [`encoder::OUTPUT`], or to [`encoder::LOGITS`] under a head.
    pub(super) fn graph(&self, weights: &Weights, precision: Precision) -> Result<ModelProto> {
        match self {
            Self::Encoder(config) => encoder::graph(config, weights, precision),
            Self::Deberta(config) => deberta::graph(config, weights, precision),
        }
    }
}
