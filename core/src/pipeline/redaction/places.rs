//! Places in a text that are replaced.

use std::{collections::BTreeMap, iter, ops::Range};

use unicode_segmentation::GraphemeCursor;

use crate::pipeline::entities::{Entity, IndexedText};
use kivu_text::word_bounds;

/// The words of a model's entities, in bytes, with their labels.
///
/// Whole words are replaced, so that no name fragment, combining mark or emoji component remains; white space at an
/// entity's ends is kept. Entities that share a word are merged and get the first one's label.
pub fn entity_places<'a>(text: &str, entities: &'a [Entity]) -> Vec<(Range<usize>, &'a str)> {
    let index = IndexedText::new(text);
    let bytes = |entity: &Entity| -> (usize, usize) {
        let (start, end) = (index.byte(entity.start), index.byte(entity.end));
        let part = text.get(start..end).unwrap_or_default();
        (
            start + part.len() - part.trim_start().len(),
            start + part.trim_end().len(),
        )
    };
    let mut places: Vec<((usize, usize), &str)> = entities
        .iter()
        .map(|entity| (bytes(entity), entity.label()))
        .filter(|((start, end), _)| start < end)
        .collect();
    if places.is_empty() {
        return Vec::new();
    }
    places.sort_by_key(|(place, _)| *place);
    let bounds = word_bounds(text);
    let mut merged: Vec<(Range<usize>, &str)> = Vec::new();
    for ((start, end), label) in places {
        let word = bounds.range(..=start).next_back().copied().unwrap_or(0);
        // An invisible mark belongs to the white space before it.
        let start = start - text[word..start].trim_start().len();
        let end = bounds.range(end..).next().copied().unwrap_or(text.len());
        match merged.last_mut() {
            Some((last, _)) if start < last.end => last.end = last.end.max(end),
            _ => merged.push((start..end, label)),
        }
    }
    merged
}

/// Places that do not overlap, with their labels.
#[derive(Debug, Default)]
pub struct Places<'a>(BTreeMap<usize, (usize, &'a str)>);

impl<'a> Places<'a> {
    /// Adds a place, widened to whole grapheme clusters. Of a place that overlaps earlier ones, the parts between them are
    /// added, without white space and punctuation at their ends. Returns whether all of it was free.
    pub fn add(&mut self, text: &str, range: &Range<usize>, label: &'a str) -> bool {
        let range = cluster_start(text, range.start)..cluster_end(text, range.end);
        let overlapping = self.overlapping(&range);
        if overlapping.is_empty() {
            self.0.insert(range.start, (range.end, label));
            return true;
        }
        let mut start = range.start;
        let end = range.end..range.end;
        for taken in overlapping.into_iter().chain(iter::once(end)) {
            let part = text.get(start..taken.start).unwrap_or_default();
            let is_edge = |c: char| c.is_whitespace() || c.is_ascii_punctuation();
            let first = start + part.len() - part.trim_start_matches(is_edge).len();
            let part = part.trim_matches(is_edge);
            if !part.is_empty() {
                self.0.insert(first, (first + part.len(), label));
            }
            start = taken.end;
        }
        false
    }

    /// Whether no place overlaps `range`.
    pub fn is_free(&self, range: &Range<usize>) -> bool {
        self.overlapping(range).is_empty()
    }

    /// The places in the text's order.
    pub fn iter(&self) -> impl Iterator<Item = (Range<usize>, &'a str)> {
        self.0
            .iter()
            .map(|(start, (end, label))| (*start..*end, *label))
    }

    fn overlapping(&self, range: &Range<usize>) -> Vec<Range<usize>> {
        let before = self.0.range(..range.start).next_back();
        let before = before.filter(|(_, (end, _))| *end > range.start);
        let places = before.into_iter().chain(self.0.range(range.clone()));
        places.map(|(start, (end, _))| *start..*end).collect()
    }
}

