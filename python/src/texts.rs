//! Python strings as texts.

use kivu::pipeline::Input;
use kivu_bindings::{check, half_a_pair, no_pair};
use pyo3::{
    Bound, PyAny, PyErr, PyResult,
    exceptions::PyTypeError,
    types::{
        PyAnyMethods, PyList, PyListMethods, PyString, PyStringMethods, PyTuple, PyTupleMethods,
        PyTypeMethods,
    },
};

use crate::errors::exception;

/// A batch of texts among more of them.
pub struct Batch<'a, 'py> {
    pub texts: &'a Bound<'py, PyList>,
    /// The argument's name, for errors.
    pub argument: &'a str,
    /// The first text's position.
    pub first: usize,
}

impl Batch<'_, '_> {
    /// The texts, none of which is empty.
    pub fn texts(&self) -> PyResult<Vec<String>> {
        let texts = self.texts.iter().enumerate();
        texts
            .map(|(index, text)| text_at(&text, || self.place(index)))
            .collect()
    }

    /// Texts, or tuples with two texts that a model reads together.
    pub fn inputs(&self) -> PyResult<Vec<Input>> {
        let input = |(index, value): (usize, Bound<'_, PyAny>)| {
            let Ok(pair) = value.cast::<PyTuple>() else {
                return text_at(&value, || self.place(index)).map(Input::Text);
            };
            if pair.len() != 2 {
                return Err(exception(
                    value.py(),
                    &no_pair(&self.place(index), pair.len()),
                ));
            }
            let part = |part: usize| {
                text_at(&pair.get_item(part)?, || {
                    format!("{}[{part}]", self.place(index))
                })
            };
            Ok(Input::Pair(part(0)?.into(), part(1)?.into()))
        };
        self.texts.iter().enumerate().map(input).collect()
    }

    fn place(&self, index: usize) -> String {
        format!("{}[{}]", self.argument, self.first + index)
    }
}

/// A text that is not empty.
pub fn text_at(value: &Bound<'_, PyAny>, place: impl Fn() -> String) -> PyResult<String> {
    let Ok(text) = value.cast::<PyString>() else {
        return Err(wrong_type(value, &place()));
    };
    let text = text
        .to_str()
        .map_err(|_| exception(value.py(), &half_a_pair(&place())))?;
    check(text.to_owned(), place).map_err(|error| exception(value.py(), &error))
}

fn wrong_type(value: &Bound<'_, PyAny>, place: &str) -> PyErr {
    let found = value
        .get_type()
        .name()
        .map_or_else(|_| "another type".to_owned(), |name| name.to_string());
    PyTypeError::new_err(format!(
        "expected `{place}` to be a string, but found `{found}`"
    ))
}
