//! Reading Parquet.

use std::{collections::BTreeMap, ops::Range, sync::Arc};

use arrow_array::{Array, RecordBatch, make_array};
use arrow_schema::{
    DataType, Field, FieldRef, Schema, SchemaRef, TimeUnit,
    extension::{EXTENSION_TYPE_METADATA_KEY, EXTENSION_TYPE_NAME_KEY},
};
use kivu::{Error, Result, error::quoted};
use kivu_jobs::{
    input::opened::OpenInput,
    output::answer::{ErrorKind, RowError},
    rows::{CHUNK_ROWS, Chunk, Content, Head, Layout, RowReader, Rows, find_column},
};
use parquet::{
    arrow::{
        ARROW_SCHEMA_META_KEY,
        arrow_reader::{
            ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
            ParquetRecordBatchReaderBuilder,
        },
        parquet_to_arrow_schema,
    },
    basic::{Compression, ConvertedType, LogicalType, Type},
    errors::Result as ParquetResult,
    file::metadata::{FileMetaData, KeyValue, ParquetMetaData, RowGroupMetaData},
    schema::types::{self, ColumnDescPtr, ColumnDescriptor},
};

use crate::{
    batch::Batch,
    columns::FileColumns,
    source::Source,
    text::{bytes_of_text, holds_text, invalid_byte, stored_bytes, text_of_bytes, texts},
};

/// The crate's mark for times of day in UTC.
const IN_UTC: &str = "adjusted_to_utc";

pub struct ParquetReader {
    source: Source,
    /// The rows' types.
    schema: SchemaRef,
    /// Texts are read as bytes, since the reader would refuse all rows for one that is not UTF-8.
    metadata: ArrowReaderMetadata,
    batches: ParquetRecordBatchReader,
    text: usize,
    /// Rows before the next one.
    done: u64,
    /// Rows up to the last one that is read.
    rows: u64,
    notes: Vec<String>,
}

impl ParquetReader {
    /// Column names in `input`.
    pub fn names(input: OpenInput) -> Result<Vec<String>> {
        let (_, schema, _) = metadata(&Source::new(input))?;
        Ok(schema
            .fields()
            .iter()
            .map(|field| field.name().clone())
            .collect())
    }

    /// Reads the rows in a range, or all. The best column has the texts, if `layout` does not name another.
    pub fn new(input: OpenInput, layout: &Layout, range: Option<Range<u64>>) -> Result<Self> {
        Self::with_column(input, range, |schema| {
            text_column(schema, layout.column.as_deref())
        })
    }

    /// Reads `input` for its columns, of any type; its first column is taken for the texts.
    pub fn of_columns(input: OpenInput) -> Result<Self> {
        Self::with_column(input, None, |schema| match schema.fields().is_empty() {
            true => Err(Error::invalid(
                "expected columns in the Parquet file, but found none",
            )),
            false => Ok(0),
        })
    }

    fn with_column(
        input: OpenInput,
        range: Option<Range<u64>>,
        choose: impl FnOnce(&Schema) -> Result<usize>,
    ) -> Result<Self> {
        let source = Source::new(input);
        let (metadata, schema, notes) = metadata(&source)?;
        check_codecs(metadata.metadata())?;
        check_types(metadata.metadata())?;
        let text = choose(&schema)?;
        let count = metadata.metadata().file_metadata().num_rows().max(0) as u64;
        let rows = range.as_ref().map_or(count, |range| range.end);
        let range = range.unwrap_or(0..u64::MAX);
        let done = range.start;
        let batches = batches(&source, &metadata, range)?;
        Ok(Self {
            source,
            schema,
            metadata,
            batches,
            text,
            done,
            rows,
            notes,
        })
    }
}

impl RowReader for ParquetReader {
    fn head(&self) -> Head {
        Head::Parquet(Arc::new(FileColumns(Arc::clone(&self.schema))))
    }

    fn column(&self) -> &str {
        self.schema.field(self.text).name()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }

