//! The same vectors as sentence-transformers for its modules after the transformer, in both engines where both can run
//! them, and with padding.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use kivu::{
    backend::{Backend, Deadline, Engine},
    model::Pipeline,
    pipeline::{
        Input, Task,
        classification::{
            ranking::{RankingOptions, RankingPipeline},
            scores::ScoreFunction,
        },
        embedding::{EmbeddingOptions, similarity::cosine},
    },
    repository::{Bundle, manifest::Precision},
    task::{Scope, classification::ClassificationParameters},
    tensor::Tensor,
    tokenizer::{Side, Truncation},
};
use serde::Deserialize;

use crate::{
    copies::{copy, edit},
    embedding::goldens::{deadline, difference, pipeline, text},
    models::{
        backend, build_request, fixtures, options, request, request_without_floor, runtime, serve,
    },
};

/// Vector tolerance relative to sentence-transformers in fp32.
const TOLERANCE: f32 = 2e-5;

#[derive(Deserialize)]
struct Case {
    text: String,
    /// Name of the text's prompt.
    prompt: Option<String>,
    embedding: Vec<f32>,
}

fn goldens() -> BTreeMap<String, Vec<Case>> {
    serde_json::from_slice(&fs::read(fixtures().join("goldens/modules.json")).unwrap()).unwrap()
}

/// A copy of `tiny-bert` in `folder` with the modules `name`.
fn source(name: &str, folder: &Path) {
    copy(&fixtures().join("models/tiny-bert"), folder);
    fs::remove_dir_all(folder.join("1_Pooling")).unwrap();
    copy(&fixtures().join("modules").join(name), folder);
}

fn build(name: &str, folder: &Path, precision: Precision) -> Option<Bundle> {
    let runtime = runtime()?;
    let (from, out) = (
        folder.join(name),
        folder.join(format!("{name}-{precision}")),
    );
    if !from.exists() {
        source(name, &from);
    }
    let request = request_without_floor(Task::FeatureExtraction, &from, out, Some(precision));
    Some(build_request(&request, runtime).unwrap())
}

#[derive(Deserialize)]
struct Scored {
    max_length: usize,
    pairs: Vec<[String; 2]>,
    scores: Vec<Vec<f32>>,
}

/// A copy of `tiny-modernbert` in `folder` with the modules after it in the fixture `name`.
fn modular(name: &str, folder: &Path) {
    copy(&fixtures().join("models/tiny-modernbert"), folder);
    fs::remove_dir_all(folder.join("1_Pooling")).unwrap();
    copy(&fixtures().join(name), folder);
}

/// As sentence-transformers saves rerankers and classifiers since version 5.4, in both engines.
#[tokio::test]
async fn cross_encoders_of_modules_have_the_scores_of_sentence_transformers() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    // Differences in blocks depend on the head: the classifier has several outputs.
    for (name, task, function, in_blocks) in [
        (
            "modular-ranker",
            Task::TextRanking,
            ScoreFunction::Sigmoid,
            0.1,
        ),
        (
            "modular-classifier",
            Task::TextClassification,
            ScoreFunction::Softmax,
            0.2,
        ),
    ] {
        let from = folder.path().join(name);
        modular(name, &from);
        let golden = fs::read(fixtures().join(format!("goldens/{name}.json"))).unwrap();
        let golden: Scored = serde_json::from_slice(&golden).unwrap();
        for (precision, engine, tolerance) in [
            (Precision::Fp32, Engine::Native, 3e-5),
            (Precision::Int8Blocks, Engine::Native, in_blocks),
        ] {
            let out = folder.path().join(format!("{name}-{precision}"));
            let request = match precision {
                // Its files say what it does.
                Precision::Fp32 => request(from.clone(), out, Some(precision)),
                _ => request_without_floor(task, &from, out, Some(precision)),
            };
            let bundle = build_request(&request, runtime).unwrap();
            assert_eq!(
                (bundle.manifest().task, bundle.manifest().engine),
                (task, engine),
                "{name}"
            );
            let model = serve(&bundle.path("")).unwrap();
            let classifier = match &model.pipeline {
                Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline))
                | Pipeline::Classification(pipeline) => pipeline,
                other => panic!("expected a CrossEncoder, but found {other:?}"),
            };
            let settings = classifier.settings();
            assert_eq!(
                (settings.max_tokens, settings.function),
                (golden.max_length, function),
                "{name}"
            );
            for ([query, text], expected) in golden.pairs.iter().zip(&golden.scores) {
                let pair = Input::Pair(query.as_str().into(), text.as_str().into());
                let truncation = Truncation::At(Side::Right);
                let found = classifier
                    .logits(vec![pair], truncation, deadline())
                    .await
                    .unwrap();
                let difference = difference(&found.rows[0], expected);
                assert!(
                    difference <= tolerance,
                    "{name} in {precision}, {query:?}: {difference}"
                );
            }
        }
    }
}

