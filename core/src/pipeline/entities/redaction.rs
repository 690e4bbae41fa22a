//! Texts in which entities are replaced by their labels.

use super::{Entity, IndexedText};
use kivu_text::word_bounds;

/// Replaces each entity by its label in brackets: `[PER] lives in [LOC].`
///
/// Whole words are replaced, so that no name fragment, combining mark or emoji component remains; white space at an
/// entity's ends is kept. Entities that share a word are merged and get the first one's label.
pub fn redact(text: &str, entities: &[Entity]) -> String {
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
        return text.to_owned();
    }
    places.sort_by_key(|(place, _)| *place);
    let bounds = word_bounds(text);
    let (mut redacted, mut covered) = (String::new(), 0);
    for ((start, end), label) in places {
        let word = bounds.range(..=start).next_back().copied().unwrap_or(0);
        // An invisible mark belongs to the white space before it.
        let start = start - text[word..start].trim_start().len();
        let end = bounds.range(end..).next().copied().unwrap_or(text.len());
        if start >= covered {
            redacted.push_str(&text[covered..start]);
            redacted.extend(["[", label, "]"]);
        }
        covered = covered.max(end);
    }
    redacted.push_str(&text[covered..]);
    redacted
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
        redact(text, &spans.iter().map(entity).collect::<Vec<_>>())
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
