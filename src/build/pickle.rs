//! `pytorch_model.bin`: a pickle, which describes tensors, and their storages; in a ZIP archive, or before PyTorch 1.6 one
//! after the other.
//!
//! A pickle is a program for a stack machine that may call any function of Python. This reader executes none: it has
//! the instructions that build dictionaries, tuples and tensors, and refuses everything else by name.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    io::{Cursor, Read},
    rc::Rc,
};

use zip::{CompressionMethod, ZipArchive};

use crate::error::{Error, Result};

/// The limit of a pickle, a hundred times that of large models.
const MAX_PICKLE_BYTES: u64 = 64 * 1024 * 1024;
/// The limit of values on the stack, in the memo and in containers.
const MAX_VALUES: usize = 1 << 18;
/// The limit of tuples in tuples.
const MAX_DEPTH: u8 = 8;
/// Tensors that share storages may have this multiple of their values: tied weights have up to four names.
const MAX_SHARING: usize = 4;

/// The shape of a tensor and its values, row-major.
type Values = (Vec<usize>, Vec<f32>);

/// Values by the name of their tensor.
type Weights = BTreeMap<String, Values>;

/// Tensors with their names.
type Tensors = Vec<(Rc<str>, Tensor)>;

/// The beginning of a checkpoint of PyTorch before 1.6: pickles of a magic number and of a version.
const LEGACY: &[u8] = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

/// Reads the tensors of a checkpoint; those of integers are left out.
pub(super) fn read(file: &[u8]) -> Result<Weights> {
    match file.strip_prefix(LEGACY) {
        Some(rest) => read_legacy(rest),
        None => read_archive(file),
    }
}

/// A ZIP archive with the pickle and a file per storage.
fn read_archive(file: &[u8]) -> Result<Weights> {
    let damaged = |error| Error::model_because("expected a checkpoint of PyTorch", error);
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged)?;
    let pickle = archive.file_names().filter_map(Result::ok).find(|name| name.ends_with("/data.pkl"));
    let pickle = pickle.map(Cow::into_owned);
    let pickle = pickle.ok_or_else(|| Error::model("expected `data.pkl` in the archive, but found none"))?;
    let folder = pickle.trim_end_matches("data.pkl");
    let (tensors, _) = tensors(&entry(&mut archive, &pickle, MAX_PICKLE_BYTES)?)?;
    let order = format!("{folder}byteorder");
    let has_order = archive.file_names().any(|name| name.is_ok_and(|name| name == order));
    if has_order && entry(&mut archive, &order, 16)? != b"little" {
        return Err(big_endian());
    }
    weights(tensors, |key, size| entry(&mut archive, &format!("{folder}data/{key}"), size).map(Cow::Owned))
}

/// Pickles of the system, of the tensors and of the storages' keys, and then the storages, each after its length.
fn read_legacy(file: &[u8]) -> Result<Weights> {
    let (system, file) = Machine::run(file)?;
    if !system
        .items()?
        .any(|item| matches!(item, [Value::Text(name), Value::Bool(true)] if **name == *"little_endian"))
    {
        return Err(big_endian());
    }
    let (tensors, file) = tensors(file)?;
    let (keys, mut file) = Machine::run(file)?;
    let kinds: HashMap<&str, &Storage> =
        tensors.iter().map(|(_, tensor)| (&*tensor.storage.key, &tensor.storage)).collect();
    let mut storages = HashMap::new();
    for key in keys.values()? {
        let Value::Text(key) = key else { return Err(underflow()) };
        // Without a tensor, the length of its values is unknown.
        let storage =
            kinds.get(&**key).ok_or_else(|| Error::model(format!("no tensor has the storage `{key}`")))?;
        let (length, rest) = file.split_first_chunk().ok_or_else(truncated)?;
        let bytes = usize::try_from(i64::from_le_bytes(*length)).ok().filter(|length| *length == storage.len);
        let bytes = bytes.and_then(|length| rest.split_at_checked(length.checked_mul(storage.kind.bytes())?));
        let (bytes, rest) = bytes.ok_or_else(truncated)?;
        storages.insert(key.to_string(), bytes);
        file = rest;
    }
    weights(tensors, |key, _| storages.get(key).copied().map(Cow::Borrowed).ok_or_else(truncated))
}

