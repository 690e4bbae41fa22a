//! Encoders in small folders: their heads, tokenizers and hashes, and what is refused.

use std::{collections::BTreeMap, fs, path::PathBuf};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde_json::{Value, json};

use super::*;
use kivu::{
    pipeline::{
        Task,
        embedding::{multi_vector::MultiVectorSettings, roles::TextRole, sparse::SparseValues},
    },
    repository::manifest::Precision,
    tokenizer::{Side, Tokenizer, Truncation},
};

/// A fixture copy.
struct Copy(tempfile::TempDir);

impl Copy {
    fn of(fixture: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/models")
            .join(fixture);
        copy(&source, folder.path());
        Self(folder)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, content: &Value) {
        fs::create_dir_all(self.path(name).parent().unwrap()).unwrap();
        fs::write(self.path(name), content.to_string()).unwrap();
    }

    /// Sets a field in a file, or removes it.
    fn set(&self, name: &str, field: &str, value: Option<Value>) {
        let mut content: Value =
            serde_json::from_slice(&fs::read(self.path(name)).unwrap()).unwrap();
        let fields = content.as_object_mut().unwrap();
        match value {
            Some(value) => drop(fields.insert(field.to_owned(), value)),
            None => drop(fields.remove(field)),
        }
        self.write(name, &content);
    }

    /// Changes the weight tensors; each has a type, a shape and bytes.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>)) {
        self.change_file("model.safetensors", change);
    }

    fn change_file(
        &self,
        name: &str,
        change: impl FnOnce(&mut BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>),
    ) {
        let bytes = fs::read(self.path(name)).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let view =
            |view: &TensorView<'_>| (view.dtype(), view.shape().to_vec(), view.data().to_vec());
        let mut tensors = file
            .iter()
            .map(|(name, tensor)| (name.to_owned(), view(&tensor)))
            .collect();
        change(&mut tensors);
        let views = tensors.iter().map(|(name, (kind, shape, bytes))| {
            (name, TensorView::new(*kind, shape.clone(), bytes).unwrap())
        });
        fs::write(
            self.path(name),
            safetensors::serialize(views, None).unwrap(),
        )
        .unwrap();
    }

    fn sha256(&self) -> String {
        let plan = Plan {
            folder: ModelFolder::new(self.0.path()),
            ..Plan::default()
        };
        open(&plan).unwrap().sha256
    }

    fn add(&self, name: &str) {
        self.change(|tensors| {
            drop(tensors.insert(name.to_owned(), (Dtype::F32, vec![1], vec![0; 4])))
        });
    }

    /// Reads the model and writes its graph in fp32.
    fn open(&self) -> Result<TaskSettings> {
        self.open_for(None)
    }

    fn open_for(&self, task: Option<Task>) -> Result<TaskSettings> {
        let plan = Plan {
            folder: ModelFolder::new(self.0.path()),
            task,
            ..Plan::default()
        };
        let source = open(&plan)?;
        (source.graphs)(Precision::Fp32, None)?;
        Ok(source.settings)
    }

    fn refusal(&self) -> String {
        self.open().unwrap_err().chain().to_string()
    }
}

fn copy(source: &Path, target: &Path) {
    fs::create_dir_all(target).unwrap();
    for entry in fs::read_dir(source).unwrap() {
        let path = entry.unwrap().path();
        let target = target.join(path.file_name().unwrap());
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, target).unwrap();
        }
    }
}

#[test]
fn other_widths_are_refused_for_the_native_engine() {
    let model = Copy::of("tiny-bert");
    model.set("config.json", "intermediate_size", Some(json!(60)));
    let plan = Plan {
        folder: ModelFolder::new(model.0.path()),
        engine: EngineChoice::Native,
        ..Plan::default()
    };
    let refusal = open(&plan).err().unwrap().to_string();
    let expected = "the native engine does not run this `BertModel`";
    assert!(refusal.contains(expected), "{refusal}");
}

#[test]
fn attention_before_the_privacy_filters_experts_stays_in_fp32_in_blocks() {
    for (fixture, kept) in [("tiny-privacy-filter", 4), ("tiny-nomic-moe", 0)] {
        let model = Copy::of(fixture);
        let source = open(&Plan {
            folder: ModelFolder::new(model.0.path()),
            ..Plan::default()
        });
        let source = source.unwrap();
        for (precision, products) in [(Precision::Int8, 0), (Precision::Int8Blocks, kept)] {
            let mut graphs = (source.graphs)(precision, None).unwrap();
            let nodes = graphs.remove(0).1.graph.unwrap().node;
            let called = |name: &str| {
                let found = nodes.iter().filter(|it| it.op_type.starts_with(name));
                found.count()
            };
            assert_eq!(called("PanelProduct"), products, "{fixture}");
            assert_eq!(called("QuantizedLinear") == 0, products > 0);
            // In fp32, experts have panels.
            assert!(nodes.iter().all(|node| !node.op_type.contains("InPanels")));
            let in_small_quads = called("GatedExperts8Top3InWideBlocksInWideBlocks");
            assert_eq!(in_small_quads > 0, kept > 0 && precision == Precision::Int8);
        }
    }
}

