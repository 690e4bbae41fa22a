//! Weights in a Hugging Face folder: `model.safetensors`, or else `pytorch_model.bin`, whole or in shards, in any float
//! type.

use std::{
    cell::RefCell,
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
};

use half::{bf16, f16};
use safetensors::{Dtype, SafeTensors, tensor::TensorView};
use sha2::{Digest, Sha256};

use super::{config::ConfigFile, io as files, pickle};
use kivu::{Error, Result, hexadecimal::hex, tensor::read_numbers};

const WHOLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
const CHECKPOINT: &str = "pytorch_model.bin";
const CHECKPOINT_INDEX: &str = "pytorch_model.bin.index.json";

/// Files with whole models, in order of preference.
pub const FILES: [&str; 2] = [WHOLE, CHECKPOINT];
/// Whole files and shard indexes in the order in which `transformers` looks for them; it reads the first one only.
pub const LAYOUTS: [&str; 4] = [WHOLE, INDEX, CHECKPOINT, CHECKPOINT_INDEX];

/// Name suffixes for tensors that are computed from a model's settings, not weights.
const BUFFERS: [&str; 3] = ["inv_freq", "position_ids", "token_type_ids"];

/// Name prefixes of modules that train a model inside of them.
const WRAPPERS: [&str; 7] = [
    "0.auto_model.",
    "0.model.",
    "_fsdp_wrapped_module.",
    "_orig_mod.",
    "auto_model.",
    "base_model.model.",
    "module.",
];

/// A model's weights by name, as fp32.
#[derive(Debug)]
pub struct Weights {
    /// All weights by their whole names.
    pub tensors: BTreeMap<String, Weight>,
    /// Integer lists by name.
    pub integers: BTreeMap<String, Vec<i64>>,
    /// Types of all tensors that are neither weights nor integer lists.
    others: BTreeMap<String, String>,
    /// Name prefix for the body.
    pub prefix: String,
    /// SHA-256 over all weight files, in order, and over those that were added.
    pub sha256: String,
    /// Full names of the weights in a graph.
    taken: RefCell<BTreeSet<String>>,
}

/// One weight tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Weight {
    /// Length per axis.
    pub shape: Vec<usize>,
    /// The values, row-major.
    pub values: Vec<f32>,
}

impl Weights {
    /// Whether `folder` has weights that [`Weights::open`] can read.
    pub fn are_in(folder: &Path) -> bool {
        LAYOUTS.iter().any(|file| folder.join(file).is_file())
    }

    /// Reads all weights in `folder`.
    pub fn open(folder: &Path) -> Result<Self> {
        let names = names(folder, |file| folder.join(file).is_file())?;
        // For the error, which names the file.
        let names = names.unwrap_or_else(|| vec![WHOLE.to_owned()]);
        let weights = Self::of_files(
            &names
                .iter()
                .map(|name| folder.join(name))
                .collect::<Vec<_>>(),
        )?;
        let is_wrapped = |name: &&String| WRAPPERS.iter().any(|wrapper| name.starts_with(wrapper));
        let wrapped = weights.names().find(is_wrapped).cloned();
        match wrapped {
            None => Ok(weights),
            Some(name) => Err(Error::model(format!(
                "the weight `{name}` in `{}` has the name that a training wrapper gave it",
                folder.display()
            ))
            .with_hint(
                "save the model inside of the wrapper with `save_pretrained`: \
                 `model[0].auto_model` of sentence-transformers, `model.module` of `DataParallel`, \
                 or `model._orig_mod` of `torch.compile`",
            )),
        }
    }

