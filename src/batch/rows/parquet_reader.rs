//! Reading Parquet.

use std::sync::Arc;

use arrow_array::{Array, cast::AsArray};
use arrow_schema::{DataType, FieldRef, Schema, TimeUnit};
use parquet::{
    arrow::{
        ARROW_SCHEMA_META_KEY,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
            ParquetRecordBatchReaderBuilder,
        },
    },
    basic::{Compression, ConvertedType, Type},
    file::metadata::{ParquetMetaData, RowGroupMetaData},
};

use super::{
    chunk::{CHUNK_ROWS, Chunk, Head, Layout, RowReader, Rows},
    column::{Content, find_column},
    parquet_source::Source,
};
use crate::{
    batch::{
        answer::{ErrorKind, RowError},
        input::OpenInput,
    },
    error::{Error, Result, quoted},
};

pub(in crate::batch) struct ParquetReader {
    source: Source,
    metadata: ArrowReaderMetadata,
    batches: ParquetRecordBatchReader,
    text: usize,
    done: u64,
    rows: u64,
    notes: Vec<String>,
}

impl ParquetReader {
    /// Column names in `input`.
    pub(in crate::batch) fn names(input: OpenInput) -> Result<Vec<String>> {
        let (metadata, _) = metadata(&Source::new(input))?;
        Ok(metadata
            .schema()
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect())
    }

    /// Reads `input`, whose best column has the texts, if `layout` does not name another.
    pub(in crate::batch) fn new(input: OpenInput, layout: &Layout) -> Result<Self> {
        Self::with_column(input, |schema| {
            text_column(schema, layout.column.as_deref())
        })
    }

    /// Reads `input` for its columns, of any type; its first column is taken for the texts.
    pub(in crate::batch) fn of_columns(input: OpenInput) -> Result<Self> {
        Self::with_column(input, |schema| match schema.fields().is_empty() {
            true => Err(Error::invalid(
                "expected columns in the Parquet file, but found none",
            )),
            false => Ok(0),
        })
    }

    fn with_column(
        input: OpenInput,
        choose: impl FnOnce(&Schema) -> Result<usize>,
    ) -> Result<Self> {
        let source = Source::new(input);
        let (metadata, notes) = metadata(&source)?;
        check_codecs(metadata.metadata())?;
        check_intervals(metadata.metadata())?;
        let text = choose(metadata.schema())?;
        let rows = metadata.metadata().file_metadata().num_rows().max(0) as u64;
        let batches = batches(&source, &metadata, 0)?;
        Ok(Self {
            source,
            metadata,
            batches,
            text,
            done: 0,
            rows,
            notes,
        })
    }
}

impl RowReader for ParquetReader {
    fn head(&self) -> Head {
        Head::Parquet(Arc::clone(self.metadata.schema()))
    }

    fn column(&self) -> &str {
        self.metadata.schema().field(self.text).name()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn position(&self) -> u64 {
        0
    }

    fn share(&self) -> Option<f64> {
        Some((self.done as f64 / self.rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        self.done = rows;
        self.batches = batches(&self.source, &self.metadata, rows)?;
        Ok(())
    }

    fn next(&mut self) -> Result<Option<Chunk>> {
        let Some(batch) = self.batches.next() else {
            return if self.done == self.rows {
                Ok(None)
            } else {
                Err(self.incomplete())
            };
        };
        let batch = batch.map_err(|error| self.source.error(&error))?;
        self.done += batch.num_rows() as u64;
        let texts = texts(batch.column(self.text)).map(|text| {
            let text = text.map(str::to_owned);
            text.ok_or_else(|| RowError::new(ErrorKind::Text, "expected text, but found nothing"))
        });
        Ok(Some(Chunk {
            texts: texts.collect(),
            rows: Rows::Columns(batch.clone()),
        }))
    }
}

impl ParquetReader {
    fn incomplete(&self) -> Error {
        Error::invalid(format!(
            "expected {} rows, which the footer of the Parquet file states, but found {}",
            self.rows, self.done
        ))
    }
}

/// File metadata, and notes about types that change.
fn metadata(source: &Source) -> Result<(ArrowReaderMetadata, Vec<String>)> {
    let metadata = ArrowReaderMetadata::load(source, ArrowReaderOptions::new());
    let metadata = metadata.map_err(|error| source.error(&error))?;
    let schema = metadata.schema();
    let leaves = metadata.metadata().file_metadata().schema_descr().columns();
    let mut leaves = leaves
        .iter()
        .map(|leaf| leaf.physical_type() == Type::INT96);
    let fields: Vec<FieldRef> = schema
        .fields()
        .iter()
        .map(|field| widened(field, &mut leaves))
        .collect();
    let changed = fields
        .iter()
        .zip(schema.fields())
        .filter(|(new, old)| new != old);
    let changed: Vec<&String> = changed.map(|(new, _)| new.name()).collect();
    if changed.is_empty() {
        return Ok((metadata, Vec::new()));
    }
    let note = format!(
        "the timestamps in {} become microseconds; they are of the type INT96, whose range exceeds nanoseconds",
        quoted(&changed)
    );
    let schema = Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let options = ArrowReaderOptions::new().with_schema(schema);
    let metadata = ArrowReaderMetadata::try_new(Arc::clone(metadata.metadata()), options);
    Ok((metadata.map_err(|error| source.error(&error))?, vec![note]))
}

/// Replaces INT96 nanoseconds with microseconds in a field: 64-bit nanoseconds end in 2262. `leaves` states for each
/// primitive type, depth first, whether it is INT96.
fn widened(field: &FieldRef, leaves: &mut impl Iterator<Item = bool>) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(widened(item, leaves)),
        DataType::LargeList(item) => DataType::LargeList(widened(item, leaves)),
        DataType::FixedSizeList(item, size) => {
            DataType::FixedSizeList(widened(item, leaves), *size)
        }
        DataType::Map(entries, is_sorted) => DataType::Map(widened(entries, leaves), *is_sorted),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| widened(field, leaves)).collect())
        }
        leaf => match (leaves.next(), leaf) {
            (Some(true), DataType::Timestamp(TimeUnit::Nanosecond, zone)) => {
                DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
            }
            _ => leaf.clone(),
        },
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// The batches from row `first` on.
fn batches(
    source: &Source,
    metadata: &ArrowReaderMetadata,
    first: u64,
) -> Result<ParquetRecordBatchReader> {
    let builder =
        ParquetRecordBatchReaderBuilder::new_with_metadata(source.clone(), metadata.clone());
    let batches = builder
        .with_batch_size(CHUNK_ROWS)
        .with_offset(first as usize)
        .build();
    batches.map_err(|error| source.error(&error))
}

