//! Other texts in some columns of rows, whose other bytes stay.

use std::collections::BTreeMap;

use super::{
    chunk::{CsvHeader, CsvRow, Head, Rows, mismatched},
    column::places,
    csv::records::Splitter,
    json_fields::{TextField, other_type},
};
use kivu::{Error, Result, error::Message};

/// Replaces a text.
type Replace<'a> = dyn FnMut(&str) -> Result<String> + 'a;

/// Columns whose texts are replaced.
#[derive(Clone)]
pub struct ReplacedColumns {
    names: Vec<String>,
    /// How many rows in JSON Lines have each column.
    found: Vec<u64>,
    /// Their places in CSV, and the header.
    csv: Option<(Vec<usize>, CsvHeader)>,
}

impl ReplacedColumns {
    /// The columns `names` in a file with this head.
    ///
    /// # Errors
    /// A CSV file does not have a column once, or the file is neither CSV nor JSON Lines.
    pub fn new(head: &Head, names: Vec<String>) -> Result<Self> {
        let csv = match head {
            Head::JsonLines => None,
            Head::Csv(header) => {
                let known: Vec<&str> = header.names.iter().map(String::as_str).collect();
                Some((places(&known, &names)?, header.clone()))
            }
            Head::Requests | Head::Parquet(_) => return mismatched(),
        };
        Ok(Self {
            found: vec![0; names.len()],
            names,
            csv,
        })
    }

    /// The bytes before the first row, such as a header.
    pub fn start(&self) -> Vec<u8> {
        match &self.csv {
            Some((_, header)) if header.has_header => {
                [&header.start[..], &header.line_end].concat()
            }
            Some((_, header)) => header.start.clone(),
            None => Vec::new(),
        }
    }

    /// How many of a file's `rows`, which were all written, lack a column in JSON Lines, by its name.
    ///
    /// # Errors
    /// None has one of the columns: its name is probably misspelt.
    pub fn missing(&self, rows: u64) -> Result<BTreeMap<String, u64>> {
        let mut missing = BTreeMap::new();
        if self.csv.is_some() {
            return Ok(missing);
        }
        for (name, found) in self.names.iter().zip(&self.found) {
            match rows.saturating_sub(*found) {
                _ if *found == 0 => {
                    return Err(Error::invalid(format!("no row has the column `{name}`")));
                }
                0 => {}
                count => {
                    missing.insert(name.clone(), count);
                }
            }
        }
        Ok(missing)
    }

    /// Appends a row with other texts. Missing and empty values stay.
    ///
    /// # Errors
    /// The row is malformed, a value is no text, or a new text cannot be written; no message has a text.
    pub fn write(
        &mut self,
        rows: &Rows,
        row: usize,
        replace: &mut Replace<'_>,
        output: &mut Vec<u8>,
    ) -> Result<()> {
        match (rows, &self.csv) {
            (Rows::Lines(lines), None) => {
                let line = String::from_utf8(lines[row].clone());
                let mut line =
                    line.map_err(|_| Error::invalid("expected UTF-8, but found other bytes"))?;
                for (name, found) in self.names.iter().zip(&mut self.found) {
                    if let Some(new) = replaced_field(&line, name, replace)? {
                        line = new;
                        *found += 1;
                    }
                }
                output.extend_from_slice(line.as_bytes());
                output.push(b'\n');
                Ok(())
            }
            (Rows::Records(records), Some((places, header))) => {
                replaced_record(&records[row], places, header, replace, output)
            }
            _ => mismatched(),
        }
    }
}

/// The line with another text, or `None` if it lacks the field.
fn replaced_field(line: &str, name: &str, replace: &mut Replace<'_>) -> Result<Option<String>> {
    let wrong = |found: &str| {
        Err(Error::invalid(format!(
            "expected text in `{name}`, but found {found}"
        )))
    };
    let value = match TextField::of(line, name) {
        Ok(TextField::Found(value)) => value,
        Ok(TextField::Missing) => return Ok(None),
        Ok(TextField::Repeated) => return wrong("the field several times"),
        Err(_) => return wrong("a row that is not a JSON object"),
    };
    let text: String = match (other_type(value), serde_json::from_str(value.get())) {
        (Some("null"), _) => return Ok(Some(line.to_owned())),
        (Some(found), _) => return wrong(found),
        (None, Ok(text)) => text,
        (None, Err(_)) => return wrong("a malformed one"),
    };
    let new = replace(&text)?;
    if new == text {
        // Also its escapes.
        return Ok(Some(line.to_owned()));
    }
    let new = serde_json::Value::from(new).to_string();
    // The value is a part of the line.
    let start = value.get().as_ptr() as usize - line.as_ptr() as usize;
    let end = start + value.get().len();
    Ok(Some([&line[..start], &new, &line[end..]].concat()))
}

fn replaced_record(
    row: &CsvRow,
    places: &[usize],
    header: &CsvHeader,
    replace: &mut Replace<'_>,
    output: &mut Vec<u8>,
) -> Result<()> {
    let (dialect, content) = (&header.dialect, row.content());
    let wrong = |message: String| Err(Error::invalid(Message::new(message)));
    if row.fields != header.names.len() {
        return wrong(format!(
            "expected {} fields, but found {}",
            header.names.len(),
            row.fields
        ));
    }
    let mut splitter = Splitter::new(dialect, row.fields, 1);
    splitter.split(content)?;
    for field in 0..row.fields {
        if field > 0 {
            output.push(dialect.delimiter);
        }
        let raw = &content[splitter.field(field)];
        if raw.is_empty() || dialect.is_null(raw) || !places.contains(&field) {
            output.extend_from_slice(raw);
            continue;
        }
        let name = &header.names[field];
        let value = dialect.value(raw);
        let Ok(text) = std::str::from_utf8(&value) else {
            return wrong(format!("expected UTF-8 in `{name}`, but found other bytes"));
        };
        let new = replace(text)?;
        if new == text {
            output.extend_from_slice(raw);
        } else if let Some(quote) = dialect.quote.filter(|quote| raw.first() == Some(quote)) {
            // So that a restored file has the bytes of the original.
            dialect.write_quoted(quote, new.as_bytes(), output);
        } else if !dialect.write(new.as_bytes(), output) {
            return wrong(format!(
                "a file without quotes cannot state the new text in `{name}`"
            ));
        }
    }
    output.extend_from_slice(&row.bytes[row.content..]);
    Ok(())
}
