//! Source sentences to target tokens, at whichever location the model runs.

use std::{cmp::Reverse, collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use serde_json::{Map, Value};
use tokio::sync::oneshot;

use super::{
    remote::{RemoteGenerator, RemoteRequest},
    settings::LanguageToken,
    shortlist::Shortlist,
};
use crate::{
    backend::{
        Deadline,
        seq2seq::{Decoder, Seq2SeqBackend, SourceBatch},
    },
    pipeline::{
        encoder::executor::{Work, run_batches},
        generation::{Generated, GenerationConfig, GenerationSettings, SourceInfo, generate},
    },
};
use kivu_base::{Error, Result};

/// Maximum decoder rows per batch: sentences times beams or samples.
const MAX_ROWS: usize = 32;
/// Maximum source and target tokens per batch: 0.4 GB of cache for M2M100-418M.
const MAX_TOKENS: usize = 4096;
/// The unknown token in Bergamot models, which is never generated.
pub const UNKNOWN_ID: u32 = 1;

/// A sentence to translate.
#[derive(Debug)]
pub struct SourceSentence {
    /// Encoder input.
    pub ids: Vec<i64>,
    /// Target language token.
    pub language: Option<LanguageToken>,
}

/// Encoder input and decoder configuration.
#[derive(Clone, Debug)]
pub struct Decoding {
    /// Encoder input.
    pub sources: SourceBatch,
    /// Options, whose token ids are indexes into the shortlist if there is one.
    pub config: GenerationConfig,
}

impl Decoding {
    /// Prepares source `rows`. A shortlist leaves only the ids that it allows or that `config` requires.
    pub fn new(
        rows: Vec<Vec<i64>>,
        config: &GenerationConfig,
        settings: &GenerationSettings,
        shortlist: Option<&Shortlist>,
    ) -> Self {
        let shortlist = shortlist.map(|shortlist| {
            let ids: Vec<u32> = rows
                .iter()
                .flatten()
                .filter_map(|id| u32::try_from(*id).ok())
                .collect();
            let mut allowed = shortlist.allowed(&ids, UNKNOWN_ID);
            allowed.extend(config.required_ids());
            allowed.sort_unstable();
            allowed.dedup();
            allowed
        });
        let config = shortlist
            .as_ref()
            .map_or_else(|| config.clone(), |shortlist| config.within(shortlist));
        Self {
            sources: SourceBatch {
                rows,
                pad: settings.pad_token_id,
                shortlist,
            },
            config,
        }
    }
}

/// A translation request's work.
pub struct Seq2SeqWork<'a> {
    pub sentences: &'a [SourceSentence],
    /// Options by target language.
    pub configs: BTreeMap<Option<LanguageToken>, GenerationConfig>,
    /// The options that the model uses for a request without any.
    pub default_options: Map<String, Value>,
    pub settings: &'a GenerationSettings,
    pub shortlist: Option<&'a Shortlist>,
}

/// The model in this process.
#[derive(Clone, Debug)]
pub struct LocalGenerator(pub Arc<dyn Seq2SeqBackend>);

#[async_trait]
impl Work<LocalGenerator, RemoteGenerator> for Seq2SeqWork<'_> {
    type Output = Vec<Vec<Generated>>;

    fn tokens(&self) -> usize {
        self.sentences
            .iter()
            .map(|sentence| sentence.ids.len())
            .sum()
    }

    fn check_remote(&self, remote: &RemoteGenerator) -> Result<()> {
        self.configs.iter().try_for_each(|(language, config)| {
            remote.check(self.remote_request(config, *language))
        })?;
        self.sentences
            .iter()
            .try_for_each(|sentence| remote.check_length(sentence.ids.len()))
    }

    async fn run_locally(
        &self,
        local: &LocalGenerator,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Generated>>> {
        let batches = self.batches(|config, longest| {
            let tokens = longest + config.max_length(longest);
            match self.shortlist {
                Some(_) => 1,
                None => MAX_ROWS.min(MAX_TOKENS / tokens.max(1)) / config.rows(),
            }
        });
        let batches = batches
            .into_iter()
            .map(|batch| self.decode(&local.0, batch, deadline));
        run_batches(batches.collect(), local.0.concurrency(), deadline).await
    }

    async fn run_remotely(
        &self,
        remote: &RemoteGenerator,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Generated>>> {
        let schedule = remote.schedule();
        let batches = self.batches(|_, _| schedule.max_batch_size.get());
        let batches = batches
            .into_iter()
            .map(|batch| self.generate_remotely(remote, batch, deadline));
        run_batches(batches.collect(), schedule.concurrency, deadline).await
    }
}

/// Sentences with the same target language, by their indexes.
struct Batch<'a> {
    indexes: Vec<usize>,
    language: Option<LanguageToken>,
    config: &'a GenerationConfig,
}