#[test]
fn the_hash_of_the_weights_includes_adapters_and_modules() {
    for (fixture, file, tensor) in [
        (
            "tiny-jina-v3-hf",
            "separation/adapter_model.safetensors",
            "lora_B",
        ),
        (
            "tiny-colbert-pylate",
            "1_Dense/model.safetensors",
            "linear.weight",
        ),
        ("tiny-gemma3", "2_Dense/model.safetensors", "linear.weight"),
        (
            "tiny-splade-router",
            "query_0_SparseStaticEmbedding/model.safetensors",
            "weight",
        ),
    ] {
        let model = Copy::of(fixture);
        let before = model.sha256();
        assert_eq!(before, model.sha256(), "{fixture}");
        model.change_file(file, |tensors| {
            let mut found = tensors.iter_mut().filter(|(name, _)| name.contains(tensor));
            found.next().unwrap().1.2[0] ^= 1;
        });
        assert_ne!(before, model.sha256(), "{fixture}");
    }
    // The name of an adapter's folder is its task.
    let model = Copy::of("tiny-jina-v3-hf");
    let before = model.sha256();
    fs::rename(model.path("separation"), model.path("separating")).unwrap();
    assert_ne!(before, model.sha256());
    // Hidden folders are not read.
    let named = model.sha256();
    copy(&model.path("separating"), &model.path(".separation"));
    assert_eq!(named, model.sha256());
    // A model in one file has that file's hash.
    let model = Copy::of("tiny-bert");
    let file = fs::read(model.path("model.safetensors")).unwrap();
    assert_eq!(model.sha256(), hex(&Sha256::digest(&file)));
}

#[test]
fn every_tensor_is_used_or_known_to_be_unused() {
    for unused in [
        "cls.predictions.bias",
        "embeddings.position_ids",
        "encoder.layer.7.output.dense.bias",
        "pooler.dense.extra",
        "classifier.weight",
    ] {
        let model = Copy::of("tiny-bert");
        model.add(unused);
        model.open().unwrap();
    }
    for unknown in [
        "encoder.layer.0.gate.weight",
        "encoder.scale",
        "embeddings.project.weight",
        "gate",
    ] {
        let model = Copy::of("tiny-bert");
        model.add(unknown);
        let refusal = model.refusal();
        assert!(
            refusal.contains(&format!(
                "only the weights of its family, but found `{unknown}`"
            )),
            "{refusal}"
        );
    }
    // A classifier without a second output layer refuses its weights.
    let model = Copy::of("tiny-bert-sentiment");
    model.add("classifier.out_proj.weight");
    assert!(model.refusal().contains("`classifier.out_proj.weight`"));
}

#[test]
fn tensors_of_other_types_are_refused_by_their_type() {
    let model = Copy::of("tiny-bert");
    model.change(|tensors| {
        let (kind, shape, bytes) = tensors
            .get_mut("encoder.layer.0.output.dense.weight")
            .unwrap();
        (*kind, *bytes) = (Dtype::F8_E4M3, vec![0; shape.iter().product()]);
    });
    assert!(
        model
            .refusal()
            .contains("16-, 32- or 64-bit floats, but found the type F8_E4M3")
    );
}

#[test]
fn a_label_head_without_its_class_is_not_replaced_by_cosines() {
    let model = Copy::of("tiny-bert-rank");
    model.set(
        "config.json",
        "architectures",
        Some(json!(["BertForNextSentencePrediction"])),
    );
    let refusal = model
        .open_for(Some(Task::TextRanking))
        .unwrap_err()
        .chain()
        .to_string();
    insta::assert_snapshot!(refusal, @"expected `architectures` to name the label head of `classifier.weight` for `text-ranking`, such as `…ForSequenceClassification`, but found `BertForNextSentencePrediction`; correct it, or use `--task feature-extraction` to leave out the head");
    model.open_for(Some(Task::FeatureExtraction)).unwrap();
    Copy::of("tiny-bert")
        .open_for(Some(Task::TextRanking))
        .unwrap();
}

/// Removes a model's class, in each way, and with the base model's in its place.
fn without_class(fixture: &str, check: impl Fn(&Copy, &str)) {
    for class in [
        None,
        Some(json!(null)),
        Some(json!([])),
        Some(json!([""])),
        Some(json!(["BertModel"])),
    ] {
        let model = Copy::of(fixture);
        model.set("config.json", "architectures", class.clone());
        check(&model, &format!("{fixture} {class:?}"));
    }
}

