//! Vectors that another program made: `.npy`, or a file with a column of vectors as `kivu batch` writes it.

use std::path::Path;

use half::f16;
use serde_json::Value;

use super::{
    answer::Answer,
    samples::{Rows, Texts, named, text_column},
};
use crate::files::io as files;
use kivu::{
    Error, Result,
    error::{Message, quoted},
    tensor::read_numbers,
};
use kivu_jobs::{ColumnFile, Parquet};

const VECTOR: [&str; 3] = ["embedding", "vector", "kivu_embedding"];
const TEXT: [&str; 1] = ["text"];
/// Maximum number of vectors: each is compared with all others.
const MAX_VECTORS: usize = 5_000;
/// The first bytes of a `.npy` file.
const NPY_MAGIC: &[u8] = b"\x93NUMPY";

/// A program's vectors for texts.
pub struct PeerVectors {
    pub texts: Texts,
    /// Per text, in the form of a model's answers.
    pub answers: Vec<Vec<Answer>>,
    pub dimensions: usize,
}

impl PeerVectors {
    /// Reads a file with a vector per text, in the order of `texts`; without them, the file has a column of texts.
    pub fn open(path: &Path, own: Option<&Texts>, parquet: Parquet) -> Result<Self> {
        let shown = path.display();
        let bytes_of_npy = is_npy(path)
            .then(|| files::read_weights(path))
            .transpose()?;
        let (own_texts, vectors) = match (bytes_of_npy, own) {
            (Some(bytes), Some(own)) => (
                own.clone(),
                npy(&bytes).map_err(|found| unreadable(path, found))?,
            ),
            (Some(_), None) => {
                return Err(Error::config(format!(
                    "expected `--texts` with the texts of the vectors in `{shown}`, but found none"
                ))
                .with_hint("name the file that has them in the same order"));
            }
            (None, own) => columns(path, own, parquet)?,
        };
        if vectors.len() != own_texts.count() {
            return Err(Error::config(format!(
                "expected {} vectors in `{shown}`, one per text, but found {}",
                own_texts.count(),
                vectors.len()
            )));
        }
        let dimensions = vectors.first().map_or(0, Vec::len);
        for (row, vector) in vectors.iter().enumerate() {
            let row = row + 1;
            if vector.len() != dimensions {
                return Err(unreadable(
                    path,
                    format!(
                        "{} values in row {row}, but {dimensions} in row 1",
                        vector.len()
                    ),
                ));
            }
            if !vector.iter().all(|value| value.is_finite()) {
                return Err(unreadable(
                    path,
                    format!("a value that is not finite in row {row}"),
                ));
            }
            if vector.iter().all(|value| *value == 0.0) {
                return Err(unreadable(path, format!("a vector of zeros in row {row}")));
            }
        }
        let answers = vectors
            .into_iter()
            .map(|vector| vec![Answer::Vector(vector)])
            .collect();
        Ok(Self {
            texts: own_texts,
            answers,
            dimensions,
        })
    }
}

fn is_npy(path: &Path) -> bool {
    path.extension()
        .is_some_and(|extension| extension.eq_ignore_ascii_case("npy"))
}

fn unreadable(path: &Path, found: impl Into<Message>) -> Error {
    Error::config(found.into().map(|found| {
        format!(
            "expected a vector per text in `{}`, but found {found}",
            path.display()
        )
    }))
}

/// Texts and vectors from a file's columns.
fn columns(path: &Path, own: Option<&Texts>, parquet: Parquet) -> Result<(Texts, Vec<Vec<f32>>)> {
    let file = ColumnFile::open(path, parquet)?;
    let vector = named(&file, &VECTOR).ok_or_else(|| {
        Error::config(format!(
            "expected a column `embedding` or `vector` in `{}`, but found {}",
            path.display(),
            quoted(file.names())
        ))
    })?;
    let read = |column: String| Rows::read(&file, path, &[&column], MAX_VECTORS)?.texts(0);
    let column = named(&file, &TEXT);
    let own_texts = match (own, column) {
        (None, Some(column)) => Texts::new(read(column)?, path)?,
        (None, None) => Texts::new(read(text_column(path, &file)?)?, path)?,
        (Some(own), None) => own.clone(),
        (Some(own), Some(column)) => {
            let (found, expected) = (read(column)?, own.lines());
            if let Some(row) = found
                .iter()
                .zip(expected)
                .position(|(found, expected)| found != expected)
            {
                return Err(Error::config(format!(
                    "`{}` does not have the texts of `--texts`: row {} differs",
                    path.display(),
                    row + 1
                ))
                .with_hint("leave out `--texts`, or the column with the texts"));
            }
            own.clone()
        }
    };
    let rows = file.rows(&[&vector], MAX_VECTORS)?;
    let vectors = rows.iter().enumerate().map(|(row, values)| {
        numbers(&values[0]).ok_or_else(|| {
            unreadable(
                path,
                format!(
                    "another value than a list of numbers in `{vector}` of row {}",
                    row + 1
                ),
            )
        })
    });
    Ok((own_texts, vectors.collect::<Result<_>>()?))
}

/// A list of numbers, which CSV has as JSON text.
fn numbers(value: &Value) -> Option<Vec<f32>> {
    match value {
        Value::Array(values) => values
            .iter()
            .map(|value| value.as_f64().map(|value| value as f32))
            .collect(),
        Value::String(text) => serde_json::from_str(text).ok(),
        _ => None,
    }
}

