//! GLiNER's and GLiClass's heads, see `compiler/src/encoder/spans.rs`.

use kivu_engine::{
    array::Array,
    kernel::{COLUMNS, LANES},
    program::{
        Dense, Lstm, PairLayers, PairScorer, Per, Scorer, SpanHead, SpanScorer, TextScorer, Value, ValueId,
        WORD_SCORES, WordScorer,
    },
};

use super::{Meaning, Operation, Reader, unsupported};
use crate::{error::Result, onnx_proto::NodeProto};

/// Maximum number of words in a span, as in builds.
const MAX_LENGTHS: usize = 256;

impl<'a> Reader<'a> {
    /// Vectors of the tokens that begin words.
    pub(super) fn words(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [tokens, words] = &node.input[..] else { return Err(refuse()) };
        self.by_row(tokens)?;
        let input = self.whole(tokens)?;
        let Value { per, width, .. } = self.values[input];
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        match is_numbers && per == Per::Token && width.is_multiple_of(LANES) {
            true => Ok(Meaning::Words { input: Some(input), layers: 0 }),
            false => Err(refuse()),
        }
    }

    /// A recurrent layer; layers follow each other.
    pub(super) fn word_lstm(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [vectors, words, gates, states, biases] = &node.input[..] else { return Err(refuse()) };
        let Meaning::Words { input: Some(input), layers } = self.meaning(vectors)? else {
            return Err(refuse());
        };
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        let width = self.values[input].width;
        if !is_numbers || layers != self.lstms.len() {
            return Err(refuse());
        }
        let gates = self.dense_layer([gates, biases], [width, 4 * width])?;
        self.lstms.push(Lstm { gates, states: self.array(states, 2 * width * width)? });
        Ok(Meaning::Words { input: Some(input), layers: layers + 1 })
    }

    /// Scores of spans by length.
    pub(super) fn spans(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (head, constants) = self.head(node)?;
        let Ok::<&[String; 18], _>(constants) = constants.try_into() else { return Err(refuse()) };
        let [longest, p0, p1, p2, p3, l0, l1, s0, s1, s2, s3, s4, s5, e0, e1, e2, e3, e4] = constants;
        let longest = self.scalar(longest).and_then(|longest| usize::try_from(longest).ok());
        let longest = longest.filter(|longest| (1..=MAX_LENGTHS).contains(longest)).ok_or_else(refuse)?;
        let width = head.width;
        let (up, down, across) = ([width, 4 * width], [4 * width, width], [width, 4 * width]);
        let scorer = Scorer::Spans(SpanScorer {
            longest,
            labels: [
                self.dense_layer([p0, p1], up)?,
                self.dense_layer([p2, p3], down)?,
                self.dense_layer([l0, ""], across)?,
                self.dense_layer([l1, ""], [width, 1])?,
            ],
            sides: [
                [
                    self.dense_layer([s0, s1], up)?,
                    self.dense_layer([s2, s3], down)?,
                    self.dense_layer([s4, s5], across)?,
                ],
                [
                    self.dense_layer([e0, e1], up)?,
                    self.dense_layer([e2, e3], down)?,
                    self.dense_layer([e4, ""], across)?,
                ],
            ],
        });
        Ok(self.scores(head, scorer, longest))
    }

    /// Scores of words as the first, the last and any word of an entity.
    pub(super) fn word_scores(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let (head, constants) = self.head(node)?;
        let Ok::<&[String; 14], _>(constants) = constants.try_into() else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        let scorer = Scorer::Words(self.word_scorer(constants, head.width, WORD_SCORES)?);
        Ok(self.scores(head, scorer, WORD_SCORES))
    }

    fn word_scorer(&self, constants: &[String; 14], width: usize, count: usize) -> Result<WordScorer> {
        let [w0, w1, w2, w3, w4, w5, l0, l1, l2, l3, l4, products, s0, s1] = constants;
        let (own, wide) = ([width; 2], [width, 4 * width]);
        Ok(WordScorer {
            count,
            words: [
                self.dense_layer([w0, w1], own)?,
                self.dense_layer([w2, w3], wide)?,
                self.dense_layer([w4, w5], own)?,
            ],
            labels: [
                self.dense_layer([l0, l1], own)?,
                self.dense_layer([l2, ""], wide)?,
                self.dense_layer([l3, l4], own)?,
            ],
            products: self.dense_layer([products, ""], wide)?,
            scores: padded(&self.dense_layer([s0, s1], [4 * width, count])?),
        })
    }

