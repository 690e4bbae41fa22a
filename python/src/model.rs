//! The class `Model`.

use std::{
    mem::ManuallyDrop,
    process,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kivu::{
    Deadline,
    pipeline::{Input, embedding::EmbeddingPipeline, scores::descending, vectors::StoredVector},
    task::{
        classification::{ClassificationParameters, Scores, ZeroShotParameters},
        embedding::EmbeddingParameters,
        entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
        ranking::RankingParameters,
        read_parameters,
        text_to_text::{TextGenerator, TextToTextParameters},
        tokens::TokenParameters,
    },
};
use pyo3::{
    Bound, PyAny, PyResult, Python, pyclass, pymethods,
    types::{PyByteArray, PyDict, PyDictMethods, PyList},
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

use crate::{
    errors::{exception, named},
    load::Source,
    run::{wait, wait_for_thread},
    texts::{Batch, text_at},
};

/// A model in this process.
#[pyclass(frozen, module = "kivuml._native")]
pub(crate) struct Model {
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
        Self { process: process::id(), model: Arc::new(model) }
    }
}

/// The labels with the highest scores.
#[derive(Serialize)]
struct Prediction<'a> {
    label: &'a str,
    score: f32,
}

/// A document's place and score.
#[derive(Serialize)]
struct Ranked {
    index: usize,
    score: f32,
}

/// How many results a ranking has.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Top {
    top_k: Option<usize>,
}

#[pymethods]
impl Model {
    /// Loads a model by name; the options are JSON.
    #[staticmethod]
    fn load(py: Python<'_>, name: String, options: &str) -> PyResult<Self> {
        let source = Source { name, options: read(py, options)? };
        let loading = source.clone();
        let model = wait_for_thread(py, move || loading.load())?;
        Ok(Self { source, opened: Mutex::new(Some(Opened::new(model))) })
    }

    /// The model's name, task, limits and vectors, as JSON.
    fn description(&self, py: Python<'_>) -> PyResult<String> {
        let model = self.model(py)?;
        let pipeline = model.pipeline.embedding();
        let dimensions = pipeline.and_then(|pipeline| pipeline.dimensions(None).ok());
        let prompts = pipeline.map(|pipeline| pipeline.settings().prompts.keys().collect::<Vec<_>>());
        let prompt = |role: &str| pipeline.and_then(|pipeline| prompt_name(pipeline, role));
        to_json(
            py,
            &json!({
                "name": model.name,
                "task": model.manifest.task.to_string(),
                "max_tokens": model.pipeline.max_tokens(),
                "dimensions": dimensions,
                "labels": model.pipeline.labels(),
                "prompts": prompts,
                "query_prompt": prompt("query"),
                "document_prompt": prompt("document"),
                "digest": model.digest,
            }),
        )
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
        let parameters: EmbeddingParameters = read(py, parameters)?;
        let embedder = model.embedder(&parameters).map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let vectors = wait(py, async move {
            let found = embedder.run(texts.into_iter().map(Input::Text).collect(), Deadline::none()).await?;
            let dense = found.vectors.into_iter().filter_map(|text| text.dense);
            Ok(dense.map(|vector| embedder.conversion.convert(vector)).collect::<Vec<_>>())
        })?;
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
        let parameters: EmbeddingParameters = read(py, parameters)?;
        let embedder = model.token_embedder(&parameters).map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let texts = texts.into_iter().map(Input::Text).collect();
        let found = wait(py, async { embedder.run(texts, Deadline::none()).await })?;
        let counts = found.vectors.iter().map(Vec::len).collect();
        let rows: Vec<&[u8]> =
            found.vectors.iter().flatten().map(|vector| bytemuck::cast_slice(vector)).collect();
        let values = found.vectors.iter().flatten().next().map_or(0, Vec::len);
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
        let parameters: EmbeddingParameters = read(py, parameters)?;
        let embedder = model.embedder(&parameters).map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let texts = texts.into_iter().map(Input::Text).collect();
        let found = wait(py, async { embedder.run(texts, Deadline::none()).await })?;
        let weights = found.vectors.into_iter().filter_map(|text| text.sparse);
        let of_text = |sparse: kivu::pipeline::sparse::SparseVector| {
            let dictionary = PyDict::new(py);
            for (id, weight) in sparse.0 {
                match embedder.word(id) {
                    Some(word) => dictionary.set_item(word, weight)?,
                    None => dictionary.set_item(id, weight)?,
                }
            }
            Ok(dictionary)
        };
        weights.map(of_text).collect()
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
        let parameters: ClassificationParameters = read(py, parameters)?;
        let classifier = model.classifier(&parameters).map_err(|error| exception(py, &error))?;
        let inputs = Batch { texts, argument: "texts", first }.inputs()?;
        let scores = wait(py, async { classifier.run(inputs, Deadline::none()).await })?;
        to_json(py, &predictions(classifier.labels(), &scores, classifier.top))
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
        let parameters: ZeroShotParameters = read(py, parameters)?;
        let classifier = model.zero_shot_classifier(&parameters).map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let scores = wait(py, async { classifier.run(&texts, Deadline::none()).await })?;
        to_json(py, &predictions(classifier.labels(), &scores, None))
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
        let fields: Map<String, Value> = map(py, parameters)?;
        let finder = if fields.contains_key("labels") {
            let parameters: ZeroShotEntitiesParameters = read(py, parameters)?;
            model.labelled_entity_finder(&parameters)
        } else {
            let parameters: TokenClassificationParameters = read(py, parameters)?;
            model.entity_finder(&parameters)
        };
        let finder = finder.map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let found = wait(py, async { finder.run(texts, Deadline::none()).await })?;
        to_json(py, &found.texts)
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
        let Top { top_k } = read(py, parameters)?;
        if top_k == Some(0) {
            return Err(named(py, "InvalidError", "expected `top_k` above 0, but found 0".to_owned()));
        }
        let parameters: RankingParameters = read(py, parameters)?;
        let ranker = model.ranker(&parameters).map_err(|error| exception(py, &error))?;
        let query = text_at(query, || "query".to_owned())?;
        let documents = Batch { texts: documents, argument: "documents", first: 0 }.texts()?;
        let (scores, _) = wait(py, async { ranker.run(query, documents, Deadline::none()).await })?;
        let order = descending(&scores).into_iter().take(top_k.unwrap_or(usize::MAX));
        let ranks: Vec<_> = order.map(|index| Ranked { index, score: scores[index] }).collect();
        to_json(py, &ranks)
    }

