//! GLiNER's, GLiNER2's and GLiClass's heads, see `compiler/src/encoder/zero_shot/spans.rs`.

use kivu_engine::{
    array::Array,
    kernel::{COLUMNS, LANES},
    program::{
        CountedLabels, Dense, Experts, LabelLayers, LabelTransformer, LabelTransformerLayer, Lstm,
        Mixing, Norm, PairLayers, PairScorer, Per, SchemaTokens, Scorer, SpanHead, SpanScorer,
        TextScorer, Value, ValueId, WORD_SCORES, WordScorer,
    },
};

use super::{Meaning, Operation, Reader, unsupported};
use kivu_base::{
    error::{Error, Result},
    onnx_proto::NodeProto,
};

/// Maximum number of words in a span, as in builds.
const MAX_LENGTHS: usize = 256;
/// Attention heads, and the number added to variances, in GLiNER2's transformer over labels.
const TRANSFORMER_HEADS: usize = 4;
const TRANSFORMER_EPSILON: f32 = 1e-5;

impl<'a> Reader<'a> {
    /// Vectors of the tokens that begin words.
    pub fn words(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [tokens, words] = &node.input[..] else {
            return Err(refuse());
        };
        self.by_row(tokens)?;
        let input = self.whole(tokens)?;
        let Value { per, width, .. } = self.values[input];
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        match is_numbers && per == Per::Token && width.is_multiple_of(LANES) {
            true => Ok(Meaning::Words {
                input: Some(input),
                layers: 0,
            }),
            false => Err(refuse()),
        }
    }

    /// A recurrent layer; layers follow each other.
    pub fn word_lstm(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let [vectors, words, gates, states, biases] = &node.input[..] else {
            return Err(refuse());
        };
        let Meaning::Words {
            input: Some(input),
            layers,
        } = self.meaning(vectors)?
        else {
            return Err(refuse());
        };
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        let width = self.values[input].width;
        if !is_numbers || layers != self.lstms.len() {
            return Err(refuse());
        }
        let gates = self.dense_layer([gates, biases], [width, 4 * width])?;
        self.lstms.push(Lstm {
            gates,
            states: self.array(states, 2 * width * width)?,
        });
        Ok(Meaning::Words {
            input: Some(input),
            layers: layers + 1,
        })
    }

    /// Scores of spans by length.
    pub fn spans(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (head, constants) = self.head(node)?;
        let Ok::<&[String; 18], _>(constants) = constants.try_into() else {
            return Err(refuse());
        };
        let [longest, p0, p1, p2, p3, spans @ ..] = constants;
        let width = head.width;
        let labels = LabelLayers::Plain([
            self.dense_layer([p0, p1], [width, 4 * width])?,
            self.dense_layer([p2, p3], [4 * width, width])?,
        ]);
        let scorer = self
            .span_scorer(longest, labels, spans, width)?
            .ok_or_else(refuse)?;
        let longest = scorer.longest;
        Ok(self.scores(head, Scorer::Spans(scorer), longest))
    }

