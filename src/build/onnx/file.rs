//! An ONNX graph on disk: the graph in one file, its large weights in another, which the runtime maps.

use std::{
    collections::HashMap,
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use bytes::Bytes;
use prost::Message;

use crate::error::{Error, Result};
use crate::onnx_proto::{EXTERNAL, GraphProto, ModelProto, StringStringEntryProto, TensorProto};

/// The name of the file that holds the large weights.
pub const WEIGHTS: &str = "weights.bin";

/// Weights from this size on go into the file of their own.
///
/// Mapped weights are neither read nor copied when a session is made: all-MiniLM-L6-v2
/// in int8 loads in 14 ms so, and in 44 ms with its weights inside the graph.
const EXTERNAL_BYTES: usize = 1024;

/// Offsets of weights are multiples of this, as SIMD loads like it.
const ALIGNMENT: usize = 64;

/// Writes `model` as `folder/name` and its large weights as `folder/weights.bin`.
pub fn write(model: ModelProto, folder: &Path, name: &str) -> Result<()> {
    write_all([(name, model)], folder)
}

/// Writes models as files of the given names in `folder`, and the large weights of all of them as
/// `folder/weights.bin`, where bytes that occur more than once stand once.
pub fn write_all<'a>(models: impl IntoIterator<Item = (&'a str, ModelProto)>, folder: &Path) -> Result<()> {
    let mut weights = WeightsFile::create(&folder.join(WEIGHTS))?;
    for (name, mut model) in models {
        for tensor in model.graph.iter_mut().flat_map(|graph| &mut graph.initializer) {
            if tensor.raw_data.len() >= EXTERNAL_BYTES {
                weights.take_out(tensor)?;
            }
        }
        let graph = folder.join(name);
        fs::write(&graph, model.encode_to_vec())
            .map_err(Error::io(format!("cannot write `{}`", graph.display())))?;
    }
    weights.finish()
}

/// The file of large weights while it is written.
struct WeightsFile {
    path: PathBuf,
    file: std::io::BufWriter<fs::File>,
    end: usize,
    /// Where bytes of this hash stand.
    offsets: HashMap<blake3::Hash, usize>,
}

impl WeightsFile {
    fn create(path: &Path) -> Result<Self> {
        let file = fs::File::create(path).map_err(Error::io(format!("cannot write `{}`", path.display())))?;
        let file = std::io::BufWriter::new(file);
        Ok(Self { path: path.to_owned(), file, end: 0, offsets: HashMap::new() })
    }

    /// Moves the data of `tensor` into the file.
    fn take_out(&mut self, tensor: &mut TensorProto) -> Result<()> {
        let data = std::mem::take(&mut tensor.raw_data);
        let hash = blake3::hash(&data);
        let offset = match self.offsets.get(&hash) {
            Some(offset) => *offset,
            None => {
                self.append(&data).map_err(Error::io(format!("cannot write `{}`", self.path.display())))?
            }
        };
        self.offsets.insert(hash, offset);
        tensor.data_location = EXTERNAL;
        tensor.external_data = [
            ("location", WEIGHTS.to_owned()),
            ("offset", offset.to_string()),
            ("length", data.len().to_string()),
        ]
        .map(|(key, value)| StringStringEntryProto { key: key.into(), value })
        .into();
        Ok(())
    }

    /// Writes `data` at the next aligned offset, and tells that.
    fn append(&mut self, data: &[u8]) -> std::io::Result<usize> {
        let padding = offset_to_alignment(self.end);
        self.file.write_all(&[0; ALIGNMENT][..padding])?;
        self.file.write_all(data)?;
        let offset = self.end + padding;
        self.end = offset + data.len();
        Ok(offset)
    }

    fn finish(mut self) -> Result<()> {
        self.file.flush().map_err(Error::io(format!("cannot write `{}`", self.path.display())))
    }
}

fn offset_to_alignment(offset: usize) -> usize {
    (ALIGNMENT - offset % ALIGNMENT) % ALIGNMENT
}

/// Reads the ONNX file at `path` with all its weights, those in other files of its folder included.
pub fn read(path: &Path) -> Result<ModelProto> {
    let bytes = fs::read(path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
    let mut model = ModelProto::decode(Bytes::from(bytes))
        .map_err(|error| Error::model_because(format!("`{}` is no ONNX file", path.display()), error))?;
    let folder = path.parent().unwrap_or(Path::new("."));
    let graph: &mut GraphProto = model
        .graph
        .as_mut()
        .ok_or_else(|| Error::model(format!("expected a graph in `{}`, but found none", path.display())))?;
    let mut files: Vec<(String, Bytes)> = Vec::new();
    for tensor in graph.initializer.iter_mut().filter(|tensor| tensor.data_location == EXTERNAL) {
        take_in(tensor, folder, &mut files)?;
    }
    Ok(model)
}

/// Brings the data of `tensor` from its file into the message.
fn take_in(tensor: &mut TensorProto, folder: &Path, files: &mut Vec<(String, Bytes)>) -> Result<()> {
    let entry = |key: &str| {
        tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| entry.value.as_str())
    };
    let location = entry("location").unwrap_or_default().to_owned();
    if location.is_empty() || location.contains(['/', '\\']) || location == ".." {
        return Err(Error::model(format!(
            "expected the weights of `{}` in a file beside the graph, but found `{location}`",
            tensor.name
        )));
    }
    let bytes = match files.iter().find(|(name, _)| *name == location) {
        Some((_, bytes)) => bytes.clone(),
        None => {
            let path = folder.join(&location);
            let bytes = fs::read(&path).map_err(Error::io(format!("cannot read `{}`", path.display())))?;
            files.push((location.clone(), bytes.into()));
            files[files.len() - 1].1.clone()
        }
    };
    let number = |key, otherwise| entry(key).map_or(Some(otherwise), |value| value.parse::<usize>().ok());
    let part = number("offset", 0).and_then(|offset| {
        let end = offset.checked_add(number("length", bytes.len().checked_sub(offset)?)?)?;
        (end <= bytes.len()).then(|| bytes.slice(offset..end))
    });
    tensor.raw_data = part.ok_or_else(|| {
        Error::model(format!(
            "expected the weights of `{}` inside `{location}`, but found only {} bytes there",
            tensor.name,
            bytes.len()
        ))
    })?;
    tensor.data_location = 0;
    tensor.external_data.clear();
    Ok(())
}
