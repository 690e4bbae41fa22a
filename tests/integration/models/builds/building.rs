//! Sources that `kivu build` refuses, and damaged bundles.

use std::{fs, path::Path, sync::Mutex};

use kivu::{
    backend::Engine,
    config::EngineChoice,
    error::Error,
    onnx_proto::{NodeProto, TensorProto, data_type},
    pipeline::Task,
    repository::{
        Bundle, Meter,
        manifest::{Precision, Quality},
    },
};
use kivu_compiler::{Progress, QualityFloor, Recipe, build, onnx};
use prost::Message;

use crate::{
    copies::{copy, edit},
    models::{build_request, fixtures, request, request_without_floor, runtime, serve},
};

/// Error chain for building a copy of `tiny-bert` that `spoil` has changed. The temporary folder is
/// replaced by `[folder]`.
fn refusal(spoil: impl FnOnce(&Path)) -> Option<String> {
    let runtime = runtime()?;
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("model");
    copy(&fixtures().join("models/tiny-bert"), &source);
    spoil(&source);
    let out = folder.path().join("out");
    let error = build_request(
        &request(source, out.clone(), Some(Precision::Fp32)),
        runtime,
    )
    .unwrap_err();
    assert!(!out.exists(), "no bundle is written");
    let left: Vec<_> = fs::read_dir(folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(left, ["model"], "no other file is left");
    Some(shown(&error, folder.path()))
}

/// An error without the folder's path and the names of all families.
fn shown(error: &Error, folder: &Path) -> String {
    let text = error.chain();
    let text = text.replace(&folder.display().to_string(), "[folder]");
    match text.split_once("`albert`") {
        Some((before, rest)) => {
            let (_, hint) = rest.split_once("; ").unwrap();
            format!("{before}[families]; {hint}")
        }
        None => text,
    }
}

#[test]
fn unsupported_sources_are_refused_by_name() {
    let refusals = [
        refusal(|model| {
            let gpt2 =
                r#"{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "n_embd": 768}"#;
            fs::write(model.join("config.json"), gpt2).unwrap();
        }),
        refusal(|model| {
            edit(
                &model.join("config.json"),
                r#""model_type": "bert""#,
                r#""model_type": "gpt2""#,
            )
        }),
        refusal(|model| {
            edit(
                &model.join("config.json"),
                r#""hidden_act": "gelu""#,
                r#""hidden_act": "mish""#,
            )
        }),
        refusal(|model| {
            edit(
                &model.join("config.json"),
                r#""hidden_size": 32"#,
                r#""hidden_size": 30"#,
            )
        }),
        refusal(|model| fs::write(model.join("config.json"), "{").unwrap()),
        refusal(|model| fs::remove_file(model.join("config.json")).unwrap()),
        refusal(|model| fs::remove_file(model.join("model.safetensors")).unwrap()),
        refusal(|model| fs::write(model.join("model.safetensors"), b"no safetensors").unwrap()),
        refusal(|model| {
            for name in ["tokenizer.json", "vocab.txt"] {
                fs::remove_file(model.join(name)).unwrap();
            }
        }),
        refusal(|model| fs::write(model.join("tokenizer.json"), "{}").unwrap()),
        refusal(|model| {
            edit(
                &model.join("modules.json"),
                "models.Normalize",
                "models.LSTM",
            )
        }),
        refusal(|model| {
            edit(
                &model.join("modules.json"),
                "models.Pooling",
                "models.Router",
            )
        }),
    ];
    let refusals: Option<Vec<String>> = refusals.into_iter().collect();
    let Some(refusals) = refusals else { return };
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    cannot build from `[folder]/model`: the `model_type` `gpt2` (GPT2LMHeadModel) is not supported; supported: [families]; Kivu does not run decoders that generate texts
    cannot build from `[folder]/model`: the `model_type` `gpt2` (BertModel) is not supported; supported: [families]; export other encoders with `optimum-cli export onnx`
    cannot build from `[folder]/model`: expected an activation among `gelu`, `gelu_new`, `gelu_pytorch_tanh`, `gelu_fast`, `relu`, `swish`, `tanh`, but found `mish`
    cannot build from `[folder]/model`: expected `hidden_size` to be a multiple of `num_attention_heads`, but found 30 and 4
    cannot read `[folder]/model/config.json`: EOF while parsing an object at line 1 column 1
    expected a model in `[folder]/model` (`config.json`, `tokenizer.json`, and `model.safetensors` or `model.onnx`, or for a Bergamot student `model.….bin`, `lex.….bin` and `tokenizer.json`, or a fastText model `….bin` or `….ftz`), but found neither `config.json` nor `model.….bin`
    expected `model.safetensors`, `pytorch_model.bin`, or an ONNX export (`model.onnx`), in `[folder]/model`, but found none
    `[folder]/model/model.safetensors` is not a safetensors file: header too large
    expected `tokenizer.json` in `[folder]/model`, but found none; with `transformers`, `AutoTokenizer.from_pretrained('[folder]/model').save_pretrained('[folder]/model')` writes it
    cannot read the tokenizer: missing field `model` at line 1 column 2
    expected modules among `Transformer`, `Pooling`, `Dense`, `LayerNorm`, `Normalize`, `Dropout`, but found `LSTM`
    expected modules among `Transformer`, `Pooling`, `Dense`, `LayerNorm`, `Normalize`, `Dropout`, but found `Router`
    "#);
}

#[test]
fn weights_that_contradict_their_config_are_refused_by_name() {
    let Some(runtime) = runtime() else { return };
    let refusal = |fixture: &str, from: &str, to: &str| {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model");
        copy(&fixtures().join("models").join(fixture), &model);
        edit(&model.join("config.json"), from, to);
        let request = request(model, folder.path().join("out"), Some(Precision::Fp32));
        build_request(&request, runtime).unwrap_err().chain()
    };
    let refusals = [
        refusal(
            "tiny-modernbert-rank",
            r#""mlp_bias": true"#,
            r#""mlp_bias": false"#,
        ),
        refusal(
            "tiny-modernbert",
            r#""attention_bias": false"#,
            r#""attention_bias": true"#,
        ),
        refusal(
            "tiny-modernbert",
            r#""intermediate_size": 48"#,
            r#""intermediate_size": 47"#,
        ),
        refusal("tiny-jina", r#""alibi""#, r#""absolute""#),
        refusal(
            "tiny-gte",
            r#""type_vocab_size": 0"#,
            r#""type_vocab_size": 2"#,
        ),
        refusal("tiny-nomic", r#""n_inner": 200"#, r#""n_inner": 600"#),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    expected a model with only the weights of its family, but found `model.layers.0.mlp.Wi.bias`, whose effect on results is not known; remove it from the file if the model does not use it
    expected the weight `layers.0.attn.Wqkv.bias`, but found no such weight
    expected the weight `layers.0.mlp.Wi.weight` of shape [94, 32], but found [96, 32]
    `emb_pooler` "mean" in `config.json` is unknown, and may change results; use `--allow emb_pooler` to build the model as if the key were missing, if you know that it has no effect on results
    expected the weight `embeddings.token_type_embeddings.weight`, but found no such weight
    expected the weight `encoder.layers.0.mlp.fc11.weight` of shape [768, 32], but found [256, 32]
    "#);
}

#[test]
fn missing_and_empty_sources_are_refused_before_onnx_runtime_is_loaded() {
    let folder = tempfile::tempdir().unwrap();
    let refusal = |source: &str, out: &str| {
        let request = request(folder.path().join(source), folder.path().join(out), None);
        let error = build(&request, &|| panic!("ONNX Runtime is loaded"), &()).unwrap_err();
        error
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]")
    };
    insta::assert_snapshot!(refusal("nowhere", "out"), @"expected a recipe (`….toml`) or a folder, but found nothing at `[folder]/nowhere`");
    fs::write(folder.path().join("recipe.toml"), "name = 1").unwrap();
    insta::assert_snapshot!(refusal("recipe.toml", "out"), @r"
    `[folder]/recipe.toml` is not a recipe: TOML parse error at line 1, column 8
      |
    1 | name = 1
      |        ^
    invalid type: integer `1`, expected a string
    ");
    fs::create_dir(folder.path().join("empty")).unwrap();
    insta::assert_snapshot!(refusal("empty", "out"), @"expected a model in `[folder]/empty` (`config.json`, `tokenizer.json`, and `model.safetensors` or `model.onnx`, or for a Bergamot student `model.….bin`, `lex.….bin` and `tokenizer.json`, or a fastText model `….bin` or `….ftz`), but found neither `config.json` nor `model.….bin`");
    // A folder that is not a bundle is not replaced.
    copy(
        &fixtures().join("models/tiny-bert"),
        &folder.path().join("model"),
    );
    insta::assert_snapshot!(refusal("model", "model"), @"expected `[folder]/model` to be a bundle, an empty folder or nothing, but found `1_Pooling`, `config.json`, `config_sentence_transformers.json` and 7 more; choose another folder");
    assert!(folder.path().join("model/config.json").is_file());
}

#[test]
fn files_that_are_something_else_are_named() {
    const POINTER: &str =
        "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 90868376\n";
    const PAGE: &str = "<!DOCTYPE html>\n<html>Log in</html>";
    let folder = tempfile::tempdir().unwrap();
    let refusal = |fixture: &str, change: &dyn Fn(&Path)| {
        let model = folder.path().join("model");
        fs::remove_dir_all(&model).unwrap_or_default();
        copy(&fixtures().join(fixture), &model);
        change(&model);
        let request = request(model, folder.path().join("out"), None);
        let error = build(&request, &|| panic!("ONNX Runtime is loaded"), &()).unwrap_err();
        shown(&error, folder.path())
    };
    let write = |name: &'static str, text: &'static str| {
        move |model: &Path| fs::write(model.join(name), text).unwrap()
    };
    let only = |name: &'static str| {
        move |model: &Path| {
            fs::remove_file(model.join("model.safetensors")).unwrap();
            fs::create_dir(model.join("onnx")).unwrap();
            fs::write(model.join(name), "").unwrap();
        }
    };
    let bert = "models/tiny-bert";
    let refusals = [
        refusal(bert, &write("model.safetensors", POINTER)),
        refusal(bert, &write("tokenizer.json", POINTER)),
        refusal(bert, &write("config.json", PAGE)),
        refusal(bert, &write("model.safetensors", "GGUF\u{3}")),
        refusal(
            "models/tiny-nllb",
            &write("sentencepiece.bpe.model", POINTER),
        ),
        refusal(bert, &|model| {
            only("onnx/model.onnx")(model);
            fs::write(model.join("onnx/model.onnx"), POINTER).unwrap();
        }),
        refusal(bert, &only("onnx/model_fp16.onnx")),
        refusal(bert, &only("tf_model.h5")),
        refusal(bert, &|model| {
            only("model.Q4_K_M.gguf")(model);
            fs::remove_file(model.join("config.json")).unwrap();
        }),
        refusal(bert, &|model| {
            let config =
                r#"{"model_type": "clip", "architectures": ["CLIPModel"], "vision_config": {}}"#;
            fs::write(model.join("config.json"), config).unwrap();
        }),
        refusal("models/tiny-t5", &|model| {
            let config = r#"{"model_type": "whisper", "architectures": ["WhisperForConditionalGeneration"], "num_mel_bins": 80}"#;
            fs::write(model.join("config.json"), config).unwrap();
        }),
        refusal(bert, &|model| {
            fs::remove_file(model.join("config.json")).unwrap();
            let modules =
                r#"[{"path": "0_Transformer", "type": "sentence_transformers.models.BERT"}]"#;
            fs::write(model.join("modules.json"), modules).unwrap();
        }),
        refusal(bert, &|model| {
            fs::remove_file(model.join("config.json")).unwrap();
            let modules =
                r#"[{"path": "0_CLIPModel", "type": "sentence_transformers.models.CLIPModel"}]"#;
            fs::write(model.join("modules.json"), modules).unwrap();
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    `[folder]/model/model.safetensors` is a git-lfs pointer; run `git lfs pull` in its repository to get the file
    `[folder]/model/tokenizer.json` is a git-lfs pointer; run `git lfs pull` in its repository to get the file
    `[folder]/model/config.json` is a web page; download the file itself, with an access token if it needs one
    `[folder]/model/model.safetensors` is not a safetensors file, but a GGUF file of llama.cpp; get the model's safetensors: header too small
    cannot build from `[folder]/model`: `[folder]/model/sentencepiece.bpe.model` is a git-lfs pointer; run `git lfs pull` in its repository to get the file
    `[folder]/model/onnx/model.onnx` is a git-lfs pointer; run `git lfs pull` in its repository to get the file
    expected `model.safetensors`, `pytorch_model.bin`, or an ONNX export (`model.onnx`), in `[folder]/model`, but found only `onnx/model_fp16.onnx`: graphs in other precisions; Kivu reads `model.onnx` and `model_quantized.onnx`, which `optimum-cli export onnx` writes in fp32
    expected `model.safetensors`, `pytorch_model.bin`, or an ONNX export (`model.onnx`), in `[folder]/model`, but found only `tf_model.h5`: weights of TensorFlow; convert them with `from_tf=True` and `save_pretrained` of `transformers` 4
    expected a model in `[folder]/model` (`config.json`, `tokenizer.json`, and `model.safetensors` or `model.onnx`, or for a Bergamot student `model.….bin`, `lex.….bin` and `tokenizer.json`, or a fastText model `….bin` or `….ftz`), but found only `model.Q4_K_M.gguf`: weights of llama.cpp; use the repository that they were converted from
    cannot build from `[folder]/model`: the `model_type` `clip` (CLIPModel) is not supported; supported: [families]; Kivu runs models for texts only
    cannot build from `[folder]/model`: the `model_type` `whisper` (WhisperForConditionalGeneration) is not supported; supported: [families]; Kivu runs models for texts only
    the first module in `modules.json`, `sentence_transformers.models.BERT`, is not supported: an old name; write `sentence_transformers.models.Transformer` in its place
    the first module in `modules.json`, `sentence_transformers.models.CLIPModel`, is not supported: Kivu runs models for texts only
    "#);
    let page = folder.path().join("page.onnx");
    fs::write(&page, PAGE).unwrap();
    let request = request(page, folder.path().join("out"), None);
    let error = build(&request, &|| panic!("ONNX Runtime is loaded"), &()).unwrap_err();
    assert!(
        error.chain().contains("but found a web page; "),
        "{}",
        error.chain()
    );
}

#[test]
fn a_recipe_checks_its_files_and_its_floor() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    copy(
        &fixtures().join("models/tiny-bert"),
        &folder.path().join("model"),
    );
    let recipe = folder.path().join("recipe.toml");
    let refusal = |more: &str| {
        let text =
            format!("name = 'm'\ntask = 'feature-extraction'\n[source]\nfolder = 'model'\n{more}");
        fs::write(&recipe, text).unwrap();
        let request = request(
            recipe.clone(),
            folder.path().join("out"),
            Some(Precision::Int8),
        );
        let error = build_request(&request, runtime).unwrap_err();
        error
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]")
    };
    let wrong_hash = refusal("[source.files]\n'config.json' = 'abc'");
    assert!(
        wrong_hash.contains("to have the SHA-256 abc, but found "),
        "{wrong_hash}"
    );
    let too_low = refusal("[quality]\nmean_cosine = 0.99999999\nworst_cosine = 0.9");
    assert!(
        too_low.contains("expected a mean cosine to fp32 of at least 1.0000"),
        "{too_low}"
    );
    let incomplete = refusal("package = 'a==1'");
    insta::assert_snapshot!(incomplete, @"expected `package` and `sha256` together in `[folder]/recipe.toml`, but found one of them");
}

/// The announced steps of each stage.
#[derive(Default)]
struct Recorded(Mutex<Vec<(String, usize)>>);

impl Meter for Recorded {
    fn begin(&self, _: &str, _: u64) {}
    fn advance(&self, _: u64) {}
}

impl Progress for Recorded {
    fn stage(&self, name: &str, steps: usize) {
        self.0.lock().unwrap().push((name.to_owned(), steps));
    }

    fn step(&self) {}
}

impl Recorded {
    fn steps(&self, stage: &str) -> usize {
        self.0
            .lock()
            .unwrap()
            .iter()
            .filter(|(name, _)| name == stage)
            .map(|(_, steps)| steps)
            .sum()
    }
}

#[test]
fn an_export_of_a_known_encoder_is_quantized_for_the_native_engine() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let built = |source: &Path, task, precision, engine| {
        let out = folder.path().join("out");
        let _ = fs::remove_dir_all(&out);
        let mut request = request_without_floor(task, source, out.clone(), Some(precision));
        request.engine = engine;
        let bundle = build_request(&request, runtime)?;
        serve(&out)?;
        Ok::<_, Error>(bundle.manifest().clone())
    };
    let (int8, blocks) = (Precision::Int8, Precision::Int8Blocks);
    let auto = EngineChoice::Auto;
    for (name, task) in [
        ("tiny-bert", Task::FeatureExtraction),
        ("tiny-bert-rank", Task::TextRanking),
        ("tiny-bert-ner", Task::TokenClassification),
        ("tiny-roberta-nli", Task::ZeroShotClassification),
    ] {
        let source = fixtures().join("exports").join(name);
        for precision in [int8, blocks] {
            let manifest = built(&source, task, precision, auto).unwrap();
            assert_eq!(manifest.engine, Engine::Native, "{name}");
            assert!(manifest.weights.quality.is_some(), "{name}");
        }
        let manifest = built(&source, task, int8, EngineChoice::Onnx).unwrap();
        assert_eq!(manifest.engine, Engine::Onnx, "{name}");
        let fp32 = built(&source, task, Precision::Fp32, auto).unwrap();
        assert_eq!(fp32.engine, Engine::Onnx, "{name}");
    }
    // Graphs that compute something else, or that are already pooled, stay graphs.
    let changed = folder.path().join("changed");
    copy(&fixtures().join("exports/tiny-bert"), &changed);
    let path = changed.join("model.onnx");
    let mut model = onnx::read(&path).unwrap();
    let nodes = &mut model.graph.as_mut().unwrap().node;
    let norm = nodes
        .iter_mut()
        .find(|node| node.op_type == "LayerNormalization");
    norm.unwrap()
        .attribute
        .iter_mut()
        .find(|attribute| attribute.name == "epsilon")
        .unwrap()
        .f = 0.5;
    fs::write(&path, model.encode_to_vec()).unwrap();
    let pooled = fixtures().join("exports/tiny-bert-st");
    let untyped = folder.path().join("untyped");
    copy(&fixtures().join("exports/tiny-bert-rank"), &untyped);
    remove_types(&untyped.join("model.onnx"));
    for (source, task) in [
        (changed, Task::FeatureExtraction),
        (pooled, Task::FeatureExtraction),
        (untyped, Task::TextRanking),
    ] {
        let manifest = built(&source, task, int8, auto).unwrap();
        assert_eq!(manifest.engine, Engine::Onnx, "{}", source.display());
        let refusal = built(&source, task, blocks, auto).unwrap_err();
        assert!(
            refusal.to_string().contains("but found `int8-blocks`"),
            "{refusal}"
        );
    }
}

/// Gives all tokens of an export the type 0, as in a graph that was exported without `token_type_ids`.
fn remove_types(path: &Path) {
    const TYPES: &str = "token_type_ids";
    let mut model = onnx::read(path).unwrap();
    let graph = model.graph.as_mut().unwrap();
    graph.input.retain(|input| input.name != TYPES);
    graph.initializer.push(TensorProto {
        name: "no".into(),
        data_type: data_type::INT64,
        raw_data: vec![0; 8].into(),
        ..TensorProto::default()
    });
    let zeros = NodeProto {
        op_type: "Mul".into(),
        input: vec!["input_ids".into(), "no".into()],
        output: vec![TYPES.into()],
        ..NodeProto::default()
    };
    graph.node.insert(0, zeros);
    fs::write(path, model.encode_to_vec()).unwrap();
}

/// In any form of 8 bits.
#[test]
fn an_export_below_the_floor_in_int8_is_built_in_fp32() {
    let Some(runtime) = runtime() else { return };
    for name in ["tiny-bert", "tiny-bert-st"] {
        let folder = tempfile::tempdir().unwrap();
        let source = fixtures().join("exports").join(name);
        let out = folder.path().join("out");
        let recipe = folder.path().join("recipe.toml");
        let text = format!(
            "name = 'm'\ntask = 'feature-extraction'\n[source]\nfolder = {source:?}\n[quality]\nmean_cosine = 0.999999"
        );
        fs::write(&recipe, text).unwrap();
        let bundle = build_request(&request(recipe.clone(), out.clone(), None), runtime).unwrap();
        let weights = &bundle.manifest().weights;
        assert_eq!(
            (weights.precision, &weights.quality),
            (Precision::Fp32, &None)
        );
        let reason = "chosen since int8 is below the floor: expected a mean cosine";
        assert!(weights.plan.contains(reason), "{}", weights.plan);
        serve(&out).unwrap();
        build_request(&request(recipe, out, Some(Precision::Int8)), runtime).unwrap_err();
    }
}

/// The fixture's weights are random, so rounding changes its vectors more than a trained model's.
#[test]
fn an_encoder_below_the_floor_in_int8_is_built_in_blocks() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let source = fixtures().join("models/tiny-roberta");
    let recorded = Recorded::default();
    let build = |precision, floor: &str, progress: &dyn Progress| {
        let recipe = folder.path().join("recipe.toml");
        let text = format!(
            "name = 'm'\ntask = 'feature-extraction'\n[source]\nfolder = {source:?}\n[quality]\n{floor}"
        );
        fs::write(&recipe, text).unwrap();
        let mut request = request(recipe, folder.path().join("out"), precision);
        // In ONNX Runtime, int8 has one scale for all activations in a text.
        request.engine = EngineChoice::Onnx;
        build(&request, &|| Ok(runtime), progress).map(|built| built.bundle)
    };
    let measured = |bundle: &Bundle| match bundle.manifest().weights.quality {
        Some(Quality::Embedding {
            mean_cosine,
            neighbours: Some(neighbours),
            ..
        }) => (mean_cosine, neighbours.ten_nearest),
        other => panic!("{other:?}"),
    };
    let requested = |precision| measured(&build(Some(precision), "neighbours = 0.1", &()).unwrap());
    let (of_int8, kept) = requested(Precision::Int8);
    let (of_blocks, kept_in_blocks) = requested(Precision::Int8Blocks);
    let default = QualityFloor::default().neighbours;
    assert!(
        of_int8 < of_blocks && kept < kept_in_blocks && kept < default,
        "{of_int8}, {of_blocks}, {kept}"
    );
    let floor = format!(
        "mean_cosine = {}\nneighbours = {kept}",
        (of_int8 + of_blocks) / 2.0
    );
    let chosen = build(None, &floor, &recorded).unwrap();
    // fp32, int8 and int8-blocks are written and measured once each; calibration uses the same measurement.
    assert_eq!(recorded.steps("write the graphs"), 3);
    assert_eq!(recorded.steps("measure the quality"), 3 * 300);
    assert_eq!(recorded.steps("calibrate the vectors"), 0);
    let weights = &chosen.manifest().weights;
    assert_eq!(weights.precision, Precision::Int8Blocks);
    let reason =
        "; chosen since int8 is below the floor: expected a mean cosine to fp32 of at least 0.99";
    assert!(weights.plan.contains(reason), "{}", weights.plan);
    // Without a form in 8 bits that is good enough, the weights stay as they are.
    let exact = build(None, "mean_cosine = 0.999999", &()).unwrap();
    let weights = &exact.manifest().weights;
    assert_eq!(
        (weights.precision, &weights.quality),
        (Precision::Fp32, &None)
    );
    let reason = "none; chosen since int8 is below the floor: expected a mean cosine to fp32 of at least 1.0000";
    assert!(weights.plan.starts_with(reason), "{}", weights.plan);
    assert!(
        weights
            .plan
            .contains("; and int8-blocks too: expected a mean cosine"),
        "{}",
        weights.plan
    );
    // A requested precision is not replaced.
    assert!(build(Some(Precision::Int8), &floor, &()).is_err());
    let refusal = build(Some(Precision::Int8), "", &())
        .unwrap_err()
        .to_string();
    let (requirement, advice) = refusal.split_once(" over 300 texts").unwrap();
    assert_eq!(
        requirement,
        "expected a recall@10 against fp32 of at least 0.9300"
    );
    let advice = advice.split_once("; ").unwrap().1;
    insta::assert_snapshot!(advice, @"build with `--precision int8-blocks` or `--precision fp32`, or from a recipe with another `neighbours` in `[quality]`");
}

#[test]
fn every_recipe_of_the_project_can_be_read() {
    for entry in fs::read_dir(fixtures().join("../../models"))
        .unwrap()
        .map(Result::unwrap)
    {
        if entry
            .path()
            .extension()
            .is_some_and(|extension| extension == "toml")
        {
            let recipe = Recipe::open(&entry.path()).unwrap();
            assert_eq!(
                Some(recipe.name.as_str()),
                entry.path().file_stem().and_then(|stem| stem.to_str())
            );
        }
    }
}

/// Edits a manifest from an earlier version, without the line that protects it.
fn edit_manifest(bundle: &Path, from: &str, to: &str) {
    let path = bundle.join("manifest.toml");
    edit(&path, from, to);
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.split_once('\n').unwrap().1).unwrap();
}

#[test]
fn a_damaged_bundle_is_not_served() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let whole = folder.path().join("whole");
    let source = fixtures().join("models/tiny-bert");
    build_request(&request(source.clone(), whole.clone(), None), runtime).unwrap();
    serve(&whole).unwrap();
    let refusal = |spoil: &dyn Fn(&Path)| {
        let bundle = folder.path().join("spoilt");
        let _ = fs::remove_dir_all(&bundle);
        copy(&whole, &bundle);
        spoil(&bundle);
        let chain = serve(&bundle)
            .unwrap_err()
            .chain()
            .replace(&folder.path().display().to_string(), "[folder]");
        // Hashes are left out.
        chain
            .split_whitespace()
            .map(|word| {
                if word.trim_matches(';').len() >= 40 && !word.contains('/') {
                    "…"
                } else {
                    word
                }
            })
            .collect::<Vec<_>>()
            .join(" ")
    };
    let flip = |path: &Path| {
        let mut bytes = fs::read(path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        fs::write(path, bytes).unwrap();
    };
    let refusals = [
        refusal(&|bundle| flip(&bundle.join("weights.bin"))),
        refusal(&|bundle| flip(&bundle.join("model.onnx"))),
        refusal(&|bundle| flip(&bundle.join("tokenizer.pieces"))),
        refusal(&|bundle| {
            fs::File::options()
                .write(true)
                .open(bundle.join("weights.bin"))
                .unwrap()
                .set_len(100)
                .unwrap()
        }),
        refusal(&|bundle| fs::remove_file(bundle.join("weights.bin")).unwrap()),
        refusal(&|bundle| fs::remove_file(bundle.join("manifest.toml")).unwrap()),
        refusal(&|bundle| {
            edit(
                &bundle.join("manifest.toml"),
                "pooling = \"mean\"",
                "pooling = \"cls\"",
            )
        }),
        refusal(&|bundle| edit_manifest(bundle, "format = 2", "format = 3")),
        refusal(&|bundle| {
            edit_manifest(
                bundle,
                "name = \"weights.bin\"",
                "name = \"../weights.bin\"",
            )
        }),
        refusal(&|bundle| edit_manifest(bundle, "shape = [-1, -1, 32]", "shape = [-1, -1, 33]")),
        refusal(&|bundle| {
            edit_manifest(
                bundle,
                "output = \"last_hidden_state\"",
                "output = \"logits\"",
            )
        }),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    expected `[folder]/spoilt/weights.bin` to have the BLAKE3 … but found … the bundle is damaged: build or fetch it again
    expected `[folder]/spoilt/model.onnx` to have the BLAKE3 … but found … the bundle is damaged: build or fetch it again
    expected `[folder]/spoilt/tokenizer.pieces` to have the BLAKE3 … but found … the bundle is damaged: build or fetch it again
    expected `[folder]/spoilt/weights.bin` to have 31936 bytes, but found 100; the bundle is damaged: build or fetch it again
    cannot read `[folder]/spoilt/weights.bin`: No such file or directory (os error 2)
    expected a bundle in `[folder]/spoilt`, but found no `manifest.toml`; `kivu build` makes bundles
    `[folder]/spoilt` is not a bundle: expected the BLAKE3 … of all lines after the first one of the manifest, but found … the bundle is damaged or was edited: build or fetch it again
    `[folder]/spoilt` is not a bundle: expected a manifest of format 1 or 2, but found 3; build the bundle again
    `[folder]/spoilt` is not a bundle: expected file names inside the bundle, but found `../weights.bin`
    expected `tiny-bert` to be `input_ids` INT64 [-1, -1], `attention_mask` INT64 [-1, -1], `token_type_ids` INT64 [-1, -1] → `last_hidden_state` FP32 [-1, -1, 33], as its manifest says, but its graph is `input_ids` INT64 [-1, -1], `attention_mask` INT64 [-1, -1], `token_type_ids` INT64 [-1, -1] → `last_hidden_state` FP32 [-1, -1, 32]
    expected a model with the output `logits`, but found `last_hidden_state`
    "#);
}

#[test]
fn the_same_source_gives_the_same_bundle() {
    let Some(runtime) = runtime() else { return };
    let folder = tempfile::tempdir().unwrap();
    let digests: Vec<String> = ["a", "b"]
        .map(|name| {
            let source = fixtures().join("models/tiny-roberta");
            let out = folder.path().join(name);
            let request =
                request_without_floor(Task::FeatureExtraction, &source, out.clone(), None);
            build_request(&request, runtime).unwrap();
            // A second build replaces the first.
            build_request(&request, runtime).unwrap();
            Bundle::open(&out).unwrap().digest().to_owned()
        })
        .into();
    assert_eq!(digests[0], digests[1]);
}

/// Models that run in the native engine are built, measured and fitted without ONNX Runtime.
#[test]
fn encoders_are_built_without_onnx_runtime() {
    let folder = tempfile::tempdir().unwrap();
    let none = || Err(Error::config("expected no ONNX Runtime"));
    for precision in [Precision::Int8, Precision::Int8Blocks, Precision::Fp32] {
        let source = fixtures().join("models/tiny-bert");
        let task = Task::FeatureExtraction;
        let out = folder.path().join(precision.to_string());
        let request = request_without_floor(task, &source, out, Some(precision));
        let bundle = build(&request, &none, &()).unwrap().bundle;
        assert_eq!(bundle.manifest().engine, Engine::Native);
        let is_measured = bundle.manifest().weights.quality.is_some();
        assert_eq!(is_measured, precision != Precision::Fp32);
    }
    let mut request = request(
        fixtures().join("models/tiny-splade-bert"),
        folder.path().join("splade"),
        Some(Precision::Fp32),
    );
    let bundle = build(&request, &none, &()).unwrap().bundle;
    assert_eq!(bundle.manifest().engine, Engine::Native);
    request.out = folder.path().join("for-onnx");
    request.engine = EngineChoice::Onnx;
    let refusal = build(&request, &none, &()).unwrap_err();
    assert_eq!(refusal.to_string(), "expected no ONNX Runtime");
}