impl Seq2SeqWork<'_> {
    /// Batches of sentences with similar length, the longest first. `size` returns a batch's maximum size, from its
    /// configuration and its longest sentence.
    fn batches(&self, size: impl Fn(&GenerationConfig, usize) -> usize) -> Vec<Batch<'_>> {
        let mut batches = Vec::new();
        for (language, config) in &self.configs {
            let sentences = self.sentences.iter().enumerate();
            let of_language = sentences.filter(|(_, sentence)| sentence.language == *language);
            let mut rest: Vec<usize> = of_language.map(|(index, _)| index).collect();
            rest.sort_by_key(|index| Reverse(self.sentences[*index].ids.len()));
            while let Some(first) = rest.first() {
                let size = size(config, self.sentences[*first].ids.len()).clamp(1, rest.len());
                let others = rest.split_off(size);
                batches.push(Batch {
                    indexes: rest,
                    language: *language,
                    config,
                });
                rest = others;
            }
        }
        batches
    }

    fn remote_request<'b>(
        &'b self,
        config: &'b GenerationConfig,
        language: Option<LanguageToken>,
    ) -> RemoteRequest<'b> {
        let first_token = language.and_then(LanguageToken::first);
        RemoteRequest {
            config,
            default_options: &self.default_options,
            first_token,
        }
    }

    async fn generate_remotely(
        &self,
        remote: &RemoteGenerator,
        batch: Batch<'_>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, Vec<Generated>)>> {
        let rows: Vec<&[i64]> = batch
            .indexes
            .iter()
            .map(|index| self.sentences[*index].ids.as_slice())
            .collect();
        let request = self.remote_request(batch.config, batch.language);
        let targets = remote
            .generate(&rows, request, self.settings, deadline)
            .await?;
        Ok(batch.indexes.into_iter().zip(targets).collect())
    }

    async fn decode(
        &self,
        backend: &Arc<dyn Seq2SeqBackend>,
        batch: Batch<'_>,
        deadline: Deadline,
    ) -> Result<Vec<(usize, Vec<Generated>)>> {
        let rows: Vec<Vec<i64>> = batch
            .indexes
            .iter()
            .map(|index| self.sentences[*index].ids.clone())
            .collect();
        let infos = batch.indexes.iter().zip(&rows);
        let infos: Vec<SourceInfo> = infos
            .map(|(number, row)| SourceInfo {
                length: row.len(),
                number: *number,
            })
            .collect();
        let Decoding { sources, config } =
            Decoding::new(rows, batch.config, self.settings, self.shortlist);
        let shortlist = sources.shortlist.clone();
        let (sender, receiver) = oneshot::channel();
        let work = Box::new(move |decoder: &mut dyn Decoder| {
            // The receiver is gone if the client has disconnected.
            let _ = sender.send(generate(decoder, &infos, &config, deadline)?);
            Ok(())
        });
        backend.decode(sources, deadline, work).await?;
        let lost = |_| Error::inference("the decoder returned no result");
        let mut targets = receiver.await.map_err(lost)?;
        if let Some(shortlist) = shortlist {
            for id in targets
                .iter_mut()
                .flatten()
                .flat_map(|target| &mut target.ids)
            {
                let full = usize::try_from(*id)
                    .ok()
                    .and_then(|index| shortlist.get(index));
                *id = full.copied().unwrap_or(*id);
            }
        }
        Ok(batch.indexes.into_iter().zip(targets).collect())
    }
}
