//! Opens an encoder's weights, and an adapter's, as a bundle source.

use std::path::Path;

use kivu_engine::kernel::LANES;
use sha2::{Digest, Sha256};

use super::{
    config::{EncoderConfig, Facts, Head, HeadKind, Positions},
    decoder, families,
    graph::{GraphForm, LABEL_HEADS, LOGITS, graph},
    heads::OutputHeads,
    vectors,
};
use crate::{
    config::ConfigFile,
    layer_forms::LayerForms,
    lora::{Adapter, BaseNames},
    module_list::has_pooling,
    modules::Modules,
    plan::Plan,
    sentence_transformers::{default_prompt, makes_vectors, max_tokens, score_modules},
    source::{EncoderSettings, LABEL_TOKENIZER, LABELS, MODEL, Source, TaskSettings},
    token_rows::{has_positions, other_unknown_token, within_types, within_vocabulary},
    weights::{Weights, combined_sha256},
};
use kivu::{
    backend::Engine,
    config::EngineChoice,
    error::{Error, Result},
    pipeline::{
        Task, classification::ClassificationSettings,
        token_classification::TokenClassificationSettings,
    },
    repository::{bundle::hex, manifest::Precision},
};

/// Reads the encoder in the plan's folder and merges the plan's adapter, if any.
pub(crate) fn open(plan: &Plan) -> Result<Source<'static>> {
    let folder = plan.transformer()?;
    // An adapter's own `config.json` describes the merged model.
    let described = plan
        .adapter
        .as_ref()
        .filter(|adapter| adapter.join(ConfigFile::NAME).is_file());
    let mut config = families::open(described.unwrap_or(&folder))?;
    let tokenizer = families::tokenizer(&folder, &config)?;
    // Models with a head store their body under a prefix.
    let prefix = config.names.prefix;
    let mut weights = families::weights(&mut config, Weights::open(&folder)?, &folder)?;
    families::adapt(&mut config, &weights);
    let tokenizer = within_vocabulary(tokenizer, config.vocabulary)?;
    // sentence-transformers leaves out the class's head. An adapter may add one.
    if plan.adapter.is_none() && makes_vectors(&plan.folder)? {
        config.head = None;
    }
    if let Some(folder) = &plan.adapter {
        let adapter = Adapter::open(folder)?;
        let [dense, dense_norm] = [
            config.names.dense.0,
            config.names.dense_norm.unwrap_or_default(),
        ];
        let head = [
            "classifier",
            "score",
            config.names.labels,
            dense,
            dense_norm,
        ];
        if let Some(labels) = adapter.merge(
            &mut weights,
            BaseNames {
                prefix,
                head: &head,
            },
        )? {
            let kind = if adapter.labels_tokens {
                HeadKind::Tokens
            } else {
                HeadKind::Text
            };
            config
                .head
                .get_or_insert_with(|| Head::unnamed(kind, labels));
        }
    }
    let modules = match plan.adapter.is_none() {
        true => score_modules(&plan.folder, config.facts.hidden)?,
        false => None,
    };
    let reads_pairs = modules.is_some()
        || config
            .head
            .as_ref()
            .is_some_and(|head| head.kind == HeadKind::Text);
    within_types(&tokenizer, config.types, reads_pairs)?;
    let scores = match modules {
        Some(modules) => Some(head_of_modules(plan, &config.facts, modules)?),
        None => decoder::head(plan, &mut config, &mut weights, (&tokenizer, LOGITS))?,
    };
    let facts = &config.facts;
    let mut files = Vec::new();
    let (settings, heads) = match (&config.head, scores) {
        (_, Some((settings, modules))) => (
            EncoderSettings::Classification(settings),
            OutputHeads::dense(Some(modules)),
        ),
        (Some(head), None) if head.kind == HeadKind::Tokens => {
            let unknown_token = other_unknown_token(&folder, &tokenizer)?;
            let settings = TokenClassificationSettings {
                unknown_token,
                ..token_settings(&plan.folder, head, facts)?
            };
            (
                EncoderSettings::TokenClassification(settings),
                OutputHeads::default(),
            )
        }
        (Some(head), None) => {
            let settings = text_settings(&plan.folder, head, facts)?;
            (
                EncoderSettings::Classification(settings),
                OutputHeads::default(),
            )
        }
        (None, None) => {
            check_label_head(plan, facts, &weights)?;
            let (mut settings, heads) = vectors::open(plan, &config, &mut weights, &tokenizer)?;
            files.extend(vectors::add_static_queries(
                &plan.folder,
                &config,
                &mut settings,
                &tokenizer,
            )?);
            (EncoderSettings::Embedding(settings), heads)
        }
    };
    for (_, bytes) in &files {
        weights.add_source(&hex(&Sha256::digest(bytes)));
    }
    Ok(Source {
        files,
        ..of_parts(
            plan,
            Parts {
                config,
                weights,
                heads,
                settings,
                tokenizer,
                labels: None,
            },
        )?
    })
}

