//! GLiNER's head: a score for each word span and each label in front of the text.
//!
//! A span has two layers on the vectors of its first and last word, a label has two layers on its marker's vector, and
//! their product is the logit. The last span layer is multiplied into the labels, which are fewer: a span then costs
//! the sum of two vectors, for its first and last word, and a product with each label.

use crate::{
    layers::Layers,
    onnx::{Value, any, data_type, fixed, integer, integers, string},
    quantize::transpose,
};
use kivu::error::Result;

/// Input with the number of the word that begins at each token, as in GLiNER's exports.
const WORDS: &str = "words_mask";
/// The output.
pub(super) const SPAN_LOGITS: &str = "logits";

/// A head for spans, according to `gliner_config.json`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SpanHead {
    /// Width of the encoder's vectors.
    pub(super) encoder_width: usize,
    /// Width of the head's vectors; a layer projects to it if it differs.
    pub(super) width: usize,
    /// Maximum number of words in a span.
    pub(super) longest: usize,
    /// Number of LSTM layers between encoder and spans.
    pub(super) recurrent_layers: usize,
    /// Token id before each label.
    pub(super) marker: u32,
    /// Maximum number of tokens, and therefore of words and labels.
    pub(super) max_tokens: usize,
}

impl SpanHead {
    /// Writes span logits by first word, label and word count. Logits for spans that end beyond the text have no
    /// meaning.
    pub(super) fn write(&self, layers: &mut Layers<'_>, ids: &Value, tokens: &Value) -> Result<()> {
        let Self { encoder_width, width, longest, .. } = *self;
        let words = layers.graph.input(WORDS, &["batch", "sequence"]);
        let mut tokens = tokens.clone();
        if width != encoder_width {
            tokens = linear(layers, "token_rep_layer.projection", &tokens, [encoder_width, width])?;
        }
        let markers = self.numbers_of_markers(layers, ids);
        let (labels, _) = self.numbered(layers, &tokens, &markers);
        let (mut vectors, indexes) = self.numbered(layers, &tokens, &words);
        for layer in 0..self.recurrent_layers {
            vectors = self.recur(layers, layer, &vectors, &words)?;
        }
        let (labels, biases) = self.labels(layers, &labels)?;
        let [starts, ends] = self.borders(layers, &vectors)?;
        let graph = &mut layers.graph;
        let last_axis = graph.integers("last_axis", &[-1]);
        let last = graph.node("ReduceMax", &[&indexes], vec![integer("keepdims", 1)]);
        let mut of_lengths = Vec::new();
        for length in 0..longest {
            let offset = graph.integers(&format!("span_{length}"), &[length as i64]);
            let ends_at = graph.node("Add", &[&indexes, &offset], vec![]);
            let ends_at = graph.node("Min", &[&ends_at, &last], vec![]);
            let ends = graph.node("Gather", &[&ends, &ends_at], vec![integer("axis", 1)]);
            let spans = graph.node("Add", &[&starts, &ends], vec![]);
            let spans = graph.node("Relu", &[&spans], vec![]);
            let products = graph.node("MatMul", &[&spans, &labels], vec![]);
            let logits = graph.node("Add", &[&products, &biases], vec![]);
            of_lengths.push(graph.node("Unsqueeze", &[&logits, &last_axis], vec![]));
        }
        let logits = graph.node("Concat", &of_lengths.iter().collect::<Vec<_>>(), vec![integer("axis", 3)]);
        graph.output(&logits, SPAN_LOGITS, [any("batch"), any("words"), any("labels"), fixed(longest)]);
        Ok(())
    }

    /// For each marker token, its label's number, from 1 on; 0 for all other tokens.
    fn numbers_of_markers(&self, layers: &mut Layers<'_>, ids: &Value) -> Value {
        let graph = &mut layers.graph;
        let marker = graph.integers("label_marker", &[i64::from(self.marker)]);
        let one = graph.integers("one", &[1]);
        let is_marker = graph.node("Equal", &[ids, &marker], vec![]);
        let is_marker = graph.cast(&is_marker, data_type::INT64);
        let counted = graph.node("CumSum", &[&is_marker, &one], vec![]);
        graph.node("Mul", &[&counted, &is_marker], vec![])
    }

    /// Selects the vectors of tokens numbered from 1 on, zeros where no token in a text has the number; also returns
    /// the indexes from 0 on.
    fn numbered(&self, layers: &mut Layers<'_>, tokens: &Value, numbers: &Value) -> (Value, Value) {
        let counting: Vec<i64> = (0..self.max_tokens as i64).collect();
        let graph = &mut layers.graph;
        let [zero, one] = [("zero", 0), ("one", 1)].map(|(name, value)| graph.integers(name, &[value]));
        let counting = graph.integers("span_indexes", &counting);
        let flat = graph.integers("flat_list", &[-1]);
        let count = graph.node("ReduceMax", &[numbers], vec![integer("keepdims", 1)]);
        let count = graph.node("Reshape", &[&count, &flat], vec![]);
        let indexes = graph.node("Slice", &[&counting, &zero, &count, &zero], vec![]);
        let expected = graph.node("Add", &[&indexes, &one], vec![]);
        let expected = graph.node("Unsqueeze", &[&expected, &one], vec![]);
        let numbers = graph.node("Unsqueeze", &[numbers, &one], vec![]);
        let is_token = graph.node("Equal", &[&numbers, &expected], vec![]);
        let is_token = graph.cast(&is_token, data_type::FLOAT);
        (graph.node("MatMul", &[&is_token, tokens], vec![]), indexes)
    }