    fn position(&self) -> u64 {
        0
    }

    fn rows(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn share(&self) -> Option<f64> {
        Some((self.done as f64 / self.rows.max(1) as f64).clamp(0.0, 1.0))
    }

    fn skip(&mut self, rows: u64) -> Result<()> {
        self.done = rows;
        self.batches = batches(&self.source, &self.metadata, rows..u64::MAX)?;
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
        let batch = batch.map_err(|error| {
            let place = format_args!("after row {}: {error}", self.done);
            self.source.error(&place)
        })?;
        let (batch, mut errors) = self.decoded(&batch)?;
        self.done += batch.num_rows() as u64;
        let texts = texts(batch.column(self.text))
            .enumerate()
            .map(|(row, text)| {
                if let Some(error) = errors.remove(&row) {
                    return Err(error);
                }
                let text = text.map(str::to_owned);
                text.ok_or_else(|| {
                    RowError::new(ErrorKind::Text, "expected text, but found nothing")
                })
            });
        Ok(Some(Chunk {
            texts: texts.collect(),
            rows: Rows::Columns(Box::new(Batch(batch.clone()))),
        }))
    }
}

impl ParquetReader {
    /// The rows with texts, and the errors of those with bytes that are not UTF-8, which are replaced.
    fn decoded(&self, batch: &RecordBatch) -> Result<(RecordBatch, BTreeMap<usize, RowError>)> {
        let wrong = |error| self.source.error(&error);
        let (mut columns, mut errors) = (Vec::new(), BTreeMap::new());
        for (field, column) in self.schema.fields().iter().zip(batch.columns()) {
            let (data, is_replaced) =
                text_of_bytes(column.to_data(), field.data_type()).map_err(wrong)?;
            columns.push(make_array(data));
            for row in (0..column.len()).filter(|_| is_replaced) {
                let Some(byte) = invalid_byte(column, row, field.data_type()) else {
                    continue;
                };
                let message = format!(
                    "expected UTF-8, but found the byte 0x{byte:02x} in `{}`",
                    field.name()
                );
                let error = RowError::new(ErrorKind::Row, message).with_hint("convert the column");
                errors.entry(row).or_insert(error);
            }
        }
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns).map_err(wrong)?;
        Ok((batch, errors))
    }

    fn incomplete(&self) -> Error {
        Error::invalid(format!(
            "expected {} rows, which the footer of the Parquet file states, but found {}",
            self.rows, self.done
        ))
    }
}

/// File metadata, with texts as bytes, the rows' types, and notes about types that change.
fn metadata(source: &Source) -> Result<(ArrowReaderMetadata, SchemaRef, Vec<String>)> {
    let wrong = |error| source.error(&error);
    let found = ArrowReaderMetadata::load(source, ArrowReaderOptions::new()).map_err(wrong)?;
    let stored = found.metadata().file_metadata().schema_descr();
    let schema = found.schema();
    let changed = |fields: &[FieldRef], change: fn(&Field, &ColumnDescriptor) -> Field| {
        let mut columns = stored.columns().iter();
        let mut leaf = |field: &Field| match columns.next() {
            Some(column) => change(field, column),
            None => field.clone(),
        };
        let fields = fields.iter().map(|field| mapped(field, &mut leaf));
        fields.collect::<Vec<FieldRef>>()
    };
    let mut zones = zones(found.metadata().file_metadata())
        .map_err(wrong)?
        .into_iter();
    let mut in_zone = |field: &Field| match (field.data_type(), zones.next().flatten()) {
        (DataType::Timestamp(unit, Some(_)), zone @ Some(_)) => field
            .clone()
            .with_data_type(DataType::Timestamp(*unit, zone)),
        _ => field.clone(),
    };
    let fields = schema.fields().iter();
    let fields: Vec<_> = fields.map(|field| mapped(field, &mut in_zone)).collect();
    let fields = changed(&fields, typed);
    let of_bytes = changed(&fields, |field, _| {
        let bytes = bytes_of_text(field.data_type());
        field.clone().with_data_type(bytes)
    });
    let fields = changed(&fields, marked);
    let is_int96 = |column: &&ColumnDescPtr| column.physical_type() == Type::INT96;
    let int96 = stored.columns().iter().filter(is_int96);
    let mut int96: Vec<_> = int96
        .map(|column| column.path().parts()[0].as_str())
        .collect();
    int96.dedup();
    let notes = if int96.is_empty() {
        Vec::new()
    } else {
        vec![format!(
            "the timestamps in {} become microseconds; they are of the type INT96, whose range exceeds nanoseconds",
            quoted(&int96)
        )]
    };
    let with = |fields| Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()));
    let options = ArrowReaderOptions::new()
        .with_parquet_schema(stored_bytes(stored).map_err(wrong)?)
        .with_schema(with(of_bytes));
    let metadata = ArrowReaderMetadata::load(source, options).map_err(wrong)?;
    Ok((metadata, with(fields), notes))
}

