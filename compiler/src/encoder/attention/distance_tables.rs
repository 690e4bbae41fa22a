//! DeBERTa's disentangled attention, from tables of distance keys and queries.
//!
//! One term in an attention score is the product of a token's query and another token's key. Two more terms depend on
//! the distance between the tokens: the query times a distance key, and the key times a distance query. Distance keys
//! and queries are the same for all texts and are graph constants. Far distances share them in buckets.

use kivu_engine::kernel::COLUMNS;

use super::distances::{Distances, Side, head_by_head, normalize, project};
use crate::encoder::config::{Disentangled, EncoderConfig, Heads};
use crate::{
    onnx::{
        GraphBuilder, Value, float, functions, integer,
        layers::{Layers, attention},
    },
    quantize::transpose,
};
use kivu::Result;

/// Values that all layers share.
pub struct DistanceTables {
    distances: Distances,
    heads: Heads,
    /// Divisor for attention scores.
    scale: f32,
    /// Maximum text length in tokens.
    positions: usize,
    /// Distance embeddings, one per row.
    embeddings: Vec<f32>,
    /// The column of each distance, from the farthest token after another to the farthest before it.
    columns: Value,
}

impl DistanceTables {
    /// `None` for models that ignore distances.
    pub fn new(
        layers: &mut Layers<'_>,
        config: &EncoderConfig,
        settings: &Disentangled,
    ) -> Result<Option<Self>> {
        let Disentangled {
            scale,
            distances: Some(distances),
            ..
        } = *settings
        else {
            return Ok(None);
        };
        let positions = config.encoder_limits.max_positions;
        let farthest = positions as i64 - 1;
        // The table has no row for the farthest bucket behind, which uses the row before it.
        let last = 2 * distances.span() - 1;
        let columns: Vec<i64> = (-farthest..=farthest)
            .map(|distance| distances.row(distance).min(last))
            .collect();
        Ok(Some(Self {
            distances,
            heads: config.heads,
            scale,
            positions,
            embeddings: embeddings(layers, &distances)?,
            columns: layers.graph.integers("distance_columns", &columns),
        }))
    }

    /// Attention in a layer, whose weight names begin with `name`.
    pub fn attend(
        &self,
        layers: &mut Layers<'_>,
        name: &str,
        [query, key, value, mask, ids]: [&Value; 5],
    ) -> Result<Value> {
        let Distances {
            has_keys,
            has_queries,
            ..
        } = self.distances;
        let mut table = |side| self.table(layers, name, side);
        let keys = has_keys.then(|| table(Side::Keys)).transpose()?;
        let queries = has_queries.then(|| table(Side::Queries)).transpose()?;
        let [keys, queries] = [keys, queries].map(|table| table.unwrap_or_else(Value::none));
        let heads = layers
            .graph
            .integers("attention_heads", &[self.heads.queries as i64]);
        let scale = layers.graph.scalar("attention_scale", 1.0 / self.scale);
        let inputs = [
            query,
            key,
            value,
            mask,
            ids,
            &heads,
            &scale,
            &self.columns,
            &keys,
            &queries,
        ];
        Ok(layers
            .graph
            .function("DisentangledAttention", inputs, |graph, inputs| {
                self.body(graph, inputs)
            }))
    }

    /// A layer's table, divided by the score scale: for each head, panels with a row per number and 32 columns, one per
    /// distance bucket. The last columns are padding.
    fn table(&self, layers: &mut Layers<'_>, attention: &str, side: Side) -> Result<Value> {
        let (
            hidden,
            Heads {
                queries: heads,
                width,
                ..
            },
        ) = (layers.hidden, self.heads);
        let name = format!("{attention}.{}", self.distances.projection(side));
        let weight = layers
            .weights
            .take(&format!("{name}.weight"), &[hidden, hidden])?;
        let bias = layers.weights.take(&format!("{name}.bias"), &[hidden])?;
        let mut projected = project(&self.embeddings, &weight.values, &bias.values);
        projected.iter_mut().for_each(|value| *value /= self.scale);
        let rows: Vec<usize> = (0..2 * self.distances.span() as usize).collect();
        let panels = rows.len().div_ceil(COLUMNS);
        let mut values = Vec::with_capacity(heads * panels * width * COLUMNS);
        for head in head_by_head(&projected, &rows, [heads, width]).chunks_exact(rows.len() * width)
        {
            for vectors in head.chunks(COLUMNS * width) {
                for row in transpose(vectors, width).chunks_exact(vectors.len() / width) {
                    values.extend_from_slice(row);
                    values.resize(values.len() + COLUMNS - row.len(), 0.0);
                }
            }
        }
        Ok(layers.graph.floats(
            &format!("{name}.distances"),
            &[heads, panels, width, COLUMNS],
            &values,
        ))
    }

