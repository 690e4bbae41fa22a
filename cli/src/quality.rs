//! Formats a bundle's quality.

use kivu::repository::manifest::{Neighbours, Quality};

/// One line, without the word "quality".
pub(super) fn text(quality: Option<Quality>) -> String {
    match quality {
        Some(Quality::Embedding {
            texts,
            mean_cosine,
            worst_cosine,
            neighbours,
            terms,
            score_difference,
        }) => {
            let neighbours = neighbours.map(|Neighbours { ten_nearest, nearest }| {
                let [ten_nearest, nearest] = [ten_nearest, nearest].map(|share| share * 100.0);
                format!("; recall@10 {ten_nearest:.1} %, recall@1 {nearest:.1} %")
            });
            let terms = terms.map(|terms| format!("; {:.1} % of the top 10 weights kept", terms * 100.0));
            let scores =
                score_difference.map(|difference| format!("; mean score difference {difference:.4}"));
            format!(
                "cosine to fp32 over {texts} texts: mean {mean_cosine:.4}, worst {worst_cosine:.4}{}",
                [neighbours, terms, scores].map(Option::unwrap_or_default).concat()
            )
        }
        Some(Quality::TokenClassification {
            texts,
            tokens,
            agreement,
            mean_difference,
            worst_difference,
        }) => {
            format!(
                "against fp32 over {tokens} tokens of {texts} texts: same label for {:.1} %, score difference: \
                 mean {mean_difference:.4}, worst {worst_difference:.4}",
                agreement * 100.0
            )
        }
        Some(Quality::ZeroShotEntities { texts, spans, agreement, mean_difference, worst_difference }) => {
            format!(
                "against fp32 over {spans} spans of {texts} texts: {:.1} % of entities in common, score difference: \
                 mean {mean_difference:.4}, worst {worst_difference:.4}",
                agreement * 100.0
            )
        }
        Some(Quality::Ranking { texts, rank_agreement, mean_difference }) => format!(
            "against fp32 over {texts} texts: mean score difference {mean_difference:.4}, same order for {:.1} % of \
             text pairs",
            rank_agreement * 100.0
        ),
        Some(Quality::Classification { texts, agreement, mean_difference }) => format!(
            "against fp32 over {texts} texts: same label for {:.1} %, mean score difference {mean_difference:.4}",
            agreement * 100.0
        ),
        Some(Quality::Seq2Seq {
            texts,
            similarity,
            identical,
            similarity_without_shortlist,
            token_agreement,
            ..
        }) => {
            let without = similarity_without_shortlist
                .map(|similarity| format!(" ({similarity:.4} without the shortlist)"))
                .unwrap_or_default();
            format!(
                "against fp32 over {texts} texts: similarity {similarity:.4}{without}, {:.0} % identical, {:.1} % of \
                 tokens",
                identical * 100.0,
                token_agreement * 100.0
            )
        }
        None => "not measured: there is no other precision to compare with".to_owned(),
    }
}

/// The most important figure, for a list.
pub(super) fn short(quality: Option<Quality>) -> String {
    match quality {
        Some(Quality::Embedding { mean_cosine, .. }) => format!("cosine {mean_cosine:.4}"),
        Some(Quality::Classification { agreement, .. } | Quality::TokenClassification { agreement, .. }) => {
            format!("same label {:.1} %", agreement * 100.0)
        }
        Some(Quality::Ranking { mean_difference, .. }) => {
            format!("score difference {mean_difference:.4}")
        }
        Some(Quality::ZeroShotEntities { agreement, .. }) => {
            format!("same entities {:.1} %", agreement * 100.0)
        }
        Some(Quality::Seq2Seq { similarity, .. }) => format!("similarity {similarity:.4}"),
        None => "not measured".to_owned(),
    }
}
