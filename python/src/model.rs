//! The class `Model`.

use std::{
    mem::ManuallyDrop,
    process,
    sync::{Arc, Mutex, MutexGuard},
};

use kivu::{locked, pipeline::embedding::vectors::StoredVector};
use kivu_bindings::{Results, Source, Task, Token, Weights, describe, run};
use pyo3::{
    Bound, IntoPyObjectExt, PyAny, PyResult, Python, pyclass, pymethods,
    types::{PyByteArray, PyDict, PyDictMethods, PyList},
};

use crate::{
    errors::{exception, named},
    run::{wait, wait_for_load},
    texts::read,
};

/// A model in this process.
#[pyclass(frozen, module = "kivuml._native")]
pub struct Model {
    source: Source,
    /// `None` once it is closed. Locked only while the interpreter's lock is held, so that it is free in a forked child.
    opened: Mutex<Option<Opened>>,
}

/// An open model, and the process that has its threads.
#[derive(Clone)]
struct Opened {
    process: u32,
    model: Arc<kivu::Model>,
}

impl Opened {
    fn new(model: kivu::Model) -> Self {
        Self {
            process: process::id(),
            model: Arc::new(model),
        }
    }
}

#[pymethods]
impl Model {
    /// Loads a model by name; the options are JSON.
    #[staticmethod]
    fn load(py: Python<'_>, name: String, options: &str) -> PyResult<Self> {
        let source = Source::new(name, options).map_err(|error| exception(py, &error))?;
        let model = wait_for_load(py, source.clone())?;
        Ok(Self {
            source,
            opened: Mutex::new(Some(Opened::new(model))),
        })
    }

    /// The model's name, task, limits and vectors, as JSON.
    fn description(&self, py: Python<'_>) -> PyResult<String> {
        let model = self.model(py)?;
        describe(&model).map_err(|error| exception(py, &error))
    }

    /// Runs a task on a batch of inputs, whose first one has the position `first`. Returns vectors, as their bytes one after
    /// another and how many each text has; sparse vectors, as dictionaries from token ids or words to weights; or JSON.
    fn run<'py>(
        &self,
        py: Python<'py>,
        task: &str,
        inputs: &Bound<'py, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Bound<'py, PyAny>> {
        let model = self.model(py)?;
        let task: Task = task.parse().map_err(|error| exception(py, &error))?;
        let inputs = read(task, inputs, first)?;
        match wait(py, run(&model, task, inputs, parameters))? {
            Results::Vectors { rows, counts } => (joined(py, &rows)?, counts).into_bound_py_any(py),
            Results::Sparse(found) => {
                let found = found.into_iter().map(|weights| dictionary(py, weights));
                found.collect::<PyResult<Vec<_>>>()?.into_bound_py_any(py)
            }
            Results::Json(json) => json.into_bound_py_any(py),
        }
    }

    /// Frees the model once its calls end.
    fn close(&self) {
        let opened = self.opened().take();
        leave(opened);
    }
}

impl Model {
    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        locked(&self.opened)
    }

    /// The model, which is opened again in a forked child.
    fn model(&self, py: Python<'_>) -> PyResult<Arc<kivu::Model>> {
        let found = self.opened().clone();
        let Some(found) = found else {
            let message = format!(
                "expected an open model, but `{}` is closed; load it again",
                self.source.name()
            );
            return Err(named(py, "ClosedError", message));
        };
        if found.process == process::id() {
            return Ok(found.model);
        }
        let _parents = ManuallyDrop::new(found);
        let model = Opened::new(wait_for_load(py, self.source.clone())?);
        // Another thread may have done the same.
        let before = self.opened().replace(model.clone());
        leave(before);
        Ok(model.model)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let opened = self.opened().take();
        leave(opened);
    }
}

/// Drops a model of this process. In a forked child, a parent's model stays in memory: dropping it could wait for a
/// thread that does not exist.
fn leave(opened: Option<Opened>) {
    if opened
        .as_ref()
        .is_some_and(|opened| opened.process != process::id())
    {
        let _parents = ManuallyDrop::new(opened);
    }
}

/// The rows' bytes in memory that Python owns, which numpy uses without a copy.
fn joined<'py>(py: Python<'py>, rows: &[StoredVector]) -> PyResult<Bound<'py, PyByteArray>> {
    let rows = rows.iter().map(|row| match row {
        StoredVector::Float(values) => bytemuck::cast_slice(values),
        StoredVector::Int8(values) => bytemuck::cast_slice(values),
        StoredVector::Uint8(values) => values,
    });
    let size = rows.clone().map(<[u8]>::len).sum();
    PyByteArray::new_with(py, size, |mut bytes| {
        for row in rows {
            let (place, rest) = bytes.split_at_mut(row.len());
            place.copy_from_slice(row);
            bytes = rest;
        }
        Ok(())
    })
}

fn dictionary(py: Python<'_>, weights: Weights) -> PyResult<Bound<'_, PyDict>> {
    let dictionary = PyDict::new(py);
    for (token, weight) in weights {
        match token {
            Token::Id(id) => dictionary.set_item(id, weight)?,
            Token::Word(word) => dictionary.set_item(word, weight)?,
        }
    }
    Ok(dictionary)
}
