//! Layers that are narrower inside (MobileBERT).

use super::{
    details::{Bottleneck, BottleneckLayers, EmbeddingProjection},
    graph::Writer,
};
use crate::onnx::{
    Value, functions,
    layers::{Layers, Projection},
};
use kivu::Result;

impl Writer<'_> {
    /// Writes one layer.
    pub fn layer_with_bottlenecks(
        &mut self,
        layer: usize,
        layers: BottleneckLayers,
        input: &Value,
    ) -> Result<Value> {
        let (config, hidden, width) = (self.config, self.layers.hidden, layers.width);
        let at = |name: &str| config.name_in_layer(layer, name);
        let own_epsilon = std::mem::replace(&mut self.layers.epsilon, layers.epsilon);
        let residual = match layers.bottleneck {
            Bottleneck::None => input.clone(),
            _ => self.narrowed(layer, "bottleneck.input", [hidden, width], input)?,
        };
        let (asking, asking_width) = match layers.bottleneck {
            Bottleneck::None | Bottleneck::Residual => (input.clone(), hidden),
            Bottleneck::All => (residual.clone(), width),
            Bottleneck::QueriesAndKeys => {
                let name = "bottleneck.attention";
                (self.narrowed(layer, name, [hidden, width], input)?, width)
            }
        };
        let (valued, value_width) = match layers.bottleneck {
            Bottleneck::All => (residual.clone(), width),
            _ => (input.clone(), hidden),
        };
        let projections = config.projections(layer);
        let [asked @ .., of_value] = &projections[..] else {
            unreachable!("the family has three matrices")
        };
        let projected = self.project(asked, &asking, asking_width)?;
        let [query, key] = self.layers.graph.split(&projected);
        let value = self.project(std::slice::from_ref(of_value), &valued, value_width)?;
        let context = self.attend_at_once([&query, &key, &value]);
        let output = config.in_layer(layer, config.names.attention_output, width, true);
        let attended = self.project(&[output], &context, width)?;
        let norm = at("attention.output.LayerNorm");
        let mut sum = self
            .layers
            .add_and_norm_rows([&attended, &residual], &norm, width)?;
        for part in 0..layers.parts.saturating_sub(1) {
            let prefix = format!("ffn.{part}.");
            let lowered = self.dense_feed_forward(layer, &prefix, &sum, width)?;
            let norm = at(&format!("{prefix}output.LayerNorm"));
            sum = self
                .layers
                .add_and_norm_rows([&lowered, &sum], &norm, width)?;
        }
        let lowered = self.dense_feed_forward(layer, "", &sum, width)?;
        self.layers.epsilon = own_epsilon;
        let norm = at("output.LayerNorm");
        let lowered = self
            .layers
            .add_and_norm_rows([&lowered, &sum], &norm, width)?;
        if layers.bottleneck == Bottleneck::None {
            return Ok(lowered);
        }
        self.layers.epsilon = layers.epsilon;
        let widening = config.in_layer(layer, "output.bottleneck.dense", hidden, true);
        let widened = self.project(&[widening], &lowered, width)?;
        let norm = at("output.bottleneck.LayerNorm");
        let output = self
            .layers
            .add_and_norm_rows([&widened, input], &norm, hidden)?;
        self.layers.epsilon = own_epsilon;
        Ok(output)
    }

    /// A narrower vector for each token.
    fn narrowed(
        &mut self,
        layer: usize,
        name: &str,
        [hidden, width]: [usize; 2],
        input: &Value,
    ) -> Result<Value> {
        let dense = self
            .config
            .in_layer(layer, &format!("{name}.dense"), width, true);
        let narrowed = self.project(&[dense], input, hidden)?;
        let norm = self
            .config
            .name_in_layer(layer, &format!("{name}.LayerNorm"));
        self.layers.normalize_rows(&narrowed, &norm, width)
    }
}

impl Layers<'_> {
    /// Token vectors from words, each joined with its neighbours if there is more than one.
    pub fn project_words(
        &mut self,
        words: &Value,
        mask: &Value,
        projection: EmbeddingProjection,
    ) -> Result<Value> {
        let count = projection.joined_words.unwrap_or(1);
        let joined = match count {
            1 => words.clone(),
            _ => {
                let neighbours = self.graph.integers("neighbours", &[count as i64]);
                let inputs = [words, mask, &neighbours];
                self.graph
                    .function("Neighbours", inputs, |graph, [words, mask, _]| {
                        functions::neighbours(graph, [words, mask], count)
                    })
            }
        };
        let layer = Projection {
            name: projection.name.to_owned(),
            outputs: self.hidden,
            has_bias: projection.has_bias,
        };
        self.project_by_token(&[layer], &joined, count * projection.width)
    }
}
