//! Token scores to entities, with the results of the `token-classification` pipeline in `transformers`.

pub mod extraction;
pub mod schema;
pub mod tags;
pub mod token_classification;
pub mod zero_shot_entities;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::tags::{OUTSIDE, TagScheme, TransitionBiases, largest};
use super::redaction::placeholders::Mapping;
use kivu_base::{Error, Result};
use kivu_text::Tokenizer;

/// How token labels become entity labels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Aggregation {
    /// Each token has its own label.
    None,
    /// Neighbouring tokens with labels of the same kind form an entity; if labels mark ends, the likeliest entities do.
    #[default]
    Simple,
    /// Like `simple`, but each word gets its first token's label.
    First,
    /// Like `simple`, but each word gets the best label by its tokens' mean scores.
    Average,
    /// Like `simple`, but each word gets its most certain token's label.
    Max,
}

/// An entity, or a single token's label.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Entity {
    /// Entity or token label.
    #[serde(flatten)]
    pub label: EntityLabel,
    /// Label probability, 0 to 1.
    pub score: f32,
    /// Joined token text.
    pub word: String,
    /// The position of its first character in the text.
    pub start: usize,
    /// The position after its last character.
    pub end: usize,
}

/// Entity or token label.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum EntityLabel {
    /// Entity label, without `B-` or `I-`.
    Group {
        /// The label without `B-` or `I-`, such as `PER`.
        entity_group: String,
    },
    /// Token label.
    Token {
        /// The label, such as `B-PER`.
        entity: Arc<str>,
        /// Token position, special tokens included.
        index: usize,
    },
}

/// A text's entities, as they appear in responses.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum TextEntities {
    /// Without redaction.
    Entities(Vec<Entity>),
    /// The entities, and the text in which they are replaced.
    Redacted {
        /// The text, with a placeholder in place of each entity.
        text: String,
        /// The entities, with their places in the text as it was sent.
        entities: Vec<Entity>,
        /// Originals by placeholder, if they are numbers or hashes.
        #[serde(skip_serializing_if = "Option::is_none")]
        mapping: Option<Mapping>,
    },
}

impl Entity {
    /// Label name; without `B-` or `I-` for entities.
    pub fn label(&self) -> &str {
        match &self.label {
            EntityLabel::Group { entity_group } => entity_group,
            EntityLabel::Token { entity, .. } => entity,
        }
    }
}

impl TextEntities {
    /// The entities, with their places in the text as it was sent.
    pub fn entities(&self) -> &[Entity] {
        match self {
            Self::Entities(entities) | Self::Redacted { entities, .. } => entities,
        }
    }
}

/// Per request.
const MAX_ENTITIES: usize = 100_000;

/// Counts a request's entities and enforces the limit.
#[derive(Debug, Default)]
pub struct EntityCount(AtomicUsize);

impl EntityCount {
    /// Adds a window's entities.
    pub fn add<T>(&self, entities: Vec<T>) -> Result<Vec<T>> {
        match self.0.fetch_add(entities.len(), Ordering::Relaxed) + entities.len() {
            ..=MAX_ENTITIES => Ok(entities),
            _ => Err(Error::too_large(format!(
                "expected at most {MAX_ENTITIES} entities in all texts, but found more"
            ))
            .with_hint("send fewer or shorter texts")),
        }
    }
}

/// A text with a character index.
pub struct IndexedText<'a> {
    text: &'a str,
    /// Byte offset per character, and the text length.
    starts: Vec<usize>,
}

impl<'a> IndexedText<'a> {
    /// Indexes the text's characters.
    pub fn new(text: &'a str) -> Self {
        let starts = text
            .char_indices()
            .map(|(start, _)| start)
            .chain([text.len()])
            .collect();
        Self { text, starts }
    }

    /// The byte at which a character starts.
    pub fn byte(&self, character: usize) -> usize {
        self.starts
            .get(character)
            .copied()
            .unwrap_or(self.text.len())
    }

    /// The text between two character positions, the end excluded; empty if the end is before the start.
    pub fn part(&self, start: usize, end: usize) -> &'a str {
        self.text
            .get(self.byte(start)..self.byte(end))
            .unwrap_or_default()
    }
}

/// A token with its scores.
pub struct ScoredToken {
    /// Token id.
    pub id: u32,
    /// Its position, special tokens included.
    pub index: usize,
    /// Its start and end in the text, in characters.
    pub span: (usize, usize),
    /// Probability per label.
    pub scores: Vec<f32>,
}

/// Groups token scores to entities, with the model's labels and tokenizer.
pub struct Grouping<'a> {
    /// The model's tokenizer.
    pub tokenizer: &'a Tokenizer,
    /// The model's labels, in the order of a token's scores.
    pub labels: &'a [Arc<str>],
    /// How tokens become entities.
    pub aggregation: Aggregation,
    /// Labels that are left out.
    pub ignored: &'a BTreeSet<String>,
    /// Id of the unknown token, whose word is its source text.
    pub unknown_token: Option<u32>,
    /// How labels mark entities, if they mark ends, and what is added to the scores of neighbours.
    pub tags: Option<(&'a TagScheme, TransitionBiases)>,
}

