//! Personal data in texts: found by patterns beside a model or without one, replaced by placeholders, and restored.

mod checks;
mod key;
pub mod patterns;
pub mod placeholders;
mod places;
mod plain;
#[cfg(test)]
mod tests;

pub use self::key::Key;
use self::{
    patterns::{Match, Patterns},
    placeholders::{Mapping, Memory, NumberScope, Replacement, placeholders},
    places::{Places, entity_places},
};
use super::entities::{Entity, EntityCount, EntityLabel, TextEntities};
use kivu_base::Result;

/// The label of a placeholder that stood in the text before.
pub const LITERAL: &str = "PLACEHOLDER";

/// Patterns to find besides a model's entities, and the style of all replacements.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redaction {
    /// Patterns that are found beside the model's entities.
    pub patterns: Patterns,
    /// How originals are replaced; `None` if texts are not returned.
    pub replacement: Option<Replacement>,
    /// Where the same original has the same number.
    pub scope: NumberScope,
    /// Placeholders from earlier requests.
    pub known: Mapping,
}

/// Redacts a request's texts, one after the other.
pub struct Redactor<'a> {
    redaction: &'a Redaction,
    memory: Memory,
    /// Matches of patterns; `None` without a limit.
    count: Option<EntityCount>,
}

impl Redaction {
    /// Begins with a request's first text.
    ///
    /// # Errors
    /// The mapping has names that are no placeholders.
    pub fn begin(&self) -> Result<Redactor<'_>> {
        Ok(Redactor {
            redaction: self,
            memory: Memory::continued(&self.known)?,
            count: Some(EntityCount::default()),
        })
    }
}

impl Redactor<'_> {
    /// Begins with another request's texts, whose number of matches is limited by itself.
    pub fn begin_request(&mut self) {
        self.count = self.count.take().map(|_| EntityCount::default());
    }

    /// Matches without a limit of their number, as in files, which are in no response.
    #[must_use]
    pub fn without_limit(self) -> Self {
        Self {
            count: None,
            ..self
        }
    }

    /// All placeholders so far, with their originals.
    pub fn mapping(&self) -> &Mapping {
        &self.memory.mapping
    }

    /// A text's result. `all` are the model's entities, including those that others overrule, since they may cover more of
    /// the text; `entities` are the others. Where a pattern crosses a model's entity, the pattern is the entity.
    ///
    /// # Errors
    /// There are too many matches, or an original is too long to be encrypted.
    pub fn text(
        &mut self,
        text: &str,
        all: &[Entity],
        mut entities: Vec<Entity>,
    ) -> Result<TextEntities> {
        let Redaction {
            patterns,
            replacement,
            scope,
            known,
        } = self.redaction;
        let mut places = Places::default();
        let matches = patterns.matches(text);
        let matches = match &self.count {
            Some(count) => count.add(matches)?,
            None => matches,
        };
        let mut first: Vec<&Match> = Vec::new();
        for found in &matches {
            if places.add(text, &found.range, found.name) {
                first.push(found);
            }
        }
        if !first.is_empty() {
            entities = with_matches(text, entities, first);
        }
        let Some(replacement) = replacement else {
            return Ok(TextEntities::Entities(entities));
        };
        for (range, label) in entity_places(text, all) {
            places.add(text, &range, label);
        }
        // Placeholders that the text has already would be taken for replacements.
        for range in placeholders(text).filter(|_| replacement.is_reversible()) {
            if places.is_free(&range) {
                places.add(text, &range, LITERAL);
            }
        }
        if *scope == NumberScope::Text {
            self.memory = Memory::continued(known)?;
        }
        let has_mapping = matches!(replacement, Replacement::Number | Replacement::Hash(_));
        let (mut redacted, mut end, mut mapping) = (String::new(), 0, Mapping::default());
        for (range, label) in places.iter() {
            let original = &text[range.clone()];
            let placeholder = self.memory.placeholder(replacement, label, original)?;
            redacted.push_str(&text[end..range.start]);
            redacted.push_str(&placeholder);
            end = range.end;
            if has_mapping {
                mapping.0.insert(placeholder, original.to_owned());
            }
        }
        redacted.push_str(&text[end..]);
        Ok(TextEntities::Redacted {
            text: redacted,
            entities,
            mapping: has_mapping.then_some(mapping),
        })
    }
}

/// The model's entities that no match crosses, and the matches, in the text's order.
fn with_matches(text: &str, entities: Vec<Entity>, mut matches: Vec<&Match>) -> Vec<Entity> {
    matches.sort_by_key(|found| found.range.start);
    let (mut at, mut character) = (0, 0);
    let mut characters_to = |byte: usize| {
        character += text[at..byte].chars().count();
        at = byte;
        character
    };
    let mut found: Vec<Entity> = Vec::new();
    for Match { range, name } in matches {
        found.push(Entity {
            label: EntityLabel::Group {
                entity_group: (*name).to_owned(),
            },
            score: 1.0,
            word: text[range.clone()].to_owned(),
            start: characters_to(range.start),
            end: characters_to(range.end),
        });
    }
    let is_crossed = |entity: &Entity| {
        let next = found.partition_point(|found| found.end <= entity.start);
        found
            .get(next)
            .is_some_and(|found| found.start < entity.end)
    };
    let mut all = entities;
    all.retain(|entity| !is_crossed(entity));
    all.extend(found);
    all.sort_by_key(|entity| entity.start);
    all
}