/// A CrossEncoder's label scores, from modules.
fn head_of_modules(
    plan: &Plan,
    facts: &Facts,
    modules: Modules,
) -> Result<(ClassificationSettings, Modules)> {
    let head = Head::unnamed(HeadKind::Text, modules.dimensions()?);
    Ok((
        text_settings(&plan.folder, &head, facts)?,
        modules.with_output(LOGITS),
    ))
}

/// An encoder model's parts.
pub(super) struct Parts {
    pub(super) config: EncoderConfig,
    pub(super) weights: Weights,
    pub(super) heads: OutputHeads,
    pub(super) settings: EncoderSettings,
    /// A `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
    /// The encoder that reads labels, in models that have one.
    pub(super) labels: Option<LabelParts>,
}

/// A second encoder in a bundle.
pub(super) struct LabelParts {
    pub(super) config: EncoderConfig,
    pub(super) weights: Weights,
    pub(super) heads: OutputHeads,
    /// A `tokenizer.json`.
    pub(super) tokenizer: Vec<u8>,
}

/// Builds an encoder source; its graph is written for the plan's engine.
pub(super) fn of_parts(plan: &Plan, parts: Parts) -> Result<Source<'static>> {
    let Parts {
        config,
        weights,
        heads,
        settings,
        tokenizer,
        labels,
    } = parts;
    if let Positions::TableAfter { padding } = config.positions {
        has_positions(&tokenizer, padding)?;
    }
    let facts = &config.facts;
    let suits_native_engine = config.suits_native_engine()
        && heads.suit_native_engine()
        && labels.as_ref().is_none_or(|labels| {
            labels.config.suits_native_engine() && labels.heads.suit_native_engine()
        });
    let engine = match plan.engine {
        EngineChoice::Onnx => Engine::Onnx,
        EngineChoice::Auto | EngineChoice::Native if suits_native_engine => Engine::Native,
        EngineChoice::Auto => Engine::Onnx,
        EngineChoice::Native if !heads.suit_native_engine() => {
            return Err(Error::model(
                "expected one pooling (cls, mean or last token), and then text layers without a sigmoid, for the native \
                 engine, but found other modules, or spans; use `--engine auto`",
            ));
        }
        EngineChoice::Native => {
            return Err(Error::model(format!(
                "expected a family that `docs/bundle-reference.md` lists, with vectors of a multiple of {LANES} \
                 values, for the native engine, but found `{}` with {} values; use `--engine auto`",
                facts.architecture, facts.hidden
            )));
        }
    };
    Ok(Source {
        architecture: facts.architecture.clone(),
        sha256: combined_sha256(&weights.sha256, heads.sources()),
        settings: TaskSettings::Encoder(settings),
        tokenizer,
        files: labels
            .iter()
            .map(|labels| (LABEL_TOKENIZER, labels.tokenizer.clone()))
            .collect(),
        is_quantized: false,
        engine: if plan.precision == Precision::Fp32 {
            Engine::Onnx
        } else {
            engine
        },
        graphs: Box::new(move |precision, layers| {
            let engine = if precision == Precision::Fp32 {
                Engine::Onnx
            } else {
                engine
            };
            let form = GraphForm {
                precision,
                engine,
                layers,
            };
            let mut graphs = vec![(MODEL, graph(&config, &weights, &heads, form)?)];
            if let Some(LabelParts {
                config,
                weights,
                heads,
                ..
            }) = &labels
            {
                // Its layers may have the same names.
                let form = GraphForm {
                    layers: LayerForms::Plain,
                    ..form
                };
                graphs.push((LABELS, graph(config, weights, heads, form)?));
            }
            Ok(graphs)
        }),
    })
}