/// A token or multi-token word before grouping.
struct Piece {
    label: usize,
    score: f32,
    word: String,
    start: usize,
    end: usize,
    index: usize,
}

/// A token before word labels are decided.
struct WordPart {
    token: ScoredToken,
    word: String,
    /// Whether it continues the previous token's word.
    continues: bool,
}

impl Grouping<'_> {
    /// Entities in a text's window.
    pub fn entities(
        &self,
        text: &IndexedText<'_>,
        tokens: impl IntoIterator<Item = ScoredToken>,
    ) -> Result<Vec<Entity>> {
        let parts = self.parts(text, tokens);
        let pieces = match self.aggregation {
            Aggregation::Simple if let Some((scheme, biases)) = &self.tags => {
                let scores: Vec<&[f32]> = parts.iter().map(|part| &*part.token.scores).collect();
                let labels = scheme.decode(&scores, biases);
                let pieces = parts.into_iter().zip(labels);
                pieces.map(|(part, label)| part.with_label(label)).collect()
            }
            Aggregation::None | Aggregation::Simple => {
                parts.into_iter().map(WordPart::into_piece).collect()
            }
            Aggregation::First | Aggregation::Average | Aggregation::Max => self.words(&parts)?,
        };
        let mut entities = match self.aggregation {
            Aggregation::None => pieces
                .into_iter()
                .map(|piece| self.of_token(piece))
                .collect(),
            _ => self.groups(&pieces)?,
        };
        entities.retain(|entity| !self.ignored.contains(entity.label()));
        Ok(entities)
    }

    fn parts(
        &self,
        text: &IndexedText<'_>,
        tokens: impl IntoIterator<Item = ScoredToken>,
    ) -> Vec<WordPart> {
        let marks_subwords = self.tokenizer.marks_subwords();
        let part = |token: ScoredToken| {
            let (start, end) = token.span;
            let word = self.tokenizer.token(token.id).unwrap_or_default();
            let original = text.part(start, end);
            if Some(token.id) == self.unknown_token {
                return WordPart {
                    token,
                    word: original.to_owned(),
                    continues: false,
                };
            }
            let continues = match marks_subwords {
                // The subword prefix makes a token longer than its source text.
                true => word.chars().count() != original.chars().count(),
                // Without a prefix, spaces separate words.
                false => start > 0 && !text.part(start - 1, start + 1).contains(' '),
            };
            WordPart {
                token,
                word,
                continues,
            }
        };
        tokens.into_iter().map(part).collect()
    }

    /// Joins each word's tokens and decides its label.
    fn words(&self, parts: &[WordPart]) -> Result<Vec<Piece>> {
        let words = parts.chunk_by(|_, next| next.continues);
        words.map(|word| self.word(word)).collect()
    }

    fn word(&self, parts: &[WordPart]) -> Result<Piece> {
        let tokens = || parts.iter().map(|part| &part.token);
        let (label, score) = match self.aggregation {
            Aggregation::Max => largest(tokens().map(|token| best(&token.scores))),
            Aggregation::Average => best(&mean(tokens().map(|token| &token.scores[..]))),
            _ => parts
                .first()
                .map_or((0, 0.0), |first| best(&first.token.scores)),
        };
        Ok(Piece {
            label,
            score,
            word: self
                .tokenizer
                .join(parts.iter().map(|part| part.word.clone()).collect())?,
            start: parts.first().map_or(0, |first| first.token.span.0),
            end: parts.last().map_or(0, |last| last.token.span.1),
            index: parts.first().map_or(0, |first| first.token.index),
        })
    }

    fn of_token(&self, piece: Piece) -> Entity {
        let Piece {
            label,
            score,
            word,
            start,
            end,
            index,
        } = piece;
        let label = EntityLabel::Token {
            entity: Arc::clone(&self.labels[label]),
            index,
        };
        Entity {
            label,
            score,
            word,
            start,
            end,
        }
    }

    /// Joins neighbours with labels of the same kind; a label with `B-` begins an entity.
    fn groups(&self, pieces: &[Piece]) -> Result<Vec<Entity>> {
        let tags = self.tags.as_ref().map(|(tags, _)| *tags);
        let tags = tags.filter(|_| self.aggregation == Aggregation::Simple);
        let continues =
            |piece: &Piece, next: &Piece| continues(self.labels, tags, [piece.label, next.label]);
        pieces
            .chunk_by(continues)
            .map(|group| self.group(group))
            .collect()
    }

    fn group(&self, pieces: &[Piece]) -> Result<Entity> {
        let name = pieces
            .first()
            .map_or("", |first| &*self.labels[first.label]);
        let name = entity_group(name);
        let score =
            pieces.iter().map(|piece| piece.score).sum::<f32>() / pieces.len().max(1) as f32;
        Ok(Entity {
            label: EntityLabel::Group {
                entity_group: name.to_owned(),
            },
            score,
            word: self
                .tokenizer
                .join(pieces.iter().map(|piece| piece.word.clone()).collect())?,
            start: pieces.first().map_or(0, |first| first.start),
            end: pieces.last().map_or(0, |last| last.end),
        })
    }
}

