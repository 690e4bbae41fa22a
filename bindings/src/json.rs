//! Parameters and results as JSON.

use kivu::{Error, Result, task::read_parameters};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::texts::half_a_pair;

/// The parameters in a JSON object.
pub fn fields(parameters: &str) -> Result<Map<String, Value>> {
    // Packages write JSON; what they are given may still be no text, no number of 64 bits, or nested too deeply.
    serde_json::from_str(parameters).map_err(|error| {
        let problem = error.to_string();
        match problem.contains("hex escape") {
            true => half_a_pair("parameters"),
            false => Error::invalid(format!("cannot read the parameters: {problem}")),
        }
    })
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
