//! GLiNER's, GLiNER2's and GLiClass's heads, see `compiler/src/encoder/zero_shot/spans.rs`.

use kivu_engine::{
    array::Array,
    floats::Floats,
    kernel::{COLUMNS, LANES},
    program::{
        CountedLabels, Dense, Experts, LabelLayers, LabelTransformer, LabelTransformerLayer, Lstm,
        Mixing, Norm, PairLayers, PairScorer, Per, SchemaTokens, Scorer, SpanHead, SpanScorer,
        TextScorer, ValueId, WORD_SCORES, WordScorer,
    },
};

use super::{Meaning, Operation, Reader, inputs, other_inputs};
use kivu_base::{Error, Result, onnx_proto::NodeProto};

/// Maximum number of words in a span, as in builds.
const MAX_LENGTHS: usize = 256;
/// Attention heads, and the number added to variances, in GLiNER2's transformer over labels.
const TRANSFORMER_HEADS: usize = 4;
const TRANSFORMER_EPSILON: f32 = 1e-5;

impl<'a> Reader<'a> {
    /// Vectors of the tokens that begin words.
    pub fn words(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let [tokens, words] = inputs(node)?;
        let (input, width) = self.tokens(node, tokens)?;
        let is_numbers = self.are_numbers(words)?;
        match is_numbers && width.is_multiple_of(LANES) {
            true => Ok(Meaning::Words {
                input: Some(input),
                layers: 0,
            }),
            false => Err(other_inputs(node)),
        }
    }

    /// A recurrent layer; layers follow each other.
    pub fn word_lstm(&mut self, node: &NodeProto) -> Result<Meaning<'a>> {
        let refuse = || other_inputs(node);
        let [vectors, words, gates, states, biases] = inputs(node)?;
        let Meaning::Words {
            input: Some(input),
            layers,
        } = self.meaning(vectors)?
        else {
            return Err(refuse());
        };
        let is_numbers = self.are_numbers(words)?;
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
    pub fn spans(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let (head, mut constants) = self.head(node)?;
        let width = head.width;
        let longest = constants.longest()?;
        let labels = constants.layers([[width, 4 * width], [4 * width, width]])?;
        let (factors, sides) = constants.span_layers(width)?;
        constants.end()?;
        let scorer = SpanScorer {
            longest,
            labels: LabelLayers::Plain(labels),
            factors,
            sides,
        };
        Ok(self.scores(head, Scorer::Spans(scorer), longest))
    }

    /// Scores of spans by length, in texts with instances by count.
    pub fn counted_spans(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let (mut head, mut constants) = self.head(node)?;
        let (width, wide) = (head.width, 2 * head.width);
        let longest = constants.longest()?;
        let tokens = self.integers(constants.next()?);
        let Some(&[schema, field, end, class]) = tokens.as_deref() else {
            return Err(constants.refusal());
        };
        head.schemas = Some(SchemaTokens {
            schema,
            fields: [field, end],
            class,
        });
        let hidden = constants.layer([width, wide])?;
        let instances = constants.next_outputs()?;
        let counts = [hidden, constants.layer([wide, instances])?];
        let steps = constants.next()?;
        let steps = self.array(steps, self.shape(steps)?.0.saturating_mul(3 * width))?;
        let gates = constants.layer([width, 3 * width])?;
        let classes = constants.label_layers(width)?;
        let (factors, sides) = constants.span_layers(width)?;
        let mixing = match node.op_type.as_str() {
            "JoinedSpans" => {
                Mixing::Joined(constants.layers([[wide, 2 * wide], [2 * wide, width]])?)
            }
            "AttendedSpans" => Mixing::Attention(Box::new(constants.label_transformer(width)?)),
            _ => Mixing::Experts(Box::new(constants.experts(width)?)),
        };
        constants.end()?;
        let labels = LabelLayers::Counted(Box::new(CountedLabels {
            counts,
            steps,
            gates,
            mixing,
            classes,
        }));
        let scorer = SpanScorer {
            longest,
            labels,
            factors,
            sides,
        };
        Ok(self.scores(head, Scorer::Spans(scorer), longest))
    }

