//! Python strings as texts.

use kivu::pipeline::Input;
use kivu_bindings::{Task, check, half_a_pair, no_pair};
use pyo3::{
    Bound, PyAny, PyErr, PyResult,
    exceptions::PyTypeError,
    types::{
        PyAnyMethods, PyList, PyListMethods, PyString, PyStringMethods, PyTuple, PyTupleMethods,
        PyTypeMethods,
    },
};

use crate::errors::exception;

/// A batch of inputs, whose first one has the position `first`: texts that are not empty, or tuples with two of them for a
/// task that reads pairs.
pub fn read(task: Task, inputs: &Bound<'_, PyList>, first: usize) -> PyResult<Vec<Input>> {
    let input = |(index, value): (usize, Bound<'_, PyAny>)| {
        let place = || task.place(first + index);
        let pair = value.cast::<PyTuple>().ok();
        let Some(pair) = pair.filter(|_| task.reads_pairs()) else {
            return text(&value, place).map(Input::Text);
        };
        if pair.len() != 2 {
            return Err(exception(value.py(), &no_pair(&place(), pair.len())));
        }
        let part = |part: usize| text(&pair.get_item(part)?, || format!("{}[{part}]", place()));
        Ok(Input::Pair(part(0)?.into(), part(1)?.into()))
    };
    inputs.iter().enumerate().map(input).collect()
}

/// A text that is not empty.
fn text(value: &Bound<'_, PyAny>, place: impl Fn() -> String) -> PyResult<String> {
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
