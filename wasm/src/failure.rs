//! Errors on their way to JavaScript, which makes them instances of the classes in `errors.js`.

use std::panic;

use js_sys::{Error, Reflect};
use kivu_bindings::class;
use wasm_bindgen::{JsValue, throw_str};

/// An error's class name and message.
pub struct Failure {
    class: &'static str,
    message: String,
}

impl From<kivu::Error> for Failure {
    fn from(error: kivu::Error) -> Self {
        Self {
            class: class(&error),
            message: error.chain(),
        }
    }
}

impl From<Failure> for JsValue {
    /// A JavaScript error with the class name as its `code`.
    fn from(failure: Failure) -> Self {
        let error = Error::new(&failure.message);
        // Only frozen objects refuse a property.
        let _ = Reflect::set(&error, &"code".into(), &failure.class.into());
        error.into()
    }
}

/// Makes a panic an error that names its place; otherwise it would be a trap without a message. The panic's own message
/// may contain a text, and is left out. The instance cannot be used afterwards.
pub fn report_panics() {
    panic::set_hook(Box::new(|panicked| {
        let place = panicked
            .location()
            .map(ToString::to_string)
            .unwrap_or_default();
        throw_str(&format!(
            "the model could not be run: it panicked at {place}"
        ));
    }));
}