#[tokio::test]
async fn classifiers_of_pairs_put_their_prompt_before_the_first_text() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("model");
    modular("modular-classifier", &from);
    let settings = from.join("config_sentence_transformers.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&fs::read(&settings).unwrap()).unwrap();
    config["prompts"] = serde_json::json!({ "query": "find this: " });
    config["default_prompt_name"] = "query".into();
    fs::write(&settings, config.to_string()).unwrap();
    let request = request(from, folder.path().join("bundle"), Some(Precision::Fp32));
    let model = serve(&build_request(&request, runtime).unwrap().path("")).unwrap();
    let Pipeline::Classification(pipeline) = &model.pipeline else {
        panic!("{:?}", model.pipeline)
    };
    let parameters = ClassificationParameters {
        function_to_apply: Some(ScoreFunction::None),
        ..Default::default()
    };
    let scope = Scope {
        truncate: true,
        max_values: 3,
        max_parts: 1,
        max_labels: 3,
    };
    let classifier = parameters.prepare(pipeline, &scope).unwrap();
    let pair = Input::Pair("egg".into(), "hen".into());
    let found = classifier.run(vec![pair], deadline()).await.unwrap();
    // Of sentence-transformers 5.7.
    let difference = difference(&found.rows[0], &[1.617, 0.494, -0.478]);
    assert!(difference < 1e-3, "{:?}", found.rows);
}

#[test]
fn other_score_modules_are_refused() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let refusal = |name: &str, change: &dyn Fn(&Path)| {
        let from = folder.path().join(name);
        modular("modular-ranker", &from);
        change(&from);
        let out = folder.path().join(format!("{name}-built"));
        build_request(&request(from, out, None), runtime)
            .unwrap_err()
            .chain()
            .to_string()
    };
    let (text, tokens) = ("\"sentence_embedding\"", "\"token_embeddings\"");
    let output = |name: &str| format!("\"module_output_name\": {name}");
    let input = |name: &str| format!("\"module_input_name\": {name}");
    let settings = "config_sentence_transformers.json";
    let layer = "2_Dense/config.json";
    let prompt = |value: bool| format!("\"include_prompt\": {value}");
    let cases = [
        (
            "embedder",
            settings,
            "\"CrossEncoder\"".to_owned(),
            "\"SentenceTransformer\"".to_owned(),
            "a `model_type` of `CrossEncoder`",
        ),
        (
            "prompt",
            "1_Pooling/config.json",
            prompt(true),
            prompt(false),
            "expected `include_prompt` true in a CrossEncoder, but found false",
        ),
        (
            "twice",
            layer,
            output(text),
            output("\"scores\""),
            "expected no module after the one that makes `scores`, but found `LayerNorm`",
        ),
        (
            "tokens",
            "4_Dense/config.json",
            input(text),
            input(tokens),
            "but found `token_embeddings` and `scores`",
        ),
    ];
    for (name, file, from, to, expected) in cases {
        let found = refusal(name, &|folder| edit(&folder.join(file), &from, &to));
        assert!(found.contains(expected), "{name}: {found}");
    }
}

