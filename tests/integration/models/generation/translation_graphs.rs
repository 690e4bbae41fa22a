//! Built translation models: graphs and tokenizers with the same results as `transformers`.

use std::{fs, num::NonZeroUsize, path::Path};

use kivu::{
    onnx::{Runtime, Session},
    pipeline::seq2seq::Seq2SeqSettings,
    repository::{Bundle, manifest::Precision},
    tensor::{Elements, Tensor},
    tokenizer::{SpecialTokens, Tokenizer},
};
use serde::Deserialize;

use crate::models::{build_request, fixtures, request, runtime};

const MODELS: [&str; 6] = [
    "tiny-m2m100",
    "tiny-nllb",
    "tiny-marian",
    "tiny-marian-multi",
    "tiny-mbart",
    "tiny-mbart50",
];

/// Models that do not translate.
const GENERATORS: [&str; 6] = [
    "tiny-bart",
    "tiny-pegasus",
    "tiny-t5",
    "tiny-flan-t5",
    "tiny-mt5",
    "tiny-madlad",
];

#[derive(Deserialize)]
struct Golden {
    teacher_forced: Vec<TeacherForced>,
    tokenized: Vec<Tokenized>,
    decoded: Vec<Decoded>,
}

/// Given targets, and logits for all or some steps.
#[derive(Deserialize)]
struct TeacherForced {
    ids: Vec<i64>,
    decoder_ids: Vec<i64>,
    steps: Option<Vec<usize>>,
    logits: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
struct Tokenized {
    src_lang: Option<String>,
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Decoded {
    ids: Vec<u32>,
    text: String,
}

fn golden(model: &str) -> Golden {
    let path = fixtures().join("goldens").join(format!("{model}.json"));
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Both graphs in a translation bundle.
struct Graphs {
    encoder: Session,
    decoder: Session,
}

impl Graphs {
    fn open(bundle: &Bundle, runtime: Runtime) -> Self {
        let open =
            |name: &str| Session::open(runtime, &bundle.path(name), NonZeroUsize::MIN).unwrap();
        let manifest = bundle.manifest();
        Self {
            encoder: open(&manifest.graph),
            decoder: open(&settings(bundle).decoder.graph),
        }
    }

    /// Logits per step and row, with given targets.
    fn logits(&self, rows: &[&TeacherForced], padding: i64) -> Vec<Vec<Vec<f32>>> {
        let width = rows.iter().map(|row| row.ids.len()).max().unwrap();
        let shape = vec![rows.len(), width];
        let padded = |row: &&TeacherForced| {
            (0..width)
                .map(|at| row.ids.get(at).copied().unwrap_or(padding))
                .collect()
        };
        let ids: Vec<Vec<i64>> = rows.iter().map(padded).collect();
        let mask = rows
            .iter()
            .flat_map(|row| (0..width).map(|at| i64::from(at < row.ids.len())))
            .collect();
        let integers = |shape: Vec<usize>, values: Vec<i64>| {
            Tensor::new(shape, Elements::Int64(values)).unwrap()
        };
        let mut known = vec![
            (
                "input_ids".to_owned(),
                integers(shape.clone(), ids.concat()),
            ),
            ("attention_mask".to_owned(), integers(shape, mask)),
        ];
        known.extend(run(&self.encoder, &known));
        for spec in &self.decoder.signature().inputs {
            if spec.name.starts_with("past.") {
                let mut shape: Vec<usize> = spec
                    .shape
                    .iter()
                    .map(|side| (*side).max(0) as usize)
                    .collect();
                shape[0] = rows.len();
                let values = vec![0.0; shape.iter().product()];
                known.push((
                    spec.name.clone(),
                    Tensor::new(shape, Elements::Fp32(values)).unwrap(),
                ));
            }
        }
        let mut logits = vec![Vec::new(); rows.len()];
        for step in 0..rows[0].decoder_ids.len() {
            let tokens = rows.iter().map(|row| row.decoder_ids[step]).collect();
            known.retain(|(name, _)| name != "input_ids" && name != "position");
            known.push(("input_ids".into(), integers(vec![rows.len(), 1], tokens)));
            known.push(("position".into(), integers(vec![1], vec![step as i64])));
            for (name, tensor) in run(&self.decoder, &known) {
                if name == "logits" {
                    let values = tensor.as_fp32().unwrap();
                    let width = values.len() / rows.len();
                    let rows = logits.iter_mut().zip(values.chunks(width));
                    rows.for_each(|(logits, values)| logits.push(values.to_vec()));
                } else {
                    let past = name.replace("present.", "past.");
                    known.retain(|(name, _)| *name != past);
                    known.push((past, tensor));
                }
            }
        }
        logits
    }
}

/// A session's outputs by name, with inputs from `known`.
fn run(session: &Session, known: &[(String, Tensor)]) -> Vec<(String, Tensor)> {
    let signature = session.signature();
    let pick = |name: &str| {
        known
            .iter()
            .find(|(known, _)| known == name)
            .unwrap()
            .1
            .clone()
    };
    let inputs: Vec<Tensor> = signature
        .inputs
        .iter()
        .map(|input| pick(&input.name))
        .collect();
    let outputs = session.run(&inputs).unwrap();
    signature
        .outputs
        .iter()
        .map(|output| output.name.clone())
        .zip(outputs)
        .collect()
}

fn settings(bundle: &Bundle) -> &Seq2SeqSettings {
    bundle.manifest().settings.seq2seq().unwrap()
}

fn build(source: &Path, out: &Path, precision: Precision, runtime: Runtime) -> Bundle {
    build_request(
        &request(source.to_owned(), out.to_owned(), Some(precision)),
        runtime,
    )
    .unwrap()
}

#[test]
fn the_logits_of_every_step_equal_those_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for model in MODELS.into_iter().chain(GENERATORS) {
        let source = fixtures().join("models").join(model);
        let bundle = build(
            &source,
            &folder.path().join(model),
            Precision::Fp32,
            runtime,
        );
        let graphs = Graphs::open(&bundle, runtime);
        let cases = golden(model).teacher_forced;
        let padding = settings(&bundle).generation.pad_token_id;
        let together: Vec<&TeacherForced> = cases.iter().collect();
        let alone = cases
            .iter()
            .flat_map(|case| graphs.logits(&[case], padding));
        for found in [alone.collect(), graphs.logits(&together, padding)] {
            for (case, found) in cases.iter().zip(&found) {
                let every = (0..found.len()).collect();
                let steps = case.steps.as_ref().unwrap_or(&every);
                let found: Vec<&Vec<f32>> = steps.iter().map(|step| &found[*step]).collect();
                let pairs = case
                    .logits
                    .iter()
                    .flatten()
                    .zip(found.into_iter().flatten());
                let worst = pairs
                    .map(|(left, right)| (left - right).abs())
                    .fold(0.0, f32::max);
                assert!(worst < 3e-5, "{model}: off by {worst}");
            }
        }
    }
}

#[test]
fn ids_equal_those_of_the_slow_tokenizers_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    // NLLB's folder also has a `tokenizer.json`, which is read if there is no SentencePiece model.
    let bare = folder.path().join("tiny-nllb-bare");
    fs::create_dir(&bare).unwrap();
    for entry in fs::read_dir(fixtures().join("models/tiny-nllb"))
        .unwrap()
        .map(Result::unwrap)
    {
        if entry.file_name() != "sentencepiece.bpe.model" {
            fs::copy(entry.path(), bare.join(entry.file_name())).unwrap();
        }
    }
    let sources = MODELS.map(|model| (model, fixtures().join("models").join(model)));
    for (model, source) in sources.into_iter().chain([("tiny-nllb", bare)]) {
        let bundle = build(
            &source,
            &folder.path().join("out"),
            Precision::Fp32,
            runtime,
        );
        let settings = settings(&bundle);
        let tokenizer = Tokenizer::open(&bundle.path("tokenizer.json")).unwrap();
        let has_first = ["nllb", "m2m100", "mbart50"]
            .iter()
            .any(|family| model.contains(family));
        // mBART has the language token after the end.
        let (first, last) = (
            usize::from(has_first),
            1 + usize::from(model == "tiny-mbart"),
        );
        let mut wrong = Vec::new();
        for Tokenized {
            src_lang,
            text,
            ids,
        } in golden(model).tokenized
        {
            // The fast tokenizer treats more characters as spaces than SentencePiece.
            if source.ends_with("tiny-nllb-bare") && text.trim().is_empty() {
                continue;
            }
            // Language codes before a text are the pipeline's task.
            if text.starts_with(">>") && text.contains("<<") && src_lang.is_none() {
                continue;
            }
            let found: Vec<u32> = tokenizer
                .tokens(&text, SpecialTokens::LeftOut)
                .unwrap()
                .iter()
                .map(|token| token.id)
                .collect();
            let found: Vec<u32> = found
                .into_iter()
                .map(|id| {
                    settings
                        .unknown_tokens
                        .map_or(id, |unknown| unknown.read(id))
                })
                .collect();
            let expected = &ids[first..ids.len() - last];
            if found != expected {
                wrong.push(format!("{text:?}: {found:?} in place of {expected:?}"));
            }
        }
        assert!(wrong.is_empty(), "{}: {wrong:#?}", source.display());
    }
}

#[test]
fn decoded_texts_equal_those_of_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    for model in MODELS.into_iter().chain(GENERATORS) {
        let source = fixtures().join("models").join(model);
        let bundle = build(
            &source,
            &folder.path().join(model),
            Precision::Fp32,
            runtime,
        );
        let file = settings(&bundle)
            .target_tokenizer
            .as_deref()
            .unwrap_or("tokenizer.json");
        let tokenizer = Tokenizer::open(&bundle.path(file)).unwrap();
        for Decoded { ids, text } in golden(model).decoded {
            let known = tokenizer.vocabulary_size() as u32;
            let ids: Vec<u32> = ids.into_iter().filter(|id| *id < known).collect();
            assert_eq!(
                tokenizer.decode(&ids, true).unwrap(),
                text,
                "{model}: {ids:?}"
            );
        }
    }
}
