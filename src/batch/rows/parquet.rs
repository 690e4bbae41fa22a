//! Parquet: rows come out in the columns that they went in, with the answer in columns at their end.
//!
//! Output is made in pieces that are whole files in memory. Their row groups stand one behind the other in the
//! output, and one footer at its end tells where: so a job can stop after any piece and go on later, and the
//! output of many jobs can be joined.

use std::{collections::BTreeSet, sync::Arc};

use arrow_array::{
    Array, ArrayRef, Float32Array, RecordBatch, StringArray,
    builder::{Float32Builder, ListBuilder, StringBuilder},
    cast::AsArray,
};
use arrow_schema::{DataType, Field, Schema};
use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::Bytes;
use parquet::{
    arrow::{
        ArrowWriter,
        arrow_reader::{ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder},
    },
    basic::{Compression, ZstdLevel},
    errors::ParquetError,
    file::{
        metadata::{
            FileMetaData, ParquetMetaData, ParquetMetaDataReader, ParquetMetaDataWriter, RowGroupMetaData,
        },
        properties::{EnabledStatistics, WriterProperties},
        reader::{ChunkReader, Length},
    },
};
use serde::{Deserialize, Serialize};

use super::{CHUNK_ROWS, Chunk, MAGIC, Outcome, Position, RowError, Rows, find_column, free_name};
use crate::{
    batch::{
        answer::{Answer, Kind},
        input::Place,
    },
    error::{Error, Result},
};

/// The columns of a file, which those of answers join.
pub(in crate::batch) type FileSchema = Arc<Schema>;
/// Rows of a file, column by column.
pub(in crate::batch) type Columns = RecordBatch;

/// The length of a footer's length, and the magic behind it.
const FOOTER_END: usize = 8;

/// The rows of a file.
pub(in crate::batch) struct ParquetReader {
    place: Place,
    batches: ParquetRecordBatchReader,
    schema: FileSchema,
    text: usize,
    done: u64,
    rows: u64,
}

impl ParquetReader {
    /// The rows of the file at `place`, the texts of which are in `column`, or in the one that is found.
    pub(in crate::batch) fn new(place: Place, column: Option<&str>) -> Result<Self> {
        let builder = builder(&place)?;
        check_codecs(builder.metadata())?;
        let rows = builder.metadata().file_metadata().num_rows().max(0) as u64;
        let schema = Arc::clone(builder.schema());
        let name = |field: &Arc<Field>| field.name().clone();
        let names: Vec<String> = schema.fields().iter().map(name).collect();
        let strings: Vec<String> =
            schema.fields().iter().filter(|field| holds_text(field.data_type())).map(name).collect();
        let column = find_column(column, &names, &strings)?;
        let text = schema.index_of(&column).map_err(|error| unreadable(error.into()))?;
        let found = schema.field(text).data_type();
        if !holds_text(found) {
            return Err(Error::invalid(format!(
                "expected texts in the column `{column}`, but found {found}"
            )));
        }
        let batches = builder.with_batch_size(CHUNK_ROWS).build().map_err(unreadable)?;
        Ok(Self { place, batches, schema, text, done: 0, rows })
    }

    pub(in crate::batch) fn schema(&self) -> &FileSchema {
        &self.schema
    }

    /// The column of texts.
    pub(in crate::batch) fn column(&self) -> String {
        self.schema.field(self.text).name().clone()
    }

    pub(super) fn position(&self) -> Position {
        Position::Row { done: self.done, all: self.rows }
    }

    pub(super) fn skip(&mut self, rows: u64) -> Result<()> {
        self.done = rows;
        let builder = builder(&self.place)?.with_batch_size(CHUNK_ROWS).with_offset(rows as usize);
        self.batches = builder.build().map_err(unreadable)?;
        Ok(())
    }

    pub(super) fn next(&mut self) -> Result<Option<Chunk>> {
        let Some(batch) = self.batches.next() else { return Ok(None) };
        let batch = batch.map_err(|error| unreadable(error.into()))?;
        self.done += batch.num_rows() as u64;
        let texts = texts(batch.column(self.text)).map(|text| {
            text.map(str::to_owned).ok_or_else(|| RowError::text("expected text, but found nothing"))
        });
        Ok(Some(Chunk { texts: texts.collect(), rows: Rows::Columns(batch.clone()) }))
    }
}