/// The rows of a two-dimensional `.npy` array; the error says what was found instead.
fn npy(bytes: &[u8]) -> Result<Vec<Vec<f32>>, Message> {
    let damaged = || Message::new("a damaged `.npy` file");
    let rest = bytes.strip_prefix(NPY_MAGIC).ok_or("another file")?;
    let (length, rest) = match rest {
        [1, _, a, b, rest @ ..] => (usize::from(u16::from_le_bytes([*a, *b])), rest),
        [2 | 3, _, a, b, c, d, rest @ ..] => (u32::from_le_bytes([*a, *b, *c, *d]) as usize, rest),
        _ => return Err(damaged()),
    };
    let (header, data) = rest.split_at_checked(length).ok_or_else(damaged)?;
    let header = str::from_utf8(header).map_err(|_| damaged())?;
    // A Python literal, such as `{'descr': '<f4', 'fortran_order': False, 'shape': (300, 384), }`.
    let field = |name: &str| {
        header
            .split_once(&format!("'{name}':"))
            .map(|(_, rest)| rest.trim_start())
    };
    let kind = field("descr")
        .and_then(|rest| rest.strip_prefix('\'')?.split_once('\''))
        .ok_or_else(damaged)?
        .0;
    if !field("fortran_order")
        .ok_or_else(damaged)?
        .starts_with("False")
    {
        return Err(Message::new("an array in Fortran order")
            .with_hint("save it in C order, as with `numpy.ascontiguousarray`"));
    }
    let shape = field("shape")
        .and_then(|rest| rest.strip_prefix('(')?.split_once(')'))
        .ok_or_else(damaged)?
        .0;
    let sides: Option<Vec<usize>> = shape
        .split(',')
        .map(str::trim)
        .filter(|side| !side.is_empty())
        .map(|side| side.parse().ok())
        .collect();
    let [rows, width] = sides.ok_or_else(damaged)?[..] else {
        return Err(Message::new(format!("an array of the shape ({shape})"))
            .with_hint("save one with a row per text"));
    };
    let values = match kind {
        "<f4" => read_numbers(data, f32::from_le_bytes),
        "<f8" => read_numbers(data, |bytes| f64::from_le_bytes(bytes) as f32),
        "<f2" => read_numbers(data, |bytes| f16::from_le_bytes(bytes).to_f32()),
        "|i1" => read_numbers(data, |[byte]| f32::from(byte.cast_signed())),
        "|u1" => read_numbers(data, |[byte]| f32::from(byte)),
        other => {
            return Err(Message::new(format!("values of the type `{other}`"))
                .with_hint("save them as float32"));
        }
    };
    if rows == 0 || width == 0 || rows > MAX_VECTORS {
        return Err(Message::new(format!("{rows} vectors of {width} values"))
            .with_hint(format!("expected 1 to {MAX_VECTORS}")));
    }
    let values = values.filter(|values| width.checked_mul(rows) == Some(values.len()));
    let values = values.ok_or_else(damaged)?;
    Ok(values.chunks_exact(width).map(<[f32]>::to_vec).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        let mut bytes = [NPY_MAGIC, &[1, 0], &(header.len() as u16).to_le_bytes()].concat();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(data);
        bytes
    }

    #[test]
    fn arrays_of_every_type_are_read_and_others_refused() {
        let header = |kind: &str, order: &str, shape: &str| {
            format!("{{'descr': '{kind}', 'fortran_order': {order}, 'shape': {shape}, }}\n")
        };
        let f4: Vec<u8> = [1.0_f32, -2.5, 3.0, 0.5]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let f8: Vec<u8> = [1.0_f64, -2.5, 3.0, 0.5]
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect();
        let f2: Vec<u8> = [1.0, -2.5, 3.0, 0.5]
            .iter()
            .flat_map(|value| f16::from_f32(*value).to_le_bytes())
            .collect();
        for (kind, data) in [("<f4", &f4), ("<f8", &f8), ("<f2", &f2)] {
            let found = npy(&file(&header(kind, "False", "(2, 2)"), data)).unwrap();
            assert_eq!(found, [[1.0, -2.5], [3.0, 0.5]], "{kind}");
        }
        let found = npy(&file(&header("|i1", "False", "(2, 1)"), &[1, 255])).unwrap();
        assert_eq!(found, [[1.0], [-1.0]]);
        let refused = |header: String, data: &[u8]| npy(&file(&header, data)).unwrap_err();
        insta::assert_snapshot!(refused(header("<f4", "True", "(2, 2)"), &f4), @"an array in Fortran order; save it in C order, as with `numpy.ascontiguousarray`");
        insta::assert_snapshot!(refused(header("<f4", "False", "(4,)"), &f4), @"an array of the shape (4,); save one with a row per text");
        insta::assert_snapshot!(refused(header("<i8", "False", "(2, 1)"), &f4), @"values of the type `<i8`; save them as float32");
        insta::assert_snapshot!(refused(header("<f4", "False", "(3, 2)"), &f4), @"a damaged `.npy` file");
        insta::assert_snapshot!(npy(b"text").unwrap_err(), @"another file");
        let whole = file(&header("<f4", "False", "(2, 2)"), &f4);
        assert!((0..whole.len()).all(|length| npy(&whole[..length]).is_err()));
    }
}
