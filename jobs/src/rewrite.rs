//! Files in which the texts of some columns are replaced.

use std::{io::Write, path::Path};

use crate::{
    input::{
        format::Format,
        opened::{BytesRead, OpenInput},
    },
    output::answer::ErrorKind,
    rows::{CsvReader, JsonLinesReader, Layout, ReplacedColumns, RowReader},
};
use kivu::error::{Error, Result};

pub use crate::rows::Replace;

/// Copies a file of CSV or JSON Lines to `output` with other texts in `columns`, without any in its text column. Compressed
/// files are unpacked. Returns the number of rows.
///
/// # Errors
/// The file has another format, no such column, or a malformed row.
pub fn rewrite(
    input: &Path,
    columns: &[String],
    output: &mut dyn Write,
    replace: &mut Replace<'_>,
) -> Result<u64> {
    let opened = OpenInput::file(input)?;
    let (format, compression) = opened.format(None)?;
    let contents = opened.unpacked(compression, &BytesRead::default())?;
    let layout = Layout::of_column(columns.first().map(String::as_str));
    let mut reader: Box<dyn RowReader> = match format {
        Format::Csv => Box::new(CsvReader::new(contents, &layout)?),
        Format::JsonLines => Box::new(JsonLinesReader::new(contents, layout.column.as_deref())?),
        Format::Parquet | Format::OpenAi => {
            return Err(Error::config(
                "expected CSV, JSON Lines or text, but found another format",
            ));
        }
    };
    let names = match columns {
        [] => vec![reader.column().to_owned()],
        names => names.to_vec(),
    };
    let columns = ReplacedColumns::new(&reader.head(), names)?;
    let mut write = |bytes: &[u8]| {
        output
            .write_all(bytes)
            .map_err(Error::io("cannot write the output"))
    };
    write(&columns.start())?;
    let mut count = 0;
    while let Some(chunk) = reader.next()? {
        let mut bytes = Vec::new();
        for (row, text) in chunk.texts.iter().enumerate() {
            count += 1;
            let in_row = |error: Error| error.at(format_args!("in row {count}"));
            match text {
                Err(error) if error.kind == ErrorKind::Row => {
                    return Err(in_row(Error::invalid(error.message.clone())));
                }
                _ => {}
            }
            columns
                .write(&chunk.rows, row, replace, &mut bytes)
                .map_err(in_row)?;
        }
        write(&bytes)?;
    }
    Ok(count)
}
