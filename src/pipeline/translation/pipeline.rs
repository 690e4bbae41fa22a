//! Texts of one language to texts of another.

use std::{sync::Arc, time::Instant};

use super::{
    languages::{Directions, Pair, RequestedLanguages, is_written_without_spaces},
    remote::Remote,
    segmentation::{Part, join},
    settings::{Languages, TranslationSettings},
    shortlist::Shortlist,
    sources::{Manner, Sources, SpecialTokens, Split},
};
use crate::{
    backend::{
        Deadline,
        routing::{Location, Route},
        seq2seq::{self, Seq2SeqBackend},
    },
    error::{Error, Result, at_text},
    pipeline::{
        Usage,
        generation::{Bounds, Generated, GenerationConfig, GenerationOptions},
    },
    telemetry,
    tokenizer::{Token, Tokenizer},
};

/// The token of what a student of Bergamot's does not know, which is never a translation.
const UNKNOWN: u32 = 1;

/// A model that translates.
#[derive(Clone, Debug)]
pub struct TranslationPipeline {
    sources: Arc<Sources>,
    target: Arc<Tokenizer>,
    pub(super) shortlist: Option<Arc<Shortlist>>,
    pub(super) route: Route<Arc<dyn Seq2SeqBackend>>,
    pub(super) remote: Arc<Remote>,
}

/// What a request wants of its translations.
#[derive(Clone, Debug, PartialEq)]
pub struct TranslationOptions {
    /// The language of the texts, by any of its names.
    pub source: Option<String>,
    /// The language that they are wanted in, by any of its names.
    pub target: Option<String>,
    /// When a text is taken apart; nothing leaves it to the model's kind.
    pub split: Option<Split>,
    /// Whether what the model cannot read is cut off, rather than refused.
    pub truncate: bool,
    /// Whether spaces before punctuation are taken away.
    pub clean_up_spaces: bool,
    /// What differs from how the model generates by itself.
    pub generation: GenerationOptions,
    /// The most sentences of all texts.
    pub max_sentences: usize,
}

/// The translations of a request's texts.
#[derive(Clone, Debug, PartialEq)]
pub struct Translations {
    /// Of each text as many as were asked for, the best first.
    pub texts: Vec<Vec<Translation>>,
    /// The languages of each text, by the model's codes.
    pub pairs: Vec<Pair>,
    /// What was done to the texts.
    pub usage: Usage,
}

/// A translation.
#[derive(Clone, Debug, PartialEq)]
pub struct Translation {
    /// The text.
    pub text: String,
    /// The sum of its sentences' scores; of beam search only.
    pub score: Option<f32>,
}

/// Token ids that were generated of token ids.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedIds {
    /// Of each source as many as were asked for, the best first, each with the decoder's first token.
    pub rows: Vec<Vec<Vec<i64>>>,
    /// What stands after the end of a row that is shorter than another.
    pub pad: i64,
    /// Where the model ran.
    pub location: Location,
}

/// What a model is made of.
#[derive(Debug)]
pub struct TranslationParts {
    /// What reads sources.
    pub tokenizer: Arc<Tokenizer>,
    /// What puts targets together.
    pub target: Arc<Tokenizer>,
    /// What may stand in the translation of what, where the model knows.
    pub shortlist: Option<Shortlist>,
    /// Where it runs.
    pub route: Route<Arc<dyn Seq2SeqBackend>>,
}

/// What goes to an encoder and its decoder.
#[derive(Clone, Debug)]
pub struct Decoding {
    /// What is encoded.
    pub sources: seq2seq::SourceBatch,
    /// What is looked for.
    pub search: GenerationConfig,
}

/// A sentence on its way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) ids: Vec<i64>,
    pub(super) first_token: Option<i64>,
}

/// A request's texts as sources.
struct Plan {
    /// Of each text its parts, and the number of its sentences.
    texts: Vec<(Vec<OwnedPart>, Pair)>,
    jobs: Vec<Job>,
    truncated: Vec<usize>,
}