/// Replaces the fields without fields of their own within a field, depth first.
fn mapped(field: &FieldRef, leaf: &mut impl FnMut(&Field) -> Field) -> FieldRef {
    let data_type = match field.data_type() {
        DataType::List(item) => DataType::List(mapped(item, leaf)),
        DataType::LargeList(item) => DataType::LargeList(mapped(item, leaf)),
        DataType::ListView(item) => DataType::ListView(mapped(item, leaf)),
        DataType::LargeListView(item) => DataType::LargeListView(mapped(item, leaf)),
        DataType::FixedSizeList(item, size) => DataType::FixedSizeList(mapped(item, leaf), *size),
        DataType::Map(entries, is_sorted) => DataType::Map(mapped(entries, leaf), *is_sorted),
        DataType::Struct(fields) => {
            DataType::Struct(fields.iter().map(|field| mapped(field, leaf)).collect())
        }
        _ => return Arc::new(leaf(field)),
    };
    Arc::new(field.as_ref().clone().with_data_type(data_type))
}

/// The field with the type that is written: microseconds for INT96, since 64-bit nanoseconds end in 2262 and seconds have
/// no type in Parquet; and texts for enumerations, which Arrow takes for bytes.
fn typed(field: &Field, column: &ColumnDescriptor) -> Field {
    let is_enum = column.logical_type_ref() == Some(&LogicalType::Enum)
        || column.converted_type() == ConvertedType::ENUM;
    let data_type = match field.data_type() {
        DataType::Timestamp(_, zone) if column.physical_type() == Type::INT96 => {
            DataType::Timestamp(TimeUnit::Microsecond, zone.clone())
        }
        DataType::Binary if is_enum => DataType::Utf8,
        other => other.clone(),
    };
    field.clone().with_data_type(data_type)
}

/// The time zones in the schema that Arrow keeps in a file, by column. The crate drops those of columns with another unit
/// there, such as the milliseconds that are written for Spark.
fn zones(file: &FileMetaData) -> ParquetResult<Vec<Option<Arc<str>>>> {
    let stored = stored_bytes(file.schema_descr())?;
    let schema = parquet_to_arrow_schema(&stored, file.key_value_metadata())?;
    let mut zones = Vec::new();
    let mut zone = |field: &Field| {
        zones.push(match field.data_type() {
            DataType::Timestamp(_, zone) => zone.clone(),
            _ => None,
        });
        field.clone()
    };
    for field in schema.fields() {
        mapped(field, &mut zone);
    }
    Ok(zones)
}

