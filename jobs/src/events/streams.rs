//! Records of streams: Data Firehose's transformations, Kinesis and DynamoDB.
//!
//! A record is a row of JSON Lines, and its answer has the same form as in a file.

use std::{
    collections::BTreeMap,
    io::Cursor,
    time::{Duration, Instant},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::{Map, Number, Value, json};

use super::{
    kinesis_aggregation,
    row_function::{MAX_RESPONSE_BYTES, RowFunction, deadline, earlier},
    rules::Rules,
};
use crate::{
    job::predictor::Predictor,
    output::{
        answer::{ErrorKind, RowError},
        output_form::OutputForm,
        pieces::Shape,
    },
    rows::{BYTE_ORDER_MARK, JsonLinesReader, Piece, RowReader},
};
use kivu::{
    Error, Result,
    cloud::Cloud,
    repository::s3::{Condition, fit_key},
};

/// The text field, unless `column` names another.
const TEXT: &str = "text";
/// Time for a response to Data Firehose, which waits for 5 minutes.
const FIREHOSE_TIMEOUT: Duration = Duration::from_secs(290);

/// A record's line with its answer.
struct AnsweredLine {
    /// With its line break.
    line: Vec<u8>,
    error: Option<RowError>,
}

/// The answered lines before the first that could not be tried, and the reason for that.
struct AnsweredLines {
    lines: Vec<AnsweredLine>,
    stopped: Option<Error>,
}

/// Answers lines in order, until shortly before `until`, or until the answers have `max_bytes`.
async fn answer(
    RowFunction { model, parameters }: RowFunction,
    lines: &[Vec<u8>],
    until: Option<Instant>,
    max_bytes: usize,
) -> Result<AnsweredLines> {
    let deadline = deadline(until);
    let predictor = Predictor::of_texts(&model, &parameters)?;
    let column = parameters.column.as_deref().unwrap_or(TEXT);
    let mut reader = JsonLinesReader::new(Cursor::new(lines.join(&b'\n')), Some(column))?;
    let mut writer =
        Shape::of(&reader, OutputForm::default(), predictor.columns()).writer(Piece::First)?;
    let (mut errors, mut stopped) = (Vec::with_capacity(lines.len()), None);
    while writer.size() < max_bytes {
        let Some(chunk) = reader.next()? else {
            break;
        };
        match predictor.predict_by(chunk.texts, deadline).await {
            Ok(mut answers) => {
                writer.write(chunk.rows, &mut answers.results)?;
                errors.extend(answers.results.into_iter().map(Result::err));
            }
            Err(error) => {
                stopped = Some(error);
                break;
            }
        }
    }
    let (written, _) = writer.finish()?;
    let written = written
        .split_inclusive(|byte| *byte == b'\n')
        .map(<[u8]>::to_vec);
    let lines = written
        .zip(errors)
        .map(|(line, error)| AnsweredLine { line, error })
        .collect();
    Ok(AnsweredLines { lines, stopped })
}

/// Data as one line, without byte order marks at its start; `None` if it is blank. JSON has line breaks only between its
/// tokens. No mark may remain: a file's reader drops one at its start, and then a line that is empty.
fn line(mut data: Vec<u8>) -> Option<Vec<u8>> {
    data.iter_mut()
        .filter(|byte| matches!(byte, b'\n' | b'\r'))
        .for_each(|byte| *byte = b' ');
    let mut trimmed = data.trim_ascii();
    while let Some(rest) = trimmed.strip_prefix(BYTE_ORDER_MARK) {
        trimmed = rest.trim_ascii();
    }
    (!trimmed.is_empty()).then(|| trimmed.to_vec())
}

/// A resource's name in its ARN, which may go on: `…:table/NAME/stream/TIME`, `…:stream/NAME/consumer/NAME:TIME`.
fn resource_name(arn: &str) -> &str {
    arn.split('/').nth(1).unwrap_or_default()
}

/// Records that Firehose transforms before it delivers them.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Firehose {
    delivery_stream_arn: String,
    records: Vec<FirehoseRecord>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct FirehoseRecord {
    record_id: String,
    /// In base64.
    data: String,
}

/// The contents of a record.
enum Contents {
    /// The number of its line.
    Line(usize),
    Blank,
    NotBase64,
}

impl Firehose {
    /// The records with their answers, in order. Blank records are dropped; records with an error, or beyond the size
    /// limit, keep their data and fail.
    pub async fn answer(self, rules: &Rules, until: Option<Instant>) -> Result<Value> {
        let until = earlier(until, FIREHOSE_TIMEOUT);
        let name = resource_name(&self.delivery_stream_arn);
        let function = rules.function("firehose", name, &BTreeMap::new())?;
        let mut lines = Vec::with_capacity(self.records.len());
        let contents =
            |record: &FirehoseRecord| match BASE64_STANDARD.decode(&record.data).map(line) {
                Ok(Some(line)) => {
                    lines.push(line);
                    Contents::Line(lines.len() - 1)
                }
                Ok(None) => Contents::Blank,
                Err(_) => Contents::NotBase64,
            };
        let contents: Vec<Contents> = self.records.iter().map(contents).collect();
        // A line has four bytes for three, in base64.
        let answered = answer(function, &lines, until, MAX_RESPONSE_BYTES / 4 * 3).await?;
        match answered.stopped {
            Some(error) => Err(error),
            None => Ok(json!({ "records": outcomes(self.records, &contents, &answered.lines) })),
        }
    }
}

/// Each record's outcome.
fn outcomes(
    records: Vec<FirehoseRecord>,
    contents: &[Contents],
    lines: &[AnsweredLine],
) -> Vec<Value> {
    /// A record's field names and punctuation.
    const OVERHEAD: usize = 64;
    let size = |record: &FirehoseRecord| record.record_id.len() + record.data.len() + OVERHEAD;
    let mut total: usize = records.iter().map(size).sum();
    let (mut outcomes, mut failed) = (Vec::with_capacity(records.len()), 0_usize);
    for (FirehoseRecord { record_id, data }, contents) in records.into_iter().zip(contents) {
        let answered = match contents {
            Contents::Line(number) => lines.get(*number).filter(|line| line.error.is_none()),
            Contents::Blank | Contents::NotBase64 => None,
        };
        let answer = answered.map(|line| BASE64_STANDARD.encode(&line.line));
        let answer =
            answer.filter(|answer| total - data.len() + answer.len() <= MAX_RESPONSE_BYTES);
        let (result, data) = match (answer, contents) {
            (Some(answer), _) => {
                total = total - data.len() + answer.len();
                ("Ok", answer)
            }
            (None, Contents::Blank) => ("Dropped", data),
            (None, _) => {
                failed += 1;
                ("ProcessingFailed", data)
            }
        };
        outcomes.push(json!({ "recordId": record_id, "result": result, "data": data }));
    }
    if failed > 0 {
        tracing::warn!(
            failed,
            records = outcomes.len(),
            "records have errors, or are too long for a response"
        );
    }
    outcomes
}

/// Records of a Kinesis stream or a DynamoDB table, whose answers are written to an object in S3.
#[derive(Debug)]
pub struct StreamBatch {
    kind: &'static str,
    name: String,
    /// Sequence numbers and lines, in order.
    records: Vec<(String, Vec<u8>)>,
}

impl StreamBatch {
    /// A batch from Kinesis. Aggregated records are separated, and have one number.
    pub fn of_kinesis(records: &[Value]) -> Result<Self> {
        let arn = text(records.first(), "/eventSourceARN")?;
        let mut found = Vec::with_capacity(records.len());
        for record in records {
            let data = BASE64_STANDARD.decode(text(Some(record), "/kinesis/data")?);
            let data = data.map_err(|_| Error::malformed("the record is not base64"))?;
            let number = text(Some(record), "/kinesis/sequenceNumber")?;
            let lines = kinesis_aggregation::records(data)
                .into_iter()
                .filter_map(line);
            found.extend(lines.map(|line| (number.to_owned(), line)));
        }
        Ok(Self {
            kind: "kinesis",
            name: resource_name(arn).to_owned(),
            records: found,
        })
    }

    /// A batch from DynamoDB: the items that were written. Items that were removed are left out.
    pub fn of_dynamodb(records: &[Value]) -> Result<Self> {
        let arn = text(records.first(), "/eventSourceARN")?;
        let record = |record: &Value| {
            if record["eventName"] == "REMOVE" {
                return Ok(None);
            }
            let image = record["dynamodb"]["NewImage"].as_object().ok_or_else(|| {
                Error::invalid("expected `NewImage` in the records, but found none")
                    .with_hint("choose the view type `NEW_IMAGE` or `NEW_AND_OLD_IMAGES`")
            })?;
            let number = text(Some(record), "/dynamodb/SequenceNumber")?.to_owned();
            Ok(Some((
                number,
                Value::Object(plain_fields(image)?).to_string().into_bytes(),
            )))
        };
        let found = records
            .iter()
            .filter_map(|found| record(found).transpose())
            .collect::<Result<_>>()?;
        Ok(Self {
            kind: "dynamodb",
            name: resource_name(arn).to_owned(),
            records: found,
        })
    }

    /// Writes the answers, and names the first record that must be repeated, if there is one: the model failed for it,
    /// or there was no time. Rows with other errors are written with them.
    pub async fn answer(
        self,
        rules: &Rules,
        cloud: &Cloud,
        until: Option<Instant>,
    ) -> Result<Value> {
        let output = rules.stream_output(self.kind, &self.name)?;
        let Some((first, _)) = self.records.first() else {
            return Ok(json!({ "batchItemFailures": [] }));
        };
        let url = output.with_key(fit_key(&format!(
            "{}{}/{first}.jsonl",
            output.key, self.name
        )));
        let function = rules.function(self.kind, &self.name, &BTreeMap::new())?;
        let (numbers, lines): (Vec<String>, Vec<Vec<u8>>) = self.records.into_iter().unzip();
        let AnsweredLines { lines, stopped } = answer(function, &lines, until, usize::MAX).await?;
        let (written, repeated) = split(&lines, &numbers);
        if let Some(error) = &stopped {
            tracing::error!(error = error.chain(), "the stream will repeat records");
        }
        if !written.is_empty() {
            cloud.store()?.put(&url, written.into(), &Condition::None)?;
            tracing::info!(%url, "written");
        }
        let failure = repeated.map(|number| json!({ "itemIdentifier": number }));
        Ok(json!({ "batchItemFailures": failure.into_iter().collect::<Vec<_>>() }))
    }
}

/// The lines before the first record that must be repeated, and its number.
fn split<'a>(lines: &[AnsweredLine], numbers: &'a [String]) -> (Vec<u8>, Option<&'a str>) {
    let is_repeated = |line: &AnsweredLine| {
        line.error
            .as_ref()
            .is_some_and(|error| error.kind == ErrorKind::Model)
    };
    let mut end = lines.iter().position(is_repeated).unwrap_or(lines.len());
    // An aggregated record is repeated as a whole.
    if let Some(repeated) = numbers.get(end) {
        end -= numbers[..end]
            .iter()
            .rev()
            .take_while(|number| *number == repeated)
            .count();
    }
    let written = lines[..end]
        .iter()
        .flat_map(|line| line.line.iter().copied())
        .collect();
    (written, numbers.get(end).map(String::as_str))
}