/// Refuses a model with a label head that its class does not name, if the requested task could also be done by its
/// vectors: the cosines of an embedding model are not the scores of its head.
fn check_label_head(plan: &Plan, facts: &Facts, weights: &Weights) -> Result<()> {
    let is_decided = plan.strategy.is_some() || has_pooling(&plan.folder);
    let Some(task) = plan
        .task
        .filter(|task| *task != Task::FeatureExtraction && !is_decided)
    else {
        return Ok(());
    };
    let is_head = |name: &&String| LABEL_HEADS.iter().any(|head| name.starts_with(head));
    match weights.names().find(is_head) {
        None => Ok(()),
        Some(name) => Err(Error::model(format!(
            "expected `architectures` to name the label head of `{name}` for `{task}`, such as `…ForSequenceClassification`, \
             but found `{}`; correct it, or use `--task {}` to leave out the head",
            facts.architecture,
            Task::FeatureExtraction
        ))),
    }
}

/// Settings for a model with a value per text and label in its output [`LOGITS`].
pub(crate) fn text_settings(
    folder: &Path,
    head: &Head,
    facts: &Facts,
) -> Result<ClassificationSettings> {
    Ok(ClassificationSettings {
        output: LOGITS.to_owned(),
        labels: head.labels.clone(),
        function: head.function,
        max_tokens: max_tokens(folder, facts)?,
        template: None,
        query_prompt: default_prompt(folder)?,
        padding: None,
        identifies_languages: false,
    })
}

