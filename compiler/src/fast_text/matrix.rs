//! Matrices: floats, or product-quantized rows.

use super::reader::Reader;
use kivu::{Error, Result};

/// Centroids per part of a row: a code is a byte.
const CENTROIDS: usize = 256;
/// Maximum values per code, which limits how far a file can expand. fastText's default is 2.
const MAX_VALUES_PER_CODE: usize = 16;

pub struct Matrix {
    pub rows: usize,
    pub columns: usize,
    /// Row by row.
    pub values: Vec<f32>,
}

impl Matrix {
    /// Reads floats.
    pub fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let [rows, columns] = ["rows", "columns"].map(|what| reader.long_count(what));
        let (rows, columns) = (rows?, columns?);
        Ok(Self {
            rows,
            columns,
            values: reader.floats(rows.saturating_mul(columns))?,
        })
    }

    /// Reads a quantized matrix, to the floats that fastText computes with.
    pub fn read_quantized(reader: &mut Reader<'_>) -> Result<Self> {
        let has_norms = reader.flag()?;
        let [rows, columns] = ["rows", "columns"].map(|what| reader.long_count(what));
        let (rows, columns, size) = (rows?, columns?, reader.count("codes")?);
        let codes = reader.take(size)?;
        let quantizer = Quantizer::read(reader)?;
        if quantizer.columns != columns || rows.checked_mul(quantizer.parts) != Some(size) {
            return Err(Error::model(format!(
                "expected {rows} × {columns} quantized weights, but found {size} codes for rows of \
                 {}",
                quantizer.columns
            ))
            .with_hint("the file is damaged"));
        }
        let norms = match has_norms {
            false => None,
            true => {
                let codes = reader.take(rows)?;
                let quantizer = Quantizer::read(reader)?;
                if (quantizer.columns, quantizer.parts) != (1, 1) {
                    return Err(
                        Error::model("expected a norm for each row, but found vectors")
                            .with_hint("the file is damaged"),
                    );
                }
                Some((codes, quantizer))
            }
        };
        let mut values = Vec::with_capacity(rows.saturating_mul(columns));
        for (row, codes) in codes.chunks_exact(quantizer.parts.max(1)).enumerate() {
            let norm = norms
                .as_ref()
                .map_or(1.0, |(codes, norms)| norms.values(0, codes[row])[0]);
            for (part, code) in codes.iter().enumerate() {
                values.extend(
                    quantizer
                        .values(part, *code)
                        .iter()
                        .map(|value| norm * value),
                );
            }
        }
        Ok(Self {
            rows,
            columns,
            values,
        })
    }
}

/// Centroids for each part of a row.
struct Quantizer {
    columns: usize,
    parts: usize,
    /// Values per part.
    width: usize,
    /// Values in the last part.
    last_width: usize,
    centroids: Vec<f32>,
}

impl Quantizer {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let counts = [
            "columns",
            "parts",
            "values per part",
            "values of the last part",
        ];
        let [columns, parts, width, last_width] = counts.map(|what| reader.count(what));
        let (columns, parts, width, last_width) = (columns?, parts?, width?, last_width?);
        let is_whole = (1..=width).contains(&last_width)
            && parts > 0
            && (parts - 1)
                .checked_mul(width)
                .and_then(|before| before.checked_add(last_width))
                == Some(columns);
        if !is_whole || width > MAX_VALUES_PER_CODE {
            return Err(Error::model(format!(
                "expected parts of 1 to {MAX_VALUES_PER_CODE} weights, but found {columns} weights \
                 in {parts} parts of {width} and a last one of {last_width}"
            ))
            .with_hint("quantize the model again with `-dsub 2`"));
        }
        let centroids = reader.floats(columns.saturating_mul(CENTROIDS))?;
        Ok(Self {
            columns,
            parts,
            width,
            last_width,
            centroids,
        })
    }

    /// A code's values.
    fn values(&self, part: usize, code: u8) -> &[f32] {
        let width = if part + 1 == self.parts {
            self.last_width
        } else {
            self.width
        };
        let start = part * CENTROIDS * self.width + usize::from(code) * width;
        &self.centroids[start..start + width]
    }
}