    /// Translations for each text, the best first.
    fn translate(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Vec<Vec<String>>> {
        let model = self.model(py)?;
        let generator = model.translator(read(py, parameters)?).map_err(|error| exception(py, &error))?;
        generated(py, &generator, Batch { texts, argument: "texts", first }.texts()?)
    }

    /// Generated texts for each text, the best first.
    fn generate(
        &self,
        py: Python<'_>,
        texts: &Bound<'_, PyList>,
        first: usize,
        parameters: &str,
    ) -> PyResult<Vec<Vec<String>>> {
        let model = self.model(py)?;
        let parameters: TextToTextParameters = read(py, parameters)?;
        let generator = model.text_generator(parameters).map_err(|error| exception(py, &error))?;
        generated(py, &generator, Batch { texts, argument: "texts", first }.texts()?)
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
        let parameters: TokenParameters = read(py, parameters)?;
        let reader = model.token_reader(parameters).map_err(|error| exception(py, &error))?;
        let texts = Batch { texts, argument: "texts", first }.texts()?;
        let tokens = wait(py, async { reader.run(texts, Deadline::none()).await })?;
        to_json(py, &tokens)
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
            let message =
                format!("expected an open model, but `{}` is closed; load it again", self.source.name);
            return Err(named(py, "ClosedError", message));
        };
        if found.process == process::id() {
            return Ok(found.model);
        }
        let _parents = ManuallyDrop::new(found);
        let source = self.source.clone();
        let model = Opened::new(wait_for_thread(py, move || source.load())?);
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
    if opened.as_ref().is_some_and(|opened| opened.process != process::id()) {
        let _parents = ManuallyDrop::new(opened);
    }
}

fn generated(py: Python<'_>, generator: &TextGenerator, texts: Vec<String>) -> PyResult<Vec<Vec<String>>> {
    let found = wait(py, async { generator.run(texts, Deadline::none()).await })?;
    Ok(found.texts.into_iter().map(|texts| texts.into_iter().map(|text| text.text).collect()).collect())
}

fn predictions<'a>(labels: &'a [String], scores: &Scores, top: Option<usize>) -> Vec<Vec<Prediction<'a>>> {
    let of_text = |row: &Vec<f32>| {
        let best = descending(row).into_iter().take(top.unwrap_or(usize::MAX));
        best.map(|label| Prediction { label: &labels[label], score: row[label] }).collect()
    };
    scores.rows.iter().map(of_text).collect()
}

/// The model's prompt for a role, if it has one.
fn prompt_name(pipeline: &EmbeddingPipeline, role: &str) -> Option<String> {
    pipeline.prompt_name(role).ok().flatten().map(str::to_owned)
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

fn map(py: Python<'_>, parameters: &str) -> PyResult<Map<String, Value>> {
    serde_json::from_str(parameters).map_err(|error| named(py, "InvalidError", error.to_string()))
}

/// Reads parameters from JSON; errors name the parameter.
fn read<T: DeserializeOwned>(py: Python<'_>, parameters: &str) -> PyResult<T> {
    read_parameters(map(py, parameters)?).map_err(|error| exception(py, &error))
}

fn to_json(py: Python<'_>, value: &impl Serialize) -> PyResult<String> {
    let failed = |error| kivu::Error::inference_because("cannot write the results", error);
    serde_json::to_string(value).map_err(|error| exception(py, &failed(error)))
}