/// The values of all tensors, from storages whose bytes `read` returns, given their key and size.
fn weights<'a>(
    tensors: Tensors,
    mut read: impl FnMut(&str, u64) -> Result<Cow<'a, [u8]>>,
) -> Result<Weights> {
    let (mut storages, mut values) = (BTreeMap::<_, Vec<_>>::new(), 0_usize);
    for (name, tensor) in tensors {
        if !tensor.storage.kind.is_integer() {
            values = values.saturating_add(tensor.len()?);
            storages.entry(Rc::clone(&tensor.storage.key)).or_default().push((name, tensor));
        }
    }
    let lengths = storages.values().map(|tensors| tensors[0].1.storage.len);
    let stored = lengths.fold(0, usize::saturating_add);
    if values > stored.saturating_mul(MAX_SHARING) {
        return Err(Error::model(format!(
            "expected tensors with at most {MAX_SHARING} times the values of their storages, but found {values} of \
             {stored}"
        )));
    }
    let mut weights = BTreeMap::new();
    for (key, tensors) in storages {
        let storage = &tensors[0].1.storage;
        let size = storage.kind.bytes().checked_mul(storage.len).ok_or_else(truncated)?;
        let bytes = read(&key, size as u64)?;
        if bytes.len() != size {
            let found = bytes.len();
            return Err(Error::model(format!(
                "expected {size} bytes in the storage `{key}`, but found {found}"
            )));
        }
        for (name, tensor) in &tensors {
            if tensor.storage != *storage {
                return Err(Error::model(format!(
                    "expected one description of the storage `{key}`, but found two"
                )));
            }
            weights.insert(name.to_string(), tensor.read(&bytes));
        }
    }
    Ok(weights)
}

/// The contents of a file in the archive, which must not be compressed: nothing expands.
fn entry(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, max: u64) -> Result<Vec<u8>> {
    let damaged = |error| Error::model_because(format!("cannot read `{name}` in the archive"), error);
    let file = archive.by_name(name).map_err(damaged)?;
    if file.compression() != CompressionMethod::Stored {
        return Err(Error::model(format!("expected `{name}` in the archive not to be compressed")));
    }
    let size = file.size();
    if size > max {
        return Err(Error::model(format!(
            "expected at most {max} bytes in `{name}` of the archive, but found {size}"
        )));
    }
    // The archive may state any size: memory is reserved as bytes are read.
    let mut bytes = Vec::new();
    file.take(max)
        .read_to_end(&mut bytes)
        .map_err(Error::io(format!("cannot read `{name}` in the archive")))?;
    Ok(bytes)
}

fn big_endian() -> Error {
    Error::model("expected values in little-endian order, but found another order")
}

/// The tensors of a pickled dictionary by their names, and the bytes after the pickle.
pub(super) fn tensors(pickle: &[u8]) -> Result<(Tensors, &[u8])> {
    let (object, rest) = Machine::run(pickle)?;
    let items = object.items()?.map(|item| match item {
        [Value::Text(name), Value::Tensor(tensor)] => Ok((Rc::clone(name), Tensor::clone(tensor))),
        [Value::Text(name), _] => {
            Err(Error::model(format!("expected a tensor for `{name}`, but found another object")))
        }
        _ => Err(Error::model("expected the names of tensors, but found another object")),
    });
    Ok((items.collect::<Result<_>>()?, rest))
}

/// The type of a storage's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    F16,
    BF16,
    F32,
    F64,
    /// Buffers that graphs compute themselves; the width in bytes.
    Integer(u8),
}

impl Kind {
    fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::BF16 => 2,
            Self::F32 => 4,
            Self::F64 => 8,
            Self::Integer(bytes) => bytes.into(),
        }
    }

    fn is_integer(self) -> bool {
        matches!(self, Self::Integer(_))
    }

    fn read(self, bytes: &[u8]) -> f32 {
        match (self, bytes) {
            (Self::F16, &[a, b]) => half::f16::from_le_bytes([a, b]).to_f32(),
            (Self::BF16, &[a, b]) => half::bf16::from_le_bytes([a, b]).to_f32(),
            (Self::F32, &[a, b, c, d]) => f32::from_le_bytes([a, b, c, d]),
            (Self::F64, &[a, b, c, d, e, f, g, h]) => f64::from_le_bytes([a, b, c, d, e, f, g, h]) as f32,
            _ => 0.0,
        }
    }
}

