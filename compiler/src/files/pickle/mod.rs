//! `pytorch_model.bin`: a pickle, which describes tensors, and their storages; in a ZIP archive, or consecutive before
//! PyTorch 1.6.
//!
//! A pickle is a program for a stack machine that may call any Python function. This reader calls none: it supports the
//! instructions that build dictionaries, tuples and tensors, and refuses everything else.

mod machine;
mod tensor;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap, HashSet},
    io::{Cursor, Read},
    rc::Rc,
};

use zip::{CompressionMethod, ZipArchive};

use self::{
    machine::{Machine, Value, truncated, underflow},
    tensor::{Storage, Tensor, Values},
};
use kivu::{Error, Result};

/// Maximum pickle size, a hundred times larger than in large models.
const MAX_PICKLE_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum ratio of tensor values to storage values: tied weights have up to four names.
const MAX_SHARING: usize = 4;

/// Values by tensor name.
type Weights = BTreeMap<String, Values>;

/// Tensors with their names.
type Tensors = Vec<(Rc<str>, Tensor)>;

/// Prefix of checkpoints before PyTorch 1.6: pickled magic number and version.
const LEGACY: &[u8] =
    b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19.\x80\x02M\xe9\x03.";

/// Reads a checkpoint's tensors; integer tensors are left out.
pub fn read(file: &[u8]) -> Result<Weights> {
    match file.strip_prefix(LEGACY) {
        Some(rest) => read_legacy(rest),
        None => read_archive(file),
    }
}

/// A ZIP archive with the pickle and a file per storage.
fn read_archive(file: &[u8]) -> Result<Weights> {
    let damaged = |error| Error::model_because("expected a PyTorch checkpoint", error);
    let mut archive = ZipArchive::new(Cursor::new(file)).map_err(damaged)?;
    let pickle = archive
        .file_names()
        .filter_map(Result::ok)
        .find(|name| name.ends_with("/data.pkl"));
    let pickle = pickle.map(Cow::into_owned);
    let pickle =
        pickle.ok_or_else(|| Error::model("expected `data.pkl` in the archive, but found none"))?;
    let folder = pickle.trim_end_matches("data.pkl");
    let (tensors, _) = tensors(&entry(&mut archive, &pickle, MAX_PICKLE_BYTES)?)?;
    let order = format!("{folder}byteorder");
    let has_order = archive
        .file_names()
        .any(|name| name.is_ok_and(|name| name == order));
    if has_order && entry(&mut archive, &order, 16)? != b"little" {
        return Err(big_endian());
    }
    weights(tensors, |key, size| {
        entry(&mut archive, &format!("{folder}data/{key}"), size).map(Cow::Owned)
    })
}

/// Pickles for the system, the tensors and the storage keys, and then the storages, each after its length.
fn read_legacy(file: &[u8]) -> Result<Weights> {
    let (system, file) = Machine::run(file)?;
    if !system.items()?.any(
        |item| matches!(item, [Value::Text(name), Value::Bool(true)] if **name == *"little_endian"),
    ) {
        return Err(big_endian());
    }
    let (tensors, file) = tensors(file)?;
    let (keys, mut file) = Machine::run(file)?;
    let kinds: HashMap<&str, &Storage> = tensors
        .iter()
        .map(|(_, tensor)| (&*tensor.storage.key, &tensor.storage))
        .collect();
    let mut storages = HashMap::new();
    for key in keys.values()? {
        let Value::Text(key) = key else {
            return Err(underflow());
        };
        // Without a tensor, the byte length of its values is unknown.
        let unused = || {
            Error::model(format!(
                "expected a tensor with the storage `{key}`, but found none"
            ))
        };
        let storage = kinds.get(&**key).ok_or_else(unused)?;
        let (length, rest) = file.split_first_chunk().ok_or_else(truncated)?;
        let bytes = usize::try_from(i64::from_le_bytes(*length))
            .ok()
            .filter(|length| *length == storage.len);
        let bytes = bytes
            .and_then(|length| rest.split_at_checked(length.checked_mul(storage.kind.bytes())?));
        let (bytes, rest) = bytes.ok_or_else(truncated)?;
        storages.insert(key.to_string(), bytes);
        file = rest;
    }
    weights(tensors, |key, _| {
        storages
            .get(key)
            .copied()
            .map(Cow::Borrowed)
            .ok_or_else(truncated)
    })
}

