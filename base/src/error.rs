//! The crate's error type. Its variants correspond to what the caller can do.

use std::{borrow::Cow, fmt, mem, time::Duration};

/// Result for this crate's fallible functions.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Another crate's error, for the log.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Separates a problem from its hint.
const SEPARATOR: &str = "; ";

/// The hint of [`Error::Overloaded`].
const TRY_AGAIN: &str = "try again in a moment";

/// The hint of [`Error::NoModel`].
const LIST_MODELS: &str = "`GET /models` lists the models";

/// The text of an error: the problem, and a hint that says what to do.
///
/// `Display` prints both: expected X, but found Y; what to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    problem: String,
    hint: Option<String>,
    field: Option<String>,
}

impl Message {
    /// A message without a hint.
    pub fn new(problem: impl Into<String>) -> Self {
        Self {
            problem: problem.into(),
            hint: None,
            field: None,
        }
    }

    /// What is wrong.
    pub fn problem(&self) -> &str {
        &self.problem
    }

    /// The hint that says what to do, if there is one.
    pub fn hint(&self) -> Option<&str> {
        self.hint.as_deref()
    }

    /// The path of the request's field that the problem is about, such as `options.num_ctx` or `input[2]`.
    pub fn field(&self) -> Option<&str> {
        self.field.as_deref()
    }

    /// Says what to do about the problem, in addition to a hint that the message already has.
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        let hint = hint.into();
        self.hint = Some(match self.hint {
            Some(first) => format!("{first}{SEPARATOR}{hint}"),
            None => hint,
        });
        self
    }

    /// Rewrites the problem, as for a sentence that contains it, and keeps the hint.
    pub fn map(self, rewrite: impl FnOnce(&str) -> String) -> Self {
        Self {
            problem: rewrite(&self.problem),
            ..self
        }
    }

    /// Puts a place before the problem, as in `text 2: expected …`.
    pub fn at(self, place: impl fmt::Display) -> Self {
        self.map(|problem| format!("{place}: {problem}"))
    }

    /// Appends to the whole text: to the hint, or to the problem if there is none.
    pub fn append(mut self, end: &str) -> Self {
        self.hint
            .as_mut()
            .unwrap_or(&mut self.problem)
            .push_str(end);
        self
    }

    /// Replaces a name in the problem, the hint and the field.
    pub fn replace(&self, from: &str, to: &str) -> Self {
        let replaced = |part: &Option<String>| part.as_ref().map(|part| part.replace(from, to));
        Self {
            problem: self.problem.replace(from, to),
            hint: replaced(&self.hint),
            field: replaced(&self.field),
        }
    }
}

impl<T: Into<String>> From<T> for Message {
    fn from(problem: T) -> Self {
        Self::new(problem)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.problem)?;
        match &self.hint {
            Some(hint) => write!(formatter, "{SEPARATOR}{hint}"),
            None => Ok(()),
        }
    }
}

/// An error. `Display` prints its message without the causes, which are in `source`.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be parsed.
    #[error("{message}")]
    Malformed {
        /// The expected and the found value.
        message: Message,
    },

    /// The request is well-formed, but one of its values is invalid.
    #[error("{message}")]
    Invalid {
        /// The expected and the found value.
        message: Message,
    },

    /// The request exceeds a limit.
    #[error("{message}")]
    TooLarge {
        /// The field, its limit and the value found.
        message: Message,
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
    #[error(
        "expected at most {limit} {unit} at once, but found more; {}",
        TRY_AGAIN
    )]
    Overloaded {
        /// Maximum for all requests.
        limit: usize,
        /// Plural noun for the limited unit.
        unit: &'static str,
    },

    /// No model is served that the caller may use.
    #[error(
        "expected a model to be served, but found none that the request may use; {}",
        LIST_MODELS
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
        message: Message,
        /// The runtime's error.
        #[source]
        source: Option<BoxError>,
    },

    /// The model cannot be reached at the moment; the caller may retry later.
    #[error("{message}")]
    Unavailable {
        /// The operation and its outcome.
        message: Message,
    },

    /// A model, a bundle or a recipe is damaged, unsupported or below its minimum quality.
    #[error("{message}")]
    Model {
        /// The expected and the found value.
        message: Message,
        /// Another crate's error.
        #[source]
        source: Option<BoxError>,
    },

    /// The configuration or the command line is invalid.
    #[error("{message}")]
    Config {
        /// The key, what was expected and what was found.
        message: Message,
        /// Another crate's error.
        #[source]
        source: Option<BoxError>,
    },

    /// An operating system call failed.
    #[error("{action}")]
    Io {
        /// The operation, with the path.
        action: Message,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

/// An error's message and its causes, on one line.
pub fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes
        .map(ToString::to_string)
        .collect::<Vec<_>>()
        .join(": ")
}

