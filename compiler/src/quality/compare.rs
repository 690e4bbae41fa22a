//! Compares two forms of an encoder by their answers.

use super::{
    answer::{Answer, LABELS},
    served::Answers,
};
use kivu::{
    pipeline::{
        classification::scores::descending,
        entities::{entity_places, zero_shot_entities::THRESHOLD},
    },
    repository::{
        TaskSettings,
        manifest::{Neighbours, Quality},
    },
};

/// Quality per output, from the fp32 and the quantized model's answers.
pub fn qualities(settings: &TaskSettings, forms: [&Answers; 2]) -> Vec<Quality> {
    let outputs = forms[0].texts.first().map_or(0, Vec::len);
    let forms = forms.map(|form| form.texts.as_slice());
    (0..outputs)
        .filter_map(|output| compare(settings, forms, output))
        .collect()
}

/// Quality for one output, from the fp32 and the quantized model's answers to each text; `None` for models that generate
/// texts, whose steps are compared instead.
fn compare(settings: &TaskSettings, forms: [&[Vec<Answer>]; 2], output: usize) -> Option<Quality> {
    let texts = forms[0].len();
    let pairs = || {
        forms[0]
            .iter()
            .zip(forms[1])
            .map(|(left, right)| (&left[output], &right[output]))
    };
    let values = || pairs().map(|(left, right)| (left.values(), right.values()));
    let mean = |sum: f32| sum / texts.max(1) as f32;
    Some(match settings {
        TaskSettings::Embedding(_) => {
            let cosines: Vec<f32> = pairs().map(|(left, right)| left.cosine(right)).collect();
            let terms: Option<f32> = pairs().map(|(left, right)| left.terms_kept(right)).sum();
            let forms: [Vec<&Answer>; 2] = pairs().unzip::<_, _, Vec<_>, Vec<_>>().into();
            let similarities = forms.each_ref().map(|answers| similarities(answers));
            let is_scored = matches!(forms[0].first(), Some(Answer::MultiVector(_)));
            Quality::Embedding {
                texts,
                mean_cosine: mean(cosines.iter().sum()),
                worst_cosine: cosines
                    .iter()
                    .copied()
                    .min_by(f32::total_cmp)
                    .unwrap_or(f32::NAN),
                neighbours: Some(neighbours(&similarities)),
                terms: terms.map(mean),
                score_difference: is_scored.then(|| score_difference(&similarities)),
            }
        }
        TaskSettings::Listwise(_) | TaskSettings::Classification(_)
            if settings.labels().is_none_or(|labels| labels.len() == 1) =>
        {
            let scores: Vec<[f32; 2]> = values().map(|(left, right)| [left[0], right[0]]).collect();
            Quality::Ranking {
                texts,
                rank_agreement: rank_agreement(&scores),
                mean_difference: differences(values())[0],
            }
        }
        TaskSettings::Classification(_)
        | TaskSettings::Listwise(_)
        | TaskSettings::LabelScores(_) => {
            let agree = |(left, right): &(&[f32], &[f32])| {
                descending(left).first() == descending(right).first()
            };
            let difference = |(left, right): (&[f32], &[f32])| {
                let differences = left
                    .iter()
                    .zip(right)
                    .map(|(left, right)| (left - right).abs());
                differences.sum::<f32>() / left.len().max(1) as f32
            };
            Quality::Classification {
                texts,
                agreement: mean(values().filter(agree).count() as f32),
                mean_difference: mean(values().map(difference).sum()),
            }
        }
        TaskSettings::TokenClassification(settings) => {
            let width = settings.labels.len();
            let tokens = || {
                values().flat_map(|(left, right)| {
                    left.chunks_exact(width).zip(right.chunks_exact(width))
                })
            };
            let count = tokens().count();
            let agreeing =
                tokens().filter(|(left, right)| descending(left)[0] == descending(right)[0]);
            let entities = values().map(|pair| {
                let [left, right] =
                    <[&[f32]; 2]>::from(pair).map(|scores| entity_places(&settings.labels, scores));
                [
                    left.intersection(&right).count() * 2,
                    left.len() + right.len(),
                ]
            });
            let [common, all] = entities.fold([0, 0], |sums, counts| {
                [sums[0] + counts[0], sums[1] + counts[1]]
            });
            let [mean_difference, worst_difference] = differences(values());
            Quality::TokenClassification {
                texts,
                tokens: count,
                agreement: (agreeing.count() as f64 / count.max(1) as f64) as f32,
                entity_agreement: Some(if all == 0 {
                    1.0
                } else {
                    common as f32 / all as f32
                }),
                mean_difference,
                worst_difference,
            }
        }
        TaskSettings::ZeroShotEntities(_) => {
            let scores = || values().flat_map(|(left, right)| left.iter().zip(right));
            // Entities above the default threshold, overlapping ones included.
            let is_entity = |score: &f32| *score > THRESHOLD;
            let common = scores()
                .filter(|(left, right)| is_entity(left) && is_entity(right))
                .count();
            let found = scores()
                .map(|(left, right)| [left, right].into_iter().filter(|it| is_entity(it)).count());
            let [mean_difference, worst_difference] = differences(values());
            Quality::ZeroShotEntities {
                texts,
                spans: scores().count() / LABELS.len(),
                agreement: match found.sum::<usize>() {
                    0 => 1.0,
                    found => 2.0 * common as f32 / found as f32,
                },
                mean_difference,
                worst_difference,
            }
        }
        TaskSettings::Seq2Seq(_) => return None,
    })
}

