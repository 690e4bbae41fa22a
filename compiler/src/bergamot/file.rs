//! Marian's binary format for browser models: named matrices, mostly int8.
//!
//! A file begins with its version and item count. For each item, the lengths of name, shape and data and the data type
//! follow; then all names, all shapes, padding, and all data. Files are not trusted: each length is checked before data
//! is read.

use std::collections::BTreeMap;

use crate::files::weights::Weight;
use kivu::{Error, Result, tensor::read_numbers};

/// The only supported format version.
const VERSION: u64 = 1;
/// Limits far above any model's.
const MAX_ITEMS: u64 = 1 << 16;
const MAX_NAME_BYTES: u64 = 1 << 10;
const MAX_AXES: u64 = 8;
/// Data types: text, floats, and integers in intgemm's layout.
const TEXT: u64 = 0x0101;
const FLOAT: u64 = 0x0404;
const INTGEMM8: u64 = 0x4101;

/// Item with the model's options.
const OPTIONS: &str = "special:model.yml";
/// The only integer matrix stored by rows; all others are stored by columns.
pub const WORDS: &str = "Wemb";

/// A parsed file.
#[derive(Debug)]
pub struct File {
    /// Column-stored matrices are transposed: they have a row per output.
    pub matrices: BTreeMap<String, Weight>,
    /// Options that the model was trained with.
    pub options: Options,
}

/// Marian's options, one per line. Nested options are ignored.
#[derive(Debug)]
pub struct Options(BTreeMap<String, String>);

/// Unread bytes.
struct Reader<'a>(&'a [u8]);

impl File {
    /// Parses a file.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader(bytes);
        let [version, count] = reader.numbers()?;
        if version != VERSION || count > MAX_ITEMS {
            return Err(Error::model(format!(
                "expected version {VERSION} of Marian's binary format, with at most {MAX_ITEMS} items, but found \
                 version {version} with {count}"
            )));
        }
        let headers = (0..count)
            .map(|_| reader.numbers())
            .collect::<Result<Vec<[u64; 4]>>>()?;
        if let Some([name, _, axes, _]) = headers
            .iter()
            .find(|[name, _, axes, _]| *name > MAX_NAME_BYTES || *axes > MAX_AXES)
        {
            return Err(Error::model(format!(
                "expected names of at most {MAX_NAME_BYTES} bytes and at most {MAX_AXES} axes in Marian's binary \
                 format, but found {name} and {axes}"
            )));
        }
        let names = headers
            .iter()
            .map(|[name, ..]| reader.name(*name))
            .collect::<Result<Vec<_>>>()?;
        let shapes = headers
            .iter()
            .map(|[_, _, axes, _]| reader.shape(*axes))
            .collect::<Result<Vec<_>>>()?;
        let [padding] = reader.numbers()?;
        reader.take(padding)?;
        let (mut matrices, mut options) = (BTreeMap::new(), None);
        for (([_, kind, _, length], name), shape) in headers.into_iter().zip(names).zip(shapes) {
            let data = reader.take(length)?;
            if name == OPTIONS {
                options = Some(Options::parse(data));
            } else if let Some(matrix) = matrix(&name, kind, shape, data)? {
                matrices.insert(name, matrix);
            }
        }
        let options = options.ok_or_else(|| {
            Error::model(format!(
                "expected the model's options as `{OPTIONS}`, but found no such item"
            ))
        })?;
        Ok(Self { matrices, options })
    }
}

/// A matrix as fp32; `None` for text.
fn matrix(name: &str, kind: u64, shape: Vec<usize>, data: &[u8]) -> Result<Option<Weight>> {
    let size = shape
        .iter()
        .try_fold(1_usize, |size, side| size.checked_mul(*side));
    let damaged = || {
        Error::model(format!(
            "expected `{name}` to hold a matrix of shape {shape:?}, but found {} bytes",
            data.len()
        ))
    };
    let size = size
        .filter(|size| *size <= data.len())
        .ok_or_else(damaged)?;
    match kind {
        FLOAT => {
            let values = data.get(..4 * size).ok_or_else(damaged)?;
            let values = read_numbers(values, f32::from_le_bytes).unwrap_or_default();
            Ok(Some(Weight { shape, values }))
        }
        INTGEMM8 => {
            let (values, rest) = data.split_at(size);
            let multiplier = rest
                .first_chunk::<4>()
                .map(|bytes| f32::from_le_bytes(*bytes));
            let multiplier = multiplier
                .filter(|it| it.is_normal() && *it > 0.0)
                .ok_or_else(damaged)?;
            let values = values
                .iter()
                .map(|byte| f32::from(byte.cast_signed()) / multiplier)
                .collect();
            let mut shape = shape;
            if name != WORDS {
                shape.reverse();
            }
            Ok(Some(Weight { shape, values }))
        }
        TEXT => Ok(None),
        other => Err(Error::model(format!(
            "expected `{name}` in floats or in intgemm's 8-bit integers, but found the type \
             {other:#x}"
        ))
        .with_hint("use the model's `intgemm` file")),
    }
}