#[tokio::test]
async fn every_module_gives_the_vectors_of_sentence_transformers() {
    let folder = tempfile::tempdir().unwrap();
    let mut failures = Vec::new();
    for (name, cases) in goldens() {
        let Some(bundle) = build(&name, folder.path(), Precision::Fp32) else {
            return;
        };
        let model = serve(&bundle.path("")).unwrap();
        assert_eq!(
            pipeline(&model).settings().dense().unwrap().dimensions,
            cases[0].embedding.len(),
            "{name}"
        );
        for case in &cases {
            let options = EmbeddingOptions {
                prompt_name: case.prompt.clone(),
                ..options()
            };
            let found = pipeline(&model)
                .embed(text(&case.text), &options, deadline())
                .await
                .unwrap();
            let difference = difference(&found.vectors[0], &case.embedding);
            if difference
                > TOLERANCE
                    * case
                        .embedding
                        .iter()
                        .fold(1.0, |most, value| value.abs().max(most))
            {
                failures.push(format!("{name}: {:?}: off by {difference}", case.text));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// By the similarity that the model's files name, with scores without bounds unless it is the cosine.
#[tokio::test]
async fn rankings_compare_vectors_as_the_model_declares() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("model");
    source("mean-sqrt-len", &from);
    let settings = from.join("config_sentence_transformers.json");
    let texts = ["the cat", "dogs, and birds", "hello"].map(str::to_owned);
    let mut named = "cosine";
    for name in ["cosine", "dot", "euclidean", "manhattan"] {
        edit(&settings, &format!("\"{named}\""), &format!("\"{name}\""));
        named = name;
        let out = folder.path().join(name);
        let request = request_without_floor(Task::TextRanking, &from, out, Some(Precision::Fp32));
        let model = serve(&build_request(&request, runtime).unwrap().path("")).unwrap();
        let Pipeline::Ranking(ranking) = &model.pipeline else {
            panic!("{:?}", model.pipeline)
        };
        let RankingPipeline::Embedding(vectors) = ranking else {
            panic!("{ranking:?}")
        };
        let embed = async |texts: &[String], role: &str| {
            let options = EmbeddingOptions {
                prompt_name: Some(role.to_owned()),
                ..options()
            };
            let texts = texts.iter().cloned().map(Input::Text).collect();
            vectors
                .embed(texts, &options, deadline())
                .await
                .unwrap()
                .vectors
        };
        let query = &embed(&["a cat".to_owned()], "query").await[0];
        let expected = embed(&texts, "document").await.into_iter().map(|text| {
            let pairs = || {
                query
                    .iter()
                    .zip(&text)
                    .map(|(left, right)| (f64::from(*left), f64::from(*right)))
            };
            let sum = |of: &dyn Fn(f64, f64) -> f64| {
                pairs().map(|(left, right)| of(left, right)).sum::<f64>()
            };
            let [dot, left, right] = [sum(&|l, r| l * r), sum(&|l, _| l * l), sum(&|_, r| r * r)];
            match name {
                "dot" => dot,
                "euclidean" => -sum(&|l, r| (l - r).powi(2)).sqrt(),
                "manhattan" => -sum(&|l, r| (l - r).abs()),
                _ => dot / (left * right).sqrt(),
            }
        });
        let options = RankingOptions {
            truncation: options().truncation,
            raw_scores: false,
        };
        let (found, _) = ranking
            .score("a cat".to_owned(), texts.to_vec(), options, deadline())
            .await
            .unwrap();
        for (found, expected) in found.into_iter().zip(expected) {
            let difference = (f64::from(found) - expected).abs();
            assert!(
                difference < 1e-5 * expected.abs().max(1.0),
                "{name}: {found} instead of {expected}"
            );
        }
    }
    edit(&settings, "\"manhattan\"", "\"angular\"");
    let out = folder.path().join("other");
    let request = request_without_floor(Task::TextRanking, &from, out, Some(Precision::Fp32));
    let error = format!("{:#}", build_request(&request, runtime).unwrap_err());
    assert!(
        error.contains("`similarity_fn_name` in `config_sentence_transformers.json`"),
        "{error}"
    );
}

/// Pooling leaves out the tokens of a prompt, in batches of texts with different lengths; token ids have no prompt.
#[tokio::test]
async fn prompts_are_not_pooled_in_batches() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("dense-without-prompt", folder.path(), Precision::Fp32) else {
        return;
    };
    let unpooled = bundle
        .manifest()
        .settings
        .embedding()
        .unwrap()
        .unpooled
        .as_ref()
        .unwrap();
    assert_eq!(unpooled.keys().collect::<Vec<_>>(), ["document", "query"]);
    let (model, tokenizer) = (
        serve(&bundle.path("")).unwrap(),
        bundle.tokenizer().unwrap(),
    );
    let cases: Vec<Case> = goldens().remove("dense-without-prompt").unwrap();
    for prompt in [None, Some("query".to_owned())] {
        let cases: Vec<_> = cases.iter().filter(|case| case.prompt == prompt).collect();
        let texts = cases
            .iter()
            .map(|case| Input::Text(case.text.clone()))
            .collect();
        let options = EmbeddingOptions {
            prompt_name: prompt,
            ..options()
        };
        let found = pipeline(&model)
            .embed(texts, &options, deadline())
            .await
            .unwrap();
        for (case, found) in cases.iter().zip(&found.vectors) {
            let difference = difference(found, &case.embedding);
            assert!(
                difference < TOLERANCE,
                "{:?} {:?}: {difference}",
                case.prompt,
                case.text
            );
        }
    }
    let plain = cases.iter().find(|case| case.prompt.is_none()).unwrap();
    let ids = tokenizer
        .encode(&plain.text, 48, Truncation::At(Side::Right))
        .unwrap()
        .ids;
    let options = EmbeddingOptions {
        prompt_name: Some("query".to_owned()),
        ..options()
    };
    let found = pipeline(&model)
        .embed(vec![Input::Ids(ids)], &options, deadline())
        .await
        .unwrap();
    assert!(difference(&found.vectors[0], &plain.embedding) < TOLERANCE);
}

/// In int8, a single pooling and layers after it run in the native engine; token layers do not.
#[tokio::test]
async fn modules_in_int8_are_close_to_fp32() {
    let folder = tempfile::tempdir().unwrap();
    let engines = [
        ("mean-sqrt-len", Engine::Native),
        ("of-texts", Engine::Native),
        ("of-tokens", Engine::Onnx),
    ];
    for (name, engine) in engines {
        let cases = &goldens()[name];
        let Some(bundle) = build(name, folder.path(), Precision::Int8) else {
            return;
        };
        assert_eq!(bundle.manifest().engine, engine, "{name}");
        let model = serve(&bundle.path("")).unwrap();
        for case in cases {
            let found = pipeline(&model)
                .embed(text(&case.text), &options(), deadline())
                .await
                .unwrap();
            let cosine = cosine(&found.vectors[0], &case.embedding);
            assert!(cosine > 0.98, "{name}: {:?}: {cosine}", case.text);
        }
    }
}

/// A fleet batches texts with different lengths; pooling in the graph ignores padding.
#[tokio::test]
async fn graphs_that_pool_ignore_padding() {
    let folder = tempfile::tempdir().unwrap();
    let Some(bundle) = build("every-pooling", folder.path(), Precision::Fp32) else {
        return;
    };
    let (tokenizer, backend) = (
        bundle.tokenizer().unwrap(),
        backend(&bundle, runtime().unwrap()),
    );
    let texts = [
        "The cat sits on the mat.",
        "a",
        "Wo ist der nächste Bahnhof?",
    ];
    let encodings = texts.map(|text| {
        tokenizer
            .encode(text, 48, Truncation::At(Side::Right))
            .unwrap()
    });
    let longest = encodings
        .iter()
        .map(|encoding| encoding.len())
        .max()
        .unwrap();
    let infer = async |texts: &[usize], length: usize| {
        let inputs = backend.signature().inputs.iter().map(|input| {
            let values = texts.iter().flat_map(|text| {
                let encoding = &encodings[*text];
                (0..length).map(move |place| match input.name.as_str() {
                    "input_ids" => encoding.ids.get(place).map_or(0, |id| i64::from(*id)),
                    "attention_mask" => i64::from(place < encoding.len()),
                    _ => 0,
                })
            });
            Tensor::integers(input.element_type, [texts.len(), length], values.collect()).unwrap()
        });
        let outputs = backend
            .infer(inputs.collect(), Deadline::within(Duration::from_secs(30)))
            .await;
        outputs.unwrap()[0].as_fp32().unwrap().to_vec()
    };
    let together = infer(&[0, 1, 2], longest).await;
    let width = together.len() / texts.len();
    for text in 0..texts.len() {
        let alone = infer(&[text], encodings[text].len()).await;
        let difference = difference(&alone, &together[text * width..][..width]);
        assert!(difference < TOLERANCE, "{text}: {difference}");
    }
}

#[test]
fn unusable_modules_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let refusal = |name: &str, spoil: &dyn Fn(&Path)| {
        let folder = tempfile::tempdir().unwrap();
        let from = folder.path().join("model");
        source(name, &from);
        spoil(&from);
        let request = request(from, folder.path().join("out"), Some(Precision::Fp32));
        let error = build_request(&request, runtime).unwrap_err();
        error
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]")
    };
    let modules = |from: &'static str, to: &'static str| {
        move |model: &Path| edit(&model.join("modules.json"), from, to)
    };
    let refusals = [
        refusal("dense", &modules("models.LayerNorm", "models.WordWeights")),
        refusal("dense", &modules("models.Pooling", "models.Dropout")),
        refusal("dense", &modules("\"1_Pooling\"", "\"../1_Pooling\"")),
        refusal(
            "max",
            &modules("modules.pooling.Pooling", "modules.dropout.Dropout"),
        ),
        refusal(
            "max",
            &modules("\"path\": \"\"", "\"path\": \"0_Transformer\""),
        ),
        refusal("dense", &|model| {
            edit(
                &model.join("2_Dense/config.json"),
                "\"in_features\": 64",
                "\"in_features\": 32",
            );
        }),
        refusal("dense", &|model| {
            edit(
                &model.join("2_Dense/config.json"),
                "activation.Tanh",
                "activation.Hardswish",
            );
        }),
        refusal("dense", &|model| {
            edit(
                &model.join("2_Dense/config.json"),
                "\"out_features\": 24",
                "\"out_features\": 25",
            );
        }),
        refusal("dense", &|model| {
            let folder = model.join("4_Dense");
            fs::rename(
                folder.join("model.safetensors"),
                folder.join("pytorch_model.bin"),
            )
            .unwrap();
        }),
        refusal("of-tokens", &|model| {
            edit(
                &model.join("1_Dense/config.json"),
                "\"module_output_name\": \"token_embeddings\"",
                "\"module_output_name\": \"others\"",
            );
        }),
        refusal("max", &|model| {
            edit(&model.join("1_Pooling/config.json"), "\"max\"", "\"min\"")
        }),
        refusal("max", &|model| {
            edit(
                &model.join("1_Pooling/config.json"),
                "\"include_prompt\": true",
                "\"include_prompt\": null",
            );
        }),
        refusal("without-prompt", &|model| {
            let settings = model.join("config_sentence_transformers.json");
            edit(&settings, "passage: ", &"passage ".repeat(100));
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
    expected modules among `Transformer`, `Pooling`, `Dense`, `LayerNorm`, `Normalize`, `Dropout`, but found `WordWeights`
    `include_prompt` true in `1_Pooling/config.json` is unknown, and may change results; use `--allow include_prompt` to build the model as if the key were missing, if you know that it has no effect on results
    expected modules in the model's folder, and not in hidden ones, but found `../1_Pooling`
    `embedding_dimension` 32 in `1_Pooling/config.json` is unknown, and may change results; use `--allow embedding_dimension` to build the model as if the key were missing, if you know that it has no effect on results
    expected a model in `[folder]/model/0_Transformer` (`config.json`, `tokenizer.json`, and `model.safetensors` or `model.onnx`, or for a Bergamot student `model.….bin`, `lex.….bin` and `tokenizer.json`, or a fastText model `….bin` or `….ftz`), but found neither `config.json` nor `model.….bin`
    expected vectors of 32 values for the module in `[folder]/model/2_Dense`, but found that the module before it gives 64
    expected an `activation_function` among `Identity`, `Tanh`, `ReLU`, `Sigmoid`, `GELU`, `SiLU` of `torch.nn`, but found `torch.nn.modules.activation.Hardswish`
    expected the weight `linear.bias` of shape [25], but found [24]
    cannot read `[folder]/model/4_Dense/pytorch_model.bin`; convert it to safetensors with `save_pretrained`: expected a PyTorch checkpoint: invalid Zip archive: Could not find EOCD
    expected `module_input_name` and `module_output_name` to be both `sentence_embedding` or both `token_embeddings`, or `sentence_embedding` and `scores`, in `[folder]/model/1_Dense`, but found `token_embeddings` and `others`
    expected pooling modes among `cls`, `max`, `mean`, `mean_sqrt_len_tokens`, `weightedmean`, `lasttoken`, but found `min`
    expected `include_prompt` true or false, but found null
    the prompt `document` has 48 tokens, but a text has at most 48 with it
    ");
}
