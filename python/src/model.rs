//! The class `Model`.

use std::{
    mem::ManuallyDrop,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kivu::pipeline::embedding::vectors::StoredVector;
use kivu_bindings::{
    Source, Token, Weights, classify, describe, encode, entities, extract, generate, multi_vectors,
    rank, sparse, tokenize, translate, zero_shot,
};
use pyo3::{
    Bound, PyAny, PyResult, Python, pyclass, pymethods,
    types::{PyByteArray, PyDict, PyDictMethods, PyList},
};

use crate::{
    errors::{exception, named},
    run::{wait, wait_for_load},
    texts::{Batch, text_at},
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

    /// Dense vectors: their bytes one after another, and how many values each has.
    fn encode<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<(Bound<'py, PyByteArray>, usize)> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        let vectors = wait(py, encode(&model, parameters, texts))?;
        let values = vectors.first().map_or(0, |vector| match vector {
            StoredVector::Float(values) => values.len(),
            StoredVector::Int8(values) => values.len(),
            StoredVector::Uint8(values) => values.len(),
        });
        let rows: Vec<&[u8]> = vectors.iter().map(bytes_of).collect();
        Ok((joined(py, &rows)?, values))
    }

    /// Vectors per token: their bytes one after another, how many each text has, and how many values each vector has.
    fn multi_vectors<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<(Bound<'py, PyByteArray>, Vec<usize>, usize)> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        let vectors = wait(py, multi_vectors(&model, parameters, texts))?;
        let counts = vectors.iter().map(Vec::len).collect();
        let rows: Vec<&[u8]> = vectors
            .iter()
            .flatten()
            .map(|vector| bytemuck::cast_slice(vector))
            .collect();
        let values = vectors.iter().flatten().next().map_or(0, Vec::len);
        Ok((joined(py, &rows)?, counts, values))
    }

    /// A dictionary per text, from token ids or words to weights.
    fn sparse<'py>(
        &self,
        py: Python<'py>,
        texts: &Bound<'py, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Vec<Bound<'py, PyDict>>> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        let found = wait(py, sparse(&model, parameters, texts))?;
        let of_text = |weights: Weights| {
            let dictionary = PyDict::new(py);
            for (token, weight) in weights {
                match token {
                    Token::Id(id) => dictionary.set_item(id, weight)?,
                    Token::Word(word) => dictionary.set_item(word, weight)?,
                }
            }
            Ok(dictionary)
        };
        found.into_iter().map(of_text).collect()
    }

    /// Labels with scores for each text, as JSON.
    fn classify(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let inputs = Batch {
            texts,
            argument: "texts",
            first,
        }
        .inputs()?;
        wait(py, classify(&model, parameters, inputs))
    }

    /// The requested labels with scores for each text, as JSON.
    fn zero_shot(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, zero_shot(&model, parameters, texts))
    }

    /// Entities for each text, as JSON. With labels, the model must take labels.
    fn entities(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, entities(&model, parameters, texts))
    }

    /// Values by the names in a schema for each text, as JSON.
    fn extract(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, extract(&model, parameters, texts))
    }

    /// Indexes with scores, the highest first, as JSON.
    fn rank(
        &self,
        py: Python<'_>,
        query: &Bound<'_, PyAny>,
        documents: &Bound<'_, PyList>,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let query = text_at(query, || "query".to_owned())?;
        let documents = Batch {
            texts: documents,
            argument: "documents",
            first: 0,
        }
        .texts()?;
        wait(py, rank(&model, parameters, query, documents))
    }

    /// A translation for each text.
    fn translate(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Vec<String>> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, translate(&model, parameters, texts))
    }

    /// A generated text for each text.
    fn generate(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Vec<String>> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, generate(&model, parameters, texts))
    }

    /// Tokens of each text, as JSON.
    fn tokenize(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<String> {
        let model = self.model(py)?;
        let texts = Batch {
            texts,
            argument: "texts",
            first,
        }
        .texts()?;
        wait(py, tokenize(&model, parameters, texts))
    }

    /// Frees the model once its calls end.
    fn close(&self) {
        let opened = self.opened().take();
        leave(opened);
    }
}

impl Model {
    fn opened(&self) -> MutexGuard<'_, Option<Opened>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
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

fn bytes_of(vector: &StoredVector) -> &[u8] {
    match vector {
        StoredVector::Float(values) => bytemuck::cast_slice(values),
        StoredVector::Int8(values) => bytemuck::cast_slice(values),
        StoredVector::Uint8(values) => values,
    }
}

/// The rows' bytes in memory that Python owns, which numpy uses without a copy.
fn joined<'py>(py: Python<'py>, rows: &[&[u8]]) -> PyResult<Bound<'py, PyByteArray>> {
    let size = rows.iter().map(|row| row.len()).sum();
    PyByteArray::new_with(py, size, |mut bytes| {
        for row in rows {
            let (place, rest) = bytes.split_at_mut(row.len());
            place.copy_from_slice(row);
            bytes = rest;
        }
        Ok(())
    })
}
