//! GLiNER's head, see `compiler/src/encoder/spans.rs`.

use kivu_engine::{
    kernel::LANES,
    program::{Dense, Lstm, Per, SpanHead, Value},
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

    pub(super) fn spans(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [tokens, ids, vectors, words, marker, longest, layers @ ..] = &node.input[..] else {
            return Err(refuse());
        };
        let Ok::<&[String; 17], _>(layers) = layers.try_into() else { return Err(refuse()) };
        let Meaning::Words { input: Some(input), layers: count } = self.meaning(vectors)? else {
            return Err(refuse());
        };
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        let is_of_tokens = self.whole(tokens)? == input && matches!(self.meaning(ids)?, Meaning::Ids);
        if !is_numbers || !is_of_tokens || count != self.lstms.len() {
            return Err(refuse());
        }
        let marker = self.scalar(marker).and_then(|marker| u32::try_from(marker).ok()).ok_or_else(refuse)?;
        let longest = self.scalar(longest).and_then(|longest| usize::try_from(longest).ok());
        let longest = longest.filter(|longest| (1..=MAX_LENGTHS).contains(longest)).ok_or_else(refuse)?;
        let width = self.values[input].width;
        let (up, down, across) = ([width, 4 * width], [4 * width, width], [width, 4 * width]);
        let [p0, p1, p2, p3, l0, l1, s0, s1, s2, s3, s4, s5, e0, e1, e2, e3, e4] = layers;
        let head = SpanHead {
            input,
            width,
            marker,
            longest,
            layers: std::mem::take(&mut self.lstms),
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
            out: self.value(Per::Token, longest),
        };
        let out = head.out;
        self.operations.push(Operation::Spans(Box::new(head)));
        Ok(Meaning::Spans(out))
    }

    /// A layer in fp32, with a bias unless its name is empty.
    fn dense_layer(&self, [weights, bias]: [&str; 2], [inputs, outputs]: [usize; 2]) -> Result<Dense> {
        let bias = if bias.is_empty() { None } else { Some(self.array(bias, outputs)?) };
        let weights = self.array(weights, inputs.saturating_mul(outputs))?;
        Ok(Dense { outputs, weights, bias })
    }
}