fn cluster_start(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(false) => cursor.prev_boundary(text, 0).ok().flatten().unwrap_or(0),
        _ => at,
    }
}

fn cluster_end(text: &str, at: usize) -> usize {
    let mut cursor = GraphemeCursor::new(at, text.len(), true);
    match cursor.is_boundary(text, 0) {
        Ok(false) => cursor
            .next_boundary(text, 0)
            .ok()
            .flatten()
            .unwrap_or(text.len()),
        _ => at,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::entities::EntityLabel;

    fn redacted(text: &str, spans: &[(usize, usize, &str)]) -> String {
        let entity = |(start, end, label): &(usize, usize, &str)| Entity {
            label: EntityLabel::Group {
                entity_group: (*label).to_owned(),
            },
            score: 1.0,
            word: String::new(),
            start: *start,
            end: *end,
        };
        let entities: Vec<Entity> = spans.iter().map(entity).collect();
        let (mut redacted, mut covered) = (String::new(), 0);
        for (range, label) in entity_places(text, &entities) {
            redacted.push_str(&text[covered..range.start]);
            redacted.extend(["[", label, "]"]);
            covered = range.end;
        }
        redacted + &text[covered..]
    }

    #[test]
    fn entities_are_replaced_by_their_labels() {
        assert_eq!(
            redacted("Ann lives in Rome.", &[(0, 3, "PER"), (13, 17, "LOC")]),
            "[PER] lives in [LOC]."
        );
        assert_eq!(redacted("Ann lives", &[]), "Ann lives");
        // White space at an entity's ends is kept.
        assert_eq!(
            redacted("in New York now", &[(2, 12, "LOC")]),
            "in [LOC] now"
        );
        assert_eq!(
            redacted("Dr. \u{200f}Ann", &[(5, 8, "PER")]),
            "Dr. \u{200f}[PER]"
        );
        assert_eq!(redacted("Dr. \u{200f}Ann", &[(4, 8, "PER")]), "Dr. [PER]");
        // Neighbours and overlaps.
        assert_eq!(redacted("ab-cd", &[(2, 5, "B"), (0, 2, "A")]), "[A][B]");
        assert_eq!(redacted("ab cd ef", &[(0, 4, "A"), (3, 5, "B")]), "[A] ef");
        assert_eq!(redacted("abc", &[(1, 1, "A"), (7, 9, "B")]), "abc");
    }

    #[test]
    fn no_part_of_a_word_remains() {
        assert_eq!(redacted("Ann McDonald!", &[(0, 6, "PER")]), "[PER]!");
        assert_eq!(redacted("Ann McDonald!", &[(8, 9, "PER")]), "Ann [PER]!");
        assert_eq!(redacted("abcd", &[(2, 4, "B"), (0, 2, "A")]), "[A]");
        // Vietnamese with combining marks.
        assert_eq!(
            redacted("Nguye\u{302}\u{303}n Hue\u{323}\u{302}", &[(0, 5, "PER")]),
            "[PER] Hue\u{323}\u{302}"
        );
        assert_eq!(redacted("Hue\u{323}\u{302}", &[(3, 4, "LOC")]), "[LOC]");
        // Single-character words.
        assert_eq!(redacted("王明在京", &[(0, 2, "PER")]), "[PER]在京");
    }

    #[test]
    fn no_part_of_a_character_remains() {
        // An entity covers part of a combining sequence or an emoji family.
        assert_eq!(redacted("Jose\u{301} x", &[(0, 4, "PER")]), "[PER] x");
        assert_eq!(redacted("👩\u{200d}👧 x", &[(0, 1, "E")]), "[E] x");
        assert_eq!(redacted("👩\u{200d}👧 x", &[(2, 3, "E")]), "[E] x");
        assert_eq!(redacted("e\u{301}a", &[(0, 1, "A"), (1, 3, "B")]), "[A]");
    }
}
