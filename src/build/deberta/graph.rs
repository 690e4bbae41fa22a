//! The graph of DeBERTa, from token ids to vectors or logits.

use super::{
    config::{Convolution, DebertaConfig},
    distances::{Distances, Order, Side, head_by_head, normalise, project},
};
use crate::{
    build::{
        encoder::{Facts, Head, WORDS, finish},
        layers::{self, Layers, MASKED},
        onnx::{
            GraphBuilder, Value, float, integer, integers,
            proto::{ModelProto, data_type},
        },
        weights::Weights,
    },
    error::Result,
    repository::manifest::Precision,
};

/// The most tokens that are multiplied with the same rows of distances.
///
/// All tokens of a text need twice as many rows together as each of them alone. At 768 values a token, blocks of
/// 64 take 4 % off a text of 256 tokens and 8 % off one of 512; the shortest texts are a single block.
const BLOCK: usize = 64;

/// Writes the graph of an encoder, from token ids to [`crate::build::encoder::OUTPUT`], or to [`crate::build::encoder::LOGITS`]
/// where it has a head.
///
/// A head reads the first token only, and so does the last layer then: the others' vectors would be thrown away.
pub(in crate::build) fn graph(
    config: &DebertaConfig,
    weights: &Weights,
    precision: Precision,
) -> Result<ModelProto> {
    let Facts { hidden, .. } = config.facts;
    let graph = GraphBuilder::default();
    let layers = Layers { graph, weights, precision, block: layers::BLOCK, hidden, epsilon: config.epsilon };
    let mut writer = Writer { config, layers };
    let ids = writer.layers.graph.input("input_ids", &["batch", "sequence"]);
    let mask = writer.layers.graph.input("attention_mask", &["batch", "sequence"]);
    let length = writer.layers.length(&ids);
    let text = writer.text(&mask, &length)?;
    let embedded = writer.embeddings(&ids, &length)?;
    let embedded = writer.layers.graph.node("Mul", &[&embedded, &text.present], vec![]);
    let mut tokens = embedded.clone();
    for layer in 0..config.layers {
        let convolution = config.convolution.as_ref().filter(|_| layer == 0);
        let reads_first_only = config.head.is_some() && layer + 1 == config.layers && convolution.is_none();
        let attending = if reads_first_only { writer.layers.first_token(&tokens) } else { tokens.clone() };
        tokens = writer.layer(layer, &attending, &tokens, &text)?;
        if let Some(convolution) = convolution {
            tokens = writer.convolve(convolution, &embedded, &tokens, &text)?;
        }
    }
    if let Some(head) = &config.head {
        tokens = writer.head(head, &tokens)?;
    }
    Ok(finish(writer.layers.graph, &tokens, &config.facts, config.head.as_ref()))
}

struct Writer<'a> {
    config: &'a DebertaConfig,
    layers: Layers<'a>,
}

/// What every layer has to know of the texts that are read.
struct Text {
    /// Which tokens are attended to.
    mask: Value,
    /// Which tokens are no padding: a column of ones and zeros.
    present: Value,
    windows: Option<Windows>,
}

/// How the products of tokens and distances are made and read, for texts of one length.
///
/// Tokens go in blocks of equal size; the last is filled up with the text's last token. Each block is multiplied
/// with a window of a table's rows: those of all distances that any of its tokens has, the farthest behind
/// first.
struct Windows {
    distances: Distances,
    /// The embeddings of distances, one a row.
    embeddings: Vec<f32>,
    /// The tokens of each block.
    blocks: Value,
    /// The table's rows that each block is multiplied with.
    rows: Value,
    /// The table's rows of the distances from the first token to each.
    rows_of_first: Value,
    /// How many of a block's products there are if each token has one less.
    kept: Value,
    /// The shape of all products, if each token has one less.
    sheared: Value,
    /// Where the products of the text's own distances begin and end, among tokens and among a token's products.
    from: Value,
    to: Value,
}

