//! Texts in which entities are replaced by their labels.

use unicode_segmentation::UnicodeSegmentation;

use super::entities::{Entity, IndexedText};

/// Replaces each entity by its label in brackets: `[PER] lives in [LOC].`
///
/// Whole user-perceived characters are replaced, so that no combining mark or part of an emoji remains; white space at
/// the ends of an entity is kept. Entities that overlap are one, with the label of the first.
pub(super) fn redact(text: &str, entities: &[Entity]) -> String {
    let index = IndexedText::new(text);
    let bytes = |entity: &Entity| -> (usize, usize) {
        let (start, end) = (index.byte(entity.start), index.byte(entity.end));
        let part = text.get(start..end).unwrap_or_default();
        (start + part.len() - part.trim_start().len(), start + part.trim_end().len())
    };
    let mut places: Vec<((usize, usize), &str)> = entities
        .iter()
        .map(|entity| (bytes(entity), entity.label()))
        .filter(|((start, end), _)| start < end)
        .collect();
    places.sort_by_key(|(place, _)| *place);
    let (mut redacted, mut places) = (String::new(), places.into_iter().peekable());
    // The end of the last entity.
    let mut covered = 0;
    for (start, cluster) in text.grapheme_indices(true) {
        let mut is_covered = start < covered;
        while let Some(((_, end), label)) = places.next_if(|((first, _), _)| *first < start + cluster.len()) {
            if !is_covered {
                redacted.extend(["[", label, "]"]);
            }
            is_covered = true;
            covered = covered.max(end);
        }
        if !is_covered {
            redacted.push_str(cluster);
        }
    }
    redacted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::entities::EntityLabel;

    fn redacted(text: &str, spans: &[(usize, usize, &str)]) -> String {
        let entity = |(start, end, label): &(usize, usize, &str)| Entity {
            label: EntityLabel::Group { entity_group: (*label).to_owned() },
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
        // White space at the ends of an entity is kept.
        assert_eq!(redacted("in New York now", &[(2, 12, "LOC")]), "in [LOC] now");
        // Neighbours and overlaps.
        assert_eq!(redacted("abcd", &[(2, 4, "B"), (0, 2, "A")]), "[A][B]");
        assert_eq!(redacted("abcdef", &[(0, 3, "A"), (2, 5, "B")]), "[A]f");
        assert_eq!(redacted("abc", &[(1, 1, "A"), (7, 9, "B")]), "abc");
    }

    #[test]
    fn no_part_of_a_character_remains() {
        // A combining mark, and a family of emoji, of which an entity has a part.
        assert_eq!(redacted("Jose\u{301} x", &[(0, 4, "PER")]), "[PER] x");
        assert_eq!(redacted("👩\u{200d}👧 x", &[(0, 1, "E")]), "[E] x");
        assert_eq!(redacted("👩\u{200d}👧 x", &[(2, 3, "E")]), "[E] x");
        assert_eq!(redacted("e\u{301}a", &[(0, 1, "A"), (1, 3, "B")]), "[A]");
    }
}
