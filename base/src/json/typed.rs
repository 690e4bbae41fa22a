//! JSON values to types, with errors that name the field.

use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    Kind, Objects,
    known::{Known, REFUSED},
    located,
};
use crate::error::{Error, Result};

/// The field at `path` in an error.
pub fn field(path: &str) -> String {
    match path {
        "." => "the body".to_owned(),
        path => format!("`{path}`"),
    }
}

/// Refuses fields of a value, at any depth.
pub fn check(value: &Value, known: Known) -> Result<()> {
    serde_path_to_error::deserialize::<_, Kind>(Objects::with(value, known))
        .map(drop)
        .map_err(|error| {
            let path = error.path().to_string();
            let cause = error.into_inner().to_string();
            refusal(&path, &cause).unwrap_or_else(|| Error::invalid(cause))
        })
}

/// The error for a refused field at `path`, if that is the cause.
fn refusal(path: &str, cause: &str) -> Option<Error> {
    let (path, cause) = located(path, cause);
    let message = cause.strip_prefix(REFUSED)?;
    // `serde_json` adds the line.
    let message = message
        .rsplit_once(" at line ")
        .map_or(message, |(message, _)| message);
    // The name ends the message, or its value follows.
    let end = message.find('`')?;
    let name = message[..end].split(": ").next()?;
    let object = parent(&path);
    Some(Error::invalid(format!("`{object}{message}")).in_field(format_args!("{object}{name}")))
}

/// The prefix of field names in the object at `path`.
fn parent(path: &str) -> String {
    match path {
        "." => String::new(),
        path => format!("{path}."),
    }
}

/// Error for a value that does not fit its field.
pub fn wrong_value(path: &str, cause: &str) -> Error {
    if let Some(refusal) = refusal(path, cause) {
        return refusal;
    }
    let (path, cause) = located(path, cause);
    let error = unfit(&path, &redacted(cause));
    match &*path {
        "." => error,
        _ if error.field().is_some() => error,
        path => error.in_field(path),
    }
}

fn unfit(path: &str, cause: &str) -> Error {
    let field = field(path);
    let within = |name: &str| format!("{}{}", parent(path), name.trim_matches('`'));
    if let Some(name) = cause.strip_prefix("missing field `") {
        return Error::invalid(format!(
            "expected the field `{}{name}, but found none",
            parent(path)
        ))
        .in_field(within(name));
    }
    if let Some((_, known)) = cause
        .strip_prefix("unknown field `")
        .and_then(|rest| rest.split_once("`, expected "))
    {
        let known = known.strip_prefix("one of ").unwrap_or(known);
        return Error::invalid(format!("unknown field {field}"))
            .with_hint(format!("known fields: {known}"));
    }
    if let Some(name) = cause.strip_prefix("duplicate field ") {
        return Error::invalid(format!(
            "expected each field once in {field}, but found {name} twice"
        ))
        .in_field(within(name));
    }
    let prefixes = ["invalid type: ", "invalid value: ", "unknown variant: "];
    let described = prefixes
        .iter()
        .find_map(|prefix| cause.strip_prefix(prefix)?.split_once(", expected "));
    Error::invalid(match described {
        Some((found, expected)) => {
            format!(
                "expected {field} to be {}, but found {}",
                in_json(expected),
                in_json(found)
            )
        }
        None => format!("wrong value in {field}: {cause}"),
    })
}

/// Replaces serde and Rust terms by JSON terms.
fn in_json(kind: &str) -> &str {
    match kind {
        "u8" => "an integer from 0 to 255",
        "u32" => "an integer from 0 to 4294967295",
        "u64" | "usize" => "an integer from 0 on",
        "i64" => "an integer",
        "f32" | "f64" => "a number",
        "sequence" | "a sequence" => "a list",
        "map" | "a map" => "an object",
        kind if kind.starts_with("struct ") => "an object",
        kind if kind.starts_with("a nonzero ") => "an integer above 0",
        _ => ["integer ", "floating point ", "boolean "]
            .iter()
            .find_map(|prefix| kind.strip_prefix(prefix))
            .unwrap_or(kind),
    }
}

