//! The encoder's graph: a text to the keys and values that every layer of the decoder looks up in it, and, with
//! a shortlist, the part of the output matrix that the text allows.

use super::{
    model::{Norms, TranslationModel},
    writer::{Writer, axis, fixed},
};
use crate::{
    build::{
        layers::BLOCK,
        onnx::{
            Value, integers,
            proto::{ModelProto, data_type},
        },
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// Writes the encoder of `model`.
pub(in crate::build) fn encoder(
    model: &TranslationModel,
    weights: &Weights,
    precision: Precision,
) -> Result<ModelProto> {
    let mut writer = Writer::new(model, weights, precision, BLOCK);
    let ids = writer.layers.graph.input("input_ids", &["rows", "source"]);
    let mask = writer.layers.graph.input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.cast(&mask, data_type::INT32);
    let positions = writer.source_positions(&ids);
    let embedded = writer.embed(&model.tables.source, &ids, &positions)?;
    let hidden = writer.encoder_layers(embedded, &mask)?;
    for layer in 0..model.decoder.layers {
        writer.give_keys_and_values(layer, &hidden)?;
    }
    if model.has_shortlist {
        writer.give_output_matrix()?;
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

impl Writer<'_> {
    /// The positions of a text's tokens.
    fn source_positions(&mut self, ids: &Value) -> Value {
        let positions = self.model.positions;
        let table = self.positions_table();
        let graph = &mut self.layers.graph;
        let Some(padding) = positions.padding else {
            let zero = graph.integers("zero", &[0]);
            let length = self.layers.length(ids);
            return self.layers.graph.node("Slice", &[&table, &zero, &length, &zero], vec![]);
        };
        let (padding, one) = (graph.integers("padding", &[padding]), graph.integers("one", &[1]));
        let is_padding = graph.node("Equal", &[ids, &padding], vec![]);
        let counts = graph.node("Not", &[&is_padding], vec![]);
        let counts = self.layers.cast(&counts, data_type::INT64);
        let graph = &mut self.layers.graph;
        let sum = graph.node("CumSum", &[&counts, &one], vec![]);
        let sum = graph.node("Mul", &[&sum, &counts], vec![]);
        let rows = graph.node("Add", &[&sum, &padding], vec![]);
        graph.node("Gather", &[&table, &rows], vec![])
    }

    fn encoder_layers(&mut self, embedded: Value, mask: &Value) -> Result<Value> {
        let TranslationModel { hidden, encoder, .. } = *self.model;
        let at = |layer: usize, part: &str| format!("encoder.layers.{layer}.{part}");
        let norms = (0..encoder.layers)
            .flat_map(|layer| [at(layer, "self_attn_layer_norm"), at(layer, "final_layer_norm")])
            .chain((self.model.norms == Norms::Before).then(|| "encoder.layer_norm".to_owned()))
            .collect();
        let mut stream = self.begin(embedded, norms)?;
        for layer in 0..encoder.layers {
            let names = ["q", "k", "v"].map(|part| at(layer, &format!("self_attn.{part}_proj")));
            let projected = self.careful_linear(&names, &stream.read)?;
            let [query, key, value] = self.layers.graph.split(&projected);
            let context = self.attend([&query, &key, &value], mask, encoder.heads);
            let attended =
                self.linear_by_token(&at(layer, "self_attn.out_proj"), &context, hidden, hidden)?;
            stream = self.end_part(&stream, &attended)?;
            stream = self.feed_forward(&format!("encoder.layers.{layer}"), &stream, encoder.intermediate)?;
        }
        Ok(stream.read)
    }

    /// What a layer of the decoder looks up in the text, a head at a time, as its attention takes it.
    fn give_keys_and_values(&mut self, layer: usize, hidden: &Value) -> Result<()> {
        let TranslationModel { hidden: width, decoder, .. } = *self.model;
        let names = ["k", "v"].map(|part| format!("decoder.layers.{layer}.encoder_attn.{part}_proj"));
        let projected = self.careful_linear(&names, hidden)?;
        let parts: [Value; 2] = self.layers.graph.split(&projected);
        let head = width / decoder.heads;
        for (part, name) in parts.iter().zip(["key", "value"]) {
            let graph = &mut self.layers.graph;
            let shape = graph.integers("by_head", &[0, 0, decoder.heads as i64, head as i64]);
            let by_head = graph.node("Reshape", &[part, &shape], vec![]);
            let by_head = graph.node("Transpose", &[&by_head], vec![integers("perm", &[0, 2, 1, 3])]);
            let axes = [axis("rows"), fixed(decoder.heads), axis("source"), fixed(head)];
            graph.give_out(&by_head, &format!("cross.{layer}.{name}"), axes);
        }
        Ok(())
    }

    /// The rows of the output matrix, and what is added to them, of the tokens that may be written.
    fn give_output_matrix(&mut self) -> Result<()> {
        let shortlist = self.layers.graph.input("shortlist", &["columns"]);
        let model = self.model;
        let matrix = self.look_up_many(&model.tables.output, &shortlist)?;
        let bias = self.output_bias()?;
        let graph = &mut self.layers.graph;
        let bias = graph.node("Gather", &[&bias, &shortlist], vec![]);
        graph.give_out(&matrix, "shared.output.weight", [axis("columns"), fixed(model.hidden)]);
        graph.give_out(&bias, "shared.output.bias", [axis("columns")]);
        Ok(())
    }
}