    /// Attention with the products of all tokens and distances, from which each pair's are gathered.
    fn body(&self, graph: &mut GraphBuilder, inputs: [&Value; 10]) -> Value {
        let [query, key, value, mask, ids, _, _, columns, keys, queries] = inputs;
        let (zero, one) = (graph.zero(), graph.one());
        let counting: Vec<i64> = (0..self.positions as i64).collect();
        let counting = graph.integers("counting", &counting);
        let farthest = graph.integers("farthest", &[self.positions as i64 - 1]);
        let (from, to) = (
            functions::length(graph, query),
            functions::length(graph, ids),
        );
        let own = graph.slice(&counting, &zero, &from, &zero);
        let own = graph.unsqueeze(&own, &one);
        let others = graph.slice(&counting, &zero, &to, &zero);
        let distances = graph.sub(&own, &others);
        let distances = graph.add(&distances, &farthest);
        // A row per query, a column per key.
        let places = graph.gather(columns, &distances);
        let mut terms = Vec::new();
        if self.distances.has_keys {
            terms.push(self.gathered(graph, [query, keys, &places]));
        }
        if self.distances.has_queries {
            let places = graph.transpose(&places, &[1, 0]);
            let term = self.gathered(graph, [key, queries, &places]);
            terms.push(graph.transpose(&term, &[0, 1, 3, 2]));
        }
        let add = |left: Value, right: Value| graph.add(&left, &right);
        let bias = terms.into_iter().reduce(add).unwrap_or_else(Value::none);
        let mut attributes = attention(self.heads.queries);
        attributes.push(float("scale", 1.0 / self.scale));
        graph.microsoft(
            "MultiHeadAttention",
            &[query, key, value, &Value::none(), mask, &bias],
            attributes,
        )
    }

    /// Multiplies tokens by a table, and gathers the columns at `places`.
    fn gathered(&self, graph: &mut GraphBuilder, [tokens, table, places]: [&Value; 3]) -> Value {
        let Heads {
            queries: heads,
            width,
            ..
        } = self.heads;
        let shape = graph.integers("heads", &[0, 0, heads as i64, width as i64]);
        let (zero, two) = (graph.zero(), graph.two());
        let tokens = graph.reshape(tokens, &shape);
        let tokens = graph.transpose(&tokens, &[0, 2, 1, 3]);
        let table = graph.transpose(table, &[0, 2, 1, 3]);
        let rows = graph.integers("rows", &[0, 0, -1]);
        let table = graph.reshape(&table, &rows);
        let products = graph.matmul(&tokens, &table);
        let outer = graph.shape(&products);
        let outer = graph.node("Slice", &[&outer, &zero, &two], vec![]);
        let inner = graph.shape(places);
        let shape = graph.concat(&[&outer, &inner], 0);
        let places = graph.expand(places, &shape);
        graph.node(
            "GatherElements",
            &[&products, &places],
            vec![integer("axis", 3)],
        )
    }
}

/// Reads distance embeddings, one per row.
fn embeddings(layers: &Layers<'_>, distances: &Distances) -> Result<Vec<f32>> {
    let Layers {
        weights,
        hidden,
        epsilon,
        ..
    } = *layers;
    let rows = 2 * distances.span() as usize;
    let mut rows = weights
        .take("encoder.rel_embeddings.weight", &[rows, hidden])?
        .values
        .clone();
    if distances.is_normalized {
        let gain = weights.take("encoder.LayerNorm.weight", &[hidden])?;
        let bias = weights.take("encoder.LayerNorm.bias", &[hidden])?;
        normalize(&mut rows, &gain.values, &bias.values, epsilon);
    }
    Ok(rows)
}