/// The values of one or more tensors.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Storage {
    kind: Kind,
    /// The name of its file.
    key: Rc<str>,
    /// The number of values.
    len: usize,
}

/// A tensor whose values are in a storage.
#[derive(Clone, Debug)]
pub(super) struct Tensor {
    storage: Storage,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

impl Tensor {
    /// The number of values, each of which is in the storage.
    fn len(&self) -> Result<usize> {
        let invalid = || {
            Error::model(format!(
                "expected a tensor in its storage, but found the shape {:?} with the strides {:?} from {} of {}",
                self.shape, self.strides, self.offset, self.storage.len
            ))
        };
        let len =
            self.shape.iter().try_fold(1_usize, |len, axis| len.checked_mul(*axis)).ok_or_else(invalid)?;
        if len == 0 {
            return Ok(0);
        }
        let last =
            self.shape.iter().zip(&self.strides).try_fold(self.offset, |last, (axis, stride)| {
                last.checked_add((axis - 1).checked_mul(*stride)?)
            });
        // More values than the storage has would repeat them.
        let is_inside = last.is_some_and(|last| last < self.storage.len) && len <= self.storage.len;
        if is_inside && self.shape.len() == self.strides.len() { Ok(len) } else { Err(invalid()) }
    }

    /// The values, from a storage that has all of them.
    fn read(&self, bytes: &[u8]) -> Values {
        let (kind, width) = (self.storage.kind, self.storage.kind.bytes());
        let len = self.shape.iter().product();
        let mut dense = 1;
        let is_dense = self.shape.iter().zip(&self.strides).rev().all(|(axis, stride)| {
            let fits = *axis == 1 || *stride == dense;
            dense *= axis;
            fits
        });
        let mut values = Vec::with_capacity(len);
        if len > 0 && is_dense {
            let bytes = &bytes[self.offset * width..(self.offset + len) * width];
            values.extend(bytes.chunks_exact(width).map(|value| kind.read(value)));
        } else if len > 0 {
            let mut index = vec![0; self.shape.len()];
            for _ in 0..len {
                let strides = index.iter().zip(&self.strides);
                let at = self.offset + strides.map(|(index, stride)| index * stride).sum::<usize>();
                values.push(kind.read(&bytes[at * width..(at + 1) * width]));
                for (index, axis) in index.iter_mut().zip(&self.shape).rev() {
                    *index += 1;
                    if *index < *axis {
                        break;
                    }
                    *index = 0;
                }
            }
        }
        (self.shape.clone(), values)
    }
}

/// A function or a type of Python that a pickle may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Kind),
}

impl Global {
    fn named(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch", "HalfStorage") => Self::Storage(Kind::F16),
            ("torch", "BFloat16Storage") => Self::Storage(Kind::BF16),
            ("torch", "FloatStorage") => Self::Storage(Kind::F32),
            ("torch", "DoubleStorage") => Self::Storage(Kind::F64),
            ("torch", "LongStorage") => Self::Storage(Kind::Integer(8)),
            ("torch", "IntStorage") => Self::Storage(Kind::Integer(4)),
            ("torch", "ShortStorage") => Self::Storage(Kind::Integer(2)),
            ("torch", "CharStorage" | "ByteStorage" | "BoolStorage") => Self::Storage(Kind::Integer(1)),
            _ => {
                return Err(Error::model(format!(
                    "expected only tensors in the pickle, but found `{module}.{name}`, which Kivu does not run"
                )));
            }
        })
    }
}

/// A value on the stack. Containers that may change are in [`Machine::containers`].
#[derive(Clone, Debug)]
enum Value {
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Text(Rc<str>),
    /// The values and the depth of nesting.
    Tuple(Rc<[Self]>, u8),
    Container(usize),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Rc<Tensor>),
}

/// The values of a container; none if the pickle is another object.
struct Object(Option<Vec<Value>>);

impl Object {
    fn values(&self) -> Result<&[Value]> {
        let other = || Error::model("expected a dictionary of tensors, but found another object");
        self.0.as_deref().ok_or_else(other)
    }

