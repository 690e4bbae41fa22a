//! Parquet files for tests.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch, StringArray};
use bytes::Bytes;
use parquet::arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder};

/// A file with a column `text`.
pub fn written<'a>(texts: impl Iterator<Item = Option<&'a str>>) -> Vec<u8> {
    let column: ArrayRef = Arc::new(StringArray::from_iter(texts));
    let batch = RecordBatch::try_from_iter_with_nullable([("text", column, true)]).unwrap();
    let mut writer = ArrowWriter::try_new(Vec::new(), batch.schema(), None).unwrap();
    writer.write(&batch).unwrap();
    writer.into_inner().unwrap()
}

/// A file's rows, one by one.
pub fn rows(file: Vec<u8>) -> Vec<RecordBatch> {
    let builder = ParquetRecordBatchReaderBuilder::try_new(Bytes::from(file)).unwrap();
    builder
        .with_batch_size(1)
        .build()
        .unwrap()
        .map(Result::unwrap)
        .collect()
}