/// Whether a token with the second label continues the entity of one with the first.
fn continues(labels: &[impl AsRef<str>], tags: Option<&TagScheme>, pair: [usize; 2]) -> bool {
    if let Some(tags) = tags {
        let [(_, kind), (begins, next)] = pair.map(|label| tags.begins(label));
        return kind == next && !begins;
    }
    let [(_, kind), (begins, next)] = pair.map(|label| {
        let label = labels[label].as_ref();
        match (label.strip_prefix("B-"), label.strip_prefix("I-")) {
            (Some(kind), _) => (true, kind),
            (None, Some(kind)) => (false, kind),
            (None, None) => (false, label),
        }
    });
    kind == next && !begins
}

/// The entities of [`Aggregation::Simple`] in a text: the places of their tokens, and their labels. `scores` has a probability
/// per token and label.
pub fn entity_places(labels: &[String], scores: &[f32]) -> BTreeSet<(usize, usize, String)> {
    let tags = TagScheme::new(labels);
    let rows: Vec<&[f32]> = scores.chunks_exact(labels.len().max(1)).collect();
    let found: Vec<usize> = match &tags {
        Some(tags) => tags.decode(&rows, &TransitionBiases::default()),
        None => rows.iter().map(|row| best(row).0).collect(),
    };
    let mut start = 0;
    let groups = found.chunk_by(|label, next| continues(labels, tags.as_ref(), [*label, *next]));
    let places = groups.map(|group| {
        let first = start;
        start += group.len();
        (first, start, entity_group(&labels[group[0]]).to_owned())
    });
    places.filter(|(_, _, label)| label != OUTSIDE).collect()
}

/// The label of entities whose tokens have this label; as in `transformers`, it follows a hyphen even if the label begins
/// with neither `B-` nor `I-`.
pub fn entity_group(label: &str) -> &str {
    label.split_once('-').map_or(label, |(_, group)| group)
}

impl WordPart {
    fn into_piece(self) -> Piece {
        let (label, _) = best(&self.token.scores);
        self.with_label(label)
    }

    fn with_label(self, label: usize) -> Piece {
        let (score, (start, end)) = (self.token.scores[label], self.token.span);
        Piece {
            label,
            score,
            word: self.word,
            start,
            end,
            index: self.token.index,
        }
    }
}

/// Index and value of the highest score; ties go to the first.
fn best(scores: &[f32]) -> (usize, f32) {
    largest(scores.iter().copied().enumerate())
}

fn mean<'a>(rows: impl Iterator<Item = &'a [f32]>) -> Vec<f32> {
    let (mut sums, mut count) = (Vec::new(), 0.0);
    for row in rows {
        sums.resize(row.len(), 0.0);
        sums.iter_mut()
            .zip(row)
            .for_each(|(sum, score)| *sum += score);
        count += 1.0;
    }
    sums.iter().map(|sum: &f32| sum / count).collect()
}

/// Merges the entities from a text's windows. Of overlapping entities, the longest is kept; if equally long, the one
/// with the highest score.
pub fn resolve_overlaps(mut entities: Vec<Entity>) -> Vec<Entity> {
    entities.sort_by_key(|entity| entity.start);
    let mut resolved: Vec<Entity> = Vec::new();
    for entity in entities {
        match resolved.last_mut() {
            Some(last) if entity.start < last.end => {
                let [found, known] = [&entity, &*last].map(|entity| entity.end - entity.start);
                if found > known || found == known && entity.score > last.score {
                    *last = entity;
                }
            }
            _ => resolved.push(entity),
        }
    }
    resolved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entity(start: usize, end: usize, score: f32) -> Entity {
        let label = EntityLabel::Group {
            entity_group: "PER".into(),
        };
        Entity {
            label,
            score,
            word: String::new(),
            start,
            end,
        }
    }

    #[test]
    fn of_overlapping_entities_the_longest_or_most_certain_is_kept() {
        let spans = |entities: Vec<Entity>| -> Vec<_> {
            let entities = resolve_overlaps(entities).into_iter();
            entities
                .map(|entity| (entity.start, entity.end, entity.score))
                .collect()
        };
        assert_eq!(
            spans(vec![entity(5, 9, 0.5), entity(0, 4, 0.9)]),
            [(0, 4, 0.9), (5, 9, 0.5)]
        );
        assert_eq!(
            spans(vec![entity(0, 4, 0.9), entity(2, 8, 0.1)]),
            [(2, 8, 0.1)]
        );
        assert_eq!(
            spans(vec![
                entity(0, 4, 0.1),
                entity(0, 4, 0.9),
                entity(0, 4, 0.5)
            ]),
            [(0, 4, 0.9)]
        );
        // Neighbours do not overlap.
        assert_eq!(spans(vec![entity(0, 4, 0.1), entity(4, 8, 0.9)]).len(), 2);
    }
}