/// Text column index: `requested`, or the best one.
fn text_column(schema: &Schema, requested: Option<&str>) -> Result<usize> {
    let fields = schema.fields();
    let columns: Vec<_> = fields
        .iter()
        .map(|field| (field.name().clone(), content(field.data_type())))
        .collect();
    let column = find_column(requested, &columns)?;
    let place = columns
        .iter()
        .position(|(name, _)| *name == column)
        .unwrap_or_default();
    match columns.get(place) {
        Some((_, Content::Other)) => Err(Error::invalid(format!(
            "expected texts in the column `{column}`, but found {}; say which column has them with `column`",
            schema.field(place).data_type()
        ))),
        _ => Ok(place),
    }
}

fn content(found: &DataType) -> Content {
    match found {
        DataType::Null => Content::Empty,
        found if holds_text(found) => Content::Texts,
        _ => Content::Other,
    }
}

/// Refuses codecs without a decoder before the first row.
fn check_codecs(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata
        .row_groups()
        .iter()
        .flat_map(RowGroupMetaData::columns);
    let mut codecs = columns.map(|column| column.compression());
    let unknown = codecs.find(|codec| {
        !matches!(
            codec,
            Compression::UNCOMPRESSED
                | Compression::SNAPPY
                | Compression::GZIP(_)
                | Compression::LZ4
                | Compression::LZ4_RAW
                | Compression::ZSTD(_)
        )
    });
    unknown.map_or(Ok(()), |codec| {
        let name = codec.to_string();
        Err(Error::invalid(format!(
            "expected Parquet that is uncompressed or uses Snappy, gzip, LZ4 or zstd, but found {}; write the file \
             again with one of these",
            name.split('(').next().unwrap_or_default()
        )))
    })
}

/// Refuses intervals unless Arrow wrote them: reading them would drop their months.
fn check_intervals(metadata: &ParquetMetaData) -> Result<()> {
    let file = metadata.file_metadata();
    let mut keys = file.key_value_metadata().into_iter().flatten();
    let mut columns = file.schema_descr().columns().iter();
    let Some(interval) = columns.find(|column| column.converted_type() == ConvertedType::INTERVAL)
    else {
        return Ok(());
    };
    if keys.any(|entry| entry.key == ARROW_SCHEMA_META_KEY) {
        return Ok(());
    }
    Err(Error::invalid(format!(
        "expected columns of types that Kivu can write, but found the type INTERVAL in `{}`; write the file again \
         with texts or numbers in its place",
        interval.path()
    )))
}

pub(super) fn holds_text(found: &DataType) -> bool {
    match found {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => holds_text(values),
        _ => false,
    }
}