    /// Reads safetensors files and PyTorch checkpoints.
    pub fn of_files(paths: &[PathBuf]) -> Result<Self> {
        let (mut tensors, mut integers, mut hash) =
            (BTreeMap::new(), BTreeMap::new(), Sha256::new());
        let mut others = BTreeMap::new();
        for path in paths {
            let bytes = files::read_weights(path)?;
            hash.update(&bytes);
            if path.extension().is_some_and(|extension| extension == "bin") {
                let failed = |error| {
                    let (name, hint) = (
                        path.display(),
                        "convert it to safetensors with `save_pretrained`",
                    );
                    Error::model_because(format!("cannot read `{name}`"), error).with_hint(hint)
                };
                let values = pickle::read(&bytes).map_err(failed)?.into_iter();
                tensors
                    .extend(values.map(|(name, (shape, values))| (name, Weight { shape, values })));
                continue;
            }
            let file = SafeTensors::deserialize(&bytes).map_err(|error| {
                Error::model_because(files::is_not(path, "a safetensors file", &bytes), error)
            })?;
            for (name, view) in file.iter() {
                if let Some(values) = to_fp32(&view) {
                    tensors.insert(
                        name.to_owned(),
                        Weight {
                            shape: view.shape().to_vec(),
                            values,
                        },
                    );
                } else if let Some(values) = to_integers(&view) {
                    integers.insert(name.to_owned(), values);
                } else {
                    others.insert(name.to_owned(), format!("{:?}", view.dtype()));
                }
            }
        }
        let tensors = tensors
            .into_iter()
            .map(|(name, weight)| (current_name(name), weight))
            .collect();
        Ok(Self {
            integers,
            others,
            ..Self::of_tensors(tensors, hex(&hash.finalize()))
        })
    }

    /// Creates weights from files in another format, with the files' SHA-256.
    pub fn of_tensors(tensors: BTreeMap<String, Weight>, sha256: String) -> Self {
        Self {
            tensors,
            integers: BTreeMap::new(),
            others: BTreeMap::new(),
            prefix: String::new(),
            sha256,
            taken: RefCell::default(),
        }
    }

    /// Adds the SHA-256 of other weights that the build reads, such as an adapter's.
    pub fn add_source(&mut self, sha256: &str) {
        self.sha256 = combined_sha256(&self.sha256, [sha256]);
    }

    /// Whether there is a weight with the full name `name`.
    pub fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Full names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.tensors.keys()
    }

    /// Full names of the weights that no graph contains so far.
    pub fn untaken(&self) -> impl Iterator<Item = &String> {
        self.names()
            .filter(|name| !self.taken.borrow().contains(*name))
    }

    /// Takes the tensors whose names begin with `prefix` out of these weights.
    pub fn split_off(&mut self, prefix: &str) -> Self {
        Self {
            tensors: split(&mut self.tensors, prefix),
            integers: split(&mut self.integers, prefix),
            others: split(&mut self.others, prefix),
            prefix: String::new(),
            sha256: self.sha256.clone(),
            taken: RefCell::default(),
        }
    }

    /// Looks names up under `prefix` if `landmark` exists there. Models with a head store their body under a prefix.
    pub fn with_prefix(mut self, prefix: &str, landmark: &str) -> Self {
        if self.has(&format!("{prefix}{landmark}")) {
            self.prefix = prefix.to_owned();
        }
        self
    }

    /// Takes the body's weight called `name`, which must have the given shape.
    pub fn take(&self, name: &str, shape: &[usize]) -> Result<&Weight> {
        self.take_whole(&format!("{}{name}", self.prefix), shape)
    }

    /// Takes the weight with the full name `name`, which must have the given shape.
    pub fn take_whole(&self, name: &str, shape: &[usize]) -> Result<&Weight> {
        let weight = self.tensors.get(name).ok_or_else(|| match self.others.get(name) {
            None => Error::model(format!("expected the weight `{name}`, but found no such weight")),
            Some(kind) => Error::model(format!(
                "expected the weight `{name}` as 16-, 32- or 64-bit floats, but found the type {kind}"
            )),
        })?;
        if weight.shape != shape {
            return Err(Error::model(format!(
                "expected the weight `{name}` of shape {shape:?}, but found {:?}",
                weight.shape
            )));
        }
        if !self.taken.borrow().contains(name) {
            check_finite(name, weight)?;
            self.taken.borrow_mut().insert(name.to_owned());
        }
        Ok(weight)
    }

    /// Refuses tensors that no graph contains, unless `is_unused` is true for their names without body prefix: they
    /// belong to parts that the family does not have.
    pub fn check_all(&self, is_unused: impl Fn(&str) -> bool) -> Result<()> {
        let taken = self.taken.borrow();
        let names = self
            .tensors
            .keys()
            .chain(self.integers.keys())
            .chain(self.others.keys());
        let is_unknown = |name: &&String| {
            let bare = name.strip_prefix(&self.prefix).unwrap_or(name);
            let is_buffer = BUFFERS
                .iter()
                .any(|buffer| bare.rsplit('.').next() == Some(buffer));
            !taken.contains(*name) && !is_buffer && !is_unused(bare)
        };
        match names.clone().find(is_unknown) {
            None => Ok(()),
            Some(name) => Err(Error::model(format!(
                "expected a model with only the weights of its family, but found `{name}`, whose \
                 effect on results is not known"
            ))
            .with_hint("remove it from the file if the model does not use it")),
        }
    }

    /// The first of `names` that these weights have: full names of one matrix that layers share, of which files store one
    /// or more. Refuses copies that differ: `transformers` versions disagree on which one counts.
    pub fn shared<'a>(&self, names: &'a [impl AsRef<str>]) -> Result<Option<&'a str>> {
        let names = names.iter().map(AsRef::as_ref);
        let mut found = names.filter(|name| self.has(name));
        let Some(first) = found.next() else {
            return Ok(None);
        };
        match found.find(|name| self.tensors[*name] != self.tensors[first]) {
            None => Ok(Some(first)),
            Some(other) => Err(Error::model(format!(
                "`{other}` and `{first}` are one matrix in this model (`tie_word_embeddings`), but \
                 the file has two different ones"
            ))
            .with_hint("save the model again with `save_pretrained`")),
        }
    }

    /// Gives a matrix that layers share the first of its full `names`; see [`Self::shared`].
    pub fn unify(&mut self, names: &[impl AsRef<str>]) -> Result<()> {
        let Some(found) = self
            .shared(names)?
            .and_then(|found| self.tensors.remove(found))
        else {
            return Ok(());
        };
        for name in names {
            self.tensors.remove(name.as_ref());
        }
        self.tensors.insert(names[0].as_ref().to_owned(), found);
        Ok(())
    }

    /// Finds a weight by its name in another file. Either name may have or lack `prefix`.
    pub fn find_mut(&mut self, name: &str, prefix: &str) -> Option<&mut Weight> {
        let bare = name.strip_prefix(prefix).unwrap_or(name);
        let names = [name, bare, &format!("{prefix}{bare}")];
        let found = names.into_iter().find(|name| self.has(name))?;
        self.tensors.get_mut(found)
    }
}

