//! Values of enums on the command line: their names in serde, described by their schemas.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use schemars::JsonSchema;
use serde::de::DeserializeOwned;

use kivu::names::{described, named};

/// Parses a value's name.
pub fn choice<T: JsonSchema + DeserializeOwned + Clone + Send + Sync + 'static>()
-> impl TypedValueParser<Value = T> {
    choices::<T>().try_map(|name| named(&name).ok_or("an unknown name"))
}

/// Checks a value's name.
pub fn choices<T: JsonSchema>() -> PossibleValuesParser {
    values(described::<T>())
}

/// Checks a name among these, each with its description.
pub fn values(described: Vec<(String, String)>) -> PossibleValuesParser {
    // clap keeps names for the process's time.
    let value = |(name, description): (String, String)| {
        PossibleValue::new(&*name.leak()).help(one_line(&description))
    };
    described.into_iter().map(value).into()
}

/// A description as clap prints comments: on one line, and without the last full stop.
pub fn one_line(description: &str) -> String {
    let line = description.replace('\n', " ");
    line.trim_end_matches('.').to_owned()
}
