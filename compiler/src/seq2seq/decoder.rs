//! The decoder's graph: from one token to the next token's logits and the next step's state.

use super::{
    model::{Distances, Memory, Positions, Seq2SeqModel, Sinusoids},
    parts::{Stream, Writer, decoder_block},
    weight_names::{Half, Names, Part, Projection},
};
use crate::{
    files::weights::Weights,
    onnx::{Dimension, ModelProto, Value, any, data_type, fixed, layers::Buckets},
};
use kivu::{Result, repository::manifest::Precision};

/// Writes `model`'s decoder.
///
/// A step reads all weights for one or a few rows, so reading them dominates its time. Block quantization, with kernels
/// made for this case, measured fastest and is the most exact.
pub fn write(model: &Seq2SeqModel, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let of_layers = match precision {
        Precision::Fp32 => Precision::Fp32,
        Precision::Int8 | Precision::Int8Blocks => Precision::Int8Blocks,
    };
    let mut writer = Writer::new(model, Half::Decoder, weights, of_layers);
    writer.layers.block = decoder_block(precision, model.hidden);
    let ids = writer.layers.graph.input("input_ids", &["rows", "step"]);
    let mask = writer
        .layers
        .graph
        .input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.graph.cast(&mask, data_type::INT32);
    let position = writer.layers.graph.input("position", &["step"]);
    let vector = writer.step_position(&ids, &position)?;
    let embedded = writer.embed(&model.tables.target, &ids, vector.as_ref())?;
    let bias = writer.step_bias(&position)?;
    let mut states = Vec::new();
    let hidden = writer.decoder_layers(embedded, [&mask, &bias], &mut states)?;
    let logits = writer.logits(&hidden)?;
    let columns = if model.has_shortlist {
        any("columns")
    } else {
        fixed(model.tables.output.rows)
    };
    writer
        .layers
        .graph
        .expose(&logits, "logits", [any("rows"), columns]);
    for State { name, value, axes } in states {
        writer
            .layers
            .graph
            .expose(&value, &format!("present.{name}"), axes);
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

/// A value carried from one step to the next.
struct State {
    name: String,
    value: Value,
    axes: Vec<Dimension>,
}

impl Writer<'_> {
    /// The step's position vector, if the model has one.
    fn step_position(&mut self, ids: &Value, position: &Value) -> Result<Option<Value>> {
        let Some(table) = self.positions_table()? else {
            return Ok(None);
        };
        let graph = &mut self.layers.graph;
        let Positions::Sinusoidal(Sinusoids {
            padding: Some(padding),
            ..
        }) = self.model.positions
        else {
            return Ok(Some(graph.gather(&table, position)));
        };
        let first = graph.integers("first_position", &[padding + 1]);
        let padding = graph.integers("padding", &[padding]);
        let position = graph.add(position, &first);
        let is_padding = graph.equal(ids, &padding);
        let row = graph.choose(&is_padding, &padding, &position);
        Ok(Some(graph.gather(&table, &row)))
    }

    /// Values for the distances from the step's token to earlier tokens, if the model has them.
    fn step_bias(&mut self, position: &Value) -> Result<Value> {
        let Positions::Distances(Distances {
            buckets,
            lengths: [_, length],
        }) = self.model.positions
        else {
            return Ok(Value::none());
        };
        let (heads, rows) = (self.model.decoder.heads, 2 * buckets.side);
        let table = &self
            .layers
            .weights
            .take(&Names::distances(Half::Decoder), &[rows, heads])?
            .values;
        // A decoder has no tokens after its own, so all rows are for earlier ones. The farthest is first.
        let buckets = Buckets {
            side: rows,
            ..buckets
        };
        let values: Vec<f32> = (0..heads)
            .flat_map(|head| {
                (0..length)
                    .rev()
                    .map(move |steps| table[buckets.on_side(steps) * heads + head])
            })
            .collect();
        let graph = &mut self.layers.graph;
        let values = graph.floats("distance_values", &[1, heads, 1, length], &values);
        let last = graph.integers("last_distance", &[length as i64 - 1]);
        let (end, axis) = (
            graph.integers("distances", &[length as i64]),
            graph.integers("three", &[3]),
        );
        let begin = graph.sub(&last, position);
        Ok(graph.slice(&values, &begin, &end, &axis))
    }

    fn decoder_layers(
        &mut self,
        embedded: Value,
        [mask, bias]: [&Value; 2],
        states: &mut Vec<State>,
    ) -> Result<Value> {
        let Seq2SeqModel {
            decoder, memory, ..
        } = *self.model;
        let mut stream = self.begin(
            embedded,
            decoder.layers,
            &[Part::Own, Part::Source, Part::FeedForward],
        )?;
        for layer in 0..decoder.layers {
            stream = match memory {
                Memory::Attention => self.attend_to_target(layer, &stream, bias, states)?,
                Memory::Recurrent => self.recur(layer, &stream, states)?,
            };
            stream = self.attend_to_source(layer, &stream, mask)?;
            stream = self.feed_forward(layer, &stream, decoder.intermediate)?;
        }
        Ok(stream.input)
    }

    /// Attention to all tokens generated so far.
    fn attend_to_target(
        &mut self,
        layer: usize,
        stream: &Stream,
        bias: &Value,
        states: &mut Vec<State>,
    ) -> Result<Stream> {
        let Seq2SeqModel {
            hidden, decoder, ..
        } = *self.model;
        let parts = [Projection::Query, Projection::Key, Projection::Value];
        let names = self.projections(layer, Part::Own, parts);
        let projected = self.linear(&names, &stream.input, [hidden, decoder.width()])?;
        let attributes = self.attention(decoder.heads);
        let graph = &mut self.layers.graph;
        let [query, key, value] = graph.split(&projected);
        let axes = |length: &str| {
            vec![
                any("rows"),
                fixed(decoder.heads),
                any(length),
                fixed(decoder.head),
            ]
        };
        let past = ["key", "value"]
            .map(|part| graph.float_input(&format!("past.{layer}.{part}"), axes("past")));
        let none = Value::none();
        let inputs = [&query, &key, &value, &none, &none, bias, &past[0], &past[1]];
        let [context, key, value] =
            graph.several("MultiHeadAttention", &inputs, attributes, [true; 3]);
        for (part, value) in [("key", key), ("value", value)] {
            states.push(State {
                name: format!("{layer}.{part}"),
                value,
                axes: axes("present"),
            });
        }
        let names = self.projections(layer, Part::Own, [Projection::Output]);
        let attended = self.linear(&names, &context, [decoder.width(), hidden])?;
        self.end_part(stream, &attended)
    }

    /// The SSRU: state = forget × past + (1 − forget) × candidate; the output is its positive part.
    fn recur(&mut self, layer: usize, stream: &Stream, states: &mut Vec<State>) -> Result<Stream> {
        let hidden = self.model.hidden;
        let names =
            ["candidate", "forget"].map(|part| format!("decoder.layers.{layer}.rnn.{part}"));
        let projected = self.linear(&names, &stream.input, [hidden, hidden])?;
        let axes = vec![any("rows"), fixed(1), fixed(hidden)];
        let graph = &mut self.layers.graph;
        let past = graph.float_input(&format!("past.{layer}.state"), axes.clone());
        let [candidate, forget] = graph.split(&projected);
        let forget = graph.sigmoid(&forget);
        let kept = graph.sub(&past, &candidate);
        let kept = graph.mul(&forget, &kept);
        let state = graph.add(&candidate, &kept);
        let output = graph.relu(&state);
        states.push(State {
            name: format!("{layer}.state"),
            value: state,
            axes,
        });
        self.end_part(stream, &output)
    }

    /// Attention to the source, with keys and values from the encoder.
    fn attend_to_source(&mut self, layer: usize, stream: &Stream, mask: &Value) -> Result<Stream> {
        let Seq2SeqModel {
            hidden, decoder, ..
        } = *self.model;
        let width = decoder.width();
        let [query, output] =
            self.projections(layer, Part::Source, [Projection::Query, Projection::Output]);
        let [key, value] = ["key", "value"].map(|part| {
            let axes = [
                any("rows"),
                fixed(decoder.heads),
                any("source"),
                fixed(decoder.head),
            ];
            self.layers
                .graph
                .float_input(&format!("cross.{layer}.{part}"), axes)
        });
        let query = self.linear(&[query], &stream.input, [hidden, width])?;
        let context = self.attend([&query, &key, &value], mask, &Value::none(), decoder.heads);
        let attended = self.linear(&[output], &context, [width, hidden])?;
        self.end_part(stream, &attended)
    }

    fn logits(&mut self, hidden: &Value) -> Result<Value> {
        let model = self.model;
        let graph = &mut self.layers.graph;
        let one = graph.one();
        let mut hidden = graph.squeeze(hidden, &one);
        if model.output_scale != 1.0 {
            let scale = graph.scalar("output.scale", model.output_scale);
            hidden = graph.mul(&hidden, &scale);
        }
        if model.has_shortlist {
            let matrix = graph.float_input(
                "shared.output.weight",
                [any("columns"), fixed(model.hidden)],
            );
            let bias = graph.float_input("shared.output.bias", [any("columns")]);
            return Ok(graph.row_products(&[&hidden, &matrix, &bias]));
        }
        let bias = match model.tables.bias {
            Some(_) => self.output_bias()?,
            None => Value::none(),
        };
        self.multiply_by_all(&model.tables.output, &hidden, &bias)
    }
}
