//! PEFT's LoRA adapters, merged into the weights that they were trained on.

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde::Deserialize;

use super::weights::{Weight, Weights};
use crate::error::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the names of the model that it wraps.
const WRAPPER: &str = "base_model.model.";

/// The fields of `adapter_config.json` that matter.
#[derive(Debug, Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f32,
    #[serde(default)]
    use_rslora: bool,
    #[serde(default)]
    use_dora: bool,
    #[serde(default)]
    fan_in_fan_out: bool,
    #[serde(default)]
    rank_pattern: serde_json::Map<String, serde_json::Value>,
    #[serde(default)]
    alpha_pattern: serde_json::Map<String, serde_json::Value>,
}

/// An adapter's folder.
#[derive(Debug)]
pub(super) struct Adapter {
    folder: PathBuf,
    scale: f32,
}

impl Adapter {
    /// Reads what kind of adapter is in `folder`; other kinds than LoRA are refused by name.
    pub(super) fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(CONFIG);
        let text = fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
        let config: Config = serde_json::from_slice(&text)
            .map_err(|error| Error::model_because(format!("cannot read `{}`", path.display()), error))?;
        if config.peft_type != "LORA" {
            return Err(Error::model(format!(
                "expected an adapter of `peft_type` `LORA`, but found `{}`",
                config.peft_type
            )));
        }
        let unsupported = [
            ("use_dora", config.use_dora),
            ("fan_in_fan_out", config.fan_in_fan_out),
            ("rank_pattern", !config.rank_pattern.is_empty()),
            ("alpha_pattern", !config.alpha_pattern.is_empty()),
        ];
        if let Some((option, _)) = unsupported.iter().find(|(_, is_set)| *is_set) {
            return Err(Error::model(format!(
                "expected an adapter without `{option}`, but found one with it"
            )));
        }
        let rank = config.r.max(1) as f32;
        let scale = config.lora_alpha / if config.use_rslora { rank.sqrt() } else { rank };
        Ok(Self { folder: folder.to_owned(), scale })
    }

    /// Adds each pair of low-rank matrices to its weight, and puts whole modules in the place of the model's;
    /// `prefix` is what the adapter's names may have and the model's may lack.
    ///
    /// Gives the number of labels of the head that the adapter brings, if it brings one.
    pub(super) fn merge(&self, weights: &mut Weights, prefix: &str) -> Result<Option<usize>> {
        let tensors = Weights::of_file(&self.folder.join(WEIGHTS))?;
        let mut labels = None;
        for (name, tensor) in &tensors {
            let inner = name.strip_prefix(WRAPPER).unwrap_or(name);
            if inner.ends_with(".lora_B.weight") {
                continue;
            }
            if let Some(module) = inner.strip_suffix(".lora_A.weight") {
                let up = tensors.get(&format!("{}.lora_B.weight", name.trim_end_matches(".lora_A.weight")));
                let up = up.ok_or_else(|| {
                    Error::model(format!("expected `lora_B` of `{module}`, but found none"))
                })?;
                let target = weights.find_mut(&format!("{module}.weight"), prefix).ok_or_else(|| {
                    Error::model(format!("expected `{module}.weight` in the model, but found none"))
                })?;
                self.add(target, up, tensor, module)?;
            } else if inner.contains("lora_") {
                return Err(Error::model(format!("expected LoRA of linear layers, but found `{inner}`")));
            } else {
                if inner == "classifier.weight" || inner == "classifier.out_proj.weight" {
                    labels = tensor.shape.first().copied();
                }
                match weights.find_mut(inner, prefix) {
                    Some(target) => *target = tensor.clone(),
                    None => weights.add(inner, tensor.clone()),
                }
            }
        }
        Ok(labels)
    }

    /// `target += scale × up · down`.
    fn add(&self, target: &mut Weight, up: &Weight, down: &Weight, module: &str) -> Result<()> {
        let (&[outputs, rank], &[down_rank, inputs]) = (&up.shape[..], &down.shape[..]) else {
            return Err(unfit(target, up, down, module));
        };
        if rank != down_rank || rank == 0 || inputs == 0 || target.shape != [outputs, inputs] {
            return Err(unfit(target, up, down, module));
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

fn unfit(target: &Weight, up: &Weight, down: &Weight, module: &str) -> Error {
    Error::model(format!(
        "expected matrices that fit `{module}` of shape {:?}, but found {:?} and {:?}",
        target.shape, up.shape, down.shape
    ))
}
