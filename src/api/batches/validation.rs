//! Checks a batch's file before its first request runs.

use std::collections::HashSet;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::object::{BatchError, Endpoint};
use crate::{
    batch::{JobInput, RequestLines},
    error::{Error, Result},
    json,
};

/// Further errors are not listed.
const MAX_ERRORS: usize = 50;
const MAX_ID_CHARS: usize = 512;

/// A line of the file.
#[derive(Deserialize)]
pub(super) struct Line<'a> {
    pub(super) custom_id: String,
    method: String,
    url: String,
    #[serde(borrow)]
    pub(super) body: &'a RawValue,
}

/// The fields of a body that concern the whole batch.
#[derive(Deserialize)]
struct Body<'a> {
    model: Option<String>,
    #[serde(borrow)]
    input: Option<&'a RawValue>,
}

/// A file without errors.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) requests: u64,
    /// The model that all requests name.
    pub(super) model: Option<String>,
}

impl<'a> Line<'a> {
    pub(super) fn parse(text: &'a str) -> serde_json::Result<Self> {
        serde_json::from_str(text)
    }
}

fn error(code: &str, param: Option<&str>, message: impl Into<String>) -> BatchError {
    BatchError {
        code: code.to_owned(),
        line: None,
        message: message.into(),
        param: param.map(str::to_owned),
    }
}

/// Checks a file for requests to `endpoint`, at most `max`; its errors, or an error if it cannot be read for now.
pub(super) fn check(
    input: &JobInput,
    endpoint: Endpoint,
    max: usize,
) -> Result<Result<Checked, Vec<BatchError>>> {
    let unreadable = |error: Error| match error {
        Error::Invalid { message } => Ok(Err(vec![self::error("invalid_file", None, message)])),
        error => Err(error),
    };
    let mut lines = match RequestLines::open(input) {
        Ok(lines) => lines,
        Err(error) => return unreadable(error),
    };
    let mut checks = Checks::new(endpoint, max);
    loop {
        match lines.request() {
            Ok(Some(line)) => checks.line(&line),
            Ok(None) => return Ok(checks.finish()),
            Err(error) => return unreadable(error),
        }
        if checks.is_over() {
            return Ok(checks.finish());
        }
    }
}

struct Checks {
    endpoint: Endpoint,
    max: usize,
    requests: u64,
    inputs: usize,
    /// Hashes, whose size does not depend on the ids.
    ids: HashSet<[u8; 16]>,
    models: HashSet<Option<String>>,
    errors: Vec<BatchError>,
}

impl Checks {
    fn new(endpoint: Endpoint, max: usize) -> Self {
        let (ids, models, errors) = (HashSet::new(), HashSet::new(), Vec::new());
        Self {
            endpoint,
            max,
            requests: 0,
            inputs: 0,
            ids,
            models,
            errors,
        }
    }

    /// Whether further lines change nothing.
    fn is_over(&self) -> bool {
        self.requests > self.max as u64 || self.inputs > self.max || self.errors.len() >= MAX_ERRORS
    }

    fn line(&mut self, text: &str) {
        self.requests += 1;
        if let Err(error) = self.check(text) {
            self.errors.push(BatchError {
                line: Some(self.requests),
                ..error
            });
        }
    }

    fn check(&mut self, text: &str) -> Result<(), BatchError> {
        if !text.trim_start().starts_with('{') {
            return Err(error(
                "invalid_json_line",
                None,
                "expected a JSON object, but found something else",
            ));
        }
        let line = Line::parse(text).map_err(|cause| malformed(&cause))?;
        if line.custom_id.is_empty() || line.custom_id.chars().count() > MAX_ID_CHARS {
            let message = format!(
                "expected `custom_id` to have 1 to {MAX_ID_CHARS} characters, but found another length"
            );
            return Err(error("invalid_custom_id", Some("custom_id"), message));
        }
        let mut hash = [0; 16];
        hash.copy_from_slice(&blake3::hash(line.custom_id.as_bytes()).as_bytes()[..16]);
        if !self.ids.insert(hash) {
            let message = "expected another `custom_id` for each request, but found one twice";
            return Err(error("duplicate_custom_id", Some("custom_id"), message));
        }
        if line.method != "POST" {
            return Err(error(
                "invalid_method",
                Some("method"),
                "expected `method` to be `POST`, but found another",
            ));
        }
        if line.url != self.endpoint.path() {
            let message = format!(
                "expected `url` to be the batch's endpoint, `{}`, but found another",
                self.endpoint.path()
            );
            return Err(error("mismatched_url", Some("url"), message));
        }
        let body: Body<'_> = serde_json::from_str(line.body.get()).map_err(|_| {
            error(
                "invalid_request",
                Some("body"),
                "expected `body` to be an object with `input`, but found another value",
            )
        })?;
        self.inputs += body.input.map_or(1, inputs);
        // Further names are not needed.
        if self.models.len() < 2 {
            self.models.insert(body.model);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Checked, Vec<BatchError>> {
        if self.requests == 0 {
            self.errors.push(error(
                "empty_file",
                None,
                "expected requests, but found an empty file",
            ));
        }
        let exceeded = [
            ("requests", self.requests as usize),
            ("inputs in all requests", self.inputs),
        ];
        if let Some((what, _)) = exceeded.into_iter().find(|(_, found)| *found > self.max) {
            let message = format!(
                "expected at most {} {what}, but found more; use several batches",
                self.max
            );
            self.errors.push(error("too_many_requests", None, message));
        }
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        let mut models = self.models.into_iter();
        let model = models.next().flatten().filter(|_| models.next().is_none());
        Ok(Checked {
            requests: self.requests,
            model,
        })
    }
}