fn text<'a>(record: Option<&'a Value>, pointer: &str) -> Result<&'a str> {
    record
        .and_then(|record| record.pointer(pointer)?.as_str())
        .ok_or_else(|| {
            Error::malformed(format!(
                "expected `{}` in the record, but found none",
                pointer[1..].replace('/', ".")
            ))
        })
}

/// A DynamoDB item without types.
fn plain_fields(item: &Map<String, Value>) -> Result<Map<String, Value>> {
    item.iter()
        .map(|(name, value)| Ok((name.clone(), plain(value)?)))
        .collect()
}

/// An attribute value without its type.
fn plain(value: &Value) -> Result<Value> {
    let wrong = || Error::malformed("a value is not a DynamoDB attribute value with its type");
    let (kind, value) = value
        .as_object()
        .filter(|value| value.len() == 1)
        .and_then(|value| value.iter().next())
        .ok_or_else(wrong)?;
    Ok(match (kind.as_str(), value) {
        ("N", Value::String(text)) => number(text),
        ("NS", Value::Array(texts)) => texts.iter().filter_map(Value::as_str).map(number).collect(),
        ("S" | "B" | "BOOL" | "SS" | "BS", value) => value.clone(),
        ("NULL", _) => Value::Null,
        ("M", Value::Object(fields)) => Value::Object(plain_fields(fields)?),
        ("L", Value::Array(values)) => values.iter().map(plain).collect::<Result<_>>()?,
        _ => return Err(wrong()),
    })
}

