//! The decode loop on real graphs, for every `generate` option.

use std::{num::NonZeroUsize, path::Path, sync::mpsc, time::Duration};

use kivu::repository::manifest::Precision;
use kivu::{
    backend::{
        Deadline,
        seq2seq::{Seq2SeqBackend, SourceBatch},
    },
    onnx::{OnnxSeq2Seq, Parallelism, Runtime},
    pipeline::generation::{
        Bounds, Generated, GenerationConfig, GenerationOptions, GenerationSettings, SourceInfo,
        generate,
    },
};
use kivu_compiler::{export, onnx};
use serde::Deserialize;
use serde_json::Value;

use crate::models::{build_request, fixtures, request, runtime};

#[derive(Deserialize)]
struct Goldens {
    generated: Vec<Case>,
}

/// A batch, and its result from `generate`.
#[derive(Deserialize)]
struct Case {
    options: GenerationOptions,
    sources: Vec<Vec<i64>>,
    sequences: Vec<Vec<Vec<i64>>>,
    scores: Option<Vec<Vec<f32>>>,
}

fn goldens(name: &str) -> Vec<Case> {
    let path = fixtures().join("goldens").join(format!("{name}.json"));
    let goldens: Goldens = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    goldens.generated
}

/// The settings in a model's `generation_config.json`.
fn settings(name: &str) -> GenerationSettings {
    let path = fixtures()
        .join("models")
        .join(name)
        .join("generation_config.json");
    let Value::Object(mut said) = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
    else {
        panic!("expected an object");
    };
    let mut take = |key: &str| said.remove(key).and_then(|value| value.as_i64()).unwrap();
    let (start, end, pad) = (
        take("decoder_start_token_id"),
        take("eos_token_id"),
        take("pad_token_id"),
    );
    said.remove("bos_token_id");
    said.remove("transformers_version");
    said.remove("_from_model_config");
    GenerationSettings {
        decoder_start_token_id: start,
        eos_token_ids: vec![end],
        pad_token_id: pad,
        length_factor: None,
        defaults: serde_json::from_value(Value::Object(said)).unwrap(),
    }
}

/// The graphs in `folder` as a backend.
fn open(folder: &Path, parallel: Parallelism, runtime: Runtime) -> OnnxSeq2Seq {
    let graphs = ["encoder.onnx", "decoder.onnx"].map(|name| folder.join(name));
    OnnxSeq2Seq::open(runtime, graphs.each_ref(), parallel).unwrap()
}

async fn run(
    backend: &dyn Seq2SeqBackend,
    sources: &[Vec<i64>],
    search: &GenerationConfig,
    pad: i64,
) -> Vec<Vec<Generated>> {
    let (sender, receiver) = mpsc::channel();
    let list: Vec<SourceInfo> = sources
        .iter()
        .enumerate()
        .map(|(number, source)| SourceInfo {
            length: source.len(),
            number,
        })
        .collect();
    let (search, deadline) = (search.clone(), Deadline::within(Duration::from_secs(30)));
    let work = Box::new(move |decoder: &mut dyn kivu::backend::seq2seq::Decoder| {
        sender
            .send(generate(decoder, &list, &search, deadline)?)
            .unwrap();
        Ok(())
    });
    backend
        .decode(
            SourceBatch {
                rows: sources.to_vec(),
                pad,
                shortlist: None,
            },
            deadline,
            work,
        )
        .await
        .unwrap();
    receiver.recv().unwrap()
}

/// Compares a batch with results from `transformers`: the same ids, and scores to 1e-4.
fn compare(case: &Case, found: &[Vec<Generated>], note: &str) {
    let ids: Vec<Vec<Vec<i64>>> = found
        .iter()
        .map(|texts| texts.iter().map(|text| text.ids.clone()).collect())
        .collect();
    assert_eq!(
        ids,
        case.sequences[..found.len()],
        "{note} {:?}",
        case.options
    );
    for (texts, scores) in found.iter().zip(case.scores.iter().flatten()) {
        for (text, score) in texts.iter().zip(scores) {
            let found = text.score.expect("beams have scores");
            let tolerance = 1e-4 * score.abs().max(1.0);
            assert!(
                (found - score).abs() < tolerance,
                "{note} {:?}: {found}, not {score}",
                case.options
            );
        }
    }
}

