//! Formats quality, as lines and as tables.

use kivu::repository::manifest::{Neighbours, Quality, VectorQuality};
use kivu_compiler::quality::{PairFigures, PairQuality, Report};

/// A table's row: a figure's name and value.
pub type Row = (&'static str, String);

/// A bundle's quality in one line, without the word "quality".
pub fn text(quality: Option<Quality>) -> String {
    match quality {
        Some(Quality::Embedding {
            texts,
            mean_cosine,
            worst_cosine,
            neighbours,
            terms,
            score_difference,
        }) => {
            let neighbours = neighbours.map(
                |Neighbours {
                     ten_nearest,
                     nearest,
                 }| {
                    let [ten, one] = [ten_nearest, nearest].map(percent);
                    format!("; recall@10 {ten}, recall@1 {one}")
                },
            );
            let terms =
                terms.map(|terms| format!("; {} of the top 10 weights kept", percent(terms)));
            let scores = score_difference
                .map(|difference| format!("; mean score difference {difference:.4}"));
            format!(
                "cosine to fp32 over {texts} texts: mean {mean_cosine:.4}, worst {worst_cosine:.4}{}",
                [neighbours, terms, scores]
                    .map(Option::unwrap_or_default)
                    .concat()
            )
        }
        Some(Quality::TokenClassification {
            texts,
            tokens,
            agreement,
            entity_agreement,
            mean_difference,
            worst_difference,
        }) => {
            let entities = entity_agreement
                .map(|share| format!(", same entities {}", percent(share)))
                .unwrap_or_default();
            format!(
                "against fp32 over {tokens} tokens of {texts} texts: same label for {}{entities}, score difference: \
                 mean {mean_difference:.4}, worst {worst_difference:.4}",
                percent(agreement)
            )
        }
        Some(Quality::ZeroShotEntities {
            texts,
            spans,
            agreement,
            mean_difference,
            worst_difference,
        }) => {
            format!(
                "against fp32 over {spans} spans of {texts} texts: {} of entities in common, score difference: \
                 mean {mean_difference:.4}, worst {worst_difference:.4}",
                percent(agreement)
            )
        }
        Some(Quality::Ranking {
            texts,
            rank_agreement,
            mean_difference,
        }) => format!(
            "against fp32 over {texts} texts: mean score difference {mean_difference:.4}, same order for {} of \
             text pairs",
            percent(rank_agreement)
        ),
        Some(Quality::Classification {
            texts,
            agreement,
            mean_difference,
        }) => format!(
            "against fp32 over {texts} texts: same label for {}, mean score difference {mean_difference:.4}",
            percent(agreement)
        ),
        Some(Quality::Seq2Seq {
            texts,
            chrf,
            similarity,
            identical,
            similarity_without_shortlist,
            token_agreement,
            ..
        }) => {
            let chrf = chrf
                .map(|chrf| format!("chrF2 {chrf:.2}, "))
                .unwrap_or_default();
            let without = similarity_without_shortlist
                .map(|similarity| format!(" ({similarity:.4} without the shortlist)"))
                .unwrap_or_default();
            format!(
                "against fp32 over {texts} texts: {chrf}similarity {similarity:.4}{without}, {:.0} % identical, {} of \
                 tokens",
                identical * 100.0,
                percent(token_agreement)
            )
        }
        None => "not measured: there is no other precision to compare with".to_owned(),
    }
}

/// The most important figure, for a list.
pub fn short(quality: Option<Quality>) -> String {
    match quality {
        Some(Quality::Embedding { mean_cosine, .. }) => format!("cosine {mean_cosine:.4}"),
        Some(
            Quality::Classification { agreement, .. }
            | Quality::TokenClassification { agreement, .. },
        ) => {
            format!("same label {}", percent(agreement))
        }
        Some(Quality::Ranking {
            mean_difference, ..
        }) => {
            format!("score difference {mean_difference:.4}")
        }
        Some(Quality::ZeroShotEntities { agreement, .. }) => {
            format!("same entities {}", percent(agreement))
        }
        Some(Quality::Seq2Seq { similarity, .. }) => format!("similarity {similarity:.4}"),
        None => "not measured".to_owned(),
    }
}

/// A report's figures.
pub fn rows(report: &Report) -> Vec<Row> {
    let mut rows: Vec<Row> = report.quality.iter().flat_map(quality_rows).collect();
    for (kind, quality) in &report.other_vectors {
        rows.push(("vectors", kind.to_string()));
        rows.extend(quality_rows(quality));
    }
    if let Some(VectorQuality { int8, binary, .. }) = report.vectors {
        rows.push(("stored int8", format!("recall@10 {}", percent(int8))));
        rows.extend(
            binary.map(|binary| ("stored binary", format!("recall@10 {}", percent(binary)))),
        );
    }
    rows.extend(
        report
            .languages
            .iter()
            .map(|languages| ("languages", languages.clone())),
    );
    if let Some(pairs) = &report.pairs {
        rows.push(("pairs", format!("{} {}", pairs.pairs, pairs.kind)));
        rows.extend(pair_rows(pairs));
    }
    rows.extend(report.notes.iter().map(|note| ("note", note.clone())));
    rows
}

fn quality_rows(quality: &Quality) -> Vec<Row> {
    match *quality {
        Quality::Embedding {
            texts,
            mean_cosine,
            worst_cosine,
            neighbours,
            terms,
            score_difference,
        } => {
            let cosine = format!("mean {mean_cosine:.5}, worst {worst_cosine:.5}");
            let mut rows = vec![("texts", texts.to_string()), ("cosine", cosine)];
            if let Some(Neighbours {
                ten_nearest,
                nearest,
            }) = neighbours
            {
                rows.push(("nearest", format!("{} kept", percent(nearest))));
                rows.push(("ten nearest", format!("{} kept", percent(ten_nearest))));
            }
            rows.extend(terms.map(|terms| ("top 10 weights", format!("{} kept", percent(terms)))));
            rows.extend(
                score_difference.map(|mean| ("score", format!("mean difference {mean:.4}"))),
            );
            rows
        }
        Quality::TokenClassification {
            texts,
            tokens,
            agreement,
            entity_agreement,
            mean_difference,
            worst_difference,
        } => {
            let mut rows = vec![
                ("texts", texts.to_string()),
                (
                    "same label",
                    format!("{} of {tokens} tokens", percent(agreement)),
                ),
                ("score", differences(mean_difference, worst_difference)),
            ];
            rows.extend(entity_agreement.map(|share| ("same entities", percent(share))));
            rows
        }
        Quality::ZeroShotEntities {
            texts,
            agreement,
            mean_difference,
            worst_difference,
            ..
        } => vec![
            ("texts", texts.to_string()),
            ("same entities", percent(agreement)),
            ("score", differences(mean_difference, worst_difference)),
        ],
        Quality::Ranking {
            texts,
            rank_agreement,
            mean_difference,
        } => vec![
            ("texts", texts.to_string()),
            (
                "same order",
                format!("{} of text pairs", percent(rank_agreement)),
            ),
            ("score", format!("mean difference {mean_difference:.4}")),
        ],
        Quality::Classification {
            texts,
            agreement,
            mean_difference,
        } => vec![
            ("texts", texts.to_string()),
            ("same label", percent(agreement)),
            ("score", format!("mean difference {mean_difference:.4}")),
        ],
        Quality::Seq2Seq {
            texts,
            chrf,
            similarity,
            identical,
            token_agreement,
            ..
        } => {
            let mut rows = vec![("texts", texts.to_string())];
            rows.extend(chrf.map(|chrf| ("chrF2", format!("{chrf:.2}"))));
            rows.push(("exact match", percent(identical)));
            rows.push(("same words", percent(similarity)));
            rows.push(("same next token", percent(token_agreement)));
            rows
        }
    }
}

/// Results on pairs, as `MODEL against OTHER`.
pub fn pair_rows(quality: &PairQuality) -> Vec<Row> {
    let rows = figures(&quality.model);
    let others = quality.other.as_ref().map(figures);
    let value = |place: usize, (name, value): Row| match &others {
        Some(others) => (name, format!("{value} against {}", others[place].1)),
        None => (name, value),
    };
    rows.into_iter()
        .enumerate()
        .map(|(place, row)| value(place, row))
        .collect()
}

fn figures(figures: &PairFigures) -> Vec<Row> {
    let undefined = || "undefined".to_owned();
    match *figures {
        PairFigures::Scores { spearman } => {
            vec![(
                "Spearman",
                spearman.map_or_else(undefined, |found| format!("{found:.4}")),
            )]
        }
        PairFigures::Labels {
            accuracy,
            threshold,
        } => {
            let threshold = threshold
                .map(|threshold| format!(" from {threshold:.4}"))
                .unwrap_or_default();
            let accuracy =
                accuracy.map(|accuracy| format!("{}{threshold}", percent(accuracy as f32)));
            vec![("accuracy", accuracy.unwrap_or_else(undefined))]
        }
        PairFigures::Passages { recall_at_10 } => vec![("recall@10", percent(recall_at_10 as f32))],
        PairFigures::References {
            chrf,
            exact_match,
            cross_entropy,
        } => {
            let mut rows = vec![
                ("chrF2", format!("{chrf:.2}")),
                ("exact match", percent(exact_match as f32)),
            ];
            rows.extend(cross_entropy.map(|found| ("cross-entropy", format!("{found:.4}"))));
            rows
        }
    }
}

fn percent(share: f32) -> String {
    format!("{:.1} %", share * 100.0)
}

fn differences(mean: f32, worst: f32) -> String {
    format!("mean difference {mean:.4}, worst {worst:.4}")
}
