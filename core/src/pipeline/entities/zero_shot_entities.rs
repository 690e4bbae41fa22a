//! Texts to entities with labels that the model was not trained on, with the results of the packages `gliner` and
//! `gliner2`.

use std::{collections::BTreeMap, sync::Arc};

use serde::{Deserialize, Serialize};

use super::{
    Entity, EntityCount, EntityLabel, IndexedText,
    schema::{self, Schema},
    token_classification::FoundEntities,
};
use crate::backend::{Deadline, routing::Route};
use crate::pipeline::{
    classification::{
        label_vectors::{LabelEncoder, LabelEncoderSettings},
        scores::ScoreFunction,
        zero_shot::Labels,
    },
    encoder::{
        Encoder, Granularity, NamedOutput, Row, Vectors, encoding::EncodedWindows,
        executor::tokenize,
    },
    redaction::{Redaction, Redactor},
};
use kivu_base::{Error, Result};
use kivu_text as tokenizer;
use kivu_text::{Tokenizer, Truncation, WindowOptions, WordForm, WordPrompt};

/// Default `threshold`: entities have higher scores.
pub const THRESHOLD: f32 = 0.5;
/// Scores per word and label in models that score words.
const WORD_SCORES: usize = 3;
/// Maximum number of word-label pairs in a window, in models that score words: each has some thousand numbers while it is
/// computed.
const MAX_PAIRS: usize = 1 << 16;
/// Maximum number of overlapping entities in a window, before the best ones are selected: some 30 MB.
const MAX_SPANS: usize = 1 << 20;

/// Zero-shot entity settings, from `gliner_config.json` or from GLiNER2's `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroShotEntitiesSettings {
    /// Output name; values per word and label: one for each length of the spans that begin with the word, or one each
    /// for the word as the first, the last and any word of an entity.
    pub output: String,
    /// The token in front of a schema, in models that read labels in one (GLiNER2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_token: Option<String>,
    /// The token before each label; empty with a label encoder, like the separator.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub label_token: String,
    /// The token between the labels and the text.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub separator: String,
    /// Maximum words per entity; `None` in models that score words, not spans.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_entity_words: Option<usize>,
    /// The encoder that reads the labels; `None` in models that read them in front of each text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_encoder: Option<LabelEncoderSettings>,
    /// Maximum words per text or window.
    pub max_words: usize,
    /// Maximum tokens per text or window, labels and special tokens included.
    pub max_tokens: usize,
}

impl ZeroShotEntitiesSettings {
    /// Prompt tokens in front of each text: the labels, each after its marker.
    pub fn prompt(&self, labels: &[String], tokenizer: &Tokenizer) -> Result<WordPrompt> {
        let with_ids = |ids| WordPrompt {
            ids,
            words: Vec::new(),
            max_words: self.max_words,
            form: WordForm::Gliner,
            finds_words: true,
        };
        if self.label_encoder.is_some() {
            return Ok(with_ids(Vec::new()));
        }
        if let Some(token) = &self.schema_token {
            let (label_token, separator) = (self.label_token.as_str(), self.separator.as_str());
            let schema = Schema {
                token,
                name: schema::ENTITIES,
                label_token,
                labels,
                separator,
            };
            let prompt = schema.prompt(tokenizer, self.max_tokens)?;
            return Ok(WordPrompt {
                max_words: self.max_words,
                ..prompt
            });
        }
        let size: usize = labels.iter().map(String::len).sum();
        if size > tokenizer::reach(self.max_tokens) {
            return Err(Error::too_large(format!(
                "the labels have {size} bytes, but the model takes at most {} tokens",
                self.max_tokens
            ))
            .with_hint("send fewer or shorter labels"));
        }
        let marker = tokenizer.ids(&self.label_token)?;
        let mut ids = Vec::new();
        for label in labels {
            let tokens = tokenizer.ids(label)?;
            // The model finds labels by their markers.
            let is_marked = marker.iter().any(|marker| tokens.contains(marker));
            if is_marked {
                return Err(Error::invalid(format!(
                    "the label `{}` contains `{}`, which the model reads as its own",
                    label.escape_default(),
                    self.label_token
                ))
                .with_hint("rename it"));
            }
            if tokens.is_empty() {
                return Err(Error::invalid(format!(
                    "the label `{}` has no tokens",
                    label.escape_default()
                )));
            }
            ids.extend(marker.iter().chain(&tokens));
        }
        ids.extend(tokenizer.ids(&self.separator)?);
        Ok(with_ids(ids))
    }
}