#[test]
fn a_head_that_no_class_names_is_built_if_the_task_asks_for_it() {
    use Task::{TextClassification, TextRanking, TokenClassification, ZeroShotClassification};
    for (fixture, task) in [
        ("tiny-albert-cls", TextClassification),
        ("tiny-albert-ner", TokenClassification),
        ("tiny-bart-nli", ZeroShotClassification),
        ("tiny-bert-ner", TokenClassification),
        ("tiny-bert-rank", TextRanking),
        ("tiny-bert-regression", TextRanking),
        ("tiny-bert-sentiment", TextClassification),
        ("tiny-deberta-cls", TextClassification),
        ("tiny-deberta-ner", TokenClassification),
        ("tiny-deberta-v2", TextClassification),
        ("tiny-distilbert-binary", TextClassification),
        ("tiny-distilbert-ner", TokenClassification),
        ("tiny-electra-ner", TokenClassification),
        ("tiny-electra-rank", TextRanking),
        ("tiny-eurobert-cls", TextClassification),
        ("tiny-gemma-rank", TextRanking),
        ("tiny-jina-rank", TextRanking),
        ("tiny-llama-cls", TextClassification),
        ("tiny-ministral3-rank", TextRanking),
        ("tiny-modernbert-cls", TextClassification),
        ("tiny-modernbert-ner", TokenClassification),
        ("tiny-modernbert-rank", TextRanking),
        ("tiny-mpnet-ner", TokenClassification),
        ("tiny-qwen3-ner", TokenClassification),
        ("tiny-roberta-ner", TokenClassification),
        ("tiny-roberta-nli", ZeroShotClassification),
        ("tiny-roberta-prelayernorm-cls", TextClassification),
        ("tiny-xlm-roberta-multi", TextClassification),
    ] {
        let named = format!("{:?}", Copy::of(fixture).open().unwrap());
        without_class(fixture, |model, case| {
            let built = model.open_for(Some(task)).unwrap();
            assert_eq!(format!("{built:?}"), named, "{case}");
            if fixture == "tiny-bart-nli" {
                return;
            }
            let refusal = model.refusal();
            assert!(
                refusal.starts_with("the model has a label head (`")
                    && refusal.ends_with("or `--task feature-extraction` to leave it out"),
                "{case}: {refusal}"
            );
            let built = model.open_for(Some(Task::FeatureExtraction)).unwrap();
            assert!(matches!(built, TaskSettings::Embedding(_)), "{case}");
        });
    }
    let model = Copy::of("tiny-roberta-nli");
    model.set("config.json", "architectures", None);
    insta::assert_snapshot!(model.refusal(), @"the model has a label head (`classifier.out_proj.weight`), but `architectures` in `config.json` names no class with one; use `--task` with `text-classification`, `text-ranking`, `zero-shot-classification` or `token-classification` to use the head, or `--task feature-extraction` to leave it out");
}

#[test]
fn a_head_of_another_kind_than_the_task_asks_for_is_refused() {
    for (fixture, task, missing) in [
        (
            "tiny-roberta-nli",
            Task::TokenClassification,
            "`classifier.weight`",
        ),
        (
            "tiny-roberta-ner",
            Task::TextClassification,
            "`classifier.dense.weight`",
        ),
        (
            "tiny-bert-ner",
            Task::TextClassification,
            "`bert.pooler.dense.weight`",
        ),
        (
            "tiny-distilbert-binary",
            Task::TokenClassification,
            "`pre_classifier.bias`",
        ),
    ] {
        let model = Copy::of(fixture);
        model.set("config.json", "architectures", None);
        let refusal = model.open_for(Some(task)).unwrap_err().chain().to_string();
        assert!(refusal.contains(missing), "{fixture}: {refusal}");
    }
}

#[test]
fn sparse_vectors_do_not_need_a_class() {
    for fixture in [
        "tiny-splade-bert",
        "tiny-splade-distilbert",
        "tiny-splade-gte",
        "tiny-splade-modernbert",
        "tiny-splade-xlm-roberta",
    ] {
        let named = format!("{:?}", Copy::of(fixture).open().unwrap());
        without_class(fixture, |model, case| {
            assert_eq!(format!("{:?}", model.open().unwrap()), named, "{case}");
        });
        // Models with a tag in place of modules.
        without_class(fixture, |model, case| {
            fs::remove_file(model.path("modules.json")).unwrap();
            fs::write(model.path("README.md"), "---\ntags:\n- splade\n---\n").unwrap();
            let TaskSettings::Embedding(settings) = model.open().unwrap() else {
                panic!("expected an embedder")
            };
            assert!(
                settings.sparse.is_some() && settings.dense.is_none(),
                "{case}"
            );
        });
    }
}

