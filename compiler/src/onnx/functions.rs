//! Subgraphs that the native engine executes by name. In its graphs they are model-local function calls, with these
//! nodes as bodies, so that ONNX Runtime runs the same file; in other graphs they are the nodes.

use super::{GraphBuilder, Value, data_type, float, integer, string};

type Graph = GraphBuilder;

/// Looks up table rows by id, in fp32 or in 16 bits.
pub fn lookup(graph: &mut Graph, [table, ids]: [&Value; 2]) -> Value {
    let rows = graph.gather(table, ids);
    graph.float(&rows)
}

/// Looks up int8 table rows by id, with a scale per row.
pub fn quantized_lookup(graph: &mut Graph, [values, scales, ids]: [&Value; 3]) -> Value {
    let values = graph.gather(values, ids);
    let values = graph.float(&values);
    let scales = graph.gather(scales, ids);
    graph.mul(&values, &scales)
}

/// The first rows of a position table, one per id.
pub fn positions(graph: &mut Graph, [table, ids]: [&Value; 2]) -> Value {
    let length = length(graph, ids);
    let zero = graph.zero();
    graph.slice(table, &zero, &length, &zero)
}

/// Rows of a position table that counts from the one after the padding id, skipping padding (as in fairseq).
pub fn positions_after_padding(graph: &mut Graph, [table, ids, padding]: [&Value; 3]) -> Value {
    let one = graph.one();
    let is_padding = graph.equal(ids, padding);
    let counts = graph.not(&is_padding);
    let counts = graph.cast(&counts, data_type::INT64);
    let sum = graph.cumsum(&counts, &one);
    let sum = graph.mul(&sum, &counts);
    let rows = graph.add(&sum, padding);
    graph.gather(table, &rows)
}

/// Number of tokens in texts with these ids, as a one-element list.
pub fn length(graph: &mut Graph, ids: &Value) -> Value {
    let (one, two) = (graph.one(), graph.two());
    let shape = graph.shape(ids);
    graph.node("Slice", &[&shape, &one, &two], vec![])
}

/// Values for the distance between any two tokens of texts with these ids, by head. `values` has a value for each
/// distance below `positions`, from the farthest token before another to the farthest after it; its first axis has the
/// length 1.
pub fn distance_values(graph: &mut Graph, [values, ids]: [&Value; 2], positions: usize) -> Value {
    let counting: Vec<i64> = (0..positions as i64).collect();
    let counting = graph.integers("counting", &counting);
    let (zero, one) = (graph.zero(), graph.one());
    let farthest = graph.integers("farthest", &[positions as i64 - 1]);
    let length = length(graph, ids);
    let own = graph.slice(&counting, &zero, &length, &zero);
    let others = graph.add(&own, &farthest);
    let own = graph.unsqueeze(&own, &one);
    let distances = graph.sub(&others, &own);
    graph.gather_along(values, &distances, 2)
}

/// Each token's row after as many rows before it as there are after it, `count` in all; zeros for padding and beyond the
/// text.
pub fn neighbours(graph: &mut Graph, [tokens, mask]: [&Value; 2], count: usize) -> Value {
    let (one, two) = (graph.one(), graph.two());
    let before = (count / 2) as i64;
    let pads = graph.integers("pads", &[0, before, 0, 0, before, 0]);
    let length = length(graph, tokens);
    let mask = graph.float(mask);
    let mask = graph.unsqueeze(&mask, &two);
    let tokens = graph.mul(tokens, &mask);
    let padded = graph.pad(&tokens, &pads);
    let shifted: Vec<Value> = (0..count as i64)
        .map(|place| {
            let start = graph.integers(&format!("place_{place}"), &[place]);
            let end = graph.add(&start, &length);
            graph.slice(&padded, &start, &end, &one)
        })
        .collect();
    graph.concat(&shifted.iter().collect::<Vec<_>>(), -1)
}

/// The form of a convolution.
#[derive(Clone, Copy, Debug)]
pub struct ConvolutionForm {
    /// Rows that it reads for a token.
    pub count: usize,
    /// Tokens before the token itself.
    pub before: usize,
    /// Whether it, and the layers before and after it, have biases.
    pub has_bias: bool,
}