fn builder(place: &Place) -> Result<ParquetRecordBatchReaderBuilder<Place>> {
    let options = ArrowReaderOptions::new();
    ParquetRecordBatchReaderBuilder::try_new_with_options(place.clone(), options).map_err(unreadable)
}

/// Refuses pages that no decoder is built in for, before rows are answered.
fn check_codecs(metadata: &ParquetMetaData) -> Result<()> {
    let columns = metadata.row_groups().iter().flat_map(RowGroupMetaData::columns);
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
            "expected Parquet packed with Snappy, gzip, LZ4 or zstd, or not at all, but found {}; write the file anew \
             with one of these",
            name.split('(').next().unwrap_or_default()
        )))
    })
}

fn holds_text(found: &DataType) -> bool {
    match found {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => holds_text(values),
        _ => false,
    }
}

/// The texts of a column that holds some; nothing where a row has none.
fn texts(column: &dyn Array) -> Box<dyn Iterator<Item = Option<&str>> + '_> {
    if let Some(texts) = column.as_string_opt::<i32>() {
        return Box::new(texts.iter());
    }
    if let Some(texts) = column.as_string_opt::<i64>() {
        return Box::new(texts.iter());
    }
    if let Some(texts) = column.as_string_view_opt() {
        return Box::new(texts.iter());
    }
    let dictionary = column.as_any_dictionary_opt().filter(|dictionary| !dictionary.values().is_empty());
    let Some(dictionary) = dictionary else { return Box::new(std::iter::repeat_n(None, column.len())) };
    let words: Vec<Option<&str>> = texts(dictionary.values()).collect();
    let keys = dictionary.normalized_keys().into_iter().enumerate();
    Box::new(keys.map(move |(row, key)| words[key].filter(|_| dictionary.keys().is_valid(row))))
}

fn unreadable(error: ParquetError) -> Error {
    match error {
        // What S3 or the system said is not the file's fault.
        ParquetError::External(source) => match source.downcast::<Error>() {
            Ok(error) => *error,
            Err(source) => {
                Error::Io { action: "cannot read the input".into(), source: std::io::Error::other(source) }
            }
        },
        other => {
            Error::invalid(format!("expected a Parquet file, but found one that cannot be read: {other}"))
        }
    }
}

impl Length for Place {
    fn len(&self) -> u64 {
        self.size().unwrap_or_default()
    }
}

impl ChunkReader for Place {
    type T = Box<dyn std::io::Read + Send>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<Self::T> {
        self.read_from(start).map_err(|error| ParquetError::External(Box::new(error)))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        self.bytes(start, length).map_err(|error| ParquetError::External(Box::new(error)))
    }
}

/// Writes rows with their answers: a piece of the output.
pub(in crate::batch) struct ParquetWriter {
    writer: ArrowWriter<Vec<u8>>,
    schema: FileSchema,
    kind: Kind,
    columns: BTreeSet<String>,
}

impl ParquetWriter {
    /// Writes answers of that kind behind columns of that schema.
    pub(in crate::batch) fn new(rows: &FileSchema, kind: Kind) -> Result<Self> {
        let is_taken = |name: &str| rows.column_with_name(name).is_some();
        let added = kind
            .columns()
            .iter()
            .chain([&"error"])
            .map(|name| Arc::new(Field::new(free_name(name, is_taken), column_type(name), true)));
        let added: Vec<_> = added.collect();
        let columns = added.iter().map(|field| field.name().clone()).collect();
        let fields: Vec<_> = rows.fields().iter().cloned().chain(added).collect();
        let schema = Arc::new(Schema::new_with_metadata(fields, rows.metadata().clone()));
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            // Those of pages would stand between the row groups of one piece and the next.
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .build();
        let writer = ArrowWriter::try_new(Vec::new(), Arc::clone(&schema), Some(properties));
        Ok(Self { writer: writer.map_err(unwritable)?, schema, kind, columns })
    }

    pub(super) fn columns(&self) -> &BTreeSet<String> {
        &self.columns
    }

    pub(super) fn len(&self) -> usize {
        self.writer.bytes_written() + self.writer.in_progress_size()
    }

    pub(super) fn write(&mut self, batch: &Columns, outcomes: &[Outcome]) -> Result<()> {
        let mut columns = batch.columns().to_vec();
        columns.extend(answers(self.kind, outcomes));
        let errors: StringArray = outcomes
            .iter()
            .map(|outcome| outcome.as_ref().err().map(|error| error.message.as_str()))
            .collect();
        columns.push(Arc::new(errors));
        let batch = RecordBatch::try_new(Arc::clone(&self.schema), columns)
            .map_err(|error| unwritable(error.into()))?;
        self.writer.write(&batch).map_err(unwritable)
    }