    /// The layers on spans; `None` if the maximum span length is none.
    fn span_scorer(
        &self,
        longest: &str,
        labels: LabelLayers,
        constants: &[String; 13],
        width: usize,
    ) -> Result<Option<SpanScorer>> {
        let [l0, l1, s0, s1, s2, s3, s4, s5, e0, e1, e2, e3, e4] = constants;
        let longest = self
            .scalar(longest)
            .and_then(|longest| usize::try_from(longest).ok());
        let Some(longest) = longest.filter(|longest| (1..=MAX_LENGTHS).contains(longest)) else {
            return Ok(None);
        };
        let (up, down, across) = ([width, 4 * width], [4 * width, width], [width, 4 * width]);
        Ok(Some(SpanScorer {
            longest,
            labels,
            factors: [
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
        }))
    }

    /// Scores of spans by length, in texts with instances by count.
    pub fn counted_spans(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (head, constants) = self.head(node)?;
        let [
            longest,
            tokens,
            c0,
            c1,
            c2,
            c3,
            steps,
            g0,
            g1,
            k0,
            k1,
            k2,
            k3,
            others @ ..,
        ] = constants
        else {
            return Err(refuse());
        };
        let Some((spans, mixing)) = others.split_first_chunk::<13>() else {
            return Err(refuse());
        };
        let tokens = self.integers(tokens).unwrap_or_default();
        let tokens: Option<Vec<u32>> = tokens
            .iter()
            .map(|token| u32::try_from(*token).ok())
            .collect();
        let Some(&[schema, field, end, class]) = tokens.as_deref() else {
            return Err(refuse());
        };
        let schemas = SchemaTokens {
            schema,
            fields: [field, end],
            class,
        };
        let (width, (_, counts), (count, _)) = (head.width, self.shape(c2)?, self.shape(steps)?);
        let labels = CountedLabels {
            counts: [
                self.dense_layer([c0, c1], [width, 2 * width])?,
                self.dense_layer([c2, c3], [2 * width, counts])?,
            ],
            steps: self.array(steps, count.saturating_mul(3 * width))?,
            gates: self.dense_layer([g0, g1], [width, 3 * width])?,
            mixing: match node.op_type.as_str() {
                "JoinedSpans" => self.joined(mixing, width)?,
                "AttendedSpans" => self.label_transformer(mixing, width)?,
                _ => self.experts(mixing, width)?,
            }
            .ok_or_else(refuse)?,
            classes: [
                self.dense_layer([k0, k1], [width, 2 * width])?,
                padded(&self.dense_layer([k2, k3], [2 * width, 1])?),
            ],
        };
        let labels = LabelLayers::Counted(Box::new(labels));
        let scorer = self
            .span_scorer(longest, labels, spans, width)?
            .ok_or_else(refuse)?;
        let (head, longest) = (
            HeadInputs {
                schemas: Some(schemas),
                ..head
            },
            scorer.longest,
        );
        Ok(self.scores(head, Scorer::Spans(scorer), longest))
    }

    /// Two layers on state and label; `None` with another number of constants.
    fn joined(&self, constants: &[String], width: usize) -> Result<Option<Mixing>> {
        let [w0, b0, w1, b1] = constants else {
            return Ok(None);
        };
        let (joined, wide) = (2 * width, 4 * width);
        Ok(Some(Mixing::Joined([
            self.dense_layer([w0, b0], [joined, wide])?,
            self.dense_layer([w1, b1], [wide, width])?,
        ])))
    }

    fn experts(&self, constants: &[String], width: usize) -> Result<Option<Mixing>> {
        let [r0, r1, r2, r3, experts @ ..] = constants else {
            return Ok(None);
        };
        let (experts, rest) = experts.as_chunks::<4>();
        if experts.is_empty() || !rest.is_empty() {
            return Ok(None);
        }
        let layers = |[w0, b0, w1, b1]: &[String; 4]| {
            let (up, down) = ([width, 2 * width], [2 * width, width]);
            Ok::<_, Error>([
                self.dense_layer([w0, b0], up)?,
                self.dense_layer([w1, b1], down)?,
            ])
        };
        Ok(Some(Mixing::Experts(Box::new(Experts {
            router: [
                self.dense_layer([r0, r1], [width, width])?,
                self.dense_layer([r2, r3], [width, experts.len()])?,
            ],
            experts: experts.iter().map(layers).collect::<Result<_>>()?,
        }))))
    }

    fn label_transformer(&self, constants: &[String], width: usize) -> Result<Option<Mixing>> {
        let Some((input, others)) = constants.split_first_chunk::<2>() else {
            return Ok(None);
        };
        let Some((layers, output)) = others.split_last_chunk::<6>() else {
            return Ok(None);
        };
        let (_, inner) = self.shape(&input[0])?;
        let (layers, rest) = layers.as_chunks::<12>();
        if !rest.is_empty() || inner == 0 || !inner.is_multiple_of(TRANSFORMER_HEADS * LANES) {
            return Ok(None);
        }
        let [o0, o1, o2, o3, o4, o5] = output;
        Ok(Some(Mixing::Attention(Box::new(LabelTransformer {
            heads: TRANSFORMER_HEADS,
            input: self.dense_layer([&input[0], &input[1]], [width, inner])?,
            layers: layers
                .iter()
                .map(|layer| self.label_transformer_layer(layer, inner))
                .collect::<Result<_>>()?,
            output: [
                self.dense_layer([o0, o1], [inner + width, width])?,
                self.dense_layer([o2, o3], [width, width])?,
                self.dense_layer([o4, o5], [width, width])?,
            ],
        }))))
    }

    fn label_transformer_layer(
        &self,
        constants: &[String; 12],
        inner: usize,
    ) -> Result<LabelTransformerLayer> {
        let [p0, p1, o0, o1, n0, n1, u0, u1, d0, d1, n2, n3] = constants;
        let norm = |gain: &str, bias: &str| {
            let [gain, bias] = [gain, bias].map(|name| self.array(name, inner / LANES));
            Ok::<_, Error>(Norm {
                centers: true,
                scales: true,
                gain: gain?,
                bias: bias?,
                epsilon: TRANSFORMER_EPSILON,
            })
        };
        Ok(LabelTransformerLayer {
            projection: self.dense_layer([p0, p1], [inner, 3 * inner])?,
            output: self.dense_layer([o0, o1], [inner, inner])?,
            norms: [norm(n0, n1)?, norm(n2, n3)?],
            feed_forward: [
                self.dense_layer([u0, u1], [inner, 2 * inner])?,
                self.dense_layer([d0, d1], [2 * inner, inner])?,
            ],
        })
    }

    /// Scores of labels.
    pub fn label_scores(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let (head, constants) = self.head(node)?;
        let [w0, b0, w1, b1] = constants else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        let width = head.width;
        let layers = [
            self.dense_layer([w0, b0], [width, 2 * width])?,
            padded(&self.dense_layer([w1, b1], [2 * width, 1])?),
        ];
        Ok(self.scores(head, Scorer::Labels(layers), 1))
    }

    /// Scores of words as the first, the last and any word of an entity.
    pub fn word_scores(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let (head, constants) = self.head(node)?;
        let Ok::<&[String; 14], _>(constants) = constants.try_into() else {
            return Err(unsupported(&format!("the inputs of `{}`", node.name)));
        };
        let scorer = Scorer::Words(self.word_scorer(constants, head.width, WORD_SCORES)?);
        Ok(self.scores(head, scorer, WORD_SCORES))
    }

    fn word_scorer(
        &self,
        constants: &[String; 14],
        width: usize,
        count: usize,
    ) -> Result<WordScorer> {
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
    pub fn text_scores(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || unsupported(&format!("the inputs of `{}`", node.name));
        let (head, constants) = self.head(node)?;
        let [form, scale, t0, t1, t2, t3, l0, l1, l2, l3, others @ ..] = constants else {
            return Err(refuse());
        };
        let Some(&[is_mean, is_normalized]) = self.integers(form).as_deref() else {
            return Err(refuse());
        };
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
                let Ok::<&[String; 14], _>(constants) = others.try_into() else {
                    return Err(refuse());
                };
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
                let marker = self
                    .scalar(marker)
                    .and_then(|marker| u32::try_from(marker).ok());
                let marker = marker.ok_or_else(refuse)?;
                let Meaning::Ids = self.meaning(ids)? else {
                    return Err(refuse());
                };
                (
                    vectors,
                    words,
                    Some((marker, self.whole(tokens)?)),
                    constants,
                )
            }
            [labels, vectors, words, constants @ ..] => {
                let Meaning::Labels = self.meaning(labels)? else {
                    return Err(refuse());
                };
                (vectors, words, None, constants)
            }
            _ => return Err(refuse()),
        };
        let Meaning::Words {
            input: Some(input),
            layers: count,
        } = self.meaning(vectors)?
        else {
            return Err(refuse());
        };
        let is_numbers = matches!(self.meaning(words)?, Meaning::Words { input: None, .. });
        let is_of_tokens = marker.is_none_or(|(_, tokens)| tokens == input);
        if !is_numbers || !is_of_tokens || count != self.lstms.len() {
            return Err(refuse());
        }
        let marker = marker.map(|(marker, _)| marker);
        Ok((
            HeadInputs {
                input,
                width: self.values[input].width,
                marker,
                schemas: None,
            },
            constants,
        ))
    }

