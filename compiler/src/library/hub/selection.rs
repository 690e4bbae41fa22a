//! Selects the repository files that a build needs.

use std::{collections::BTreeSet, path::Path};

use crate::{
    encoder, export,
    files::{
        config::ConfigFile, io::read_json_if_exists, lora, model_folder::ModelFolder,
        other_weights, weights,
    },
    model_types::Family,
    sentence_transformers::{static_folder, transformer_folder},
    seq2seq,
};
use kivu::{
    Error, Result,
    error::{Message, quoted},
};

/// Model, tokenizer and generation settings files, and the model card.
const SETTINGS: &[&str] = &[
    "README.md",
    "adapter_config.json",
    "added_tokens.json",
    "artifact.metadata",
    "config.json",
    "config_sentence_transformers.json",
    "generation_config.json",
    encoder::GLINER,
    "merges.txt",
    "model.safetensors.index.json",
    "modules.json",
    "pytorch_model.bin.index.json",
    "router_config.json",
    "sentencepiece.bpe.model",
    "source.spm",
    "special_tokens_map.json",
    "spiece.model",
    "spm.model",
    "target.spm",
    "target_vocab.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "vocab.json",
    "vocab.txt",
];

/// A repository's paths.
pub struct Paths<'a>(pub BTreeSet<&'a str>);