/// A gated convolution of each column: of each row's thirds, the first times the last is convolved with `taps`, which have a
/// row per neighbour, then multiplied by the second; zeros for padding and beyond the text.
pub fn gated_convolution(
    graph: &mut Graph,
    form: ConvolutionForm,
    [projected, mask, taps, _, bias]: [&Value; 5],
) -> Value {
    let ConvolutionForm {
        count,
        before,
        has_bias,
    } = form;
    let (one, two) = (graph.one(), graph.two());
    let pads = [0, before as i64, 0, 0, (count - 1 - before) as i64, 0];
    let pads = graph.integers("convolution_pads", &pads);
    let length = length(graph, projected);
    let mask = graph.float(mask);
    let mask = graph.unsqueeze(&mask, &two);
    let [first, second, last] = graph.split(projected);
    let product = graph.mul(&first, &last);
    let product = graph.mul(&product, &mask);
    let padded = graph.pad(&product, &pads);
    let mut sum = has_bias.then(|| bias.clone());
    for place in 0..count as i64 {
        let start = graph.integers(&format!("place_{place}"), &[place]);
        let end = graph.add(&start, &length);
        let rows = graph.slice(&padded, &start, &end, &one);
        let factors = graph.gather(taps, &start);
        let rows = graph.mul(&rows, &factors);
        sum = Some(match sum {
            Some(sum) => graph.add(&rows, &sum),
            None => rows,
        });
    }
    let sum = sum.unwrap_or_else(Value::none);
    graph.mul(&second, &sum)
}

/// Hyperbolic tangents in steps of 1/127, as integers.
pub fn rounded_tanh(graph: &mut Graph, [values]: [&Value; 1]) -> Value {
    let steps = graph.scalar("steps", 127.0);
    let tangents = graph.tanh(values);
    let scaled = graph.mul(&tangents, &steps);
    graph.round(&scaled)
}

/// Each token's row is its predecessor's; zeros for the first.
pub fn previous_row(graph: &mut Graph, [tokens, mask]: [&Value; 2]) -> Value {
    let (zero, one, two) = (graph.zero(), graph.one(), graph.two());
    let pads = graph.integers("pads_before", &[0, 1, 0, 0, 0, 0]);
    let length = length(graph, tokens);
    let mask = graph.float(mask);
    let mask = graph.unsqueeze(&mask, &two);
    let tokens = graph.mul(tokens, &mask);
    let padded = graph.pad(&tokens, &pads);
    graph.slice(&padded, &zero, &length, &one)
}

/// Mean over each text's tokens, without padding; zeros for a text without tokens.
pub fn mean_of_tokens(graph: &mut Graph, [tokens, mask]: [&Value; 2]) -> Value {
    mean(graph, tokens, mask)
}

/// Vector of each text's first unmasked token; zeros for a text without tokens.
pub fn first_of_tokens(graph: &mut Graph, [tokens, mask]: [&Value; 2]) -> Value {
    let positions = positions_of_tokens(graph, mask);
    let first = graph.scalar("first_position", 1.0);
    let is_first = graph.equal(&positions, &first);
    let is_first = graph.float(&is_first);
    weighted_sum(graph, tokens, &is_first)
}

/// Vector of each text's last unmasked token; zeros for a text without tokens.
pub fn last_of_tokens(graph: &mut Graph, [tokens, mask]: [&Value; 2]) -> Value {
    let one = graph.one();
    let positions = positions_of_tokens(graph, mask);
    let last = graph.reduce_keeping("ReduceMax", &[&positions, &one]);
    let least = graph.scalar("first_position", 1.0);
    let last = graph.max(&last, &least);
    let is_last = graph.equal(&positions, &last);
    let is_last = graph.float(&is_last);
    weighted_sum(graph, tokens, &is_last)
}

/// Token positions, from 1 on; 0 for padding.
pub fn positions_of_tokens(graph: &mut Graph, mask: &Value) -> Value {
    let one = graph.one();
    let mask = graph.float(mask);
    let positions = graph.cumsum(&mask, &one);
    graph.mul(&positions, &mask)
}