/// How word spans are selected by score, with the names and defaults in `gliner`, or as in `gliner2`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EntitySearch {
    /// Entities have higher scores.
    pub threshold: f32,
    /// Whether nested entities are dropped.
    pub is_flat: bool,
    /// Whether the same words may be several entities.
    pub multi_label: bool,
    /// Whether entities are chosen for each label by itself (`gliner2`).
    pub by_label: bool,
}

impl EntitySearch {
    /// Options that are `None` have their defaults. A threshold that is not a probability is refused.
    pub fn new(
        threshold: Option<f32>,
        is_flat: Option<bool>,
        multi_label: Option<bool>,
    ) -> Result<Self> {
        let threshold = threshold.unwrap_or(THRESHOLD);
        if !(0.0..=1.0).contains(&threshold) {
            return Err(Error::invalid(format!(
                "expected a `threshold` from 0 to 1, but found {threshold}"
            )));
        }
        let (is_flat, multi_label) = (is_flat.unwrap_or(true), multi_label.unwrap_or(false));
        Ok(Self {
            threshold,
            is_flat,
            multi_label,
            by_label: false,
        })
    }
}

/// Request options.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeroShotEntitiesOptions {
    /// Entity labels.
    pub labels: Labels,
    /// How entities are chosen.
    pub search: EntitySearch,
    /// How texts above the word limit are read. With redaction, they are refused instead of truncated.
    pub windows: WindowOptions,
    /// Patterns to find besides entities, and the style of replacements.
    pub redaction: Redaction,
}

/// A model that finds entities with labels in the request.
#[derive(Clone, Debug)]
pub struct ZeroShotEntitiesPipeline {
    /// Reads labels and text together, or only the text if labels have their own encoder.
    pub encoder: Encoder,
    /// The model's settings.
    pub settings: Arc<ZeroShotEntitiesSettings>,
    labels: Option<LabelEncoder>,
}

/// A word span with its score for a label.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Span {
    /// Its first character in the text.
    start: usize,
    /// The character after its last.
    end: usize,
    /// Label index.
    label: usize,
    score: f32,
}

