//! The weights of a Hugging Face folder: `model.safetensors`, whole or in shards, in any float type.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::{
    error::{Error, Result},
    repository::bundle::hex,
};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// A model's weights by name, as fp32.
#[derive(Debug)]
pub struct Weights {
    tensors: BTreeMap<String, Weight>,
    prefix: String,
    sha256: String,
}

impl Weights {
    /// The tensors of one safetensors file, without a prefix.
    pub(super) fn of_file(path: &Path) -> Result<BTreeMap<String, Weight>> {
        let (mut tensors, mut hash) = (BTreeMap::new(), Sha256::new());
        read_file(path, &mut tensors, &mut hash)?;
        Ok(tensors)
    }

    /// The tensor of the body or the head that another file calls `name`, with or without the prefix.
    pub(super) fn find_mut(&mut self, name: &str, prefix: &str) -> Option<&mut Weight> {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        let own = [name, bare].into_iter().find(|own| self.tensors.contains_key(*own))?.to_owned();
        self.tensors.get_mut(&own)
    }

    /// Adds a tensor that the model did not have.
    pub(super) fn add(&mut self, name: &str, weight: Weight) {
        self.tensors.insert(name.to_owned(), weight);
    }
}

/// One tensor of weights.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// The length of each axis.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

/// The one field of interest in the index of a sharded model.
#[derive(Deserialize)]
struct Index {
    weight_map: BTreeMap<String, String>,
}

impl Weights {
    /// Whether `folder` holds weights of the form that is read here.
    pub fn are_in(folder: &Path) -> bool {
        folder.join(WHOLE).is_file() || folder.join(INDEX).is_file()
    }

    /// Reads all weights in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let (mut tensors, mut hash) = (BTreeMap::new(), Sha256::new());
        for path in files(folder)? {
            read_file(&path, &mut tensors, &mut hash)?;
        }
        Ok(Self { tensors, prefix: String::new(), sha256: hex(&hash.finalize()) })
    }

    /// Weights that were read from files of another form, whose SHA-256 is given.
    pub(super) fn of_tensors(tensors: BTreeMap<String, Weight>, sha256: String) -> Self {
        Self { tensors, prefix: String::new(), sha256 }
    }

    /// Whether there is a weight whose whole name is `name`.
    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The SHA-256 of the files that the weights came from, one after the other.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Looks names up under `prefix` if `landmark` is there; models with a head store their body so.
    pub fn with_prefix(mut self, prefix: &str, landmark: &str) -> Self {
        if self.tensors.contains_key(&format!("{prefix}{landmark}")) {
            self.prefix = prefix.to_owned();
        }
        self
    }

    /// The prefix of the body's names.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// The body's weight called `name`, which must have the given shape.
    pub fn take(&self, name: &str, shape: &[usize]) -> Result<&Weight> {
        self.take_whole(&format!("{}{name}", self.prefix), shape)
    }

    /// The weight whose whole name is `name`, which must have the given shape.
    pub fn take_whole(&self, name: &str, shape: &[usize]) -> Result<&Weight> {
        let weight = self.tensors.get(name).ok_or_else(|| {
            Error::model(format!("expected the weight `{name}`, but found none of that name"))
        })?;
        if weight.shape != shape {
            return Err(Error::model(format!(
                "expected the weight `{name}` of shape {shape:?}, but found {:?}",
                weight.shape
            )));
        }
        Ok(weight)
    }
}

fn read_file(path: &Path, tensors: &mut BTreeMap<String, Weight>, hash: &mut Sha256) -> Result<()> {
    let bytes = fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
    hash.update(&bytes);
    let damaged = |error| Error::model_because(format!("`{}` is no safetensors file", path.display()), error);
    for (name, view) in SafeTensors::deserialize(&bytes).map_err(damaged)?.iter() {
        if let Some(values) = to_fp32(&view) {
            tensors.insert(name.to_owned(), Weight { shape: view.shape().to_vec(), values });
        }
    }
    Ok(())
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let index = folder.join(INDEX);
    if !index.is_file() {
        return Ok(vec![folder.join(WHOLE)]);
    }
    let text = fs::read_to_string(&index).map_err(Error::io(format!("cannot read `{}`", index.display())))?;
    let parsed: Index = serde_json::from_str(&text).map_err(|error| {
        Error::model_because(format!("`{}` is no index of shards", index.display()), error)
    })?;
    let names: BTreeSet<String> = parsed.weight_map.into_values().collect();
    if let Some(name) = names.iter().find(|name| name.contains(['/', '\\']) || *name == "..") {
        return Err(Error::model(format!("expected shards beside their index, but found `{name}`")));
    }
    Ok(names.into_iter().map(|name| folder.join(name)).collect())
}

/// The values as fp32; nothing for integers, which are buffers that the graph makes itself.
fn to_fp32(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => Some(data.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()),
        Dtype::F16 => Some(
            data.as_chunks::<2>().0.iter().map(|bytes| half::f16::from_le_bytes(*bytes).to_f32()).collect(),
        ),
        Dtype::BF16 => Some(
            data.as_chunks::<2>().0.iter().map(|bytes| half::bf16::from_le_bytes(*bytes).to_f32()).collect(),
        ),
        _ => None,
    }
}