impl Reader<'_> {
    fn take(&mut self, length: u64) -> Result<&[u8]> {
        // A length that `usize` cannot hold is also longer than the file.
        let length = usize::try_from(length).unwrap_or(usize::MAX);
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| {
            Error::model(format!(
                "expected {length} more bytes in Marian's binary format, but found {}",
                self.0.len()
            ))
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn numbers<const COUNT: usize>(&mut self) -> Result<[u64; COUNT]> {
        let bytes = self.take(COUNT as u64 * 8)?.as_chunks().0;
        Ok(std::array::from_fn(|place| {
            u64::from_le_bytes(bytes[place])
        }))
    }

    fn name(&mut self, length: u64) -> Result<String> {
        let name = String::from_utf8_lossy(self.take(length)?);
        Ok(name.trim_end_matches('\0').to_owned())
    }

    fn shape(&mut self, axes: u64) -> Result<Vec<usize>> {
        let sides = self.take(axes * 4)?.as_chunks::<4>().0.iter();
        // A negative dimension is refused like one that is too large.
        Ok(sides
            .map(|side| usize::try_from(i32::from_le_bytes(*side)).unwrap_or(usize::MAX))
            .collect())
    }
}

impl Options {
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        let unquoted = |value: &str| value.trim_matches(['"', '\0', ' ']).to_owned();
        Self(
            pairs
                .map(|(key, value)| (key.to_owned(), unquoted(value)))
                .collect(),
        )
    }

    /// The option called `name`; empty if it is missing.
    pub fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// Parses the option called `name` as a number.
    pub fn number(&self, name: &str) -> Result<usize> {
        self.text(name).parse().map_err(|_| {
            Error::model(format!(
                "expected a number as the model's option `{name}`, but found `{}`",
                self.text(name)
            ))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Builds a file from items: name, type, shape and data.
    fn written(items: &[(&str, u64, &[i32], Vec<u8>)]) -> Vec<u8> {
        let mut file = [VERSION, items.len() as u64].map(u64::to_le_bytes).concat();
        for (name, kind, shape, data) in items {
            let lengths = [
                name.len() as u64 + 1,
                *kind,
                shape.len() as u64,
                data.len() as u64,
            ];
            file.extend(lengths.map(u64::to_le_bytes).concat());
        }
        items
            .iter()
            .for_each(|(name, ..)| file.extend([name.as_bytes(), b"\0"].concat()));
        items.iter().for_each(|(_, _, shape, _)| {
            file.extend(shape.iter().flat_map(|side| side.to_le_bytes()))
        });
        file.extend(3_u64.to_le_bytes());
        file.extend([0; 3]);
        items.iter().for_each(|(.., data)| file.extend(data));
        file
    }

    fn small() -> Vec<u8> {
        let mut integers = vec![1, 2, 3, 4, 5, 0xfa];
        integers.extend(2_f32.to_le_bytes());
        integers.extend([0; 6]);
        written(&[
            ("encoder_W", INTGEMM8, &[2, 3], integers.clone()),
            (WORDS, INTGEMM8, &[2, 3], integers),
            ("b", FLOAT, &[1, 1], 1.5_f32.to_le_bytes().into()),
            (OPTIONS, TEXT, &[20], b"dim-emb: 3\ntype: \"x\"\n\0".into()),
        ])
    }

    #[test]
    fn integers_are_divided_by_their_multiplier_and_transposed_except_words() {
        let file = File::parse(&small()).unwrap();
        assert_eq!(file.matrices["encoder_W"].shape, [3, 2]);
        assert_eq!(file.matrices[WORDS].shape, [2, 3]);
        assert_eq!(file.matrices[WORDS].values, [0.5, 1.0, 1.5, 2.0, 2.5, -3.0]);
        assert_eq!(file.matrices["b"].values, [1.5]);
        assert_eq!(file.options.number("dim-emb").unwrap(), 3);
        assert_eq!(file.options.text("type"), "x");
    }

    #[test]
    fn damaged_files_are_refused() {
        let whole = small();
        for length in 0..whole.len() {
            assert!(File::parse(&whole[..length]).is_err(), "cut to {length}");
        }
        for place in 0..whole.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                // Must not panic, nor allocate memory for lengths beyond the file.
                let _ = File::parse(&damaged);
            }
        }
        insta::assert_snapshot!(File::parse(&whole[..5]).unwrap_err(), @"expected 16 more bytes in Marian's binary format, but found 5");
        insta::assert_snapshot!(File::parse(&[0xff; 64]).unwrap_err(), @"expected version 1 of Marian's binary format, with at most 65536 items, but found version 18446744073709551615 with 18446744073709551615");
    }
}
