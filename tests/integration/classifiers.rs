//! The same logits and scores as `transformers`, on tiny classifiers of every kind.

use std::fs;

use kivu::{
    backend::Deadline,
    model::{Model, Pipeline},
    pipeline::{
        classification::{ClassificationInput, ClassificationPipeline},
        ranking::{RankingOptions, RankingPipeline},
        zero_shot::ZeroShotPipeline,
    },
    repository::manifest::Precision,
    tokenizer::{PairTruncation, Side, Truncation},
};
use serde::Deserialize;

use crate::models::{fixtures, open, runtime};

/// What a logit may differ by from that of `transformers` in fp32.
const TOLERANCE: f32 = 3e-5;

#[derive(Deserialize)]
struct Golden {
    max_length: usize,
    labels: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    text: String,
    pair: Option<String>,
    ids: Vec<u32>,
    logits: Vec<f32>,
}

pub(crate) fn read<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    serde_json::from_slice(&fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap()).unwrap()
}

fn deadline() -> Deadline {
    Deadline::within(std::time::Duration::from_secs(60))
}

fn classification(model: &Model) -> &ClassificationPipeline {
    match &model.pipeline {
        Pipeline::Classification(pipeline)
        | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
        | Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => pipeline,
        other => panic!("expected a classifier, but found {other:?}"),
    }
}

/// Compares ids and logits of every text and pair; all failures are told.
async fn compare(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models").join(name);
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let (golden, pipeline): (Golden, _) = (read(name), classification(&model));
    assert_eq!(pipeline.settings().labels, golden.labels);
    assert_eq!(pipeline.settings().max_tokens, golden.max_length);
    let truncation = PairTruncation::LongestFirst(Side::Right);
    let mut failures = Vec::new();
    for case in &golden.cases {
        let input = match &case.pair {
            None => ClassificationInput::Text(case.text.clone()),
            Some(pair) => ClassificationInput::Pair(case.text.clone(), pair.clone()),
        };
        let encoding = match &case.pair {
            None => pipeline.tokenizer().encode(&case.text, golden.max_length, truncation.alone()),
            Some(pair) => pipeline.tokenizer().encode_pair([&case.text, pair], golden.max_length, truncation),
        };
        let ids = encoding.unwrap().ids;
        if ids != case.ids {
            failures.push(format!("{:?} {:?}: ids {ids:?}, expected {:?}", case.text, case.pair, case.ids));
        }
        let found = pipeline.logits(vec![input], truncation, deadline()).await.unwrap();
        let differences =
            found.rows[0].iter().zip(&case.logits).map(|(found, expected)| (found - expected).abs());
        let difference = differences.fold(0.0, f32::max);
        if difference > TOLERANCE {
            failures.push(format!("{:?} {:?}: logits off by {difference}", case.text, case.pair));
        }
    }
    assert!(failures.is_empty(), "{name}:\n{}", failures.join("\n"));
}

#[tokio::test]
async fn bert_with_pooler() {
    compare("tiny-bert-sentiment").await;
}

#[tokio::test]
async fn roberta_for_inference() {
    compare("tiny-roberta-nli").await;
}

#[tokio::test]
async fn xlm_roberta_for_several_labels() {
    compare("tiny-xlm-roberta-multi").await;
}

#[tokio::test]
async fn distilbert_for_two_labels() {
    compare("tiny-distilbert-binary").await;
}

#[tokio::test]
async fn bert_for_ranking() {
    compare("tiny-bert-rank").await;
}

#[tokio::test]
async fn bert_for_regression() {
    compare("tiny-bert-regression").await;
}

#[derive(Deserialize)]
struct RankGolden {
    query: String,
    cases: Vec<RankCase>,
}

#[derive(Deserialize)]
struct RankCase {
    document: String,
    logit: f32,
    score: f32,
}

#[tokio::test]
async fn ranking_scores_are_those_of_a_cross_encoder() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-bert-rank");
    let model = open(source, folder.path(), Some(Precision::Fp32), runtime).unwrap();
    let Pipeline::Ranking(pipeline) = &model.pipeline else { panic!("one label ranks") };
    let golden: RankGolden = read("rank");
    let texts: Vec<String> = golden.cases.iter().map(|case| case.document.clone()).collect();
    for (raw_scores, expected) in [
        (true, golden.cases.iter().map(|case| case.logit).collect::<Vec<_>>()),
        (false, golden.cases.iter().map(|case| case.score).collect()),
    ] {
        let options = RankingOptions { truncation: Truncation::At(Side::Right), raw_scores };
        let (scores, _) =
            pipeline.score(golden.query.clone(), texts.clone(), options, deadline()).await.unwrap();
        for (found, expected) in scores.iter().zip(&expected) {
            assert!((found - expected).abs() <= TOLERANCE, "{found}, expected {expected}");
        }
    }
}
