//! The decoder's graph: one token in, the logits of the next one out, and the state that the next step needs.

use super::{
    model::{Memory, Norms, TranslationModel},
    writer::{Stream, Writer, attention, axis, block_size, fixed},
};
use crate::{
    build::{
        onnx::{
            Value, integer,
            proto::{ModelProto, data_type},
        },
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// Writes the decoder of `model`.
///
/// A step reads all weights for a row or a few, so that reading is what takes time: blocks, whose kernels were
/// made for that, measured fastest, and lose the least.
pub(in crate::build) fn decoder(
    model: &TranslationModel,
    weights: &Weights,
    precision: Precision,
) -> Result<ModelProto> {
    let linear = match precision {
        Precision::Fp32 => Precision::Fp32,
        Precision::Int8 | Precision::Int8Blocks => Precision::Int8Blocks,
    };
    let mut writer = Writer::new(model, weights, linear, block_size(precision, model.hidden));
    let ids = writer.layers.graph.input("input_ids", &["rows", "step"]);
    let mask = writer.layers.graph.input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.cast(&mask, data_type::INT32);
    let position = writer.layers.graph.input("position", &["step"]);
    let position = writer.step_position(&ids, &position);
    let embedded = writer.embed(&model.tables.target, &ids, &position)?;
    let mut states = Vec::new();
    let hidden = writer.decoder_layers(embedded, &mask, &mut states)?;
    let logits = writer.logits(&hidden)?;
    let columns = if model.has_shortlist { axis("columns") } else { fixed(model.tables.output.rows) };
    writer.layers.graph.give_out(&logits, "logits", [axis("rows"), columns]);
    for State { name, value, lengths } in states {
        let lengths = lengths.into_iter().map(|length| length.map_or_else(|| axis("present"), fixed));
        let axes: Vec<_> = std::iter::once(axis("rows")).chain(lengths).collect();
        writer.layers.graph.give_out(&value, &format!("present.{name}"), axes);
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

/// What a step leaves to the next.
struct State {
    name: String,
    value: Value,
    /// The lengths of the axes after the rows; none where it grows.
    lengths: Vec<Option<usize>>,
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
        let TranslationModel { decoder, memory, .. } = *self.model;
        let norms = (0..decoder.layers)
            .flat_map(|layer| {
                ["self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"]
                    .map(|part| format!("decoder.layers.{layer}.{part}"))
            })
            .chain((self.model.norms == Norms::Before).then(|| "decoder.layer_norm".to_owned()))
            .collect();
        let mut stream = self.begin(embedded, norms)?;
        for layer in 0..decoder.layers {
            stream = match memory {
                Memory::Attention => self.attend_to_written(layer, &stream, states)?,
                Memory::Recurrent => self.recur(layer, &stream, states)?,
            };
            stream = self.attend_to_source(layer, &stream, mask)?;
            stream = self.feed_forward(&format!("decoder.layers.{layer}"), &stream, decoder.intermediate)?;
        }
        Ok(stream.read)
    }

    /// Attention to all tokens so far.
    fn attend_to_written(
        &mut self,
        layer: usize,
        stream: &Stream,
        states: &mut Vec<State>,
    ) -> Result<Stream> {
        let TranslationModel { hidden, decoder, .. } = *self.model;
        let names = ["q", "k", "v"].map(|part| format!("decoder.layers.{layer}.self_attn.{part}_proj"));
        let projected = self.layers.linear(&names, &stream.read, hidden, hidden)?;
        let [query, key, value] = self.layers.graph.split(&projected);
        let head = hidden / decoder.heads;
        let lengths = vec![Some(decoder.heads), None, Some(head)];
        let [past_key, past_value] = ["key", "value"].map(|part| {
            let axes = [axis("rows"), fixed(decoder.heads), axis("past"), fixed(head)];
            self.layers.graph.float_input(&format!("past.{layer}.{part}"), axes)
        });
        let none = Value::none();
        let inputs = [&query, &key, &value, &none, &none, &none, &past_key, &past_value];
        let [context, key, value] = self.layers.graph.several(
            "MultiHeadAttention",
            &inputs,
            attention(decoder.heads),
            [true, true, true],
        );
        for (part, value) in [("key", key), ("value", value)] {
            states.push(State { name: format!("{layer}.{part}"), value, lengths: lengths.clone() });
        }
        let name = format!("decoder.layers.{layer}.self_attn.out_proj");
        let attended = self.layers.linear(&[name], &context, hidden, hidden)?;
        self.end_part(stream, &attended)
    }

    /// The SSRU: state = forget × past + (1 − forget) × candidate, and the outcome is what of it is above zero.
    fn recur(&mut self, layer: usize, stream: &Stream, states: &mut Vec<State>) -> Result<Stream> {
        let hidden = self.model.hidden;
        let names = ["candidate", "forget"].map(|part| format!("decoder.layers.{layer}.rnn.{part}"));
        let projected = self.layers.linear(&names, &stream.read, hidden, hidden)?;
        let past = format!("past.{layer}.state");
        let past = self.layers.graph.float_input(&past, [axis("rows"), fixed(1), fixed(hidden)]);
        let graph = &mut self.layers.graph;
        let [candidate, forget] = graph.split(&projected);
        let forget = graph.node("Sigmoid", &[&forget], vec![]);
        let kept = graph.node("Sub", &[&past, &candidate], vec![]);
        let kept = graph.node("Mul", &[&forget, &kept], vec![]);
        let state = graph.node("Add", &[&candidate, &kept], vec![]);
        let outcome = graph.node("Relu", &[&state], vec![]);
        let lengths = vec![Some(1), Some(hidden)];
        states.push(State { name: format!("{layer}.state"), value: state, lengths });
        self.end_part(stream, &outcome)
    }

    /// Attention to the text, whose keys and values the encoder made.
    fn attend_to_source(&mut self, layer: usize, stream: &Stream, mask: &Value) -> Result<Stream> {
        let TranslationModel { hidden, decoder, .. } = *self.model;
        let at = |part: &str| format!("decoder.layers.{layer}.encoder_attn.{part}");
        let [key, value] = ["key", "value"].map(|part| {
            let axes = [axis("rows"), fixed(decoder.heads), axis("source"), fixed(hidden / decoder.heads)];
            self.layers.graph.float_input(&format!("cross.{layer}.{part}"), axes)
        });
        let query = self.layers.linear(&[at("q_proj")], &stream.read, hidden, hidden)?;
        let context = self.attend([&query, &key, &value], mask, decoder.heads);
        let attended = self.layers.linear(&[at("out_proj")], &context, hidden, hidden)?;
        self.end_part(stream, &attended)
    }

    fn logits(&mut self, hidden: &Value) -> Result<Value> {
        let model = self.model;
        let one = self.layers.graph.integers("one", &[1]);
        let hidden = self.layers.graph.node("Squeeze", &[hidden, &one], vec![]);
        if model.has_shortlist {
            let graph = &mut self.layers.graph;
            let matrix = graph.float_input("shared.output.weight", [axis("columns"), fixed(model.hidden)]);
            let bias = graph.float_input("shared.output.bias", [axis("columns")]);
            return Ok(graph.node("Gemm", &[&hidden, &matrix, &bias], vec![integer("transB", 1)]));
        }
        let bias = match model.tables.bias {
            Some(_) => self.output_bias()?,
            None => Value::none(),
        };
        self.compare_with_all(&model.tables.output, &hidden, &bias)
    }
}