#[test]
fn heads_that_vectors_do_not_need_are_named() {
    let unused = |model: &Copy| {
        let plan = Plan {
            folder: ModelFolder::new(model.0.path()),
            task: Some(Task::FeatureExtraction),
            ..Plan::default()
        };
        open(&plan).unwrap().unused_heads
    };
    assert_eq!(unused(&Copy::of("tiny-bert")), [""; 0]);
    assert_eq!(unused(&Copy::of("tiny-colbert-stanford")), [""; 0]);
    without_class("tiny-bert-rank", |model, case| {
        assert_eq!(unused(model), ["classifier"], "{case}");
    });
    without_class("tiny-distilbert-binary", |model, case| {
        assert_eq!(unused(model), ["classifier", "pre_classifier"], "{case}");
    });
    without_class("tiny-eurobert-cls", |model, case| {
        assert_eq!(unused(model), ["classifier", "dense"], "{case}");
    });
    // With modules for vectors, too.
    without_class("tiny-splade-bert", |model, case| {
        let pooling = json!([
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]);
        model.write("modules.json", &pooling);
        model.write("1_Pooling/config.json", &json!({"pooling_mode": "cls"}));
        assert_eq!(unused(model), ["cls"], "{case}");
    });
}

#[test]
fn a_head_that_finds_answers_is_refused_without_its_class_too() {
    without_class("tiny-bert", |model, case| {
        model.add("qa_outputs.bias");
        fs::remove_file(model.path("modules.json")).unwrap();
        let refusal = model.refusal();
        assert!(
            refusal.starts_with("the model has a head that finds answers (`qa_outputs.bias`)"),
            "{case}: {refusal}"
        );
        model.open_for(Some(Task::FeatureExtraction)).unwrap();
    });
}

#[test]
fn a_reranker_without_its_class_does_not_become_an_embedder() {
    without_class("tiny-qwen3-rank", |model, case| {
        if case.contains("BertModel") {
            return;
        }
        let named = Copy::of("tiny-qwen3-rank").open_for(Some(Task::TextRanking));
        let built = model.open_for(Some(Task::TextRanking)).unwrap();
        assert_eq!(
            format!("{built:?}"),
            format!("{:?}", named.unwrap()),
            "{case}"
        );
        assert!(model.refusal().contains("--task text-ranking"), "{case}");
    });
}

#[test]
fn shared_tables_may_have_any_of_their_names() {
    const ENCODER: &str = "encoder.embed_tokens.weight";
    for (fixture, name, alias) in [
        (
            "tiny-bart-nli",
            "model.shared.weight",
            "model.decoder.embed_tokens.weight",
        ),
        (
            "tiny-bart-nli",
            "model.shared.weight",
            "model.encoder.embed_tokens.weight",
        ),
        ("tiny-sentence-t5", "shared.weight", ENCODER),
        (
            "tiny-splade-bert",
            "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.weight",
        ),
        (
            "tiny-splade-distilbert",
            "distilbert.embeddings.word_embeddings.weight",
            "vocab_projector.weight",
        ),
        (
            "tiny-splade-xlm-roberta",
            "roberta.embeddings.word_embeddings.weight",
            "lm_head.decoder.weight",
        ),
        (
            "tiny-splade-gte",
            "gte.embeddings.word_embeddings.weight",
            "lm_head.decoder.weight",
        ),
        (
            "tiny-splade-modernbert",
            "model.embeddings.tok_embeddings.weight",
            "decoder.weight",
        ),
        (
            "tiny-qwen3-rank",
            "model.embed_tokens.weight",
            "lm_head.weight",
        ),
    ] {
        let task = (fixture == "tiny-qwen3-rank").then_some(Task::TextRanking);
        let graphs = |model: &Copy| {
            let plan = Plan {
                folder: ModelFolder::new(model.0.path()),
                task,
                ..Plan::default()
            };
            (open(&plan)?.graphs)(Precision::Fp32, None)
        };
        let model = Copy::of(fixture);
        let expected = graphs(&model).unwrap();
        model.change(|tensors| {
            let table = tensors[name].clone();
            tensors.insert(alias.to_owned(), table);
        });
        assert_eq!(graphs(&model).unwrap(), expected, "{fixture}: both names");
        model.change(|tensors| drop(tensors.remove(name)));
        assert_eq!(graphs(&model).unwrap(), expected, "{fixture}: {alias}");
        model.change(|tensors| {
            let mut table = tensors[alias].clone();
            table.2[0] ^= 1;
            tensors.insert(name.to_owned(), table);
        });
        let refusal = graphs(&model).unwrap_err().chain().to_string();
        let problem = "are one matrix in this model (`tie_word_embeddings`), but the file has two different ones";
        assert!(refusal.contains(problem), "{refusal}");
    }
}

