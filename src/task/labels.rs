//! Labels in a request or a job.

use std::{convert::Infallible, str::FromStr};

use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value};

use super::count;
use crate::model::{Model, Pipeline};
use kivu_base::{
    Error, Result,
    config::Items,
    json::{Content, List},
    json_schemas::Texts,
};

/// A list of labels, or a string with commas between them or with a JSON list.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct LabelList(#[schemars(with = "Texts")] Content);

/// The parameter with labels, and its other name.
const NAMES: [&str; 2] = ["candidate_labels", "labels"];

/// Refuses labels among the parameters for a model that takes none, whose answers a client would take for answers about
/// its labels.
pub fn refuse_unused(model: &Model, parameters: &Map<String, Value>) -> Result<()> {
    if matches!(
        model.pipeline,
        Pipeline::ZeroShot(_) | Pipeline::ZeroShotEntities(_)
    ) {
        return Ok(());
    }
    match NAMES.into_iter().find(|name| {
        parameters
            .get(*name)
            .is_some_and(|labels| !labels.is_null())
    }) {
        Some(name) => Err(unused(model, name)),
        None => Ok(()),
    }
}

/// The error for labels in a request to a model that takes none.
pub fn unused(model: &Model, name: &str) -> Error {
    Error::invalid(format!(
        "`{name}` is not supported: `{}` is for `{}`",
        model.name, model.manifest.task
    ))
    .with_hint("`model`, or `models/NAME` in the path, selects another one")
}

impl FromStr for LabelList {
    type Err = Infallible;

    fn from_str(labels: &str) -> Result<Self, Infallible> {
        Ok(Self(Content::Text(labels.to_owned())))
    }
}

impl LabelList {
    /// The labels: any number up to `limit`, which is checked before they are copied.
    pub fn read(&self, field: &str, limit: usize) -> Result<Vec<String>> {
        let check = |found: usize| match found {
            0 => Ok(()),
            found => count(field.rsplit('.').next().unwrap_or(field), found, limit)
                .map_err(|error| error.in_field(field)),
        };
        let unexpected = |field: &str, expected: &str, found: &Content| {
            Error::invalid(format!(
                "expected `{field}` to be {expected}, but found {}",
                found.kind()
            ))
            .in_field(field)
        };
        match &self.0 {
            Content::Text(labels) => {
                let items = Items::read(labels, limit).map_err(|expected| {
                    Error::invalid(format!("expected {expected} in `{field}`")).in_field(field)
                })?;
                check(items.count)?;
                Ok(items.kept)
            }
            Content::List(values) => {
                check(values.count)?;
                let label = |(index, value)| match value {
                    Content::Text(label) => Ok(label),
                    other => Err(unexpected(&format!("{field}[{index}]"), "a string", &other)),
                };
                List::clone(values)
                    .values()
                    .enumerate()
                    .map(label)
                    .collect()
            }
            other => Err(unexpected(
                field,
                "a list of strings, or a string with commas",
                other,
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn labels_are_counted_before_they_are_read() {
        let read = |value: Value| LabelList::deserialize(value).unwrap().read("labels", 3);
        let refusal = |value: Value| read(value).unwrap_err().to_string();
        let commas: LabelList = ",a ,".repeat(1_000_000).parse().unwrap();
        let bytes = allocation_counter::measure(|| drop(commas.read("labels", 3))).bytes_max;
        assert!(bytes < 100_000, "{bytes}");
        let messages = [json!(vec![7; 4]), json!(["a", 7]), json!(7)].map(refusal);
        insta::assert_snapshot!(messages.join("\n"), @r"
        expected 1 to 3 `labels`, but found 4
        expected `labels[1]` to be a string, but found a number
        expected `labels` to be a list of strings, or a string with commas, but found a number
        ");
        insta::assert_snapshot!(commas.read("labels", 3).unwrap_err(), @"expected 1 to 3 `labels`, but found 1000000");
        // As in `transformers`, empty labels between commas are left out.
        for same in ["a, \"b, c\",,", "[\"a\", \"b, c\"]"] {
            assert_eq!(
                read(json!(same)).unwrap(),
                read(json!(["a", "b, c"])).unwrap()
            );
        }
        let messages = ["a,\"b", "[\"a\", 7]", "[1, 2, 3, 4]"].map(|text| refusal(json!(text)));
        insta::assert_snapshot!(messages.join("\n"), @r"
        expected a closing quote for item 2 in `labels`
        expected a JSON list of strings in `labels`
        expected a JSON list of strings in `labels`
        ");
        let json: LabelList = format!("[{}\"\"]", "\"\",".repeat(1_000_000))
            .parse()
            .unwrap();
        let bytes = allocation_counter::measure(|| drop(json.read("labels", 3))).bytes_max;
        assert!(bytes < 100_000, "{bytes}");
    }
}