impl ZeroShotEntitiesPipeline {
    /// Joins a tokenizer and a model, with the encoder that reads labels, if the settings name one. Fails if the model's
    /// signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: ZeroShotEntitiesSettings,
        labels: Option<LabelEncoder>,
    ) -> Result<Self> {
        let (name, width) = (
            settings.output.clone(),
            settings.max_entity_words.unwrap_or(WORD_SCORES),
        );
        if width == 0 || settings.max_words == 0 {
            return Err(Error::model(
                "expected `max_entity_words` and `max_words` above 0 in the manifest",
            ));
        }
        if settings.label_encoder.is_some() != labels.is_some() {
            return Err(Error::model(
                "expected an encoder for labels only for a model whose manifest names one",
            ));
        }
        let output = vec![NamedOutput {
            name,
            width,
            vectors: Vectors::Any,
        }];
        let encoder = Encoder::new(tokenizer, route.into(), output, None, settings.max_tokens)?;
        Ok(Self {
            encoder,
            settings: settings.into(),
            labels,
        })
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &ZeroShotEntitiesSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Entities per text, replaced by `redactor`.
    pub async fn entities(
        &self,
        texts: Vec<String>,
        options: &ZeroShotEntitiesOptions,
        redactor: &mut Redactor<'_>,
        deadline: Deadline,
    ) -> Result<FoundEntities> {
        let ZeroShotEntitiesOptions {
            labels,
            search,
            mut windows,
            redaction,
        } = options.clone();
        if redaction.replacement.is_some() {
            windows.truncation = Truncation::Off;
        }
        let texts: Arc<[String]> = texts.into();
        let windows = self.windows(&texts, &labels, windows, deadline).await?;
        let (labels, count) = (labels.as_slice(), EntityCount::default());
        let scores_words = self.settings.max_entity_words.is_none();
        let finish = |window: usize, rows: &[Row<'_>]| {
            let mut words: Vec<(usize, usize)> = windows.places[window]
                .spans
                .iter()
                .copied()
                .flatten()
                .collect();
            let stop = AddedStop::of(&mut words);
            let scores = WindowScores {
                words: &words,
                logits: rows[0],
                labels: labels.len(),
                scores_words,
            };
            let mut spans = search.select(search.spans(scores)?);
            if let Some(stop) = stop {
                spans.retain_mut(|span| stop.leave_out(span));
            }
            count.add(spans)
        };
        let (found, mut usage) = self
            .encoder
            .run_all(&windows.encodings, Granularity::Texts, deadline, finish)
            .await?;
        // Texts without words have no windows.
        windows.count_texts(&mut usage);
        let mut by_text: Vec<Vec<Span>> = vec![Vec::new(); texts.len()];
        for (place, spans) in windows.places.iter().zip(found) {
            by_text[place.text].extend(spans?);
        }
        let mut found = Vec::new();
        for (text, spans) in texts.iter().zip(by_text) {
            let index = IndexedText::new(text);
            let entities = |spans: Vec<Span>| -> Vec<Entity> {
                spans
                    .into_iter()
                    .map(|span| span.entity(&index, labels))
                    .collect()
            };
            let all = entities(spans.clone());
            found.push(redactor.text(text, &all, entities(search.select(spans)))?);
        }
        Ok(FoundEntities {
            texts: found,
            usage,
        })
    }

    /// Scores per text, by word and label, and by word count or kind. A text is one window.
    pub async fn span_scores(
        &self,
        texts: Vec<String>,
        labels: &Labels,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Vec<Vec<f32>>> {
        let options = WindowOptions::whole(truncation, texts.len());
        let windows = self
            .windows(&texts.into(), labels, options, deadline)
            .await?;
        let scores_words = self.settings.max_entity_words.is_none();
        let finish = |window: usize, rows: &[Row<'_>]| -> Vec<f32> {
            let (words, longest) = (windows.places[window].spans.len(), rows[0].width);
            let of_words = rows[0]
                .values
                .chunks_exact(labels.as_slice().len() * longest)
                .take(words);
            // Without spans that end after the text.
            let kept = |first: usize| {
                if scores_words {
                    longest
                } else {
                    longest.min(words - first)
                }
            };
            let logits = of_words.enumerate().flat_map(|(first, values)| {
                values
                    .chunks_exact(longest)
                    .flat_map(move |scores| &scores[..kept(first)])
            });
            ScoreFunction::Sigmoid.apply(&logits.copied().collect::<Vec<f32>>())
        };
        let (scores, _) = self
            .encoder
            .run_all(&windows.encodings, Granularity::Texts, deadline, finish)
            .await?;
        Ok(scores)
    }

    /// The windows of each text, after the labels.
    async fn windows(
        &self,
        texts: &Arc<[String]>,
        labels: &Labels,
        options: WindowOptions,
        deadline: Deadline,
    ) -> Result<EncodedWindows> {
        let (settings, tokenizer) = (
            Arc::clone(&self.settings),
            Arc::clone(self.encoder.tokenizer()),
        );
        let names = labels.clone();
        let prompt = move || settings.prompt(names.as_slice(), &tokenizer);
        let size = labels.as_slice().iter().map(String::len).sum();
        let prompt = tokenize(size, deadline, prompt).await?;
        let tokenizer = self.encoder.input_tokenizer(deadline).await?;
        let mut windows = tokenizer.encode_words(texts, prompt, options).await?;
        let longest = windows
            .places
            .iter()
            .map(|place| place.spans.len())
            .max()
            .unwrap_or(0);
        let pairs = longest * labels.as_slice().len();
        if self.settings.max_entity_words.is_none() && pairs > MAX_PAIRS {
            return Err(Error::too_large(format!(
                "expected at most {MAX_PAIRS} pairs of a word and a label in a text, but found \
                 {pairs}"
            ))
            .with_hint("send fewer labels or shorter texts"));
        }
        if let Some(encoder) = &self.labels {
            windows.encodings.labels = Some(encoder.encode(labels.as_slice(), deadline).await?);
        }
        Ok(windows)
    }
}

/// A window's words, with their places in the text, and their logits for each label.
#[derive(Clone, Copy)]
struct WindowScores<'a> {
    words: &'a [(usize, usize)],
    /// A row per word and label.
    logits: Row<'a>,
    labels: usize,
    /// Whether a row has scores of the word, instead of spans by length.
    scores_words: bool,
}