    /// Scores of texts by dot products, or by the layers whose constants follow.
    pub(super) fn text_scores(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (head, constants) = self.head(node)?;
        let [form, scale, t0, t1, t2, t3, l0, l1, l2, l3, others @ ..] = constants else {
            return Err(refuse());
        };
        let Some(&[is_mean, is_normalized]) = self.integers(form).as_deref() else { return Err(refuse()) };
        let width = head.width;
        let layers = |[w0, b0, w1, b1]: [&str; 4]| {
            let (inputs, hidden) = self.shape(w0)?;
            if inputs != width || hidden == 0 || !hidden.is_multiple_of(LANES) {
                return Err(refuse());
            }
            let first = self.dense_layer([w0, b0], [width, hidden])?;
            Ok([first, self.dense_layer([w1, b1], [hidden, width])?])
        };
        let pairs = match others {
            [] => PairScorer::Dot,
            [of_text, bias, of_label, m0, m1, s0, s1] => {
                let ((_, wide), (_, narrow)) = (self.shape(of_text)?, self.shape(m0)?);
                if wide == 0 || narrow == 0 {
                    return Err(refuse());
                }
                PairScorer::Layers(Box::new(PairLayers {
                    text: self.dense_layer([of_text, bias], [width, wide])?,
                    label: self.dense_layer([of_label, ""], [width, wide])?,
                    middle: self.dense_layer([m0, m1], [wide, narrow])?,
                    last: padded(&self.dense_layer([s0, s1], [narrow, 1])?),
                }))
            }
            others => {
                let Ok::<&[String; 14], _>(constants) = others.try_into() else { return Err(refuse()) };
                PairScorer::Products(Box::new(self.word_scorer(constants, width, 1)?))
            }
        };
        let scale: Array<f32> = self.array(scale, 1)?;
        let scorer = TextScorer {
            is_mean: is_mean != 0,
            text: layers([t0, t1, t2, t3])?,
            label: layers([l0, l1, l2, l3])?,
            scale: (is_normalized != 0).then(|| scale[0]),
            pairs,
        };
        Ok(self.scores(head, Scorer::Texts(scorer), 1))
    }

    /// The parts that all heads have, and the node's other constants.
    fn head(&self, node: &'a NodeProto) -> Result<(HeadInputs, &'a [String])> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (vectors, words, marker, constants) = match &node.input[..] {
            [tokens, ids, vectors, words, marker, constants @ ..]
                if !node.op_type.starts_with("Labelled") =>
            {
                let marker = self.scalar(marker).and_then(|marker| u32::try_from(marker).ok());
                let marker = marker.ok_or_else(refuse)?;
                let Meaning::Ids = self.meaning(ids)? else { return Err(refuse()) };
                (vectors, words, Some((marker, self.whole(tokens)?)), constants)
            }
            [labels, vectors, words, constants @ ..] => {
                let Meaning::Labels = self.meaning(labels)? else { return Err(refuse()) };
                (vectors, words, None, constants)
            }
            _ => return Err(refuse()),
        };
        let Meaning::Words { input: Some(input), layers: count } = self.meaning(vectors)? else {
            return Err(refuse());
        };
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        let is_of_tokens = marker.is_none_or(|(_, tokens)| tokens == input);
        if !is_numbers || !is_of_tokens || count != self.lstms.len() {
            return Err(refuse());
        }
        let marker = marker.map(|(marker, _)| marker);
        Ok((HeadInputs { input, width: self.values[input].width, marker }, constants))
    }

    /// Adds a head with `count` scores per word and label.
    fn scores(&mut self, head: HeadInputs, scorer: Scorer, count: usize) -> Meaning<'a> {
        let HeadInputs { input, width, marker } = head;
        let (layers, out) = (std::mem::take(&mut self.lstms), self.value(Per::Token, count));
        let head = SpanHead { input, width, marker, layers, scorer, out };
        self.operations.push(Operation::Spans(Box::new(head)));
        Meaning::Spans(out)
    }

    /// A layer in fp32, with a bias unless its name is empty.
    fn dense_layer(&self, [weights, bias]: [&str; 2], [inputs, outputs]: [usize; 2]) -> Result<Dense> {
        let bias = if bias.is_empty() { None } else { Some(self.array(bias, outputs)?) };
        let weights = self.array(weights, inputs.saturating_mul(outputs))?;
        Ok(Dense { outputs, weights, bias })
    }
}

/// What a head reads.
#[derive(Clone, Copy)]
struct HeadInputs {
    input: ValueId,
    width: usize,
    marker: Option<u32>,
}

/// A layer with zeros after its outputs.
fn padded(layer: &Dense) -> Dense {
    let pad = |values: &[f32]| -> Vec<f32> {
        let rows = values.chunks_exact(layer.outputs);
        rows.flat_map(|row| row.iter().copied().chain([0.0; COLUMNS]).take(COLUMNS)).collect()
    };
    Dense {
        outputs: COLUMNS,
        weights: Array::from(pad(&layer.weights)),
        bias: layer.bias.as_ref().map(|bias| Array::from(pad(bias))),
    }
}
