//! Labels that mark where an entity begins (`B-`), continues (`I-`) and ends (`E-`), or that a token is all of it (`S-`). The
//! likeliest labels that form entities are found by the Viterbi algorithm.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kivu_base::{Error, Result};

/// Label for tokens outside entities.
pub const OUTSIDE: &str = "O";

/// Added to a pair of labels of neighbouring tokens, whose scores are logarithms of probabilities: a number above 0 makes the
/// pair likelier. More entities are found with `background_to_start` above 0 or `background_stay` below 0, and longer ones with
/// `inside_to_continue` above 0. The names are those of `viterbi_calibration.json` in OpenAI's privacy filter, without
/// `transition_bias_`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default, expecting = "an object")]
pub struct TransitionBiases {
    /// From a token outside of entities to another one [default: 0]
    pub background_stay: f32,
    /// From a token outside of entities to the first one of an entity [default: 0]
    pub background_to_start: f32,
    /// From a token in an entity to another one that is not the last [default: 0]
    pub inside_to_continue: f32,
    /// From a token in an entity to the last one [default: 0]
    pub inside_to_end: f32,
    /// From the last token of an entity to one outside of entities [default: 0]
    pub end_to_background: f32,
    /// From the last token of an entity to the first one of the next [default: 0]
    pub end_to_start: f32,
}

impl TransitionBiases {
    /// Refuses numbers that are not finite, and so large ones that sums are not.
    pub fn check(self) -> Result<Self> {
        const MAX: f32 = 1000.0;
        let Self {
            background_stay,
            background_to_start,
            inside_to_continue,
            inside_to_end,
            end_to_background,
            end_to_start,
        } = self;
        let all = [
            background_stay,
            background_to_start,
            inside_to_continue,
            inside_to_end,
            end_to_background,
            end_to_start,
        ];
        match all.iter().find(|bias| bias.is_nan() || bias.abs() > MAX) {
            None => Ok(self),
            Some(bias) => Err(Error::invalid(format!(
                "expected `transition_biases` from -{MAX} to {MAX}, but found {bias}"
            ))),
        }
    }
}

/// A token's place in an entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tag {
    Outside,
    First,
    Inside,
    Last,
    Only,
}

/// The labels of a model that marks ends.
#[derive(Clone, Debug)]
pub struct TagScheme {
    /// Each label's tag, and the number of its kind of entity.
    labels: Vec<(Tag, usize)>,
}

impl TagScheme {
    /// The scheme of a model's labels; `None` unless all of them are `O` or have a tag, some mark an end, and kinds with `I-`,
    /// `E-` or `B-` have both `B-` and `E-`.
    pub fn new<L: AsRef<str>>(labels: &[L]) -> Option<Self> {
        let mut kinds = BTreeMap::new();
        let mut all = Vec::new();
        for label in labels {
            let (tag, kind) = match label.as_ref() {
                OUTSIDE => (Tag::Outside, ""),
                label => match label.split_once('-')? {
                    ("B", kind) => (Tag::First, kind),
                    ("I", kind) => (Tag::Inside, kind),
                    ("E", kind) => (Tag::Last, kind),
                    ("S", kind) => (Tag::Only, kind),
                    _ => return None,
                },
            };
            let count = kinds.len();
            all.push((tag, *kinds.entry(kind).or_insert(count)));
        }
        let has = |tag, kind| all.contains(&(tag, kind));
        let is_whole = |kind| {
            let is_long = [Tag::First, Tag::Inside, Tag::Last]
                .iter()
                .any(|tag| has(*tag, kind));
            !is_long || has(Tag::First, kind) && has(Tag::Last, kind)
        };
        let marks_ends = all
            .iter()
            .any(|(tag, _)| matches!(tag, Tag::Last | Tag::Only));
        let is_scheme = marks_ends
            && all.iter().any(|(tag, _)| *tag == Tag::Outside)
            && (0..kinds.len()).all(is_whole);
        is_scheme.then_some(Self { labels: all })
    }

