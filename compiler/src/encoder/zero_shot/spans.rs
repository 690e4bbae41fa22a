//! GLiNER's head: a score for each word span and label, or word scores (`word_scores.rs`). Labels are in front of the text,
//! or another model computes their vectors. GLiClass's head (`text_scores.rs`) has the text as its only word; GLiNER2's
//! (`gliner2_head.rs`) has other layers on labels.
//!
//! A span has two layers on the vectors of its first and last word, a label has two layers on its marker's vector, and
//! their product is the logit. The last span layer is multiplied into the labels, which are fewer: a span then costs
//! the sum of two vectors, for its first and last word, and a product with each label.

use kivu_engine::{kernel::LANES, program::WORD_SCORES};

use super::{
    gliner2_head::{CountedSpans, label_layers, label_logits},
    span_layers::{apply_two, numbered, numbers_of_markers, span_layers, span_logits, two_layers},
    text_scores::{Pairs, TextHead, pair_layers},
    word_scores::{self, WordLayers, listed},
};
use crate::{
    onnx::{GraphBuilder, Value, any, data_type, fixed, integer, layers::Layers, string},
    quantize::transpose,
};
use kivu::{Error, Result, backend::LABEL_VECTORS};

/// Input with the number of the word that begins at each token, as in GLiNER's exports.
const WORDS: &str = "words_mask";
/// The output.
pub const SPAN_LOGITS: &str = "logits";

/// The units that a head scores for each label.
#[derive(Clone, Copy, Debug)]
pub enum Scored {
    /// Spans of at most this many words.
    Spans(usize),
    /// Words.
    Words,
    /// The text.
    Text(TextHead),
    /// Spans, after the number of entities was predicted (GLiNER2).
    CountedSpans(CountedSpans),
    /// The label itself (GLiNER2).
    Labels,
}

/// A head for spans, words or texts.
#[derive(Clone, Copy, Debug)]
pub struct SpanHead {
    /// Width of the encoder's vectors.
    pub encoder_width: usize,
    /// Width of the head's vectors; a layer projects to it if it differs.
    pub width: usize,
    pub scored: Scored,
    /// Number of LSTM layers between encoder and spans.
    pub recurrent_layers: usize,
    /// Token id before each label; `None` if another model reads the labels.
    pub marker: Option<u32>,
    /// Maximum number of tokens, and therefore of words and labels.
    pub max_tokens: usize,
}

impl SpanHead {
    /// Whether the native engine has the layers.
    pub fn suits_native_engine(&self) -> bool {
        let suits = match self.scored {
            Scored::Spans(_) | Scored::Words | Scored::CountedSpans(_) | Scored::Labels => true,
            Scored::Text(head) => head.hidden.is_multiple_of(LANES),
        };
        suits && self.width.is_multiple_of(LANES)
    }

    /// Writes logits by word and label: for the spans that begin with the word, by word count, or for the word as the
    /// first, the last and any word of an entity; or by label for the text. Logits for spans that end beyond the text have
    /// no meaning.
    pub fn write(&self, layers: &mut Layers<'_>, ids: &Value, tokens: &Value) -> Result<()> {
        let Self {
            encoder_width,
            width,
            ..
        } = *self;
        let words = layers.graph.input(WORDS, &["batch", "sequence"]);
        let mut tokens = tokens.clone();
        if width != encoder_width {
            tokens = projected(
                layers,
                "token_rep_layer.projection",
                &tokens,
                [encoder_width, width],
            )?;
        }
        let inputs = [&tokens, &words];
        let mut vectors = layers
            .graph
            .function("Words", inputs, |graph, [tokens, words]| {
                numbered(graph, tokens, words, self.max_tokens).0
            });
        for layer in 0..self.recurrent_layers {
            vectors = self.recur(layers, layer, &vectors, &words)?;
        }
        let inputs = [&tokens, ids, &vectors, &words];
        let (logits, count) = match self.scored {
            Scored::Spans(longest) => (self.spans(layers, inputs, longest)?, longest),
            Scored::Words => (self.word_scores(layers, inputs)?, WORD_SCORES),
            Scored::Text(head) => (self.text_scores(layers, inputs, head)?, 1),
            Scored::CountedSpans(spans) => {
                let marker = self
                    .marker
                    .ok_or_else(|| Error::model("expected labels in front of the text"))?;
                let marker = layers.graph.integers("label_marker", &[i64::from(marker)]);
                (
                    spans.write(layers, [self.width, self.max_tokens], inputs, &marker)?,
                    spans.longest,
                )
            }
            Scored::Labels => (self.label_scores(layers, inputs)?, 1),
        };
        let words = if matches!(self.scored, Scored::Labels) {
            fixed(1)
        } else {
            any("words")
        };
        let axes = [any("batch"), words, any("labels"), fixed(count)];
        layers.graph.output(&logits, SPAN_LOGITS, axes);
        Ok(())
    }

