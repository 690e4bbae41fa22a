//! Models, and the fleet servers that may run them.

use std::{fmt, path::PathBuf, time::Duration};

use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor, value::MapAccessDeserializer},
};

use super::{
    auth::Secret,
    choice::{one_of, some_of},
};

/// Servers with the KServe v2 protocol, such as Triton.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default, expecting = "a table")]
pub struct FleetConfig {
    /// URLs with scheme `http`, `https`, `grpc` or `grpcs`, host and port. Empty if there is no fleet.
    pub urls: Vec<String>,
    /// Default policy for models without their own.
    #[serde(deserialize_with = "one_of")]
    pub policy: Policy,
    /// Requested model version; by default the servers choose.
    pub version: Option<String>,
    /// Deadline per request, including retries, in milliseconds.
    pub timeout_ms: u64,
    /// PEM file with trusted certificates; by default the system's.
    pub ca: Option<PathBuf>,
    /// The bearer token in the `authorization` header.
    pub token: Option<Secret>,
}

impl Default for FleetConfig {
    fn default() -> Self {
        Self {
            urls: Vec::new(),
            policy: Policy::Auto,
            version: None,
            timeout_ms: 10_000,
            ca: None,
            token: None,
        }
    }
}

impl FleetConfig {
    /// [`Self::timeout_ms`] as a duration.
    pub fn timeout(&self) -> Duration {
        Duration::from_millis(self.timeout_ms)
    }
}

/// Where a model runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// In this process.
    Local,
    /// On the fleet.
    Fleet,
    /// Wherever requests finish sooner; in this process while the fleet is unavailable.
    #[default]
    Auto,
}

/// A served model.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelConfig {
    /// Name in requests; by default the bundle's.
    pub name: Option<String>,
    /// A bundle, a folder with bundles, or a bundle's `s3://` URL.
    pub path: PathBuf,
    /// Overrides [`FleetConfig::policy`].
    #[serde(default, deserialize_with = "some_of")]
    pub policy: Option<Policy>,
    /// The model's name on the fleet; by default [`Self::name`].
    pub remote: Option<String>,
    /// Overrides [`FleetConfig::urls`].
    pub urls: Option<Vec<String>>,
    /// Overrides [`FleetConfig::version`].
    pub version: Option<String>,
}

impl From<PathBuf> for ModelConfig {
    fn from(path: PathBuf) -> Self {
        Self {
            path,
            ..Self::default()
        }
    }
}

impl ModelConfig {
    /// The effective policy: without servers, [`Policy::Local`].
    pub fn policy(&self, fleet: &FleetConfig) -> Policy {
        let has_servers = !self.urls.as_ref().unwrap_or(&fleet.urls).is_empty();
        if has_servers {
            self.policy.unwrap_or(fleet.policy)
        } else {
            Policy::Local
        }
    }

    /// The fleet settings with this model's overrides.
    pub fn fleet(&self, fleet: &FleetConfig) -> FleetConfig {
        FleetConfig {
            urls: self.urls.clone().unwrap_or_else(|| fleet.urls.clone()),
            version: self.version.clone().or_else(|| fleet.version.clone()),
            ..fleet.clone()
        }
    }
}

/// Deserializes models, each a path or a table.
pub fn paths_or_tables<'de, D: Deserializer<'de>>(list: D) -> Result<Vec<ModelConfig>, D::Error> {
    /// A visitor, since an untagged enum's error would not say what is wrong with a table.
    struct PathOrTable;

    impl<'de> Visitor<'de> for PathOrTable {
        type Value = Entry;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("the path of a model, or a table with `path`")
        }

        fn visit_str<E>(self, path: &str) -> Result<Entry, E> {
            Ok(Entry(PathBuf::from(path).into()))
        }

        fn visit_map<A: MapAccess<'de>>(self, table: A) -> Result<Entry, A::Error> {
            ModelConfig::deserialize(MapAccessDeserializer::new(table)).map(Entry)
        }
    }

    struct Entry(ModelConfig);

    impl<'de> Deserialize<'de> for Entry {
        fn deserialize<D: Deserializer<'de>>(entry: D) -> Result<Self, D::Error> {
            entry.deserialize_any(PathOrTable)
        }
    }

    Ok(Vec::deserialize(list)?
        .into_iter()
        .map(|Entry(model)| model)
        .collect())
}