/// The field with marks for what Arrow's types do not have: times of day in UTC, as all are without a logical type, and
/// JSON, which the crate marks only if it is a logical type.
fn marked(field: &Field, column: &ColumnDescriptor) -> Field {
    let mut field = field.clone();
    let marks: &[(&str, &str)] = match (column.logical_type_ref(), column.converted_type()) {
        (Some(LogicalType::Time(time)), _) if time.is_adjusted_to_u_t_c => &[(IN_UTC, "")],
        (None, ConvertedType::TIME_MILLIS | ConvertedType::TIME_MICROS) => &[(IN_UTC, "")],
        (None, ConvertedType::JSON) => &[
            (EXTENSION_TYPE_NAME_KEY, "arrow.json"),
            (EXTENSION_TYPE_METADATA_KEY, ""),
        ],
        _ => &[],
    };
    let marks = marks
        .iter()
        .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    field.metadata_mut().extend(marks);
    field
}

/// The batches with these rows, from the row groups that have them.
fn batches(
    source: &Source,
    metadata: &ArrowReaderMetadata,
    rows: Range<u64>,
) -> Result<ParquetRecordBatchReader> {
    let (mut groups, mut skipped, mut end) = (Vec::new(), 0, 0);
    for (place, group) in metadata.metadata().row_groups().iter().enumerate() {
        let start = end;
        end += group.num_rows().max(0) as u64;
        if end <= rows.start {
            skipped = end;
        } else if start < rows.end {
            groups.push(place);
        }
    }
    let builder =
        ParquetRecordBatchReaderBuilder::new_with_metadata(source.clone(), metadata.clone());
    let batches = builder
        .with_batch_size(CHUNK_ROWS)
        .with_row_groups(groups)
        .with_offset((rows.start - skipped) as usize)
        .with_limit((rows.end - rows.start) as usize)
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
            "expected texts in the column `{column}`, but found {}",
            schema.field(place).data_type()
        ))
        .with_hint("say which column has them with `column`")),
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
            "expected Parquet that is uncompressed or uses Snappy, gzip, LZ4 or zstd, but found {}",
            name.split('(').next().unwrap_or_default()
        ))
        .with_hint("write the file again with one of these"))
    })
}

/// Refuses types that would be written as others: intervals, whose months reading would drop unless Arrow wrote them, and
/// those that Arrow takes for bytes.
fn check_types(metadata: &ParquetMetaData) -> Result<()> {
    let file = metadata.file_metadata();
    let mut keys = file.key_value_metadata().into_iter().flatten();
    let arrow_schema = keys.find(|entry| entry.key == ARROW_SCHEMA_META_KEY);
    let Some((found, name)) = lost(file.schema_descr().root_schema(), arrow_schema) else {
        return Ok(());
    };
    Err(Error::invalid(format!(
        "expected columns of types that Kivu can write, but found the type {found} in `{name}`"
    ))
    .with_hint("write the file again with texts or numbers in its place"))
}

/// A type that would be written as another one, and its column.
fn lost<'a>(
    column: &'a types::Type,
    arrow_schema: Option<&KeyValue>,
) -> Option<(&'static str, &'a str)> {
    let info = column.get_basic_info();
    let found = match info.logical_type_ref() {
        _ if info.converted_type() == ConvertedType::INTERVAL && arrow_schema.is_none() => {
            "INTERVAL"
        }
        Some(LogicalType::Geometry(_)) => "GEOMETRY",
        Some(LogicalType::Geography(_)) => "GEOGRAPHY",
        Some(LogicalType::Variant(_)) => "VARIANT",
        _ if info.converted_type() == ConvertedType::BSON => "BSON",
        _ if column.is_group() => {
            let mut fields = column.get_fields().iter();
            return fields.find_map(|field| lost(field, arrow_schema));
        }
        _ => return None,
    };
    Some((found, info.name()))
}

#[cfg(test)]
mod tests {
    use arrow_array::{
        ArrayRef, DictionaryArray, LargeStringArray, StringArray, StringViewArray, StructArray,
        builder::{ListBuilder, MapBuilder, StringBuilder},
        cast::AsArray,
        types::{Date64Type, Int8Type, TimestampMicrosecondType},
    };
    use bytes::Bytes;
    use kivu_jobs::{
        output::{
            answer::{Cell, score_column},
            output_form::OutputForm,
            pieces::{Pieces, Shape},
        },
        rows::PARQUET_MAGIC,
    };
    use parquet::{
        arrow::{ArrowWriter, encode_arrow_schema},
        column::writer::ColumnWriter,
        data_type::{ByteArray, ByteArrayType},
        file::{
            properties::WriterProperties,
            reader::{ChunkReader, FileReader, Length, SerializedFileReader},
            writer::SerializedFileWriter,
        },
        schema::{parser::parse_message_type, printer::print_schema},
    };