    /// Scores of labels.
    pub fn label_scores(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let (head, mut constants) = self.head(node)?;
        let layers = constants.label_layers(head.width)?;
        constants.end()?;
        Ok(self.scores(head, Scorer::Labels(layers), 1))
    }

    /// Scores of words as the first, the last and any word of an entity.
    pub fn word_scores(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let (head, mut constants) = self.head(node)?;
        let scorer = constants.word_scorer(head.width, WORD_SCORES)?;
        constants.end()?;
        Ok(self.scores(head, Scorer::Words(scorer), WORD_SCORES))
    }

    /// Scores of texts by dot products, or by the layers whose constants follow.
    pub fn text_scores(&mut self, node: &'a NodeProto) -> Result<Meaning<'a>> {
        let (head, mut constants) = self.head(node)?;
        let width = head.width;
        let flags: Option<Vec<i64>> = self.integers(constants.next()?);
        let Some(&[is_mean, is_normalized]) = flags.as_deref() else {
            return Err(constants.refusal());
        };
        let scale: Array<f32> = self.array(constants.next()?, 1)?;
        let mut on_vector = || {
            let hidden = constants.next_outputs()?;
            match hidden.is_multiple_of(LANES) {
                true => constants.layers([[width, hidden], [hidden, width]]),
                false => Err(constants.refusal()),
            }
        };
        let (text, label) = (on_vector()?, on_vector()?);
        let pairs = match constants.names.len() {
            0 => PairScorer::Dot,
            7 => {
                let wide = constants.next_outputs()?;
                let text = constants.layer([width, wide])?;
                let label = constants.matrix([width, wide])?;
                let narrow = constants.next_outputs()?;
                let [middle, last] = constants.layers([[wide, narrow], [narrow, 1]])?;
                PairScorer::Layers(Box::new(PairLayers {
                    text,
                    label,
                    middle,
                    last: padded(&last),
                }))
            }
            _ => PairScorer::Products(Box::new(constants.word_scorer(width, 1)?)),
        };
        constants.end()?;
        let scorer = TextScorer {
            is_mean: is_mean != 0,
            text,
            label,
            scale: (is_normalized != 0).then(|| scale[0]),
            pairs,
        };
        Ok(self.scores(head, Scorer::Texts(scorer), 1))
    }

    /// Whether these are the numbers of tokens' words.
    fn are_numbers(&self, words: &str) -> Result<bool> {
        let words = self.meaning(words)?;
        Ok(matches!(words, Meaning::Words { input: None, .. }))
    }

    /// The parts that all heads have, and the node's other constants.
    fn head(&self, node: &'a NodeProto) -> Result<(HeadInputs, Constants<'_, 'a>)> {
        let refuse = || other_inputs(node);
        let (vectors, words, marker, constants) = match &node.input[..] {
            [tokens, ids, vectors, words, marker, constants @ ..]
                if !node.op_type.starts_with("Labelled") =>
            {
                let marker = self.scalar(marker).ok_or_else(refuse)?;
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
        let is_numbers = self.are_numbers(words)?;
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
            Constants {
                reader: self,
                node,
                names: constants,
            },
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
        let bias = self.optional_array(bias, outputs)?;
        let weights = Floats::F32(self.array(weights, inputs.saturating_mul(outputs))?);
        Ok(Dense {
            outputs,
            panel: outputs,
            weights,
            bias,
        })
    }
}

/// A head's constants, from the first to the last.
struct Constants<'r, 'a> {
    reader: &'r Reader<'a>,
    node: &'a NodeProto,
    names: &'a [String],
}

impl<'a> Constants<'_, 'a> {
    fn refusal(&self) -> Error {
        other_inputs(self.node)
    }

    fn next(&mut self) -> Result<&'a str> {
        let (first, others) = self.names.split_first().ok_or_else(|| self.refusal())?;
        self.names = others;
        Ok(first)
    }

    fn end(&self) -> Result<()> {
        match self.names {
            [] => Ok(()),
            _ => Err(self.refusal()),
        }
    }

    /// Outputs of the layer that follows.
    fn next_outputs(&self) -> Result<usize> {
        let name = self.names.first().ok_or_else(|| self.refusal())?;
        match self.reader.shape(name)? {
            (_, 0) => Err(self.refusal()),
            (_, outputs) => Ok(outputs),
        }
    }

    /// A layer with a bias.
    fn layer(&mut self, shape: [usize; 2]) -> Result<Dense> {
        let names = [self.next()?, self.next()?];
        self.reader.dense_layer(names, shape)
    }

    /// A layer without a bias.
    fn matrix(&mut self, shape: [usize; 2]) -> Result<Dense> {
        let name = self.next()?;
        self.reader.dense_layer([name, ""], shape)
    }

    /// Layers with a bias.
    fn layers<const COUNT: usize>(
        &mut self,
        shapes: [[usize; 2]; COUNT],
    ) -> Result<[Dense; COUNT]> {
        let layers = shapes.map(|shape| self.layer(shape));
        let layers: Vec<Dense> = layers.into_iter().collect::<Result<_>>()?;
        layers.try_into().map_err(|_| self.refusal())
    }

    /// Two layers that score a label.
    fn label_layers(&mut self, width: usize) -> Result<[Dense; 2]> {
        let [hidden, last] = self.layers([[width, 2 * width], [2 * width, 1]])?;
        Ok([hidden, padded(&last)])
    }

    /// The maximum number of words in a span.
    fn longest(&mut self) -> Result<usize> {
        let longest = self.reader.scalar(self.next()?);
        longest
            .filter(|longest| (1..=MAX_LENGTHS).contains(longest))
            .ok_or_else(|| self.refusal())
    }

    /// From labels to their factors and biases, and layers on both sides of spans.
    fn span_layers(&mut self, width: usize) -> Result<([Dense; 2], [[Dense; 3]; 2])> {
        let (up, down) = ([width, 4 * width], [4 * width, width]);
        let factors = [self.matrix(up)?, self.matrix([width, 1])?];
        let start = self.layers([up, down, up])?;
        let [first, second] = self.layers([up, down])?;
        Ok((factors, [start, [first, second, self.matrix(up)?]]))
    }

    fn word_scorer(&mut self, width: usize, count: usize) -> Result<WordScorer> {
        let (own, wide) = ([width; 2], [width, 4 * width]);
        Ok(WordScorer {
            count,
            words: self.layers([own, wide, own])?,
            labels: [self.layer(own)?, self.matrix(wide)?, self.layer(own)?],
            products: self.matrix(wide)?,
            scores: padded(&self.layer([4 * width, count])?),
        })
    }

    fn experts(&mut self, width: usize) -> Result<Experts> {
        let hidden = self.layer([width, width])?;
        let count = self.next_outputs()?;
        let router = [hidden, self.layer([width, count])?];
        let layers = |_| self.layers([[width, 2 * width], [2 * width, width]]);
        let experts = (0..count).map(layers).collect::<Result<_>>()?;
        Ok(Experts { router, experts })
    }

    fn label_transformer(&mut self, width: usize) -> Result<LabelTransformer> {
        let inner = self.next_outputs()?;
        if !inner.is_multiple_of(TRANSFORMER_HEADS * LANES) {
            return Err(self.refusal());
        }
        let input = self.layer([width, inner])?;
        let mut layers = Vec::new();
        // Twelve constants a layer, and six of those after them.
        while self.names.len() > 6 {
            let [projection, output] = self.layers([[inner, 3 * inner], [inner, inner]])?;
            let first = self.norm(inner)?;
            let feed_forward = self.layers([[inner, 2 * inner], [2 * inner, inner]])?;
            layers.push(LabelTransformerLayer {
                projection,
                output,
                norms: [first, self.norm(inner)?],
                feed_forward,
            });
        }
        Ok(LabelTransformer {
            heads: TRANSFORMER_HEADS,
            input,
            layers,
            output: self.layers([[inner + width, width], [width, width], [width, width]])?,
        })
    }

    fn norm(&mut self, width: usize) -> Result<Norm> {
        let names = [self.next()?, self.next()?];
        let [gain, bias] = names.map(|name| self.reader.array(name, width / LANES));
        Ok(Norm {
            centers: true,
            scales: true,
            gain: gain?,
            bias: bias?,
            epsilon: TRANSFORMER_EPSILON,
        })
    }
}

/// What a head reads.
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
        weights: pad(layer.weights.in_32_bits()).into(),
        bias: layer.bias.as_ref().map(|bias| Array::from(pad(bias))),
    }
}