    /// The row groups alone, and the footer that tells of them.
    pub(super) fn finish(mut self) -> Result<(Vec<u8>, Footer)> {
        let metadata = self.writer.finish().map_err(unwritable)?;
        let file = std::mem::take(self.writer.inner_mut());
        let end = footer_start(&file).unwrap_or(file.len());
        let bytes = file[MAGIC.len()..end].to_vec();
        Ok((bytes, Footer::new(&metadata)?))
    }
}

/// Where the footer of a file begins.
fn footer_start(file: &[u8]) -> Option<usize> {
    let length = file.get(file.len().checked_sub(FOOTER_END)?..)?.first_chunk::<4>()?;
    file.len().checked_sub(FOOTER_END + u32::from_le_bytes(*length) as usize)
}

fn column_type(name: &str) -> DataType {
    let list = |item| DataType::List(Arc::new(Field::new_list_field(item, true)));
    match name {
        "embedding" | "scores" => list(DataType::Float32),
        "labels" => list(DataType::Utf8),
        "score" => DataType::Float32,
        _ => DataType::Utf8,
    }
}

/// The columns of answers; rows with an error have nothing there.
fn answers(kind: Kind, outcomes: &[Outcome]) -> Vec<ArrayRef> {
    let answers = || outcomes.iter().map(|outcome| outcome.as_ref().ok());
    match kind {
        Kind::Embedding => vec![floats(answers().map(|answer| match answer {
            Some(Answer::Embedding(vector)) => Some(vector.as_slice()),
            _ => None,
        }))],
        Kind::Label => {
            let labels: StringArray = answers()
                .map(|answer| match answer {
                    Some(Answer::Label { label, .. }) => Some(label.as_ref()),
                    _ => None,
                })
                .collect();
            let scores: Float32Array = answers()
                .map(|answer| match answer {
                    Some(Answer::Label { score, .. }) => Some(*score),
                    _ => None,
                })
                .collect();
            vec![Arc::new(labels), Arc::new(scores)]
        }
        Kind::Labels => {
            let mut labels = ListBuilder::new(StringBuilder::new());
            for answer in answers() {
                if let Some(Answer::Labels { labels: names, .. }) = answer {
                    names.iter().for_each(|name| labels.values().append_value(name));
                }
                labels.append(matches!(answer, Some(Answer::Labels { .. })));
            }
            let scores = floats(answers().map(|answer| match answer {
                Some(Answer::Labels { scores, .. }) => Some(scores.as_slice()),
                _ => None,
            }));
            vec![Arc::new(labels.finish()), scores]
        }
        Kind::Score => {
            let scores: Float32Array = answers()
                .map(|answer| match answer {
                    Some(Answer::Score(score)) => Some(*score),
                    _ => None,
                })
                .collect();
            vec![Arc::new(scores)]
        }
        Kind::Translation => {
            let texts: StringArray = answers()
                .map(|answer| match answer {
                    Some(Answer::Translation(text)) => Some(text.as_str()),
                    _ => None,
                })
                .collect();
            vec![Arc::new(texts)]
        }
    }
}

fn floats<'a>(lists: impl Iterator<Item = Option<&'a [f32]>>) -> ArrayRef {
    let mut builder = ListBuilder::new(Float32Builder::new());
    for list in lists {
        builder.values().append_slice(list.unwrap_or_default());
        builder.append(list.is_some());
    }
    Arc::new(builder.finish())
}

fn unwritable(error: ParquetError) -> Error {
    Error::Io { action: "cannot write the output".into(), source: std::io::Error::other(error) }
}

/// The footer of a piece, as it is kept until the last one is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::batch) struct Footer(String);

impl Footer {
    fn new(metadata: &ParquetMetaData) -> Result<Self> {
        let mut bytes = Vec::new();
        ParquetMetaDataWriter::new(&mut bytes, metadata).finish().map_err(unwritable)?;
        Ok(Self(STANDARD.encode(bytes)))
    }

    fn metadata(&self) -> Result<ParquetMetaData> {
        let bytes = STANDARD.decode(&self.0).unwrap_or_default();
        let start = footer_start(&bytes).unwrap_or(0);
        let end = bytes.len().saturating_sub(FOOTER_END).max(start);
        ParquetMetaDataReader::decode_metadata(&bytes[start..end]).map_err(unreadable)
    }
}

