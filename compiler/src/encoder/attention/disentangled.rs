//! DeBERTa's disentangled attention and convolution, as parts of an encoder's graph.
//!
//! One term in an attention score is the product of a token's query and another token's key. Two more terms depend on
//! the distance between the tokens: the query times a distance key, and the key times a distance query. Distance keys
//! and queries are the same for all texts and are graph constants. Far distances share keys and queries in buckets.

use super::distances::{Convolution, Distances, Order, Side, head_by_head, normalize, project};
use crate::encoder::config::{Disentangled, EncoderConfig};
use crate::onnx::{Value, data_type, functions, integer, integers, layers::Layers};
use kivu::error::Result;

/// Maximum number of tokens multiplied by the same distance rows.
///
/// All tokens in a text together need twice as many rows as one token. At 768 values per token, blocks of 64 make
/// texts with 256 tokens 4 % faster and texts with 512 tokens 8 % faster; the shortest texts are a single block.
const BLOCK: usize = 64;

/// The convolution's weights.
const WEIGHT: &str = "encoder.conv.conv.weight";
const BIAS: &str = "encoder.conv.conv.bias";

/// Values that depend only on a text's length and padding; all layers share them.
pub struct Text {
    /// 1 for tokens and 0 for padding, as a column.
    present: Value,
    /// `None` in models that ignore distances.
    pub windows: Option<Windows>,
}

/// Token-distance products, for texts of one length.
///
/// Tokens are split into blocks of equal size; the last block is padded with the text's last token. Each block is
/// multiplied by a window of table rows: one for every distance of its tokens, the farthest behind first.
pub struct Windows {
    distances: Distances,
    heads: usize,
    /// Head width.
    width: usize,
    /// Divisor for attention scores.
    scale: f32,
    /// Distance embeddings, one per row.
    embeddings: Vec<f32>,
    /// Tokens per block, as indices.
    blocks: Value,
    /// Table rows per block.
    rows: Value,
    /// Table rows for the distances from the first token to each.
    rows_of_first: Value,
    /// Number of products in a block if each token has one less.
    kept: Value,
    /// Shape of all products if each token has one less.
    sheared: Value,
    /// Range of the text's own distances among the products.
    from: Value,
    to: Value,
}

impl Text {
    pub fn new(
        layers: &mut Layers<'_>,
        config: &EncoderConfig,
        settings: &Disentangled,
        [ids, mask]: [&Value; 2],
    ) -> Result<Self> {
        let length = functions::length(&mut layers.graph, ids);
        let two = layers.graph.integers("two", &[2]);
        let present = layers.cast(mask, data_type::FLOAT);
        let present = layers.graph.node("Unsqueeze", &[&present, &two], vec![]);
        let windows = Windows::new(layers, config, settings, &length)?;
        Ok(Self { present, windows })
    }

    /// Zeroes padding vectors.
    pub fn without_padding(&self, layers: &mut Layers<'_>, tokens: &Value) -> Value {
        layers.graph.node("Mul", &[tokens, &self.present], vec![])
    }

    /// Convolves the embeddings and adds the result to the first layer's output.
    pub fn convolve(
        &self,
        layers: &mut Layers<'_>,
        convolution: &Convolution,
        [embedded, output]: [&Value; 2],
    ) -> Result<Value> {
        let Convolution {
            width,
            groups,
            activation,
        } = *convolution;
        let hidden = layers.hidden;
        let weight = layers.constant(WEIGHT, &[hidden, hidden / groups, width])?;
        let bias = layers.constant(BIAS, &[hidden])?;
        let padding = (width as i64 - 1) / 2;
        let attributes = vec![
            integer("group", groups as i64),
            integers("pads", &[padding, padding]),
        ];
        let swap = || vec![integers("perm", &[0, 2, 1])];
        let columns = layers.graph.node("Transpose", &[embedded], swap());
        let columns = layers
            .graph
            .node("Conv", &[&columns, &weight, &bias], attributes);
        let convolved = layers.graph.node("Transpose", &[&columns], swap());
        let convolved = self.without_padding(layers, &convolved);
        let convolved = layers.activate(activation, &convolved);
        let sum = layers.add_and_norm(&convolved, output, "encoder.conv.LayerNorm")?;
        Ok(self.without_padding(layers, &sum))
    }
}