/// Weighted sum of each text's token vectors.
pub fn weighted_sum(graph: &mut Graph, tokens: &Value, weights: &Value) -> Value {
    let (one, last) = (graph.one(), graph.last_axis());
    let weights = graph.unsqueeze(weights, &last);
    let products = graph.mul(tokens, &weights);
    graph.reduce("ReduceSum", &[&products, &one])
}

/// First token's vector per text.
pub fn first_token(graph: &mut Graph, [hidden]: [&Value; 1]) -> Value {
    let (zero, one) = (graph.zero(), graph.one());
    graph.slice(hidden, &zero, &one, &one)
}

/// Mean over the table rows for a text's unmasked tokens; zeros for a text without tokens.
pub fn mean_of_rows(graph: &mut Graph, [table, ids, mask]: [&Value; 3]) -> Value {
    let rows = graph.gather(table, ids);
    mean(graph, &rows, mask)
}

/// Mean over int8 table rows, with a scale per row, as in [`mean_of_rows`].
pub fn mean_of_int8_rows(graph: &mut Graph, [values, scales, ids, mask]: [&Value; 4]) -> Value {
    let rows = quantized_lookup(graph, [values, scales, ids]);
    mean(graph, &rows, mask)
}

/// Multiplies a text's vector by each matrix row.
pub fn row_products(graph: &mut Graph, [vector, matrix]: [&Value; 2]) -> Value {
    graph.row_products(&[vector, matrix])
}

/// Label probabilities in fastText's hierarchical softmax, from each inner node's product. `paths` are steps from the root to
/// each label, of shape `shape`: see `Tree` in `fast_text/tree.rs`.
pub fn hierarchical_softmax(graph: &mut Graph, [products, paths, shape]: [&Value; 3]) -> Value {
    let (one, epsilon) = (
        graph.scalar("one_float", 1.0),
        graph.scalar("epsilon", 1e-5),
    );
    let right = graph.sigmoid(products);
    let left = graph.sub(&one, &right);
    let steps = graph.concat(&[&left, &right], 1);
    let steps = graph.add(&steps, &epsilon);
    let steps = graph.node("Log", &[&steps], vec![]);
    // Adds a column of zeros, the value for no step.
    let pads = graph.integers("pads", &[0, 0, 0, 1]);
    let steps = graph.pad(&steps, &pads);
    let steps = graph.gather_along(&steps, paths, 1);
    let steps = graph.reshape(&steps, shape);
    let axis = graph.integers("step_axis", &[2]);
    let sum = graph.reduce("ReduceSum", &[&steps, &axis]);
    let probability = graph.node("Exp", &[&sum], vec![]);
    graph.min(&probability, &one)
}

fn mean(graph: &mut Graph, rows: &Value, mask: &Value) -> Value {
    let one = graph.one();
    let mask = graph.float(mask);
    let sum = weighted_sum(graph, rows, &mask);
    let count = graph.reduce_keeping("ReduceSum", &[&mask, &one]);
    let least = graph.scalar("least_count", 1.0);
    let count = graph.max(&count, &least);
    graph.div(&sum, &count)
}

/// The product with a matrix in `panels` of 32 outputs, with a row per input.
pub fn panel_product(graph: &mut Graph, [input, panels]: [&Value; 2]) -> Value {
    let weights = graph.transpose(panels, &[1, 0, 2]);
    let matrix = graph.integers("matrix", &[0, -1]);
    let weights = graph.reshape(&weights, &matrix);
    let weights = graph.float(&weights);
    graph.matmul(input, &weights)
}

/// How a linear layer's weights are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Storage {
    /// A matrix in fp32, with a row per input.
    Matrix,
    /// Panels in fp32, also in 16 bits, see [`panel_product`].
    Panels,
    /// Panels of 16 outputs in int8, in which four inputs' weights are adjacent, with a scale per output.
    Int8,
    /// The same with a scale per panel, block and output.
    Int8Blocks,
}

