//! Runs encoder-decoder graphs: what the encoder gives and the decoder keeps stays with the runtime from step to
//! step; only token ids go in, and only scores come out.

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    thread,
};

use async_trait::async_trait;
use ort::{
    session::SessionInputValue,
    value::{DynValue, TensorRef},
};
use tokio::sync::oneshot;

use super::{
    Graph, Runtime, Session,
    bindings::{DecoderBindings, DecoderInput, EncoderInput},
    row_permutation::RowPermutation,
    values::{gather, gather_in_place, integers, zeros},
};
use crate::{
    backend::{
        Deadline, Signature,
        seq2seq::{DecodeFn, Decoder, Logits, Seq2SeqBackend, SourceBatch},
    },
    error::{Error, Result},
    telemetry,
};

/// An encoder and a decoder, served by a row of threads that share their sessions.
///
/// - Works wait in one queue and go to the thread that is free first.
/// - The queue forgets works whose caller has gone or whose deadline has passed.
/// - Dropping this ends the threads once the queue is empty.
#[derive(Debug)]
pub struct OnnxSeq2Seq {
    concurrency: NonZeroUsize,
    vocabulary: Option<usize>,
    encoder: Signature,
    decoder: Signature,
    jobs: flume::Sender<Job>,
}

/// What threads are for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parallelism {
    /// All work on one step: for large models, whose weights are read at every step, however few rows there are.
    WithinStep(NonZeroUsize),
    /// Each works on a source of its own: for models that are small, or whose sources have no batch in common.
    AcrossSources(NonZeroUsize),
}

/// The sessions, and what goes where.
#[derive(Debug)]
struct Model {
    encoder: Session,
    decoder: Session,
    bindings: DecoderBindings,
}

struct Job {
    sources: SourceBatch,
    deadline: Deadline,
    work: DecodeFn,
    reply: oneshot::Sender<Result<()>>,
}

impl OnnxSeq2Seq {
    /// Loads the graphs of an encoder and a decoder, which are refused where they do not fit together.
    pub fn open(
        runtime: Runtime,
        [encoder, decoder]: [impl Into<Graph>; 2],
        parallel: Parallelism,
    ) -> Result<Self> {
        let (concurrency, threads) = match parallel {
            Parallelism::WithinStep(threads) => (NonZeroUsize::MIN, threads),
            Parallelism::AcrossSources(concurrency) => (concurrency, NonZeroUsize::MIN),
        };
        let encoder = Session::open(runtime, encoder, threads)?;
        let decoder = Session::open(runtime, decoder, threads)?;
        let bindings = DecoderBindings::new(encoder.signature(), decoder.signature())?;
        let signatures = (encoder.signature().clone(), decoder.signature().clone());
        let vocabulary = bindings.vocabulary;
        let model = Arc::new(Model { encoder, decoder, bindings });
        let (jobs, queue) = flume::unbounded::<Job>();
        for number in 0..concurrency.get() {
            let (model, queue) = (Arc::clone(&model), queue.clone());
            thread::Builder::new()
                .name(format!("sequences-{number}"))
                .spawn(move || queue.iter().for_each(|job| job.run(&model)))
                .map_err(Error::io("cannot start a thread for an ONNX session"))?;
        }
        Ok(Self { concurrency, vocabulary, encoder: signatures.0, decoder: signatures.1, jobs })
    }

    /// The inputs and outputs of the encoder and of the decoder.
    pub fn signatures(&self) -> [&Signature; 2] {
        [&self.encoder, &self.decoder]
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

    async fn decode(&self, sources: SourceBatch, deadline: Deadline, work: DecodeFn) -> Result<()> {
        let stopped = || Error::inference("the threads of the ONNX session have stopped");
        telemetry::ran("onnx");
        let (reply, answer) = oneshot::channel();
        self.jobs.send(Job { sources, deadline, work, reply }).map_err(|_| stopped())?;
        deadline.bound(async { answer.await.unwrap_or_else(|_| Err(stopped())) }).await
    }
}

impl Job {
    fn run(self, model: &Model) {
        let Self { sources, deadline, work, reply } = self;
        if reply.is_closed() {
            return;
        }
        let outcome = if deadline.has_passed() {
            Err(deadline.exceeded())
        } else {
            let is_wanted = || !reply.is_closed();
            let run = AssertUnwindSafe(|| work(&mut OnnxDecoder::new(model, sources, &is_wanted)?));
            catch_unwind(run).unwrap_or_else(|_| Err(Error::inference("the model's run panicked")))
        };
        // A caller that has gone wants no answer.
        let _ = reply.send(outcome);
    }
}

/// The decoder of sources that are encoded.
struct OnnxDecoder<'a> {
    model: &'a Model,
    shortlist: Option<Vec<i64>>,
    /// The encoder's mask, a row for each of the decoder's.
    mask: DynValue,
    /// What the encoder gave, rows as the decoder's where it has rows.
    encoded: Vec<DynValue>,
    /// What the decoder keeps, in the order of its states.
    states: Vec<DynValue>,
    /// The scores of the last step.
    logits: Option<DynValue>,
    /// The source of each row.
    owners: Vec<usize>,
    steps: i64,
    /// Whether somebody still waits for the targets.
    is_wanted: &'a dyn Fn() -> bool,
}