impl Windows {
    fn new(
        layers: &mut Layers<'_>,
        config: &EncoderConfig,
        settings: &Disentangled,
        length: &Value,
    ) -> Result<Option<Self>> {
        let Disentangled {
            distances: Some(distances),
            scale,
            ..
        } = *settings
        else {
            return Ok(None);
        };
        let embeddings = embeddings(layers, &distances)?;
        let longest = config.encoder_limits.max_positions;
        // The last block may reach beyond the text, by fewer tokens than there are blocks.
        let farthest = (longest + longest.div_ceil(BLOCK)) as i64;
        let rows: Vec<i64> = (-(longest as i64)..farthest)
            .rev()
            .map(|it| distances.row(it))
            .collect();
        let counting: Vec<i64> = (0..2 * longest as i64).collect();
        let graph = &mut layers.graph;
        let mut constant = |name: &str, value: i64| graph.integers(name, &[value]);
        let (zero, one) = (constant("zero", 0), constant("one", 1));
        let (size, rest) = (
            constant("block", BLOCK as i64),
            constant("block_rest", BLOCK as i64 - 1),
        );
        let rows = graph.integers("distance_rows", &rows);
        let counting = graph.integers("counting", &counting);
        let mut constant = |name: &str, value: i64| graph.integers(name, &[value]);
        let (far, near) = (
            constant("farthest", farthest),
            constant("nearest", farthest - 1),
        );
        let same_heads = graph.integers("same_heads", &[0, 0, -1]);

        let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
        let blocks = node("Add", &[length, &rest]);
        let blocks = node("Div", &[&blocks, &size]);
        // As even as possible: text length divided by block count, rounded up.
        let tokens = node("Add", &[length, &blocks]);
        let tokens = node("Sub", &[&tokens, &one]);
        let tokens = node("Div", &[&tokens, &blocks]);
        let starts = node("Slice", &[&counting, &zero, &blocks, &zero]);
        let starts = node("Unsqueeze", &[&starts, &one]);
        let starts = node("Mul", &[&starts, &tokens]);
        let own = node("Slice", &[&counting, &zero, &tokens, &zero]);
        let own = node("Add", &[&starts, &own]);
        let last = node("Sub", &[length, &one]);
        let blocks = node("Min", &[&own, &last]);
        // A window begins with the distance from its block's last token to the text's first.
        let width = node("Add", &[length, &tokens]);
        let window = node("Sub", &[&far, &tokens]);
        let window = node("Sub", &[&window, &starts]);
        let places = node("Slice", &[&counting, &zero, &width, &zero]);
        let places = node("Add", &[&window, &places]);
        let windows = node("Gather", &[&rows, &places]);
        let end = node("Add", &[&near, length]);
        let rows_of_first = node("Slice", &[&rows, &near, &end, &zero]);
        let narrow = node("Sub", &[&width, &one]);
        let kept = node("Mul", &[&tokens, &narrow]);
        let first = node("Sub", &[&tokens, &one]);
        let mut join = |left: &Value, right: &Value| {
            graph.node("Concat", &[left, right], vec![integer("axis", 0)])
        };
        Ok(Some(Self {
            distances,
            heads: config.heads.queries,
            width: config.heads.width,
            scale,
            embeddings,
            blocks,
            rows: windows,
            rows_of_first,
            kept,
            sheared: join(&same_heads, &narrow),
            from: join(&zero, &first),
            to: join(length, &narrow),
        }))
    }

    /// Sums the distance terms in a layer's scores; the layer's weight names begin with `attention`. With
    /// `is_first_only`, the scores are only the first token's.
    pub fn bias(
        &self,
        layers: &mut Layers<'_>,
        attention: &str,
        [query, key]: [&Value; 2],
        is_first_only: bool,
    ) -> Result<Value> {
        let mut terms = Vec::new();
        if self.distances.has_keys {
            let table = self.table(layers, attention, Side::Keys, Order::Rising)?;
            terms.push(match is_first_only {
                true => {
                    let rows = self.rows_of_first(layers, &table);
                    let query = self.by_head(layers, query);
                    layers.graph.microsoft(
                        "FusedMatMul",
                        &[&query, &rows],
                        vec![integer("transB", 1)],
                    )
                }
                false => self.products(layers, query, &table),
            });
        }
        if self.distances.has_queries {
            // Among blocks, distances have the opposite sign, since a block's tokens are the attended ones.
            let order = if is_first_only {
                Order::Rising
            } else {
                Order::Falling
            };
            let table = self.table(layers, attention, Side::Queries, order)?;
            terms.push(match is_first_only {
                true => {
                    let rows = self.rows_of_first(layers, &table);
                    let key = self.by_head(layers, key);
                    let graph = &mut layers.graph;
                    let (two, three) = (graph.integers("two", &[2]), graph.integers("three", &[3]));
                    let products = graph.node("Mul", &[&key, &rows], vec![]);
                    let sums = graph.node(
                        "ReduceSum",
                        &[&products, &three],
                        vec![integer("keepdims", 0)],
                    );
                    graph.node("Unsqueeze", &[&sums, &two], vec![])
                }
                false => {
                    let products = self.products(layers, key, &table);
                    layers.graph.node(
                        "Transpose",
                        &[&products],
                        vec![integers("perm", &[0, 1, 3, 2])],
                    )
                }
            });
        }
        let add = |left: Value, right: Value| layers.graph.node("Add", &[&left, &right], vec![]);
        Ok(terms.into_iter().reduce(add).unwrap_or_else(Value::none))
    }

    fn rows_of_first(&self, layers: &mut Layers<'_>, table: &Value) -> Value {
        layers.graph.node(
            "Gather",
            &[table, &self.rows_of_first],
            vec![integer("axis", 1)],
        )
    }