/// A part of a text, without the text of sentences, which nobody needs any more.
#[derive(Debug)]
enum OwnedPart {
    Sentence,
    Space(String),
}

impl TranslationPipeline {
    /// Puts a model together.
    pub fn new(parts: TranslationParts, settings: TranslationSettings) -> Result<Self> {
        let TranslationParts { tokenizer, target, shortlist, route } = parts;
        if settings.generation.eos_token_ids.is_empty() {
            return Err(Error::model(
                "expected a token in `eos_token_ids` of the model's settings, but found none",
            ));
        }
        let directions = Directions::new(&settings.languages);
        Ok(Self {
            sources: Arc::new(Sources { tokenizer, directions, settings }),
            target,
            shortlist: shortlist.map(Arc::new),
            route,
            remote: Arc::default(),
        })
    }

    /// The tokenizer that reads sources.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.sources.tokenizer
    }

    /// How the model translates.
    pub fn settings(&self) -> &TranslationSettings {
        &self.sources.settings
    }

    /// The languages of the model.
    pub fn directions(&self) -> &Directions {
        &self.sources.directions
    }

    /// The tokens of a text as the encoder reads them, where it is one sentence.
    pub fn tokens(
        &self,
        text: &str,
        special: SpecialTokens,
        wanted: RequestedLanguages<'_>,
    ) -> Result<Vec<Token>> {
        self.sources.tokens(text, special, wanted)
    }

    /// Refuses languages with which no text at all can be translated.
    pub fn check_languages(&self, wanted: RequestedLanguages<'_>) -> Result<()> {
        let directions = self.directions();
        let found = directions.find(wanted).map(drop);
        // Such a text may name its target itself, as `>>pt<<`.
        let is_prefix = matches!(self.settings().languages, Languages::Prefix { .. });
        if is_prefix && wanted.target.is_none() && directions.has(wanted) { Ok(()) } else { found }
    }

    /// Translates texts.
    ///
    /// - Sentences are translated together, a batch of like lengths at a time; where the model has a shortlist,
    ///   each on its own and several side by side.
    /// - What is asked for is checked before anything runs.
    pub async fn translate(
        &self,
        texts: Vec<String>,
        options: &TranslationOptions,
        deadline: Deadline,
    ) -> Result<Translations> {
        // Contradictions are told before texts are read.
        self.search(options, None)?;
        let started = Instant::now();
        let plan = self.plan(texts, options, deadline).await?;
        let tokenization = started.elapsed();
        let started = Instant::now();
        let (generated, location) = self.run(&plan.jobs, options, deadline).await?;
        let usage = Usage {
            tokens: plan.jobs.iter().map(|job| job.ids.len()).sum(),
            generated: generated.iter().flatten().map(|text| text.ids.len()).sum(),
            truncated: plan.truncated,
            tokenization,
            inference: started.elapsed(),
            location,
        };
        telemetry::encoded(usage.tokens, usage.tokenization, usage.inference);
        let count = self.search(options, None)?.num_return_sequences();
        let mut generated = generated.into_iter();
        let texts = plan.texts.iter().map(|(parts, pair)| {
            let sentences = parts.iter().filter(|part| matches!(part, OwnedPart::Sentence)).count();
            let own: Vec<_> = generated.by_ref().take(sentences).collect();
            self.put_together(parts, pair, &own, count, options)
        });
        let texts = texts.collect::<Result<_>>()?;
        Ok(Translations { texts, pairs: plan.texts.into_iter().map(|(_, pair)| pair).collect(), usage })
    }

    /// Generates targets of sources that are token ids already, special tokens included.
    pub async fn generate(
        &self,
        sources: Vec<Vec<u32>>,
        options: &TranslationOptions,
        deadline: Deadline,
    ) -> Result<GeneratedIds> {
        let settings = self.settings();
        let target =
            options.target.as_deref().map(|target| self.directions().find_target(target)).transpose()?;
        let first_token = target.and_then(|target| self.sources.first_token(target));
        let (limit, known) = (settings.max_tokens, self.tokenizer().vocabulary_size());
        let jobs = sources.into_iter().enumerate().map(|(place, ids)| {
            if ids.len() > limit {
                return Err(Error::too_large(format!(
                    "row {place} has {} tokens, but the model takes at most {limit}",
                    ids.len()
                )));
            }
            if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
                return Err(Error::invalid(format!(
                    "expected token ids below {known}, but found {id} in row {place}"
                )));
            }
            Ok(Job { ids: ids.into_iter().map(i64::from).collect(), first_token })
        });
        let jobs: Vec<Job> = jobs.collect::<Result<_>>()?;
        let (generated, location) = self.run(&jobs, options, deadline).await?;
        let start = Some(settings.generation.decoder_start_token_id).filter(|start| *start >= 0);
        let row = |text: Generated| start.into_iter().chain(text.ids).collect();
        let rows = generated.into_iter().map(|texts| texts.into_iter().map(row).collect()).collect();
        Ok(GeneratedIds { rows, pad: settings.generation.pad_token_id, location })
    }

    /// The search that is asked for, with the token that the target begins with.
    pub(super) fn search(
        &self,
        options: &TranslationOptions,
        first_token: Option<i64>,
    ) -> Result<GenerationConfig> {
        let settings = self.settings();
        let mut generation = options.generation.clone();
        generation.forced_bos_token_id = first_token.or(generation.forced_bos_token_id);
        let vocabulary = match self.route.local() {
            Some(sequences) => sequences.vocabulary(),
            None => settings.decoder.vocabulary(),
        };
        let vocabulary = vocabulary.unwrap_or_else(|| self.target.vocabulary_size());
        // The last token is generated, but not fed.
        let bounds = Bounds { vocabulary, max_length: settings.max_positions + 1 };
        GenerationConfig::new(&settings.generation, &generation, bounds)
    }

    /// Makes sources of texts; large ones off the threads that serve connections.
    async fn plan(
        &self,
        texts: Vec<String>,
        options: &TranslationOptions,
        deadline: Deadline,
    ) -> Result<Plan> {
        let size: usize = texts.iter().map(String::len).sum();
        let (sources, options) = (Arc::clone(&self.sources), options.clone());
        let work = move || plan(&sources, &texts, &options, deadline);
        if size <= crate::pipeline::INLINE_BYTES { work() } else { deadline.off_thread(work).await }
    }

    /// Token ids as they go to the encoder, and the search in terms of what the decoder scores.
    pub(super) fn decoding(&self, rows: Vec<Vec<i64>>, search: GenerationConfig) -> Decoding {
        let shortlist = self.shortlist.as_ref().map(|shortlist| allowed(shortlist, &rows, &search));
        let search = match &shortlist {
            Some(shortlist) => search.within(shortlist),
            None => search,
        };
        let pad = self.settings().generation.pad_token_id;
        Decoding { sources: seq2seq::SourceBatch { rows, pad, shortlist }, search }
    }

    /// What goes to the encoder and the decoder for a text that is not split: to be run by hand.
    pub fn decoding_of(&self, text: &str, options: &TranslationOptions) -> Result<Decoding> {
        let manner = Manner {
            wanted: RequestedLanguages {
                source: options.source.as_deref(),
                target: options.target.as_deref(),
            },
            split: Split::Never,
            truncate: true,
            max_sentences: 1,
        };
        let prepared = self.sources.prepare(text, manner)?;
        let search = self.search(options, self.sources.first_token(&prepared.pair.target))?;
        Ok(self.decoding(prepared.sentences, search))
    }

    /// What runs the model in this process.
    pub fn sequences(&self) -> Option<&Arc<dyn Seq2SeqBackend>> {
        self.route.local()
    }

    /// The translations of a text from those of its sentences: the best of each, the second best of each, …
    fn put_together(
        &self,
        parts: &[OwnedPart],
        pair: &Pair,
        sentences: &[Vec<Generated>],
        count: usize,
        options: &TranslationOptions,
    ) -> Result<Vec<Translation>> {
        let parts: Vec<Part<'_>> = parts
            .iter()
            .map(|part| match part {
                OwnedPart::Sentence => Part::Sentence(""),
                OwnedPart::Space(space) => Part::Space(space),
            })
            .collect();
        let needs_space = !is_written_without_spaces(&pair.target);
        let translation = |rank: usize| {
            let ranked = || sentences.iter().filter_map(|texts| texts.get(rank));
            let texts = ranked().map(|text| self.decode(text, pair, options)).collect::<Result<Vec<_>>>()?;
            let score = ranked().map(|text| text.score).sum::<Option<f32>>();
            let score = score.filter(|_| !sentences.is_empty());
            let text = match &texts[..] {
                // As the model gives it, where it was given the whole.
                [text] if matches!(parts[..], [Part::Sentence(_)]) => text.clone(),
                texts => join(&parts, texts, needs_space),
            };
            Ok(Translation { text, score })
        };
        (0..count).map(translation).collect()
    }

    fn decode(&self, text: &Generated, pair: &Pair, options: &TranslationOptions) -> Result<String> {
        let settings = &self.settings().generation;
        let language = self.sources.first_token(&pair.target);
        let is_text = |id: &&i64| {
            !settings.eos_token_ids.contains(id) && **id != settings.pad_token_id && Some(**id) != language
        };
        let ids = text.ids.iter().filter(is_text).filter_map(|id| u32::try_from(*id).ok());
        let ids: Vec<u32> = ids.filter(|id| (*id as usize) < self.target.vocabulary_size()).collect();
        let text = self.target.decode(&ids, true)?;
        let text = text.trim();
        Ok(if options.clean_up_spaces { clean_up(text) } else { text.to_owned() })
    }
}