/// Settings for a model with a value per token and label in its output [`LOGITS`].
pub(crate) fn token_settings(
    folder: &Path,
    head: &Head,
    facts: &Facts,
) -> Result<TokenClassificationSettings> {
    Ok(TokenClassificationSettings {
        output: LOGITS.to_owned(),
        labels: head.labels.clone(),
        max_tokens: max_tokens(folder, facts)?,
        unknown_token: None,
    })
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeMap, fs, path::PathBuf};

    use safetensors::{Dtype, SafeTensors, tensor::TensorView};
    use serde_json::{Value, json};

    use super::*;

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
                folder: self.0.path().to_owned(),
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
        fn open(&self) -> Result<EncoderSettings> {
            self.open_for(None)
        }

        fn open_for(&self, task: Option<Task>) -> Result<EncoderSettings> {
            let plan = Plan {
                folder: self.0.path().to_owned(),
                task,
                ..Plan::default()
            };
            let source = open(&plan)?;
            (source.graphs)(Precision::Fp32, LayerForms::Plain)?;
            match source.settings {
                TaskSettings::Encoder(settings) => Ok(settings),
                TaskSettings::Seq2Seq(..) => panic!("expected an encoder"),
            }
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
        for architecture in ["BertModel", "BertForNextSentencePrediction"] {
            let model = Copy::of("tiny-bert-rank");
            model.set("config.json", "architectures", Some(json!([architecture])));
            let refusal = model
                .open_for(Some(Task::TextRanking))
                .unwrap_err()
                .chain()
                .to_string();
            let expected = "expected `architectures` to name the label head of `classifier.bias` for `text-ranking`";
            assert!(
                refusal.starts_with(expected) && refusal.contains(architecture),
                "{refusal}"
            );
            model.open_for(Some(Task::FeatureExtraction)).unwrap();
        }
        Copy::of("tiny-bert")
            .open_for(Some(Task::TextRanking))
            .unwrap();
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
                    folder: model.0.path().to_owned(),
                    task,
                    ..Plan::default()
                };
                (open(&plan)?.graphs)(Precision::Fp32, LayerForms::Plain)
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
                folder: model.0.path().to_owned(),
                is_sparse: true,
                ..Plan::default()
            };
            open(&plan)
        };
        let model = Copy::of("tiny-splade-distilbert");
        fs::remove_file(model.path("modules.json")).unwrap();
        let is_sparse = |settings: EncoderSettings| matches!(settings, EncoderSettings::Embedding(settings) if settings.sparse.is_some());
        assert!(!is_sparse(model.open().unwrap()));
        let TaskSettings::Encoder(settings) = open_sparse(&model).unwrap().settings else {
            panic!("expected an encoder")
        };
        assert!(is_sparse(settings));
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
        let refusal = crate::task::require_sparse(&plan, &dense).unwrap_err();
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
                folder: model.0.path().to_owned(),
                ..Plan::default()
            };
            let source = open(&plan).unwrap();
            [Precision::Fp32, Precision::Int8, Precision::Int8Blocks].map(|precision| {
                let (_, graph) = (source.graphs)(precision, LayerForms::Plain)
                    .unwrap()
                    .remove(0);
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
        let change =
            |part: &str, value: &Value| model.set("tokenizer.json", part, Some(value.clone()));
        let lowercase = json!({"type": "Lowercase"});
        let before: Value =
            serde_json::from_slice(&fs::read(model.path("tokenizer.json")).unwrap()).unwrap();
        change("normalizer", &lowercase);
        model.open().unwrap();
        let native = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../tests/fixtures/nomic-native/config.json");
        fs::copy(native, model.path("config.json")).unwrap();
        assert!(
            model
                .refusal()
                .contains("expected `normalizer.type` of `BertTokenizer` in `tokenizer.json`")
        );
        change("normalizer", &before["normalizer"]);
        model.open().unwrap();
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
            EncoderSettings::TokenClassification(_)
        ));
        model.write(
            "modules.json",
            &json!([
                {"path": "", "type": "sentence_transformers.models.Transformer"},
                {"path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
            ]),
        );
        model.write("1_Pooling/config.json", &json!({"pooling_mode": "cls"}));
        assert!(matches!(
            model.open().unwrap(),
            EncoderSettings::Embedding(_)
        ));
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
        let EncoderSettings::Embedding(settings) = model.open().unwrap() else {
            panic!("expected an embedder")
        };
        assert!(settings.dense.is_some() && settings.sparse.is_some());
    }

    #[test]
    fn layers_of_pylate_transform_tokens_in_files_of_all_versions() {
        let model = Copy::of("tiny-colbert-pylate");
        model.set("1_Dense/config.json", "use_residual", None);
        let EncoderSettings::Embedding(settings) = model.open().unwrap() else {
            panic!("expected an embedder")
        };
        assert!(settings.multi_vector.is_some() && settings.dense.is_none());
    }

    #[test]
    fn words_are_predicted_without_a_bias() {
        for no in [json!(false), json!(null)] {
            let model = Copy::of("tiny-splade-modernbert");
            model.set("config.json", "decoder_bias", Some(no));
            model.change(|tensors| drop(tensors.remove("decoder.bias")));
            let EncoderSettings::Embedding(settings) = model.open().unwrap() else {
                panic!("expected an embedder")
            };
            assert!(settings.sparse.is_some());
        }
    }
}