    /// Whether a token with this label begins an entity, and the number of the entity's kind.
    pub fn begins(&self, label: usize) -> (bool, usize) {
        let (tag, kind) = self.labels[label];
        (matches!(tag, Tag::First | Tag::Only), kind)
    }

    /// The likeliest labels of consecutive tokens that form whole entities, from each token's probabilities.
    pub fn decode(&self, scores: &[&[f32]], biases: &TransitionBiases) -> Vec<usize> {
        const IMPOSSIBLE: f32 = f32::NEG_INFINITY;
        let log = |score: &f32| score.max(f32::MIN_POSITIVE).ln();
        let bias = |from, to| bias(from, to, biases).unwrap_or(IMPOSSIBLE);
        let outside = (Tag::Outside, usize::MAX);
        // A row per label, with the bias after each other one.
        let rows: Vec<Vec<f32>> = self
            .labels
            .iter()
            .map(|to| self.labels.iter().map(|from| bias(*from, *to)).collect())
            .collect();
        // A text begins and ends outside of entities, and that costs nothing.
        let edge = |bias: f32| if bias == IMPOSSIBLE { bias } else { 0.0 };
        let mut totals: Vec<f32> = Vec::new();
        // The likeliest label before each label of each token but the first.
        let mut before: Vec<Vec<usize>> = Vec::new();
        for scores in scores {
            if totals.is_empty() {
                let starts = self.labels.iter().map(|label| edge(bias(outside, *label)));
                totals.extend(starts.zip(*scores).map(|(start, score)| start + log(score)));
                continue;
            }
            let best = rows
                .iter()
                .map(|row| largest(totals.iter().zip(row).map(|(a, b)| a + b).enumerate()));
            let (from, mut next): (Vec<usize>, Vec<f32>) = best.unzip();
            next.iter_mut()
                .zip(*scores)
                .for_each(|(total, score)| *total += log(score));
            // Only differences count: numbers stay small, so that results do not depend on a text's length.
            let (_, most) = largest(next.iter().copied().enumerate());
            next.iter_mut().for_each(|total| *total -= most);
            totals = next;
            before.push(from);
        }
        let ends = self.labels.iter().map(|label| edge(bias(*label, outside)));
        let (mut label, _) = largest(
            totals
                .iter()
                .zip(ends)
                .map(|(total, end)| total + end)
                .enumerate(),
        );
        let mut path = Vec::with_capacity(scores.len());
        path.extend((!scores.is_empty()).then_some(label));
        for from in before.iter().rev() {
            label = from[label];
            path.push(label);
        }
        path.reverse();
        path
    }
}

/// The bias for a pair of labels; `None` if no entities have it.
fn bias(
    (from, kind): (Tag, usize),
    (to, next): (Tag, usize),
    biases: &TransitionBiases,
) -> Option<f32> {
    use Tag::{First, Inside, Last, Only, Outside};
    match (from, to) {
        (Outside, Outside) => Some(biases.background_stay),
        (Outside, First | Only) => Some(biases.background_to_start),
        (First | Inside, Inside) if kind == next => Some(biases.inside_to_continue),
        (First | Inside, Last) if kind == next => Some(biases.inside_to_end),
        (Last | Only, Outside) => Some(biases.end_to_background),
        (Last | Only, First | Only) => Some(biases.end_to_start),
        _ => None,
    }
}

