//! Encoders after DeBERTa-v2 and -v3, from `config.json` and weights to a graph.
//!
//! Their attention looks at distances. To the product of a token's query with another's key come two more: of the
//! query with a key that stands for how far apart the two are, and of the key with a query that does. These
//! keys and queries are the same for every text, and so they are constants here; distances far off share
//! them in buckets.

use std::path::Path;

use serde::Deserialize;

use super::{
    encoder::{Facts, Head, RawConfig, WORDS, finish, read_config, require_heads_fit, required},
    layers::{Activation, Layers, MASKED},
    onnx::{
        GraphBuilder, Value, float, integer, integers,
        proto::{ModelProto, data_type},
    },
    weights::Weights,
};
use crate::{
    error::{Error, Result},
    repository::manifest::Precision,
};

/// The family's `model_type`.
pub(super) const MODEL_TYPE: &str = "deberta-v2";
/// The prefix under which a model with a head stores its body, and a weight to tell by whether it does.
pub(super) const PREFIX: (&str, &str) = ("deberta.", WORDS);

/// The most tokens that are multiplied with the same rows of distances.
///
/// All tokens of a text need twice as many rows together as each of them alone. At 768 values a token, blocks of
/// 64 take 4 % off a text of 256 tokens and 8 % off one of 512; the shortest texts are a single block.
const BLOCK: usize = 64;

/// The fields of `config.json` that no other family has.
#[derive(Debug, Deserialize)]
struct RawDeberta {
    embedding_size: Option<usize>,
    attention_head_size: Option<usize>,
    relative_attention: Option<bool>,
    pos_att_type: Option<RawTerms>,
    share_att_key: Option<bool>,
    max_relative_positions: Option<i64>,
    position_buckets: Option<i64>,
    norm_rel_ebd: Option<String>,
    position_biased_input: Option<bool>,
    conv_kernel_size: Option<usize>,
    conv_groups: Option<usize>,
    conv_act: Option<String>,
    pooler_hidden_size: Option<usize>,
    pooler_hidden_act: Option<String>,
}

/// What scores are made of besides content: `["c2p", "p2c"]`, or `"c2p|p2c"`.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum RawTerms {
    Joined(String),
    Listed(Vec<String>),
}

impl RawTerms {
    fn include(&self, term: &str) -> bool {
        match self {
            Self::Joined(terms) => includes(terms, term),
            Self::Listed(terms) => terms.iter().any(|other| other == term),
        }
    }
}

/// Whether `words`, with bars between them, has `word` among them.
fn includes(words: &str, word: &str) -> bool {
    words.split('|').any(|other| other.trim().eq_ignore_ascii_case(word))
}

impl RawDeberta {
    fn has_term(&self, term: &str) -> bool {
        self.pos_att_type.as_ref().is_some_and(|terms| terms.include(term))
    }

    /// What attention makes of distances; nothing in a model that does not look at them.
    fn distances(&self, positions: usize) -> Result<Option<Distances>> {
        let looks = self.relative_attention.unwrap_or(false);
        let distances = Distances {
            has_keys: looks && self.has_term("c2p"),
            has_queries: looks && self.has_term("p2c"),
            buckets: self.position_buckets.filter(|buckets| *buckets > 0),
            farthest: self.max_relative_positions.filter(|most| *most >= 1).unwrap_or(positions as i64),
            is_normalised: self.norm_rel_ebd.as_ref().is_some_and(|kinds| includes(kinds, "layer_norm")),
            shares_projections: self.share_att_key.unwrap_or(false),
        };
        if !distances.has_keys && !distances.has_queries {
            return Ok(None);
        }
        let Distances { buckets, farthest, .. } = distances;
        let near = buckets.map_or(1, |buckets| buckets / 2);
        if near < 1 || farthest <= near + i64::from(buckets.is_some()) {
            return Err(Error::model(format!(
                "expected distances that go beyond half of `position_buckets`, but found {farthest} distances \
                 and {} buckets",
                buckets.unwrap_or(0)
            )));
        }
        Ok(Some(distances))
    }

    fn convolution(&self) -> Result<Option<Convolution>> {
        let (width, groups) = (self.conv_kernel_size.unwrap_or(0), self.conv_groups.unwrap_or(1));
        if width == 0 {
            return Ok(None);
        }
        if width.is_multiple_of(2) || groups == 0 {
            return Err(Error::model(format!(
                "expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found {width} and \
                 {groups}"
            )));
        }
        let activation = Activation::of_name(self.conv_act.as_deref().unwrap_or("tanh"))?;
        Ok(Some(Convolution { width, groups, activation }))
    }
}