#[test]
fn tables_have_no_other_names_where_no_layer_shares_them() {
    let rename = |model: &Copy, name: &str, alias: &str| {
        model.change(|tensors| {
            let table = tensors.remove(name).unwrap();
            tensors.insert(alias.to_owned(), table);
        });
    };
    let words = "bert.embeddings.word_embeddings.weight";
    let output = "cls.predictions.decoder.weight";
    // An embedding model has no output matrix.
    let embedder = Copy::of("tiny-splade-bert");
    fs::remove_file(embedder.path("modules.json")).unwrap();
    embedder.open().unwrap();
    rename(&embedder, words, output);
    assert!(embedder.refusal().contains("but found no such weight"));
    let untied = Copy::of("tiny-splade-bert");
    untied.set("config.json", "tie_word_embeddings", Some(json!(false)));
    rename(&untied, words, output);
    assert!(untied.refusal().contains("but found no such weight"));
}

#[test]
fn a_build_may_ask_for_sparse_vectors() {
    let open_sparse = |model: &Copy| {
        let plan = Plan {
            folder: ModelFolder::new(model.0.path()),
            is_sparse: true,
            ..Plan::default()
        };
        open(&plan)
    };
    let model = Copy::of("tiny-splade-distilbert");
    fs::remove_file(model.path("modules.json")).unwrap();
    let is_sparse = |settings: TaskSettings| matches!(settings, TaskSettings::Embedding(settings) if settings.sparse.is_some());
    assert!(!is_sparse(model.open().unwrap()));
    assert!(is_sparse(open_sparse(&model).unwrap().settings));
    fs::write(
        model.path("README.md"),
        "---\ntags:\n\n- splade # yes\n---\n",
    )
    .unwrap();
    assert!(is_sparse(model.open().unwrap()));
    let plan = Plan {
        is_sparse: true,
        ..Plan::default()
    };
    let dense = open_sparse(&Copy::of("tiny-bert")).unwrap();
    let refusal = crate::plan::task::require_sparse(&plan, &dense).unwrap_err();
    insta::assert_snapshot!(refusal, @"`BertModel` has no sparse vectors: they need a masked language model (`…ForMaskedLM`) or a sparse head; build it with `--task feature-extraction`");
}

#[test]
fn the_unknown_token_is_the_one_that_the_files_name() {
    let model = Copy::of("tiny-deberta-ner");
    model.open().unwrap();
    model.set("tokenizer_config.json", "unk_token", Some(json!(null)));
    insta::assert_snapshot!(
        model.refusal(),
        @"expected `unk_token` `[UNK]` in `tokenizer_config.json`, as in the vocabulary, but found none"
    );
    // The class has a default.
    model.set("tokenizer_config.json", "unk_token", None);
    model.open().unwrap();
}

#[test]
fn layers_that_share_weights_are_stored_once() {
    let constants = |passes: usize| {
        let model = Copy::of("tiny-albert");
        model.set("config.json", "num_hidden_layers", Some(json!(passes)));
        let plan = Plan {
            folder: ModelFolder::new(model.0.path()),
            ..Plan::default()
        };
        let source = open(&plan).unwrap();
        [Precision::Fp32, Precision::Int8, Precision::Int8Blocks].map(|precision| {
            let (_, graph) = (source.graphs)(precision, None).unwrap().remove(0);
            let graph = graph.graph.unwrap();
            (graph.initializer.len(), graph.node.len())
        })
    };
    for ((few, short), (many, long)) in constants(2).into_iter().zip(constants(12)) {
        assert!(
            few == many && long > 4 * short,
            "{few} {many} {short} {long}"
        );
    }
}

#[test]
fn queries_without_positions_need_a_limit() {
    let model = Copy::of("tiny-splade-router");
    model.open().unwrap();
    for length in [None, Some(json!(1e30))] {
        model.set(
            "query_0_SparseStaticEmbedding/tokenizer_config.json",
            "model_max_length",
            length,
        );
        let refusal = model.refusal();
        assert!(
            refusal.starts_with("expected a `model_max_length` of at most"),
            "{refusal}"
        );
    }
}

#[test]
fn nomic_in_the_form_of_transformers_has_the_tokenizer_of_bert() {
    let model = Copy::of("tiny-nomic");
    let change = |part: &str, value: &Value| model.set("tokenizer.json", part, Some(value.clone()));
    let lowercase = json!({"type": "Lowercase"});
    let before: Value =
        serde_json::from_slice(&fs::read(model.path("tokenizer.json")).unwrap()).unwrap();
    change("normalizer", &lowercase);
    model.open().unwrap();
    let native =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/nomic-native/config.json");
    fs::copy(native, model.path("config.json")).unwrap();
    model.open().unwrap();
    let tokenizer = |model: &Copy| -> Value {
        let plan = Plan {
            folder: ModelFolder::new(model.0.path()),
            ..Plan::default()
        };
        serde_json::from_slice(&open(&plan).unwrap().tokenizer).unwrap()
    };
    let made = tokenizer(&model);
    assert_eq!(made["normalizer"]["type"], "BertNormalizer");
    change("normalizer", &before["normalizer"]);
    assert_eq!(tokenizer(&model), made);
    model.set(
        "tokenizer_config.json",
        "tokenizer_class",
        Some(json!("GPT2Tokenizer")),
    );
    assert!(
        model
            .refusal()
            .contains("expected the tokenizer class `BertTokenizer`")
    );
}

