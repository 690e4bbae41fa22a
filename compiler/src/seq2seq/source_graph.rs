//! The encoder's graph: computes the decoder's cross-attention keys and values and, with a shortlist, selects the
//! output matrix rows that the text allows.

use super::{
    model::{Positions, Seq2SeqModel},
    parts::Writer,
    weight_names::{Half, Names, Part, Projection},
};
use crate::{
    files::weights::Weights,
    onnx::{ModelProto, Value, any, data_type, fixed, layers::BucketValues},
};
use kivu::{Result, repository::manifest::Precision};

/// Writes `model`'s encoder.
pub fn write(model: &Seq2SeqModel, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let mut writer = Writer::new(model, Half::Encoder, weights, precision);
    let ids = writer.layers.graph.input("input_ids", &["rows", "source"]);
    let mask = writer
        .layers
        .graph
        .input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.graph.cast(&mask, data_type::INT32);
    let padding = match model.positions {
        Positions::Sinusoidal(sinusoids) => sinusoids.padding,
        Positions::Learned { .. } | Positions::Distances(_) => None,
    };
    let positions = writer.positions_table()?;
    let positions = positions.map(|table| writer.layers.positions(&table, &ids, padding));
    let embedded = writer.embed(&model.tables.source, &ids, positions.as_ref())?;
    let bias = match model.positions {
        Positions::Distances(distances) => {
            let table = &*Names::distances(Half::Encoder);
            let (heads, positions) = (model.encoder.heads, distances.lengths[0]);
            distances.buckets.bias(
                &mut writer.layers,
                &ids,
                BucketValues {
                    table,
                    heads,
                    positions,
                },
            )?
        }
        Positions::Sinusoidal(_) | Positions::Learned { .. } => Value::none(),
    };
    let hidden = writer.encoder_layers(embedded, &mask, &bias)?;
    for layer in 0..model.decoder.layers {
        writer.output_keys_and_values(layer, &hidden)?;
    }
    if model.has_shortlist {
        writer.output_matrix()?;
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

impl Writer<'_> {
    fn encoder_layers(&mut self, embedded: Value, mask: &Value, bias: &Value) -> Result<Value> {
        let Seq2SeqModel {
            hidden, encoder, ..
        } = *self.model;
        let width = encoder.width();
        let mut stream = self.begin(embedded, encoder.layers, &[Part::Own, Part::FeedForward])?;
        for layer in 0..encoder.layers {
            let names = self.projections(
                layer,
                Part::Own,
                [Projection::Query, Projection::Key, Projection::Value],
            );
            let projected = self.project(&names, &stream.input, width)?;
            let [query, key, value] = self.layers.graph.split(&projected);
            let context = self.attend([&query, &key, &value], mask, bias, encoder.heads);
            let names = self.projections(layer, Part::Own, [Projection::Output]);
            let attended = self.linear_by_token(&names, &context, [width, hidden])?;
            stream = self.end_part(&stream, &attended)?;
            stream = self.feed_forward(layer, &stream, encoder.intermediate)?;
        }
        Ok(stream.input)
    }

    /// One layer's cross-attention keys and values, by head, in the form that the decoder's attention takes.
    fn output_keys_and_values(&mut self, layer: usize, hidden: &Value) -> Result<()> {
        let Seq2SeqModel { names, decoder, .. } = *self.model;
        let names = [Projection::Key, Projection::Value]
            .map(|projection| names.projection(Half::Decoder, layer, Part::Source, projection));
        let projected = self.project(&names, hidden, decoder.width())?;
        let graph = &mut self.layers.graph;
        let parts: [Value; 2] = graph.split(&projected);
        for (part, name) in parts.iter().zip(["key", "value"]) {
            let shape = graph.integers(
                "by_head",
                &[0, 0, decoder.heads as i64, decoder.head as i64],
            );
            let by_head = graph.reshape(part, &shape);
            let by_head = graph.transpose(&by_head, &[0, 2, 1, 3]);
            let axes = [
                any("rows"),
                fixed(decoder.heads),
                any("source"),
                fixed(decoder.head),
            ];
            graph.expose(&by_head, &format!("cross.{layer}.{name}"), axes);
        }
        Ok(())
    }

    /// Rows from the output matrix and its bias for the shortlisted tokens.
    fn output_matrix(&mut self) -> Result<()> {
        let shortlist = self.layers.graph.input("shortlist", &["columns"]);
        let model = self.model;
        let matrix = self.look_up_many(&model.tables.output, &shortlist)?;
        let bias = self.output_bias()?;
        let graph = &mut self.layers.graph;
        let bias = graph.gather(&bias, &shortlist);
        graph.expose(
            &matrix,
            "shared.output.weight",
            [any("columns"), fixed(model.hidden)],
        );
        graph.expose(&bias, "shared.output.bias", [any("columns")]);
        Ok(())
    }
}
