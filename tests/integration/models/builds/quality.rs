//! `kivu quality`, and `--texts` and `--pairs` of `kivu build`, on bundles of the fixtures.

use std::{
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output, Stdio},
};

use kivu::{
    pipeline::Task,
    repository::{
        Bundle,
        manifest::{Precision, Quality},
    },
};
use kivu_compiler::quality::{SENTENCES, Samples};
use serde_json::{Value, json};

use crate::{
    copies::copy,
    models::{build_request, fixtures, library_path, request, request_without_floor, runtime},
};

/// A home of its own, so that no test finds the bundles of another.
struct Home(tempfile::TempDir);

impl Home {
    /// `None` without ONNX Runtime.
    fn new() -> Option<Self> {
        runtime().map(|_| Self(tempfile::tempdir().unwrap()))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Builds a fixture, without a floor for its quality.
    fn built(&self, fixture: &str, task: Task, precision: Precision) -> PathBuf {
        let out = self.path(&format!("{fixture}-{precision}"));
        let source = fixtures().join("models").join(fixture);
        let mut loose = request_without_floor(task, &source, out.clone(), Some(precision));
        loose.samples = Samples::default();
        build_request(&loose, runtime().unwrap()).unwrap();
        out
    }

    fn run(&self, arguments: &[&Path]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_kivu"));
        command.args(arguments).env("KIVU_HOME", self.path("home"));
        command
            .env("KIVU_ONNXRUNTIME", library_path().unwrap())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn quality(&self, bundle: &Path, options: &[(&str, &Path)]) -> Output {
        let mut arguments = vec![Path::new("quality"), bundle];
        options
            .iter()
            .for_each(|(option, value)| arguments.extend([Path::new(option), *value]));
        self.run(&arguments)
    }

    /// The report as JSON.
    fn report(&self, bundle: &Path, options: &[(&str, &Path)]) -> Value {
        let mut arguments = vec![Path::new("quality"), bundle, Path::new("--json")];
        options
            .iter()
            .for_each(|(option, value)| arguments.extend([Path::new(option), *value]));
        let output = self.run(&arguments);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The error, with this home's path replaced.
    fn refusal(&self, bundle: &Path, options: &[(&str, &Path)]) -> String {
        let output = self.quality(bundle, options);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            output.stdout.is_empty(),
            "no figure beside an error: {output:?}"
        );
        let error = String::from_utf8(output.stderr).unwrap();
        let error = error.split_once("error: ").unwrap().1.trim_end().to_owned();
        error.replace(&self.0.path().display().to_string(), "[home]")
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        fs::write(self.path(name), text).unwrap();
        self.path(name)
    }

    /// Runs `kivu batch` on texts, without a prompt.
    fn batch(&self, bundle: &Path, texts: &[String], output: &str) -> PathBuf {
        self.batch_with(bundle, texts, output, &[])
    }

    fn batch_with(
        &self,
        bundle: &Path,
        texts: &[String],
        output: &str,
        options: &[&str],
    ) -> PathBuf {
        let rows: String = texts
            .iter()
            .map(|text| json!({ "text": text }).to_string() + "\n")
            .collect();
        let (input, output) = (self.write("in.jsonl", &rows), self.path(output));
        let arguments = [
            Path::new("batch"),
            &input,
            &output,
            Path::new("--overwrite"),
            Path::new("--model"),
            bundle,
        ];
        let options = options.iter().map(Path::new);
        let found = self.run(&arguments.into_iter().chain(options).collect::<Vec<_>>());
        assert!(found.status.success(), "{found:?}");
        output
    }
}

fn number(value: &Value) -> f64 {
    value
        .as_f64()
        .unwrap_or_else(|| panic!("expected a number, but found {value}"))
}

fn close(found: &Value, expected: f64, tolerance: f64) {
    assert!(
        (number(found) - expected).abs() <= tolerance,
        "{found} instead of {expected}"
    );
}

/// Sentences from the built-in texts.
fn sentences(count: usize) -> Vec<String> {
    SENTENCES
        .lines()
        .filter(|text| text.len() < 120)
        .take(count)
        .map(str::to_owned)
        .collect()
}

fn rows(path: &Path) -> Vec<Value> {
    fs::read_to_string(path)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn embedding(row: &Value) -> Vec<f64> {
    row["embedding"]
        .as_array()
        .unwrap()
        .iter()
        .map(number)
        .collect()
}

fn cosine(left: &[f64], right: &[f64]) -> f64 {
    let dot = |left: &[f64], right: &[f64]| {
        left.iter()
            .zip(right)
            .map(|(left, right)| left * right)
            .sum::<f64>()
    };
    dot(left, right) / (dot(left, left) * dot(right, right)).sqrt()
}

#[test]
fn the_command_measures_what_the_build_measured() {
    let Some(home) = Home::new() else { return };
    let cases = [
        ("tiny-bert", Task::FeatureExtraction),
        ("tiny-bge-m3", Task::FeatureExtraction),
        ("tiny-colbert-stanford", Task::FeatureExtraction),
        ("tiny-splade-bert", Task::FeatureExtraction),
        ("tiny-bert-rank", Task::TextRanking),
        ("tiny-bert-sentiment", Task::TextClassification),
        ("tiny-roberta-nli", Task::ZeroShotClassification),
        ("tiny-bert-ner", Task::TokenClassification),
        ("tiny-gliner", Task::TokenClassification),
        ("tiny-gliclass", Task::ZeroShotClassification),
        ("tiny-bart", Task::Summarization),
    ];
    let few = home.write("few.txt", &sentences(20).join("\n"));
    for (fixture, task) in cases {
        let [fp32, int8] = [Precision::Fp32, Precision::Int8]
            .map(|precision| home.built(fixture, task, precision));
        let manifest = Bundle::open(&int8).unwrap().manifest().clone();
        let report = home.report(&int8, &[("--against", &fp32)]);
        let expected = json!(manifest.weights.quality.unwrap());
        let found = &report["quality"];
        assert_eq!(
            found.as_object().unwrap().len(),
            expected.as_object().unwrap().len(),
            "{fixture}"
        );
        for (name, expected) in expected.as_object().unwrap() {
            let Some(expected) = expected.as_f64() else {
                continue;
            };
            // The reference is the fp32 bundle's engine, whose last digits differ from the graph in the build.
            let tolerance = if name == "nearest" || name == "ten_nearest" {
                0.02
            } else {
                2e-3
            };
            let tolerance = if name == "chrf" { 1.0 } else { tolerance };
            let found = found[name]
                .as_f64()
                .unwrap_or_else(|| panic!("{fixture}: {name} in {report}"));
            assert!(
                (found - expected).abs() <= tolerance,
                "{fixture}: {name} {found} {expected}"
            );
        }
        let kinds = manifest.weights.other_vectors.len();
        assert_eq!(
            report["other_vectors"]
                .as_object()
                .map_or(0, |kinds| kinds.len()),
            kinds,
            "{fixture}"
        );
        assert_eq!(
            report["vectors"].is_object(),
            manifest.vectors.is_some(),
            "{fixture}: {report}"
        );
        let shown = home.quality(&int8, &[("--against", &fp32), ("--texts", &few)]);
        let text = String::from_utf8(shown.stdout).unwrap();
        assert!(
            text.starts_with(&format!(
                "{fixture}, int8 against {fixture}, fp32\n  texts "
            )),
            "{text}"
        );
    }
}

/// Without the source's bundle in fp32, it is built first.
#[test]
fn fp32_of_the_same_model_is_found_or_built() {
    let Some(home) = Home::new() else { return };
    let source = home.path("model");
    copy(&fixtures().join("models/tiny-bert"), &source);
    let report = home.report(&source, &[]);
    assert_eq!(report["other"], "model, fp32");
    assert!(number(&report["quality"]["mean_cosine"]) > 0.98, "{report}");
    // By the name of the built bundle, whose source is recorded.
    let built = home.run(&[
        Path::new("build"),
        &source,
        Path::new("--precision"),
        Path::new("int8"),
    ]);
    assert!(built.status.success(), "{built:?}");
    let named = home.report(
        Path::new("model"),
        &[("--against", Path::new("int8-blocks"))],
    );
    assert_eq!(
        (&named["precision"], &named["other"]),
        (&json!("int8"), &json!("model, int8-blocks"))
    );
    let own = home.report(Path::new("model"), &[("--against", Path::new("int8"))]);
    close(&own["quality"]["worst_cosine"], 1.0, 1e-6);
    let list = home.write("texts.txt", &sentences(40).join("\n"));
    let table = home.run(&[
        Path::new("quality"),
        Path::new("model"),
        Path::new("--all"),
        Path::new("--texts"),
        &list,
    ]);
    assert!(table.status.success(), "{table:?}");
    let table = String::from_utf8(table.stdout).unwrap();
    for part in ["fp32", "int8-blocks", "note: the speeds are from runs"] {
        assert!(table.contains(part), "{part}: {table}");
    }
    // A bundle whose source nobody knows.
    let out = home.path("out");
    build_request(
        &request(source, out.clone(), Some(Precision::Int8)),
        runtime().unwrap(),
    )
    .unwrap();
    insta::assert_snapshot!(home.refusal(&out, &[]), @r"
    the source of `[home]/out` is unknown: the bundle has only its name, `model`
    hint: build it with `--precision fp32` and name that bundle with `--against`
    ");
}

/// What is asked for is measured, on the given texts, whatever the floor; the bundle is not served afterwards.
#[test]
fn a_precision_below_the_floor_is_measured() {
    let Some(home) = Home::new() else { return };
    let list = home.write("texts.txt", &sentences(40).join("\n"));
    let recipe = home.write(
        "model.toml",
        &format!(
            "name = 'model'\ntask = 'feature-extraction'\n[source]\nfolder = {:?}\n[quality]\nmean_cosine = 0.999999\n",
            fixtures().join("models/tiny-bert")
        ),
    );
    let against =
        |precision: &'static str| [("--against", Path::new(precision)), ("--texts", &list)];
    for precision in ["int8", "int8-blocks"] {
        let report = home.report(&recipe, &against(precision));
        assert_eq!(report["other"], format!("model, {precision}"));
        assert_eq!(report["quality"]["texts"], 40);
        assert!(
            number(&report["quality"]["mean_cosine"]) < 0.999999,
            "{report}"
        );
    }
    let own = home.report(
        &recipe,
        &[
            ("--precision", Path::new("int8")),
            ("--against", Path::new("fp32")),
        ],
    );
    assert_eq!(own["precision"], "int8");
    let served = home.run(&[
        Path::new("build"),
        &recipe,
        Path::new("--precision"),
        Path::new("int8"),
    ]);
    let error = String::from_utf8(served.stderr).unwrap();
    assert!(
        !served.status.success() && error.contains("expected a mean cosine to fp32"),
        "{error}"
    );
}

#[test]
fn vectors_in_files_are_compared_like_bundles() {
    let Some(home) = Home::new() else { return };
    let [fp32, int8] = [Precision::Fp32, Precision::Int8]
        .map(|precision| home.built("tiny-bert", Task::FeatureExtraction, precision));
    let texts = sentences(40);
    let list = home.write("texts.txt", &texts.join("\n"));
    let expected =
        home.report(&int8, &[("--against", &fp32), ("--texts", &list)])["quality"].clone();
    assert_eq!(expected["texts"], 40);
    // The model has a prompt for documents, which the command uses.
    let lines = home.batch_with(&fp32, &texts, "vectors.jsonl", &["--prompt", "document"]);
    let vectors: Vec<Vec<f64>> = rows(&lines).iter().map(embedding).collect();
    let mut npy = format!(
        "{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}",
        40,
        vectors[0].len()
    );
    npy.push('\n');
    let mut bytes = [
        &b"\x93NUMPY\x01\x00"[..],
        &(npy.len() as u16).to_le_bytes(),
        npy.as_bytes(),
    ]
    .concat();
    vectors
        .iter()
        .flatten()
        .for_each(|value| bytes.extend_from_slice(&(*value as f32).to_le_bytes()));
    fs::write(home.path("vectors.npy"), bytes).unwrap();
    let mut csv = "text,embedding\n".to_owned();
    for (text, vector) in texts.iter().zip(&vectors) {
        writeln!(
            csv,
            "\"{}\",\"{}\"",
            text.replace('"', "\"\""),
            json!(vector)
        )
        .unwrap();
    }
    home.write("vectors.csv", &csv);
    let npy = home.path("vectors.npy");
    let found = [
        home.report(&int8, &[("--against", &lines)]),
        home.report(&int8, &[("--against", &npy), ("--texts", &list)]),
        home.report(&int8, &[("--against", &home.path("vectors.csv"))]),
    ];
    for report in found {
        for name in ["mean_cosine", "worst_cosine"] {
            close(&report["quality"][name], number(&expected[name]), 1e-5);
        }
        assert_eq!(
            report["quality"]["neighbours"], expected["neighbours"],
            "{report}"
        );
        assert!(report["vectors"]["int8"].is_number(), "{report}");
    }
    insta::assert_snapshot!(home.refusal(&int8, &[("--against", &npy)]), @r"
    expected `--texts` with the texts of the vectors in `[home]/vectors.npy`, but found none
    hint: name the file that has them in the same order
    ");
    let mut swapped = texts.clone();
    swapped.swap(2, 3);
    let swapped = home.write("swapped.txt", &swapped.join("\n"));
    insta::assert_snapshot!(home.refusal(&int8, &[("--against", &lines), ("--texts", &swapped)]), @r"
    `[home]/vectors.jsonl` does not have the texts of `--texts`: row 3 differs
    hint: leave out `--texts`, or the column with the texts
    ");
    let fewer = home.write("fewer.txt", &texts[..30].join("\n"));
    insta::assert_snapshot!(home.refusal(&int8, &[("--against", &npy), ("--texts", &fewer)]), @"expected 30 vectors in `[home]/vectors.npy`, one per text, but found 40");
    let narrow = texts
        .iter()
        .enumerate()
        .map(|(row, text)| json!({"text": text, "embedding": [row, 1, 2]}).to_string() + "\n");
    let other = home.write("other.jsonl", &narrow.collect::<String>());
    let refused = home.refusal(&int8, &[("--against", &other)]);
    assert!(
        refused.starts_with(
            "expected vectors of 32 values, as the model's, in `[home]/other.jsonl`, but found 3 values"
        ),
        "{refused}"
    );
    let labels = home.built(
        "tiny-bert-sentiment",
        Task::TextClassification,
        Precision::Fp32,
    );
    insta::assert_snapshot!(home.refusal(&labels, &[("--against", &lines)]), @"the vectors in `[home]/vectors.jsonl` need a model with dense vectors");
    insta::assert_snapshot!(home.refusal(&labels, &[("--against", &fp32)]), @"expected models for the same task, but `tiny-bert-sentiment` is for `text-classification` and `tiny-bert` for `feature-extraction`");
    let zero = fs::read_to_string(&lines).unwrap();
    let zero = home.write(
        "zero.jsonl",
        &zero.replacen(&json!(vectors[3]).to_string(), "[0, 0]", 1),
    );
    assert!(
        home.refusal(&int8, &[("--against", &zero)])
            .contains("expected a vector per text"),
        "ragged"
    );
}

/// Spearman's formula for ranks without ties.
fn spearman(left: &[f64], right: &[f64]) -> f64 {
    let rank =
        |values: &[f64], value: f64| values.iter().filter(|other| **other < value).count() as f64;
    let squares: f64 = left
        .iter()
        .zip(right)
        .map(|(l, r)| (rank(left, *l) - rank(right, *r)).powi(2))
        .sum();
    let count = left.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

#[test]
fn pairs_of_texts_are_measured_by_similarity() {
    let Some(home) = Home::new() else { return };
    let [fp32, int8] = [Precision::Fp32, Precision::Int8]
        .map(|precision| home.built("tiny-bert", Task::FeatureExtraction, precision));
    let texts = sentences(60);
    let (first, second) = texts.split_at(30);
    let vectors = |bundle: &Path, options: &[&str]| -> Vec<Vec<f64>> {
        rows(&home.batch_with(bundle, &texts, "out.jsonl", options))
            .iter()
            .map(embedding)
            .collect()
    };
    let cosines = |bundle: &Path| -> Vec<f64> {
        let vectors = vectors(bundle, &[]);
        (0..30)
            .map(|pair| cosine(&vectors[pair], &vectors[30 + pair]))
            .collect()
    };
    let gold: Vec<f64> = (0..30).map(|pair| f64::from(pair * 7 % 30)).collect();
    let quote = |text: &str| format!("\"{}\"", text.replace('"', "\"\""));
    let file = |name: &str, header: &str, value: &dyn Fn(usize) -> String| {
        let mut text = format!("id,{header}\n");
        for pair in 0..30 {
            let (first, second) = (quote(&first[pair]), quote(&second[pair]));
            writeln!(text, "{pair},{first},{second},{}", value(pair)).unwrap();
        }
        home.write(name, &text)
    };
    let scores = file("scores.csv", "sentence1,sentence2,score", &|pair| {
        gold[pair].to_string()
    });
    let report = home.report(&int8, &[("--pairs", &scores), ("--against", &fp32)]);
    assert_eq!(
        (&report["pairs"]["kind"], &report["pairs"]["pairs"]),
        (&json!("pairs with scores"), &json!(30))
    );
    close(
        &report["pairs"]["model"]["spearman"],
        spearman(&cosines(&int8), &gold),
        1e-9,
    );
    close(
        &report["pairs"]["other"]["spearman"],
        spearman(&cosines(&fp32), &gold),
        1e-9,
    );
    // Without `--against`, only the model is measured.
    let alone = home.report(&int8, &[("--pairs", &scores)]);
    assert_eq!(alone["pairs"]["model"], report["pairs"]["model"]);
    assert!(
        alone["quality"].is_null() && alone["pairs"].get("other").is_none(),
        "{alone}"
    );
    // Labels that the model separates perfectly, and two of them changed.
    let own = cosines(&int8);
    let mut sorted = own.clone();
    sorted.sort_by(f64::total_cmp);
    for (changed, accuracy) in [(0, 1.0), (2, 28.0 / 30.0)] {
        let is_duplicate =
            |pair: usize| (own[pair] > sorted[14]) != sorted[..changed].contains(&own[pair]);
        let labels = file("labels.csv", "question1,question2,is_duplicate", &|pair| {
            u8::from(is_duplicate(pair)).to_string()
        });
        let found = home.report(&int8, &[("--pairs", &labels)]);
        close(&found["pairs"]["model"]["accuracy"], accuracy, 1e-9);
    }
    let passages = |turn: usize| {
        let rows = (0..30)
            .map(|pair| json!({"question": first[pair], "passage": first[(pair + turn) % 30]}));
        home.write(
            "passages.jsonl",
            &rows.map(|row| row.to_string() + "\n").collect::<String>(),
        )
    };
    let found = home.report(&int8, &[("--pairs", &passages(1))]);
    let [queries, documents] =
        ["query", "document"].map(|role| vectors(&int8, &["--prompt", role]));
    let expected = (0..30).filter(|question| {
        let similarity = |passage: usize| cosine(&queries[*question], &documents[passage]);
        let own = similarity((question + 1) % 30);
        (0..30)
            .filter(|passage| similarity(*passage) >= own)
            .count()
            <= 10
    });
    close(
        &found["pairs"]["model"]["recall_at_10"],
        expected.count() as f64 / 30.0,
        1e-9,
    );
    let text = String::from_utf8(home.quality(&int8, &[("--pairs", &scores)]).stdout).unwrap();
    let shown = format!("{:.4}", spearman(&own, &gold));
    assert_eq!(
        text,
        format!(
            "tiny-bert, int8\n  pairs            30 pairs with scores\n  Spearman         {shown}\n"
        )
    );
    let three = file("three.csv", "text1,text2,label", &|pair| {
        ["a", "b", "c"][pair % 3].to_owned()
    });
    insta::assert_snapshot!(home.refusal(&int8, &[("--pairs", &three)]), @"expected two labels, one of them among `1`, `true`, `yes`, `duplicate`, `paraphrase`, `entailment`, for a model that scores similarity, but found `a`, `b`, `c`");
    insta::assert_snapshot!(home.refusal(&int8, &[("--pairs", &scores), ("--texts", &home.write("t.txt", &texts.join("\n")))]), @r"
    expected `--against` with `--texts` and `--pairs`, but found none
    hint: say what to compare the texts with, such as `--against fp32`
    ");
}

#[test]
fn labels_are_measured_by_accuracy() {
    let Some(home) = Home::new() else { return };
    let sentiment = home.built(
        "tiny-bert-sentiment",
        Task::TextClassification,
        Precision::Fp32,
    );
    let texts = sentences(30);
    let labels: Vec<String> = rows(&home.batch(&sentiment, &texts, "labels.jsonl"))
        .iter()
        .map(|row| row["label"].as_str().unwrap().to_owned())
        .collect();
    let known = ["negative", "neutral"];
    let other = |label: &str| {
        known
            .iter()
            .find(|known| !known.eq_ignore_ascii_case(label))
            .unwrap()
            .to_string()
    };
    for wrong in [0, 6] {
        let rows = texts
            .iter()
            .zip(&labels)
            .enumerate()
            .map(|(place, (text, label))| {
                let label = if place < wrong {
                    other(label)
                } else {
                    label.clone()
                };
                json!({ "text": text, "label": label }).to_string() + "\n"
            });
        let mut rows: Vec<String> = rows.collect();
        // At least one of each label.
        rows.push(json!({ "text": "x", "label": other(&labels[0]) }).to_string() + "\n");
        let file = home.write("labelled.jsonl", &rows.concat());
        let found =
            number(&home.report(&sentiment, &[("--pairs", &file)])["pairs"]["model"]["accuracy"])
                * 31.0;
        let expected = (30 - wrong) as f64;
        assert!(
            (found - expected).abs() < 1e-6 || (found - expected - 1.0).abs() < 1e-6,
            "{found} {expected}"
        );
    }
    let unknown = home.write(
        "unknown.jsonl",
        &(0..12)
            .map(|n| json!({"text": "a", "label": n % 2}).to_string() + "\n")
            .collect::<String>(),
    );
    insta::assert_snapshot!(home.refusal(&sentiment, &[("--pairs", &unknown)]), @r"
    expected the model's labels (`negative`, `neutral`, `positive`), but found `0`
    hint: rename the labels in the file
    ");
    // A model that reads pairs together: as `/predict` labels them.
    let nli = home.built(
        "tiny-roberta-nli",
        Task::ZeroShotClassification,
        Precision::Fp32,
    );
    let pairs = |label: &dyn Fn(usize) -> &'static str| {
        let rows = (0..30).map(|n| {
            json!({"premise": texts[n], "hypothesis": texts[(n + 1) % 30], "label": label(n)})
                .to_string()
                + "\n"
        });
        home.write("nli.jsonl", &rows.collect::<String>())
    };
    // The shares of three constant labels, with one exception each, sum up to almost 1.
    let shares: f64 = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]
        .iter()
        .map(|label| {
            let other = if *label == "NEUTRAL" {
                "ENTAILMENT"
            } else {
                "NEUTRAL"
            };
            let file = pairs(&|n| if n == 0 { other } else { label });
            number(&home.report(&nli, &[("--pairs", &file)])["pairs"]["model"]["accuracy"])
        })
        .sum();
    assert!((shares - 1.0).abs() <= 2.0 / 30.0 + 1e-9, "{shares}");
    let scores = home.write(
        "scores.jsonl",
        &(0..12)
            .map(|n| json!({"text1": "a", "text2": "b", "score": n}).to_string() + "\n")
            .collect::<String>(),
    );
    insta::assert_snapshot!(home.refusal(&nli, &[("--pairs", &scores)]), @"the model cannot be measured: a model that compares two texts is needed for pairs with scores");
    let ner = home.built("tiny-bert-ner", Task::TokenClassification, Precision::Fp32);
    insta::assert_snapshot!(home.refusal(&ner, &[("--pairs", &scores)]), @"the model cannot be measured: a model with vectors or a ranker is needed for pairs with scores");
    // A cross-encoder scores pairs.
    let rank = home.built("tiny-bert-rank", Task::TextRanking, Precision::Fp32);
    let ranked = home.write(
        "ranked.jsonl",
        &(0..30)
            .map(|n| {
                json!({"text1": texts[n], "text2": texts[(n + 7) % 30], "score": n * 11 % 30})
                    .to_string()
                    + "\n"
            })
            .collect::<String>(),
    );
    let found = home.report(&rank, &[("--pairs", &ranked)]);
    assert!(
        number(&found["pairs"]["model"]["spearman"]).abs() <= 1.0,
        "{found}"
    );
    // The same text in all pairs has the same score.
    let constant = home.report(&rank, &[("--pairs", &scores)]);
    assert!(
        constant["pairs"]["model"]["spearman"].is_null(),
        "{constant}"
    );
    assert_eq!(
        constant["notes"],
        json!(["all pairs have the same score, so there is no correlation or accuracy"])
    );
}

#[test]
fn the_cross_entropy_of_references_is_that_of_transformers() {
    let Some(home) = Home::new() else { return };
    for case in goldens()["losses"].as_array().unwrap() {
        let (fixture, task) = (
            case["model"].as_str().unwrap(),
            case["task"].as_str().unwrap(),
        );
        let bundle = home.built(fixture, task.parse().unwrap(), Precision::Fp32);
        let report = home.report(&bundle, &[("--pairs", &references(&home, case))]);
        let found = &report["pairs"]["model"]["cross_entropy"];
        assert!(
            (number(found) - number(&case["loss"])).abs() < 1e-4,
            "{fixture}: {found}, {}",
            case["loss"]
        );
    }
}

#[test]
fn generated_texts_are_compared_with_references() {
    let Some(home) = Home::new() else { return };
    let (fixture, task) = ("tiny-t5", Task::Summarization);
    let golden = goldens();
    let case = golden["losses"]
        .as_array()
        .unwrap()
        .iter()
        .find(|case| case["model"] == fixture)
        .unwrap();
    let file = references(&home, case);
    let fp32 = home.built(fixture, task, Precision::Fp32);
    // Against itself.
    let own = home.report(
        &fp32,
        &[
            ("--against", &fp32),
            ("--texts", &home.write("t.txt", &sentences(20).join("\n"))),
        ],
    );
    close(&own["quality"]["chrf"], 100.0, 1e-4);
    close(&own["quality"]["identical"], 1.0, 0.0);
    // The build has the same figures, beside fp32's.
    let int8 = home.path("built");
    let source = fixtures().join("models").join(fixture);
    let recipe = home.path("built.toml");
    let text = format!(
        "name = '{fixture}'\ntask = '{task}'\n[source]\nfolder = '{}'\n[quality]\nsimilarity = 0.0\n\
             token_agreement = 0.0\n",
        source.display()
    );
    fs::write(&recipe, text).unwrap();
    let arguments = [
        "build",
        recipe.to_str().unwrap(),
        "--out",
        int8.to_str().unwrap(),
        "--precision",
        "int8",
    ];
    let arguments = [
        &arguments[..],
        &["--pairs", file.to_str().unwrap(), "--json"],
    ]
    .concat();
    let built = home.run(&arguments.iter().map(Path::new).collect::<Vec<_>>());
    assert!(built.status.success(), "{built:?}");
    let built: Value = serde_json::from_slice(&built.stdout).unwrap();
    close(
        &built["pairs"]["other"]["cross_entropy"],
        number(&case["loss"]),
        1e-4,
    );
    let found = home.report(&int8, &[("--pairs", &file)]);
    for name in ["chrf", "exact_match", "cross_entropy"] {
        close(
            &found["pairs"]["model"][name],
            number(&built["pairs"]["model"][name]),
            1e-3,
        );
    }
    let Some(Quality::Seq2Seq {
        chrf: Some(chrf), ..
    }) = Bundle::open(&int8).unwrap().manifest().weights.quality
    else {
        panic!("{fixture} has chrF")
    };
    assert!((0.0..=100.0).contains(&chrf), "{chrf}");
    let wrong = home.write(
        "scores.jsonl",
        &(0..12)
            .map(|n| json!({"text1": "a", "text2": "b", "score": n}).to_string() + "\n")
            .collect::<String>(),
    );
    assert!(
        home.refusal(&fp32, &[("--pairs", &wrong)])
            .starts_with("the model cannot be measured: a model with vectors or labels is needed")
    );
}

fn goldens() -> Value {
    serde_json::from_str(&fs::read_to_string(fixtures().join("goldens/quality.json")).unwrap())
        .unwrap()
}

/// A file with the texts and references of a case.
fn references(home: &Home, case: &Value) -> PathBuf {
    let pairs = case["pairs"].as_array().unwrap().iter();
    let lines = pairs.map(|pair| json!({"text": pair[0], "reference": pair[1]}).to_string() + "\n");
    home.write("pairs.jsonl", &lines.collect::<String>())
}

/// Marian's target tokenizer only decodes, so its references have no tokens.
#[test]
fn cross_entropy_that_cannot_be_measured_is_noted() {
    let Some(home) = Home::new() else { return };
    let marian = home.built("tiny-marian", Task::Translation, Precision::Fp32);
    let pairs = sentences(10)
        .iter()
        .map(|text| json!({"text": text, "reference": text}).to_string() + "\n")
        .collect::<String>();
    let report = home.report(&marian, &[("--pairs", &home.write("pairs.jsonl", &pairs))]);
    assert!(report["pairs"]["model"]["chrf"].is_number(), "{report}");
    assert!(
        report["pairs"]["model"].get("cross_entropy").is_none(),
        "{report}"
    );
    assert_eq!(
        report["notes"],
        json!([
            "cross-entropy is not measured, since Marian's bundles have no tokenizer for translations"
        ])
    );
}

#[test]
fn a_build_takes_own_texts_and_pairs() {
    let Some(home) = Home::new() else { return };
    let texts = home.write("texts.txt", &sentences(25).join("\n"));
    let pairs: String = (0..12)
        .map(|n| {
            json!({"text1": format!("a {n}"), "text2": format!("b {}", n * n), "score": n})
                .to_string()
                + "\n"
        })
        .collect();
    let pairs = home.write("pairs.jsonl", &pairs);
    let (source, out) = (fixtures().join("models/tiny-bert"), home.path("out"));
    let build = |options: &[&Path]| {
        let own = [
            Path::new("build"),
            &source,
            Path::new("--out"),
            &out,
            Path::new("--json"),
        ];
        home.run(&[&own[..], options].concat())
    };
    let int8 = [Path::new("--precision"), Path::new("int8")];
    let output = build(
        &[
            &int8[..],
            &[Path::new("--texts"), &texts, Path::new("--pairs"), &pairs],
        ]
        .concat(),
    );
    assert!(output.status.success(), "{output:?}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["quality"]["texts"], &report["vectors"]["texts"]),
        (&json!(25), &json!(25))
    );
    let found = home.report(&out, &[("--pairs", &pairs)]);
    assert_eq!(found["pairs"]["model"], report["pairs"]["model"]);
    assert!(report["pairs"]["other"]["spearman"].is_number(), "{report}");
    // Files are read before anything is built.
    let refused = build(&[Path::new("--texts"), &home.write("few.txt", "a\nb\n")]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("expected 20 to 5000 texts"),
        "{refused:?}"
    );
}

/// A model that reads no text: its vectors are all equal, so figures about them say nothing.
#[test]
fn a_model_with_equal_outputs_is_noted() {
    let Some(home) = Home::new() else { return };
    let source = home.path("constant");
    copy(&fixtures().join("models/tiny-bert"), &source);
    let path = source.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let changed: Vec<(String, Vec<u8>, safetensors::Dtype, Vec<usize>)> = tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let mut data = view.data().to_vec();
            // The last normalization's weights are zero, and its biases are not.
            if name.ends_with("layer.1.output.LayerNorm.weight") {
                data.fill(0);
            }
            (name, data, view.dtype(), view.shape().to_vec())
        })
        .collect();
    assert!(
        changed
            .iter()
            .any(|(name, data, ..)| name.ends_with("LayerNorm.weight")
                && data.iter().all(|byte| *byte == 0))
    );
    let views = changed.iter().map(|(name, data, dtype, shape)| {
        (
            name.as_str(),
            safetensors::tensor::TensorView::new(*dtype, shape.clone(), data).unwrap(),
        )
    });
    fs::write(&path, safetensors::serialize(views, None).unwrap()).unwrap();
    let report = home.report(&source, &[("--against", Path::new("fp32"))]);
    assert_eq!(
        report["notes"],
        json!(["all texts have the same output, so the quality says nothing"])
    );
}

/// All precisions of a model on a user's file, whose columns have other names.
#[test]
fn all_precisions_are_measured_in_one_table() {
    let Some(home) = Home::new() else { return };
    let source = fixtures().join("models/tiny-bert-sentiment");
    let sentiment = home.built(
        "tiny-bert-sentiment",
        Task::TextClassification,
        Precision::Fp32,
    );
    let texts = sentences(30);
    let found = rows(&home.batch(&sentiment, &texts, "labels.jsonl"));
    let mut csv = "comment,category\n".to_owned();
    for (row, (text, found)) in texts.iter().zip(&found).enumerate() {
        // Two rows are wrong in fp32.
        let label = match (row, found["label"].as_str().unwrap()) {
            (4 | 9, "neutral") => "negative",
            (4 | 9, _) => "neutral",
            (_, label) => label,
        };
        writeln!(csv, "\"{}\",{label}", text.replace('"', "\"\"")).unwrap();
    }
    let file = home.write("mine.csv", &csv);
    let named: [(&str, &Path); 3] = [
        ("--pairs", &file),
        ("--column", Path::new("text=comment")),
        ("--column", Path::new("label=category")),
    ];
    let all = |json: bool| {
        let mut arguments = vec![Path::new("quality"), &source, Path::new("--all")];
        arguments.extend(json.then_some(Path::new("--json")));
        named
            .iter()
            .for_each(|(option, value)| arguments.extend([Path::new(option), value]));
        let output = home.run(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table: Value = serde_json::from_str(&all(true)).unwrap();
    assert_eq!(
        (&table["samples"], &table["rows"]),
        (&json!("texts with labels"), &json!(30))
    );
    let precisions = table["precisions"].as_array().unwrap();
    let names: Vec<&Value> = precisions.iter().map(|form| &form["precision"]).collect();
    assert_eq!(names, ["fp32", "int8-blocks", "int8"]);
    let figure = &precisions[0]["figures"][0];
    assert_eq!(figure["name"], "accuracy");
    close(&figure["value"], 28.0 / 30.0, 1e-9);
    // Wilson's interval for 28 of 30.
    close(&figure["interval"][0], 0.786_76, 1e-4);
    close(&figure["interval"][1], 0.981_53, 1e-4);
    assert!(
        precisions
            .iter()
            .all(|form| number(&form["rows_per_second"]) > 0.0)
    );
    assert!(number(&precisions[0]["bytes"]) > number(&precisions[2]["bytes"]));
    let labels = precisions[0]["labels"].as_array().unwrap();
    let expected: f64 = labels.iter().map(|label| number(&label["rows"])).sum();
    let given: f64 = labels.iter().map(|label| number(&label["found"])).sum();
    assert_eq!((expected, given), (30.0, 30.0), "{labels:?}");
    let wrong = table["wrong"].as_array().unwrap();
    for row in [5, 10] {
        let wrong = wrong.iter().find(|wrong| wrong["row"] == row).unwrap();
        assert_ne!(wrong["expected"], wrong["found"]["fp32"], "{wrong}");
    }
    let text = all(false);
    for part in [
        "accuracy",
        "95 % interval",
        "int8-blocks",
        "labels, int8",
        "wrong rows",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Neither the errors nor the table have a user's texts.
    assert!(!text.contains(texts[4].as_str()), "{text}");
    insta::assert_snapshot!(
        home.refusal(&sentiment, &[("--pairs", &file), ("--column", Path::new("label=kind"))]),
        @"no column `kind` in `[home]/mine.csv`; the file has `comment`, `category`"
    );
    insta::assert_snapshot!(
        home.refusal(&sentiment, &[("--pairs", &file), ("--column", Path::new("labels=kind"))]),
        @"unknown column `labels`; known columns: `text1`, `text2`, `sentence1`, `sentence2`, `premise`, `hypothesis`, `question1`, `question2`, `text`, `source`, `sentence`, `question`, `query`, `passage`, `answer`, `document`, `score`, `label`, `is_duplicate`, `reference`, `target`"
    );
}

/// Zero-shot models of all kinds choose as `kivu batch` lets them.
#[test]
fn zero_shot_models_are_measured_on_a_users_labels() {
    let Some(home) = Home::new() else { return };
    let task = Task::ZeroShotClassification;
    let texts = sentences(30);
    let known = ["support", "Sales, new", "press"];
    let options: Vec<&str> = known.iter().flat_map(|label| ["--label", label]).collect();
    let labelled = |fixture: &str| {
        let bundle = home.built(fixture, task, Precision::Fp32);
        let found = rows(&home.batch_with(&bundle, &texts, "labels.jsonl", &options));
        let rows = texts.iter().zip(&found).enumerate();
        let row = |(place, (text, found)): (usize, (&String, &Value))| {
            let found = found["label"].as_str().unwrap();
            let other = known.iter().find(|label| **label != found).unwrap();
            // Two rows are wrong; letters' case is not.
            let label = match place {
                4 | 9 => (*other).to_owned(),
                29 => found.to_uppercase(),
                _ => found.to_owned(),
            };
            json!({ "text": text, "label": label }).to_string() + "\n"
        };
        (bundle, rows.map(row).collect::<Vec<String>>())
    };
    for fixture in ["tiny-bert", "tiny-gliclass", "tiny-roberta-nli"] {
        let (bundle, mut rows) = labelled(fixture);
        // A text above the token limit is truncated, as in the quality gate.
        let long = json!({ "text": "word ".repeat(3000), "label": "press" });
        rows.push(long.to_string() + "\n");
        let file = home.write("mine.jsonl", &rows.concat());
        let mut named = vec![("--pairs", file.as_path())];
        named.extend(known.iter().map(|label| ("--label", Path::new(label))));
        let report = home.report(&bundle, &named);
        let right = number(&report["pairs"]["model"]["accuracy"]) * 31.0;
        assert!(
            (right - 28.0).abs() < 1e-6 || (right - 29.0).abs() < 1e-6,
            "{fixture}: {right}"
        );
    }

    let (bundle, rows) = labelled("tiny-roberta-nli");
    let file = home.write("mine.jsonl", &rows.concat());
    let source = fixtures().join("models/tiny-roberta-nli");
    let all = |options: &[&str]| {
        let mut arguments = vec![Path::new("quality"), &source, Path::new("--all")];
        arguments.extend([Path::new("--pairs"), &file, Path::new("--task")]);
        arguments.push(Path::new("zero-shot-classification"));
        arguments.extend(options.iter().map(Path::new));
        let output = home.run(&arguments);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let json = [&options[..], &["--label", "other", "--json"]].concat();
    let table: Value = serde_json::from_str(&all(&json)).unwrap();
    let precisions = table["precisions"].as_array().unwrap();
    let names: Vec<&Value> = precisions.iter().map(|form| &form["precision"]).collect();
    assert_eq!(names, ["fp32", "int8-blocks", "int8"]);
    assert_eq!(precisions[0]["figures"][0]["name"], "accuracy");
    assert!(precisions[0]["figures"][0]["interval"].is_array());
    for form in precisions {
        let labels = form["labels"].as_array().unwrap();
        let expected: f64 = labels.iter().map(|label| number(&label["rows"])).sum();
        assert_eq!(expected, 30.0, "{labels:?}");
    }
    let wrong = table["wrong"].as_array().unwrap();
    for row in [5, 10] {
        let wrong = wrong.iter().find(|wrong| wrong["row"] == row).unwrap();
        assert_ne!(wrong["expected"], wrong["found"]["fp32"], "{wrong}");
    }
    // Without `--label`, the labels are the file's; another sentence around them gives other answers.
    let own = all(&[]);
    for part in ["accuracy", "95 % interval", "labels, int8", "wrong rows"] {
        assert!(own.contains(part), "{part}: {own}");
    }
    assert!(!own.contains(texts[4].as_str()), "{own}");
    let other = home.report(
        &bundle,
        &[("--pairs", &file), ("--template", Path::new("{}"))],
    );
    let same = home.report(&bundle, &[("--pairs", &file)]);
    close(&same["pairs"]["model"]["accuracy"], 28.0 / 30.0, 1e-9);
    assert_ne!(other["pairs"], same["pairs"]);

    let named = [("--pairs", &*file), ("--label", Path::new("other"))];
    let refusal = home.refusal(&bundle, &named);
    assert!(
        refusal.starts_with("expected the file's labels among `other`, but found `")
            && refusal.ends_with("hint: add it with `--label`"),
        "{refusal}"
    );
    let sentiment = home.built(
        "tiny-bert-sentiment",
        Task::TextClassification,
        Precision::Fp32,
    );
    insta::assert_snapshot!(
        home.refusal(&sentiment, &named),
        @"`--label` and `--template` are for zero-shot classifiers: the model is for `text-classification`"
    );
    let many = (0..201).map(|n| json!({"text": "a", "label": n}).to_string() + "\n");
    let many = home.write("many.jsonl", &many.collect::<String>());
    insta::assert_snapshot!(
        home.refusal(&bundle, &[("--pairs", &many)]),
        @"expected at most 200 different labels for a zero-shot model, but found 201"
    );
    let scores = home.write(
        "scores.csv",
        &format!("text1,text2,score\n{}", "a,b,1\nc,d,2\n".repeat(6)),
    );
    insta::assert_snapshot!(
        home.refusal(&bundle, &[("--pairs", &scores), ("--template", Path::new("{}"))]),
        @"`--label` and `--template` are for texts with labels: the file has pairs with scores"
    );
}

#[test]
fn a_table_without_labels_has_the_agreement_with_fp32() {
    let Some(home) = Home::new() else { return };
    let list = home.write("texts.txt", &sentences(40).join("\n"));
    let cases = [
        ("tiny-bert", "mean cosine"),
        ("tiny-bert-rank", "same order"),
        ("tiny-bert-ner", "same label"),
    ];
    for (fixture, figure) in cases {
        let output = home.run(&[
            Path::new("quality"),
            &fixtures().join("models").join(fixture),
            Path::new("--all"),
            Path::new("--json"),
            Path::new("--texts"),
            &list,
        ]);
        assert!(output.status.success(), "{output:?}");
        let table: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(table["rows"], 40);
        let precisions = table["precisions"].as_array().unwrap();
        assert_eq!(precisions.len(), 3, "{table}");
        for form in precisions {
            assert_eq!(form["figures"][0]["name"], figure, "{table}");
        }
        close(&precisions[0]["figures"][0]["value"], 1.0, 1e-5);
        assert!(number(&precisions[2]["figures"][0]["value"]) < 1.0 + 1e-5);
    }
}
