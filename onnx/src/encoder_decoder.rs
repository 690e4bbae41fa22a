//! A sequence-to-sequence backend that runs an encoder graph and a decoder graph.
//!
//! Encoder outputs and the decoder's KV cache stay in ONNX Runtime's memory between steps; only token ids and
//! scores cross the boundary.

use std::num::NonZeroUsize;

use async_trait::async_trait;
use ort::{
    session::SessionInputValue,
    value::{DynValue, TensorRef},
};

use super::{
    bindings::{DecoderBindings, DecoderInput, EncoderInput},
    library::Runtime,
    row_permutation::RowPermutation,
    session::{Graph, Session},
    values::{gather, permute, tensor, zeros},
    workers::Workers,
};
use kivu_base::{Error, Result};
use kivu_core::backend::{
    Deadline, Signature,
    seq2seq::{DecodeFn, Decoder, Logits, Seq2SeqBackend, SourceBatch},
};

/// Runs an encoder and a decoder on threads that share their sessions.
#[derive(Debug)]
pub struct OnnxSeq2Seq {
    concurrency: NonZeroUsize,
    vocabulary: Option<usize>,
    signatures: [Signature; 2],
    workers: Workers<Model>,
}

/// How the work is divided among threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// All threads run the same step: for large models, whose weights are read at every step, for any number of rows.
    WithinStep(NonZeroUsize),
    /// Each thread decodes its own sources: for small models, and for sources that cannot share a batch.
    AcrossSources(NonZeroUsize),
}

#[derive(Debug)]
struct Model {
    encoder: Session,
    decoder: Session,
    bindings: DecoderBindings,
}

impl OnnxSeq2Seq {
    /// Loads an encoder and a decoder; fails if they do not fit together.
    pub fn open(
        runtime: Runtime,
        [encoder, decoder]: [impl Into<Graph>; 2],
        parallelism: Parallelism,
    ) -> Result<Self> {
        let (concurrency, threads) = match parallelism {
            Parallelism::WithinStep(threads) => (NonZeroUsize::MIN, threads),
            Parallelism::AcrossSources(threads) => (threads, NonZeroUsize::MIN),
        };
        let encoder = Session::open(runtime, encoder, threads)?;
        let decoder = Session::open(runtime, decoder, threads)?;
        let bindings = DecoderBindings::new(encoder.signature(), decoder.signature())?;
        Ok(Self {
            concurrency,
            vocabulary: bindings.vocabulary,
            signatures: [encoder.signature().clone(), decoder.signature().clone()],
            workers: Workers::start(
                "seq2seq",
                concurrency,
                Model {
                    encoder,
                    decoder,
                    bindings,
                },
            )?,
        })
    }

    /// Encoder and decoder signatures.
    pub fn signatures(&self) -> &[Signature; 2] {
        &self.signatures
    }
}

#[async_trait]
impl Seq2SeqBackend for OnnxSeq2Seq {
    fn concurrency(&self) -> NonZeroUsize {
        self.concurrency
    }

    fn vocabulary(&self) -> Option<usize> {
        self.vocabulary
    }

    async fn decode(
        &self,
        sources: SourceBatch,
        deadline: Deadline,
        decode: DecodeFn,
    ) -> Result<()> {
        let run = move |model: &Model, is_abandoned: &dyn Fn() -> bool| {
            decode(&mut OnnxDecoder::new(model, sources, is_abandoned)?)
        };
        self.workers.run(deadline, run).await
    }
}

struct OnnxDecoder<'a> {
    model: &'a Model,
    shortlist: Option<Vec<i64>>,
    /// The encoder's attention mask, with the decoder's rows.
    mask: DynValue,
    /// Encoder outputs. Outputs with rows have the decoder's rows.
    encoded: Vec<DynValue>,
    /// KV cache, in binding order.
    states: Vec<DynValue>,
    /// Scores from the last step.
    logits: Option<DynValue>,
    /// Source index per row.
    sources: Vec<usize>,
    steps: i64,
    is_abandoned: &'a dyn Fn() -> bool,
}