impl EntitySearch {
    /// Spans with scores above the threshold.
    fn spans(&self, scores: WindowScores<'_>) -> Result<Vec<Span>> {
        let WindowScores {
            logits: Row { values, width, .. },
            labels,
            ..
        } = scores;
        if labels == 0 || !values.len().is_multiple_of(labels * width) {
            return Err(Error::inference(format!(
                "expected {width} values for each of {labels} labels, but found {}",
                values.len()
            )));
        }
        match scores.scores_words {
            true => self.spans_of_words(scores),
            false => Ok(self.spans_of_lengths(scores)),
        }
    }

    /// Spans ordered by first word, length and label. A logit row has one value per length.
    fn spans_of_lengths(&self, scores: WindowScores<'_>) -> Vec<Span> {
        let WindowScores {
            words,
            logits:
                Row {
                    values,
                    width: longest,
                    ..
                },
            labels,
            ..
        } = scores;
        let mut found = Vec::new();
        for (first, values) in values
            .chunks_exact(labels * longest)
            .take(words.len())
            .enumerate()
        {
            let scores = ScoreFunction::Sigmoid.apply(values);
            for (length, last) in words[first..].iter().take(longest).enumerate() {
                let of_labels = scores.iter().skip(length).step_by(longest).enumerate();
                let likely = of_labels.filter(|(_, score)| **score > self.threshold);
                let (start, end) = (words[first].0, last.1);
                found.extend(likely.map(|(label, score)| Span {
                    start,
                    end,
                    label,
                    score: *score,
                }));
            }
        }
        found
    }

    /// Spans ordered by first word, label and last word. A logit row has [`WORD_SCORES`] values: the word as the first,
    /// the last and any word of an entity. A span's score is the lowest of its words'.
    fn spans_of_words(&self, scores: WindowScores<'_>) -> Result<Vec<Span>> {
        let WindowScores {
            words,
            logits,
            labels,
            ..
        } = scores;
        let scores = ScoreFunction::Sigmoid.apply(logits.values);
        let of_word = |word: usize, label: usize| &scores[(word * labels + label) * WORD_SCORES..];
        let count = words.len().min(scores.len() / (labels * WORD_SCORES));
        let mut found = Vec::new();
        for (first, label) in
            (0..count).flat_map(|first| (0..labels).map(move |label| (first, label)))
        {
            let mut lowest = of_word(first, label)[0];
            if lowest <= self.threshold {
                continue;
            }
            for last in first..count {
                let [_, end, inside, ..] = of_word(last, label)[..] else {
                    break;
                };
                if inside < self.threshold {
                    break;
                }
                lowest = lowest.min(inside);
                if end > self.threshold {
                    let (start, end_of_word) = (words[first].0, words[last].1);
                    found.push(Span {
                        start,
                        end: end_of_word,
                        label,
                        score: lowest.min(end),
                    });
                }
            }
            if found.len() > MAX_SPANS {
                return Err(Error::too_large(format!(
                    "expected at most {MAX_SPANS} overlapping entities in a text, but found more"
                ))
                .with_hint("send a higher `threshold` or fewer labels"));
            }
        }
        Ok(found)
    }

    /// Resolves conflicts between spans, by label if labels are independent. Returns them in text order.
    fn select(&self, spans: Vec<Span>) -> Vec<Span> {
        if !self.by_label {
            return self.select_together(spans);
        }
        let mut by_label: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
        spans
            .into_iter()
            .for_each(|span| by_label.entry(span.label).or_default().push(span));
        let mut selected: Vec<Span> = by_label
            .into_values()
            .flat_map(|spans| self.select_together(spans))
            .collect();
        selected.sort_by_key(|span| span.start);
        selected
    }

    /// Resolves conflicts between spans in favour of the highest score; ties go to the first span. Returns
    /// them in text order.
    ///
    /// Overlapping spans conflict, unless they are nested and entities are not flat, or both cover the same words and
    /// may have several labels.
    fn select_together(&self, mut spans: Vec<Span>) -> Vec<Span> {
        spans.sort_by(|left, right| right.score.total_cmp(&left.score));
        let longest = spans
            .iter()
            .map(|span| span.end - span.start)
            .max()
            .unwrap_or(0);
        let mut labels: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
        let is_free = |labels: &BTreeMap<(usize, usize), Vec<usize>>, span: &Span| {
            let Span {
                start, end, label, ..
            } = *span;
            let near = labels.range((start.saturating_sub(longest), 0)..(end, 0));
            let mut near = near.filter(|((_, other), _)| *other > start);
            near.all(|((other_start, other_end), labels)| {
                let is_inside = start <= *other_start && *other_end <= end;
                let is_around = *other_start <= start && end <= *other_end;
                match is_inside && is_around {
                    true => self.multi_label && !labels.contains(&label),
                    false => !self.is_flat && (is_inside || is_around),
                }
            })
        };
        spans.retain(|span| {
            let is_free = is_free(&labels, span);
            if is_free {
                labels
                    .entry((span.start, span.end))
                    .or_default()
                    .push(span.label);
            }
            is_free
        });
        spans.sort_by_key(|span| span.start);
        spans
    }
}

