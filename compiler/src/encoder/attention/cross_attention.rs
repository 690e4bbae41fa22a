//! Decoder layers over an encoder's vectors, for models that read a text with both.

use crate::encoder::{
    config::{Decoder, Norms},
    graph::Writer,
};
use crate::onnx::Value;
use kivu::Result;

/// Names in a layer.
const QUERY: &str = "encoder_attn.q_proj";
const KEYS_AND_VALUES: [&str; 2] = ["encoder_attn.k_proj", "encoder_attn.v_proj"];
const OUTPUT: &str = "encoder_attn.out_proj";
const NORM: &str = "encoder_attn_layer_norm";

impl<'a> Writer<'a> {
    /// Writes all decoder layers; `encoded` are the encoder's vectors for the same text.
    pub fn decode(&mut self, decoder: &'a Decoder, encoded: &Value) -> Result<Value> {
        let encoder = std::mem::replace(&mut self.config, &decoder.layers);
        let mut hidden = self.embeddings(Some(decoder.start))?;
        for layer in 0..decoder.layers.layers {
            hidden = self.decoder_layer(layer, &hidden, encoded)?;
        }
        self.config = encoder;
        Ok(hidden)
    }

    fn decoder_layer(&mut self, layer: usize, input: &Value, encoded: &Value) -> Result<Value> {
        let config = self.config;
        let Norms::After { attention, output } = &config.names.norms else {
            unreachable!("decoders normalize after their parts")
        };
        let at = |name: &str| config.name_in_layer(layer, name);
        let attended = self.attention(layer, input, input)?;
        let own = self
            .layers
            .add_and_norm(&attended, input, &at(attention[0]))?;
        let attended = self.attend_to_encoder(layer, &own, encoded)?;
        let crossed = self.layers.add_and_norm(&attended, &own, &at(NORM))?;
        let lowered = self.feed_forward(layer, &crossed)?;
        self.layers.add_and_norm(&lowered, &crossed, &at(output))
    }

    fn attend_to_encoder(&mut self, layer: usize, input: &Value, encoded: &Value) -> Result<Value> {
        let config = self.config;
        let hidden = config.encoder_limits.hidden;
        let projection = |name: &str| config.in_layer(layer, name, hidden, true);
        let query = self.project(&[projection(QUERY)], input, hidden)?;
        let projected = self.project(&KEYS_AND_VALUES.map(projection), encoded, hidden)?;
        let [key, value] = self.layers.graph.split(&projected);
        let context = self.attend_at_once([&query, &key, &value]);
        self.project(&[projection(OUTPUT)], &context, hidden)
    }
}