impl<'a> OnnxDecoder<'a> {
    /// Creates a decoder; runs the encoder on `sources` first.
    fn new(
        model: &'a Model,
        sources: SourceBatch,
        is_abandoned: &'a dyn Fn() -> bool,
    ) -> Result<Self> {
        let SourceBatch {
            rows,
            pad,
            shortlist,
        } = sources;
        let Model {
            encoder, bindings, ..
        } = model;
        if shortlist.is_some() != bindings.takes_shortlist {
            return Err(Error::inference(
                "expected a shortlist if and only if the encoder has an input for it",
            ));
        }
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let padded = |fill: i64, value: fn(i64) -> i64| {
            let cells = rows.iter().flat_map(|row| {
                let filler = std::iter::repeat_n(fill, longest - row.len());
                row.iter().copied().map(value).chain(filler)
            });
            tensor(vec![rows.len(), longest], cells.collect())
        };
        let (ids, mask) = (padded(pad, |id| id)?, padded(0, |_| 1)?);
        let columns = shortlist
            .as_ref()
            .map(|list| tensor(vec![list.len()], list.clone()))
            .transpose()?;
        let inputs = bindings.encoder.iter().filter_map(|input| match input {
            EncoderInput::Ids => Some(&ids),
            EncoderInput::Mask => Some(&mask),
            EncoderInput::Shortlist => columns.as_ref(),
        });
        let inputs: Vec<SessionInputValue<'_>> = inputs.map(SessionInputValue::from).collect();
        let encoded = encoder.run_values(&inputs)?;
        let states = bindings
            .states
            .iter()
            .map(|state| zeros(&state.spec, rows.len()));
        let states = states.collect::<Result<_>>()?;
        let sources = (0..rows.len()).collect();
        Ok(Self {
            model,
            shortlist,
            mask,
            encoded,
            states,
            logits: None,
            sources,
            steps: 0,
            is_abandoned,
        })
    }

    /// The graph's token ids. With a shortlist, `tokens` are indices into it.
    fn ids(&self, tokens: &[i64]) -> Result<Vec<i64>> {
        let Some(shortlist) = &self.shortlist else {
            return Ok(tokens.to_vec());
        };
        let id = |token: &i64| match usize::try_from(*token) {
            Ok(index) => shortlist.get(index).copied(),
            // -1 starts a model that has no start token.
            Err(_) => Some(*token),
        };
        let ids = tokens.iter().map(id).collect::<Option<_>>();
        ids.ok_or_else(|| Error::inference("a token is not in the shortlist"))
    }
}

impl Decoder for OnnxDecoder<'_> {
    fn step(&mut self, tokens: &[i64]) -> Result<Logits<'_>> {
        if (self.is_abandoned)() {
            return Err(Error::inference("the request was cancelled"));
        }
        let Model {
            decoder, bindings, ..
        } = self.model;
        let failed = |error| Error::inference_because("cannot read the decoder's scores", error);
        let (ids, position) = (self.ids(tokens)?, [self.steps]);
        let ids = TensorRef::from_array_view(([ids.len(), 1], ids.as_slice())).map_err(failed)?;
        let position =
            TensorRef::from_array_view(([1_usize], position.as_slice())).map_err(failed)?;
        let mut states = self.states.iter();
        let inputs = bindings.decoder.iter().filter_map(|input| match input {
            DecoderInput::Ids => Some(SessionInputValue::from(ids.view())),
            DecoderInput::Mask => Some(SessionInputValue::from(&self.mask)),
            DecoderInput::Position => Some(SessionInputValue::from(position.view())),
            DecoderInput::Encoded(output) => self.encoded.get(*output).map(SessionInputValue::from),
            DecoderInput::State => states.next().map(SessionInputValue::from),
        });
        let inputs: Vec<SessionInputValue<'_>> = inputs.collect();
        let outputs = decoder.run_values(&inputs)?;
        drop(inputs);
        let mut outputs: Vec<Option<DynValue>> = outputs.into_iter().map(Some).collect();
        let mut take = |output: usize| {
            outputs
                .get_mut(output)
                .and_then(Option::take)
                .ok_or_else(|| {
                    Error::inference(format!(
                        "expected output {output} of the decoder, but found none"
                    ))
                })
        };
        for (value, state) in self.states.iter_mut().zip(&bindings.states) {
            *value = take(state.output)?;
        }
        let logits = self.logits.insert(take(bindings.logits)?);
        self.steps += 1;
        let (shape, values) = logits.try_extract_tensor_mut::<f32>().map_err(failed)?;
        let width = shape.last().map_or(0, |side| *side as usize);
        Ok(Logits { values, width })
    }

    fn reorder(&mut self, rows: &[usize]) -> Result<()> {
        let permutation = RowPermutation::new(rows);
        for state in &mut self.states {
            if rows.len() == self.sources.len() {
                permute(state, rows, &permutation)?;
            } else {
                *state = gather(state, rows)?;
            }
        }
        let sources = rows
            .iter()
            .map(|row| self.sources.get(*row).copied())
            .collect::<Option<Vec<_>>>();
        let sources = sources.ok_or_else(|| {
            Error::inference(format!(
                "expected rows below {}, but found higher ones",
                self.sources.len()
            ))
        })?;
        // Encoder outputs are the same for all rows from one source.
        if sources != self.sources {
            self.mask = gather(&self.mask, rows)?;
            for output in &self.model.bindings.encoded_rows {
                self.encoded[*output] = gather(&self.encoded[*output], rows)?;
            }
            self.sources = sources;
        }
        Ok(())
    }
}