impl Writer<'_> {
    fn text(&mut self, mask: &Value, length: &Value) -> Result<Text> {
        let two = self.layers.graph.integers("two", &[2]);
        let present = self.layers.cast(mask, data_type::FLOAT);
        let present = self.layers.graph.node("Unsqueeze", &[&present, &two], vec![]);
        let windows = self.config.distances.map(|distances| self.windows(distances, length)).transpose()?;
        Ok(Text { mask: self.layers.cast(mask, data_type::INT32), present, windows })
    }

    fn windows(&mut self, distances: Distances, length: &Value) -> Result<Windows> {
        let embeddings = self.distance_embeddings(&distances)?;
        let longest = self.config.facts.max_positions;
        // The last block may reach beyond the text, by fewer tokens than there are blocks.
        let farthest = (longest + longest.div_ceil(BLOCK)) as i64;
        let rows: Vec<i64> =
            (-(longest as i64)..farthest).rev().map(|distance| distances.row(distance)).collect();
        let counting: Vec<i64> = (0..2 * longest as i64).collect();
        let graph = &mut self.layers.graph;
        let (zero, one) = (graph.integers("zero", &[0]), graph.integers("one", &[1]));
        let (size, rest) =
            (graph.integers("block", &[BLOCK as i64]), graph.integers("block_rest", &[BLOCK as i64 - 1]));
        let rows = graph.integers("distance_rows", &rows);
        let counting = graph.integers("counting", &counting);
        let (far, near) =
            (graph.integers("farthest", &[farthest]), graph.integers("nearest", &[farthest - 1]));
        let same_heads = graph.integers("same_heads", &[0, 0, -1]);

        let mut node = |operator: &str, inputs: &[&Value]| graph.node(operator, inputs, vec![]);
        let blocks = node("Add", &[length, &rest]);
        let blocks = node("Div", &[&blocks, &size]);
        // As even as can be: the text's length over the number of blocks, rounded up.
        let tokens = node("Add", &[length, &blocks]);
        let tokens = node("Sub", &[&tokens, &one]);
        let tokens = node("Div", &[&tokens, &blocks]);
        let starts = node("Slice", &[&counting, &zero, &blocks, &zero]);
        let starts = node("Unsqueeze", &[&starts, &one]);
        let starts = node("Mul", &[&starts, &tokens]);
        let own = node("Slice", &[&counting, &zero, &tokens, &zero]);
        let own = node("Add", &[&starts, &own]);
        let last = node("Sub", &[length, &one]);
        let own = node("Min", &[&own, &last]);
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
        let mut join =
            |left: &Value, right: &Value| graph.node("Concat", &[left, right], vec![integer("axis", 0)]);
        let (sheared, from, to) = (join(&same_heads, &narrow), join(&zero, &first), join(length, &narrow));
        Ok(Windows {
            distances,
            embeddings,
            blocks: own,
            rows: windows,
            rows_of_first,
            kept,
            sheared,
            from,
            to,
        })
    }

    /// The embeddings of distances, one a row.
    fn distance_embeddings(&self, distances: &Distances) -> Result<Vec<f32>> {
        let Layers { weights, hidden, epsilon, .. } = self.layers;
        let rows = 2 * distances.span() as usize;
        let mut rows = weights.take("encoder.rel_embeddings.weight", &[rows, hidden])?.values.clone();
        if distances.is_normalised {
            let gain = weights.take("encoder.LayerNorm.weight", &[hidden])?;
            let bias = weights.take("encoder.LayerNorm.bias", &[hidden])?;
            normalise(&mut rows, &gain.values, &bias.values, epsilon);
        }
        Ok(rows)
    }

    fn embeddings(&mut self, ids: &Value, length: &Value) -> Result<Value> {
        let DebertaConfig { vocabulary, types, has_positions, .. } = *self.config;
        let Facts { hidden, max_positions, .. } = self.config.facts;
        let words = self.layers.weights.take(WORDS, &[vocabulary, hidden])?;
        let mut sum = self.layers.look_up(WORDS, words, ids);
        if has_positions {
            let name = "embeddings.position_embeddings.weight";
            let table = self.constant(name, &[max_positions, hidden])?;
            let zero = self.layers.graph.integers("zero", &[0]);
            let positions = self.layers.graph.node("Slice", &[&table, &zero, length, &zero], vec![]);
            sum = self.layers.graph.node("Add", &[&sum, &positions], vec![]);
        }
        if types > 0 {
            let mut rows = self.constant("embeddings.token_type_embeddings.weight", &[types, hidden])?;
            // A single type is added to every token alike.
            if types > 1 {
                let type_ids = self.layers.graph.input("token_type_ids", &["batch", "sequence"]);
                rows = self.layers.graph.node("Gather", &[&rows, &type_ids], vec![]);
            }
            sum = self.layers.graph.node("Add", &[&sum, &rows], vec![]);
        }
        self.layers.normalise(&sum, "embeddings.LayerNorm")
    }

    /// One layer: the tokens of `attending` attend to those of `input`, which are the same but for the last
    /// layer under a head.
    fn layer(&mut self, layer: usize, attending: &Value, input: &Value, text: &Text) -> Result<Value> {
        let DebertaConfig { heads, intermediate, activation, scale, .. } = *self.config;
        let hidden = self.config.facts.hidden;
        let at = |name: &str| format!("encoder.layer.{layer}.{name}");
        let [query, key, value] =
            ["query", "key", "value"].map(|name| at(&format!("attention.self.{name}_proj")));
        let [query, key, value] = if attending == input {
            let projected = self.layers.linear(&[query, key, value], input, hidden, hidden)?;
            self.layers.graph.split(&projected)
        } else {
            let projected = self.layers.linear(&[key, value], input, hidden, hidden)?;
            let [key, value] = self.layers.graph.split(&projected);
            [self.layers.linear(&[query], attending, hidden, hidden)?, key, value]
        };
        let bias = match &text.windows {
            None => Value::none(),
            Some(windows) if attending == input => self.bias(layer, [&query, &key], windows)?,
            Some(windows) => self.bias_of_first(layer, [&query, &key], windows)?,
        };
        let context = self.layers.graph.microsoft(
            "MultiHeadAttention",
            &[&query, &key, &value, &Value::none(), &text.mask, &bias],
            vec![
                integer("num_heads", heads as i64),
                float("mask_filter_value", MASKED),
                float("scale", 1.0 / scale),
            ],
        );
        let attended = self.layers.linear(&[at("attention.output.dense")], &context, hidden, hidden)?;
        let attended = self.layers.add_and_norm(&attended, attending, &at("attention.output.LayerNorm"))?;
        let raised = self.layers.linear(&[at("intermediate.dense")], &attended, hidden, intermediate)?;
        let raised = self.layers.activate(activation, &raised);
        let lowered = self.layers.linear(&[at("output.dense")], &raised, intermediate, hidden)?;
        self.layers.add_and_norm(&lowered, &attended, &at("output.LayerNorm"))
    }

    /// What distances add to the scores of all tokens for all tokens.
    fn bias(&mut self, layer: usize, [query, key]: [&Value; 2], windows: &Windows) -> Result<Value> {
        let mut terms = Vec::new();
        if windows.distances.has_keys {
            let table = self.table(layer, Side::Keys, Order::Rising, windows)?;
            terms.push(self.products(query, &table, windows));
        }
        if windows.distances.has_queries {
            // Here it is the blocks' tokens that are attended to, and so distances have the other sign.
            let table = self.table(layer, Side::Queries, Order::Falling, windows)?;
            let products = self.products(key, &table, windows);
            let swap = vec![integers("perm", &[0, 1, 3, 2])];
            terms.push(self.layers.graph.node("Transpose", &[&products], swap));
        }
        Ok(self.sum(terms))
    }

    /// What distances add to the scores of the first token for all tokens.
    fn bias_of_first(&mut self, layer: usize, [query, key]: [&Value; 2], windows: &Windows) -> Result<Value> {
        let mut terms = Vec::new();
        let along_rows = || vec![integer("axis", 1)];
        if windows.distances.has_keys {
            let table = self.table(layer, Side::Keys, Order::Rising, windows)?;
            let rows = self.layers.graph.node("Gather", &[&table, &windows.rows_of_first], along_rows());
            terms.push(self.times_rows(query, &rows));
        }
        if windows.distances.has_queries {
            let table = self.table(layer, Side::Queries, Order::Rising, windows)?;
            let rows = self.layers.graph.node("Gather", &[&table, &windows.rows_of_first], along_rows());
            let key = self.by_head(key);
            let graph = &mut self.layers.graph;
            let (two, three) = (graph.integers("two", &[2]), graph.integers("three", &[3]));
            let products = graph.node("Mul", &[&key, &rows], vec![]);
            let sums = graph.node("ReduceSum", &[&products, &three], vec![integer("keepdims", 0)]);
            terms.push(graph.node("Unsqueeze", &[&sums, &two], vec![]));
        }
        Ok(self.sum(terms))
    }

    fn sum(&mut self, terms: Vec<Value>) -> Value {
        let add = |left: Value, right: Value| self.layers.graph.node("Add", &[&left, &right], vec![]);
        terms.into_iter().reduce(add).unwrap_or_else(Value::none)
    }

    /// The products of each token's vector with the row of its distance to each token.
    ///
    /// Of a block's products with its window, a token's own begin one earlier than those of the token before: it is
    /// one farther behind any other. Read in rows that are one shorter, all begin in the same column.
    fn products(&mut self, tokens: &Value, table: &Value, windows: &Windows) -> Value {
        let shape = self.head_shape();
        let graph = &mut self.layers.graph;
        let (zero, three) = (graph.integers("zero", &[0]), graph.integers("three", &[3]));
        let flat = graph.integers("flat", &[0, 0, 0, -1]);
        let axes = graph.integers("two_three", &[2, 3]);
        let along_rows = || vec![integer("axis", 1)];
        let tokens = graph.node("Reshape", &[tokens, &shape], vec![]);
        let tokens = graph.node("Gather", &[&tokens, &windows.blocks], along_rows());
        let tokens = graph.node("Transpose", &[&tokens], vec![integers("perm", &[0, 3, 1, 2, 4])]);
        let rows = graph.node("Gather", &[table, &windows.rows], along_rows());
        let products = graph.microsoft("FusedMatMul", &[&tokens, &rows], vec![integer("transB", 1)]);
        let products = graph.node("Reshape", &[&products, &flat], vec![]);
        let products = graph.node("Slice", &[&products, &zero, &windows.kept, &three], vec![]);
        let products = graph.node("Reshape", &[&products, &windows.sheared], vec![]);
        graph.node("Slice", &[&products, &windows.from, &windows.to, &axes], vec![])
    }

    /// The products of each token's vector with each of `rows`.
    fn times_rows(&mut self, tokens: &Value, rows: &Value) -> Value {
        let tokens = self.by_head(tokens);
        self.layers.graph.microsoft("FusedMatMul", &[&tokens, rows], vec![integer("transB", 1)])
    }

    /// Tokens' vectors head by head.
    fn by_head(&mut self, tokens: &Value) -> Value {
        let shape = self.head_shape();
        let tokens = self.layers.graph.node("Reshape", &[tokens, &shape], vec![]);
        self.layers.graph.node("Transpose", &[&tokens], vec![integers("perm", &[0, 2, 1, 3])])
    }

    fn head_shape(&mut self) -> Value {
        let heads = self.config.heads;
        let width = self.config.facts.hidden / heads;
        self.layers.graph.integers("heads", &[0, 0, heads as i64, width as i64])
    }

    /// The keys or queries of distances in one layer, head by head, divided by the scale of scores.
    fn table(&mut self, layer: usize, side: Side, order: Order, windows: &Windows) -> Result<Value> {
        let DebertaConfig { heads, scale, .. } = *self.config;
        let hidden = self.config.facts.hidden;
        let name = format!("encoder.layer.{layer}.attention.self.{}", windows.distances.projection(side));
        let weight = self.layers.weights.take(&format!("{name}.weight"), &[hidden, hidden])?;
        let bias = self.layers.weights.take(&format!("{name}.bias"), &[hidden])?;
        let mut projected = project(&windows.embeddings, &weight.values, &bias.values);
        projected.iter_mut().for_each(|value| *value /= scale);
        let order = windows.distances.order(order);
        let (width, rows) = (hidden / heads, order.len());
        let values = head_by_head(&projected, &order, [heads, width]);
        Ok(self.layers.graph.floats(&format!("{name}.distances"), &[heads, rows, width], &values))
    }

    /// What the first layer puts out, with what a convolution makes of the tokens that it read.
    fn convolve(
        &mut self,
        convolution: &Convolution,
        embedded: &Value,
        output: &Value,
        text: &Text,
    ) -> Result<Value> {
        let Convolution { width, groups, activation } = *convolution;
        let hidden = self.config.facts.hidden;
        let weight = self.constant("encoder.conv.conv.weight", &[hidden, hidden / groups, width])?;
        let bias = self.constant("encoder.conv.conv.bias", &[hidden])?;
        let padding = (width as i64 - 1) / 2;
        let attributes = vec![integer("group", groups as i64), integers("pads", &[padding, padding])];
        let swap = || vec![integers("perm", &[0, 2, 1])];
        let graph = &mut self.layers.graph;
        let columns = graph.node("Transpose", &[embedded], swap());
        let columns = graph.node("Conv", &[&columns, &weight, &bias], attributes);
        let convolved = graph.node("Transpose", &[&columns], swap());
        let convolved = graph.node("Mul", &[&convolved, &text.present], vec![]);
        let convolved = self.layers.activate(activation, &convolved);
        let sum = self.layers.add_and_norm(&convolved, output, "encoder.conv.LayerNorm")?;
        Ok(self.layers.graph.node("Mul", &[&sum, &text.present], vec![]))
    }

    /// The logits of labels from the first token's vector, in fp32 whatever the precision.
    fn head(&mut self, head: &Head, tokens: &Value) -> Result<Value> {
        let DebertaConfig { pooler_activation, .. } = *self.config;
        let hidden = self.config.facts.hidden;
        let first_token = self.layers.first_token(tokens);
        let one = self.layers.graph.integers("one", &[1]);
        let first_token = self.layers.graph.node("Squeeze", &[&first_token, &one], vec![]);
        let pooled = self.layers.plain_linear("pooler.dense", &first_token, hidden, hidden)?;
        let pooled = self.layers.activate(pooler_activation, &pooled);
        self.layers.plain_linear("classifier", &pooled, hidden, head.labels.len())
    }

    /// A weight of the body as it is.
    fn constant(&mut self, name: &str, shape: &[usize]) -> Result<Value> {
        let weight = self.layers.weights.take(name, shape)?;
        Ok(self.layers.graph.floats(name, &weight.shape, &weight.values))
    }
}