    /// Bidirectional LSTM layer over each text's words.
    fn recur(&self, layers: &mut Layers<'_>, layer: usize, vectors: &Value, words: &Value) -> Result<Value> {
        let (width, half) = (self.width, self.width / 2);
        let directions = ["", "_reverse"];
        // PyTorch has the gates input, forget, cell, output; ONNX input, output, forget, cell.
        let reordered = |values: &[f32]| {
            let gate = values.len() / 4;
            [0, 3, 1, 2].map(|place| &values[place * gate..][..gate]).concat()
        };
        let read = |kind: &str, shape: &[usize], direction: &str| {
            let name = format!("rnn.lstm.{kind}_l{layer}{direction}");
            Ok(reordered(&layers.weights.take_whole(&name, shape)?.values))
        };
        let (mut inputs, mut states, mut biases) = (Vec::new(), Vec::new(), Vec::new());
        for direction in directions {
            inputs.extend(read("weight_ih", &[4 * half, width], direction)?);
            states.extend(read("weight_hh", &[4 * half, half], direction)?);
            biases.extend(read("bias_ih", &[4 * half], direction)?);
            biases.extend(read("bias_hh", &[4 * half], direction)?);
        }
        let graph = &mut layers.graph;
        let name = |part: &str| format!("rnn.{layer}.{part}");
        let inputs = graph.floats(&name("inputs"), &[2, 4 * half, width], &inputs);
        let states = graph.floats(&name("states"), &[2, 4 * half, half], &states);
        let biases = graph.floats(&name("biases"), &[2, 8 * half], &biases);
        let one = graph.integers("one", &[1]);
        let lengths = graph.node("ReduceMax", &[words, &one], vec![integer("keepdims", 0)]);
        let lengths = graph.cast(&lengths, data_type::INT32);
        let steps = graph.node("Transpose", &[vectors], vec![integers("perm", &[1, 0, 2])]);
        let attributes = vec![string("direction", "bidirectional"), integer("hidden_size", half as i64)];
        let both = graph.node("LSTM", &[&steps, &inputs, &states, &biases, &lengths], attributes);
        let both = graph.node("Transpose", &[&both], vec![integers("perm", &[2, 0, 1, 3])]);
        let joined = graph.integers("joined_directions", &[0, 0, -1]);
        Ok(graph.node("Reshape", &[&both, &joined], vec![]))
    }

    /// Label vectors, as columns, and the constant parts of their logits.
    fn labels(&self, layers: &mut Layers<'_>, markers: &Value) -> Result<(Value, Value)> {
        let (width, wide) = (self.width, 4 * self.width);
        let labels = two_layers(layers, "prompt_rep_layer", markers, width)?;
        let name = "span_rep_layer.span_rep_layer.out_project.3";
        let weight = layers.weights.take_whole(&format!("{name}.weight"), &[width, wide])?;
        let bias = layers.weights.take_whole(&format!("{name}.bias"), &[width])?;
        let graph = &mut layers.graph;
        let weight = graph.floats(&format!("{name}.weight"), &[width, wide], &weight.values);
        let bias = graph.floats(&format!("{name}.bias"), &[width, 1], &bias.values);
        let [columns, biases] = [&weight, &bias].map(|factor| {
            let product = graph.node("MatMul", &[&labels, factor], vec![]);
            graph.node("Transpose", &[&product], vec![integers("perm", &[0, 2, 1])])
        });
        Ok((columns, biases))
    }

    /// Each word's part in the vectors of spans that begin and that end with it.
    fn borders(&self, layers: &mut Layers<'_>, words: &Value) -> Result<[Value; 2]> {
        let (width, wide) = (self.width, 4 * self.width);
        let name = "span_rep_layer.span_rep_layer.out_project.0";
        let weight = layers.weights.take_whole(&format!("{name}.weight"), &[wide, 2 * width])?;
        let halves = [0, width].map(|from| {
            let rows = weight.values.chunks_exact(2 * width).flat_map(|row| &row[from..][..width]);
            transpose(&rows.copied().collect::<Vec<f32>>(), width)
        });
        let bias = layers.weights.take_whole(&format!("{name}.bias"), &[wide])?;
        let bias = layers.graph.floats(&format!("{name}.bias"), &[wide], &bias.values);
        let mut parts = Vec::new();
        for (side, half) in ["start", "end"].into_iter().zip(&halves) {
            let of_side = format!("span_rep_layer.span_rep_layer.project_{side}");
            let part = two_layers(layers, &of_side, words, width)?;
            let graph = &mut layers.graph;
            let part = graph.node("Relu", &[&part], vec![]);
            let half = graph.floats(&format!("{name}.{side}"), &[width, wide], half);
            parts.push(graph.node("MatMul", &[&part, &half], vec![]));
        }
        let start = layers.graph.node("Add", &[&parts[0], &bias], vec![]);
        Ok([start, parts.swap_remove(1)])
    }
}

/// Linear layer. All head layers are in fp32 at all precisions: their errors go straight into the scores.
fn linear(layers: &mut Layers<'_>, name: &str, input: &Value, shape: [usize; 2]) -> Result<Value> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    layers.linear_in_fp32((&weight, Some(&bias)), input, shape)
}

/// Two layers; the first is four times as wide.
fn two_layers(layers: &mut Layers<'_>, name: &str, input: &Value, width: usize) -> Result<Value> {
    let wide = linear(layers, &format!("{name}.0"), input, [width, 4 * width])?;
    let wide = layers.graph.node("Relu", &[&wide], vec![]);
    linear(layers, &format!("{name}.3"), &wide, [4 * width, width])
}
