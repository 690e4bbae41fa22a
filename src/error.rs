//! The one error of the crate, named by what its receiver can do about it.

use std::time::Duration;

/// The result of everything in this crate that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A cause from a foreign crate, kept for the log.
pub type Source = Box<dyn std::error::Error + Send + Sync>;

/// What went wrong. `Display` gives this layer's sentence only; the causes hang on `source`.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The request cannot be read at all: the caller has to send other bytes.
    #[error("{message}")]
    Malformed {
        /// What was expected and what was found.
        message: String,
    },

    /// The request can be read, but one of its values cannot be used.
    #[error("{message}")]
    Invalid {
        /// What was expected and what was found.
        message: String,
    },

    /// The request goes beyond a limit: the caller has to send less.
    #[error("{message}")]
    TooLarge {
        /// The field, its limit and the value found.
        message: String,
    },

    /// No model of that name is served.
    #[error("unknown model `{name}`; known models: {}", quoted(known))]
    UnknownModel {
        /// The name asked for.
        name: String,
        /// The names that would have worked.
        known: Vec<String>,
    },

    /// More requests are under way than the limit allows: the caller may come again shortly.
    #[error("expected at most {limit} requests at once, but found more; try again in a moment")]
    Overloaded {
        /// The number of requests served at once.
        limit: usize,
    },

    /// The deadline passed before the answer was there.
    #[error("no answer within {}ms", .after.as_millis())]
    DeadlineExceeded {
        /// How long the caller had been ready to wait.
        after: Duration,
    },

    /// The model ran and failed.
    #[error("{message}")]
    Inference {
        /// What was being run.
        message: String,
        /// The runtime's own words.
        #[source]
        source: Option<Source>,
    },

    /// What runs the model cannot be had now: the caller may come again later.
    #[error("{message}")]
    Unavailable {
        /// What was asked, and what became of it.
        message: String,
    },

    /// A model, a bundle or a recipe cannot be used: it is damaged, unsupported or below its quality floor.
    #[error("{message}")]
    Model {
        /// What was expected and what was found.
        message: String,
        /// Why, where another crate knows more.
        #[source]
        source: Option<Source>,
    },

    /// The configuration or the command line asks for something that cannot be.
    #[error("{message}")]
    Config {
        /// The key, what was expected and what was found.
        message: String,
        /// Why, where another crate knows more.
        #[source]
        source: Option<Source>,
    },

    /// The operating system refused.
    #[error("{action}")]
    Io {
        /// What was being done, with the path.
        action: String,
        /// The system's own words.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// A request that cannot be read.
    pub fn malformed(message: impl Into<String>) -> Self {
        Self::Malformed { message: message.into() }
    }

    /// A value that cannot be used.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::Invalid { message: message.into() }
    }

    /// A value beyond its limit.
    pub fn too_large(message: impl Into<String>) -> Self {
        Self::TooLarge { message: message.into() }
    }

    /// A model that ran and failed.
    pub fn inference(message: impl Into<String>) -> Self {
        Self::Inference { message: message.into(), source: None }
    }

    /// The same, with the cause that another crate gave.
    pub fn inference_because(message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Inference { message: message.into(), source: Some(source.into()) }
    }

    /// Something that cannot be had now.
    pub fn unavailable(message: impl Into<String>) -> Self {
        Self::Unavailable { message: message.into() }
    }

    /// A model, bundle or recipe that cannot be used.
    pub fn model(message: impl Into<String>) -> Self {
        Self::Model { message: message.into(), source: None }
    }

    /// The same, with the cause that another crate gave.
    pub fn model_because(message: impl Into<String>, source: impl Into<Source>) -> Self {
        Self::Model { message: message.into(), source: Some(source.into()) }
    }

    /// A configuration that cannot be.
    pub fn config(message: impl Into<String>) -> Self {
        Self::Config { message: message.into(), source: None }
    }

    /// A refusal of the operating system while doing `action`, for `map_err`.
    pub fn io(action: impl Into<String>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// The whole chain on one line, for a terminal or a log.
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

/// Says which text an error is about, where there are several.
pub(crate) fn at_text(error: Error, place: usize, count: usize) -> Error {
    match error {
        Error::TooLarge { message } if count > 1 => Error::too_large(format!("text {place}: {message}")),
        Error::Invalid { message } if count > 1 => Error::invalid(format!("text {place}: {message}")),
        other => other,
    }
}

/// `a`, `b` and `c`, each in backticks, for messages.
pub(crate) fn quoted<T: AsRef<str>>(names: &[T]) -> String {
    names.iter().map(|name| format!("`{}`", name.as_ref())).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_chain_names_every_cause_once() {
        let source = std::io::Error::other("disk is full");
        let error = Error::io("cannot write `model.onnx`")(source);
        insta::assert_snapshot!(error.chain(), @"cannot write `model.onnx`: disk is full");
        insta::assert_snapshot!(error, @"cannot write `model.onnx`");
    }

    #[test]
    fn an_unknown_model_names_the_known_ones() {
        let error = Error::UnknownModel { name: "bert".into(), known: vec!["a".into(), "b".into()] };
        insta::assert_snapshot!(error, @"unknown model `bert`; known models: `a`, `b`");
    }
}
