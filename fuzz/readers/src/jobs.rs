//! Readers for events, keys and rows.

use std::{
    io::{Cursor, Read},
    sync::Arc,
};

use serde_json::Value;

use kivu::{
    error::Result,
    repository::s3::{MAX_KEY_BYTES, Url, fit_key},
};
use kivu_jobs::{
    events::{
        event::{self, Event},
        kinesis_aggregation,
    },
    input::compression::Compression,
    output::{
        answer::{Cell, RowError, RowResult, score_column},
        checkpoint,
        output_form::OutputForm,
        pieces::Shape,
    },
    rows::{CsvReader, Head, JsonLinesReader, Layout, Piece, RowReader},
};

/// A Lambda invocation's event, and a record of Kinesis.
pub fn event(bytes: &[u8]) {
    let _ = kinesis_aggregation::records(bytes.to_vec());
    let Ok(event) = serde_json::from_slice::<Value>(bytes) else {
        return;
    };
    // An error is a valid outcome, here and below.
    let objects = match Event::parse(&event) {
        Ok(Event::Object(object)) => vec![object],
        Ok(Event::Objects(objects)) => objects,
        Ok(Event::Queue(messages)) => {
            let objects = messages
                .into_iter()
                .filter_map(|message| message.objects.ok());
            objects.flatten().collect()
        }
        _ => Vec::new(),
    };
    for written in objects {
        assert!(
            fit_key(&written.url.key).len() <= MAX_KEY_BYTES,
            "a key that is too long"
        );
    }
}

/// A key as in events, an object URL, and a checkpoint.
pub fn key(bytes: &[u8]) {
    if let Ok(text) = std::str::from_utf8(bytes) {
        let key = event::decode(text).unwrap_or_default();
        assert!(
            fit_key(&key).len() <= MAX_KEY_BYTES,
            "a key that is too long"
        );
        if let Ok(url) = text.parse::<Url>() {
            assert_eq!(
                url.to_string().parse::<Url>().ok(),
                Some(url),
                "the URL changed"
            );
        }
    }
    let place = Url {
        bucket: "b".into(),
        key: "k".into(),
    };
    let _ = checkpoint::parse(bytes, &place);
}

/// A JSON Lines file, possibly compressed: the output has one object per row.
pub fn json_lines(bytes: &[u8]) {
    let Some(contents) = unpacked(bytes) else {
        return;
    };
    let Ok(mut reader) = JsonLinesReader::new(contents, None) else {
        return;
    };
    let Some((rows, output)) = answered(&mut reader) else {
        return;
    };
    let output = String::from_utf8(output).unwrap_or_default();
    assert_eq!(output.lines().count(), rows, "the number of rows changed");
    for line in output.lines() {
        // Leading whitespace is kept.
        let is_object = serde_json::from_str::<serde::de::IgnoredAny>(line).is_ok()
            && line.trim_ascii_start().starts_with('{');
        assert!(is_object, "a row that is not an object: {line}");
    }
}

/// A CSV file, possibly compressed: the output has as many rows, with two more fields each.
pub fn csv(bytes: &[u8]) {
    let Some(contents) = unpacked(bytes) else {
        return;
    };
    let Ok(mut reader) = CsvReader::new(contents, &Layout::default()) else {
        return;
    };
    let Head::Csv(header) = reader.head() else {
        return;
    };
    let column = reader.column().to_owned();
    let Some((rows, output)) = answered(&mut reader) else {
        return;
    };
    let layout = Layout {
        column: Some(column),
        ..reader.layout()
    };
    let mut reader = CsvReader::new(Cursor::new(output), &layout).unwrap_or_else(|error| {
        panic!("the header changed: {error}");
    });
    let Head::Csv(written) = reader.head() else {
        return;
    };
    assert_eq!(written.names.len(), header.names.len() + 2);
    let mut found = 0;
    while let Some(chunk) = reader.next().unwrap_or_else(|error| {
        panic!("the rows changed: {error}");
    }) {
        found += chunk.texts.len();
        let wrong = format!("expected {} fields", written.names.len());
        let is_wrong = |text: &Result<String, RowError>| matches!(text, Err(error) if error.message.problem().starts_with(&wrong));
        assert!(
            !chunk.texts.iter().any(is_wrong),
            "the number of fields changed"
        );
    }
    assert_eq!(found, rows, "the number of rows changed");
}

fn unpacked(bytes: &[u8]) -> Option<Box<dyn Read + Send>> {
    let contents = Compression::of(bytes)
        .unpack(Cursor::new(bytes.to_vec()), &Arc::default())
        .ok()?;
    // Large outputs are limited elsewhere, in relation to the compressed size.
    Some(Box::new(contents.take(1024 * 1024)))
}

/// Row count and output with an answer per row, if the file is valid.
fn answered(reader: &mut dyn RowReader) -> Option<(usize, Vec<u8>)> {
    let shape = Shape::of(reader, OutputForm::default(), score_column());
    let write = |reader: &mut dyn RowReader| -> Result<(usize, Vec<u8>)> {
        let (mut count, mut writer) = (0, shape.writer(Piece::First)?);
        while let Some(chunk) = reader.next()? {
            count += chunk.texts.len();
            let result = |text: Result<String, RowError>| text.map(|_| vec![Cell::Number(0.5)]);
            let mut results: Vec<RowResult> = chunk.texts.into_iter().map(result).collect();
            writer.write(chunk.rows, &mut results)?;
        }
        Ok((count, writer.finish()?.0))
    };
    write(reader).ok()
}

#[cfg(test)]
mod tests {
    use super::csv;

    /// Also files that no program writes are refused, or have an output record for each record.
    #[test]
    fn random_files_keep_their_records() {
        for seed in 0..20_000 {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut file = [
                &b"text,id\n"[..],
                b"text\r\n",
                b"\"text\"\tid\r",
                b"sep=;\ntext;id\n",
            ][random.usize(..4)]
            .to_vec();
            let length = random.usize(1..48);
            file.extend((0..length).map(|_| *random.choice(b"ab,;\t\"\"\\\r\n\n\0\xe9").unwrap()));
            csv(&file);
        }
    }
}