    fn spans(&self, layers: &mut Layers<'_>, inputs: [&Value; 4], longest: usize) -> Result<Value> {
        let mut constants = vec![layers.graph.integers("longest_span", &[longest as i64])];
        constants.extend(two_layers(layers, "prompt_rep_layer", self.width)?);
        let name = "span_rep_layer.span_rep_layer";
        constants.extend(span_layers(layers, name, self.width)?);
        let sizes = [longest, self.max_tokens];
        Ok(self.call(
            layers,
            "Spans",
            inputs,
            &constants,
            |graph, inputs, constants| {
                let ([labels, vectors, words], (prompt, spans)) =
                    (inputs, constants[1..].split_at(4));
                let labels = apply_two(graph, labels, listed(prompt));
                span_logits(graph, [&labels, vectors, words], spans, sizes)
            },
        ))
    }

    fn label_scores(&self, layers: &mut Layers<'_>, inputs: [&Value; 4]) -> Result<Value> {
        let constants = label_layers(layers, self.width)?;
        let body = |graph: &mut _, [labels, ..]: [&Value; 3], constants: &[&Value]| {
            label_logits(graph, labels, listed(constants))
        };
        Ok(self.call(layers, "LabelScores", inputs, &constants, body))
    }

    fn word_scores(&self, layers: &mut Layers<'_>, inputs: [&Value; 4]) -> Result<Value> {
        let constants = word_scores::constants(layers, WordLayers::OF_WORDS, self.width)?;
        let body = |graph: &mut _, [labels, vectors, _]: [&Value; 3], constants: &[&Value]| {
            word_scores::logits(graph, [vectors, labels], listed(constants))
        };
        Ok(self.call(layers, "WordScores", inputs, &constants, body))
    }

    fn text_scores(
        &self,
        layers: &mut Layers<'_>,
        inputs: [&Value; 4],
        head: TextHead,
    ) -> Result<Value> {
        let mut constants = Vec::from(head.constants(layers, self.width)?);
        match head.pairs {
            Pairs::Dot => {}
            Pairs::Products => {
                let form = WordLayers::OF_TEXTS;
                constants.extend(word_scores::constants(layers, form, self.width)?);
            }
            Pairs::Layers => constants.extend(pair_layers(layers, self.width)?),
        }
        let body = |graph: &mut _, vectors: [&Value; 3], constants: &[&Value]| {
            head.logits(graph, vectors, constants)
        };
        Ok(self.call(layers, "TextScores", inputs, &constants, body))
    }

    /// Calls the function `name`, whose body gets label vectors, word vectors and word numbers: with the labels in front of
    /// the text, or as `Labelled…` with label vectors as a graph input.
    fn call(
        &self,
        layers: &mut Layers<'_>,
        name: &str,
        [tokens, ids, vectors, words]: [&Value; 4],
        constants: &[Value],
        body: impl Fn(&mut GraphBuilder, [&Value; 3], &[&Value]) -> Value,
    ) -> Value {
        let Some(marker) = self.marker else {
            let axes = [any("batch"), any("labels"), fixed(self.width)];
            let labels = layers.graph.float_input(LABEL_VECTORS, axes);
            let own = [&labels, vectors, words];
            let inputs: Vec<&Value> = own.into_iter().chain(constants).collect();
            let name = format!("Labelled{name}");
            return layers.graph.function_of(&name, &inputs, |graph, inputs| {
                body(graph, listed(inputs), &inputs[3..])
            });
        };
        let marker = layers.graph.integers("label_marker", &[i64::from(marker)]);
        let own = [tokens, ids, vectors, words, &marker];
        let inputs: Vec<&Value> = own.into_iter().chain(constants).collect();
        layers.graph.function_of(name, &inputs, |graph, inputs| {
            let [tokens, ids, vectors, words, marker] = listed(inputs);
            let labels = self.labels(graph, [tokens, ids, marker]);
            body(graph, [&labels, vectors, words], &inputs[5..])
        })
    }