    /// The keys and values of a dictionary.
    fn items(&self) -> Result<impl Iterator<Item = &[Value; 2]>> {
        Ok(self.values()?.as_chunks().0.iter())
    }
}

/// The state of a pickle's program.
struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
    /// Dictionaries: keys and values in turn. Lists: values.
    containers: Vec<Vec<Value>>,
    /// The number of values in containers.
    contained: usize,
}

impl<'a> Machine<'a> {
    /// The object of a pickle, and the bytes after it.
    fn run(pickle: &'a [u8]) -> Result<(Object, &'a [u8])> {
        let mut machine = Self {
            rest: pickle,
            stack: Vec::new(),
            memo: HashMap::new(),
            containers: Vec::new(),
            contained: 0,
        };
        while machine.step()? {
            let sizes =
                [machine.stack.len(), machine.memo.len(), machine.containers.len(), machine.contained];
            if sizes.iter().any(|size| *size > MAX_VALUES) {
                return Err(Error::model(format!(
                    "expected at most {MAX_VALUES} values in the pickle, but found more"
                )));
            }
        }
        let values = match machine.pop()? {
            Value::Container(index) => Some(std::mem::take(&mut machine.containers[index])),
            _ => None,
        };
        Ok((Object(values), machine.rest))
    }

    /// Executes an instruction; `false` at the end.
    fn step(&mut self) -> Result<bool> {
        match self.byte()? {
            b'.' => return Ok(false),
            // PROTO and FRAME, which need no action.
            0x80 => self.skip(1)?,
            0x95 => self.skip(8)?,
            b'(' => self.stack.push(Value::Mark),
            b'0' => drop(self.pop()?),
            b'N' => self.stack.push(Value::None),
            code @ (0x88 | 0x89) => self.stack.push(Value::Bool(code == 0x88)),
            b'K' => {
                let value = self.byte()?;
                self.stack.push(Value::Int(value.into()));
            }
            b'M' => {
                let bytes = self.array()?;
                self.stack.push(Value::Int(u16::from_le_bytes(bytes).into()));
            }
            b'J' => {
                let bytes = self.array()?;
                self.stack.push(Value::Int(i32::from_le_bytes(bytes).into()));
            }
            0x8a => self.long()?,
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length as usize)?;
            }
            0x8c => {
                let length = self.byte()?;
                self.text(length.into())?;
            }
            b'q' => {
                let place = self.byte()?;
                self.remember(place.into())?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.array()?);
                self.remember(place)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?,
            b'h' => {
                let place = self.byte()?;
                self.recall(place.into())?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.array()?);
                self.recall(place)?;
            }
            b'}' | b']' => self.new_container(Vec::new()),
            b')' => self.tuple(Vec::new())?,
            // TUPLE1 to TUPLE3
            count @ 0x85..=0x87 => {
                let start = self.stack.len().checked_sub((count - 0x84).into()).ok_or_else(underflow)?;
                let values = self.stack.split_off(start);
                self.tuple(values)?;
            }
            b't' => {
                let values = self.pop_to_mark()?;
                self.tuple(values)?;
            }
            b's' => {
                let start = self.stack.len().checked_sub(2).ok_or_else(underflow)?;
                let values = self.stack.split_off(start);
                self.extend(values)?;
            }
            b'a' => {
                let value = self.pop()?;
                self.extend(vec![value])?;
            }
            b'u' | b'e' => {
                let values = self.pop_to_mark()?;
                self.extend(values)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.stack.push(Value::Global(Global::named(module, name)?));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (module, name) else {
                    return Err(underflow());
                };
                self.stack.push(Value::Global(Global::named(&module, &name)?));
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = storage(&id)?;
                self.stack.push(Value::Storage(Rc::new(storage)));
            }
            b'R' => self.call()?,
            // The attributes of a dictionary, `_metadata`.
            b'b' => drop(self.pop()?),
            other => {
                return Err(Error::model(format!(
                    "expected only tensors in the pickle, but found the instruction {other:#04x}, which Kivu does not run"
                )));
            }
        }
        Ok(true)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count).map(|_| ())
    }

    fn line(&mut self) -> Result<&'a str> {
        let end = self.rest.iter().position(|byte| *byte == b'\n').ok_or_else(truncated)?;
        let line = self.take(end + 1)?;
        utf8(&line[..end])
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let text = utf8(self.take(length)?)?;
        self.stack.push(Value::Text(text.into()));
        Ok(())
    }

    /// LONG1: an integer of any length, of which 8 bytes are supported.
    fn long(&mut self) -> Result<()> {
        let length = self.byte()?.into();
        let bytes = self.take(length)?;
        let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut value = if sign { [0xff; 8] } else { [0; 8] };
        let target =
            value.get_mut(..length).ok_or_else(|| Error::model("expected integers of 64 bits at most"))?;
        target.copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(value)));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Value::Mark)).ok_or_else(underflow)?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    fn remember(&mut self, place: u32) -> Result<()> {
        let value = self.stack.last().ok_or_else(underflow)?.clone();
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<()> {
        let value = self.memo.get(&place).ok_or_else(underflow)?.clone();
        self.stack.push(value);
        Ok(())
    }

    fn new_container(&mut self, values: Vec<Value>) {
        self.stack.push(Value::Container(self.containers.len()));
        self.containers.push(values);
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<()> {
        let depths = values.iter().map(|value| if let Value::Tuple(_, depth) = value { *depth } else { 0 });
        let depth = depths.max().unwrap_or(0) + 1;
        if depth > MAX_DEPTH {
            return Err(Error::model(format!(
                "expected at most {MAX_DEPTH} tuples in each other, but found more"
            )));
        }
        self.contained += values.len();
        self.stack.push(Value::Tuple(values.into(), depth));
        Ok(())
    }

    /// Appends values to the container on the stack.
    fn extend(&mut self, values: Vec<Value>) -> Result<()> {
        let Some(Value::Container(index)) = self.stack.last() else { return Err(underflow()) };
        self.contained += values.len();
        self.containers[*index].extend(values);
        Ok(())
    }

    /// REDUCE: a call of one of the functions of [`Global`].
    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Tuple(arguments, _), Value::Global(function)) = (arguments, function) else {
            return Err(underflow());
        };
        match (function, &arguments[..]) {
            (Global::OrderedDict, []) => self.new_container(Vec::new()),
            (
                Global::RebuildTensor,
                [
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(shape, _),
                    Value::Tuple(strides, _),
                    ..,
                ],
            ) => {
                let tensor = Tensor {
                    storage: Storage::clone(storage),
                    offset: size(&Value::Int(*offset))?,
                    shape: shape.iter().map(size).collect::<Result<_>>()?,
                    strides: strides.iter().map(size).collect::<Result<_>>()?,
                };
                tensor.len()?;
                self.contained += shape.len() + strides.len();
                self.stack.push(Value::Tensor(Rc::new(tensor)));
            }
            (Global::RebuildParameter, [Value::Tensor(tensor), ..]) => {
                self.stack.push(Value::Tensor(Rc::clone(tensor)));
            }
            _ => {
                return Err(Error::model(format!(
                    "expected the arguments of {function:?}, but found others"
                )));
            }
        }
        Ok(())
    }
}