async fn generates_as_transformers(name: &str, backend: &OnnxSeq2Seq) {
    every_case_is_as_in_transformers((name, 50), backend).await;
}

async fn every_case_is_as_in_transformers((name, count): (&str, usize), backend: &OnnxSeq2Seq) {
    let settings = settings(name);
    let bounds = Bounds {
        vocabulary: backend.vocabulary().unwrap(),
        max_length: 65,
    };
    let cases = goldens(name);
    assert!(cases.len() > count, "{name}: {}", cases.len());
    for case in &cases {
        let search = GenerationConfig::new(&settings, &case.options, bounds).unwrap();
        let found = run(backend, &case.sources, &search, settings.pad_token_id).await;
        compare(case, &found, "batch");
        // A source's target does not depend on the rest of the batch.
        let alone = run(backend, &case.sources[..1], &search, settings.pad_token_id).await;
        compare(case, &alone, "alone");
    }
}

fn threads(count: usize) -> NonZeroUsize {
    NonZeroUsize::new(count).unwrap()
}

async fn an_export_generates_as_transformers(name: &str, parallel: Parallelism) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let graphs = export::read(&fixtures().join("exports").join(name)).unwrap();
    let models = [
        ("encoder.onnx", graphs.encoder),
        ("decoder.onnx", graphs.decoder),
    ];
    onnx::write_all(models, folder.path()).unwrap();
    generates_as_transformers(name, &open(folder.path(), parallel, runtime)).await;
}

async fn a_bundle_generates_as_transformers(name: &str) {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join(name);
    let source = fixtures().join("models").join(name);
    build_request(
        &request(source, out.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap();
    generates_as_transformers(
        name,
        &open(&out, Parallelism::WithinStep(threads(2)), runtime),
    )
    .await;
}

#[tokio::test]
async fn bundles_of_other_families_generate_as_transformers() {
    let Some(runtime) = runtime() else { return };
    let cases = [
        ("tiny-bart", 50),
        ("tiny-pegasus", 15),
        ("tiny-t5", 50),
        ("tiny-flan-t5", 15),
        ("tiny-mt5", 10),
        ("tiny-madlad", 15),
        ("tiny-mbart", 15),
        ("tiny-mbart50", 15),
    ];
    for (name, count) in cases {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join(name);
        let source = fixtures().join("models").join(name);
        build_request(
            &request(source, out.clone(), Some(Precision::Fp32)),
            runtime,
        )
        .unwrap();
        let backend = open(&out, Parallelism::WithinStep(threads(2)), runtime);
        every_case_is_as_in_transformers((name, count), &backend).await;
    }
}

#[tokio::test]
async fn an_export_with_a_merged_decoder_generates_as_transformers() {
    an_export_generates_as_transformers("tiny-m2m100", Parallelism::WithinStep(threads(2))).await;
}

#[tokio::test]
async fn an_export_with_two_decoders_generates_as_transformers() {
    an_export_generates_as_transformers("tiny-marian", Parallelism::AcrossSources(threads(2)))
        .await;
}

#[tokio::test]
async fn bundles_generate_as_transformers() {
    for name in [
        "tiny-m2m100",
        "tiny-nllb",
        "tiny-marian",
        "tiny-marian-multi",
    ] {
        a_bundle_generates_as_transformers(name).await;
    }
}

#[tokio::test]
async fn bundles_of_exports_generate_as_transformers() {
    let Some(runtime) = runtime() else { return };
    for name in ["tiny-m2m100", "tiny-marian"] {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join(name);
        let source = fixtures().join("exports").join(name);
        build_request(
            &request(source.clone(), out.clone(), Some(Precision::Fp32)),
            runtime,
        )
        .unwrap();
        generates_as_transformers(
            name,
            &open(&out, Parallelism::WithinStep(threads(1)), runtime),
        )
        .await;
        let blocks = request(
            source,
            folder.path().join("blocks"),
            Some(Precision::Int8Blocks),
        );
        let error = build_request(&blocks, runtime).unwrap_err();
        assert!(
            error.chain().contains("but found `int8-blocks`"),
            "{}",
            error.chain()
        );
    }
}
