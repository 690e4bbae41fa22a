//! The graph of an encoder, in the form that measured fastest on ONNX Runtime's CPU kernels: queries, keys and values
//! from one multiplication, attention as one fused operator, biases inside the quantised multiplications, residuals
//! inside the layer normalisations.

use super::{
    config::{EncoderConfig, Head, WORDS},
    disentangled::Text,
};
use crate::{
    backend::Engine,
    build::{
        layers::{Layers, attention},
        modules::{Modules, POOLED},
        onnx::{GraphBuilder, ModelProto, Value, any, data_type, fixed, float},
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// The output of an encoder without a head: one vector per token.
pub(super) const OUTPUT: &str = "last_hidden_state";
/// The output of an encoder with a head: one value per label.
pub(super) const LOGITS: &str = "logits";

/// Writes the graph of an encoder, from token ids to [`OUTPUT`], or to [`LOGITS`] if it has a head.
///
/// A head reads the first token only, and so does the last layer under a head: other tokens' vectors are not needed.
/// With `modules`, the output is [`POOLED`].
pub(super) fn graph(
    config: &EncoderConfig,
    weights: &Weights,
    modules: Option<&Modules>,
    precision: Precision,
    engine: Engine,
) -> Result<ModelProto> {
    let width = config.facts.hidden;
    let mut layers = Layers::new(weights, precision, width, config.epsilon);
    if engine == Engine::Native {
        layers.graph = GraphBuilder::with_functions();
    }
    let mut writer = Writer { config, layers, text: None };
    let ids = writer.layers.graph.input("input_ids", &["batch", "sequence"]);
    let mask = writer.layers.graph.input("attention_mask", &["batch", "sequence"]);
    if let Some(settings) = &config.disentangled {
        writer.text = Some(Text::new(&mut writer.layers, config, settings, [&ids, &mask])?);
    }
    let attention_mask = mask;
    let mask = writer.layers.cast(&attention_mask, data_type::INT32);
    let mut hidden = writer.embeddings(&ids)?;
    let embedded = hidden.clone();
    for layer in 0..config.layers {
        let settings = config.disentangled.as_ref().filter(|_| layer == 0);
        let convolution = settings.and_then(|settings| settings.convolution.as_ref());
        let is_first_only = config.head.is_some() && layer + 1 == config.layers && convolution.is_none();
        let attending = if is_first_only { writer.layers.first_token(&hidden) } else { hidden.clone() };
        hidden = writer.layer(layer, &attending, &hidden, &mask)?;
        if let (Some(text), Some(convolution)) = (&writer.text, convolution) {
            hidden = text.convolve(&mut writer.layers, convolution, [&embedded, &hidden])?;
        }
    }
    if let Some(head) = &config.head {
        let logits = writer.head(head, &hidden)?;
        writer.layers.graph.output(&logits, LOGITS, [any("batch"), fixed(head.labels.len())]);
    } else if let Some(modules) = modules {
        let vector = modules.write(&mut writer.layers, &hidden, &attention_mask);
        writer.layers.graph.output(&vector, POOLED, [any("batch"), fixed(modules.dimensions()?)]);
    } else {
        writer.layers.graph.output(&hidden, OUTPUT, [any("batch"), any("sequence"), fixed(width)]);
    }
    Ok(writer.layers.graph.finish(&config.facts.architecture))
}

struct Writer<'a> {
    config: &'a EncoderConfig,
    layers: Layers<'a>,
    /// Shared values of DeBERTa's layers; none in other families.
    text: Option<Text>,
}

impl Writer<'_> {
    fn embeddings(&mut self, ids: &Value) -> Result<Value> {
        let EncoderConfig { vocabulary, types, has_positions, padding, .. } = *self.config;
        let (layers, hidden) = (&mut self.layers, self.config.facts.hidden);
        let words = layers.weights.take(WORDS, &[vocabulary, hidden])?;
        let mut sum = layers.look_up(WORDS, words, ids);
        let type_table = match types {
            0 => None,
            _ => Some(layers.weights.take("embeddings.token_type_embeddings.weight", &[types, hidden])?),
        };
        let is_shared = types == 1 && has_positions;
        if let Some(table) = type_table.filter(|_| !is_shared) {
            let table = layers.graph.floats("token_types", &table.shape, &table.values);
            let type_ids = layers.graph.input("token_type_ids", &["batch", "sequence"]);
            let types = layers.graph.node("Gather", &[&table, &type_ids], vec![]);
            sum = layers.graph.node("Add", &[&sum, &types], vec![]);
        }
        if has_positions {
            let name = "embeddings.position_embeddings.weight";
            let mut table = layers.weights.take(name, &[self.config.position_rows(), hidden])?.clone();
            // A single type is added to all tokens, and therefore to all positions.
            if let Some(shared) = type_table.filter(|_| is_shared) {
                for row in table.values.chunks_exact_mut(hidden) {
                    row.iter_mut().zip(&shared.values).for_each(|(position, shared)| *position += shared);
                }
            }
            let table = layers.graph.floats("positions", &table.shape, &table.values);
            let positions = layers.positions(&table, ids, padding);
            sum = layers.graph.node("Add", &[&sum, &positions], vec![]);
        }
        sum = layers.normalise(&sum, "embeddings.LayerNorm")?;
        Ok(match &self.text {
            Some(text) => text.without_padding(layers, &sum),
            None => sum,
        })
    }

    /// One layer: the tokens of `attending`, all of `input` or the first, attend to those of `input`.
    fn layer(&mut self, layer: usize, attending: &Value, input: &Value, mask: &Value) -> Result<Value> {
        let EncoderConfig { heads, intermediate, names, .. } = *self.config;
        let (layers, hidden) = (&mut self.layers, self.config.facts.hidden);
        let square = [hidden, hidden];
        let at = |name: &str| format!("{}{layer}.{name}", names.layer);
        let is_first_only = attending != input;
        let [query, key, value] = if is_first_only {
            let projected = layers.linear(&[at(names.key), at(names.value)], input, square)?;
            let [key, value] = layers.graph.split(&projected);
            [layers.linear(&[at(names.query)], attending, square)?, key, value]
        } else {
            let names = [at(names.query), at(names.key), at(names.value)];
            let projected = layers.linear(&names, input, square)?;
            layers.graph.split(&projected)
        };
        let none = Value::none();
        let mut inputs = vec![&query, &key, &value, &none, mask];
        let mut attributes = attention(heads);
        let bias = match self.text.as_ref().and_then(|text| text.windows.as_ref()) {
            Some(windows) => windows.bias(layers, &at("attention.self"), [&query, &key], is_first_only)?,
            None => Value::none(),
        };
        if let Some(settings) = &self.config.disentangled {
            inputs.push(&bias);
            attributes.push(float("scale", 1.0 / settings.scale));
        }
        let context = layers.graph.microsoft("MultiHeadAttention", &inputs, attributes);
        let attended = layers.linear(&[at(names.attention_output)], &context, square)?;
        let attended = layers.add_and_norm(&attended, attending, &at(names.attention_norm))?;
        let raised = layers.linear(&[at(names.up)], &attended, [hidden, intermediate])?;
        let raised = layers.activate(self.config.activation, &raised);
        let lowered = layers.linear(&[at(names.down)], &raised, [intermediate, hidden])?;
        layers.add_and_norm(&lowered, &attended, &at(names.output_norm))
    }

    /// The logits of labels from the first token's vector. They are computed in fp32 at all precisions, since a head is
    /// small and its errors go straight into the scores.
    fn head(&mut self, head: &Head, tokens: &Value) -> Result<Value> {
        let EncoderConfig { names, head_activation, .. } = *self.config;
        let (layers, hidden) = (&mut self.layers, self.config.facts.hidden);
        let first = if self.text.is_some() { layers.first_token(tokens) } else { tokens.clone() };
        let one = layers.graph.integers("one", &[1]);
        let first = layers.graph.node("Squeeze", &[&first, &one], vec![]);
        let (dense, is_of_body) = names.dense;
        let prefix = if is_of_body { layers.weights.prefix.as_str() } else { "" };
        let pooled = layers.linear_in_fp32(&format!("{prefix}{dense}"), &first, [hidden, hidden])?;
        let pooled = layers.activate(head_activation, &pooled);
        layers.linear_in_fp32(names.labels, &pooled, [hidden, head.labels.len()])
    }
}
