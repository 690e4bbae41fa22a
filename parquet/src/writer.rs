//! Writes Parquet. Answer columns follow the input's.
//!
//! Output pieces are complete files in memory. The output contains their row groups, one after the other, and a footer
//! with their offsets at its end. Therefore a job can stop and resume after any piece.

use std::{any::Any, collections::BTreeSet, sync::Arc};

use arrow_array::{
    ArrayRef, ArrowPrimitiveType, Float32Array, RecordBatch, StringArray,
    builder::{ListBuilder, PrimitiveBuilder, StringBuilder},
    types::{Float32Type, Int8Type, UInt8Type},
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use base64::{Engine, engine::general_purpose::STANDARD};
use kivu::{Error, Result, pipeline::embedding::vectors::StoredVector};
use kivu_jobs::{
    output::answer::{Cell, CellType, Columns, ERROR_COLUMN, RowResult},
    rows::{Footer, PARQUET_MAGIC, RowWriter, Rows, WrittenPiece, free_name, mismatched},
};
use parquet::{
    arrow::ArrowWriter,
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{
            FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter,
            RowGroupMetaData,
        },
        properties::{EnabledStatistics, WriterProperties},
    },
};

use crate::batch::Batch;

/// Size of the footer length and the magic bytes, in bytes.
const FOOTER_END: usize = 8;

/// Writes an output piece.
pub struct ParquetWriter {
    writer: ArrowWriter<Vec<u8>>,
    schema: SchemaRef,
    columns: Columns,
    names: BTreeSet<String>,
}

impl ParquetWriter {
    /// Writes the columns in `rows` and the answer columns.
    pub fn new(rows: &SchemaRef, columns: Columns) -> Result<Self> {
        // Many engines ignore case.
        let is_taken = |name: &str| {
            let mut fields = rows.fields().iter();
            fields.any(|field| field.name().eq_ignore_ascii_case(name))
        };
        let all = columns
            .iter()
            .copied()
            .chain([(ERROR_COLUMN, CellType::Text)]);
        let added = all.map(|(name, cell)| {
            let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
            let column_type = match cell {
                CellType::Text | CellType::Json => DataType::Utf8,
                CellType::Number => DataType::Float32,
                CellType::Texts => list(DataType::Utf8),
                CellType::Numbers => list(DataType::Float32),
                CellType::Int8s => list(DataType::Int8),
                CellType::Uint8s => list(DataType::UInt8),
            };
            Arc::new(Field::new(free_name(name, is_taken), column_type, true))
        });
        let added: Vec<_> = added.collect();
        let names = added.iter().map(|field| field.name().clone()).collect();
        let fields: Vec<_> = rows.fields().iter().cloned().chain(added).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, rows.metadata().clone()));
        Self::with_schema(schema, columns, names)
    }

    /// Writes the columns in `schema` only.
    pub fn copying(schema: SchemaRef) -> Result<Self> {
        Self::with_schema(schema, [].into(), BTreeSet::new())
    }

    fn with_schema(schema: SchemaRef, columns: Columns, names: BTreeSet<String>) -> Result<Self> {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            // Page statistics would be between the row groups of two pieces.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            // 64-bit dates would become integers.
            .set_coerce_types(true)
            .build();
        let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties));
        Ok(Self {
            writer: writer.map_err(unwritable)?,
            schema,
            columns,
            names,
        })
    }
}

impl RowWriter for ParquetWriter {
    fn columns(&self) -> &BTreeSet<String> {
        &self.names
    }