impl<'a> OnnxDecoder<'a> {
    /// Runs the encoder.
    fn new(model: &'a Model, sources: SourceBatch, is_wanted: &'a dyn Fn() -> bool) -> Result<Self> {
        let SourceBatch { rows, pad, shortlist } = sources;
        if shortlist.is_some() != model.bindings.takes_shortlist {
            return Err(Error::inference(
                "expected a shortlist where the encoder takes one, and none where not",
            ));
        }
        let longest = rows.iter().map(Vec::len).max().unwrap_or(0);
        let shape = [rows.len(), longest];
        let padded = |fill: i64, value: fn(i64) -> i64| {
            let row = |row: &Vec<i64>| {
                let filler = std::iter::repeat_n(fill, longest - row.len());
                row.iter().copied().map(value).chain(filler).collect::<Vec<_>>()
            };
            integers(&shape, rows.iter().flat_map(row).collect())
        };
        let (ids, mask) = (padded(pad, |id| id)?, padded(0, |_| 1)?);
        let columns = shortlist.as_ref().map(|list| integers(&[list.len()], list.clone())).transpose()?;
        let inputs = model.bindings.encoder.iter().filter_map(|input| match input {
            EncoderInput::Ids => Some(&ids),
            EncoderInput::Mask => Some(&mask),
            EncoderInput::Shortlist => columns.as_ref(),
        });
        let inputs: Vec<SessionInputValue<'_>> = inputs.map(SessionInputValue::from).collect();
        let encoded = model.encoder.run_values(&inputs)?;
        let states = model.bindings.states.iter().map(|state| zeros(&state.spec, rows.len()));
        let states = states.collect::<Result<_>>()?;
        let owners = (0..rows.len()).collect();
        Ok(Self { model, shortlist, mask, encoded, states, logits: None, owners, steps: 0, is_wanted })
    }

    /// Tokens as the graph knows them: what is chosen from a shortlist is a place in it.
    fn ids(&self, tokens: &[i64]) -> Result<Vec<i64>> {
        let Some(shortlist) = &self.shortlist else { return Ok(tokens.to_vec()) };
        let id = |token: &i64| match usize::try_from(*token) {
            Ok(place) => shortlist.get(place).copied(),
            // The start of a model that begins with no token.
            Err(_) => Some(*token),
        };
        let ids = tokens.iter().map(id).collect::<Option<_>>();
        ids.ok_or_else(|| Error::inference("a token is not in the shortlist"))
    }
}

impl Decoder for OnnxDecoder<'_> {
    fn step(&mut self, tokens: &[i64]) -> Result<Logits<'_>> {
        if !(self.is_wanted)() {
            return Err(Error::inference("nobody waits for the text any more"));
        }
        let failed = |error| Error::inference_because("the decoder's scores cannot be read", error);
        let (ids, position) = (self.ids(tokens)?, [self.steps]);
        let ids = TensorRef::from_array_view(([ids.len(), 1], ids.as_slice())).map_err(failed)?;
        let position = TensorRef::from_array_view(([1_usize], position.as_slice())).map_err(failed)?;
        let mut states = self.states.iter();
        let inputs = self.model.bindings.decoder.iter().filter_map(|input| match input {
            DecoderInput::Ids => Some(SessionInputValue::from(ids.view())),
            DecoderInput::Mask => Some(SessionInputValue::from(&self.mask)),
            DecoderInput::Position => Some(SessionInputValue::from(position.view())),
            DecoderInput::Encoded(output) => self.encoded.get(*output).map(SessionInputValue::from),
            DecoderInput::State => states.next().map(SessionInputValue::from),
        });
        let inputs: Vec<SessionInputValue<'_>> = inputs.collect();
        let outputs = self.model.decoder.run_values(&inputs)?;
        drop(inputs);
        let mut outputs: Vec<Option<DynValue>> = outputs.into_iter().map(Some).collect();
        let mut take = |output: usize| {
            outputs.get_mut(output).and_then(Option::take).ok_or_else(|| {
                Error::inference(format!("expected an output {output} of the decoder, but found none"))
            })
        };
        for (state, wire) in self.states.iter_mut().zip(&self.model.bindings.states) {
            *state = take(wire.output)?;
        }
        let logits = self.logits.insert(take(self.model.bindings.logits)?);
        self.steps += 1;
        let (shape, values) = logits.try_extract_tensor_mut::<f32>().map_err(failed)?;
        let width = shape.last().map_or(0, |side| *side as usize);
        Ok(Logits { values, width })
    }

    fn reorder(&mut self, rows: &[usize]) -> Result<()> {
        let moves = RowPermutation::new(rows);
        for state in &mut self.states {
            if rows.len() == self.owners.len() {
                gather_in_place(state, rows, &moves)?;
            } else {
                *state = gather(state, rows)?;
            }
        }
        let owner = |row: &usize| self.owners.get(*row).copied();
        let owners: Option<Vec<usize>> = rows.iter().map(owner).collect();
        let owners = owners.ok_or_else(|| {
            Error::inference(format!("expected rows below {}, but found others", self.owners.len()))
        })?;
        // What comes from the source is the same for all of its rows, whichever goes where.
        if owners != self.owners {
            self.mask = gather(&self.mask, rows)?;
            for output in &self.model.bindings.by_row {
                self.encoded[*output] = gather(&self.encoded[*output], rows)?;
            }
            self.owners = owners;
        }
        Ok(())
    }
}