/// The shape of an encoder.
#[derive(Debug)]
pub(super) struct DebertaConfig {
    /// What it has in common with any other.
    pub(super) facts: Facts,
    vocabulary: usize,
    layers: usize,
    heads: usize,
    intermediate: usize,
    epsilon: f32,
    activation: Activation,
    /// What scores are divided by.
    scale: f32,
    /// Whether positions are added to words.
    has_positions: bool,
    /// The rows of the table that tells a pair's texts apart; none where the model has no such table.
    types: usize,
    distances: Option<Distances>,
    convolution: Option<Convolution>,
    pooler_activation: Activation,
    /// What the model makes of its tokens' vectors, if it has a head.
    pub(super) head: Option<Head>,
}

/// What attention makes of distances: how far behind another token the one is that attends to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Distances {
    /// Whether distances have keys, for the queries of tokens (content to position).
    has_keys: bool,
    /// Whether distances have queries, for the keys of tokens (position to content).
    has_queries: bool,
    /// How many rows each direction has, where far distances share them; each has its own otherwise.
    buckets: Option<i64>,
    /// From here on, distances are all the same.
    farthest: i64,
    /// Whether the embeddings of distances are normalised.
    is_normalised: bool,
    /// Whether their keys and queries are made by the projections of tokens.
    shares_projections: bool,
}

/// A convolution over neighbouring tokens, beside the first layer.
#[derive(Debug)]
struct Convolution {
    width: usize,
    groups: usize,
    activation: Activation,
}

/// What is made of the embedding of a distance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Keys,
    Queries,
}

/// Which way the rows of a table of distances go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// From far ahead of the other token to far behind it, as [`Distances::row`] counts.
    Rising,
    Falling,
}

impl DebertaConfig {
    /// Reads the `config.json` in `folder`; what is not supported is refused by name.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let raw: RawConfig = read_config(folder)?;
        let own: RawDeberta = read_config(folder)?;
        Self::from_raw(&raw, &own)
            .map_err(|error| Error::model_because(format!("cannot build from `{}`", folder.display()), error))
    }

    fn from_raw(raw: &RawConfig, own: &RawDeberta) -> Result<Self> {
        let facts = raw.facts()?;
        let heads = required(raw.num_attention_heads, "num_attention_heads")?;
        require_heads_fit(facts.hidden, heads)?;
        let width = facts.hidden / heads;
        require_size("embedding_size", own.embedding_size, facts.hidden)?;
        require_size("attention_head_size", own.attention_head_size, width)?;
        require_size("pooler_hidden_size", own.pooler_hidden_size, facts.hidden)?;
        // A term counts even in a model that does not look at distances.
        let terms = 1 + usize::from(own.has_term("c2p")) + usize::from(own.has_term("p2c"));
        Ok(Self {
            vocabulary: required(raw.vocab_size, "vocab_size")?,
            layers: required(raw.num_hidden_layers, "num_hidden_layers")?,
            heads,
            intermediate: required(raw.intermediate_size, "intermediate_size")?,
            epsilon: raw.layer_norm_eps.unwrap_or(1e-7),
            activation: Activation::of_name(raw.hidden_act.as_deref().unwrap_or("gelu"))?,
            scale: ((width * terms) as f32).sqrt(),
            has_positions: own.position_biased_input.unwrap_or(true),
            types: raw.type_vocab_size.unwrap_or(0),
            distances: own.distances(facts.max_positions)?,
            convolution: own.convolution()?,
            pooler_activation: Activation::of_name(own.pooler_hidden_act.as_deref().unwrap_or("gelu"))?,
            head: Head::of_class(raw)?,
            facts,
        })
    }

    /// The same body under a head for labels, which an adapter brings.
    pub(super) fn with_head(mut self, labels: usize) -> Self {
        if self.head.is_none() {
            self.head = Some(Head::unnamed(labels));
        }
        self
    }
}

/// Refuses a size that could be another's and is not.
fn require_size(name: &str, found: Option<usize>, expected: usize) -> Result<()> {
    match found {
        Some(found) if found != expected => {
            Err(Error::model(format!("expected `{name}` {expected}, but found {found}")))
        }
        _ => Ok(()),
    }
}

impl Distances {
    /// How many rows each direction has.
    fn span(&self) -> i64 {
        self.buckets.unwrap_or(self.farthest)
    }

