//! Events, keys and rows of any bytes.

use std::io::{Cursor, Read};

use serde_json::Value;

use super::{
    Outcome,
    answer::{Answer, Kind},
    checkpoint,
    compression::Compression,
    event,
    large::{Batch, Join},
    output::Shape,
    rows::{CsvReader, JsonLinesReader, Reader},
};
use crate::{
    batch::output::Head,
    error::Result,
    repository::s3::{LONGEST_KEY, Url, fit_key},
};

/// What a function is called with.
pub(crate) fn event(bytes: &[u8]) {
    let Ok(event) = serde_json::from_slice::<Value>(bytes) else { return };
    // What is no event is told by an error.
    let _ = Join::of(&event);
    let _ = Batch::of(&event);
    for message in event::messages(&event) {
        for written in message.objects.into_iter().flatten() {
            assert!(fit_key(&written.url.key).len() <= LONGEST_KEY, "a key that does not fit");
        }
    }
}

/// A key as events have it, the URL of an object, and a checkpoint.
pub(crate) fn key(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let key = event::decode(text).unwrap_or_default();
        assert!(fit_key(&key).len() <= LONGEST_KEY, "a key that does not fit");
        if let Ok(url) = text.parse::<Url>() {
            assert_eq!(url.to_string().parse::<Url>().ok(), Some(url), "a URL that is read as another");
        }
    }
    let place = Url { bucket: "b".into(), key: "k".into() };
    // What is no checkpoint is told by an error.
    let _ = checkpoint::parse(bytes, &place);
}

/// A file of JSON Lines, packed or not: every row comes out as an object on a line.
pub(crate) fn json_lines(bytes: &[u8]) {
    let Some(contents) = unpacked(bytes) else { return };
    let mut reader = Reader::JsonLines(JsonLinesReader::new(contents, None));
    let Some((rows, output)) = answered(&mut reader, Head::JsonLines) else { return };
    let output = String::from_utf8(output).unwrap_or_default();
    assert_eq!(output.lines().count(), rows, "a row is missing, or is two");
    for line in output.lines() {
        // Space before an object stays where it is.
        let is_object = serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()
            && line.trim_ascii_start().starts_with('{');
        assert!(is_object, "a row that is no object: {line}");
    }
}

/// A file of CSV, packed or not: it comes out with as many rows, of as many fields each.
pub(crate) fn csv(bytes: &[u8]) {
    let Some(contents) = unpacked(bytes) else { return };
    let Ok(reader) = CsvReader::new(contents, None) else { return };
    let (header, column) = (reader.header().clone(), reader.column().to_owned());
    let mut reader = Reader::Csv(reader);
    let Some((rows, output)) = answered(&mut reader, Head::Csv(header.clone())) else { return };
    let mut written = ::csv::ReaderBuilder::new()
        .delimiter(header.delimiter)
        .flexible(true)
        .has_headers(false)
        .from_reader(output.as_slice());
    let widths = written.byte_records().map(|record| record.map(|record| record.len()).unwrap_or_default());
    let widths: Vec<usize> = widths.collect();
    assert_eq!(widths.len(), rows + 1, "a row of `{column}` is missing, or is two");
    assert!(
        widths.iter().all(|width| *width == header.names.len() + 2),
        "a row of another width: {widths:?}"
    );
}

fn unpacked(bytes: &[u8]) -> Option<Box<dyn Read + Send>> {
    let contents = Compression::of(bytes).unpack(Cursor::new(bytes.to_vec())).ok()?;
    // What unpacks to more is stopped elsewhere, by what it was unpacked from.
    Some(Box::new(contents.take(1024 * 1024)))
}

/// The rows with an answer each, where the file can be read to its end.
fn answered(reader: &mut Reader, head: Head) -> Option<(usize, Vec<u8>)> {
    let shape = Shape { compression: Compression::None, kind: Kind::Score, head };
    let write = |reader: &mut Reader| -> Result<(usize, Vec<u8>)> {
        let (mut count, mut writer) = (0, shape.writer(true)?);
        while let Some(chunk) = reader.next()? {
            count += chunk.texts.len();
            let outcome = |text: std::result::Result<String, _>| text.map(|_| Answer::Score(0.5));
            let outcomes: Vec<Outcome> = chunk.texts.into_iter().map(outcome).collect();
            writer.write(chunk.rows, &outcomes)?;
        }
        Ok((count, writer.finish()?.0))
    };
    write(reader).ok()
}
