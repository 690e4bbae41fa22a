//! The encoder's graph: from a text to the keys and values of the decoder's cross attention, and, with a shortlist, to
//! the rows of the output matrix that the text allows.

use super::{
    model::{Norms, Seq2SeqModel},
    parts::Writer,
};
use crate::{
    build::{
        onnx::{ModelProto, Value, any, data_type, fixed, integers},
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// Writes the encoder of `model`.
pub(super) fn write(model: &Seq2SeqModel, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let mut writer = Writer::new(model, weights, precision);
    let ids = writer.layers.graph.input("input_ids", &["rows", "source"]);
    let mask = writer.layers.graph.input("attention_mask", &["rows", "source"]);
    let mask = writer.layers.cast(&mask, data_type::INT32);
    let table = writer.positions_table();
    let positions = writer.layers.positions(&table, &ids, model.positions.padding);
    let embedded = writer.embed(&model.tables.source, &ids, &positions)?;
    let hidden = writer.encoder_layers(embedded, &mask)?;
    for layer in 0..model.decoder.layers {
        writer.output_keys_and_values(layer, &hidden)?;
    }
    if model.has_shortlist {
        writer.output_matrix()?;
    }
    Ok(writer.layers.graph.finish(&model.architecture))
}

impl Writer<'_> {
    fn encoder_layers(&mut self, embedded: Value, mask: &Value) -> Result<Value> {
        let Seq2SeqModel { hidden, encoder, .. } = *self.model;
        let at = |layer: usize, part: &str| format!("encoder.layers.{layer}.{part}");
        let norms = (0..encoder.layers)
            .flat_map(|layer| [at(layer, "self_attn_layer_norm"), at(layer, "final_layer_norm")])
            .chain((self.model.norms == Norms::Before).then(|| "encoder.layer_norm".to_owned()))
            .collect();
        let mut stream = self.begin(embedded, norms)?;
        for layer in 0..encoder.layers {
            let names = ["q", "k", "v"].map(|part| at(layer, &format!("self_attn.{part}_proj")));
            let projected = self.project(&names, &stream.input)?;
            let [query, key, value] = self.layers.graph.split(&projected);
            let context = self.attend([&query, &key, &value], mask, encoder.heads);
            let attended =
                self.layers.linear_by_token(&at(layer, "self_attn.out_proj"), &context, [hidden, hidden])?;
            stream = self.end_part(&stream, &attended)?;
            stream = self.feed_forward(&format!("encoder.layers.{layer}"), &stream, encoder.intermediate)?;
        }
        Ok(stream.input)
    }

    /// The keys and values of one layer's cross attention, by head, as the decoder's attention takes them.
    fn output_keys_and_values(&mut self, layer: usize, hidden: &Value) -> Result<()> {
        let Seq2SeqModel { hidden: width, decoder, .. } = *self.model;
        let names = ["k", "v"].map(|part| format!("decoder.layers.{layer}.encoder_attn.{part}_proj"));
        let projected = self.project(&names, hidden)?;
        let graph = &mut self.layers.graph;
        let parts: [Value; 2] = graph.split(&projected);
        let head = width / decoder.heads;
        for (part, name) in parts.iter().zip(["key", "value"]) {
            let shape = graph.integers("by_head", &[0, 0, decoder.heads as i64, head as i64]);
            let by_head = graph.node("Reshape", &[part, &shape], vec![]);
            let by_head = graph.node("Transpose", &[&by_head], vec![integers("perm", &[0, 2, 1, 3])]);
            let axes = [any("rows"), fixed(decoder.heads), any("source"), fixed(head)];
            graph.expose(&by_head, &format!("cross.{layer}.{name}"), axes);
        }
        Ok(())
    }

    /// The rows of the output matrix, and of its bias, for the tokens of the shortlist.
    fn output_matrix(&mut self) -> Result<()> {
        let shortlist = self.layers.graph.input("shortlist", &["columns"]);
        let model = self.model;
        let matrix = self.look_up_many(&model.tables.output, &shortlist)?;
        let bias = self.output_bias()?;
        let graph = &mut self.layers.graph;
        let bias = graph.node("Gather", &[&bias, &shortlist], vec![]);
        graph.expose(&matrix, "shared.output.weight", [any("columns"), fixed(model.hidden)]);
        graph.expose(&bias, "shared.output.bias", [any("columns")]);
        Ok(())
    }
}