    /// Adds a head with `count` scores per word and label.
    fn scores(&mut self, head: HeadInputs, scorer: Scorer, count: usize) -> Meaning<'a> {
        let HeadInputs {
            input,
            width,
            marker,
            schemas,
        } = head;
        let (layers, out) = (
            std::mem::take(&mut self.lstms),
            self.value(Per::Token, count),
        );
        let head = SpanHead {
            input,
            width,
            marker,
            schemas,
            layers,
            scorer,
            out,
        };
        self.operations.push(Operation::Spans(Box::new(head)));
        Meaning::Spans(out)
    }

    /// A layer in fp32, with a bias unless its name is empty.
    fn dense_layer(
        &self,
        [weights, bias]: [&str; 2],
        [inputs, outputs]: [usize; 2],
    ) -> Result<Dense> {
        let bias = if bias.is_empty() {
            None
        } else {
            Some(self.array(bias, outputs)?)
        };
        let weights = self.array(weights, inputs.saturating_mul(outputs))?;
        Ok(Dense {
            outputs,
            panel: outputs,
            weights,
            bias,
        })
    }
}

/// The inputs of a head.
#[derive(Clone, Copy)]
struct HeadInputs {
    input: ValueId,
    width: usize,
    marker: Option<u32>,
    schemas: Option<SchemaTokens>,
}

/// A layer with zeros after its outputs.
fn padded(layer: &Dense) -> Dense {
    let pad = |values: &[f32]| -> Vec<f32> {
        let rows = values.chunks_exact(layer.outputs);
        rows.flat_map(|row| row.iter().copied().chain([0.0; COLUMNS]).take(COLUMNS))
            .collect()
    };
    Dense {
        outputs: COLUMNS,
        panel: COLUMNS,
        weights: Array::from(pad(&layer.weights)),
        bias: layer.bias.as_ref().map(|bias| Array::from(pad(bias))),
    }
}
