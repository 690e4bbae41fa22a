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
    let value = |(name, description): (String, String)| {
        // As clap prints comments: on one line, and without the last full stop. It keeps names for the process's time.
        let help = description.replace('\n', " ");
        PossibleValue::new(&*name.leak()).help(help.trim_end_matches('.').to_owned())
    };
    described::<T>().into_iter().map(value).into()
}