    /// The bucket of a distance: near ones have one each, farther ones share them by their logarithm.
    fn bucket(&self, distance: i64) -> i64 {
        let Some(buckets) = self.buckets else { return distance };
        let middle = buckets / 2;
        if distance.abs() <= middle {
            return distance;
        }
        let times = |distance: i64| (distance as f64 / middle as f64).ln();
        let share = times(distance.abs()) / times(self.farthest - 1);
        distance.signum() * ((share * (middle - 1) as f64).ceil() as i64 + middle)
    }

    /// The row of a distance in a table of [`Order::Rising`].
    fn row(&self, distance: i64) -> i64 {
        self.bucket(distance).clamp(-self.span(), self.span()) + self.span()
    }

    /// Which rows of the model's table make up one of the given order. The model's has none for the farthest
    /// bucket behind, for which it takes the one before.
    fn order(&self, order: Order) -> Vec<usize> {
        let most = 2 * self.span() as usize;
        let rows = (0..=most).map(|row| row.min(most - 1));
        match order {
            Order::Rising => rows.collect(),
            Order::Falling => rows.rev().collect(),
        }
    }

    fn projection(&self, side: Side) -> &'static str {
        match (side, self.shares_projections) {
            (Side::Keys, true) => "key_proj",
            (Side::Keys, false) => "pos_key_proj",
            (Side::Queries, true) => "query_proj",
            (Side::Queries, false) => "pos_query_proj",
        }
    }
}

/// Writes the graph of an encoder, from token ids to [`super::encoder::OUTPUT`], or to [`super::encoder::LOGITS`]
/// where it has a head.
///
/// A head reads the first token only, and so does the last layer then: the others' vectors would be thrown away.
pub(super) fn graph(config: &DebertaConfig, weights: &Weights, precision: Precision) -> Result<ModelProto> {
    let Facts { hidden, .. } = config.facts;
    let graph = GraphBuilder::default();
    let layers = Layers { graph, weights, precision, hidden, epsilon: config.epsilon };
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

/// Brings each row to mean 0 and variance 1, then multiplies it with `gain` and adds `bias`.
fn normalise(rows: &mut [f32], gain: &[f32], bias: &[f32], epsilon: f32) {
    let width = gain.len().max(1);
    for row in rows.chunks_exact_mut(width) {
        let mean = row.iter().map(|value| f64::from(*value)).sum::<f64>() / width as f64;
        let squares = row.iter().map(|value| (f64::from(*value) - mean).powi(2));
        let variance = squares.sum::<f64>() / width as f64;
        let factor = (variance + f64::from(epsilon)).sqrt().recip();
        for ((value, gain), bias) in row.iter_mut().zip(gain).zip(bias) {
            *value = ((f64::from(*value) - mean) * factor) as f32 * gain + bias;
        }
    }
}

/// What a linear layer makes of each row; a row of its weight makes one value.
fn project(rows: &[f32], weight: &[f32], bias: &[f32]) -> Vec<f32> {
    let width = (weight.len() / bias.len().max(1)).max(1);
    let mut values = Vec::with_capacity(rows.len() / width * bias.len());
    for row in rows.chunks_exact(width) {
        values.extend(weight.chunks_exact(width).zip(bias).map(|(weight, bias)| dot(row, weight) + bias));
    }
    values
}

/// Eight sums at once, which is several times as fast as one and more exact.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let ((left, left_rest), (right, right_rest)) = (left.as_chunks::<8>(), right.as_chunks::<8>());
    let mut sums = [0.0_f32; 8];
    for (left, right) in left.iter().zip(right) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    let rest = left_rest.iter().zip(right_rest).map(|(left, right)| left * right);
    sums.iter().sum::<f32>() + rest.sum::<f32>()
}

