//! Marian's binary form of a model, as browsers load it: named matrices, mostly of 8-bit integers.
//!
//! A file begins with its version and the number of its items. Then come, item after item, the lengths of name,
//! shape and data with the type of the data; then all names, all shapes, and after some padding all data. The
//! file is not trusted: every length is checked before anything is read.

use std::collections::BTreeMap;

use crate::{
    build::weights::Weight,
    error::{Error, Result},
};

/// The only version that there is.
const VERSION: u64 = 1;
/// More items, longer names or more axes than this are in no model.
const MOST_ITEMS: u64 = 1 << 16;
const LONGEST_NAME: u64 = 1 << 10;
const MOST_AXES: u64 = 8;
/// The types of data that occur: text, floats, and integers in the layout of the intgemm library.
const TEXT: u64 = 0x0101;
const FLOAT: u64 = 0x0404;
const INTGEMM8: u64 = 0x4101;

/// The item that holds the model's options.
const OPTIONS: &str = "special:model.yml";
/// The one matrix of integers that is stored row by row; all others are stored column by column.
pub(super) const WORDS: &str = "Wemb";

/// What is in a file.
#[derive(Debug)]
pub(super) struct File {
    /// The matrices. Those that were stored column by column come as they were stored: a row an output.
    pub(super) matrices: BTreeMap<String, Weight>,
    /// The options that the model was trained with.
    pub(super) options: Options,
}

/// Marian's options, one a line; what is nested in others is not read.
#[derive(Debug)]
pub(super) struct Options(BTreeMap<String, String>);

#[derive(Clone, Copy)]
struct Header {
    name: usize,
    kind: u64,
    axes: usize,
    data: usize,
}

/// What is left to be read.
struct Reader<'a>(&'a [u8]);

impl File {
    /// Reads the bytes of a file.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = Reader(bytes);
        let (version, count) = (reader.number()?, reader.number()?);
        if version != VERSION || count > MOST_ITEMS {
            return Err(Error::model(format!(
                "expected version {VERSION} of Marian's binary form, with at most {MOST_ITEMS} items, but found \
                 version {version} with {count}"
            )));
        }
        let headers = (0..count).map(|_| reader.header()).collect::<Result<Vec<_>>>()?;
        let names = headers.iter().map(|header| reader.name(header.name)).collect::<Result<Vec<_>>>()?;
        let shapes = headers.iter().map(|header| reader.shape(header.axes)).collect::<Result<Vec<_>>>()?;
        let padding = reader.length()?;
        reader.take(padding)?;
        let (mut matrices, mut options) = (BTreeMap::new(), None);
        for ((header, name), shape) in headers.iter().zip(names).zip(shapes) {
            let data = reader.take(header.data)?;
            if name == OPTIONS {
                options = Some(Options::parse(data));
            } else if let Some(matrix) = matrix(&name, header.kind, shape, data)? {
                matrices.insert(name, matrix);
            }
        }
        let options = options.ok_or_else(|| {
            Error::model(format!(
                "expected the model's options as `{OPTIONS}`, but found no item of that name"
            ))
        })?;
        Ok(Self { matrices, options })
    }
}

/// One matrix as fp32; nothing for types of which no graph needs any.
fn matrix(name: &str, kind: u64, shape: Vec<usize>, data: &[u8]) -> Result<Option<Weight>> {
    let size = shape.iter().try_fold(1_usize, |size, side| size.checked_mul(*side));
    let damaged = || {
        Error::model(format!(
            "expected `{name}` to hold a matrix of shape {shape:?}, but found {} bytes",
            data.len()
        ))
    };
    let size = size.filter(|size| *size <= data.len()).ok_or_else(damaged)?;
    match kind {
        FLOAT => {
            let values = data.as_chunks::<4>().0.get(..size).ok_or_else(damaged)?;
            let values = values.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            Ok(Some(Weight { shape, values }))
        }
        INTGEMM8 => {
            let (values, rest) = data.split_at(size);
            let multiplier = rest.first_chunk::<4>().map(|bytes| f32::from_le_bytes(*bytes));
            let multiplier = multiplier.filter(|it| it.is_normal() && *it > 0.0).ok_or_else(damaged)?;
            let values = values.iter().map(|byte| f32::from(byte.cast_signed()) / multiplier).collect();
            let mut shape = shape;
            if name != WORDS {
                shape.reverse();
            }
            Ok(Some(Weight { shape, values }))
        }
        TEXT => Ok(None),
        other => Err(Error::model(format!(
            "expected `{name}` in floats or in intgemm's 8-bit integers, but found the type {other:#x}; take the \
             model's `intgemm` file"
        ))),
    }
}

