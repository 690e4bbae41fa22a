//! Weights in files that Kivu does not read, for messages.

use std::{collections::BTreeMap, path::Path, sync::LazyLock};

use serde::Deserialize;

use super::{io as files, weights};
use crate::export;
use kivu::error::{Message, quoted};

/// A kind of weights: `other-weights.toml` has all, in the order in which they are looked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Kind {
    /// Name endings.
    endings: Vec<String>,
    /// Whose files they are.
    description: String,
    /// What to do with them.
    hint: String,
}

static KINDS: LazyLock<BTreeMap<String, Vec<Kind>>> =
    LazyLock::new(|| toml::from_str(include_str!("other-weights.toml")).unwrap_or_default());

/// The description of a folder without weights.
pub const NONE: &str = "none";
/// Names of files that training writes beside a model.
const OF_TRAINING: [&str; 5] = [
    "optimizer",
    "rng_state",
    "scaler",
    "scheduler",
    "training_args",
];

/// Describes `paths` without weights that Kivu reads, for errors: `only …`, or `none`.
pub fn describe<'a>(paths: &(impl Iterator<Item = &'a str> + Clone)) -> Message {
    let is_weights = |path: &&str| {
        let name = path.rsplit('/').next().unwrap_or(path);
        let is_read = weights::LAYOUTS.contains(&name) || export::is_graph(path);
        !is_read && !OF_TRAINING.iter().any(|start| name.starts_with(start))
    };
    for kind in KINDS.values().flatten() {
        let is_of_kind = |path: &&str| kind.endings.iter().any(|ending| path.ends_with(ending));
        let found: Vec<&str> = paths
            .clone()
            .filter(is_weights)
            .filter(is_of_kind)
            .take(3)
            .collect();
        if !found.is_empty() {
            let message = format!("only {}: {}", quoted(&found), kind.description);
            return Message::new(message).with_hint(&kind.hint);
        }
    }
    Message::new(NONE)
}

/// The same for the files in `folder` and in its `onnx/`.
pub fn describe_folder(folder: &Path) -> Message {
    let paths = ["", "onnx"].map(|inner| files::list(&folder.join(inner)).unwrap_or_default());
    let paths: Vec<String> = paths
        .iter()
        .flatten()
        .filter(|(_, metadata)| metadata.is_file())
        .filter_map(|(path, _)| Some(path.strip_prefix(folder).ok()?.to_str()?.to_owned()))
        .collect();
    let mut stand_ins = paths.iter().filter_map(|path| {
        let found = files::known_format(&folder.join(path))?;
        (describe(&[path.as_str()].into_iter()).problem() != NONE)
            .then(|| found.map(|found| format!("only `{path}`: {found}")))
    });
    match stand_ins.next() {
        Some(found) => found,
        None => describe(&paths.iter().map(String::as_str)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_are_described_by_their_names() {
        let of = |paths: &[&str]| describe(&paths.iter().copied()).to_string();
        let unnamed = [
            "training_args.bin",
            "optimizer.pt",
            "model.safetensors",
            "onnx/model.onnx",
        ];
        assert_eq!(of(&unnamed), "none");
        for (paths, expected) in [
            (
                &["README.md", "a.Q4.gguf"][..],
                "only `a.Q4.gguf`: weights of llama.cpp; ",
            ),
            (
                &["tf_model.h5"],
                "only `tf_model.h5`: weights of TensorFlow; ",
            ),
            (
                &["flax_model.msgpack"],
                "only `flax_model.msgpack`: weights of Flax; ",
            ),
            (
                &["onnx/model_fp16.onnx"],
                "only `onnx/model_fp16.onnx`: graphs in other precisions; ",
            ),
            (
                &["model.fp16.safetensors"],
                "only `model.fp16.safetensors`: safetensors under another name; ",
            ),
            (
                &["model.pt", "training_args.bin"],
                "only `model.pt`: a checkpoint under another name; ",
            ),
        ] {
            assert!(of(paths).starts_with(expected), "{}", of(paths));
        }
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("onnx")).unwrap();
        assert_eq!(describe_folder(folder.path()), Message::new(NONE));
        std::fs::write(folder.path().join("onnx/model_fp16.onnx"), "").unwrap();
        let found = describe_folder(folder.path());
        assert!(found.problem().starts_with("only `onnx/model_fp16.onnx`: "));
    }
}