/// The one footer of pieces that stand behind each other, each with its length.
pub(in crate::batch) fn join_footers(pieces: &[(u64, Footer)]) -> Result<Vec<u8>> {
    let (mut groups, mut file): (Vec<RowGroupMetaData>, Option<FileMetaData>) = (Vec::new(), None);
    let (mut position, mut rows) = (0, 0);
    for (length, footer) in pieces {
        let metadata = footer.metadata()?;
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
    ParquetMetaDataWriter::new(&mut bytes, &metadata).finish().map_err(unwritable)?;
    Ok(bytes)
}

/// A row group as it is found when its piece stands `by` bytes later in the file.
fn moved(group: &RowGroupMetaData, by: i64, place: usize) -> Result<RowGroupMetaData> {
    let columns = group.columns().iter().map(|column| {
        let dictionary = column.dictionary_page_offset().map(|offset| offset + by);
        let index = column.index_page_offset().map(|offset| offset + by);
        let moved = column.clone().into_builder().set_data_page_offset(column.data_page_offset() + by);
        moved.set_dictionary_page_offset(dictionary).set_index_page_offset(index).build()
    });
    let columns = columns.collect::<Result<Vec<_>, _>>().map_err(unwritable)?;
    let mut builder = group.clone().into_builder().set_column_metadata(columns);
    if let Some(offset) = group.file_offset() {
        builder = builder.set_file_offset(offset + by);
    }
    builder.set_ordinal(place as i32).build().map_err(unwritable)
}

/// Files for tests.
#[cfg(test)]
pub(in crate::batch) mod samples {
    use super::*;

    /// A file with a column `text`.
    pub(in crate::batch) fn written<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> Vec<u8> {
        let column: ArrayRef = Arc::new(StringArray::from_iter(texts));
        let batch = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
        let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
        writer.write(&batch).unwrap();
        writer.into_inner().unwrap()
    }

    /// The rows of a file, one by one, in whatever groups they are.
    pub(in crate::batch) fn rows(file: Vec<u8>) -> Vec<RecordBatch> {
        let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
        builder.with_batch_size(1).build().unwrap().map(Result::unwrap).collect()
    }
}

#[cfg(test)]
mod tests {
    use arrow_array::{DictionaryArray, LargeStringArray, StringViewArray, types::Int8Type};

    use super::*;

    #[test]
    fn texts_are_read_however_they_are_stored() {
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
            assert_eq!(texts(&column).collect::<Vec<_>>(), rows, "{}", column.data_type());
        }
        let empty: DictionaryArray<Int8Type> = none.into_iter().collect();
        assert_eq!(texts(&empty).collect::<Vec<_>>(), none);
    }

    #[test]
    fn pieces_behind_each_other_are_one_file() {
        let schema = Arc::new(Schema::new(vec![Field::new("score", DataType::Utf8, false)]));
        let (mut file, mut pieces) = (MAGIC.to_vec(), Vec::new());
        for texts in [vec!["a", "b"], vec!["c"], vec!["d", "e", "f"]] {
            let mut writer = ParquetWriter::new(&schema, Kind::Score).unwrap();
            let outcomes: Vec<Outcome> =
                (0..texts.len()).map(|place| Ok(Answer::Score(place as f32))).collect();
            let column: ArrayRef = Arc::new(StringArray::from(texts));
            writer
                .write(&RecordBatch::try_new(Arc::clone(&schema), vec![column]).unwrap(), &outcomes)
                .unwrap();
            let (bytes, footer) = writer.finish().unwrap();
            pieces.push((bytes.len() as u64, footer));
            file.extend(bytes);
        }
        file.extend(join_footers(&pieces).unwrap());
        let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
        assert_eq!(builder.metadata().num_row_groups(), 3);
        let batches: Vec<RecordBatch> = builder.build().unwrap().map(Result::unwrap).collect();
        let texts = batches.iter().flat_map(|batch| batch.column(0).as_string::<i32>().iter().flatten());
        assert_eq!(texts.collect::<String>(), "abcdef");
        let schema = batches[0].schema();
        let names: Vec<_> = schema.fields().iter().map(|field| field.name().as_str()).collect();
        assert_eq!(names, ["score", "kivu_score", "error"], "a name that is taken stays whose it is");
    }
}
