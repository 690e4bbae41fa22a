//! Passages with their vectors, in one Parquet file, which other programs read as a table.

use std::{
    collections::HashMap,
    fs::OpenOptions,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    Array, ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, UInt32Array, UInt64Array,
    builder::{Float32Builder, ListBuilder},
    cast::AsArray,
    types::Float32Type,
};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    file::{metadata::KeyValue, properties::WriterProperties},
};

use super::files::Version;
use kivu::{
    error::{Error, Result},
    regular_file,
};

/// The footer's key for what the vectors depend on.
const KEY: &str = "kivu";
/// The index's permissions: it has texts of files that others may not read.
const PRIVATE: u32 = 0o600;

/// A passage of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub path: Arc<str>,
    pub line: u32,
    pub text: String,
    pub vector: Vec<f32>,
}

/// All passages, by file.
#[derive(Debug, Default, PartialEq)]
pub struct Index {
    /// Files that have passages.
    pub files: HashMap<Arc<str>, Version>,
    pub rows: Vec<Row>,
}

impl Index {
    /// Reads an index of this `origin`; an error says why it has to be made again. `None` if there is none.
    pub fn read(path: &Path, origin: &str) -> Result<Option<Self>> {
        let file = match regular_file::open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => {
                return Err(Error::cannot("read", path.display())(error));
            }
        };
        let damaged =
            |error| Error::model_because(format!("cannot read `{}`", path.display()), error);
        let reader = ParquetRecordBatchReaderBuilder::try_new(file).map_err(damaged)?;
        let found = reader.metadata().file_metadata().key_value_metadata();
        let is_same = |entry: &KeyValue| entry.key == KEY && entry.value.as_deref() == Some(origin);
        if !found.is_some_and(|entries| entries.iter().any(is_same)) {
            return Err(Error::model(
                "it is of another model or version, or of other settings",
            ));
        }
        let mut index = Self::default();
        for batch in reader.build().map_err(damaged)? {
            let batch = batch.map_err(|error| damaged(error.into()))?;
            index
                .add(&batch)
                .ok_or_else(|| Error::model("it has other columns"))?;
        }
        Ok(Some(index))
    }

    fn add(&mut self, batch: &RecordBatch) -> Option<()> {
        let column = |name: &str| batch.column_by_name(name);
        let paths = column("path")?.as_any().downcast_ref::<StringArray>()?;
        let lines = column("line")?.as_any().downcast_ref::<UInt32Array>()?;
        let texts = column("text")?.as_any().downcast_ref::<StringArray>()?;
        let modified = column("modified_ns")?
            .as_any()
            .downcast_ref::<Int64Array>()?;
        let bytes = column("bytes")?.as_any().downcast_ref::<UInt64Array>()?;
        let vectors = column("embedding")?.as_any().downcast_ref::<ListArray>()?;
        for row in 0..batch.num_rows() {
            let path = match self.rows.last() {
                Some(last) if *last.path == *paths.value(row) => Arc::clone(&last.path),
                _ => {
                    let path: Arc<str> = paths.value(row).into();
                    let version = Version {
                        modified: modified.value(row),
                        bytes: bytes.value(row),
                    };
                    self.files.insert(Arc::clone(&path), version);
                    path
                }
            };
            let vector = vectors.value(row);
            self.rows.push(Row {
                path,
                line: lines.value(row),
                text: texts.value(row).to_owned(),
                vector: vector.as_primitive_opt::<Float32Type>()?.values().to_vec(),
            });
        }
        Some(())
    }

    /// Replaces the file at `path`.
    pub fn write(&self, path: &Path, origin: &str) -> Result<()> {
        let failed =
            |error| Error::model_because(format!("cannot write `{}`", path.display()), error);
        let io = || Error::cannot("write", path.display());
        let mut vectors = ListBuilder::new(Float32Builder::new());
        for row in &self.rows {
            vectors.values().append_slice(&row.vector);
            vectors.append(true);
        }
        let version = |row: &Row| self.files.get(&row.path);
        let columns: [(&str, ArrayRef); 6] = [
            (
                "path",
                Arc::new(StringArray::from_iter_values(
                    self.rows.iter().map(|row| &row.path),
                )),
            ),
            (
                "line",
                Arc::new(UInt32Array::from_iter_values(
                    self.rows.iter().map(|row| row.line),
                )),
            ),
            (
                "text",
                Arc::new(StringArray::from_iter_values(
                    self.rows.iter().map(|row| &row.text),
                )),
            ),
            (
                "modified_ns",
                Arc::new(Int64Array::from_iter(
                    self.rows.iter().map(|row| Some(version(row)?.modified)),
                )),
            ),
            (
                "bytes",
                Arc::new(UInt64Array::from_iter(
                    self.rows.iter().map(|row| Some(version(row)?.bytes)),
                )),
            ),
            ("embedding", Arc::new(vectors.finish())),
        ];
        let batch = RecordBatch::try_from_iter(columns).map_err(|error| failed(error.into()))?;
        let properties = WriterProperties::builder()
            .set_dictionary_enabled(false)
            .set_column_dictionary_enabled("path".into(), true)
            .set_key_value_metadata(Some(vec![KeyValue::new(KEY.to_owned(), origin.to_owned())]))
            .build();
        let next = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut options = OpenOptions::new();
        options
            .write(true)
            .create(true)
            .truncate(true)
            .mode(PRIVATE);
        let file = options.open(&next).map_err(io())?;
        let mut writer =
            ArrowWriter::try_new(file, batch.schema(), Some(properties)).map_err(failed)?;
        writer.write(&batch).map_err(failed)?;
        writer.close().map_err(failed)?;
        std::fs::rename(&next, path).map_err(io())
    }
}

/// The index file for these roots and model, in the folder `home`.
pub fn location(home: &Path, roots: &[PathBuf], model: &str) -> Result<PathBuf> {
    let mut hash = blake3::Hasher::new();
    for root in roots {
        // Rows have their paths as they were given.
        hash.update(root.as_os_str().as_encoded_bytes());
        hash.update(&[0]);
        let root = root
            .canonicalize()
            .map_err(Error::cannot("read", root.display()))?;
        hash.update(root.as_os_str().as_encoded_bytes());
        hash.update(&[0]);
    }
    hash.update(model.as_bytes());
    let folder = home.join("search");
    std::fs::create_dir_all(&folder).map_err(Error::cannot("create", folder.display()))?;
    Ok(folder.join(format!("{}.parquet", &hash.finalize().to_hex()[..16])))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_only_for_its_origin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        assert_eq!(Index::read(&path, "m").unwrap(), None);
        let file: Arc<str> = "a.md".into();
        let version = Version {
            modified: 7,
            bytes: 9,
        };
        let row = |line| Row {
            path: Arc::clone(&file),
            line,
            text: format!("text {line}"),
            vector: vec![line as f32, 0.5],
        };
        let index = Index {
            files: [(Arc::clone(&file), version)].into(),
            rows: vec![row(1), row(8)],
        };
        index.write(&path, "m").unwrap();
        assert_eq!(Index::read(&path, "m").unwrap(), Some(index));
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, PRIVATE);
        let other = Index::read(&path, "n").unwrap_err();
        assert_eq!(
            other.to_string(),
            "it is of another model or version, or of other settings"
        );
        std::fs::write(&path, "PAR1 no").unwrap();
        assert!(Index::read(&path, "m").is_err());
    }
}