/// The cause without its line and column, which are useless where a program wrote the JSON, and without the string
/// that was found, which may be a client's text.
fn redacted(cause: &str) -> String {
    let without = |start: &str, end: &str, instead: &str| {
        let (from, to) = (cause.find(start)?, cause.rfind(end)?);
        (from < to).then(|| format!("{}{instead}{}", &cause[..from], &cause[to + 1..]))
    };
    let redacted = without("string \"", "\", expected ", "a string")
        .or_else(|| {
            without(
                "unknown variant `",
                "`, expected ",
                "unknown variant: another value",
            )
        })
        .unwrap_or_else(|| cause.to_owned());
    redacted
        .split(" at line ")
        .next()
        .unwrap_or_default()
        .to_owned()
}

/// Deserializes parsed JSON; errors name the field.
pub fn from_value<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    from_known(value, &[])
}

/// Deserializes a parsed object with known fields; errors name the field.
pub fn from_known<T: DeserializeOwned>(value: Value, known: Known) -> Result<T, Error> {
    serde_path_to_error::deserialize(Objects::with(value, known)).map_err(|error| {
        let path = error.path().to_string();
        wrong_value(&path, &error.into_inner().to_string())
    })
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::json::{Budget, Fields, ReadError, Refused, read_known};

    static INNER: Fields = Fields {
        read: &["num_ctx"],
        without_effect: &["temperature"],
        refused: &[Refused {
            name: "mode",
            unless: &["1", "\"fast\""],
            hint: "leave it out",
        }],
        foreign: &[],
        inner: &[],
    };
    static OUTER: Fields = Fields {
        read: &["dimensions", "texts", "options", "top"],
        without_effect: &["user"],
        refused: &[Refused {
            name: "images",
            unless: &[],
            hint: "models read texts",
        }],
        foreign: &[Refused {
            name: "output_dimension",
            unless: &["7"],
            hint: "use `dimensions`",
        }],
        inner: &[("options", &[&INNER]), ("texts", &[&INNER])],
    };

    const KNOWN: Known = &[&OUTER];

    #[derive(Debug, Deserialize)]
    struct Options {
        #[serde(rename = "num_ctx")]
        _num_ctx: Option<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Flat {
        #[serde(rename = "dimensions")]
        _dimensions: Option<u32>,
    }

    #[derive(Debug, Deserialize)]
    struct Body {
        #[serde(rename = "options")]
        _options: Option<Options>,
        #[serde(rename = "texts")]
        _texts: Option<crate::json::Content>,
        #[serde(flatten)]
        _flat: Flat,
    }

    /// The error from a text, which is the same for a value.
    fn error(body: &Value) -> Option<String> {
        let text = body.to_string();
        let read = read_known::<Body>(text.as_bytes(), Budget::new(text.len(), 8), KNOWN);
        let of_text = read.err().map(|error| match error {
            ReadError::Wrong(error) => {
                let path = error.path().to_string();
                wrong_value(&path, &error.into_inner().to_string()).to_string()
            }
            other => panic!("{other:?}"),
        });
        let of_value = check(body, KNOWN).err().map(|error| error.to_string());
        assert_eq!(of_text, of_value, "{text}");
        of_text
    }

    #[test]
    fn unsupported_and_misspelt_fields_are_refused_at_any_depth() {
        let errors = [
            json!({ "images": ["a"] }),
            json!({ "dimension": 7 }),
            json!({ "dimensons": null }),
            json!({ "DIMENSIONS": 7 }),
            json!({ "dimen": 7 }),
            json!({ "options": { "numCtx": 7 } }),
            json!({ "options": { "num_ctc": 7 } }),
            json!({ "options": { "mode": 2 } }),
            json!({ "texts": [{ "text": "a", "mode": "a text" }] }),
            json!({ "texts": [{ "text": "a" }, { "text": "a", "mode": true }] }),
            json!({ "output_dimension": 8 }),
            json!({ "outputDimension": 8 }),
            json!({ "output_dimensionx": 8 }),
        ];
        let errors = errors.map(|body| error(&body).unwrap());
        insta::assert_snapshot!(errors.join("\n"), @r"
        `images` is not supported: models read texts
        `dimension` is not a field of this API; use `dimensions`
        `dimensons` is not a field of this API; use `dimensions`
        `DIMENSIONS` is not a field of this API; use `dimensions`
        `dimen` is not a field of this API; use `dimensions`
        `options.numCtx` is not a field of this API; use `num_ctx`
        `options.num_ctc` is not a field of this API; use `num_ctx`
        `options.mode: 2` is not supported: leave it out
        `texts[0].mode` is not supported: leave it out
        `texts[1].mode: true` is not supported: leave it out
        `output_dimension: 8` is not supported: use `dimensions`
        `outputDimension: 8` is not supported: use `dimensions`
        `output_dimensionx: 8` is not supported: use `dimensions`
        ");
    }

    #[test]
    fn other_fields_and_values_that_ask_for_nothing_are_ignored() {
        for body in [
            json!({ "images": null }),
            json!({ "images": [] }),
            json!({ "images": {} }),
            json!({ "images": "" }),
            json!({ "options": { "mode": 1 } }),
            json!({ "options": { "mode": 1.0 } }),
            json!({ "options": { "mode": "fast", "temperature": 0.5, "num_gqa_x": 1 } }),
            json!({ "options": { "mode": ["fast", "fast"] } }),
            json!({ "user": "a", "extra": 1, "metadata": {}, "tops": 1, "to": 1, "toq": 1, "uzzr": 1 }),
            json!({ "options": null, "texts": ["a", { "text": "a", "text_pair": "b" }] }),
            json!({ "output_dimension": 7, "output_dimensionx": 7 }),
        ] {
            assert_eq!(error(&body), None, "{body}");
        }
    }

    #[test]
    fn errors_have_the_path_of_their_field() {
        let path = |body: Value| {
            let text = body.to_string();
            let read = read_known::<Body>(text.as_bytes(), Budget::new(text.len(), 8), KNOWN);
            let error = read.err()?.explain(text.as_bytes());
            error.field().map(str::to_owned)
        };
        for (body, expected) in [
            (json!({ "options": { "num_ctx": "a" } }), "options.num_ctx"),
            (json!({ "dimension": 7 }), "dimension"),
            (json!({ "options": { "mode": 2 } }), "options.mode"),
            (
                json!({ "texts": [{ "text": "a", "mode": "b" }] }),
                "texts[0].mode",
            ),
        ] {
            assert_eq!(path(body).as_deref(), Some(expected));
        }
        assert_eq!(path(json!([])), None, "the body is no field");
        let field = |error: Error| error.field().map(str::to_owned);
        let missing = wrong_value("options", "missing field `num_ctx`");
        assert_eq!(field(missing).as_deref(), Some("options.num_ctx"));
        let missing = wrong_value(".", "missing field `input`");
        assert_eq!(field(missing).as_deref(), Some("input"));
        let twice = wrong_value("options", "duplicate field `num_ctx`");
        assert_eq!(field(twice).as_deref(), Some("options.num_ctx"));
        let unknown = wrong_value("options.a", "unknown field `a`, expected `num_ctx`");
        assert_eq!(field(unknown).as_deref(), Some("options.a"));
        let parameter = from_value::<Flat>(json!({ "dimensions": "a" })).unwrap_err();
        assert_eq!(field(parameter.at("text 2")).as_deref(), Some("dimensions"));
    }
}