/// The SHA-256 over a model's weights together with those of others that its build reads; without others, the model's own.
pub fn combined_sha256<'a>(own: &str, others: impl IntoIterator<Item = &'a str>) -> String {
    others.into_iter().fold(own.to_owned(), |all, other| {
        hex(&Sha256::digest(format!("{all}\n{other}")))
    })
}

fn split<T>(named: &mut BTreeMap<String, T>, prefix: &str) -> BTreeMap<String, T> {
    named
        .extract_if(.., |name, _| name.starts_with(prefix))
        .collect()
}

/// Refuses a weight with non-finite values, with which no text can be computed.
pub fn check_finite(name: &str, weight: &Weight) -> Result<()> {
    match weight.values.iter().position(|value| !value.is_finite()) {
        None => Ok(()),
        Some(place) => Err(Error::model(format!(
            "expected finite numbers in the weight `{name}`, but found {} at {place}",
            weight.values[place]
        ))
        .with_hint("the training or the conversion of the model failed")),
    }
}

/// The current `transformers` name for a weight converted from TensorFlow.
fn current_name(name: String) -> String {
    match (
        name.strip_suffix("LayerNorm.gamma"),
        name.strip_suffix("LayerNorm.beta"),
    ) {
        (Some(module), _) => format!("{module}LayerNorm.weight"),
        (_, Some(module)) => format!("{module}LayerNorm.bias"),
        _ => name,
    }
}

/// Weight files for a model, among the files for which `has` is true; `None` if it has no weights. `folder` has the
/// index, if there is one.
pub fn names(folder: &Path, has: impl Fn(&str) -> bool) -> Result<Option<Vec<String>>> {
    match LAYOUTS.into_iter().find(|file| has(file)) {
        Some(index) if !FILES.contains(&index) => shards(folder, index).map(Some),
        whole => Ok(whole.map(|whole| vec![whole.to_owned()])),
    }
}

/// File names in a folder's index.
fn shards(folder: &Path, index: &'static str) -> Result<Vec<String>> {
    let index = ConfigFile::new(index, files::read_json(&folder.join(index))?);
    let files: BTreeMap<String, String> = index.require("weight_map")?;
    let names: BTreeSet<String> = files.into_values().collect();
    if let Some(name) = names
        .iter()
        .find(|name| name.contains(['/', '\\']) || *name == "..")
    {
        return Err(Error::model(format!(
            "expected shards in the folder of their index, but found `{name}`"
        )));
    }
    Ok(names.into_iter().collect())
}

