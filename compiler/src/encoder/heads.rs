//! Heads for models without labels: vocabulary weights (SPLADE), token weights and projections (bge-m3, ColBERT), and
//! span scores (GLiNER).

use kivu_engine::kernel::LANES;

use super::{
    config::{EncoderConfig, Names},
    zero_shot::spans::SpanHead,
};
use crate::{
    files::weights::{Weight, Weights},
    model_types::Family,
    onnx::{
        Value, any, fixed,
        layers::{Activation, Layers, Linear},
    },
    sentence_transformers::modules::{Dense, Modules, POOLED},
};
use kivu::{Error, Result, backend::native::MULTI_VECTORS, error::quoted};

/// Output with each vocabulary entry's maximum logit.
pub const LARGEST_LOGITS: &str = "largest_logits";
/// Output with a weight per token.
pub const TOKEN_WEIGHTS: &str = "token_weights";

/// Graph outputs of a model without labels: vectors or span scores.
#[derive(Debug, Default)]
pub struct OutputHeads {
    /// Token vectors, or text vectors after modules.
    pub dense: Option<DenseHead>,
    pub sparse: Option<SparseHead>,
    /// Consecutive layers that project token vectors.
    pub multi_vector: Option<Vec<Dense>>,
    pub spans: Option<SpanHead>,
}

#[derive(Debug)]
pub enum DenseHead {
    Tokens,
    Modules(Modules),
}

#[derive(Debug)]
pub enum SparseHead {
    /// A masked language model's prediction head.
    Vocabulary(Prediction),
    /// A layer with one output.
    Tokens(Dense),
}

/// Full weight names in a prediction head.
#[derive(Clone, Copy, Debug)]
pub struct Prediction {
    /// Layers before the output matrix, each with an activation.
    dense: &'static [&'static str],
    /// Values between two layers.
    width: usize,
    has_bias: bool,
    activation: Activation,
    norm: Option<&'static str>,
    /// Output matrix; models without one use the word embeddings.
    pub matrix: &'static str,
    /// Possible names for the logit bias; `None` in models without one.
    biases: Option<[&'static str; 2]>,
}

impl Prediction {
    /// A masked language model's head.
    pub fn of(class: &str, config: &EncoderConfig) -> Result<Self> {
        let roberta = Self {
            dense: &["lm_head.dense"],
            width: config.encoder_limits.hidden,
            has_bias: true,
            activation: Activation::Gelu,
            norm: Some("lm_head.layer_norm"),
            matrix: "lm_head.decoder.weight",
            biases: Some(["lm_head.bias", "lm_head.decoder.bias"]),
        };
        Ok(match class {
            "BertForMaskedLM" => Self {
                dense: &["cls.predictions.transform.dense"],
                activation: config.feed_forward.activation,
                norm: Some("cls.predictions.transform.LayerNorm"),
                matrix: "cls.predictions.decoder.weight",
                biases: Some(["cls.predictions.bias", "cls.predictions.decoder.bias"]),
                ..roberta
            },
            "DistilBertForMaskedLM" => Self {
                dense: &["vocab_transform"],
                activation: config.feed_forward.activation,
                norm: Some("vocab_layer_norm"),
                matrix: "vocab_projector.weight",
                biases: Some(["vocab_projector.bias"; 2]),
                ..roberta
            },
            "RobertaForMaskedLM" | "XLMRobertaForMaskedLM" | "MPNetForMaskedLM" => roberta,
            "NewForMaskedLM" | "GteForMaskedLM" => Self {
                // The class in `transformers` has no other activation, whatever the file says.
                activation: match class {
                    "NewForMaskedLM" => config.feed_forward.activation,
                    _ => Activation::Gelu,
                },
                norm: Some("lm_head.norm"),
                biases: Some(["lm_head.decoder.bias"; 2]),
                ..roberta
            },
            "ModernBertForMaskedLM" => Self {
                dense: &["head.dense"],
                has_bias: config.head_input.has_bias,
                activation: config.head_input.activation,
                norm: Some("head.norm"),
                matrix: "decoder.weight",
                biases: (!config.details.predicts_without_bias).then_some(["decoder.bias"; 2]),
                ..roberta
            },
            "UltrabertForMaskedLM" => Self {
                dense: &["head.linear1", "head.linear2"],
                width: config.details.prediction_width.unwrap_or(roberta.width),
                has_bias: false,
                activation: Activation::GeluTanh,
                norm: None,
                matrix: "head.decoder.weight",
                biases: None,
            },
            other => {
                return Err(Error::model(format!(
                    "the class `{other}` is not supported for sparse vectors; supported: {}",
                    quoted(&Family::masked_classes().collect::<Vec<_>>())
                )));
            }
        })
    }

    /// Whether `weights` have the head.
    pub fn is_in(&self, weights: &Weights) -> bool {
        weights.has(&format!("{}.weight", self.dense[0]))
    }

    /// Writes each word's maximum logit over a text's tokens.
    fn write(
        &self,
        layers: &mut Layers<'_>,
        config: &EncoderConfig,
        tokens: &Value,
        mask: &Value,
    ) -> Result<Value> {
        let (hidden, vocabulary) = (config.encoder_limits.hidden, config.vocabulary);
        let weights = layers.weights;
        let (mut transformed, mut inputs) = (tokens.clone(), hidden);
        for (place, name) in self.dense.iter().enumerate() {
            let is_last = place + 1 == self.dense.len();
            let outputs = if is_last { hidden } else { self.width };
            let dense = weights.take_whole(&format!("{name}.weight"), &[outputs, inputs])?;
            let bias = match self.has_bias {
                true => {
                    let bias = weights.take_whole(&format!("{name}.bias"), &[outputs])?;
                    Some(bias.values.clone())
                }
                false => None,
            };
            transformed = layers.apply(&Linear::new(name, dense, bias), &transformed)?;
            transformed = layers.activate(self.activation, &transformed);
            inputs = outputs;
        }
        if let Some(norm) = self.norm {
            transformed = layers.normalize_whole(&transformed, norm, hidden)?;
        }
        let matrix = logit_matrix(config, weights, self.matrix)?;
        let bias = match &self.biases {
            None => None,
            Some(names) => {
                let name = weights.shared(names)?.unwrap_or(names[0]);
                Some(weights.take_whole(name, &[vocabulary])?.values.clone())
            }
        };
        layers.largest_outputs(Linear::new(self.matrix, matrix, bias), &transformed, mask)
    }
}