#[test]
fn tokens_do_not_depend_on_where_a_text_is_cut() {
    let model = Copy::of("tiny-qwen3");
    let mut words: Value =
        serde_json::from_slice(&fs::read(model.path("tokenizer.json")).unwrap()).unwrap();
    words["model"]["end_of_word_suffix"] = json!("</w>");
    model.write("tokenizer.json", &words);
    assert!(
        model
            .refusal()
            .contains("expected no `end_of_word_suffix` in `tokenizer.json`, but found `</w>`")
    );
    for file in [json!({}), json!({"model": null})] {
        model.write("tokenizer.json", &file);
        assert!(model.open().is_err(), "a file without a model");
    }
}

#[test]
fn the_class_of_deberta_needs_byte_pairs() {
    let model = Copy::of("tiny-distilbert");
    model.set(
        "tokenizer_config.json",
        "tokenizer_class",
        Some(json!("DebertaTokenizer")),
    );
    assert!(
        model
            .refusal()
            .contains("expected byte pairs for the class `DebertaTokenizer`")
    );
}

#[test]
fn modules_make_an_embedder_of_a_model_with_another_head() {
    let model = Copy::of("tiny-bert-ner");
    assert!(matches!(
        model.open().unwrap(),
        TaskSettings::TokenClassification(_)
    ));
    model.write(
        "modules.json",
        &json!([
            {"path": "", "type": "sentence_transformers.models.Transformer"},
            {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ]),
    );
    model.write("1_Pooling/config.json", &json!({"pooling_mode": "cls"}));
    assert!(matches!(model.open().unwrap(), TaskSettings::Embedding(_)));
    model.write(
        "modules.json",
        &json!([{"path": "", "type": "my_pool.Pooling"}]),
    );
    model.set("config.json", "architectures", Some(json!(["BertModel"])));
    assert!(model.refusal().contains("but found `my_pool.Pooling`"));
}

#[test]
fn the_label_of_gte_is_the_weight_of_a_token() {
    let model = Copy::of("tiny-gte");
    model.set(
        "config.json",
        "architectures",
        Some(json!(["NewForTokenClassification"])),
    );
    model.set("config.json", "id2label", Some(json!({"0": "LABEL_0"})));
    model.change(|tensors| {
        let body = std::mem::take(tensors)
            .into_iter()
            .map(|(name, tensor)| (format!("new.{name}"), tensor));
        tensors.extend(body);
        let width = tensors["new.embeddings.LayerNorm.bias"].1[0];
        tensors.insert(
            "classifier.weight".to_owned(),
            (Dtype::F32, vec![1, width], vec![0; 4 * width]),
        );
        tensors.insert(
            "classifier.bias".to_owned(),
            (Dtype::F32, vec![1], vec![0; 4]),
        );
    });
    let TaskSettings::Embedding(settings) = model.open().unwrap() else {
        panic!("expected an embedder")
    };
    assert!(settings.dense.is_some() && settings.sparse.is_some());
}

#[test]
fn layers_of_pylate_transform_tokens_in_files_of_all_versions() {
    let model = Copy::of("tiny-colbert-pylate");
    model.set("1_Dense/config.json", "use_residual", None);
    let TaskSettings::Embedding(settings) = model.open().unwrap() else {
        panic!("expected an embedder")
    };
    assert!(settings.multi_vector.is_some() && settings.dense.is_none());
}

/// Token ids of a text in a role, up to the model's limit.
fn encoded(model: &Copy, role: TextRole, text: &str) -> Vec<u32> {
    let plan = Plan {
        folder: ModelFolder::new(model.0.path()),
        ..Plan::default()
    };
    let source = open(&plan).unwrap();
    let TaskSettings::Embedding(settings) = source.settings else {
        panic!("expected an embedder")
    };
    let tokenizer = Tokenizer::from_json(&source.tokenizer).unwrap();
    let form = settings.multi_vector.as_ref().unwrap().role(role).clone();
    form.encode(
        &tokenizer,
        text,
        settings.max_tokens,
        Truncation::At(Side::Right),
    )
    .unwrap()
    .ids
}

/// PyLate sets the length of its tokenizer for each role, whatever the files say: one less than the role's, for the
/// marker.
#[test]
fn late_interaction_reads_texts_up_to_the_length_of_their_role() {
    let long = "a b c d e f g ".repeat(20);
    let lengths = |model: &Copy| {
        [
            (TextRole::Document, &*long),
            (TextRole::Query, &*long),
            (TextRole::Query, "a"),
        ]
        .map(|(role, text)| encoded(model, role, text).len())
    };
    for (document, query, model_length) in [
        (24, 12, Some(40)),
        (24, 12, Some(24)),
        (24, 12, Some(23)),
        (24, 12, Some(11)),
        (24, 12, None),
        (24, 24, Some(23)),
        (12, 24, Some(11)),
        (12, 24, Some(23)),
        (41, 30, Some(40)),
    ] {
        let model = Copy::of("tiny-colbert-pylate");
        let settings = "config_sentence_transformers.json";
        model.set(settings, "document_length", Some(json!(document)));
        model.set(settings, "query_length", Some(json!(query)));
        model.set(
            "sentence_bert_config.json",
            "max_seq_length",
            model_length.map(Value::from),
        );
        assert_eq!(
            lengths(&model),
            [document, query, query],
            "{model_length:?}"
        );
        // The text's end is cut off, and not the token after it.
        let [whole, cut] = [&*long, "a"].map(|text| encoded(&model, TextRole::Document, text));
        assert_eq!(
            (whole[..2].to_vec(), whole.last()),
            (cut[..2].to_vec(), cut.last())
        );
        model.set(settings, "do_query_expansion", Some(json!(false)));
        assert_eq!(lengths(&model), [document, query, 4], "{model_length:?}");
        model.set(settings, "document_prefix", Some(json!("")));
        model.set(settings, "query_prefix", Some(json!("")));
        assert_eq!(lengths(&model), [document, query, 3], "{model_length:?}");
    }
    let model = Copy::of("tiny-colbert-stanford");
    model.set("artifact.metadata", "doc_maxlen", Some(json!(30)));
    model.set("tokenizer_config.json", "model_max_length", Some(json!(20)));
    assert_eq!(lengths(&model)[0], 30);
    let model = Copy::of("tiny-colbert-st");
    model.set(
        "sentence_bert_config.json",
        "max_seq_length",
        Some(json!(11)),
    );
    assert_eq!(lengths(&model), [24, 12, 12]);
    model.set("sentence_bert_config.json", "document_length", None);
    assert_eq!(lengths(&model), [11, 12, 12]);
}

#[test]
fn cross_encoders_with_several_labels_keep_their_sigmoid() {
    let function = |model: &Copy| match model.open_for(Some(Task::TextClassification)).unwrap() {
        TaskSettings::Classification(settings) => settings.function,
        _ => panic!("expected a classifier"),
    };
    let [older, old] = [
        "sbert_ce_default_activation_function",
        "sentence_transformers",
    ];
    let sigmoid = "torch.nn.modules.activation.Sigmoid";
    let identity = "torch.nn.modules.linear.Identity";
    let named = |value: &str| json!({ "activation_fn": value });
    for (fixture, key, value, expected) in [
        (
            "tiny-bert-sentiment",
            older,
            json!(sigmoid),
            ScoreFunction::Sigmoid,
        ),
        (
            "tiny-bert-sentiment",
            older,
            json!(identity),
            ScoreFunction::Softmax,
        ),
        (
            "tiny-bert-sentiment",
            old,
            named(sigmoid),
            ScoreFunction::Sigmoid,
        ),
        (
            "tiny-bert-sentiment",
            old,
            named(identity),
            ScoreFunction::Softmax,
        ),
        (
            "tiny-bert-regression",
            old,
            named(sigmoid),
            ScoreFunction::None,
        ),
    ] {
        let model = Copy::of(fixture);
        model.set("config.json", key, Some(value.clone()));
        assert_eq!(function(&model), expected, "{fixture} {key} {value}");
    }
    let model = Copy::of("tiny-bert-sentiment");
    let class = "sentence_transformers.base.modules.transformer.Transformer";
    model.write("modules.json", &json!([{ "path": "", "type": class }]));
    for (name, expected) in [
        (sigmoid, ScoreFunction::Sigmoid),
        (identity, ScoreFunction::Softmax),
    ] {
        let settings = json!({ "model_type": "CrossEncoder", "activation_fn": name });
        model.write("config_sentence_transformers.json", &settings);
        assert_eq!(function(&model), expected, "{name}");
    }
}

#[test]
fn lengths_of_roles_that_the_model_cannot_read_are_refused() {
    let refusal = |fixture: &str, file: &str, field: &str, value: Value| {
        let model = Copy::of(fixture);
        model.set(file, field, Some(value));
        model.refusal()
    };
    let (pylate, settings) = ("tiny-colbert-pylate", "config_sentence_transformers.json");
    let refusals = [
        refusal(pylate, settings, "document_length", json!(5000)),
        refusal(pylate, settings, "document_length", json!(2)),
        refusal(pylate, settings, "query_length", json!(1)),
        refusal(
            "tiny-colbert-stanford",
            "artifact.metadata",
            "query_maxlen",
            json!(5000),
        ),
        refusal(
            "tiny-colbert-st",
            "sentence_bert_config.json",
            "query_length",
            json!(11),
        ),
    ];
    insta::assert_snapshot!(refusals.join("\n"), @r"
        expected a `document_length` of at most 64, the positions of the model, but found 5000; set it to 64
        expected a `document_length` of at least 3, but found 2
        expected a `query_length` of at least 3, but found 1
        expected queries that are padded to at most 64 tokens, the positions of the model, but found 5000
        expected a `query_length` of at least 12, the `length` of `query_expansion`, but found 11
        ");
}

fn roles_of(model: &Copy) -> Box<MultiVectorSettings> {
    let TaskSettings::Embedding(settings) = model.open().unwrap() else {
        panic!("expected an embedder")
    };
    settings.multi_vector.unwrap()
}

#[test]
fn special_tokens_of_late_interaction_are_those_that_the_files_name() {
    for name in [
        "tiny-colbert-stanford",
        "tiny-colbert-st",
        "tiny-jina-colbert",
    ] {
        let model = Copy::of(name);
        let before = roles_of(&model);
        let tokens: Value =
            serde_json::from_slice(&fs::read(model.path("tokenizer.json")).unwrap()).unwrap();
        let unknown = tokens["model"]["unk_id"].as_u64().unwrap_or(1);
        let skips = |roles: &MultiVectorSettings, id: u64| {
            roles.document.skipped.contains(&u32::try_from(id).unwrap())
        };
        // sentence-transformers skips no unknown tokens.
        assert_eq!(skips(&before, unknown), name != "tiny-colbert-st", "{name}");
        let [other, pad] = match name {
            "tiny-jina-colbert" => ["</s>", "<s>"],
            _ => ["[unused0]", "[unused1]"],
        };
        let id = |token: &str| {
            let added = tokens["added_tokens"].as_array().unwrap();
            let found = added.iter().find(|added| added["content"] == token);
            let found = found.map(|added| &added["id"]);
            found
                .unwrap_or(&tokens["model"]["vocab"][token])
                .as_u64()
                .unwrap()
        };
        model.set("tokenizer_config.json", "unk_token", Some(json!(other)));
        model.set("tokenizer_config.json", "mask_token", Some(json!(pad)));
        let roles = roles_of(&model);
        assert!(!skips(&roles, unknown), "{name}");
        assert_eq!(
            skips(&roles, id(other)),
            name != "tiny-colbert-st",
            "{name}"
        );
        assert_eq!(
            u64::from(roles.query.expansion.unwrap().token),
            id(pad),
            "{name}"
        );
    }
}

#[test]
fn settings_of_pylate_are_refused_beside_the_modules_that_replace_them() {
    let model = Copy::of("tiny-colbert-st");
    let settings = "config_sentence_transformers.json";
    model.set(settings, "query_prefix", Some(json!("[Q] ")));
    insta::assert_snapshot!(model.refusal(), @"`query_prefix` of PyLate in `config_sentence_transformers.json` has no effect in a model with `MultiVectorMask`, whose modules replace it");
}

#[test]
fn queries_that_are_padded_on_the_left_are_refused() {
    for name in ["tiny-colbert-stanford", "tiny-colbert-pylate"] {
        let model = Copy::of(name);
        model.set("tokenizer_config.json", "padding_side", Some(json!("left")));
        assert_eq!(
            model.refusal(),
            "expected `padding_side` `right` in a model that pads queries, but found `left`"
        );
    }
}

#[test]
fn tokens_without_weights_are_those_that_the_files_name() {
    let model = Copy::of("tiny-bge-m3");
    let ignored = || {
        let TaskSettings::Embedding(settings) = model.open().unwrap() else {
            panic!("expected an embedder")
        };
        match settings.sparse.unwrap().values {
            SparseValues::Tokens { ignored } => ignored,
            other => panic!("expected token weights, but found {other:?}"),
        }
    };
    assert_eq!(ignored(), [0, 2, 1, 3]);
    model.set("tokenizer_config.json", "pad_token", Some(json!("<mask>")));
    model.set("tokenizer_config.json", "eos_token", None);
    assert_eq!(ignored()[..2], [0, 2]);
    assert!(!ignored().contains(&1));
}

#[test]
fn words_are_predicted_without_a_bias() {
    for no in [json!(false), json!(null)] {
        let model = Copy::of("tiny-splade-modernbert");
        model.set("config.json", "decoder_bias", Some(no));
        model.change(|tensors| drop(tensors.remove("decoder.bias")));
        let TaskSettings::Embedding(settings) = model.open().unwrap() else {
            panic!("expected an embedder")
        };
        assert!(settings.sparse.is_some());
    }
}