/// The full stop that a model reads behind a text, whose span is empty.
#[derive(Clone, Copy, Debug)]
pub struct AddedStop {
    /// The text's end.
    start: usize,
    /// The end of the word in front of it.
    before: usize,
}

impl AddedStop {
    /// Finds it among a window's words, and gives it a character behind the text, so that it conflicts with others like any
    /// word.
    pub fn of(words: &mut [(usize, usize)]) -> Option<Self> {
        let (last, others) = words.split_last_mut()?;
        let start = last.0;
        (last.1 == start).then(|| {
            last.1 += 1;
            Self {
                start,
                before: others.last().map_or(start, |(_, end)| *end),
            }
        })
    }

    /// Ends a span in front of it; returns whether the span has other words.
    fn leave_out(self, span: &mut Span) -> bool {
        span.end = self.end(span.end);
        span.start < span.end
    }

    /// A span's end in front of it.
    pub fn end(self, end: usize) -> usize {
        if end > self.start { self.before } else { end }
    }
}

impl Span {
    fn entity(self, text: &IndexedText<'_>, labels: &[String]) -> Entity {
        let Self {
            start,
            end,
            label,
            score,
        } = self;
        let label = EntityLabel::Group {
            entity_group: labels[label].clone(),
        };
        Entity {
            label,
            score,
            word: text.part(start, end).to_owned(),
            start,
            end,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(
        spans: &[(usize, usize, usize, f32)],
        is_flat: bool,
        multi_label: bool,
    ) -> Vec<(usize, usize, usize)> {
        let span = |(start, end, label, score): &(usize, usize, usize, f32)| Span {
            start: *start,
            end: *end,
            label: *label,
            score: *score,
        };
        let search = EntitySearch::new(None, Some(is_flat), Some(multi_label)).unwrap();
        let found = search.select(spans.iter().map(span).collect());
        found
            .into_iter()
            .map(|span| (span.start, span.end, span.label))
            .collect()
    }

    #[test]
    fn of_spans_that_exclude_each_other_the_likeliest_is_kept() {
        let crossing = [(0, 5, 0, 0.6), (3, 8, 0, 0.7), (9, 12, 1, 0.5)];
        for is_flat in [true, false] {
            assert_eq!(selected(&crossing, is_flat, false), [(3, 8, 0), (9, 12, 1)]);
        }
        let nested = [(0, 8, 0, 0.6), (0, 5, 0, 0.9), (6, 8, 1, 0.7)];
        assert_eq!(selected(&nested, true, false), [(0, 5, 0), (6, 8, 1)]);
        assert_eq!(
            selected(&nested, false, false),
            [(0, 5, 0), (0, 8, 0), (6, 8, 1)]
        );
        let same = [(0, 5, 0, 0.6), (0, 5, 1, 0.9), (0, 5, 1, 0.8)];
        assert_eq!(selected(&same, true, false), [(0, 5, 1)]);
        // A span in two windows is one entity.
        assert_eq!(selected(&same, true, true), [(0, 5, 1), (0, 5, 0)]);
        // Ties go to the first entity.
        assert_eq!(
            selected(&[(0, 5, 0, 0.6), (0, 5, 1, 0.6)], true, false),
            [(0, 5, 0)]
        );
    }

    #[test]
    fn labels_are_independent_on_request() {
        let span = |(start, end, label, score)| Span {
            start,
            end,
            label,
            score,
        };
        let crossing = [
            (0, 5, 0, 0.6),
            (3, 8, 1, 0.7),
            (3, 8, 0, 0.8),
            (9, 12, 1, 0.5),
        ]
        .map(span);
        let search = EntitySearch {
            by_label: true,
            ..EntitySearch::new(None, None, None).unwrap()
        };
        let found = search.select(crossing.to_vec());
        let found: Vec<_> = found
            .into_iter()
            .map(|span| (span.start, span.end, span.label))
            .collect();
        assert_eq!(found, [(3, 8, 0), (3, 8, 1), (9, 12, 1)]);
    }

    #[test]
    fn an_added_stop_is_no_part_of_entities() {
        let mut words = [(0, 2), (3, 6), (8, 8)];
        let stop = AddedStop::of(&mut words).unwrap();
        assert_eq!(words[2], (8, 9));
        let left = |start, end| {
            let mut span = Span {
                start,
                end,
                label: 0,
                score: 1.0,
            };
            stop.leave_out(&mut span).then_some((span.start, span.end))
        };
        assert_eq!(
            [left(0, 2), left(3, 9), left(8, 9)],
            [Some((0, 2)), Some((3, 6)), None]
        );
        assert!(AddedStop::of(&mut [(0, 2)]).is_none());
        assert!(AddedStop::of(&mut []).is_none());
    }

    #[test]
    fn scores_are_those_of_words_labels_and_lengths() {
        // Two words, two labels and spans up to two words; the second word has no two-word span.
        let values = [-9.0, 2.0, 1.0, -9.0, -9.0, 9.0, 3.0, 9.0];
        let search = EntitySearch::new(None, None, None).unwrap();
        let logits = Row {
            values: &values,
            columns: 2,
            width: 2,
        };
        let scores = WindowScores {
            words: &[(0, 3), (4, 6)],
            logits,
            labels: 2,
            scores_words: false,
        };
        let found = search.spans(scores).unwrap();
        let places: Vec<_> = found
            .iter()
            .map(|span| (span.start, span.end, span.label))
            .collect();
        assert_eq!(places, [(0, 3, 1), (0, 6, 0), (4, 6, 1)]);
        assert!((found[1].score - 0.880_797).abs() < 1e-6);
        assert!(
            search
                .spans(WindowScores {
                    labels: 3,
                    ..scores
                })
                .is_err()
        );
        assert!(EntitySearch::new(Some(f32::NAN), None, None).is_err());
    }
    #[test]
    fn words_begin_end_and_continue_entities() {
        let words: Vec<(usize, usize)> = (0..4).map(|word| (2 * word, 2 * word + 1)).collect();
        // Logits of each word as the first, the last and any word; the third word interrupts.
        let values = [3.0, -9.0, 2.0, 1.0, 4.0, 5.0, 9.0, 9.0, -1.0, 2.0, 2.0, 2.0];
        let logits = Row {
            values: &values,
            columns: 1,
            width: WORD_SCORES,
        };
        let scores = WindowScores {
            words: &words,
            logits,
            labels: 1,
            scores_words: true,
        };
        let search = EntitySearch::new(None, None, None).unwrap();
        let found = search.spans(scores).unwrap();
        let places: Vec<_> = found.iter().map(|span| (span.start, span.end)).collect();
        assert_eq!(places, [(0, 3), (2, 3), (6, 7)]);
        // The lowest of the first word's 3 and 2, and of the last word's 4 and 5.
        assert!((found[0].score - 0.880_797).abs() < 1e-6, "{found:?}");
        // Two labels: in each word, a label's scores are together.
        let two: Vec<f32> = values
            .chunks(WORD_SCORES)
            .flat_map(|word| [&[-9.0; 3], word].concat())
            .collect();
        let logits = Row {
            values: &two,
            columns: 2,
            width: WORD_SCORES,
        };
        let found = search
            .spans(WindowScores {
                logits,
                labels: 2,
                ..scores
            })
            .unwrap();
        assert_eq!(
            found.iter().map(|span| span.label).collect::<Vec<_>>(),
            [1; 3]
        );
    }

    #[test]
    fn more_spans_than_fit_into_memory_are_refused() {
        let words: Vec<(usize, usize)> = (0..1500).map(|word| (word, word + 1)).collect();
        let values = vec![9.0; words.len() * WORD_SCORES];
        let scores = WindowScores {
            words: &words,
            logits: Row {
                values: &values,
                columns: 1,
                width: WORD_SCORES,
            },
            labels: 1,
            scores_words: true,
        };
        let search = EntitySearch::new(None, None, None).unwrap();
        let refusal = search.spans(scores).unwrap_err().to_string();
        insta::assert_snapshot!(refusal, @"expected at most 1048576 overlapping entities in a text, but found more; send a higher `threshold` or fewer labels");
    }
}