/// The message in a borrowed or mutably borrowed error; `None` if it is fixed.
macro_rules! message_of {
    ($error:expr) => {
        match $error {
            Error::Malformed { message }
            | Error::Invalid { message }
            | Error::TooLarge { message }
            | Error::Inference { message, .. }
            | Error::Unavailable { message }
            | Error::Model { message, .. }
            | Error::Config { message, .. }
            | Error::Io {
                action: message, ..
            } => Some(message),
            Error::UnknownModel { .. }
            | Error::Overloaded { .. }
            | Error::NoModel
            | Error::DeadlineExceeded { .. } => None,
        }
    };
}

impl Error {
    /// [`Error::Malformed`].
    pub fn malformed(message: impl Into<Message>) -> Self {
        Self::Malformed {
            message: message.into(),
        }
    }

    /// [`Error::Invalid`].
    pub fn invalid(message: impl Into<Message>) -> Self {
        Self::Invalid {
            message: message.into(),
        }
    }

    /// [`Error::TooLarge`].
    pub fn too_large(message: impl Into<Message>) -> Self {
        Self::TooLarge {
            message: message.into(),
        }
    }

    /// [`Error::Inference`] without a source.
    pub fn inference(message: impl Into<Message>) -> Self {
        Self::Inference {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Inference`] with another crate's error as its source.
    pub fn inference_because(message: impl Into<Message>, source: impl Into<BoxError>) -> Self {
        Self::Inference {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// [`Error::Unavailable`].
    pub fn unavailable(message: impl Into<Message>) -> Self {
        Self::Unavailable {
            message: message.into(),
        }
    }

    /// [`Error::Model`] without a source.
    pub fn model(message: impl Into<Message>) -> Self {
        Self::Model {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Model`] with another crate's error as its source.
    pub fn model_because(message: impl Into<Message>, source: impl Into<BoxError>) -> Self {
        Self::Model {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// [`Error::Config`] without a source.
    pub fn config(message: impl Into<Message>) -> Self {
        Self::Config {
            message: message.into(),
            source: None,
        }
    }

    /// [`Error::Config`] with another crate's error as its source.
    pub fn config_because(message: impl Into<Message>, source: impl Into<BoxError>) -> Self {
        Self::Config {
            message: message.into(),
            source: Some(source.into()),
        }
    }

    /// A function for `map_err` that makes [`Error::Io`].
    pub fn io(action: impl Into<Message>) -> impl FnOnce(std::io::Error) -> Self {
        let action = action.into();
        move |source| Self::Io { action, source }
    }

    /// A function for `map_err`: an action on a file or folder failed.
    pub fn cannot(action: &str, place: impl fmt::Display) -> impl FnOnce(std::io::Error) -> Self {
        Self::io(format!("cannot {action} `{place}`"))
    }

    /// Says what to do about the problem. Errors with a fixed message, such as [`Error::UnknownModel`], stay as they are.
    pub fn with_hint(self, hint: impl Into<String>) -> Self {
        self.map_message(|message| message.with_hint(hint))
    }

    /// Puts a place before the problem, as in `text 2: expected …`. Errors with a fixed message stay as they are.
    pub fn at(self, place: impl fmt::Display) -> Self {
        self.map_message(|message| message.at(place))
    }

    /// Names the request's field that the problem is about, by its path. Errors with a fixed message are about none.
    pub fn in_field(self, path: impl fmt::Display) -> Self {
        self.map_message(|message| Message {
            field: Some(path.to_string()),
            ..message
        })
    }

    /// The path of the request's field that the problem is about.
    pub fn field(&self) -> Option<&str> {
        self.own_message()?.field()
    }

    /// The hint that says what to do about the problem.
    pub fn hint(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::UnknownModel { known, .. } => Some(served(known).into()),
            Self::Overloaded { .. } => Some(TRY_AGAIN.into()),
            Self::NoModel => Some(LIST_MODELS.into()),
            _ => self.own_message()?.hint().map(Cow::Borrowed),
        }
    }

    fn own_message(&self) -> Option<&Message> {
        message_of!(self)
    }

    /// The message without the hint and the causes.
    pub fn problem(&self) -> String {
        let mut line = self.to_string();
        if let Some(hint) = self.hint() {
            line.truncate(line.len() - SEPARATOR.len() - hint.len());
        }
        line
    }

    /// The problem, the hint and the field, to make an error of another class from them.
    pub fn message(&self) -> Message {
        Message {
            problem: self.problem(),
            hint: self.hint().map(Cow::into_owned),
            field: self.field().map(str::to_owned),
        }
    }

    /// The message and all causes, on one line.
    pub fn chain(&self) -> String {
        chain(self)
    }

    /// The problem and all causes, on one line, and the hint apart from them.
    pub fn with_causes(&self) -> Message {
        self.message()
            .map(|problem| format!("{problem}{}", self.causes()))
    }

    fn causes(&self) -> String {
        let cause = std::error::Error::source(self);
        cause.map_or_else(String::new, |cause| format!(": {}", chain(cause)))
    }

    /// Rewrites the message. Errors with a fixed message stay as they are.
    fn map_message(mut self, map: impl FnOnce(Message) -> Message) -> Self {
        if let Some(message) = message_of!(&mut self) {
            *message = map(mem::take(message));
        }
        self
    }
}

/// Adds the text's index to an error, if there are several texts.
pub fn at_text(error: Error, place: usize, count: usize) -> Error {
    match error {
        Error::TooLarge { .. } | Error::Invalid { .. } if count > 1 => {
            error.at(format_args!("text {place}"))
        }
        other => other,
    }
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
    fn hints_are_apart_from_problems_with_any_names() {
        let hint = "choose another folder; `kivu models` lists them";
        for name in ["out", "a; b", "; ", "a`; b", "a`b; c", "a\"; b", "\"a; b\""] {
            let problem = format!("expected an empty folder at `{name}`, but found `{name}`");
            let error = Error::config(problem.as_str());
            assert_eq!(
                (error.problem(), error.hint()),
                (problem.clone(), None),
                "{name}"
            );
            let error = error.with_hint(hint);
            assert_eq!(error.to_string(), format!("{problem}; {hint}"));
            assert_eq!(error.hint().as_deref(), Some(hint));
            assert_eq!(error.problem(), problem);
            let twice = error.message().with_hint("or not");
            assert_eq!(twice.hint(), Some(format!("{hint}; or not").as_str()));
            let error = error.at("text 2");
            assert_eq!(error.hint().as_deref(), Some(hint));
            assert_eq!(error.problem(), format!("text 2: {problem}"));
            let whole = error.message().append(" (row 3)").to_string();
            assert_eq!(whole, format!("{error} (row 3)"));
            let error = Error::invalid(error.message());
            assert_eq!(error.to_string(), format!("text 2: {problem}; {hint}"));
            assert_eq!(error.hint().as_deref(), Some(hint));
        }
    }

    #[test]
    fn causes_follow_the_problem_or_the_message() {
        let source = std::io::Error::other("the port is in use; or not");
        let error = Error::io("cannot listen")(source).with_hint("choose another port");
        insta::assert_snapshot!(error.problem(), @"cannot listen");
        insta::assert_snapshot!(error.with_causes().problem(), @"cannot listen: the port is in use; or not");
        insta::assert_snapshot!(error.chain(), @"cannot listen; choose another port: the port is in use; or not");
    }

    #[test]
    fn fixed_messages_have_hints() {
        let parts = |error: Error| {
            assert_eq!(error.message().to_string(), error.to_string());
            let hint = error.hint().unwrap_or_default().into_owned();
            format!("{}\n{hint}", error.problem())
        };
        insta::assert_snapshot!(parts(Error::NoModel), @"
        expected a model to be served, but found none that the request may use
        `GET /models` lists the models
        ");
        let overloaded = Error::Overloaded {
            limit: 8,
            unit: "requests",
        };
        insta::assert_snapshot!(parts(overloaded), @"
        expected at most 8 requests at once, but found more
        try again in a moment
        ");
        let unknown = Error::UnknownModel {
            name: "a; b".into(),
            known: vec!["c; d".into()],
        };
        insta::assert_snapshot!(parts(unknown), @"
        unknown model `a; b`
        known models: `c; d`
        ");
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
