use std::{collections::BTreeMap, sync::Arc, time::Duration};

use super::{
    execute::{Decoding, LocalGenerator, Seq2SeqWork, SourceSentence},
    languages::{Directions, LanguagePair, RequestedLanguages, is_written_without_spaces},
    remote::RemoteGenerator,
    segmentation::{Segment, join},
    settings::{LanguageToken, Languages, Seq2SeqSettings},
    shortlist::Shortlist,
    source_encoder::{Seq2SeqOptions, SourceEncoder, Split, UnknownText},
    unknown_text::Masked,
};
use crate::{
    backend::{
        Deadline,
        routing::{Location, Route},
        seq2seq::Seq2SeqBackend,
    },
    observer::record_encoding,
    pipeline::{
        encoder::{
            executor::{Executor, tokenize},
            usage::Usage,
        },
        generation::{Bounds, Generated, GenerationConfig, GenerationOptions},
    },
};
use kivu_base::{Error, Result, clock::Instant, error::at_text};
use kivu_text::{SpecialTokens, Token, Tokenizer};

/// A model that generates texts from texts.
#[derive(Clone, Debug)]
pub struct Seq2SeqPipeline {
    sources: Arc<SourceEncoder>,
    target: Arc<Tokenizer>,
    shortlist: Option<Arc<Shortlist>>,
    executor: Executor<LocalGenerator, RemoteGenerator>,
}

/// Texts generated for a request.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedTexts {
    /// For each text `num_return_sequences`, the best first.
    pub texts: Vec<Vec<GeneratedText>>,
    /// Languages per text, by the model's codes.
    pub pairs: Vec<LanguagePair>,
    /// Token counts and durations.
    pub usage: Usage,
}

/// A text generated for a source text.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedText {
    /// The whole text, joined from its sentences.
    pub text: String,
    /// Sum of its sentences' scores; `None` without beam search.
    pub score: Option<f32>,
}

/// Targets for token-id sources.
#[derive(Clone, Debug, PartialEq)]
pub struct GeneratedIds {
    /// For each source `num_return_sequences`, the best first, each with the decoder's start token.
    pub rows: Vec<Vec<Vec<i64>>>,
    /// The token that pads shorter rows.
    pub pad: i64,
    /// Where the model ran.
    pub location: Location,
}

/// Model parts.
#[derive(Debug)]
pub struct Seq2SeqParts {
    /// Source tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Target tokenizer.
    pub target: Arc<Tokenizer>,
    /// Restricts the vocabulary by the source, if the model has one.
    pub shortlist: Option<Arc<Shortlist>>,
    /// Where the model runs.
    pub route: Route<Arc<dyn Seq2SeqBackend>>,
}

/// A request's texts, split into sentences.
struct Plan {
    /// Each text's segments and languages.
    texts: Vec<(Vec<Segment<String>>, LanguagePair)>,
    sentences: Vec<SourceSentence>,
    /// Stand-ins in each sentence for text that the model cannot read.
    masked: Vec<Masked>,
    truncated: Vec<usize>,
}

impl Seq2SeqPipeline {
    /// Assembles a pipeline from a model's parts.
    pub fn new(parts: Seq2SeqParts, settings: Seq2SeqSettings) -> Result<Self> {
        let Seq2SeqParts {
            tokenizer,
            target,
            shortlist,
            route,
        } = parts;
        if settings.generation.eos_token_ids.is_empty() {
            return Err(Error::model(
                "expected a token in `eos_token_ids` of the model's settings, but found none",
            ));
        }
        let directions = Directions::new(&settings.languages);
        Ok(Self {
            sources: Arc::new(SourceEncoder {
                tokenizer,
                directions,
                settings,
            }),
            target,
            shortlist,
            executor: Executor::new(route.try_map(|backend| Ok(LocalGenerator(backend)))?, ()),
        })
    }

    /// Source tokenizer.
    pub fn tokenizer(&self) -> &Arc<Tokenizer> {
        &self.sources.tokenizer
    }

    /// Target tokenizer.
    pub fn target_tokenizer(&self) -> &Arc<Tokenizer> {
        &self.target
    }

    /// The shortlist, if the model has one.
    pub fn shortlist(&self) -> Option<&Arc<Shortlist>> {
        self.shortlist.as_ref()
    }

