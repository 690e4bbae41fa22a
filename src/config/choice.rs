//! Values whose own errors would not name what is expected.

use std::net::SocketAddr;

use clap::ValueEnum;
use serde::{Deserialize, Deserializer, de::Error};

use crate::error::quoted;

/// Deserializes a value of a closed set. The error of a derived implementation does not name the others, as the crate
/// `config` uses it.
pub(super) fn one_of<'de, D: Deserializer<'de>, T: ValueEnum>(value: D) -> Result<T, D::Error> {
    let found = String::deserialize(value)?;
    T::from_str(&found, false).map_err(|_| {
        let values = T::value_variants().iter().filter_map(ValueEnum::to_possible_value);
        let names: Vec<_> = values.map(|value| value.get_name().to_owned()).collect();
        D::Error::custom(format!("expected {}, but found `{}`", quoted(&names), found.escape_debug()))
    })
}

/// Deserializes an address with its port.
pub(super) fn address<'de, D: Deserializer<'de>>(value: D) -> Result<SocketAddr, D::Error> {
    parse_address(&String::deserialize(value)?).map_err(D::Error::custom)
}

/// Parses an address with its port. `localhost` is 127.0.0.1, whatever the system resolves it to.
pub(crate) fn parse_address(found: &str) -> Result<SocketAddr, String> {
    let numeric = found.strip_prefix("localhost:").map(|port| format!("127.0.0.1:{port}"));
    numeric.as_deref().unwrap_or(found).parse().map_err(|_| {
        let found = found.escape_debug();
        format!("expected an address such as `127.0.0.1:8080`, but found `{found}`")
    })
}