/// The highest score with its index; the first of equal ones.
pub fn largest(scores: impl Iterator<Item = (usize, f32)>) -> (usize, f32) {
    scores
        .reduce(|found, next| if next.1 > found.1 { next } else { found })
        .unwrap_or((0, 0.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LABELS: [&str; 9] = ["O", "B-A", "I-A", "E-A", "S-A", "B-B", "I-B", "E-B", "S-B"];

    /// All label sequences that form entities, by their definition.
    fn sequences(length: usize) -> Vec<Vec<usize>> {
        let mut all = vec![Vec::new()];
        for _ in 0..length {
            all = all
                .iter()
                .flat_map(|path| (0..9).map(|label| [&path[..], &[label]].concat()))
                .collect();
        }
        all.retain(|path| {
            let text: String = path.iter().map(|label| &LABELS[*label][..1]).collect();
            let kinds: Vec<&str> = path.iter().map(|label| &LABELS[*label][1..]).collect();
            let mut open = None;
            text.chars()
                .zip(kinds)
                .all(|(tag, kind)| match (open, tag) {
                    (None, 'O' | 'S') => true,
                    (None, 'B') => {
                        open = Some(kind);
                        true
                    }
                    (Some(kind_of_open), 'I') => kind_of_open == kind,
                    (Some(kind_of_open), 'E') => open.take() == Some(kind) && kind_of_open == kind,
                    _ => false,
                })
                && open.is_none()
        });
        all
    }

    #[test]
    fn the_likeliest_entities_are_found() {
        let scheme = TagScheme::new(&LABELS).unwrap();
        let biases = TransitionBiases {
            background_stay: -0.5,
            background_to_start: 0.7,
            inside_to_continue: 1.5,
            inside_to_end: -0.2,
            end_to_background: 0.3,
            end_to_start: -1.0,
        };
        let mut seed = 7_u32;
        let mut random = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (seed >> 8) as f32 / (1 << 24) as f32
        };
        for case in 0..60 {
            let length = case % 5;
            let scores: Vec<Vec<f32>> = (0..length)
                .map(|_| (0..9).map(|_| random()).collect())
                .collect();
            let biases = if case % 2 == 0 {
                TransitionBiases::default()
            } else {
                biases
            };
            let total = |path: &Vec<usize>| -> f32 {
                let own: f32 = path
                    .iter()
                    .zip(&scores)
                    .map(|(label, row)| row[*label].ln())
                    .sum();
                let pairs = path.windows(2).map(|pair| {
                    bias(scheme.labels[pair[0]], scheme.labels[pair[1]], &biases).unwrap()
                });
                own + pairs.sum::<f32>()
            };
            let best = sequences(length)
                .into_iter()
                .max_by(|left, right| total(left).total_cmp(&total(right)));
            let rows: Vec<&[f32]> = scores.iter().map(Vec::as_slice).collect();
            assert_eq!(Some(scheme.decode(&rows, &biases)), best, "{case}");
        }
    }

    #[test]
    fn only_labels_that_mark_ends_are_a_scheme() {
        let is_scheme = |labels: &[&str]| TagScheme::new(labels).is_some();
        assert!(is_scheme(&["O", "B-A", "E-A"]));
        assert!(is_scheme(&["S-A", "O"]));
        assert!(is_scheme(&["O", "B-a-b", "I-a-b", "E-a-b", "S-a-b", "S-c"]));
        assert!(!is_scheme(&["O", "B-A", "I-A"]));
        assert!(!is_scheme(&["O", "B-A", "I-A", "S-B"]));
        assert!(!is_scheme(&["B-A", "E-A"]));
        assert!(!is_scheme(&["O", "S-A", "city"]));
        assert!(!is_scheme(&["O", "given-name", "E-A", "B-A"]));
    }

    #[test]
    fn biases_are_checked() {
        let refused = TransitionBiases {
            end_to_start: f32::NAN,
            ..TransitionBiases::default()
        };
        insta::assert_snapshot!(refused.check().unwrap_err(), @"expected `transition_biases` from -1000 to 1000, but found NaN");
        let read = |text| serde_json::from_str::<TransitionBiases>(text);
        assert_eq!(read(r#"{"inside_to_end": 2}"#).unwrap().inside_to_end, 2.0);
        assert!(read(r#"{"outside_to_end": 2}"#).is_err());
    }
}
