//! Surprising results from `transformers` and sentence-transformers for fixtures with changed files.

use std::{collections::BTreeMap, fs, path::Path};

use kivu::{
    Error,
    model::{Model, Pipeline},
    pipeline::{
        Input, Task,
        classification::ranking::{RankingOptions, RankingPipeline},
    },
    repository::manifest::Precision,
    tokenizer::{Side, Truncation},
};
use kivu_compiler::{onnx, onnx::proto::TensorProto};
use prost::Message;
use serde::Deserialize;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{
    builds::tokenizer_settings::merge,
    copies::copy,
    embedding::goldens::{deadline, difference, pipeline},
    models::{build_request, fixtures, options, request, request_without_floor, runtime, serve},
};

const TOLERANCE: f32 = 3e-5;

#[derive(Deserialize)]
struct Golden {
    rankers: Vec<Ranker>,
    classifier: Classifier,
    bidirectional: Bidirectional,
}

/// A fixture with changed files.
#[derive(Deserialize)]
struct Fixture {
    model: String,
    patches: BTreeMap<String, Value>,
}

#[derive(Deserialize)]
struct Ranker {
    name: String,
    #[serde(flatten)]
    fixture: Fixture,
    pairs: Vec<[String; 2]>,
    scores: Vec<f32>,
}

#[derive(Deserialize)]
struct Classifier {
    #[serde(flatten)]
    fixture: Fixture,
    texts: Vec<String>,
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Bidirectional {
    #[serde(flatten)]
    fixture: Fixture,
    ids: Vec<Vec<u32>>,
    vectors: Vec<Vec<f32>>,
}

fn golden() -> Golden {
    serde_json::from_slice(&fs::read(fixtures().join("goldens/corners.json")).unwrap()).unwrap()
}

impl Fixture {
    /// Writes the files into `source`.
    fn write(&self, source: &Path) {
        copy(&fixtures().join("models").join(&self.model), source);
        for (file, patch) in &self.patches {
            let path = source.join(file);
            if patch.is_null() {
                fs::remove_file(path).unwrap();
                continue;
            }
            let mut content =
                fs::read(&path).map_or(Value::Null, |json| serde_json::from_slice(&json).unwrap());
            merge(&mut content, patch);
            fs::write(path, content.to_string()).unwrap();
        }
    }