    fn size(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    fn write(&mut self, rows: Rows, results: &mut [RowResult]) -> Result<()> {
        let Rows::Columns(rows) = rows else {
            return mismatched();
        };
        let rows: Box<dyn Any> = rows;
        let Ok(batch) = rows.downcast::<Batch>() else {
            return mismatched();
        };
        let mut columns = batch.0.columns().to_vec();
        for (place, (_, cell_type)) in self.columns.iter().enumerate() {
            let cells = results
                .iter()
                .map(|result| result.as_ref().ok()?.get(place));
            columns.push(column(*cell_type, cells));
        }
        if !self.names.is_empty() {
            let errors: StringArray = results
                .iter()
                .map(|result| {
                    let error = result.as_ref().err()?;
                    Some(error.message.to_string())
                })
                .collect();
            columns.push(Arc::new(errors));
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| unwritable(error.into()))?;
        self.writer.write(&batch).map_err(unwritable)
    }

    /// The row groups without magic and footer.
    fn finish(mut self: Box<Self>) -> Result<WrittenPiece> {
        let metadata = self.writer.finish().map_err(unwritable)?;
        let file = std::mem::take(self.writer.inner_mut());
        let end = footer_start(&file).unwrap_or(file.len());
        let bytes = file[PARQUET_MAGIC.len()..end].to_vec();
        let mut footer = Vec::new();
        ParquetMetaDataWriter::new(&mut footer, &metadata)
            .finish()
            .map_err(unwritable)?;
        Ok((bytes, Some(Footer(STANDARD.encode(footer)))))
    }
}

/// An answer column; rows with an error are null.
fn column<'a>(cell_type: CellType, cells: impl Iterator<Item = Option<&'a Cell>>) -> ArrayRef {
    match cell_type {
        CellType::Text => Arc::new(StringArray::from_iter(cells.map(|cell| match cell {
            Some(Cell::Text(text)) => Some(text),
            _ => None,
        }))),
        CellType::Number => Arc::new(Float32Array::from_iter(cells.map(|cell| match cell {
            Some(Cell::Number(number)) => Some(*number),
            _ => None,
        }))),
        CellType::Json => {
            Arc::new(StringArray::from_iter(cells.map(|cell| {
                cell.and_then(|cell| serde_json::to_string(cell).ok())
            })))
        }
        CellType::Texts => {
            let mut lists = ListBuilder::new(StringBuilder::new());
            for cell in cells {
                if let Some(Cell::Texts(texts)) = cell {
                    texts
                        .iter()
                        .for_each(|text| lists.values().append_value(text));
                }
                lists.append(cell.is_some());
            }
            Arc::new(lists.finish())
        }
        CellType::Numbers => numbers::<Float32Type>(cells, |cell| match cell {
            Cell::Numbers(numbers) | Cell::Vector(StoredVector::Float(numbers)) => Some(numbers),
            _ => None,
        }),
        CellType::Int8s => numbers::<Int8Type>(cells, |cell| match cell {
            Cell::Vector(StoredVector::Int8(numbers)) => Some(numbers),
            _ => None,
        }),
        CellType::Uint8s => numbers::<UInt8Type>(cells, |cell| match cell {
            Cell::Vector(StoredVector::Uint8(numbers)) => Some(numbers),
            _ => None,
        }),
    }
}

fn numbers<'a, T: ArrowPrimitiveType>(
    cells: impl Iterator<Item = Option<&'a Cell>>,
    values: impl Fn(&'a Cell) -> Option<&'a Vec<T::Native>>,
) -> ArrayRef {
    let mut lists = ListBuilder::new(PrimitiveBuilder::<T>::new());
    for cell in cells {
        if let Some(numbers) = cell.and_then(&values) {
            lists.values().append_slice(numbers);
        }
        lists.append(cell.is_some());
    }
    Arc::new(lists.finish())
}

fn footer_start(file: &[u8]) -> Option<usize> {
    let length = file
        .get(file.len().checked_sub(FOOTER_END)?..)?
        .first_chunk::<4>()?;
    file.len()
        .checked_sub(FOOTER_END + u32::from_le_bytes(*length) as usize)
}

fn unwritable(error: ParquetError) -> Error {
    Error::Io {
        action: "cannot write the output".into(),
        source: std::io::Error::other(error),
    }
}

fn metadata(footer: &Footer) -> Result<ParquetMetaData> {
    let bytes = STANDARD.decode(&footer.0).unwrap_or_default();
    let start = footer_start(&bytes).unwrap_or(0);
    let end = bytes.len().saturating_sub(FOOTER_END).max(start);
    ParquetMetaDataReader::decode_metadata(&bytes[start..end]).map_err(unwritable)
}