impl Paths<'_> {
    pub fn has(&self, path: &str) -> bool {
        self.0.contains(path)
    }

    /// Settings files.
    pub fn settings(&self) -> Vec<String> {
        self.0
            .iter()
            .filter(|path| is_settings(path))
            .map(|path| (*path).to_owned())
            .collect()
    }

    /// Whether the repository has an adapter. As in `transformers`, it is applied to its base, even if the repository
    /// has a model too.
    pub fn is_adapter(&self) -> bool {
        let has_model = self
            .0
            .iter()
            .any(|path| weights::LAYOUTS.contains(path) || export::is_graph(path));
        self.has(lora::CONFIG) && (!has_model || lora::WEIGHTS.iter().any(|file| self.has(file)))
    }

    /// GLiNER's encoder repository, if it has files that this one lacks.
    pub fn encoder(&self, folder: &Path) -> Result<Option<String>> {
        match self.has(encoder::GLINER) {
            true => encoder::missing_encoder(&ModelFolder::new(folder), |file| self.has(file)),
            false => Ok(None),
        }
    }

    /// Whether the model's vectors depend on `modules.json`: an encoder without a head for another task.
    pub fn may_need_modules(&self, folder: &Path) -> Result<bool> {
        let folder = &ModelFolder::new(folder);
        let is_other = encoder::is_gliclass(folder) || encoder::is_gliner2(folder);
        if !self.has(ConfigFile::NAME) || self.has(encoder::GLINER) || is_other {
            return Ok(false);
        }
        let config = ConfigFile::open(folder)?;
        let class = config.architecture();
        Ok(!class.contains("For") && !class.ends_with("MTModel") || class.ends_with("ForMaskedLM"))
    }

    /// Weight files for the adapter and its modules.
    pub fn adapter_weights(&self, name: &dyn std::fmt::Display) -> Result<Vec<String>> {
        let found = lora::WEIGHTS.into_iter().find(|file| self.has(file));
        found
            .map(|file| [vec![file.to_owned()], self.module_weights()].concat())
            .ok_or_else(|| {
                let files = quoted(&lora::WEIGHTS);
                Error::model(self.others().map(|others| {
                    format!("expected one of {files} in `{name}`, but found {others}")
                }))
            })
    }

    /// The model's weight files: safetensors, or else a PyTorch checkpoint, or else an ONNX export. `folder` has the
    /// settings files.
    pub fn weights(&self, folder: &Path, name: &dyn std::fmt::Display) -> Result<Vec<String>> {
        let folder = &ModelFolder::new(folder);
        if static_folder(folder)?.is_some() {
            let whole = weights::names(folder, |file| self.has(file))?.unwrap_or_default();
            return Ok([whole, self.module_weights()].concat());
        }
        if self.has(encoder::GLINER) {
            return weights::names(folder, |file| self.has(file))?.ok_or_else(|| {
                Error::model(self.others().map(|others| {
                    format!(
                        "expected weights in `{name}` ({}), but found {others}",
                        quoted(&weights::FILES)
                    )
                }))
            });
        }
        let transformer = transformer_folder(folder)?;
        let path = |file: &str| match transformer.strip_prefix(folder) {
            Ok(module) => module.join(file).display().to_string(),
            Err(_) => file.to_owned(),
        };
        if !self.has(&path(ConfigFile::NAME)) {
            return Err(Error::model(self.others().map(|others| {
                format!(
                    "expected a model in `{name}` with a `{}`, but found {others}",
                    ConfigFile::NAME
                )
            })));
        }
        let config = ConfigFile::open(&transformer)?;
        let mut types: Vec<_> = Family::names().collect();
        types.extend(
            seq2seq::MODEL_TYPES
                .iter()
                .filter(|name| Family::named(name).is_none()),
        );
        types.extend([encoder::GLICLASS, encoder::GLINER2]);
        let is_supported = types.contains(&config.model_type());
        let mut found = None;
        if is_supported {
            found = weights::names(&transformer, |file| self.has(&path(file)))?;
            found = found.map(|files| files.iter().map(|file| path(file)).collect());
        }
        let found = found.or_else(|| export::files(|file| self.has(file), self.0.iter().copied()));
        let mut needed = match found {
            Some(files) => files,
            None if is_supported => {
                return Err(Error::model(self.others().map(|others| {
                    format!(
                        "expected weights in `{name}` ({}, or an ONNX export), but found {others}",
                        quoted(&weights::FILES)
                    )
                })));
            }
            None => {
                let has_code = config.fields().contains_key("auto_map");
                return Err(Error::model(format!(
                    "the `model_type` `{}` ({}) of `{name}` is not supported, and it has no ONNX export; supported: {}",
                    config.model_type(),
                    config.architecture(),
                    quoted(&types)
                ))
                .with_hint(match has_code {
                    true => "it needs code from the repository, and Kivu runs none",
                    false => encoder::alternative(&config),
                }));
            }
        };
        if let Some(missing) = needed.iter().find(|path| !self.has(path)) {
            return Err(Error::model(format!(
                "expected `{missing}` in `{name}`, but found none"
            )));
        }
        let others = self
            .module_weights()
            .into_iter()
            .filter(|path| !needed.contains(path));
        needed.extend(others.collect::<Vec<_>>());
        match config.model_type() {
            encoder::JINA_V3 => needed.extend(self.task_adapters("")),
            encoder::JINA_V5 => needed.extend(self.task_adapters("adapters/")),
            _ => {}
        }
        needed.extend(
            encoder::HEADS
                .iter()
                .filter(|head| self.has(head))
                .map(|head| (*head).to_owned()),
        );
        Ok(needed)
    }

    /// Weight files in sentence-transformers module folders, such as `2_Dense`.
    fn module_weights(&self) -> Vec<String> {
        let folders: BTreeSet<&str> = self
            .0
            .iter()
            .filter_map(|path| Some(path.split_once('/')?.0))
            .filter(|it| is_module(it))
            .collect();
        let weights = folders.into_iter().filter_map(|folder| {
            let paths = weights::FILES.map(|file| format!("{folder}/{file}"));
            paths.into_iter().find(|path| self.has(path))
        });
        weights.collect()
    }

    /// Adapters in folders of their own below `parent`, one per task.
    fn task_adapters(&self, parent: &str) -> Vec<String> {
        let folders = self.0.iter().filter_map(|path| {
            let path = path.strip_prefix(parent)?;
            path.strip_suffix(lora::CONFIG)?.strip_suffix('/')
        });
        let files = folders
            .filter(|folder| !folder.contains('/'))
            .flat_map(|folder| {
                let path = |file: &str| format!("{parent}{folder}/{file}");
                let weights = lora::WEIGHTS
                    .map(path)
                    .into_iter()
                    .find(|path| self.has(path));
                weights.into_iter().chain([path(lora::CONFIG)])
            });
        files.collect()
    }

    /// Weights in other formats, for a message.
    fn others(&self) -> Message {
        other_weights::describe(&self.0.iter().copied())
    }
}

fn is_settings(path: &str) -> bool {
    // `sentence_bert_config.json`, and the same with other architectures.
    let is_known = |file: &str| {
        SETTINGS.contains(&file) || file.starts_with("sentence_") && file.ends_with("_config.json")
    };
    match path.split_once('/') {
        None => is_known(path) || Family::compares_code(path),
        Some((folder, file)) if is_module(folder) => is_known(file),
        Some((folder, "config.json" | "tokenizer.json" | "tokenizer_config.json")) => {
            [encoder::LABELS_TOKENIZER, encoder::ENCODER_CONFIG].contains(&folder)
        }
        Some(_) => false,
    }
}

/// Whether a folder is named like a module: `1_Pooling`, or `query_0_Transformer` in a router.
fn is_module(folder: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    match folder.split('_').collect::<Vec<_>>()[..] {
        [number, _, ..] if is_number(number) => true,
        [.., number, class] => {
            is_number(number) && class.starts_with(|first: char| first.is_ascii_uppercase())
        }
        _ => false,
    }
}