/// Converts values to fp32; `None` for integers, which are buffers that graphs compute themselves.
fn to_fp32(view: &TensorView<'_>) -> Option<Vec<f32>> {
    let data = view.data();
    match view.dtype() {
        Dtype::F32 => read_numbers(data, f32::from_le_bytes),
        Dtype::F64 => read_numbers(data, |bytes| f64::from_le_bytes(bytes) as f32),
        Dtype::F16 => read_numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
        Dtype::BF16 => read_numbers(data, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        _ => None,
    }
}

/// Reads an integer list; `None` for other types and shapes.
fn to_integers(view: &TensorView<'_>) -> Option<Vec<i64>> {
    let data = view.data();
    match view.dtype() {
        _ if view.shape().len() != 1 => None,
        Dtype::I64 => read_numbers(data, i64::from_le_bytes),
        Dtype::I32 => read_numbers(data, |bytes| i32::from_le_bytes(bytes).into()),
        Dtype::U32 => read_numbers(data, |bytes| u32::from_le_bytes(bytes).into()),
        Dtype::U16 => read_numbers(data, |bytes| u16::from_le_bytes(bytes).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_may_be_larger_than_settings_files() {
        let folder = tempfile::tempdir().unwrap();
        let file = std::fs::File::create(folder.path().join(WHOLE)).unwrap();
        file.set_len(kivu::regular_file::MAX_TEXT_BYTES + 1)
            .unwrap();
        let refusal = Weights::open(folder.path()).unwrap_err().to_string();
        assert!(refusal.ends_with("is not a safetensors file"), "{refusal}");
    }

    #[test]
    fn files_are_read_in_the_order_of_transformers() {
        let folder = tempfile::tempdir().unwrap();
        for (index, shard) in [(INDEX, "a.safetensors"), (CHECKPOINT_INDEX, "a.bin")] {
            let index_text = format!(r#"{{"weight_map": {{"x": "{shard}", "y": "{shard}"}}}}"#);
            std::fs::write(folder.path().join(index), index_text).unwrap();
        }
        // Shards that no index lists are not read.
        let mut files = vec!["b.safetensors", "b.bin", "model.fp16.safetensors"];
        let read = |files: &[&str]| names(folder.path(), |file| files.contains(&file)).unwrap();
        assert_eq!(read(&files), None);
        for (added, expected) in [
            (CHECKPOINT_INDEX, "a.bin"),
            (CHECKPOINT, CHECKPOINT),
            (INDEX, "a.safetensors"),
            (WHOLE, WHOLE),
        ] {
            files.push(added);
            assert_eq!(read(&files), Some(vec![expected.to_owned()]), "{added}");
        }
    }

    #[test]
    fn weights_with_the_names_of_a_wrapper_are_refused() {
        for name in [
            "module.bert.a",
            "_orig_mod.a",
            "0.auto_model.a",
            "module._orig_mod.a",
        ] {
            let folder = tempfile::tempdir().unwrap();
            let view = TensorView::new(Dtype::F32, vec![1], &[0; 4]).unwrap();
            let bytes = safetensors::serialize([(name, view)], None).unwrap();
            std::fs::write(folder.path().join(WHOLE), bytes).unwrap();
            let refusal = Weights::open(folder.path()).unwrap_err().to_string();
            assert!(
                refusal.starts_with(&format!("the weight `{name}` in ")),
                "{refusal}"
            );
            assert!(refusal.contains("`save_pretrained`"), "{refusal}");
        }
    }

    #[test]
    fn weights_that_are_not_finite_are_refused_by_name() {
        let take = |value: f32| {
            let weight = Weight {
                shape: vec![2],
                values: vec![1.0, value],
            };
            let weights =
                Weights::of_tensors([("norm.weight".to_owned(), weight)].into(), String::new());
            weights.take("norm.weight", &[2]).cloned()
        };
        assert!(take(0.5).is_ok());
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let refusal = take(value).unwrap_err().to_string();
            let expected = format!(
                "expected finite numbers in the weight `norm.weight`, but found {value} at 1"
            );
            assert!(refusal.starts_with(&expected), "{refusal}");
        }
    }
}