    /// Label vectors: the marker tokens'.
    fn labels(&self, graph: &mut GraphBuilder, [tokens, ids, marker]: [&Value; 3]) -> Value {
        let markers = numbers_of_markers(graph, ids, marker);
        numbered(graph, tokens, &markers, self.max_tokens).0
    }

    /// Bidirectional LSTM layer over each text's words.
    fn recur(
        &self,
        layers: &mut Layers<'_>,
        layer: usize,
        vectors: &Value,
        words: &Value,
    ) -> Result<Value> {
        let (width, half) = (self.width, self.width / 2);
        // PyTorch has the gates input, forget, cell, output; ONNX input, output, forget, cell.
        let reordered = |values: &[f32]| {
            let gate = values.len() / 4;
            [0, 3, 1, 2]
                .map(|place| &values[place * gate..][..gate])
                .concat()
        };
        let both = |kind: &str, shape: &[usize]| {
            let mut values = Vec::new();
            for direction in ["", "_reverse"] {
                let name = format!("rnn.lstm.{kind}_l{layer}{direction}");
                values.extend(reordered(&layers.weights.take_whole(&name, shape)?.values));
            }
            Ok::<_, Error>(values)
        };
        let inputs = both("weight_ih", &[4 * half, width])?;
        let states = both("weight_hh", &[4 * half, half])?;
        let biases = [both("bias_ih", &[4 * half])?, both("bias_hh", &[4 * half])?];
        let name = |part: &str| format!("rnn.{layer}.{part}");
        let graph = &mut layers.graph;
        let states: Vec<f32> = states
            .chunks_exact(4 * half * half)
            .flat_map(|states| transpose(states, half))
            .collect();
        let biases: Vec<f32> = biases[0]
            .iter()
            .zip(&biases[1])
            .map(|(left, right)| left + right)
            .collect();
        let inputs = graph.floats(
            &name("inputs"),
            &[width, 8 * half],
            &transpose(&inputs, width),
        );
        let states = graph.floats(&name("states"), &[2, half, 4 * half], &states);
        let biases = graph.floats(&name("biases"), &[8 * half], &biases);
        let inputs = [vectors, words, &inputs, &states, &biases];
        Ok(graph.function("WordLstm", inputs, |graph, inputs| {
            word_lstm(graph, half, inputs)
        }))
    }
}

/// A bidirectional LSTM layer whose constants have a column per gate and state, for both directions together.
fn word_lstm(
    graph: &mut GraphBuilder,
    half: usize,
    [vectors, words, inputs, states, biases]: [&Value; 5],
) -> Value {
    let gates = 4 * half as i64;
    let by_direction = graph.integers("by_direction", &[2, gates, -1]);
    let two_rows = graph.integers("two_rows", &[2, gates]);
    let inputs = graph.transpose(inputs, &[1, 0]);
    let inputs = graph.reshape(&inputs, &by_direction);
    let states = graph.transpose(states, &[0, 2, 1]);
    let biases = graph.reshape(biases, &two_rows);
    // The operator has separate biases for inputs and states.
    let zeros = graph.sub(&biases, &biases);
    let biases = graph.concat(&[&biases, &zeros], 1);
    let one = graph.one();
    let lengths = graph.reduce("ReduceMax", &[words, &one]);
    let lengths = graph.cast(&lengths, data_type::INT32);
    let steps = graph.transpose(vectors, &[1, 0, 2]);
    let attributes = vec![
        string("direction", "bidirectional"),
        integer("hidden_size", half as i64),
    ];
    let both = graph.node(
        "LSTM",
        &[&steps, &inputs, &states, &biases, &lengths],
        attributes,
    );
    let both = graph.transpose(&both, &[2, 0, 1, 3]);
    let joined = graph.integers("joined_directions", &[0, 0, -1]);
    graph.reshape(&both, &joined)
}

/// Linear layer. All head layers are in fp32 at all precisions: their errors go straight into the scores.
fn projected(
    layers: &mut Layers<'_>,
    name: &str,
    input: &Value,
    shape: [usize; 2],
) -> Result<Value> {
    let [weight, bias] = ["weight", "bias"].map(|part| format!("{name}.{part}"));
    layers.linear_in_fp32(&weight, Some(&bias), input, shape)
}