impl Reader<'_> {
    fn take(&mut self, length: usize) -> Result<&[u8]> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or_else(|| {
            Error::model(format!(
                "expected {length} more bytes in a file of Marian's binary form, but found {}",
                self.0.len()
            ))
        })?;
        self.0 = rest;
        Ok(taken)
    }

    fn number(&mut self) -> Result<u64> {
        let bytes = self.take(8)?;
        Ok(bytes.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    fn length(&mut self) -> Result<usize> {
        // What is beyond the machine is beyond the file as well, and is refused there.
        Ok(usize::try_from(self.number()?).unwrap_or(usize::MAX))
    }

    fn header(&mut self) -> Result<Header> {
        let (name, kind, axes) = (self.number()?, self.number()?, self.number()?);
        if name > LONGEST_NAME || axes > MOST_AXES {
            return Err(Error::model(format!(
                "expected names of at most {LONGEST_NAME} bytes and at most {MOST_AXES} axes in a file of Marian's \
                 binary form, but found {name} and {axes}"
            )));
        }
        Ok(Header { name: name as usize, kind, axes: axes as usize, data: self.length()? })
    }

    fn name(&mut self, length: usize) -> Result<String> {
        let name = String::from_utf8_lossy(self.take(length)?);
        Ok(name.trim_end_matches('\0').to_owned())
    }

    fn shape(&mut self, axes: usize) -> Result<Vec<usize>> {
        let sides = self.take(axes * 4)?.as_chunks::<4>().0;
        // A negative side is as impossible as one that is too long.
        Ok(sides
            .iter()
            .map(|side| usize::try_from(i32::from_le_bytes(*side)).unwrap_or(usize::MAX))
            .collect())
    }
}

impl Options {
    fn parse(text: &[u8]) -> Self {
        let text = String::from_utf8_lossy(text);
        let pairs = text.lines().filter_map(|line| line.split_once(": "));
        let unquoted = |value: &str| value.trim_matches(['"', '\0', ' ']).to_owned();
        Self(pairs.map(|(key, value)| (key.to_owned(), unquoted(value))).collect())
    }

    /// The option called `name`; empty where it is not there.
    pub(super) fn text(&self, name: &str) -> &str {
        self.0.get(name).map_or("", String::as_str)
    }

    /// The option called `name`, which must be a number.
    pub(super) fn number(&self, name: &str) -> Result<usize> {
        self.text(name).parse().map_err(|_| {
            Error::model(format!(
                "expected a number as the model's option `{name}`, but found `{}`",
                self.text(name)
            ))
        })
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A file of the given items: name, type, shape and data.
    pub(in super::super) fn written(items: &[(&str, u64, &[i32], Vec<u8>)]) -> Vec<u8> {
        let mut file = [VERSION, items.len() as u64].map(u64::to_le_bytes).concat();
        for (name, kind, shape, data) in items {
            let lengths = [name.len() as u64 + 1, *kind, shape.len() as u64, data.len() as u64];
            file.extend(lengths.map(u64::to_le_bytes).concat());
        }
        items.iter().for_each(|(name, ..)| file.extend([name.as_bytes(), b"\0"].concat()));
        items
            .iter()
            .for_each(|(_, _, shape, _)| file.extend(shape.iter().flat_map(|side| side.to_le_bytes())));
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
    fn integers_are_divided_by_their_multiplier_and_lie_transposed_but_for_words() {
        let file = File::parse(&small()).unwrap();
        assert_eq!(file.matrices["encoder_W"].shape, [3, 2]);
        assert_eq!(file.matrices[WORDS].shape, [2, 3]);
        assert_eq!(file.matrices[WORDS].values, [0.5, 1.0, 1.5, 2.0, 2.5, -3.0]);
        assert_eq!(file.matrices["b"].values, [1.5]);
        assert_eq!(file.options.number("dim-emb").unwrap(), 3);
        assert_eq!(file.options.text("type"), "x");
    }

    #[test]
    fn a_damaged_file_is_refused_wherever_it_is_damaged() {
        let whole = small();
        for length in 0..whole.len() {
            assert!(File::parse(&whole[..length]).is_err(), "cut to {length}");
        }
        for place in 0..whole.len() {
            for value in [0x00, 0x7f, 0xff] {
                let mut damaged = whole.clone();
                damaged[place] = value;
                // Whatever it says: it ends, without a panic and without room for lengths that are not there.
                let _ = File::parse(&damaged);
            }
        }
        insta::assert_snapshot!(File::parse(&whole[..5]).unwrap_err(), @"expected 8 more bytes in a file of Marian's binary form, but found 5");
        insta::assert_snapshot!(File::parse(&[0xff; 64]).unwrap_err(), @"expected version 1 of Marian's binary form, with at most 65536 items, but found version 18446744073709551615 with 18446744073709551615");
    }
}