impl Storage {
    /// A linear layer, from weights and bias in fp32, or else from panels, scales, weight sums, bias and shape: the
    /// numbers of inputs and outputs, or of blocks, inputs per block, and outputs.
    ///
    /// In int8, the input is rounded, too: each token's values, by block if there are several. ONNX Runtime multiplies in
    /// fp32, and computes the matrix of such a layer once.
    pub fn linear(self, graph: &mut Graph, input: &Value, constants: &[&Value]) -> Value {
        let (product, bias) = match (self, constants) {
            (Self::Matrix, [weights, bias]) => (graph.matmul(input, weights), bias),
            (Self::Panels, [panels, bias]) => (panel_product(graph, [input, panels]), bias),
            (_, [panels, scales, _, bias, shape]) => {
                let weights = graph.transpose(panels, &[1, 3, 0, 2]);
                let weights = graph.reshape(&weights, shape);
                let weights = graph.float(&weights);
                let (input, scales) = match self {
                    Self::Int8Blocks => (
                        rounded_in_blocks(graph, input, shape),
                        by_block(graph, scales),
                    ),
                    _ => (rounded(graph, input), (*scales).clone()),
                };
                let weights = graph.mul(&weights, &scales);
                let weights = graph.node("Flatten", &[&weights], vec![integer("axis", -1)]);
                (graph.matmul(&input, &weights), bias)
            }
            _ => unreachable!("callers have these constants"),
        };
        graph.add(&product, bias)
    }
}

/// Adds the product of an input and the adapters of each token's task. `down` and `up` have a row per task and number
/// between both; `mask` has a row for no task, and then one per task, which keeps the task's own numbers. `shape` is the
/// number of tasks, and of numbers per task.
pub fn adapted(
    graph: &mut Graph,
    [base, input, tasks, up, mask, shape, down]: [&Value; 7],
) -> Value {
    let down = graph.transpose(down, &[1, 0]);
    let numbers = graph.matmul(input, &down);
    adapted_rows(graph, [base, &numbers, tasks, up, mask, shape])
}

/// Like [`adapted`], from rows with the numbers of all tasks, and zeros behind them.
pub fn adapted_rows(graph: &mut Graph, [base, numbers, tasks, up, mask, _]: [&Value; 6]) -> Value {
    let mask = graph.gather(mask, tasks);
    let numbers = graph.mul(numbers, &mask);
    let product = graph.matmul(&numbers, up);
    graph.add(base, &product)
}

/// A gated activation with limits (gpt-oss): the halves `g` and `u` become `(u + 1) × g × sigmoid(alpha × g)`, with `g` at most
/// `limit`, and `u` from `-limit` to `limit`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LimitedGate {
    /// Factor in the sigmoid.
    pub alpha: f32,
    /// Limit for both halves.
    pub limit: f32,
}

impl LimitedGate {
    /// Activates the halves of each row.
    pub fn write(self, graph: &mut Graph, rows: &Value) -> Value {
        let Self { alpha, limit } = self;
        let [gate, other] = graph.split(rows);
        let [most, least, one] = [
            ("gate_limit", limit),
            ("gate_least", -limit),
            ("one_float", 1.0),
        ]
        .map(|(name, value)| graph.scalar(name, value));
        let gate = graph.min(&gate, &most);
        let gate = graph.microsoft("QuickGelu", &[&gate], vec![float("alpha", alpha)]);
        let other = graph.node("Clip", &[&other, &least, &most], vec![]);
        let other = graph.add(&other, &one);
        graph.mul(&other, &gate)
    }
}

/// How experts are computed.
#[derive(Clone, Copy)]
pub struct ExpertForm {
    /// Number of experts.
    pub count: usize,
    /// Experts per token.
    pub top: usize,
    /// Between an expert's layers; GELU without it.
    pub gate: Option<LimitedGate>,
    /// How the weights of an expert's two layers are stored.
    pub layers: [Storage; 2],
}