fn plan(
    sources: &Sources,
    texts: &[String],
    options: &TranslationOptions,
    deadline: Deadline,
) -> Result<Plan> {
    let by_kind = match sources.settings.generation.length_factor {
        // The students of Bergamot have only ever seen single sentences.
        Some(_) => Split::Sentences,
        None => Split::WhenLong,
    };
    let manner = Manner {
        wanted: RequestedLanguages { source: options.source.as_deref(), target: options.target.as_deref() },
        split: options.split.unwrap_or(by_kind),
        truncate: options.truncate,
        max_sentences: options.max_sentences,
    };
    let mut plan = Plan { texts: Vec::with_capacity(texts.len()), jobs: Vec::new(), truncated: Vec::new() };
    for (place, text) in texts.iter().enumerate() {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let prepared = sources.prepare(text, manner).map_err(|error| at_text(error, place, texts.len()))?;
        let first_token = sources.first_token(&prepared.pair.target);
        plan.jobs.extend(prepared.sentences.into_iter().map(|ids| Job { ids, first_token }));
        if plan.jobs.len() > options.max_sentences {
            return Err(Error::too_large(format!(
                "expected at most {} sentences in all texts, but found more; send less at once",
                options.max_sentences
            )));
        }
        plan.truncated.extend(prepared.is_cut.then_some(place));
        let parts = prepared.parts.into_iter().map(|part| match part {
            Part::Sentence(_) => OwnedPart::Sentence,
            Part::Space(space) => OwnedPart::Space(space.to_owned()),
        });
        plan.texts.push((parts.collect(), prepared.pair));
    }
    Ok(plan)
}

/// The tokens that the targets of `rows` are made of, in ascending order.
fn allowed(shortlist: &Shortlist, rows: &[Vec<i64>], search: &GenerationConfig) -> Vec<i64> {
    let ids: Vec<u32> = rows.iter().flatten().filter_map(|id| u32::try_from(*id).ok()).collect();
    let mut allowed = shortlist.allowed(&ids, UNKNOWN);
    allowed.extend(search.required_ids());
    allowed.sort_unstable();
    allowed.dedup();
    allowed
}

/// Takes away the spaces that tokenizers leave before punctuation, as `transformers` does when told to.
fn clean_up(text: &str) -> String {
    let spaces = [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ];
    spaces.iter().fold(text.to_owned(), |text, (with, without)| text.replace(with, without))
}