    use super::*;
    use crate::tests::{fixture, rows};

    /// Rows in a `tests/fixtures/parquet` file after they were read and written, and the notes.
    fn copied(name: &str) -> (Vec<RecordBatch>, Vec<String>) {
        let input = OpenInput::file(&fixture(name)).unwrap();
        let mut reader = ParquetReader::new(input, &Layout::default(), None).unwrap();
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

    /// Rows in a file after they were read and written, and their errors.
    fn copied_rows(file: &[u8]) -> (Vec<RecordBatch>, Vec<Option<String>>) {
        let (output, errors) = output(file);
        (rows(output), errors)
    }

    /// A file that was read and written, and the rows' errors.
    fn output(file: &[u8]) -> (Vec<u8>, Vec<Option<String>>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        std::fs::write(&path, file).unwrap();
        let input = OpenInput::file(&path).unwrap();
        let mut reader = ParquetReader::new(input, &Layout::default(), None).unwrap();
        let mut pieces = Pieces::new(Shape::of(&reader, OutputForm::default(), score_column()));
        let mut errors = Vec::new();
        while let Some(Chunk { texts, rows }) = reader.next().unwrap() {
            let mut results: Vec<_> = texts
                .into_iter()
                .map(|text| text.map(|_| vec![Cell::Number(0.5)]))
                .collect();
            errors.extend(results.iter().map(|result| {
                let error = result.as_ref().err()?;
                Some(format!("{}: {}", error.kind.name(), error.message))
            }));
            pieces.write(rows, &mut results).unwrap();
        }
        (pieces.take_last().unwrap(), errors)
    }

    #[test]
    fn values_that_are_not_utf8_are_row_errors_in_columns_of_every_type() {
        let texts = ["a", "BAD", "c", "d"];
        let strings = || StringArray::from_iter_values(texts);
        let (mut lists, mut maps) = (
            ListBuilder::new(StringBuilder::new()),
            MapBuilder::new(None, StringBuilder::new(), StringBuilder::new()),
        );
        for text in texts {
            lists.append_value([Some("x"), None, Some(text)]);
            maps.keys().append_value("key");
            maps.values().append_value(text);
            maps.append(true).unwrap();
        }
        let field = Arc::new(Field::new("inner", DataType::Utf8, false));
        let columns: [ArrayRef; 7] = [
            Arc::new(strings()),
            Arc::new(LargeStringArray::from_iter_values(texts)),
            Arc::new(StringViewArray::from_iter_values(texts)),
            Arc::new(texts.into_iter().collect::<DictionaryArray<Int8Type>>()),
            Arc::new(StructArray::from(vec![(
                field,
                Arc::new(strings()) as ArrayRef,
            )])),
            Arc::new(lists.finish()),
            Arc::new(maps.finish()),
        ];
        let text: ArrayRef = Arc::new(StringArray::from_iter_values(["t", "u", "v", "w"]));
        for column in columns {
            let found = column.data_type().clone();
            let batch = RecordBatch::try_from_iter([("text", Arc::clone(&text)), ("note", column)]);
            let batch = batch.unwrap();
            let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
            writer.write(&batch).unwrap();
            let mut file = writer.into_inner().unwrap();
            let (unchanged, errors) = copied_rows(&file);
            assert!(errors.iter().all(Option::is_none), "{found}");
            let kept =
                |rows: &[RecordBatch]| [0, 2, 3].map(|row| rows[row].project(&[0, 1]).unwrap());
            for place in 0..file.len() - 3 {
                if &file[place..place + 3] == b"BAD" {
                    file[place] = 0xff;
                }
            }
            let (rows, errors) = copied_rows(&file);
            assert_eq!(kept(&rows), kept(&unchanged), "{found}");
            let expected =
                "row: expected UTF-8, but found the byte 0xff in `note`; convert the column";
            assert_eq!(
                errors,
                [None, Some(expected.to_owned()), None, None],
                "{found}"
            );
            let row = format!("{:?}", rows[1]);
            assert!(row.contains("\u{fffd}AD"), "{row}");
        }
    }

    /// The crate reads JSON without checks.
    #[test]
    fn texts_and_json_that_are_not_utf8_are_row_errors() {
        let schema = "message rows { required binary text (UTF8); required binary json (JSON); }";
        let schema = Arc::new(parse_message_type(schema).unwrap());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, Arc::default()).unwrap();
        let mut group = writer.next_row_group().unwrap();
        let columns: [[&[u8]; 4]; 2] = [
            [b"a", b"b\x80", b"c", b"\xfe"],
            [b"{}", b"{}", b"\"\xc3\"", b"\xff"],
        ];
        for values in columns {
            let mut column = group.next_column().unwrap().unwrap();
            let values = values.map(|value| ByteArray::from(value.to_vec()));
            column
                .typed::<ByteArrayType>()
                .write_batch(&values, None, None)
                .unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        let (rows, errors) = copied_rows(&file);
        let errors: Vec<_> = errors.iter().map(Option::as_deref).collect();
        insta::assert_debug_snapshot!(errors, @r#"
        [
            None,
            Some(
                "row: expected UTF-8, but found the byte 0x80 in `text`; convert the column",
            ),
            Some(
                "row: expected UTF-8, but found the byte 0xc3 in `json`; convert the column",
            ),
            Some(
                "row: expected UTF-8, but found the byte 0xfe in `text`; convert the column",
            ),
        ]
        "#);
        let values = |row: usize, column| {
            rows[row]
                .column(column)
                .as_string::<i32>()
                .value(0)
                .to_owned()
        };
        assert_eq!(
            [values(0, 0), values(1, 0), values(2, 1)],
            ["a", "b\u{fffd}", "\"\u{fffd}\""]
        );
    }

    /// A file with a row of nulls in these optional columns, beside a text.
    fn of_nulls(columns: &str, metadata: Option<&Schema>) -> Vec<u8> {
        let schema = format!("message rows {{ optional binary text (UTF8); {columns} }}");
        let schema = Arc::new(parse_message_type(&schema).unwrap());
        let arrow = metadata.map(|arrow| {
            let value = encode_arrow_schema(arrow);
            vec![KeyValue::new(ARROW_SCHEMA_META_KEY.to_owned(), value)]
        });
        let properties = WriterProperties::builder().set_key_value_metadata(arrow);
        let properties = Arc::new(properties.build());
        let mut file = Vec::new();
        let mut writer = SerializedFileWriter::new(&mut file, schema, properties).unwrap();
        let mut group = writer.next_row_group().unwrap();
        while let Some(mut column) = group.next_column().unwrap() {
            match column.untyped() {
                ColumnWriter::ByteArrayColumnWriter(it) => it.write_batch(&[], Some(&[0]), None),
                ColumnWriter::Int64ColumnWriter(it) => it.write_batch(&[], Some(&[0]), None),
                ColumnWriter::Int96ColumnWriter(it) => it.write_batch(&[], Some(&[0]), None),
                _ => panic!("another type"),
            }
            .unwrap();
            column.close().unwrap();
        }
        group.close().unwrap();
        writer.close().unwrap();
        file
    }

    #[test]
    fn types_that_arrow_lacks_stay_or_are_refused() {
        let written = |file: &[u8]| {
            let reader = SerializedFileReader::new(Bytes::from(output(file).0)).unwrap();
            let mut shown = Vec::new();
            print_schema(&mut shown, reader.metadata().file_metadata().schema());
            let shown = String::from_utf8(shown).unwrap();
            let lines = shown.lines().map(str::trim);
            let own = lines.filter(|line| line.contains("time") || line.contains("kind"));
            own.collect::<Vec<_>>().join("\n")
        };
        let columns = "optional int64 time (TIME(MICROS,true)); optional int64 local_time (TIME(MICROS,false)); \
             optional int64 old_time (TIME_MICROS); optional group inner { optional binary kind (ENUM); }";
        insta::assert_snapshot!(written(&of_nulls(columns, None)), @"
        OPTIONAL INT64 time (TIME(MICROS,true));
        OPTIONAL INT64 local_time (TIME(MICROS,false));
        OPTIONAL INT64 old_time (TIME(MICROS,true));
        OPTIONAL BYTE_ARRAY kind (STRING);
        ");
        let seconds = DataType::Timestamp(TimeUnit::Second, None);
        let arrow = Schema::new(vec![
            Field::new("text", DataType::Utf8, true),
            Field::new("time", seconds, true),
        ]);
        insta::assert_snapshot!(written(&of_nulls("optional int96 time;", Some(&arrow))), @"OPTIONAL INT64 time (TIMESTAMP(MICROS,false));");
        for found in ["GEOMETRY", "VARIANT", "BSON"] {
            let column = match found {
                "VARIANT" => "optional group v (VARIANT) { optional binary metadata; }".to_owned(),
                _ => format!("optional binary v ({found});"),
            };
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("a.parquet");
            std::fs::write(&path, of_nulls(&column, None)).unwrap();
            let input = OpenInput::file(&path).unwrap();
            let refused = ParquetReader::new(input, &Layout::default(), None).err();
            let expected = format!("but found the type {found} in `v`");
            assert!(refused.unwrap().to_string().contains(&expected));
        }
    }

    /// Files of fastparquet have no logical types.
    #[test]
    fn json_without_a_logical_type_stays_json() {
        let json = types::Type::primitive_type_builder("a", Type::BYTE_ARRAY)
            .with_converted_type(ConvertedType::JSON)
            .build();
        let column = ColumnDescriptor::new(Arc::new(json.unwrap()), 0, 0, "a".into());
        let field = marked(&Field::new("a", DataType::Utf8, true), &column);
        assert_eq!(field.extension_type_name(), Some("arrow.json"));
    }

    #[test]
    fn timestamps_keep_their_time_zone_in_another_unit() {
        let zoned = |unit| {
            Field::new(
                "time",
                DataType::Timestamp(unit, Some("Asia/Tokyo".into())),
                true,
            )
        };
        let arrow = |unit| {
            let inner = DataType::Struct([Arc::new(zoned(unit))].into());
            let text = Field::new("text", DataType::Utf8, true);
            Schema::new(vec![text, zoned(unit), Field::new("inner", inner, true)])
        };
        let columns = "optional int64 time (TIMESTAMP(MILLIS,true)); \
             optional group inner { optional int64 time (TIMESTAMP(MILLIS,true)); }";
        for unit in [
            TimeUnit::Second,
            TimeUnit::Millisecond,
            TimeUnit::Nanosecond,
        ] {
            let (rows, _) = copied_rows(&of_nulls(columns, Some(&arrow(unit))));
            let expected = arrow(TimeUnit::Millisecond);
            let kept = rows[0].schema().project(&[0, 1, 2]).unwrap();
            assert_eq!(kept.fields(), expected.fields());
        }
        // Times without a zone get none.
        let naive = columns.replace("true", "false");
        let (rows, _) = copied_rows(&of_nulls(&naive, Some(&arrow(TimeUnit::Second))));
        let none = DataType::Timestamp(TimeUnit::Millisecond, None);
        assert_eq!(*rows[0].column(1).data_type(), none);
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
        let source = Source::new(OpenInput::file(&fixture("none.parquet")).unwrap());
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