    /// The same model without its shortlist.
    #[must_use]
    pub fn without_shortlist(&self) -> Self {
        Self {
            shortlist: None,
            ..self.clone()
        }
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &Seq2SeqSettings {
        &self.sources.settings
    }

    /// The model's languages.
    pub fn directions(&self) -> &Directions {
        &self.sources.directions
    }

    /// The backend in this process.
    pub fn local(&self) -> Option<&Arc<dyn Seq2SeqBackend>> {
        self.executor.local().map(|local| &local.0)
    }

    /// Whether the model may run on a fleet.
    pub fn has_fleet(&self) -> bool {
        self.executor.has_fleet()
    }

    /// Forgets measured speeds, and closes the connections to the fleet.
    pub fn forget(&self) {
        self.executor.forget();
    }

    /// Fails if the fleet's model is of a different kind; an unreachable fleet is not an error.
    pub async fn check_fleet(&self, deadline: Deadline) -> Result<()> {
        self.executor.check_fleet(deadline).await
    }

    /// Tokens for a single-sentence text, as the encoder reads them.
    pub fn tokens(
        &self,
        text: &str,
        special: SpecialTokens,
        languages: RequestedLanguages<'_>,
    ) -> Result<Vec<Token>> {
        self.sources.tokens(text, special, languages)
    }

    /// Refuses languages between which the model cannot translate any text.
    pub fn check_languages(&self, requested: RequestedLanguages<'_>) -> Result<()> {
        let directions = self.directions();
        let found = directions.find(requested).map(drop);
        // Such a model reads the target from a text like `>>pt<< …`.
        let is_written = matches!(
            self.settings().languages,
            Languages::Prefix { .. } | Languages::Tags { .. }
        );
        if is_written && requested.target.is_none() && directions.has(requested) {
            Ok(())
        } else {
            found
        }
    }

    /// Generates a text for each input text. Contradictory options are refused before texts are read.
    pub async fn generate(
        &self,
        texts: Vec<String>,
        options: &Seq2SeqOptions,
        deadline: Deadline,
    ) -> Result<GeneratedTexts> {
        let count = self
            .config(&options.generation, None)?
            .num_return_sequences();
        let started = Instant::now();
        let plan = self.plan(texts, options, deadline).await?;
        let tokenization = started.elapsed();
        let (generated, own) = self
            .measured(&plan.sentences, &options.generation, deadline)
            .await?;
        let mut usage = Usage {
            truncated: plan.truncated,
            tokenization,
            ..own
        };
        let mut generated = generated.iter().zip(&plan.masked);
        let mut texts = Vec::with_capacity(plan.texts.len());
        for (layout, pair) in &plan.texts {
            let is_sentence = |part: &&Segment<String>| matches!(part, Segment::Sentence(_));
            let count_of_sentences = layout.iter().filter(is_sentence).count();
            let mut sentences = Vec::with_capacity(count_of_sentences);
            for (targets, masked) in generated.by_ref().take(count_of_sentences) {
                let decoded = self.decode_all(targets, masked, pair, options)?;
                sentences.push(match decoded {
                    Some(decoded) => decoded,
                    None => {
                        let fragments = self.in_fragments(masked, pair, options, deadline);
                        let (texts, again) = fragments.await?;
                        usage.add(&again);
                        texts
                    }
                });
            }
            let ranks = 0..count;
            texts.push(
                ranks
                    .map(|rank| assemble(layout, pair, &sentences, rank))
                    .collect(),
            );
        }
        record_encoding(usage.tokens, usage.tokenization, usage.inference);
        Ok(GeneratedTexts {
            texts,
            pairs: plan.texts.into_iter().map(|(_, pair)| pair).collect(),
            usage,
        })
    }

    /// Generates targets for token ids, special tokens included.
    pub async fn generate_ids(
        &self,
        sources: Vec<Vec<u32>>,
        options: &Seq2SeqOptions,
        deadline: Deadline,
    ) -> Result<GeneratedIds> {
        let settings = self.settings();
        let target = options
            .target
            .as_deref()
            .map(|target| self.directions().find_target(target));
        let language = target
            .transpose()?
            .and_then(|target| self.sources.target_token(target));
        let (limit, known) = (settings.max_tokens, self.tokenizer().vocabulary_size());
        let sentence = |(row, ids): (usize, Vec<u32>)| {
            if ids.len() > limit {
                let found = ids.len();
                return Err(Error::too_large(format!(
                    "row {row} has {found} tokens, but the model takes at most {limit}"
                )));
            }
            if let Some(id) = ids.iter().find(|id| **id as usize >= known) {
                return Err(Error::invalid(format!(
                    "expected token ids below {known}, but found {id} in row {row}"
                )));
            }
            Ok(SourceSentence {
                ids: ids.into_iter().map(i64::from).collect(),
                language,
            })
        };
        let sentences: Vec<_> = sources
            .into_iter()
            .enumerate()
            .map(sentence)
            .collect::<Result<_>>()?;
        let config = self.config(&options.generation, language)?;
        let has_beams = config.has_beams();
        let (generated, location) = self.run(&sentences, &options.generation, deadline).await?;
        let start = Some(config.start()).filter(|start| *start >= 0);
        let row = |target: Generated| start.into_iter().chain(target.ids).collect();
        let rows = generated
            .into_iter()
            .map(|targets| targets.into_iter().map(row).collect())
            .collect();
        // With beam search, `transformers` treats padding 0 as unset and pads with the end-of-sequence token.
        let (pad, eos) = (
            settings.generation.pad_token_id,
            settings.generation.eos_token_ids.first(),
        );
        let pad = match eos {
            Some(eos) if pad == 0 && has_beams => *eos,
            _ => pad,
        };
        Ok(GeneratedIds {
            rows,
            pad,
            location,
        })
    }

    /// Encoder input and decoder configuration for an unsplit text.
    pub fn decoding_of(&self, text: &str, options: &Seq2SeqOptions) -> Result<Decoding> {
        let options = Seq2SeqOptions {
            split: Some(Split::Never),
            truncate: true,
            max_sentences: 1,
            ..options.clone()
        };
        let prepared = self.sources.prepare(text, &options, UnknownText::Read)?;
        let config = self.config(
            &options.generation,
            self.sources.target_token(&prepared.pair.target),
        )?;
        let settings = &self.settings().generation;
        Ok(Decoding::new(
            prepared.sentences,
            &config,
            settings,
            self.shortlist.as_deref(),
        ))
    }

    /// Runs the model, with token counts and duration.
    async fn measured(
        &self,
        sentences: &[SourceSentence],
        options: &GenerationOptions,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<Generated>>, Usage)> {
        let started = Instant::now();
        let (generated, location) = self.run(sentences, options, deadline).await?;
        let usage = Usage {
            tokens: sentences.iter().map(|sentence| sentence.ids.len()).sum(),
            generated: generated
                .iter()
                .flatten()
                .map(|target| target.ids.len())
                .sum(),
            inference: started.elapsed(),
            truncated: Vec::new(),
            tokenization: Duration::ZERO,
            location,
        };
        Ok((generated, usage))
    }

    async fn run(
        &self,
        sentences: &[SourceSentence],
        options: &GenerationOptions,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<Generated>>, Location)> {
        let mut configs = BTreeMap::new();
        for SourceSentence { language, .. } in sentences {
            if !configs.contains_key(language) {
                configs.insert(*language, self.config(options, *language)?);
            }
        }
        let work = Seq2SeqWork {
            sentences,
            configs,
            default_options: self.config(&GenerationOptions::default(), None)?.options(),
            settings: &self.settings().generation,
            shortlist: self.shortlist.as_deref(),
        };
        self.executor.run(&work, deadline).await
    }

    /// The configuration for targets in a language.
    fn config(
        &self,
        options: &GenerationOptions,
        language: Option<LanguageToken>,
    ) -> Result<GenerationConfig> {
        let settings = self.settings();
        let mut options = options.clone();
        if let Some(language) = language {
            language.request(&mut options)?;
        }
        let vocabulary = match self.local() {
            Some(backend) => backend.vocabulary(),
            None => settings.decoder.vocabulary(),
        };
        let vocabulary = vocabulary.unwrap_or_else(|| self.target.vocabulary_size());
        // The last token is generated, but not fed.
        let bounds = Bounds {
            vocabulary,
            max_length: settings.max_positions + 1,
        };
        GenerationConfig::new(&settings.generation, &options, bounds)
    }

    async fn plan(
        &self,
        texts: Vec<String>,
        options: &Seq2SeqOptions,
        deadline: Deadline,
    ) -> Result<Plan> {
        let size: usize = texts.iter().map(String::len).sum();
        let (sources, options) = (Arc::clone(&self.sources), options.clone());
        tokenize(size, deadline, move || {
            plan(&sources, &texts, &options, deadline)
        })
        .await
    }

    /// A sentence's translations; `None` if one lacks text that the model could not read.
    fn decode_all(
        &self,
        targets: &[Generated],
        masked: &Masked,
        pair: &LanguagePair,
        options: &Seq2SeqOptions,
    ) -> Result<Option<Vec<GeneratedText>>> {
        let decoded = targets.iter().map(|target| {
            let text = self.decode(target, pair, options)?;
            let restored = masked.restore(&text);
            let score = target.score;
            Ok(restored.map(|text| GeneratedText { text, score }))
        });
        decoded.collect()
    }

    /// Translates the parts of a sentence between those that the model cannot read.
    async fn in_fragments(
        &self,
        masked: &Masked,
        pair: &LanguagePair,
        options: &Seq2SeqOptions,
        deadline: Deadline,
    ) -> Result<(Vec<GeneratedText>, Usage)> {
        let language = self.sources.target_token(&pair.target);
        let fragments = masked.fragments.iter().filter_map(|part| match part {
            Segment::Sentence(text) => Some(self.sources.fragment(text, pair)),
            Segment::Space(_) => None,
        });
        let sources: Vec<_> = fragments
            .map(|ids| ids.map(|ids| SourceSentence { ids, language }))
            .collect::<Result<_>>()?;
        let (generated, usage) = self
            .measured(&sources, &options.generation, deadline)
            .await?;
        let decoded = generated.iter().map(|targets| {
            let texts = targets.iter().map(|target| {
                let text = self.decode(target, pair, options)?;
                let score = target.score;
                Ok(GeneratedText { text, score })
            });
            texts.collect()
        });
        let decoded: Vec<Vec<GeneratedText>> = decoded.collect::<Result<_>>()?;
        let ranks = 0..decoded.first().map_or(0, Vec::len);
        let texts = ranks
            .map(|rank| joined(&masked.fragments, &decoded, rank, ""))
            .collect();
        Ok((texts, usage))
    }

    fn decode(
        &self,
        target: &Generated,
        pair: &LanguagePair,
        options: &Seq2SeqOptions,
    ) -> Result<String> {
        let settings = &self.settings().generation;
        let language = self
            .sources
            .target_token(&pair.target)
            .map(|token| token.id);
        let is_text = |id: &&i64| {
            !settings.eos_token_ids.contains(id)
                && **id != settings.pad_token_id
                && Some(**id) != language
        };
        let ids = target
            .ids
            .iter()
            .filter(is_text)
            .filter_map(|id| u32::try_from(*id).ok());
        let ids: Vec<u32> = ids
            .filter(|id| (*id as usize) < self.target.vocabulary_size())
            .collect();
        let text = self.target.decode(&ids, true)?;
        let text = if self.sources.translates() {
            text.trim()
        } else {
            &text
        };
        Ok(if options.clean_up_spaces {
            clean_up(text)
        } else {
            text.to_owned()
        })
    }
}

/// Joins equally ranked sentence translations into a text.
fn assemble(
    layout: &[Segment<String>],
    pair: &LanguagePair,
    sentences: &[Vec<GeneratedText>],
    rank: usize,
) -> GeneratedText {
    match (layout, sentences) {
        // Unchanged, white space included.
        ([Segment::Sentence(_)], [only]) if only.len() > rank => only[rank].clone(),
        _ if is_written_without_spaces(&pair.target) => joined(layout, sentences, rank, ""),
        _ => joined(layout, sentences, rank, " "),
    }
}

fn joined(
    layout: &[Segment<String>],
    sentences: &[Vec<GeneratedText>],
    rank: usize,
    between: &str,
) -> GeneratedText {
    let ranked = || sentences.iter().filter_map(|texts| texts.get(rank));
    let texts: Vec<String> = ranked().map(|ranked| ranked.text.clone()).collect();
    let score = ranked().map(|ranked| ranked.score).sum::<Option<f32>>();
    GeneratedText {
        text: join(layout, &texts, between),
        score: score.filter(|_| !sentences.is_empty()),
    }
}

fn plan(
    sources: &SourceEncoder,
    texts: &[String],
    options: &Seq2SeqOptions,
    deadline: Deadline,
) -> Result<Plan> {
    let (mut layouts, mut sentences, mut truncated) = (Vec::new(), Vec::new(), Vec::new());
    let (mut masked, mut copied) = (Vec::new(), 0);
    for (index, text) in texts.iter().enumerate() {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let prepared = sources.prepare(text, options, UnknownText::Kept);
        let prepared = prepared.map_err(|error| at_text(error, index, texts.len()))?;
        let language = sources.target_token(&prepared.pair.target);
        sentences.extend(
            prepared
                .sentences
                .into_iter()
                .map(|ids| SourceSentence { ids, language }),
        );
        masked.extend(prepared.masked);
        copied += prepared.copied;
        if sentences.len() + copied > options.max_sentences {
            return Err(Error::too_large(format!(
                "expected at most {} sentences in all texts, but found more",
                options.max_sentences
            ))
            .with_hint("send fewer or shorter texts"));
        }
        truncated.extend(prepared.is_truncated.then_some(index));
        // The sentence texts are no longer needed.
        let owned = prepared.layout.into_iter().map(|segment| match segment {
            Segment::Sentence(_) => Segment::Sentence(String::new()),
            Segment::Space(space) => Segment::Space(space.to_owned()),
        });
        layouts.push((owned.collect(), prepared.pair));
    }
    Ok(Plan {
        texts: layouts,
        sentences,
        masked,
        truncated,
    })
}

/// Removes the spaces that tokenizers leave before punctuation, as `transformers` does.
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
    spaces
        .iter()
        .fold(text.to_owned(), |text, (with, without)| {
            text.replace(with, without)
        })
}
