//! ONNX files: one per graph, with large weights in a shared file that the runtime maps.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    io::{BufWriter, Write},
    path::Path,
};

use bytes::Bytes;
use prost::Message;

use crate::files::{io as files, weights::combined_sha256};
use kivu::{
    Error, Result,
    onnx_proto::{EXTERNAL, ModelProto, StringStringEntryProto, TensorProto},
    repository::bundle::sha256_of,
};

/// File name for large weights.
pub const WEIGHTS: &str = "weights.bin";

/// Minimum size in bytes for storing weights in [`WEIGHTS`].
///
/// Mapped weights are neither read nor copied when a session is created: all-MiniLM-L6-v2 in int8 loads in 14 ms, and
/// in 44 ms with its weights inside the graph.
const EXTERNAL_BYTES: usize = 1024;

/// Weight alignment in bytes, for aligned SIMD loads.
const ALIGNMENT: usize = 64;

/// Writes `model` as `folder/name` and its large weights as `folder/weights.bin`.
pub fn write(model: ModelProto, folder: &Path, name: &str) -> Result<()> {
    write_all([(name, model)], folder)
}

/// Writes models as files with the given names in `folder`, and their large weights as `folder/weights.bin`. Equal
/// weights are stored once.
pub fn write_all<'a>(
    models: impl IntoIterator<Item = (&'a str, ModelProto)>,
    folder: &Path,
) -> Result<()> {
    let path = folder.join(WEIGHTS);
    let unwritable = || Error::cannot("write", path.display());
    let file = BufWriter::new(fs::File::create(&path).map_err(unwritable())?);
    let mut weights = WeightsFile {
        file,
        end: 0,
        offsets: HashMap::new(),
    };
    for (name, mut model) in models {
        for tensor in model
            .graph
            .iter_mut()
            .flat_map(|graph| &mut graph.initializer)
        {
            if tensor.raw_data.len() >= EXTERNAL_BYTES {
                weights.move_out(tensor).map_err(unwritable())?;
            }
        }
        files::write(&folder.join(name), &model.encode_to_vec())?;
    }
    weights.file.flush().map_err(unwritable())
}

/// The weights file while it is written.
struct WeightsFile {
    file: BufWriter<fs::File>,
    end: usize,
    /// Offsets of stored weights, by hash.
    offsets: HashMap<blake3::Hash, usize>,
}

impl WeightsFile {
    /// Moves `tensor`'s data into the file.
    fn move_out(&mut self, tensor: &mut TensorProto) -> std::io::Result<()> {
        let data = std::mem::take(&mut tensor.raw_data);
        let hash = blake3::hash(&data);
        let offset = match self.offsets.get(&hash) {
            Some(offset) => *offset,
            None => self.append(&data)?,
        };
        self.offsets.insert(hash, offset);
        tensor.data_location = EXTERNAL;
        tensor.external_data = [
            ("location", WEIGHTS.to_owned()),
            ("offset", offset.to_string()),
            ("length", data.len().to_string()),
        ]
        .map(|(key, value)| StringStringEntryProto {
            key: key.into(),
            value,
        })
        .into();
        Ok(())
    }

    /// Writes `data` at the next aligned offset, and returns the offset.
    fn append(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let offset = self.end.next_multiple_of(ALIGNMENT);
        self.file.write_all(&[0; ALIGNMENT][..offset - self.end])?;
        self.file.write_all(data)?;
        self.end = offset + data.len();
        Ok(offset)
    }
}

/// Reads the ONNX file at `path` with all its weights, including weights in other files in its folder.
pub fn read(path: &Path) -> Result<ModelProto> {
    let mut model = decode(path)?;
    let folder = folder(path);
    let Some(graph) = model.graph.as_mut() else {
        return Err(Error::model(format!(
            "expected a graph in `{}`, but found none",
            path.display()
        )));
    };
    let mut loaded = HashMap::new();
    for tensor in graph
        .initializer
        .iter_mut()
        .filter(|tensor| tensor.data_location == EXTERNAL)
    {
        move_in(tensor, folder, &mut loaded)?;
    }
    Ok(model)
}

