use std::{fmt, str::FromStr};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use kivu_base::{Error, Result, error::quoted};

/// Model task, named as on the Hugging Face Hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A text to a vector.
    FeatureExtraction,
    /// A text or text pair to scores for the model's own labels.
    TextClassification,
    /// A text to token labels or entities.
    TokenClassification,
    /// A query and texts to a score for each text.
    TextRanking,
    /// A text to scores for labels in the request.
    ZeroShotClassification,
    /// A text to a text in another language.
    Translation,
    /// A text to a summary.
    Summarization,
    /// A text to any other text.
    #[serde(rename = "text2text-generation")]
    TextToText,
}

impl Task {
    const ALL: [Self; 8] = [
        Self::FeatureExtraction,
        Self::TextClassification,
        Self::TokenClassification,
        Self::TextRanking,
        Self::ZeroShotClassification,
        Self::Translation,
        Self::Summarization,
        Self::TextToText,
    ];

    /// Noun for the texts that this task generates.
    pub fn generated_name(self) -> &'static str {
        match self {
            Self::Translation => "translation",
            Self::Summarization => "summary",
            _ => "generated_text",
        }
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let mut all = Self::ALL.into_iter();
        all.find(|task| task.to_string() == name).ok_or_else(|| {
            let known = quoted(&Self::ALL.map(|task| task.to_string()));
            Error::config(format!("expected a task of {known}, but found `{name}`"))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_manifest() {
        for task in Task::ALL {
            let name = task.to_string();
            assert_eq!(serde_json::to_value(task).unwrap(), name);
            assert_eq!(name.parse::<Task>().unwrap(), task);
        }
    }
}
