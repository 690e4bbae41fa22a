//! Errors on their way to JavaScript, which makes them instances of the classes in `kivuml/errors.js`.

use kivu_bindings::class;
use napi::{Env, Error, JsValue, bindgen_prelude::JsObjectValue};

/// An error's class name and message.
#[derive(Debug)]
pub struct Failure {
    class: &'static str,
    message: String,
}

impl Failure {
    pub fn new(class: &'static str, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
        }
    }

    /// A JavaScript error with the class name as its `code`.
    pub fn into_error(self, env: Env) -> Error {
        let made = env
            .create_error(Error::from_reason(self.message))
            .and_then(|mut error| {
                error.set_named_property("code", self.class)?;
                Ok(Error::from(error.to_unknown()))
            });
        made.unwrap_or_else(|error| error)
    }
}

impl From<kivu::Error> for Failure {
    fn from(error: kivu::Error) -> Self {
        Self::new(class(&error), error.chain())
    }
}