/// The SHA-256 of the ONNX file at `path`, with those of the files that have its weights.
pub fn sha256(path: &Path) -> Result<String> {
    let graph = decode(path)?.graph.unwrap_or_default();
    let tensors = graph.initializer.iter();
    let files: BTreeSet<&str> = tensors
        .filter(|tensor| tensor.data_location == EXTERNAL)
        .map(location)
        .collect::<Result<_>>()?;
    let hashes: Vec<String> = files
        .into_iter()
        .map(|file| sha256_of(&folder(path).join(file)))
        .collect::<Result<_>>()?;
    let hashes = hashes.iter().map(String::as_str);
    Ok(combined_sha256(&sha256_of(path)?, hashes))
}

fn decode(path: &Path) -> Result<ModelProto> {
    let bytes = Bytes::from(files::read_weights(path)?);
    ModelProto::decode(bytes.clone())
        .map_err(|error| Error::model_because(files::is_not(path, "an ONNX file", &bytes), error))
}

/// The folder with an ONNX file's weights.
fn folder(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("."))
}

/// The file with `tensor`'s data, in the graph's folder.
fn location(tensor: &TensorProto) -> Result<&str> {
    let location = tensor.external("location").unwrap_or_default();
    if location.is_empty() || location.contains(['/', '\\']) || location == ".." {
        return Err(Error::model(format!(
            "expected the weights of `{}` in the folder of the graph, but found `{location}`",
            tensor.name
        )));
    }
    Ok(location)
}

/// Moves `tensor`'s data from its file into the message. `loaded` caches files by name.
fn move_in(
    tensor: &mut TensorProto,
    folder: &Path,
    loaded: &mut HashMap<String, Bytes>,
) -> Result<()> {
    let location = location(tensor)?;
    if !loaded.contains_key(location) {
        loaded.insert(
            location.to_owned(),
            files::read_weights(&folder.join(location))?.into(),
        );
    }
    let bytes = &loaded[location];
    let number = |key, otherwise| match tensor.external(key) {
        Some(value) => value.parse::<usize>().ok(),
        None => Some(otherwise),
    };
    let part = number("offset", 0).and_then(|offset| {
        let end = offset.checked_add(number("length", bytes.len().checked_sub(offset)?)?)?;
        (end <= bytes.len()).then(|| bytes.slice(offset..end))
    });
    tensor.raw_data = part.ok_or_else(|| {
        Error::model(format!(
            "expected the weights of `{}` within `{location}`, but found only {} bytes there",
            tensor.name,
            bytes.len()
        ))
    })?;
    tensor.data_location = 0;
    tensor.external_data.clear();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_graph_depends_on_its_weights_in_other_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("model.onnx");
        let tensor = TensorProto {
            raw_data: vec![7; EXTERNAL_BYTES].into(),
            ..TensorProto::default()
        };
        let mut model = ModelProto::default();
        model.graph.get_or_insert_default().initializer = vec![tensor];
        files::write(&path, &model.encode_to_vec()).unwrap();
        assert_eq!(sha256(&path).unwrap(), sha256_of(&path).unwrap());
        write(model, folder.path(), "model.onnx").unwrap();
        let (graph, before) = (sha256_of(&path).unwrap(), sha256(&path).unwrap());
        files::write(&folder.path().join(WEIGHTS), &[8; EXTERNAL_BYTES]).unwrap();
        assert_eq!(sha256_of(&path).unwrap(), graph);
        assert_ne!(sha256(&path).unwrap(), before);
        let mut elsewhere = decode(&path).unwrap();
        let tensor = &mut elsewhere.graph.as_mut().unwrap().initializer[0];
        let entry = tensor
            .external_data
            .iter_mut()
            .find(|entry| entry.key == "location");
        entry.unwrap().value = "../weights".into();
        files::write(&path, &elsewhere.encode_to_vec()).unwrap();
        let error = sha256(&path).unwrap_err().to_string();
        assert!(error.ends_with("but found `../weights`"), "{error}");
    }
}
