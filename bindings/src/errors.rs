//! Error classes, which have the same names in all packages.

use kivu::Error;

/// The name of an error's class. Its message is [`Error::chain`].
pub fn class(error: &Error) -> &'static str {
    match error {
        Error::Malformed { .. } | Error::Invalid { .. } => "InvalidError",
        Error::TooLarge { .. } => "TooLargeError",
        Error::UnknownModel { .. } | Error::NoModel => "UnknownModelError",
        Error::Overloaded { .. } | Error::Unavailable { .. } => "UnavailableError",
        Error::DeadlineExceeded { .. } => "DeadlineExceededError",
        Error::Inference { .. } => "InferenceError",
        Error::Model { .. } => "ModelError",
        Error::Config { .. } => "ConfigError",
        Error::Io { .. } => "KivuOSError",
    }
}