/// Finds the word table of a model whose output matrix is the same one: files have it under either name. `name` is the
/// output matrix's.
pub fn tie_words(config: &EncoderConfig, weights: &mut Weights, name: &str) -> Result<()> {
    let Names { prefix, words, .. } = *config.names;
    if !config.details.ties_words {
        return Ok(());
    }
    // Some files have a body without its prefix beside a head.
    let prefix = if weights.has(words) { "" } else { prefix };
    let words = format!("{prefix}{words}");
    weights.unify(&[&words, name])?;
    if weights.has(&words) {
        weights.prefix = prefix.to_owned();
    }
    Ok(())
}

/// The output matrix: the word table, or in untied models the weight called `name`; see [`tie_words`].
pub fn logit_matrix<'a>(
    config: &EncoderConfig,
    weights: &'a Weights,
    name: &str,
) -> Result<&'a Weight> {
    let shape = &[config.vocabulary, config.encoder_limits.hidden];
    if !config.details.ties_words {
        return weights.take_whole(name, shape);
    }
    weights.take(config.names.words, shape)
}

impl OutputHeads {
    /// Token vectors for pooling in the pipeline, or pooled by modules.
    pub fn dense(modules: Option<Modules>) -> Self {
        let dense = modules.map_or(DenseHead::Tokens, DenseHead::Modules);
        Self {
            dense: Some(dense),
            ..Self::default()
        }
    }

    /// Scores of spans, words, labels or texts.
    pub fn spans(head: SpanHead) -> Self {
        Self {
            spans: Some(head),
            ..Self::default()
        }
    }

    /// SHA-256 of weights in other files than the model's.
    pub fn sources(&self) -> impl Iterator<Item = &str> {
        let modules = match &self.dense {
            Some(DenseHead::Modules(modules)) => Some(modules.sources()),
            _ => None,
        };
        modules
            .into_iter()
            .flatten()
            .chain(self.layers().filter_map(Dense::source))
    }

    /// Layers for token vectors.
    fn layers(&self) -> impl Iterator<Item = &Dense> {
        self.multi_vector
            .iter()
            .flatten()
            .chain(match &self.sparse {
                Some(SparseHead::Tokens(layer)) => Some(layer),
                _ => None,
            })
    }

    /// Whether its modules contain a label score layer.
    pub fn has_scores(&self) -> bool {
        matches!(&self.dense, Some(DenseHead::Modules(modules)) if modules.output() != POOLED)
    }

    /// Whether the native engine has the heads.
    pub fn suit_native_engine(&self) -> bool {
        let suits = |head: &DenseHead| match head {
            DenseHead::Tokens => true,
            DenseHead::Modules(modules) => modules.suit_native_engine(),
        };
        let has_lanes = |head: &SparseHead| match head {
            SparseHead::Vocabulary(prediction) => prediction.width.is_multiple_of(LANES),
            SparseHead::Tokens(_) => true,
        };
        self.dense.as_ref().is_none_or(suits)
            && self.sparse.as_ref().is_none_or(has_lanes)
            && self.spans.is_none_or(|spans| spans.suits_native_engine())
            && self.layers().all(Dense::suits_native_engine)
    }

    /// Writes a graph's outputs from token vectors, token ids and the INT64 attention mask.
    pub fn write(
        &self,
        layers: &mut Layers<'_>,
        config: &EncoderConfig,
        [tokens, ids, mask]: [&Value; 3],
        output: &str,
    ) -> Result<()> {
        let of_tokens = |width| [any("batch"), any("sequence"), fixed(width)];
        match &self.dense {
            None => {}
            Some(DenseHead::Tokens) => {
                layers
                    .graph
                    .output(tokens, output, of_tokens(config.encoder_limits.hidden));
            }
            Some(DenseHead::Modules(modules)) => {
                let vector = modules.write(layers, tokens, mask);
                let axes = [any("batch"), fixed(modules.dimensions()?)];
                layers.graph.output(&vector, modules.output(), axes);
            }
        }
        match &self.sparse {
            None => {}
            Some(SparseHead::Vocabulary(prediction)) => {
                let logits = prediction.write(layers, config, tokens, mask)?;
                layers.graph.output(
                    &logits,
                    LARGEST_LOGITS,
                    [any("batch"), fixed(config.vocabulary)],
                );
            }
            Some(SparseHead::Tokens(layer)) => {
                let weights = layer.write(layers, TOKEN_WEIGHTS, tokens);
                layers.graph.output(&weights, TOKEN_WEIGHTS, of_tokens(1));
            }
        }
        if let Some(projections) = &self.multi_vector {
            let (mut vectors, mut width) = (tokens.clone(), config.encoder_limits.hidden);
            for (place, layer) in projections.iter().enumerate() {
                vectors = layer.write(layers, &format!("projections.{place}"), &vectors);
                width = layer.outputs();
            }
            layers
                .graph
                .output(&vectors, MULTI_VECTORS, of_tokens(width));
        }
        if let Some(spans) = &self.spans {
            spans.write(layers, ids, tokens)?;
        }
        Ok(())
    }
}