/// A column's texts; `None` for a row without one.
pub(super) fn texts(column: &dyn Array) -> Box<dyn Iterator<Item = Option<&str>> + '_> {
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Box::new(texts.iter());
    }
    if let Some(texts) = column.as_string_opt::<i64>() {
        return Box::new(texts.iter());
    }
    if let Some(texts) = column.as_string_view_opt() {
        return Box::new(texts.iter());
    }
    let dictionary = column
        .as_any_dictionary_opt()
        .filter(|dictionary| !dictionary.values().is_empty());
    let Some(dictionary) = dictionary else {
        return Box::new(std::iter::repeat_n(None, column.len()));
    };
    let words: Vec<Option<&str>> = texts(dictionary.values()).collect();
    let keys = dictionary.normalized_keys().into_iter().enumerate();
    Box::new(keys.map(move |(row, key)| words[key].filter(|_| dictionary.keys().is_valid(row))))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use arrow_array::{
        ArrayRef, DictionaryArray, LargeStringArray, RecordBatch, StringArray, StringViewArray,
        types::{Date64Type, Int8Type, TimestampMicrosecondType},
    };
    use arrow_schema::Field;
    use parquet::file::reader::{ChunkReader, Length};

    use super::*;
    use crate::batch::{
        answer::{Cell, score_column},
        output::{Pieces, Shape},
        output_form::OutputForm,
        rows::{chunk::PARQUET_MAGIC, tests::rows},
    };

    #[test]
    fn texts_of_all_types_are_read() {
        let rows = [Some("a"), None, Some("b"), Some("a")];
        let none = [None, None];
        let columns: [ArrayRef; 4] = [
            Arc::new(StringArray::from_iter(rows)),
            Arc::new(LargeStringArray::from_iter(rows)),
            Arc::new(StringViewArray::from_iter(rows)),
            Arc::new(DictionaryArray::<Int8Type>::from_iter(rows)),
        ];
        for column in columns {
            assert!(holds_text(column.data_type()));
            assert_eq!(
                texts(&column).collect::<Vec<_>>(),
                rows,
                "{}",
                column.data_type()
            );
        }
        let empty: DictionaryArray<Int8Type> = none.into_iter().collect();
        assert_eq!(texts(&empty).collect::<Vec<_>>(), none);
    }

    /// Rows in a `tests/fixtures/parquet` file after they were read and written, and the notes.
    fn copied(name: &str) -> (Vec<RecordBatch>, Vec<String>) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/fixtures/parquet")
            .join(name);
        let input = OpenInput::file(&path).unwrap();
        let mut reader = ParquetReader::new(input, &Layout::default()).unwrap();
        let mut pieces = Pieces::new(Shape::of(&reader, OutputForm::default(), score_column()));
        while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
            let mut results: Vec<_> = texts.iter().map(|_| Ok(vec![Cell::Number(0.5)])).collect();
            pieces.write(rows, &mut results).unwrap();
        }
        (rows(pieces.take_last().unwrap()), reader.notes().to_vec())
    }

    #[test]
    fn timestamps_of_int96_keep_their_years() {
        let (rows, notes) = copied("int96.parquet");
        let expected = [
            -14_831_672_154_321_099,
            1_767_225_600_000_000,
            253_402_300_799_000_000_i64,
        ];
        for (row, expected) in rows.iter().zip(expected) {
            let time = row.column(1).as_primitive::<TimestampMicrosecondType>();
            assert_eq!(time.value(0), expected);
            let times = row.column(2).as_list::<i32>().value(0);
            assert_eq!(
                times.as_primitive::<TimestampMicrosecondType>().value(0),
                expected
            );
        }
        assert_eq!(rows.len(), 3);
        insta::assert_snapshot!(notes.join("\n"), @"the timestamps in `time`, `times` become microseconds; they are of the type INT96, whose range exceeds nanoseconds");
    }

    #[test]
    fn dates_of_64_bits_stay_dates() {
        let (rows, notes) = copied("date64.parquet");
        assert!(notes.is_empty());
        let days = rows
            .iter()
            .map(|row| row.column(1).as_primitive::<Date64Type>().value(0));
        assert_eq!(
            days.collect::<Vec<_>>(),
            [-62_135_596_800_000, 253_402_214_400_000]
        );
        let days = rows[0].column(2).as_list::<i32>().value(0);
        assert_eq!(
            days.as_primitive::<Date64Type>().value(0),
            1_767_225_600_000
        );
    }

    #[test]
    fn known_names_take_precedence_over_types() {
        let of = |fields: Vec<(&str, DataType)>| {
            let fields: Vec<Field> = fields
                .into_iter()
                .map(|(name, data_type)| Field::new(name, data_type, true))
                .collect();
            text_column(&Schema::new(fields), None).map_err(|error| error.to_string())
        };
        let (text, number, null) = (DataType::Utf8, DataType::Int64, DataType::Null);
        assert_eq!(
            of(vec![("id", text.clone()), ("review", null)]),
            Ok(1),
            "a column of nulls only"
        );
        assert_eq!(
            of(vec![("text", number.clone()), ("title", text.clone())]),
            Ok(1)
        );
        assert_eq!(
            of(vec![("n", number.clone()), ("opinion", text.clone())]),
            Ok(1)
        );
        insta::assert_snapshot!(of(vec![("id", text), ("review", number)]).unwrap_err(), @"expected texts in the column `review`, but found Int64; say which column has them with `column`");
    }

    #[test]
    fn references_outside_of_the_file_are_errors() {
        let path =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/parquet/none.parquet");
        let source = Source::new(OpenInput::file(&path).unwrap());
        let size = source.len();
        for (start, length) in [(0, 1 << 50), (size, 1), (size + 1, 0), (u64::MAX, 1)] {
            assert!(
                source.get_bytes(start, length).is_err(),
                "{length} bytes at {start}"
            );
        }
        assert!(source.get_read(size + 1).is_err());
        assert_eq!(source.get_bytes(0, 4).unwrap(), PARQUET_MAGIC);
    }
}
