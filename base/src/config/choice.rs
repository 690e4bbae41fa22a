//! Deserializers for values whose default errors do not name the expected values.

use std::net::SocketAddr;

use kivu_engine::kernel::InstructionSet;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error},
};

use crate::{
    error::{Result, quoted},
    names::{named, names},
};

/// Deserializes a choice. In the `config` crate, a derived implementation's error does not name the alternatives.
pub fn one_of<'de, D, T>(value: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + JsonSchema,
{
    let expected = quoted(&names::<T>());
    let wrong = |found| D::Error::custom(format!("expected {expected}, but found {found}"));
    // The `config` crate reads numbers and booleans as strings, too.
    let found = String::deserialize(value).map_err(|_| wrong("a list or a table".to_owned()))?;
    named(&found).ok_or_else(|| wrong(format!("`{}`", found.escape_debug())))
}

/// Deserializes a choice that may be absent.
pub fn some_of<'de, D, T>(value: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: DeserializeOwned + JsonSchema,
{
    #[derive(Deserialize)]
    #[serde(bound = "T: DeserializeOwned + JsonSchema")]
    struct One<T>(#[serde(deserialize_with = "one_of")] T);
    let one = Option::<One<T>>::deserialize(value)?;
    Ok(one.map(|One(value)| value))
}

/// Deserializes an address with its port.
pub fn address<'de, D: Deserializer<'de>>(value: D) -> Result<SocketAddr, D::Error> {
    parse_address(&String::deserialize(value)?).map_err(D::Error::custom)
}

/// Parses an address with its port. `localhost` is 127.0.0.1, whatever the system resolves it to.
pub fn parse_address(found: &str) -> Result<SocketAddr, String> {
    let numeric = found
        .strip_prefix("localhost:")
        .map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(found).parse().map_err(|_| {
        let found = found.escape_debug();
        format!("expected an address such as `127.0.0.1:8080`, but found `{found}`")
    })
}

/// Deserializes an instruction set.
pub fn instructions<'de, D: Deserializer<'de>>(
    value: D,
) -> Result<Option<InstructionSet>, D::Error> {
    parse_instructions(&String::deserialize(value)?)
        .map(Some)
        .map_err(D::Error::custom)
}

/// Parses the name of an instruction set that this processor has.
pub fn parse_instructions(found: &str) -> Result<InstructionSet, String> {
    InstructionSet::available()
        .find(|set| set.name() == found)
        .ok_or_else(|| {
            let names: Vec<_> = InstructionSet::available()
                .map(InstructionSet::name)
                .collect();
            let found = found.escape_debug();
            format!(
                "expected instructions of this processor, {}, but found `{found}`",
                quoted(&names)
            )
        })
}

/// Deserializes a number of bytes.
pub fn bytes<'de, D: Deserializer<'de>>(value: D) -> Result<Option<u64>, D::Error> {
    parse_bytes(&String::deserialize(value)?)
        .map(Some)
        .map_err(D::Error::custom)
}

/// The smallest memory for models, in bytes. A smaller number lacks its unit: no model fits into 2 bytes.
const MIN_MEMORY: f64 = 100_000.0;

/// Parses memory for models in bytes, with or without a unit, as `2GB`, `1.5 GiB` or `500000000`.
pub fn parse_bytes(found: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 9] = [
        ("", 1),
        ("b", 1),
        ("kb", 1000),
        ("mb", 1_000_000),
        ("gb", 1_000_000_000),
        ("tb", 1_000_000_000_000),
        ("kib", 1 << 10),
        ("mib", 1 << 20),
        ("gib", 1 << 30),
    ];
    let text = found.trim().to_ascii_lowercase();
    let (number, unit) = text.split_at(
        text.find(|c: char| c.is_ascii_alphabetic())
            .unwrap_or(text.len()),
    );
    let unit = UNITS
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, bytes)| *bytes as f64);
    let bytes = number
        .trim()
        .parse::<f64>()
        .ok()
        .zip(unit)
        .map(|(number, unit)| number * unit);
    let bytes = bytes.filter(|bytes| *bytes >= MIN_MEMORY && *bytes < u64::MAX as f64);
    bytes.map(|bytes| bytes as u64).ok_or_else(|| {
        format!(
            "expected at least 100 kB of memory, such as `2GB` or a number of bytes, but found `{}`",
            found.escape_debug()
        )
    })
}

/// When models are loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Load {
    /// All before the first request; they stay loaded.
    #[default]
    Start,
    /// Each by its first request, within a memory budget.
    OnDemand,
}

/// The engine that runs local models.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum EngineChoice {
    /// The engine that the bundle was built for; for a build, `native` if it supports the model.
    #[default]
    Auto,
    /// Kivu's own. Models that it does not support are refused.
    Native,
    /// ONNX Runtime.
    Onnx,
}

/// Log format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LogFormat {
    /// One text line per event, coloured on a terminal.
    #[default]
    Text,
    /// One JSON object per line.
    Json,
}
