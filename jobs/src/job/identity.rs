//! A job's identity: a hash of everything that its output depends on.
//!
//! A job is resumed, and an output in S3 is recognized, only if all of it is the same.

use serde::Serialize;
use uuid::Uuid;

use super::parameters::Parameters;
use crate::sink::SinkSettings;
use kivu::{
    Error, Result,
    config::Limits,
    model::{Model, ModelSettings},
};

/// Inputs to a [`Predictor`](super::predictor::Predictor) and the row writers.
#[derive(Clone, Debug, Serialize)]
pub struct Identity {
    /// Kivu's version, since another may compute or write results differently.
    program: &'static str,
    /// Identifies the input and its contents; unique for a stream.
    input: String,
    /// SHA-256 of the bundle's manifest.
    bundle: String,
    settings: ModelSettings,
    parameters: Parameters,
    /// The sink, and what it gets.
    #[serde(skip_serializing_if = "Option::is_none")]
    sink: Option<String>,
    /// Limits of rows that are requests: texts, bytes of a body, and values.
    #[serde(skip_serializing_if = "Option::is_none")]
    limits: Option<[usize; 3]>,
}

impl Identity {
    /// Identity for a job whose input has this version; `None` for a stream.
    pub fn new(
        input: Option<String>,
        model: &Model,
        parameters: &Parameters,
        sink: Option<&SinkSettings>,
    ) -> Self {
        let truncate = parameters.truncates(&model.settings);
        Self {
            program: env!("CARGO_PKG_VERSION"),
            input: input.unwrap_or_else(|| Uuid::new_v4().to_string()),
            bundle: model.digest.clone(),
            settings: ModelSettings {
                truncate,
                ..model.settings.clone()
            },
            // The bundle identifies the model, and the settings contain the effective `truncate`.
            parameters: Parameters {
                model: None,
                truncate: None,
                ..parameters.clone()
            },
            sink: sink.map(SinkSettings::to_string),
            limits: None,
        }
    }

    /// The identity of a job whose rows are requests with these limits.
    pub fn with_limits(self, limits: &Limits) -> Self {
        let limits = [limits.texts, limits.body_bytes, limits.values];
        Self {
            limits: Some(limits),
            ..self
        }
    }

    /// BLAKE3 of the identity, in hexadecimal.
    pub fn digest(&self) -> Result<String> {
        let text = serde_json::to_vec(self).map_err(|error| {
            Error::inference_because("the job's identity cannot be written", error)
        })?;
        Ok(blake3::hash(&text).to_hex().to_string())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use kivu::{backend::Engine, model::FleetSettings};

    fn identity() -> Identity {
        Identity {
            program: "1",
            input: "in".into(),
            bundle: "digest".into(),
            settings: ModelSettings {
                max_tokens: 8,
                truncate: true,
                engine: Some(Engine::Native),
                runtime: None,
                fleet: Some(FleetSettings {
                    urls: Vec::new(),
                    model: "a".into(),
                    version: None,
                    is_required: false,
                }),
                redact_key: None,
            },
            parameters: Parameters::default(),
            sink: Some("s3vectors://bucket/index".into()),
            limits: Some([1, 2, 3]),
        }
    }

    /// Paths to all values in a JSON object.
    fn paths(value: &Value, path: &str) -> Vec<String> {
        match value.as_object() {
            None => vec![path.to_owned()],
            Some(fields) => fields
                .iter()
                .flat_map(|(name, value)| paths(value, &format!("{path}/{name}")))
                .collect(),
        }
    }

    /// Every configuration field and parameter that reaches a job changes its identity.
    #[test]
    fn every_part_is_hashed() {
        let whole = json!(identity());
        let digest = |value: &Value| blake3::hash(value.to_string().as_bytes());
        let all = paths(&whole, "");
        assert!(all.len() > 12, "{all:?}");
        for path in all {
            let mut other = whole.clone();
            *other.pointer_mut(&path).unwrap() = json!("other");
            assert!(digest(&other) != digest(&whole), "{path}");
        }
        let mut longer = identity();
        longer.settings.max_tokens = 9;
        assert_ne!(longer.digest().unwrap(), identity().digest().unwrap());
    }
}