/// The storage of a persistent id: `('storage', type, key, location, length)`.
fn storage(id: &Value) -> Result<Storage> {
    let Value::Tuple(id, _) = id else { return Err(underflow()) };
    let [Value::Text(_), Value::Global(Global::Storage(kind)), Value::Text(key), _, length, ..] = &id[..]
    else {
        return Err(underflow());
    };
    if !key.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::model(format!("expected the number of a storage, but found `{key}`")));
    }
    Ok(Storage { kind: *kind, key: Rc::clone(key), len: size(length)? })
}

fn size(value: &Value) -> Result<usize> {
    match value {
        Value::Int(value) => {
            usize::try_from(*value).map_err(|_| Error::model(format!("expected a size, but found {value}")))
        }
        _ => Err(underflow()),
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|error| Error::model_because("expected UTF-8 in the pickle", error))
}

fn truncated() -> Error {
    Error::model("expected the end of the pickle, but found the end of the file")
}

fn underflow() -> Error {
    Error::model("expected the values of an instruction of the pickle, but found others")
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::Path};

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints").join(name)).unwrap()
    }

    /// A checkpoint with this pickle, and four zeros as its storage.
    fn archive(pickle: &[u8], method: CompressionMethod) -> Vec<u8> {
        let mut archive = ZipWriter::new(Cursor::new(Vec::new()));
        let options = SimpleFileOptions::default().compression_method(method);
        for (name, bytes) in [("a/data.pkl", pickle), ("a/data/0", &[0; 16])] {
            archive.start_file(name, options).unwrap();
            archive.write_all(bytes).unwrap();
        }
        archive.finish().unwrap().into_inner()
    }

    fn refusal(pickle: &[u8]) -> String {
        read(&archive(pickle, CompressionMethod::Stored)).unwrap_err().chain()
    }

    #[test]
    fn tensors_have_the_values_that_pytorch_reads() {
        let expected: BTreeMap<String, (Vec<usize>, Vec<f32>)> =
            serde_json::from_slice(&fixture("tensors.json")).unwrap();
        for name in ["tensors.bin", "tensors-legacy.bin"] {
            let found = read(&fixture(name)).unwrap();
            assert_eq!(found, expected, "{name}");
        }
    }

    #[test]
    fn nothing_but_tensors_is_read() {
        // A call of `posix.system`, as in attacks.
        let call = refusal(b"\x80\x02cposix\nsystem\nX\x02\0\0\0ls\x85R.");
        // `torch.storage._load_from_bytes` would run a pickle in a pickle.
        let nested = refusal(b"\x80\x02ctorch.storage\n_load_from_bytes\nX\x01\0\0\0a\x85R.");
        let stacked = refusal(b"\x80\x04\x8c\x08builtins\x8c\x04eval\x93.");
        let object = refusal(b"\x80\x02ccollections\nOrderedDict\n)\x81.");
        let number = refusal(b"\x80\x02}X\x01\0\0\0aK\x01s.");
        let list = refusal(b"\x80\x02K\x01.");
        let end = refusal(b"\x80\x02}");
        let empty = refusal(b"\x80\x02u.");
        insta::assert_snapshot!([call, nested, stacked, object, number, list, end, empty].join("\n"), @"
        expected only tensors in the pickle, but found `posix.system`, which Kivu does not run
        expected only tensors in the pickle, but found `torch.storage._load_from_bytes`, which Kivu does not run
        expected only tensors in the pickle, but found `builtins.eval`, which Kivu does not run
        expected only tensors in the pickle, but found the instruction 0x81, which Kivu does not run
        expected a tensor for `a`, but found another object
        expected a dictionary of tensors, but found another object
        expected the end of the pickle, but found the end of the file
        expected the values of an instruction of the pickle, but found others
        ");
        let packed = archive(b"\x80\x02}.", CompressionMethod::Deflated);
        insta::assert_snapshot!(read(&packed).unwrap_err(), @"expected `a/data.pkl` in the archive not to be compressed");
        insta::assert_snapshot!(read(b"hello").unwrap_err(), @"expected a checkpoint of PyTorch");
    }

    #[test]
    fn tensors_are_inside_of_their_storages() {
        let tensor = |offset: u8, shape: [u8; 2], strides: [u8; 2], length: u8| {
            let mut pickle = b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((".to_vec();
            pickle.extend(b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK");
            pickle.extend([length, b't', b'Q', b'K', offset]);
            pickle.extend([b'K', shape[0], b'K', shape[1], 0x86, b'K', strides[0], b'K', strides[1], 0x86]);
            pickle.extend(b"\x89}tRs.");
            read(&archive(&pickle, CompressionMethod::Stored))
        };
        assert_eq!(tensor(0, [2, 2], [2, 1], 4).unwrap()["a"].1, [0.0; 4]);
        assert_eq!(tensor(3, [0, 2], [2, 1], 4).unwrap()["a"].1, [0.0; 0]);
        for (offset, shape, strides, length) in [
            (1, [2, 2], [2, 1], 4),
            (0, [2, 2], [200, 1], 4),
            (0, [200, 200], [0, 0], 4),
            (0, [2, 2], [2, 1], 5),
            (200, [1, 1], [1, 1], 4),
        ] {
            assert!(
                tensor(offset, shape, strides, length).is_err(),
                "{offset} {shape:?} {strides:?} {length}"
            );
        }
    }
}