/// The weight of each expert for each token, 0 for all but the `top` largest: by a softmax over all experts, or, with a `bias`
/// for their logits, over the chosen ones.
pub fn expert_gates(
    graph: &mut Graph,
    [input, router]: [&Value; 2],
    bias: Option<&Value>,
    top: usize,
) -> Value {
    let mut logits = graph.matmul(input, router);
    if let Some(bias) = bias {
        logits = graph.add(&logits, bias);
    }
    let count = graph.integers(&format!("top_{top}"), &[top as i64]);
    let largest = graph.largest(&logits, &count);
    let last = graph.last_axis();
    let least = graph.reduce_keeping("ReduceMin", &[&largest, &last]);
    let is_kept = graph.node("GreaterOrEqual", &[&logits, &least], vec![]);
    if bias.is_some() {
        let lowest = graph.scalar("lowest", f32::MIN);
        let kept = graph.choose(&is_kept, &logits, &lowest);
        return graph.softmax(&kept);
    }
    let is_kept = graph.float(&is_kept);
    let weights = graph.softmax(&logits);
    graph.mul(&weights, &is_kept)
}

/// Tokens on their way through experts, each of which reads only those whose gate is not 0.
pub struct RoutedTokens {
    /// Of the experts' input and output.
    shape: Value,
    /// All texts' tokens, with 1 as the first axis.
    tokens: Value,
    gates: Value,
    sum: Value,
}

/// An expert's tokens.
pub struct ExpertTokens {
    /// Their vectors, with 1 as the first axis.
    pub tokens: Value,
    places: Value,
    weights: Value,
}

impl RoutedTokens {
    /// Begins with a bias, whose width is the tokens'.
    pub fn new(graph: &mut Graph, [input, gates, bias]: [&Value; 3]) -> Self {
        let (zero, flat) = (graph.zero(), graph.integers("all_tokens", &[1, -1, 0]));
        let tokens = graph.reshape(input, &flat);
        let rows = graph.squeeze(&tokens, &zero);
        let rows = graph.shape(&rows);
        Self {
            shape: graph.shape(input),
            gates: graph.reshape(gates, &flat),
            sum: graph.expand(bias, &rows),
            tokens,
        }
    }

    /// The tokens that an expert reads.
    pub fn of(&self, graph: &mut Graph, expert: usize) -> ExpertTokens {
        let (zero, one) = (graph.zero(), graph.one());
        let expert = graph.integers(&format!("expert_{expert}"), &[expert as i64]);
        let gate = graph.gather_along(&self.gates, &expert, -1);
        let places = graph.node("NonZero", &[&gate], vec![]);
        // The places on the second axis.
        let places = graph.gather_along(&places, &one, 0);
        let places = graph.squeeze(&places, &zero);
        let weights = graph.gather_along(&gate, &places, 1);
        // One more token, with a weight of 0: some operators do not compute empty matrices.
        let places = graph.concat(&[&places, &zero], 0);
        let no_weight = graph.floats("no_weight", &[1, 1, 1], &[0.0]);
        let weights = graph.concat(&[&weights, &no_weight], 1);
        let tokens = graph.gather_along(&self.tokens, &places, 1);
        ExpertTokens {
            tokens,
            places,
            weights,
        }
    }

    /// Adds an expert's results.
    pub fn add(&mut self, graph: &mut Graph, expert: &ExpertTokens, results: &Value) {
        let (zero, one) = (graph.zero(), graph.one());
        let product = graph.mul(results, &expert.weights);
        let product = graph.squeeze(&product, &zero);
        let places = graph.unsqueeze(&expert.places, &one);
        let inputs = [&self.sum, &places, &product];
        self.sum = graph.node("ScatterND", &inputs, vec![string("reduction", "add")]);
    }

    /// The sum.
    pub fn finish(self, graph: &mut Graph) -> Value {
        graph.reshape(&self.sum, &self.shape)
    }
}

/// A feed-forward part with experts: its input, router, bias and shape, with a gate its two numbers, and for each expert the
/// constants of two layers. The bias is the router's in a form with a gate, and the part's in one without.
pub fn experts(graph: &mut Graph, form: ExpertForm, inputs: &[&Value]) -> Value {
    let [input, router, bias, _, constants @ ..] = inputs else {
        unreachable!("the caller has these")
    };
    let (of_router, bias) = match form.gate {
        None => (None, (*bias).clone()),
        Some(_) => (Some(*bias), graph.floats("no_bias", &[1], &[0.0])),
    };
    let constants = &constants[usize::from(form.gate.is_some())..];
    let gates = expert_gates(graph, [input, router], of_router, form.top);
    let [raise, lower] = form.layers;
    let mut routed = RoutedTokens::new(graph, [input, &gates, &bias]);
    let of_each = constants.len() / form.count;
    for (expert, constants) in constants.chunks(of_each).enumerate() {
        let own = routed.of(graph, expert);
        let (of_raise, of_lower) = constants.split_at(of_each / 2);
        let raised = raise.linear(graph, &own.tokens, of_raise);
        let raised = match form.gate {
            None => graph.microsoft("Gelu", &[&raised], vec![]),
            Some(gate) => gate.write(graph, &raised),
        };
        let lowered = lower.linear(graph, &raised, of_lower);
        routed.add(graph, &own, &lowered);
    }
    routed.finish(graph)
}