/// Why figures say nothing about a model, if its outputs do not depend on the text.
pub fn note(reference: &Answers) -> Option<String> {
    let mut pairs = reference.texts.windows(2);
    let is_same = |pair: &[Vec<Answer>]| {
        pair[0]
            .iter()
            .zip(&pair[1])
            .all(|(left, right)| left.is_same(right))
    };
    (reference.texts.len() > 1 && pairs.all(is_same))
        .then(|| "all texts have the same output, so the quality says nothing".to_owned())
}

/// Whether another form is better: in no figure worse, and in one better.
pub fn is_better(found: &[Quality], other: &[Quality]) -> bool {
    let figures = |qualities: &[Quality]| qualities.iter().flat_map(figures).collect::<Vec<f32>>();
    let (found, other) = (figures(found), figures(other));
    let pairs = || found.iter().zip(&other);
    found.len() == other.len()
        && pairs().all(|(found, other)| other >= found)
        && pairs().any(|(found, other)| other > found)
}

/// A quality's figures, larger ones better; without recall@1, in which one text in 300 decides.
fn figures(quality: &Quality) -> Vec<f32> {
    match *quality {
        Quality::Embedding {
            mean_cosine,
            worst_cosine,
            neighbours,
            terms,
            score_difference,
            ..
        } => {
            let kept = neighbours.map(|neighbours| neighbours.ten_nearest);
            let others = [terms, score_difference.map(|difference| -difference)];
            [mean_cosine, worst_cosine]
                .into_iter()
                .chain(kept)
                .chain(others.into_iter().flatten())
                .collect()
        }
        Quality::Ranking {
            rank_agreement,
            mean_difference,
            ..
        } => vec![rank_agreement, -mean_difference],
        Quality::Classification {
            agreement,
            mean_difference,
            ..
        } => vec![agreement, -mean_difference],
        Quality::TokenClassification {
            agreement,
            mean_difference,
            worst_difference,
            ..
        }
        | Quality::ZeroShotEntities {
            agreement,
            mean_difference,
            worst_difference,
            ..
        } => {
            vec![agreement, -mean_difference, -worst_difference]
        }
        Quality::Seq2Seq {
            similarity,
            token_agreement,
            ..
        } => vec![similarity, token_agreement],
    }
}

/// Share of text pairs ranked in the same order by both forms, among pairs with different scores in the first.
fn rank_agreement(scores: &[[f32; 2]]) -> f32 {
    let pairs = || {
        scores
            .iter()
            .enumerate()
            .flat_map(|(place, one)| scores[..place].iter().map(move |it| [it, one]))
    };
    let ordered = || pairs().filter(|[one, other]| one[0] != other[0]);
    let agreeing =
        ordered().filter(|[one, other]| one[0].total_cmp(&other[0]) == one[1].total_cmp(&other[1]));
    match ordered().count() {
        0 => 1.0,
        count => agreeing.count() as f32 / count as f32,
    }
}

/// Mean and maximum difference between both forms' scores.
fn differences<'a>(pairs: impl Iterator<Item = (&'a [f32], &'a [f32])>) -> [f32; 2] {
    let (mut sum, mut count, mut largest) = (0.0, 0_usize, 0.0_f32);
    for (left, right) in pairs.flat_map(|(left, right)| left.iter().zip(right)) {
        let difference = (left - right).abs();
        sum += f64::from(difference);
        count += 1;
        largest = largest.max(difference);
    }
    [(sum / count.max(1) as f64) as f32, largest]
}

/// Each text's similarities to all texts.
fn similarities(answers: &[&Answer]) -> Vec<Vec<f32>> {
    answers
        .iter()
        .map(|answer| answer.similarities(answers))
        .collect()
}

/// Mean difference between both forms' similarities.
fn score_difference([reference, found]: &[Vec<Vec<f32>>; 2]) -> f32 {
    let rows = reference.iter().zip(found);
    differences(rows.map(|(left, right)| (left.as_slice(), right.as_slice())))[0]
}

/// Compares each text's nearest neighbours in both forms, by its similarities to all texts.
fn neighbours(forms: &[Vec<Vec<f32>>; 2]) -> Neighbours {
    let texts = forms[0].len().max(1) as f32;
    let (mut kept, mut expected, mut same) = (0, 0, 0);
    for text in 0..forms[0].len() {
        let [reference, found] = forms.each_ref().map(|rows| nearest(&rows[text], text));
        kept += reference
            .iter()
            .filter(|other| found.contains(other))
            .count();
        expected += reference.len();
        same += usize::from(reference.first() == found.first());
    }
    Neighbours {
        ten_nearest: kept as f32 / expected.max(1) as f32,
        nearest: same as f32 / texts,
    }
}