/// A number, or its text if it has too many digits.
fn number(text: &str) -> Value {
    let number = text.parse::<i64>().map(Number::from).ok();
    let number = number.or_else(|| {
        text.parse()
            .ok()
            .and_then(Number::from_f64)
            .filter(|_| text.len() <= 16)
    });
    number.map_or_else(|| text.into(), Value::Number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_written_up_to_the_first_that_is_repeated() {
        let line = |text: &str, kind: Option<ErrorKind>| AnsweredLine {
            line: format!("{text}\n").into_bytes(),
            error: kind.map(|kind| RowError::new(kind, "")),
        };
        let numbers = ["1", "2", "3"].map(str::to_owned);
        let split = |kinds: &[Option<ErrorKind>]| {
            let lines: Vec<_> = numbers
                .iter()
                .zip(kinds)
                .map(|(text, kind)| line(text, *kind))
                .collect();
            let (written, repeated) = split(&lines, &numbers);
            (
                String::from_utf8(written).unwrap(),
                repeated.map(str::to_owned),
            )
        };
        let (row, model) = (Some(ErrorKind::Text), Some(ErrorKind::Model));
        assert_eq!(split(&[None, row, None]), ("1\n2\n3\n".into(), None));
        assert_eq!(
            split(&[None, model, None]),
            ("1\n".into(), Some("2".into()))
        );
        assert_eq!(
            split(&[model, model, None]),
            (String::new(), Some("1".into()))
        );
        // There was no time for the third.
        assert_eq!(split(&[None, row]), ("1\n2\n".into(), Some("3".into())));
    }

    #[test]
    fn names_are_those_of_streams_and_tables() {
        for arn in [
            "arn:aws:kinesis:eu-west-1:123456789012:stream/reviews",
            "arn:aws:kinesis:eu-west-1:123456789012:stream/reviews/consumer/kivu:1700000000",
            "arn:aws:dynamodb:eu-west-1:123456789012:table/reviews/stream/2026-01-01T00:00:00.000",
            "arn:aws:firehose:eu-west-1:123456789012:deliverystream/reviews",
        ] {
            assert_eq!(resource_name(arn), "reviews", "{arn}");
        }
    }

    #[test]
    fn aggregated_records_of_kinesis_are_separated() {
        let record = |number: &str, data: &[u8]| {
            let kinesis = json!({ "sequenceNumber": number, "data": BASE64_STANDARD.encode(data) });
            json!({ "eventSourceARN": "arn:aws:kinesis:eu-west-1:123456789012:stream/reviews", "kinesis": kinesis })
        };
        let aggregated =
            kinesis_aggregation::aggregate(&["{\"text\": \"a\"}", "\n", "{\"text\": \"b\"}"]);
        let records = [record("1", &aggregated), record("2", b"{\"text\": \"c\"}")];
        let found = StreamBatch::of_kinesis(&records).unwrap().records;
        let found: Vec<_> = found
            .iter()
            .map(|(number, line)| (number.as_str(), line.as_slice()))
            .collect();
        assert_eq!(
            found,
            [
                ("1", &b"{\"text\": \"a\"}"[..]),
                ("1", b"{\"text\": \"b\"}"),
                ("2", b"{\"text\": \"c\"}")
            ]
        );
    }

    #[test]
    fn an_aggregated_record_is_written_as_a_whole() {
        let numbers = ["1", "2", "2", "3"].map(str::to_owned);
        let written = |kinds: &[Option<ErrorKind>]| {
            let line = |kind: &Option<ErrorKind>| AnsweredLine {
                line: b"a".to_vec(),
                error: kind.map(|kind| RowError::new(kind, "")),
            };
            let lines: Vec<_> = kinds.iter().map(line).collect();
            let (written, repeated) = split(&lines, &numbers);
            (written.len(), repeated.map(str::to_owned))
        };
        let model = Some(ErrorKind::Model);
        assert_eq!(written(&[None, None, model, None]), (1, Some("2".into())));
        assert_eq!(written(&[None, None]), (1, Some("2".into())));
        assert_eq!(written(&[None, None, None, model]), (3, Some("3".into())));
        assert_eq!(written(&[None; 4]), (4, None));
    }

    #[test]
    fn numbers_keep_their_digits() {
        let found = [
            "7",
            "-1.5",
            "12345678901234567890123456789",
            "0.1234567890123456789",
            "1e400",
        ]
        .map(number);
        assert_eq!(
            Value::from(found.to_vec()),
            json!([
                7,
                -1.5,
                "12345678901234567890123456789",
                "0.1234567890123456789",
                "1e400"
            ])
        );
    }

    #[test]
    fn only_attribute_values_with_a_type_are_read() {
        for wrong in [
            json!(7),
            json!({}),
            json!({ "S": "a", "N": "1" }),
            json!({ "X": 1 }),
            json!({ "M": [] }),
        ] {
            assert!(plain(&wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_record_is_a_line() {
        assert_eq!(
            line(b" {\n\"a\":\r\n1}\n".to_vec()).unwrap(),
            b"{ \"a\":  1}"
        );
        assert_eq!(line(b" \r\n\t".to_vec()), None);
        for marks in [
            "\u{feff}",
            "\u{feff}\u{feff}",
            " \u{feff}\n\u{feff}\u{feff} ",
        ] {
            assert_eq!(
                line(format!("{marks}{{}}").into()).unwrap(),
                b"{}",
                "{marks:?}"
            );
            assert_eq!(line(format!("{marks} ").into()), None, "{marks:?}");
        }
    }
}