/// An adapter's base, as `ORG/NAME@REVISION`.
pub fn base(folder: &Path, name: &dyn std::fmt::Display) -> Result<String> {
    let fields = read_json_if_exists(&folder.join(lora::CONFIG))?.unwrap_or_default();
    let config = ConfigFile::new(lora::CONFIG, fields);
    let base: String = config.require("base_model_name_or_path")?;
    let revision: Option<String> = config.get("revision")?;
    let base = revision.map_or(base.clone(), |revision| format!("{base}@{revision}"));
    if super::RepositoryName::is_name(&base) {
        return Ok(base);
    }
    Err(Error::model(format!(
        "expected the adapter `{name}` to name the repository of its base model, but found \
         `{base}`"
    ))
    .with_hint("name both in a recipe: `folder` and `adapter` of `[source]`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths<'a>(names: &[&'a str]) -> Paths<'a> {
        Paths(names.iter().copied().collect())
    }

    fn weights(config: &str, names: &[&str]) -> Result<Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("config.json"), config).unwrap();
        let index = r#"{"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}"#;
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        paths(names).weights(folder.path(), &"a/b")
    }

    const BERT: &str = r#"{"model_type": "bert", "architectures": ["BertModel"]}"#;
    const OTHER: &str =
        r#"{"model_type": "chatglm", "architectures": ["ChatGLMModel"], "auto_map": {}}"#;

    #[test]
    fn only_files_that_a_build_reads_are_fetched() {
        let names = [
            "config.json",
            "1_Pooling/config.json",
            "tokenizer.json",
            "README.md",
            "sentence_bert_config.json",
            "train_script.py",
            "data_config.json",
            "onnx/config.json",
            "colbert_linear.pt",
            "imgs/a.jpg",
            "0_Transformer/model.safetensors.index.json",
            "0_Transformer/special_tokens_map.json",
        ];
        let mut expected = [&names[..5], &names[10..]].concat();
        expected.sort_unstable();
        assert_eq!(paths(&names).settings(), expected);
    }

    #[test]
    fn an_adapter_is_one_next_to_a_model_too() {
        let is_adapter = |names: &[&str]| paths(names).is_adapter();
        let config = "adapter_config.json";
        assert!(is_adapter(&[config, "adapter_model.safetensors"]));
        assert!(is_adapter(&[
            config,
            "adapter_model.bin",
            "model.safetensors"
        ]));
        assert!(!is_adapter(&[config, "model.safetensors"]));
        assert!(!is_adapter(&[config, "model.safetensors.index.json"]));
        assert!(!is_adapter(&[
            "adapter_model.safetensors",
            "model.safetensors"
        ]));
        let names = [
            config,
            "adapter_model.safetensors",
            "2_Dense/model.safetensors",
        ];
        assert_eq!(paths(&names).adapter_weights(&"a/b").unwrap(), names[1..]);
    }

    #[test]
    fn modules_of_a_router_are_fetched() {
        let names = [
            "README.md",
            "config_2_old/config.json",
            "document_0_Transformer/config.json",
            "document_0_Transformer/model.safetensors",
            "document_0_Transformer/pytorch_model.bin",
            "document_1_SpladePooling/config.json",
            "modules.json",
            "query_0_SparseStaticEmbedding/model.safetensors",
            "query_0_SparseStaticEmbedding/tokenizer.json",
            "router_config.json",
        ];
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("document_0_Transformer")).unwrap();
        let router = r#"{
            "types": {
                "query_0_SparseStaticEmbedding": "sentence_transformers.sparse_encoder.models.SparseStaticEmbedding",
                "document_0_Transformer": "sentence_transformers.models.Transformer",
                "document_1_SpladePooling": "sentence_transformers.sparse_encoder.models.SpladePooling"
            },
            "structure": {
                "query": ["query_0_SparseStaticEmbedding"],
                "document": ["document_0_Transformer", "document_1_SpladePooling"]
            },
            "parameters": {}
        }"#;
        for (name, text) in [
            (
                "modules.json",
                r#"[{"path": "", "type": "sentence_transformers.models.Router"}]"#,
            ),
            ("router_config.json", router),
            ("document_0_Transformer/config.json", BERT),
        ] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let settings = [&names[..1], &names[2..3], &names[5..7], &names[8..]].concat();
        assert_eq!(paths(&names).settings(), settings);
        assert_eq!(
            paths(&names).weights(folder.path(), &"a/b").unwrap(),
            [names[3], names[7]]
        );
    }

    #[test]
    fn one_format_of_the_weights_is_fetched() {
        let whole = [
            "config.json",
            "model.safetensors",
            "pytorch_model.bin",
            "onnx/model.onnx",
            "tf_model.h5",
        ];
        assert_eq!(weights(BERT, &whole).unwrap(), ["model.safetensors"]);
        let sharded = [
            "config.json",
            "model.safetensors.index.json",
            "model-1.safetensors",
            "model-2.safetensors",
        ];
        assert_eq!(weights(BERT, &sharded).unwrap(), sharded[2..]);
        // As in `transformers`, an index is not read beside a whole file.
        let both = [&sharded[..], &["model.safetensors"]].concat();
        assert_eq!(weights(BERT, &both).unwrap(), ["model.safetensors"]);
        let older = [&sharded[..], &["pytorch_model.bin"]].concat();
        assert_eq!(weights(BERT, &older).unwrap(), sharded[2..]);
        let exported = [
            "config.json",
            "model.safetensors",
            "onnx/model.onnx",
            "onnx/model.onnx_data",
        ];
        assert_eq!(weights(OTHER, &exported).unwrap(), exported[2..]);
        let translation = [
            "config.json",
            "onnx/decoder_model.onnx",
            "onnx/decoder_model_merged.onnx",
            "onnx/encoder_model.onnx",
            "onnx/decoder_with_past_model.onnx",
        ];
        let found = weights(r#"{"model_type": "marian"}"#, &translation).unwrap();
        assert_eq!(
            found,
            ["onnx/encoder_model.onnx", "onnx/decoder_model_merged.onnx"]
        );
        let dense = [
            "config.json",
            "model.safetensors",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
        ];
        assert_eq!(weights(BERT, &dense).unwrap(), [dense[1], dense[3]]);
        let tasks = [
            "config.json",
            "model.safetensors",
            "separation/adapter_config.json",
            "separation/adapter_model.safetensors",
            "old/text/adapter_config.json",
        ];
        let jina =
            r#"{"model_type": "jina_embeddings_v3", "architectures": ["JinaEmbeddingsV3Model"]}"#;
        assert_eq!(
            weights(jina, &tasks).unwrap(),
            [tasks[1], tasks[3], tasks[2]]
        );
        assert_eq!(weights(BERT, &tasks).unwrap(), tasks[1..2]);
        let tasks = [
            "config.json",
            "model.safetensors",
            "adapters/retrieval/adapter_config.json",
            "adapters/retrieval/adapter_model.safetensors",
            "other/adapter_config.json",
        ];
        let jina =
            r#"{"model_type": "jina_embeddings_v5", "architectures": ["JinaEmbeddingsV5Model"]}"#;
        assert_eq!(
            weights(jina, &tasks).unwrap(),
            [tasks[1], tasks[3], tasks[2]]
        );
        // GLiNER has no `config.json`.
        let gliner = [
            "gliner_config.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "onnx/model.onnx",
        ];
        assert_eq!(
            paths(&gliner).weights(Path::new("."), &"a/b").unwrap(),
            [gliner[1]]
        );
        assert_eq!(paths(&gliner).settings(), [gliner[0], gliner[2]]);
        let heads = [
            "config.json",
            "model.safetensors",
            "colbert_linear.pt",
            "sparse_linear.pt",
            "other.pt",
        ];
        assert_eq!(weights(BERT, &heads).unwrap(), heads[1..4]);
    }

    #[test]
    fn repositories_without_a_model_are_refused_before_weights_are_fetched() {
        let refusals = [
            paths(&["model.gguf", "README.md"]).weights(Path::new("."), &"a/b"),
            weights(OTHER, &["config.json", "model.safetensors"]),
            weights(BERT, &["config.json", "tf_model.h5"]),
            weights(
                BERT,
                &[
                    "config.json",
                    "model.safetensors.index.json",
                    "model-1.safetensors",
                ],
            ),
        ];
        let refusals: Vec<String> = refusals
            .into_iter()
            .map(|refusal| refusal.unwrap_err().to_string())
            .collect();
        let [start, end] = [
            "the `model_type` `chatglm` (ChatGLMModel) of `a/b`",
            "Kivu runs none",
        ];
        assert!(
            refusals[1].starts_with(start) && refusals[1].ends_with(end),
            "{}",
            refusals[1]
        );
        insta::assert_snapshot!([&refusals[0], &refusals[2], &refusals[3]].map(String::as_str).join("\n"), @"
        expected a model in `a/b` with a `config.json`, but found only `model.gguf`: weights of llama.cpp; use the repository that they were converted from
        expected weights in `a/b` (`model.safetensors`, `pytorch_model.bin`, or an ONNX export), but found only `tf_model.h5`: weights of TensorFlow; convert them with `from_tf=True` and `save_pretrained` of `transformers` 4
        expected `model-2.safetensors` in `a/b`, but found none
        ");
    }
}