/// Indices of `text`'s ten nearest other texts, by its similarities to all texts, most similar first.
pub fn nearest(similarities: &[f32], text: usize) -> Vec<usize> {
    let mut others: Vec<usize> = (0..similarities.len())
        .filter(|other| *other != text)
        .collect();
    others.sort_by(|left, right| similarities[*right].total_cmp(&similarities[*left]));
    others.truncate(10);
    others
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quality::answer::MultiVectors;
    use kivu::pipeline::classification::{ClassificationSettings, scores::ScoreFunction};

    #[test]
    fn neighbours_are_compared_text_by_text() {
        let angles = |angles: [f32; 13]| angles.map(|angle| [angle.cos(), angle.sin()]);
        let vectors = |points: &[[f32; 2]; 13]| -> Vec<Answer> {
            points
                .iter()
                .map(|point| Answer::Vector(point.to_vec()))
                .collect()
        };
        let steps: [f32; 13] = std::array::from_fn(|step| step as f32 / 10.0);
        let reference = vectors(&angles(steps));
        let mut moved = steps;
        // The first text, with the ten after it as its neighbours, changes places with the last.
        moved.swap(0, 12);
        let moved = vectors(&angles(moved));
        let compared = |left: &[Answer], right: &[Answer]| {
            neighbours(
                &[left, right].map(|answers| similarities(&answers.iter().collect::<Vec<_>>())),
            )
        };
        assert_eq!(
            compared(&reference, &reference.clone()),
            Neighbours {
                ten_nearest: 1.0,
                nearest: 1.0
            }
        );
        let found = compared(&reference, &moved);
        // 1, 2, 10 and 11 lose a neighbour each: the text that moved away.
        assert!(found.ten_nearest < 1.0 && found.nearest < 1.0, "{found:?}");
    }

    #[test]
    fn a_form_is_better_only_if_no_figure_is_worse() {
        let embedding = |mean_cosine, ten_nearest, score_difference| {
            let neighbours = Some(Neighbours {
                ten_nearest,
                nearest: 1.0 - ten_nearest,
            });
            let score_difference = Some(score_difference);
            Quality::Embedding {
                texts: 300,
                mean_cosine,
                worst_cosine: 0.9,
                neighbours,
                terms: None,
                score_difference,
            }
        };
        let before = [embedding(0.998, 0.96, 0.01)];
        assert!(is_better(&before, &[embedding(0.999, 0.96, 0.01)]));
        assert!(is_better(&before, &[embedding(0.998, 0.96, 0.009)]));
        for other in [
            embedding(0.998, 0.96, 0.01),
            embedding(0.9999, 0.95, 0.01),
            embedding(0.9999, 0.97, 0.011),
            embedding(f32::NAN, 0.97, 0.01),
        ] {
            assert!(!is_better(&before, &[other]), "{other:?}");
        }
        let labels = |agreement, mean_difference| Quality::Classification {
            texts: 300,
            agreement,
            mean_difference,
        };
        assert!(is_better(&[labels(0.99, 0.01)], &[labels(0.99, 0.005)]));
        assert!(!is_better(&[labels(0.99, 0.01)], &[labels(0.98, 0.005)]));
    }

    #[test]
    fn scores_of_a_single_label_are_compared_by_their_order() {
        let answers = |scores: [f32; 4]| scores.map(|score| vec![Answer::Vector(vec![score])]);
        let forms = [[0.1, 0.5, 0.6, 0.6], [0.2, 0.4, 0.3, 0.9]].map(answers);
        let settings = TaskSettings::Classification(ClassificationSettings {
            output: "logits".into(),
            labels: vec!["LABEL_0".into()],
            function: ScoreFunction::Sigmoid,
            max_tokens: 8,
            template: None,
            query_prompt: None,
            padding: None,
            identifies_languages: false,
        });
        let quality = compare(&settings, [&forms[0], &forms[1]], 0).unwrap();
        let Quality::Ranking {
            texts: 4,
            rank_agreement,
            mean_difference,
        } = quality
        else {
            panic!("{quality:?}")
        };
        // The last pair is tied; the second and the third change places.
        assert!(
            (rank_agreement - 0.8).abs() < 1e-6 && (mean_difference - 0.2).abs() < 1e-6,
            "{quality:?}"
        );
    }

    #[test]
    fn scores_are_compared_pair_by_pair() {
        let multi = |document: [f32; 4]| {
            Answer::MultiVector(MultiVectors {
                document: document.into(),
                query: None,
                width: 2,
            })
        };
        let (left, right) = (multi([1.0, 0.0, 0.0, 1.0]), multi([0.6, 0.8, 0.0, 1.0]));
        let forms = [
            similarities(&[&left, &right]),
            similarities(&[&left, &left]),
        ];
        assert!((score_difference(&forms) - 0.075).abs() < 1e-6, "{forms:?}");
    }
}
