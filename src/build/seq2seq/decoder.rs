//! The decoder's graph: from one token to the logits of the next one and the state of the next step.

use super::{
    model::{Memory, Norms, Seq2SeqModel},
    parts::{Stream, Writer, decoder_block},
};
use crate::{
    build::{
        layers::attention,
        onnx::{Dimension, ModelProto, Value, any, data_type, fixed, integer},
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// Writes the decoder of `model`.
///
/// A step reads all weights for one row or a few, so that reading them dominates its time. Quantisation in blocks, whose
/// kernels are made for this case, measured fastest and is the most exact.
pub(super) fn write(model: &Seq2SeqModel, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let of_layers = match precision {
        Precision::Fp32 => Precision::Fp32,
        Precision::Int8 | Precision::Int8Blocks => Precision::Int8Blocks,
    };
    let mut writer = Writer::new(model, weights, of_layers);
    writer.layers.block = decoder_block(precision, model.hidden);
    let ids = writer.layers.graph.input("input_ids", &["rows", "step"]);
    let mask = writer.layers.graph.input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.cast(&mask, data_type::INT32);
    let position = writer.layers.graph.input("position", &["step"]);
    let position = writer.step_position(&ids, &position);
    let embedded = writer.embed(&model.tables.target, &ids, &position)?;
    let mut states = Vec::new();
    let hidden = writer.decoder_layers(embedded, &mask, &mut states)?;
    let logits = writer.logits(&hidden)?;
    let columns = if model.has_shortlist { any("columns") } else { fixed(model.tables.output.rows) };
    writer.layers.graph.expose(&logits, "logits", [any("rows"), columns]);
    for State { name, value, axes } in states {
        writer.layers.graph.expose(&value, &format!("present.{name}"), axes);
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

/// A value that one step leaves to the next.
struct State {
    name: String,
    value: Value,
    axes: Vec<Dimension>,
}

impl Writer<'_> {
    /// The position of the step's token.
    fn step_position(&mut self, ids: &Value, position: &Value) -> Value {
        let positions = self.model.positions;
        let table = self.positions_table();
        let graph = &mut self.layers.graph;
        let Some(padding) = positions.padding else {
            return graph.node("Gather", &[&table, position], vec![]);
        };
        let first = graph.integers("first_position", &[positions.first()]);
        let padding = graph.integers("padding", &[padding]);
        let position = graph.node("Add", &[position, &first], vec![]);
        let is_padding = graph.node("Equal", &[ids, &padding], vec![]);
        let row = graph.node("Where", &[&is_padding, &padding, &position], vec![]);
        graph.node("Gather", &[&table, &row], vec![])
    }

    fn decoder_layers(&mut self, embedded: Value, mask: &Value, states: &mut Vec<State>) -> Result<Value> {
        let Seq2SeqModel { decoder, memory, .. } = *self.model;
        let parts = ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"];
        let norms = (0..decoder.layers)
            .flat_map(|layer| parts.map(|part| format!("decoder.layers.{layer}.{part}")))
            .chain((self.model.norms == Norms::Before).then(|| "decoder.layer_norm".to_owned()))
            .collect();
        let mut stream = self.begin(embedded, norms)?;
        for layer in 0..decoder.layers {
            stream = match memory {
                Memory::Attention => self.attend_to_target(layer, &stream, states)?,
                Memory::Recurrent => self.recur(layer, &stream, states)?,
            };
            stream = self.attend_to_source(layer, &stream, mask)?;
            stream = self.feed_forward(&format!("decoder.layers.{layer}"), &stream, decoder.intermediate)?;
        }
        Ok(stream.input)
    }

    /// Attention to all tokens generated so far.
    fn attend_to_target(&mut self, layer: usize, stream: &Stream, states: &mut Vec<State>) -> Result<Stream> {
        let Seq2SeqModel { hidden, decoder, .. } = *self.model;
        let names = ["q", "k", "v"].map(|part| format!("decoder.layers.{layer}.self_attn.{part}_proj"));
        let projected = self.layers.linear(&names, &stream.input, [hidden, hidden])?;
        let graph = &mut self.layers.graph;
        let [query, key, value] = graph.split(&projected);
        let axes = |length: &str| {
            vec![any("rows"), fixed(decoder.heads), any(length), fixed(hidden / decoder.heads)]
        };
        let past =
            ["key", "value"].map(|part| graph.float_input(&format!("past.{layer}.{part}"), axes("past")));
        let none = Value::none();
        let inputs = [&query, &key, &value, &none, &none, &none, &past[0], &past[1]];
        let [context, key, value] =
            graph.several("MultiHeadAttention", &inputs, attention(decoder.heads), [true; 3]);
        for (part, value) in [("key", key), ("value", value)] {
            states.push(State { name: format!("{layer}.{part}"), value, axes: axes("present") });
        }
        let name = format!("decoder.layers.{layer}.self_attn.out_proj");
        let attended = self.layers.linear(&[name], &context, [hidden, hidden])?;
        self.end_part(stream, &attended)
    }

    /// The SSRU: state = forget × past + (1 − forget) × candidate; the output is its positive part.
    fn recur(&mut self, layer: usize, stream: &Stream, states: &mut Vec<State>) -> Result<Stream> {
        let hidden = self.model.hidden;
        let names = ["candidate", "forget"].map(|part| format!("decoder.layers.{layer}.rnn.{part}"));
        let projected = self.layers.linear(&names, &stream.input, [hidden, hidden])?;
        let axes = vec![any("rows"), fixed(1), fixed(hidden)];
        let graph = &mut self.layers.graph;
        let past = graph.float_input(&format!("past.{layer}.state"), axes.clone());
        let [candidate, forget] = graph.split(&projected);
        let forget = graph.node("Sigmoid", &[&forget], vec![]);
        let kept = graph.node("Sub", &[&past, &candidate], vec![]);
        let kept = graph.node("Mul", &[&forget, &kept], vec![]);
        let state = graph.node("Add", &[&candidate, &kept], vec![]);
        let output = graph.node("Relu", &[&state], vec![]);
        states.push(State { name: format!("{layer}.state"), value: state, axes });
        self.end_part(stream, &output)
    }

    /// Attention to the source, whose keys and values are outputs of the encoder.
    fn attend_to_source(&mut self, layer: usize, stream: &Stream, mask: &Value) -> Result<Stream> {
        let Seq2SeqModel { hidden, decoder, .. } = *self.model;
        let at = |part: &str| format!("decoder.layers.{layer}.encoder_attn.{part}");
        let [key, value] = ["key", "value"].map(|part| {
            let axes = [any("rows"), fixed(decoder.heads), any("source"), fixed(hidden / decoder.heads)];
            self.layers.graph.float_input(&format!("cross.{layer}.{part}"), axes)
        });
        let query = self.layers.linear(&[at("q_proj")], &stream.input, [hidden, hidden])?;
        let context = self.attend([&query, &key, &value], mask, decoder.heads);
        let attended = self.layers.linear(&[at("out_proj")], &context, [hidden, hidden])?;
        self.end_part(stream, &attended)
    }

    fn logits(&mut self, hidden: &Value) -> Result<Value> {
        let model = self.model;
        let graph = &mut self.layers.graph;
        let one = graph.integers("one", &[1]);
        let hidden = graph.node("Squeeze", &[hidden, &one], vec![]);
        if model.has_shortlist {
            let matrix = graph.float_input("shared.output.weight", [any("columns"), fixed(model.hidden)]);
            let bias = graph.float_input("shared.output.bias", [any("columns")]);
            return Ok(graph.node("Gemm", &[&hidden, &matrix, &bias], vec![integer("transB", 1)]));
        }
        let bias = match model.tables.bias {
            Some(_) => self.output_bias()?,
            None => Value::none(),
        };
        self.multiply_by_all(&model.tables.output, &hidden, &bias)
    }
}
