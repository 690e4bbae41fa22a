//! Passages with their vectors, in one Parquet file, which other programs read as a table.

use std::{
    io::{Error, Result},
    path::{Path, PathBuf},
    sync::Arc,
};

use arrow_array::{
    ArrayRef, Int64Array, ListArray, RecordBatch, StringArray,
    cast::AsArray,
    types::{Float32Type, Int64Type},
};
use parquet::{
    arrow::{ArrowWriter, arrow_reader::ParquetRecordBatchReaderBuilder},
    file::properties::WriterProperties,
};
use tempfile::NamedTempFile;

use super::files::TextFile;
use kivu::regular_file;

/// Names in the table's metadata: what the vectors depend on, and the rows' digest.
const ORIGIN: &str = "kivu";
const DIGEST: &str = "blake3";

/// A passage of a file.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    pub file: TextFile,
    pub line: u32,
    pub text: String,
    pub vector: Vec<f32>,
}

/// The table of these rows. Its metadata names what the vectors depend on.
fn table(rows: &[Row], origin: &str) -> Result<RecordBatch> {
    let strings = |of: fn(&Row) -> &str| -> ArrayRef {
        Arc::new(StringArray::from_iter_values(rows.iter().map(of)))
    };
    let integers = |of: fn(&Row) -> i64| -> ArrayRef {
        Arc::new(Int64Array::from_iter_values(rows.iter().map(of)))
    };
    let vectors = rows.iter().map(|row| row.vector.iter().copied());
    let vectors = vectors.map(|vector| Some(vector.map(Some)));
    let vectors = ListArray::from_iter_primitive::<Float32Type, _, _>(vectors);
    let columns = [
        ("path", strings(|row| &row.file.path)),
        ("line", integers(|row| row.line.into())),
        ("text", strings(|row| &row.text)),
        ("modified_ns", integers(|row| row.file.modified)),
        ("bytes", integers(|row| row.file.bytes)),
        ("embedding", Arc::new(vectors)),
    ];
    let mut table = RecordBatch::try_from_iter(columns).map_err(Error::other)?;
    let metadata = table.schema_metadata_mut();
    metadata.insert(ORIGIN, origin);
    metadata.insert(DIGEST, digest(rows));
    Ok(table)
}

/// BLAKE3 of all values, since Parquet's pages have no checksums.
fn digest(rows: &[Row]) -> String {
    let mut hasher = blake3::Hasher::new();
    for Row {
        file,
        line,
        text,
        vector,
    } in rows
    {
        let sizes = (text.len(), vector.len());
        hasher.update(format!("{file:?} {line} {sizes:?} {text}").as_bytes());
        let values = vector.iter().flat_map(|value| value.to_le_bytes());
        hasher.update(&values.collect::<Vec<_>>());
    }
    hasher.finalize().to_hex().to_string()
}

/// Reads an index of this `origin`, if there is one; an error says why it has to be made again.
pub fn read(path: &Path, origin: &str) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if !path.exists() {
        return Ok(rows);
    }
    let reader = ParquetRecordBatchReaderBuilder::try_new(regular_file::open(path)?)?;
    let (schema, expected) = (Arc::clone(reader.schema()), table(&[], origin)?.schema());
    let entry = |name| schema.metadata().get(name).map(String::as_str);
    if schema.fields() != expected.fields() || entry(ORIGIN) != Some(origin) {
        return Err(Error::other("it is of another model, version or settings"));
    }
    for batch in reader.build()? {
        let batch = batch.map_err(Error::other)?;
        let [paths, texts] = [0, 2].map(|column| batch.column(column).as_string::<i32>());
        let [lines, modified, bytes] =
            [1, 3, 4].map(|column| batch.column(column).as_primitive::<Int64Type>());
        let vectors = batch.column(5).as_list::<i32>();
        for row in 0..batch.num_rows() {
            let vector = vectors.value(row);
            rows.push(Row {
                file: TextFile {
                    path: paths.value(row).to_owned(),
                    modified: modified.value(row),
                    bytes: bytes.value(row),
                },
                line: lines.value(row) as u32,
                text: texts.value(row).to_owned(),
                vector: vector.as_primitive::<Float32Type>().values().to_vec(),
            });
        }
    }
    match entry(DIGEST) == Some(&digest(&rows)) {
        true => Ok(rows),
        false => Err(Error::other("it is damaged")),
    }
}

/// Replaces the file at `path`.
pub fn write(path: &Path, origin: &str, rows: &[Row]) -> Result<()> {
    let table = table(rows, origin)?;
    let properties = WriterProperties::builder().set_dictionary_enabled(false);
    // Only its owner reads it: it has texts of files that others may not read.
    let mut file = NamedTempFile::new_in(path.parent().unwrap_or(path))?;
    let mut writer = ArrowWriter::try_new(&mut file, table.schema(), Some(properties.build()))?;
    writer.write(&table)?;
    writer.close()?;
    file.persist(path).map(drop).map_err(Error::from)
}

/// The index file for these roots and model, in the folder `home`. Rows have their paths as they were given.
pub fn location(home: &Path, roots: &[PathBuf], model: &str) -> Result<PathBuf> {
    let places = roots.iter().map(|root| root.canonicalize());
    let places = places.collect::<Result<Vec<_>>>()?;
    let hash = blake3::hash(format!("{roots:?} {places:?} {model}").as_bytes());
    let folder = home.join("search");
    std::fs::create_dir_all(&folder)?;
    Ok(folder.join(format!("{}.parquet", &hash.to_hex()[..16])))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_only_for_its_origin() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.parquet");
        assert_eq!(read(&path, "m").unwrap(), []);
        let file = TextFile {
            path: "a.md".to_owned(),
            modified: 7,
            bytes: 9,
        };
        let row = |line: u32| Row {
            file: file.clone(),
            line,
            text: format!("text {line}"),
            vector: vec![line as f32, 0.5],
        };
        let rows = [row(1), row(8)];
        write(&path, "m", &rows).unwrap();
        assert_eq!(read(&path, "m").unwrap(), rows);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let other = read(&path, "n").unwrap_err();
        assert_eq!(
            other.to_string(),
            "it is of another model, version or settings"
        );
        let file = std::fs::read(&path).unwrap();
        let seven = 7_f32.to_le_bytes();
        write(
            &path,
            "m",
            &[Row {
                vector: vec![7.0; 9],
                ..row(1)
            }],
        )
        .unwrap();
        let mut damaged = std::fs::read(&path).unwrap();
        let place = damaged.windows(4).position(|bytes| bytes == seven).unwrap();
        damaged[place] ^= 1;
        std::fs::write(&path, damaged).unwrap();
        assert_eq!(read(&path, "m").unwrap_err().to_string(), "it is damaged");
        std::fs::write(&path, file).unwrap();
        assert_eq!(read(&path, "m").unwrap(), rows);
        std::fs::write(&path, "PAR1 no").unwrap();
        assert!(read(&path, "m").is_err());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