/// Values for all tensors, from storages that `read` returns as bytes, given key and size.
fn weights<'a>(
    tensors: Tensors,
    mut read: impl FnMut(&str, u64) -> Result<Cow<'a, [u8]>>,
) -> Result<Weights> {
    let (mut storages, mut values) = (BTreeMap::<_, Vec<_>>::new(), 0_usize);
    for (name, tensor) in tensors {
        if !tensor.storage.kind.is_integer() {
            values = values.saturating_add(tensor.len()?);
            storages
                .entry(Rc::clone(&tensor.storage.key))
                .or_default()
                .push((name, tensor));
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
        let size = storage
            .kind
            .bytes()
            .checked_mul(storage.len)
            .ok_or_else(truncated)?;
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

/// Contents of an archive entry, which must not be compressed: nothing expands.
fn entry(archive: &mut ZipArchive<Cursor<&[u8]>>, name: &str, max: u64) -> Result<Vec<u8>> {
    let damaged =
        |error| Error::model_because(format!("cannot read `{name}` in the archive"), error);
    let file = archive.by_name(name).map_err(damaged)?;
    if file.compression() != CompressionMethod::Stored {
        return Err(Error::model(format!(
            "expected `{name}` in the archive not to be compressed"
        )));
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
    Error::model("the values are not in little-endian order")
}

/// Parses a pickled dictionary into named tensors; also returns the bytes after the pickle.
pub fn tensors(pickle: &[u8]) -> Result<(Tensors, &[u8])> {
    let (object, rest) = Machine::run(pickle)?;
    let mut names = HashSet::new();
    for item in object.items()? {
        if let [Value::Text(name), _] = item
            && !names.insert(Rc::clone(name))
        {
            return Err(Error::model(format!(
                "expected one tensor called `{name}`, but found several"
            )));
        }
    }
    let items = object.items()?.map(|item| match item {
        [Value::Text(name), Value::Tensor(tensor)] => Ok((Rc::clone(name), Tensor::clone(tensor))),
        [Value::Text(name), _] => Err(Error::model(format!("`{name}` is not a tensor"))),
        _ => Err(Error::model("a tensor's name is not a string")),
    });
    Ok((items.collect::<Result<_>>()?, rest))
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write, path::Path};

    use zip::{ZipWriter, write::SimpleFileOptions};

    use super::*;

    fn fixture(name: &str) -> Vec<u8> {
        fs::read(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../tests/fixtures/checkpoints")
                .join(name),
        )
        .unwrap()
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
        read(&archive(pickle, CompressionMethod::Stored))
            .unwrap_err()
            .chain()
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
        // A call to `posix.system`, as in attacks.
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
        `a` is not a tensor
        the checkpoint is not a dictionary of tensors
        expected the end of the pickle, but found the end of the file
        the pickle is damaged: an instruction lacks its operands
        ");
        let packed = archive(b"\x80\x02}.", CompressionMethod::Deflated);
        insta::assert_snapshot!(read(&packed).unwrap_err(), @"expected `a/data.pkl` in the archive not to be compressed");
        insta::assert_snapshot!(read(b"hello").unwrap_err(), @"expected a PyTorch checkpoint");
    }

    /// A pickled tensor with four values, varying its storage id and arguments.
    fn pickled(names: &[&[u8]], view: &[u8], arguments: &[u8]) -> Vec<u8> {
        let mut pickle = b"\x80\x02}".to_vec();
        for name in names {
            pickle.extend(b"X\x01\0\0\0");
            pickle.extend(*name);
            pickle.extend(
                b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\0\0\0storagectorch\nFloatStorage\n",
            );
            pickle.extend(b"X\x01\0\0\x000X\x03\0\0\0cpuK\x04");
            pickle.extend(view);
            pickle.extend(b"tQK\0K\x04\x85K\x01\x85\x89}");
            pickle.extend(arguments);
            pickle.extend(b"tRs");
        }
        [&pickle[..], b"."].concat()
    }

    #[test]
    fn names_and_properties_of_tensors_are_accounted_for() {
        let read = |pickle: Vec<u8>| read(&archive(&pickle, CompressionMethod::Stored));
        assert_eq!(read(pickled(&[b"a", b"b"], b"", b"")).unwrap().len(), 2);
        assert_eq!(read(pickled(&[b"a"], b"N", b"N")).unwrap().len(), 1);
        assert_eq!(read(pickled(&[b"a"], b"", b"}")).unwrap().len(), 1);
        // Python keeps the last one of duplicate names; `neg` changes signs; the storage is the first value in
        // another.
        let twice = pickled(&[b"a", b"a"], b"", b"");
        let negative = pickled(&[b"a"], b"", b"}X\x03\0\0\0neg\x88s");
        let part = pickled(&[b"a"], b"(X\x01\0\0\x001K\0K\x01t", b"");
        let refusals = [twice, negative, part].map(|pickle| read(pickle).unwrap_err().to_string());
        insta::assert_snapshot!(refusals.join("\n"), @"
        expected one tensor called `a`, but found several
        a tensor has additional properties, which are not supported
        expected a whole storage `0`, but found a part of another
        ");
    }

    #[test]
    fn tensors_are_inside_of_their_storages() {
        let tensor = |offset: u8, shape: [u8; 2], strides: [u8; 2], length: u8| {
            let mut pickle = b"\x80\x02}X\x01\0\0\0actorch._utils\n_rebuild_tensor_v2\n((".to_vec();
            pickle.extend(b"X\x07\0\0\0storagectorch\nFloatStorage\nX\x01\0\0\x000X\x03\0\0\0cpuK");
            pickle.extend([length, b't', b'Q', b'K', offset]);
            pickle.extend([
                b'K', shape[0], b'K', shape[1], 0x86, b'K', strides[0], b'K', strides[1], 0x86,
            ]);
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
