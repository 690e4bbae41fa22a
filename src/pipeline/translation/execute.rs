//! The step from sources to targets, wherever the model runs.

use std::{cmp::Reverse, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};
use tokio::sync::oneshot;

use super::{
    pipeline::{Decoding, Job, TranslationOptions, TranslationPipeline},
    remote::{Asked, RemoteGenerator},
};
use crate::{
    backend::{
        Deadline,
        routing::Location,
        seq2seq::{Decoder, Seq2SeqBackend},
        triton::Fleet,
    },
    error::{Error, Result},
    pipeline::generation::{Generated, GenerationConfig, SourceInfo, generate},
};

/// The most rows of a batch: beams, or texts that are drawn, each count.
const MOST_ROWS: usize = 32;
/// The most tokens that a batch keeps, of sources and targets together: 0.4 GB of a model as large as M2M100-418M.
const MOST_TOKENS: usize = 4096;

/// The targets of some jobs, by their places.
type Written = Vec<(usize, Vec<Generated>)>;

impl TranslationPipeline {
    /// Whether a fleet may run the model.
    pub fn may_run_on_fleet(&self) -> bool {
        self.route.fleet().is_some()
    }

    /// Asks the fleet for its description, and refuses one of another kind; a fleet that does not answer is no
    /// error. No connection is kept: this may run before the runtime that requests run on.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        let Some(fleet) = self.route.fleet() else { return Ok(()) };
        fleet.check_at_start(self.remote.connect(fleet, deadline).await)
    }

    /// Generates the targets of all jobs, in their order. What fails on the fleet runs here, if the model is here.
    pub(super) async fn run(
        &self,
        jobs: &[Job],
        options: &TranslationOptions,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<Generated>>, Location)> {
        let tokens = jobs.iter().map(|job| job.ids.len()).sum();
        let Some(fleet) = self.route.fleet().filter(|_| self.route.choose(tokens) == Location::Remote) else {
            return self.run_here(jobs, options, tokens, deadline).await;
        };
        if self.route.local().is_some() && self.refusal(jobs, options)?.is_some() {
            return self.run_here(jobs, options, tokens, deadline).await;
        }
        let until = self.route.remote_deadline(tokens, deadline);
        let under_way = self.route.begin(Location::Remote, tokens);
        let done = self.run_there(fleet, jobs, options, until).await;
        under_way.finish(done.is_ok());
        match done {
            Ok(written) => Ok((written, Location::Remote)),
            Err(error) if self.can_run_here(deadline) => {
                tracing::warn!(error = error.chain(), "the fleet failed; the request runs here");
                self.run_here(jobs, options, tokens, deadline).await
            }
            Err(error) => Err(error),
        }
    }

    /// Whether a request that came to nothing on the fleet should run here: also one that the fleet cannot be asked
    /// for, which is no fault of the client's where the model is here.
    fn can_run_here(&self, deadline: Deadline) -> bool {
        self.route.local().is_some() && !deadline.has_passed()
    }

    /// Why the model on the fleet cannot do this, as far as is known.
    fn refusal(&self, jobs: &[Job], options: &TranslationOptions) -> Result<Option<Error>> {
        let by_default = self.by_default()?;
        let mut languages: Vec<Option<i64>> = jobs.iter().map(|job| job.first_token).collect();
        languages.dedup();
        for first_token in languages {
            let search = self.search(options, first_token)?;
            let asked = Asked { search: &search, by_default: &by_default, first_token };
            if let Some(error) = self.remote.refusal(asked) {
                return Ok(Some(error));
            }
        }
        Ok(None)
    }

    /// What the model does when nothing else is asked for.
    fn by_default(&self) -> Result<GenerationConfig> {
        let options = TranslationOptions {
            source: None,
            target: None,
            split: None,
            truncate: false,
            clean_up_spaces: false,
            generation: crate::pipeline::generation::GenerationOptions::default(),
            max_sentences: 0,
        };
        self.search(&options, None)
    }

    async fn run_here(
        &self,
        jobs: &[Job],
        options: &TranslationOptions,
        tokens: usize,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<Generated>>, Location)> {
        let missing = || Error::model("expected a model to run, but there is none");
        let sequences = self.route.local().ok_or_else(missing)?;
        let under_way = self.route.begin(Location::Local, tokens);
        let order = in_order(jobs);
        let mut batches = Vec::new();
        let mut rest = order.as_slice();
        while let Some(first) = rest.first() {
            let search = self.search(options, jobs[*first].first_token)?;
            let (batch, others) = rest.split_at(self.batch_size(&search, jobs, rest));
            batches.push(self.run_batch(sequences, jobs, batch, search, deadline));
            rest = others;
        }
        // One more a lane than it runs, so that it finds the next batch waiting when it is done with one.
        let at_once = 2 * sequences.concurrency().get();
        let done: Result<Vec<Written>> = stream::iter(batches).buffer_unordered(at_once).try_collect().await;
        under_way.finish(done.is_ok());
        Ok((sorted(done?), Location::Local))
    }

    async fn run_there(
        &self,
        fleet: &Fleet,
        jobs: &[Job],
        options: &TranslationOptions,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Generated>>> {
        let writer = &self.remote.connect(fleet, deadline).await?;
        let by_default = &self.by_default()?;
        let schedule = writer.schedule();
        let order = in_order(jobs);
        let mut batches = Vec::new();
        let mut rest = order.as_slice();
        while let Some(first) = rest.first() {
            let search = self.search(options, jobs[*first].first_token)?;
            let (batch, others) = rest.split_at(alike(jobs, rest).min(schedule.max_batch_size.get()));
            batches.push(self.write_batch(writer, jobs, batch, [search, by_default.clone()], deadline));
            rest = others;
        }
        let at_once = 2 * schedule.concurrency.get();
        let done: Vec<Written> = stream::iter(batches).buffer_unordered(at_once).try_collect().await?;
        Ok(sorted(done))
    }

    async fn write_batch(
        &self,
        writer: &RemoteGenerator,
        jobs: &[Job],
        batch: &[usize],
        [search, by_default]: [GenerationConfig; 2],
        deadline: Deadline,
    ) -> Result<Written> {
        let rows: Vec<&[i64]> = batch.iter().map(|job| jobs[*job].ids.as_slice()).collect();
        let first_token = jobs[batch[0]].first_token;
        let asked = Asked { search: &search, by_default: &by_default, first_token };
        let targets = writer.write(&rows, asked, &self.settings().generation, deadline).await?;
        self.remote.check_language(asked, &targets)?;
        Ok(batch.iter().copied().zip(targets).collect())
    }

    /// How many of the jobs of `rest`, the longest of which is the first, run together here.
    fn batch_size(&self, search: &GenerationConfig, jobs: &[Job], rest: &[usize]) -> usize {
        if self.shortlist.is_some() {
            return 1;
        }
        let first = &jobs[rest[0]];
        let tokens = first.ids.len() + search.max_length(first.ids.len());
        let rows = MOST_ROWS.min(MOST_TOKENS / tokens.max(1));
        (rows / search.rows()).clamp(1, alike(jobs, rest))
    }

    async fn run_batch(
        &self,
        sequences: &Arc<dyn Seq2SeqBackend>,
        jobs: &[Job],
        batch: &[usize],
        search: GenerationConfig,
        deadline: Deadline,
    ) -> Result<Written> {
        let rows: Vec<Vec<i64>> = batch.iter().map(|job| jobs[*job].ids.clone()).collect();
        let list: Vec<SourceInfo> =
            batch.iter().map(|job| SourceInfo { length: jobs[*job].ids.len(), number: *job }).collect();
        let Decoding { sources, search } = self.decoding(rows, search);
        let shortlist = sources.shortlist.clone();
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(move |decoder: &mut dyn Decoder| {
            let generated = generate(decoder, &list, &search, deadline)?;
            // A caller that has gone wants no answer.
            let _ = sender.send(generated);
            Ok(())
        });
        sequences.decode(sources, deadline, work).await?;
        let lost = || Error::inference("the decoder's work was lost");
        let mut generated = receiver.await.map_err(|_| lost())?;
        if let Some(shortlist) = shortlist {
            let ids = generated.iter_mut().flatten().flat_map(|text| &mut text.ids);
            for id in ids {
                *id =
                    usize::try_from(*id).ok().and_then(|place| shortlist.get(place).copied()).unwrap_or(*id);
            }
        }
        Ok(batch.iter().copied().zip(generated).collect())
    }
}

/// The jobs by the languages of their targets, of each the longest first.
fn in_order(jobs: &[Job]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..jobs.len()).collect();
    order.sort_by_key(|job| (jobs[*job].first_token, Reverse(jobs[*job].ids.len())));
    order
}

/// How many of the first of `rest` have the language of the first of them.
fn alike(jobs: &[Job], rest: &[usize]) -> usize {
    let first = jobs[rest[0]].first_token;
    rest.iter().take_while(|job| jobs[**job].first_token == first).count()
}

fn sorted(done: Vec<Written>) -> Vec<Vec<Generated>> {
    let mut done: Written = done.into_iter().flatten().collect();
    done.sort_by_key(|(job, _)| *job);
    done.into_iter().map(|(_, generated)| generated).collect()
}