/// The given rows of a matrix whose rows have the given number of heads, each of the given width; one head
/// after the other.
fn head_by_head(matrix: &[f32], rows: &[usize], [heads, width]: [usize; 2]) -> Vec<f32> {
    let mut values = Vec::with_capacity(rows.len() * heads * width);
    for head in 0..heads {
        for row in rows {
            let start = (row * heads + head) * width;
            values.extend_from_slice(&matrix[start..start + width]);
        }
    }
    values
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn distances(buckets: Option<i64>, farthest: i64) -> Distances {
        Distances {
            has_keys: true,
            has_queries: true,
            buckets,
            farthest,
            is_normalised: true,
            shares_projections: true,
        }
    }

    /// A config like that of DeBERTa-v3, but for one field.
    fn config(name: &str, value: serde_json::Value) -> Result<DebertaConfig> {
        let mut config = json!({
            "architectures": ["DebertaV2ForSequenceClassification"],
            "model_type": "deberta-v2",
            "vocab_size": 288,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 512,
            "max_relative_positions": -1,
            "norm_rel_ebd": "layer_norm",
            "pos_att_type": ["p2c", "c2p"],
            "position_biased_input": false,
            "position_buckets": 256,
            "relative_attention": true,
            "share_att_key": true,
        });
        config[name] = value;
        let raw: RawConfig = serde_json::from_value(config.clone()).unwrap();
        DebertaConfig::from_raw(&raw, &serde_json::from_value(config).unwrap())
    }

    #[test]
    fn distances_fall_into_the_buckets_of_transformers() {
        let base = distances(Some(256), 512);
        let cases = [(0, 0), (1, 1), (-1, -1), (128, 128), (129, 129), (200, 169), (-300, -207)];
        for (distance, bucket) in cases.into_iter().chain([(400, 233), (511, 255), (-511, -255), (512, 256)])
        {
            assert_eq!(base.bucket(distance), bucket, "{distance}");
        }
        let tiny = distances(Some(16), 64);
        for (distance, bucket) in
            [(8, 8), (9, 9), (10, 9), (11, 10), (20, 12), (-20, -12), (40, 14), (63, 15)]
        {
            assert_eq!(tiny.bucket(distance), bucket, "{distance}");
        }
        assert_eq!(distances(None, 64).bucket(-50), -50);
    }

    #[test]
    fn distances_beyond_the_last_row_share_it() {
        let base = distances(Some(256), 512);
        let rows = [-700, -512, -511, 0, 511, 512, 700].map(|distance| base.row(distance));
        assert_eq!(rows, [0, 0, 1, 256, 511, 512, 512]);
        assert_eq!(distances(None, 2).order(Order::Rising), [0, 1, 2, 3, 3]);
        assert_eq!(distances(None, 2).order(Order::Falling), [3, 3, 2, 1, 0]);
    }

    #[test]
    fn rows_are_normalised_and_projected() {
        let mut rows = [1.0, 3.0, 7.0, 3.0];
        normalise(&mut rows, &[2.0, 1.0], &[0.0, 1.0], 0.0);
        assert_eq!(rows, [-2.0, 2.0, 2.0, 0.0]);
        let weight = [1.0, 0.0, 0.0, 1.0, 1.0, 1.0];
        let projected = project(&[1.0, 2.0, 3.0, 4.0], &weight, &[0.5, 0.0, -1.0]);
        assert_eq!(projected, [1.5, 2.0, 2.0, 3.5, 4.0, 6.0]);
        assert_eq!(dot(&[2.0; 19], &[3.0; 19]), 114.0);
    }

    #[test]
    fn rows_are_cut_into_heads() {
        let matrix = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0];
        let values = head_by_head(&matrix, &[1, 0, 0], [2, 2]);
        assert_eq!(values, [4.0, 5.0, 0.0, 1.0, 0.0, 1.0, 6.0, 7.0, 2.0, 3.0, 2.0, 3.0]);
    }

    #[test]
    fn terms_are_a_list_or_one_string() {
        let listed = config("pos_att_type", json!(["p2c", "c2p"])).unwrap();
        assert_eq!(listed.distances, Some(distances(Some(256), 512)));
        assert_eq!(config("pos_att_type", json!("c2p|P2C")).unwrap().distances, listed.distances);
        assert_eq!(config("pos_att_type", json!(null)).unwrap().distances, None);
        let blind = config("relative_attention", json!(false)).unwrap();
        assert_eq!((blind.distances, blind.scale), (None, listed.scale));
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        let refusals = [
            config("embedding_size", json!(128)),
            config("attention_head_size", json!(64)),
            config("conv_kernel_size", json!(4)),
            config("position_buckets", json!(1)),
            config("pooler_hidden_act", json!("swish")),
        ];
        let refusals = refusals.map(|refusal| refusal.unwrap_err().to_string()).join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected `embedding_size` 32, but found 128
        expected `attention_head_size` 8, but found 64
        expected an odd `conv_kernel_size` and `conv_groups` of at least 1, but found 4 and 1
        expected distances that go beyond half of `position_buckets`, but found 512 distances and 1 buckets
        expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `tanh`, but found `swish`
        ");
    }
}