    /// Multiplies each token's vector by the row for its distance to each token.
    ///
    /// In a block's products with its window, each token's own products begin one column before the previous token's,
    /// since it is one farther from every other token. Reading the products in rows that are one value shorter aligns
    /// them in one column.
    fn products(&self, layers: &mut Layers<'_>, tokens: &Value, table: &Value) -> Value {
        let shape = self.head_shape(layers);
        let graph = &mut layers.graph;
        let (zero, three) = (graph.integers("zero", &[0]), graph.integers("three", &[3]));
        let flat = graph.integers("flat", &[0, 0, 0, -1]);
        let axes = graph.integers("two_three", &[2, 3]);
        let along_rows = || vec![integer("axis", 1)];
        let tokens = graph.node("Reshape", &[tokens, &shape], vec![]);
        let tokens = graph.node("Gather", &[&tokens, &self.blocks], along_rows());
        let tokens = graph.node(
            "Transpose",
            &[&tokens],
            vec![integers("perm", &[0, 3, 1, 2, 4])],
        );
        let rows = graph.node("Gather", &[table, &self.rows], along_rows());
        let products =
            graph.microsoft("FusedMatMul", &[&tokens, &rows], vec![integer("transB", 1)]);
        let products = graph.node("Reshape", &[&products, &flat], vec![]);
        let products = graph.node("Slice", &[&products, &zero, &self.kept, &three], vec![]);
        let products = graph.node("Reshape", &[&products, &self.sheared], vec![]);
        graph.node("Slice", &[&products, &self.from, &self.to, &axes], vec![])
    }

    /// Splits token vectors into heads.
    fn by_head(&self, layers: &mut Layers<'_>, tokens: &Value) -> Value {
        let shape = self.head_shape(layers);
        let tokens = layers.graph.node("Reshape", &[tokens, &shape], vec![]);
        layers.graph.node(
            "Transpose",
            &[&tokens],
            vec![integers("perm", &[0, 2, 1, 3])],
        )
    }

    fn head_shape(&self, layers: &mut Layers<'_>) -> Value {
        layers
            .graph
            .integers("heads", &[0, 0, self.heads as i64, self.width as i64])
    }

    /// Distance keys or queries in one layer, by head, divided by the score scale.
    fn table(
        &self,
        layers: &mut Layers<'_>,
        attention: &str,
        side: Side,
        order: Order,
    ) -> Result<Value> {
        let hidden = layers.hidden;
        let name = format!("{attention}.{}", self.distances.projection(side));
        let weight = layers
            .weights
            .take(&format!("{name}.weight"), &[hidden, hidden])?;
        let bias = layers.weights.take(&format!("{name}.bias"), &[hidden])?;
        let mut projected = project(&self.embeddings, &weight.values, &bias.values);
        projected.iter_mut().for_each(|value| *value /= self.scale);
        let order = self.distances.order(order);
        let values = head_by_head(&projected, &order, [self.heads, self.width]);
        let shape = [self.heads, order.len(), self.width];
        Ok(layers
            .graph
            .floats(&format!("{name}.distances"), &shape, &values))
    }
}

/// The convolution as the native engine computes it, in texts without padding: a linear layer over each token's row and
/// its neighbours' rows.
pub fn convolve_neighbours(
    layers: &mut Layers<'_>,
    convolution: &Convolution,
    [embedded, output, mask]: [&Value; 3],
) -> Result<Value> {
    let Convolution {
        width,
        groups,
        activation,
    } = *convolution;
    let (hidden, of_group) = (layers.hidden, layers.hidden / groups);
    let weight = layers.weights.take(WEIGHT, &[hidden, of_group, width])?;
    let mut matrix = vec![0.0; width * hidden * hidden];
    for (to, weight) in weight.values.chunks_exact(of_group * width).enumerate() {
        let first = to / of_group * of_group;
        for (from, weight) in weight.chunks_exact(width).enumerate() {
            for (place, weight) in weight.iter().enumerate() {
                matrix[(place * hidden + first + from) * hidden + to] = *weight;
            }
        }
    }
    let matrix = layers.graph.floats(
        &format!("{WEIGHT}.neighbours"),
        &[width * hidden, hidden],
        &matrix,
    );
    let bias = layers.constant(BIAS, &[hidden])?;
    let count = layers.graph.integers("neighbours", &[width as i64]);
    let joined = layers.graph.function(
        "Neighbours",
        [embedded, mask, &count],
        |graph, [tokens, mask, _]| functions::neighbours(graph, [tokens, mask], width),
    );
    let product = layers.graph.node("MatMul", &[&joined, &matrix], vec![]);
    let convolved = layers.graph.node("Add", &[&product, &bias], vec![]);
    let convolved = layers.activate(activation, &convolved);
    layers.add_and_norm(&convolved, output, "encoder.conv.LayerNorm")
}

/// Reads distance embeddings, one per row.
pub fn embeddings(layers: &Layers<'_>, distances: &Distances) -> Result<Vec<f32>> {
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
