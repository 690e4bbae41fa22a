//! Parameters and results as JSON.

use kivu::{Error, Result, task::read_parameters};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

/// The parameters in a JSON object.
pub fn fields(parameters: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(parameters).map_err(|error| Error::invalid(error.to_string()))
}

/// Reads parameters from JSON; errors name the parameter.
pub fn read<T: DeserializeOwned>(parameters: &str) -> Result<T> {
    read_parameters(fields(parameters)?)
}

/// Writes results.
pub fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::inference_because("cannot write the results", error))
}