    /// Builds the fixture, whose files `change` changes further, in fp32.
    fn open(&self, change: impl FnOnce(&Path)) -> Option<(Model, TempDir)> {
        let runtime = runtime()?;
        let folder = tempfile::tempdir().unwrap();
        let [source, out] = ["model", "out"].map(|name| folder.path().join(name));
        self.write(&source);
        change(&source);
        build_request(
            &request(source, out.clone(), Some(Precision::Fp32)),
            runtime,
        )
        .unwrap();
        Some((serve(&out).unwrap(), folder))
    }
}

#[tokio::test]
async fn cross_encoders_follow_the_settings_of_tokenizers_and_prompts() {
    for Ranker {
        name,
        fixture,
        pairs,
        scores,
    } in golden().rankers
    {
        let Some((model, _folder)) = fixture.open(|_| ()) else {
            return;
        };
        let Pipeline::Ranking(ranking @ RankingPipeline::CrossEncoder(_)) = &model.pipeline else {
            panic!("expected a CrossEncoder, but found {:?}", model.pipeline)
        };
        let options = RankingOptions {
            truncation: Truncation::At(Side::Right),
            raw_scores: true,
        };
        for ([query, text], expected) in pairs.into_iter().zip(scores) {
            let (found, _) = ranking
                .score(query, vec![text], options, deadline())
                .await
                .unwrap();
            assert!(
                (found[0] - expected).abs() <= TOLERANCE,
                "{name}: {found:?}, expected {expected}"
            );
        }
    }
}

#[tokio::test]
async fn decoders_classify_by_the_last_token_that_is_not_padding() {
    let Classifier {
        fixture,
        texts,
        logits,
    } = golden().classifier;
    // The head is a second shard.
    let add_head = |source: &Path| {
        fs::rename(
            source.join("model.safetensors"),
            source.join("model-1.safetensors"),
        )
        .unwrap();
        fs::copy(
            fixtures().join("corners/score.safetensors"),
            source.join("model-2.safetensors"),
        )
        .unwrap();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        fs::write(source.join("model.safetensors.index.json"), index).unwrap();
    };
    let Some((model, _folder)) = fixture.open(add_head) else {
        return;
    };
    let Pipeline::Classification(pipeline) = &model.pipeline else {
        panic!("expected a classifier, but found {:?}", model.pipeline)
    };
    for (text, expected) in texts.into_iter().zip(logits) {
        let inputs = vec![Input::Text(text.clone())];
        let found = pipeline
            .logits(inputs, Truncation::Off, deadline())
            .await
            .unwrap();
        let difference = difference(&found.rows[0], &expected);
        assert!(
            difference <= TOLERANCE,
            "{text}: {:?}, expected {expected:?}",
            found.rows[0]
        );
    }
}

#[tokio::test]
async fn decoders_attend_to_all_tokens_if_they_are_not_causal() {
    let Bidirectional {
        fixture,
        ids,
        vectors,
    } = golden().bidirectional;
    let Some((model, _folder)) = fixture.open(|_| ()) else {
        return;
    };
    let options = options();
    for (ids, expected) in ids.into_iter().zip(vectors) {
        let found = pipeline(&model)
            .embed(vec![Input::Ids(ids.clone())], &options, deadline())
            .await
            .unwrap();
        let length = expected
            .iter()
            .map(|value| value * value)
            .sum::<f32>()
            .sqrt();
        let expected: Vec<f32> = expected.iter().map(|value| value / length).collect();
        let difference = difference(&found.vectors[0], &expected);
        assert!(difference <= TOLERANCE, "{ids:?}: off by {difference}");
    }
}

#[tokio::test]
async fn a_text_without_tokens_is_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for (model, precision) in [
        ("tiny-bert", Precision::Fp32),
        ("tiny-bert", Precision::Int8),
        ("tiny-bert-sentiment", Precision::Fp32),
        ("tiny-bert-sentiment", Precision::Int8),
    ] {
        let [source, out] =
            ["model", "out"].map(|name| folder.path().join(format!("{name}-{model}-{precision}")));
        let patches = BTreeMap::from([(
            "tokenizer.json".to_owned(),
            json!({ "post_processor": null }),
        )]);
        Fixture {
            model: model.to_owned(),
            patches,
        }
        .write(&source);
        let task = if model == "tiny-bert" {
            Task::FeatureExtraction
        } else {
            Task::TextClassification
        };
        build_request(
            &request_without_floor(task, &source, out.clone(), Some(precision)),
            runtime,
        )
        .unwrap();
        let served = serve(&out).unwrap();
        let refusal = match &served.pipeline {
            Pipeline::Embedding(pipeline) => {
                let inputs = vec![Input::Text("a".into()), Input::Text(" ".into())];
                pipeline
                    .embed(inputs, &options(), deadline())
                    .await
                    .unwrap_err()
            }
            Pipeline::Classification(pipeline) => {
                let inputs = vec![Input::Text(String::new())];
                pipeline
                    .logits(inputs, Truncation::Off, deadline())
                    .await
                    .unwrap_err()
            }
            other => panic!("expected an embedder or a classifier, but found {other:?}"),
        };
        assert!(
            matches!(refusal, Error::Invalid { .. }),
            "{model} in {precision}: {refusal:?}"
        );
        assert!(
            refusal.to_string().contains("has no tokens"),
            "{model} in {precision}: {refusal}"
        );
    }
}

#[test]
fn graphs_whose_weights_are_not_numbers_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let [source, out] = ["model", "out"].map(|name| folder.path().join(name));
    copy(&fixtures().join("exports/tiny-bert"), &source);
    let path = source.join("model.onnx");
    let mut model = onnx::read(&path).unwrap();
    let graph = model.graph.as_mut().unwrap();
    let is_matrix = |tensor: &&mut TensorProto| tensor.dims.len() == 2 && tensor.raw_data.len() > 4;
    let matrix = graph
        .initializer
        .iter_mut()
        .filter(is_matrix)
        .last()
        .unwrap();
    let mut data = matrix.raw_data.to_vec();
    data[..4].copy_from_slice(&f32::NAN.to_le_bytes());
    matrix.raw_data = data.into();
    fs::write(&path, model.encode_to_vec()).unwrap();
    for precision in [Precision::Int8, Precision::Fp32] {
        let refusal = build_request(
            &request(source.clone(), out.clone(), Some(precision)),
            runtime,
        )
        .unwrap_err();
        assert!(
            refusal.chain().contains("not a finite number"),
            "{precision}: {}",
            refusal.chain()
        );
    }
}