/// A request's inputs: token ids are one.
fn inputs(input: &RawValue) -> usize {
    let Ok(items) = serde_json::from_str::<Vec<&RawValue>>(input.get()) else {
        return 1;
    };
    let is_number = |item: &&RawValue| {
        item.get()
            .starts_with(|first: char| first == '-' || first.is_ascii_digit())
    };
    if items.first().is_some_and(is_number) {
        1
    } else {
        items.len().max(1)
    }
}

/// Error for a line that cannot be parsed, without its text.
fn malformed(cause: &serde_json::Error) -> BatchError {
    if !cause.is_data() {
        let syntax = json::syntax(cause);
        let problem = syntax.split(" at line ").next().unwrap_or_default();
        let message = format!(
            "expected JSON, but found an error at column {}: {problem}",
            cause.column()
        );
        return error("invalid_json_line", None, message);
    }
    let text = cause.to_string();
    let fields = ["custom_id", "method", "url", "body"];
    let missing = fields
        .into_iter()
        .find(|field| text.starts_with(&format!("missing field `{field}`")));
    match missing {
        Some(field) => {
            let message = format!("expected the field `{field}`, but found none");
            error("missing_required_parameter", Some(field), message)
        }
        None => error(
            "invalid_request",
            None,
            "expected `custom_id`, `method` and `url` to be strings, each once, but found something else",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(id: &str, body: &str) -> String {
        format!(
            r#"{{"custom_id": "{id}", "method": "POST", "url": "/v1/embeddings", "body": {body}}}"#
        )
    }

    fn checked(lines: &[String], max: usize) -> Result<Checked, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, lines.join("\n")).unwrap();
        let found = check(&JobInput::File(path), Endpoint::Embeddings, max).unwrap();
        found.map_err(|errors| {
            let show = |error: &BatchError| {
                format!(
                    "{:?} {} {:?}: {}",
                    error.line, error.code, error.param, error.message
                )
            };
            errors.iter().map(show).collect::<Vec<_>>().join("\n")
        })
    }

    #[test]
    fn each_wrong_line_has_its_error() {
        let lines = [
            line("a", r#"{"input": "x"}"#),
            line("a", r#"{"input": "x"}"#),
            "no secret".into(),
            r#"{"custom_id": "b", "secret"}"#.into(),
            r#"["a", "POST", "/v1/embeddings", {}]"#.into(),
            r#"{"method": "POST", "url": "/v1/embeddings", "body": {}}"#.into(),
            line("c", "7"),
            line("", "{}"),
            line("d", "{}").replace("POST", "GET"),
            line("e", "{}").replace("/v1/embeddings", "/v1/secret"),
            line("f", "{}").replace("\"POST\"", "5"),
        ];
        let errors = checked(&lines, 100).unwrap_err();
        assert!(!errors.contains("secret"), "{errors}");
        insta::assert_snapshot!(errors, @r#"
        Some(2) duplicate_custom_id Some("custom_id"): expected another `custom_id` for each request, but found one twice
        Some(3) invalid_json_line None: expected a JSON object, but found something else
        Some(4) invalid_json_line None: expected JSON, but found an error at column 28: expected `:`
        Some(5) invalid_json_line None: expected a JSON object, but found something else
        Some(6) missing_required_parameter Some("custom_id"): expected the field `custom_id`, but found none
        Some(7) invalid_request Some("body"): expected `body` to be an object with `input`, but found another value
        Some(8) invalid_custom_id Some("custom_id"): expected `custom_id` to have 1 to 512 characters, but found another length
        Some(9) invalid_method Some("method"): expected `method` to be `POST`, but found another
        Some(10) mismatched_url Some("url"): expected `url` to be the batch's endpoint, `/v1/embeddings`, but found another
        Some(11) invalid_request None: expected `custom_id`, `method` and `url` to be strings, each once, but found something else
        "#);
    }

    #[test]
    fn requests_and_their_inputs_are_limited() {
        let requests: Vec<String> = (0..5)
            .map(|id| line(&id.to_string(), r#"{"input": "x"}"#))
            .collect();
        assert_eq!(
            checked(&requests, 5),
            Ok(Checked {
                requests: 5,
                model: None
            })
        );
        insta::assert_snapshot!(checked(&requests, 4).unwrap_err(), @"None too_many_requests None: expected at most 4 requests, but found more; use several batches");
        let inputs = |input| checked(&[line("a", input)], 3);
        assert!(inputs(r#"{"input": ["a", "b", "c"]}"#).is_ok());
        assert!(inputs(r#"{"input": [1, 2, 3, 4]}"#).is_ok());
        insta::assert_snapshot!(inputs(r#"{"input": [[1], [2], [3], [4]]}"#).unwrap_err(), @"None too_many_requests None: expected at most 3 inputs in all requests, but found more; use several batches");
        insta::assert_snapshot!(checked(&[], 3).unwrap_err(), @"None invalid_file None: expected rows, but found an empty file");
    }

    #[test]
    fn a_batch_has_a_model_if_all_requests_name_it() {
        let model = |names: &[&str]| {
            let lines: Vec<String> = names
                .iter()
                .enumerate()
                .map(|(id, name)| line(&id.to_string(), &format!(r#"{{"model": "{name}"}}"#)))
                .collect();
            checked(&lines, 9).unwrap().model
        };
        assert_eq!(model(&["m", "m"]).as_deref(), Some("m"));
        assert_eq!(model(&["m", "n", "m"]), None);
    }
}