/// Joins the pieces' footers into the file's footer.
pub fn join_footers(pieces: &[(u64, Footer)]) -> Result<Vec<u8>> {
    let (mut groups, mut file): (Vec<RowGroupMetaData>, Option<FileMetaData>) = (Vec::new(), None);
    let (mut position, mut rows) = (0, 0);
    for (length, footer) in pieces {
        let metadata = metadata(footer)?;
        for group in metadata.row_groups() {
            rows += group.num_rows();
            groups.push(moved(group, position, groups.len())?);
        }
        position += *length as i64;
        file.get_or_insert_with(|| metadata.file_metadata().clone());
    }
    let file = file.ok_or_else(|| Error::invalid("expected rows, but found none"))?;
    let file = FileMetaData::new(
        file.version(),
        rows,
        file.created_by().map(str::to_owned),
        file.key_value_metadata().cloned(),
        file.schema_descr_ptr(),
        file.column_orders().cloned(),
    );
    let mut bytes = Vec::new();
    let metadata = ParquetMetaData::new(file, groups);
    ParquetMetaDataWriter::new(&mut bytes, &metadata)
        .finish()
        .map_err(unwritable)?;
    Ok(bytes)
}

/// A row group after `by` more bytes are inserted before its piece.
fn moved(group: &RowGroupMetaData, by: i64, place: usize) -> Result<RowGroupMetaData> {
    let columns = group.columns().iter().map(|column| {
        let dictionary = column.dictionary_page_offset().map(|offset| offset + by);
        let index = column.index_page_offset().map(|offset| offset + by);
        let moved = column
            .clone()
            .into_builder()
            .set_data_page_offset(column.data_page_offset() + by);
        moved
            .set_dictionary_page_offset(dictionary)
            .set_index_page_offset(index)
            .build()
    });
    let columns = columns.collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    let mut builder = group.clone().into_builder().set_column_metadata(columns);
    if let Some(offset) = group.file_offset() {
        builder = builder.set_file_offset(offset + by);
    }
    builder
        .set_ordinal(place as i32)
        .build()
        .map_err(unwritable)
}

#[cfg(test)]
mod tests {
    use arrow_array::cast::AsArray;
    use bytes::Bytes;
    use kivu_jobs::output::answer::score_column;
    use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;

    use super::*;

    #[test]
    fn pieces_make_one_file() {
        let schema = Arc::new(Schema::new(vec![Field::new(
            "score",
            DataType::Utf8,
            false,
        )]));
        let (mut file, mut pieces) = (PARQUET_MAGIC.to_vec(), Vec::new());
        for texts in [vec!["a", "b"], vec!["c"], vec!["d", "e", "f"]] {
            let mut writer = ParquetWriter::new(&schema, score_column()).unwrap();
            let mut results: Vec<RowResult> = (0..texts.len())
                .map(|place| Ok(vec![Cell::Number(place as f32)]))
                .collect();
            let column: ArrayRef = Arc::new(StringArray::from(texts));
            let rows = RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap();
            let rows = Rows::Columns(Box::new(Batch(rows)));
            writer.write(rows, &mut results).unwrap();
            let (bytes, footer) = Box::new(writer).finish().unwrap();
            pieces.push((bytes.len() as u64, footer.unwrap()));
            file.extend(bytes);
        }
        file.extend(join_footers(&pieces).unwrap());
        let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
        assert_eq!(builder.metadata().num_row_groups(), 3);
        let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
        let texts = batches
            .iter()
            .flat_map(|batch| batch.column(0).as_string::<i32>().iter().flatten());
        assert_eq!(texts.collect::<String>(), "abcdef");
        let schema = batches[0].schema();
        let names: Vec<_> = schema
            .fields()
            .iter()
            .map(|field| field.name().as_str())
            .collect();
        assert_eq!(
            names,
            ["score", "kivu_score", "error"],
            "the names of the input do not change"
        );
    }
}