/// Rounds each token's values in each block; `shape` begins with the number of blocks and their size.
fn rounded_in_blocks(graph: &mut Graph, input: &Value, shape: &Value) -> Value {
    let [zero, two] = [0, 2].map(|place| graph.integers(&format!("place_{place}"), &[place]));
    let (rows, flat) = (
        graph.integers("rows", &[0, 0]),
        graph.integers("flat_rows", &[0, 0, -1]),
    );
    let blocks = graph.node("Slice", &[shape, &zero, &two], vec![]);
    let blocks = graph.concat(&[&rows, &blocks], 0);
    let input = graph.reshape(input, &blocks);
    let input = rounded(graph, &input);
    graph.reshape(&input, &flat)
}

/// Rounds each row's values to 256 steps from its minimum to its maximum, zero included.
fn rounded(graph: &mut Graph, rows: &Value) -> Value {
    let last = graph.last_axis();
    // Avoids division by zero for all-zero rows.
    let [zero, steps, smallest] = [
        ("zero_float", 0.0),
        ("steps", 255.0),
        ("smallest", f32::MIN_POSITIVE),
    ]
    .map(|(name, value)| graph.scalar(name, value));
    let [least, most] = [("ReduceMin", "Min"), ("ReduceMax", "Max")].map(|(reduce, limit)| {
        let found = graph.reduce_keeping(reduce, &[rows, &last]);
        graph.node(limit, &[&found, &zero], vec![])
    });
    let span = graph.sub(&most, &least);
    let scale = graph.div(&span, &steps);
    let divisor = graph.max(&scale, &smallest);
    let shifted = graph.sub(rows, &least);
    let shifted = graph.div(&shifted, &divisor);
    let integers = graph.round(&shifted);
    let shifted = graph.mul(&integers, &scale);
    graph.add(&shifted, &least)
}

/// A value per panel, block and lane, ordered by block and output.
fn by_block(graph: &mut Graph, values: &Value) -> Value {
    let values = graph.transpose(values, &[1, 0, 2]);
    let shape = graph.integers("by_block", &[0, 1, -1]);
    graph.reshape(&values, &shape)
}

/// Per-column maximum over a text's tokens; `f32::MIN` without tokens.
pub fn largest_of_tokens(graph: &mut Graph, [tokens, mask]: [&Value; 2]) -> Value {
    let mask = graph.float(mask);
    let two = graph.integers("mask_axis", &[2]);
    let mask = graph.unsqueeze(&mask, &two);
    let lowest = graph.scalar("lowest", f32::MIN);
    let one = graph.scalar("one_float", 1.0);
    let is_padding = graph.sub(&one, &mask);
    let penalty = graph.mul(&is_padding, &lowest);
    let tokens = graph.add(tokens, &penalty);
    let axis = graph.integers("token_axis", &[1]);
    graph.reduce("ReduceMax", &[&tokens, &axis])
}

/// A linear layer's per-output maximum over a text's tokens, from its input, the mask, the layer's constants, and the
/// number of outputs without padding.
pub fn largest_outputs(graph: &mut Graph, storage: Storage, inputs: &[&Value]) -> Value {
    let [input, mask, constants @ .., width] = inputs else {
        unreachable!("the caller has these")
    };
    let outputs = storage.linear(graph, input, constants);
    let (zero, last) = (graph.integers("first_output", &[0]), graph.last_axis());
    let outputs = graph.slice(&outputs, &zero, width, &last);
    largest_of_tokens(graph, [&outputs, mask])
}
