//! From texts to answers, one file a task; what tasks share lies beside them.

pub mod embedding;
pub mod encoder;
pub mod pooling;

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::Error;

/// What a model is for, by the names that the model hub uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A text to a vector.
    FeatureExtraction,
}

impl Task {
    /// Every task, in the order of the documentation.
    pub const ALL: [Self; 1] = [Self::FeatureExtraction];
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FeatureExtraction => "feature-extraction",
        })
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self, Error> {
        let known = Self::ALL.map(|task| task.to_string());
        Self::ALL.into_iter().find(|task| task.to_string() == name).ok_or_else(|| {
            Error::config(format!("expected a task of {}, but found `{name}`", crate::error::quoted(&known)))
        })
    }
}
