//! PEFT's LoRA adapters, merged into the weights that they were trained on.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{
    config::ConfigFile,
    files::read_json,
    weights::{Weight, Weights},
};
use kivu::error::{Error, Result};

pub(super) const CONFIG: &str = "adapter_config.json";
/// The file with the weights: the first of these that exists.
pub(super) const WEIGHTS: [&str; 2] = ["adapter_model.safetensors", "adapter_model.bin"];
/// The prefix that PEFT gives the names of the model that it wraps.
const WRAPPER: &str = "base_model.model.";

#[derive(Debug)]
pub(super) struct Adapter {
    weights: PathBuf,
    scale: f32,
    /// Whether its head, if it has one, labels tokens instead of texts.
    pub(super) labels_tokens: bool,
}

impl Adapter {
    /// Reads the configuration in `folder`; other kinds of adapters than LoRA are refused.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let config = ConfigFile::new(CONFIG, read_json(&folder.join(CONFIG))?);
        let kind: String = config.require("peft_type")?;
        if kind != "LORA" {
            return Err(Error::model(format!(
                "expected an adapter of `peft_type` `LORA`, but found `{kind}`"
            )));
        }
        for field in ["use_dora", "fan_in_fan_out", "rank_pattern", "alpha_pattern"] {
            let value = config.fields().get(field).unwrap_or(&Value::Null);
            let is_unset = matches!(value, Value::Null | Value::Bool(false));
            if !is_unset && value.as_object().is_none_or(|patterns| !patterns.is_empty()) {
                return Err(Error::model(format!(
                    "expected an adapter without `{field}`, but found one with it"
                )));
            }
        }
        let (rank, alpha): (usize, f32) = (config.require("r")?, config.require("lora_alpha")?);
        let rank = rank.max(1) as f32;
        let scale = alpha / if config.is_set("use_rslora")? { rank.sqrt() } else { rank };
        let weights = WEIGHTS.map(|name| folder.join(name));
        let found = weights.iter().find(|path| path.is_file());
        let labels_tokens = config.get::<String>("task_type")?.as_deref() == Some("TOKEN_CLS");
        Ok(Self { weights: found.unwrap_or(&weights[0]).clone(), scale, labels_tokens })
    }

    /// Adds the product of each pair of low-rank matrices to its weight, and replaces whole modules.
    ///
    /// `prefix` is the prefix of the body, which names of the adapter may have and names of the model may lack.
    /// Returns the number of labels if the adapter has a head.
    pub(super) fn merge(&self, weights: &mut Weights, prefix: &str) -> Result<Option<usize>> {
        let adapter = Weights::of_files(std::slice::from_ref(&self.weights))?;
        let mut labels = None;
        for (name, tensor) in &adapter.tensors {
            let inner = name.strip_prefix(WRAPPER).unwrap_or(name);
            if inner.ends_with(".lora_B.weight") {
                continue;
            }
            if let Some(module) = inner.strip_suffix(".lora_A.weight") {
                let missing = |what: &str| {
                    Error::model(format!("expected {what} for the adapter of `{module}`, but found none"))
                };
                let up = format!("{}.lora_B.weight", name.trim_end_matches(".lora_A.weight"));
                let up = adapter.tensors.get(&up).ok_or_else(|| missing("`lora_B`"))?;
                let target = weights.find_mut(&format!("{module}.weight"), prefix);
                self.add(target.ok_or_else(|| missing("a weight in the model"))?, up, tensor, module)?;
            } else if inner.contains("lora_") {
                return Err(Error::model(format!("expected LoRA of linear layers, but found `{inner}`")));
            } else {
                if inner == "classifier.weight" || inner == "classifier.out_proj.weight" {
                    labels = tensor.shape.first().copied();
                }
                match weights.find_mut(inner, prefix) {
                    Some(target) => *target = tensor.clone(),
                    None => drop(weights.tensors.insert(inner.to_owned(), tensor.clone())),
                }
            }
        }
        Ok(labels)
    }

    /// `target += scale × up · down`.
    fn add(&self, target: &mut Weight, up: &Weight, down: &Weight, module: &str) -> Result<()> {
        let (outputs, rank, inputs) = match (&up.shape[..], &down.shape[..]) {
            (&[outputs, rank], &[down_rank, inputs]) if rank == down_rank => (outputs, rank, inputs),
            _ => (0, 0, 0),
        };
        if rank == 0 || inputs == 0 || target.shape != [outputs, inputs] {
            return Err(Error::model(format!(
                "expected matrices that fit `{module}` of shape {:?}, but found {:?} and {:?}",
                target.shape, up.shape, down.shape
            )));
        }
        for (row, up) in target.values.chunks_exact_mut(inputs).zip(up.values.chunks_exact(rank)) {
            for (up, down) in up.iter().zip(down.values.chunks_exact(inputs)) {
                let factor = self.scale * up;
                row.iter_mut().zip(down).for_each(|(value, down)| *value += factor * down);
            }
        }
        Ok(())
    }
}
