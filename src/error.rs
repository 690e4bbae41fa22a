//! The crate's error type. Its variants correspond to what the caller can do.

use std::time::Duration;

/// Result for this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Another crate's error, for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// An error. `Display` prints its message without the causes, which are in `source`.
///
/// Messages read: expected X, but found Y; what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be parsed.
    #[error("{message}")]
    Malformed {
        /// The expected and the found value.
        message: String,
    },

    /// The request is well-formed, but one of its values is invalid.
    #[error("{message}")]
    Invalid {
        /// The expected and the found value.
        message: String,
    },

    /// The request exceeds a limit.
    #[error("{message}")]
    TooLarge {
        /// The field, its limit and the value found.
        message: String,
    },

    /// No model with this name is served.
    #[error("unknown model `{name}`; {}", served(known))]
    UnknownModel {
        /// The requested name.
        name: String,
        /// All model names.
        known: Vec<String>,
    },

    /// Too many requests are in progress, or they are too large together; the caller may retry shortly.
    #[error("expected at most {limit} {unit} at once, but found more; try again in a moment")]
    Overloaded {
        /// Maximum for all requests.
        limit: usize,
        /// Plural noun for the limited unit.
        unit: &'static str,
    },

    /// No model is served that the caller may use.
    #[error(
        "expected a model to be served, but found none that the request may use; `GET /models` lists the models"
    )]
    NoModel,

    /// The deadline passed before there was a result.
    #[error("no response within {}ms", .after.as_millis())]
    DeadlineExceeded {
        /// The timeout.
        after: Duration,
    },

    /// The model failed to run.
    #[error("{message}")]
    Inference {
        /// The failed operation.
        message: String,
        /// The runtime's error.
        #[source]
        source: Option<Source>,
    },

    /// The model cannot be reached at the moment; the caller may retry later.
    #[error("{message}")]
    Unavailable {
        /// The operation and its outcome.
        message: String,
    },

    /// A model, a bundle or a recipe is damaged, unsupported or below its minimum quality.
    #[error("{message}")]
    Model {
        /// The expected and the found value.
        message: String,
        /// Another crate's error.
        #[source]
        source: Option<Source>,
    },

    /// The configuration or the command line is invalid.
    #[error("{message}")]
    Config {
        /// The key, what was expected and what was found.
        message: String,
        /// Another crate's error.
        #[source]
        source: Option<Source>,
    },

    /// An operating system call failed.
    #[error("{action}")]
    Io {
        /// The operation, with the path.
        action: String,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// [`Error::Malformed`].
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed {
            message: message.into(),
        }
    }

    /// [`Error::Invalid`].
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    /// [`Error::TooLarge`].
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge {
            message: message.into(),
        }
    }

    /// [`Error::Inference`] without a source.
    pub fn inference(message: impl Into<String>) -> Self {
        Self::Inference {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Inference`] with another crate's error as its source.
    pub fn inference_because(message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Inference {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// [`Error::Unavailable`].
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable {
            message: message.into(),
        }
    }

    /// [`Error::Model`] without a source.
    pub fn model(message: impl Into<String>) -> Self {
        Self::Model {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Model`] with another crate's error as its source.
    pub fn model_because(message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Model {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// [`Error::Config`] without a source.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Config`] with another crate's error as its source.
    pub fn config_because(message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Config {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A function for `map_err` that makes [`Error::Io`].
    pub fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The message and all causes, on one line.
    pub fn chain(&self) -> String {
        let mut line = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(cause) = source {
            line.push_str(": ");
            line.push_str(&cause.to_string());
            source = cause.source();
        }
        line
    }
}

/// Adds the text's index to an error, if there are several texts.
pub fn at_text(error: Error, place: usize, count: usize) -> Error {
    match error {
        Error::TooLarge { message } if count > 1 => {
            Error::too_large(format!("text {place}: {message}"))
        }
        Error::Invalid { message } if count > 1 => {
            Error::invalid(format!("text {place}: {message}"))
        }
        other => other,
    }
}

/// Divides a message into the problem and the hint what to do, at the first `; ` that is not within a quoted name or value.
///
/// Names and values are in backticks or double quotes. A message in which one of them has such a character itself may stay
/// whole.
pub fn split_hint(message: &str) -> Option<(&str, &str)> {
    let is_balanced =
        |part: &str| ['`', '"'].map(|quote| part.matches(quote).count() % 2) == [0, 0];
    message
        .match_indices("; ")
        .map(|(place, separator)| (&message[..place], &message[place + separator.len()..]))
        .find(|(problem, hint)| is_balanced(problem) && is_balanced(hint))
}

/// The names in backticks, separated by commas.
pub fn quoted<T: AsRef<str>>(names: &[T]) -> String {
    names
        .iter()
        .map(|name| format!("`{}`", name.as_ref()))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The served models, for the error for an unknown one.
fn served(known: &[String]) -> String {
    match known {
        [] => "no model is served".to_owned(),
        known => format!("known models: {}", quoted(known)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_has_each_cause_once() {
        let source = std::io::Error::other("disk is full");
        let error = Error::io("cannot write `model.onnx`")(source);
        insta::assert_snapshot!(error.chain(), @"cannot write `model.onnx`: disk is full");
        insta::assert_snapshot!(error, @"cannot write `model.onnx`");
    }

    #[test]
    fn hints_begin_after_names_and_values() {
        let hint = "choose another folder; `kivu models` lists them";
        for name in ["out", "a; b", "; ", "a; b; c", "a `b`", "\"a; b\""] {
            let problem = format!("expected an empty folder at `{name}`, but found `{name}`");
            assert_eq!(
                split_hint(&format!("{problem}; {hint}")),
                Some((problem.as_str(), hint))
            );
            assert_eq!(split_hint(&problem), None, "{name}");
        }
        // A cut in the wrong place would be worse than none.
        for name in ["a`; b", "a`b; c", "a\"; b"] {
            let message = format!("expected an empty folder, but found `{name}`; {hint}");
            assert!(
                split_hint(&message).is_none_or(|(_, found)| found == hint),
                "{name}"
            );
        }
        let value = r#"invalid `threads`: invalid type: string "2; 3", expected an integer"#;
        assert_eq!(split_hint(value), None);
    }

    #[test]
    fn the_error_for_an_unknown_model_lists_the_known_ones() {
        let error = Error::UnknownModel {
            name: "bert".into(),
            known: vec!["a".into(), "b".into()],
        };
        insta::assert_snapshot!(error, @"unknown model `bert`; known models: `a`, `b`");
        let error = Error::UnknownModel {
            name: "bert".into(),
            known: Vec::new(),
        };
        insta::assert_snapshot!(error, @"unknown model `bert`; no model is served");
    }
}
