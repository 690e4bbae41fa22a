//! An encoder as it is served: the pipeline of its task on the graph that was written.

use std::{
    num::NonZeroUsize,
    path::Path,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    answer::{Answer, LABELS, MultiVectors},
    samples::Texts,
    wait,
};
use crate::{
    files::io as files,
    plan::{LoadRuntime, opened_model::MODEL, progress::Progress},
};
use kivu::{
    Error, Result,
    backend::{
        Deadline, Engine,
        encoder::EncoderBackend,
        native::{NativeBackend, NativeModel, TableBackend, TableModel, WeightFiles},
        tensors::TensorEncoder,
    },
    model::EncoderPipeline,
    onnx::OnnxBackend,
    pipeline::{
        Input,
        classification::{
            ClassificationPipeline, label_scores::LabelScoresPipeline, label_vectors::LabelEncoder,
            scores::ScoreFunction, zero_shot::Labels,
        },
        embedding::{
            EmbeddingOptions, EmbeddingPipeline, EmbeddingSettings, RequestedVectors, TextVectors,
            VectorKind, multi_vector::MultiVectorSettings, pooling::normalize, roles::TextRole,
        },
    },
    repository::TaskSettings,
    tokenizer::{Side, Tokenizer, Truncation},
};

/// Texts that run together: enough to keep all CPUs busy, and few enough for regular progress updates.
const PART: usize = 30;
/// Timeout for [`PART`] texts.
pub const TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);
/// What texts are ranked by that are read together.
const QUERY: &str = "Which text is about a person?";
/// Inputs above the model's token limit lose their end.
const TRUNCATION: Truncation = Truncation::At(Side::Right);

/// Answers to all sample texts, and the time that they took.
pub struct Answers {
    /// Per text, an answer for each output.
    pub texts: Vec<Vec<Answer>>,
    /// Wall-clock time for all texts; zero for another program's answers.
    pub time: Duration,
    /// Number of texts read, queries included.
    pub reads: usize,
}

impl Answers {
    /// Another program's answers.
    pub fn of(texts: Vec<Vec<Answer>>) -> Self {
        Self {
            reads: texts.len(),
            texts,
            time: Duration::ZERO,
        }
    }

    /// The same answers at the first output only.
    pub fn first_output(mut self) -> Self {
        self.texts
            .iter_mut()
            .for_each(|answers| answers.truncate(1));
        self
    }

    /// Whether all outputs have as many values as others'.
    pub fn has_sizes_of(&self, other: &Self) -> bool {
        let sizes = |answers: &Self| -> Vec<usize> {
            answers.texts.iter().flatten().map(Answer::size).collect()
        };
        sizes(self) == sizes(other)
    }

    /// Dense document vectors, or scores.
    pub fn values(&self) -> Vec<Vec<f32>> {
        self.texts
            .iter()
            .filter_map(|answers| Some(answers.first()?.values().to_vec()))
            .collect()
    }
}

/// A pipeline's parts other than the graph.
#[derive(Clone, Copy)]
pub struct EncoderParts<'a> {
    /// Runs the graph.
    pub runtime: LoadRuntime<'a>,
    /// The tokenizer for texts.
    pub tokenizer: &'a Arc<Tokenizer>,
    /// The settings in the bundle's manifest, which decide on the pipeline.
    pub settings: &'a TaskSettings,
    /// The tokenizer for labels, if another model reads them.
    pub labels: Option<&'a Arc<Tokenizer>>,
}

/// Opens the graph in `folder`.
pub fn open(parts: EncoderParts<'_>, folder: &Path, engine: Engine) -> Result<EncoderPipeline> {
    let backend = open_graph(parts.runtime, &folder.join(MODEL), engine)?;
    with_backend(parts, folder, engine, backend)
}

/// Like [`open`], with `backend` in place of the text encoder's graph.
pub fn with_backend(
    parts: EncoderParts<'_>,
    folder: &Path,
    engine: Engine,
    backend: Arc<dyn EncoderBackend>,
) -> Result<EncoderPipeline> {
    let labels = parts.settings.label_encoder().zip(parts.labels);
    let labels = labels.map(|(settings, tokenizer)| {
        let backend = open_graph(parts.runtime, &folder.join(&settings.graph), engine)?;
        LabelEncoder::new(Arc::clone(tokenizer), backend, settings)
    });
    let (tokenizer, settings) = (Arc::clone(parts.tokenizer), parts.settings.clone());
    EncoderPipeline::new(tokenizer, backend, settings, labels.transpose()?)
}

/// Runs one text. Fails if the outputs do not match the settings, or are not finite.
pub fn check(encoder: &EncoderPipeline, texts: &Texts) -> Result<()> {
    let text = texts.lines().take(1).map(str::to_owned).collect();
    let answer = wait(|| answers(encoder, text));
    answer.map(drop).map_err(|error| {
        Error::model_because("the model fails on a sample text", error)
            .with_hint("check its weights and `config.json`")
    })
}

/// Runs texts, one per line, one after the other.
pub fn run(encoder: &EncoderPipeline, texts: &str) -> Result<()> {
    wait(|| async {
        for text in texts.lines() {
            answers(encoder, vec![text.to_owned()]).await?;
        }
        Ok::<_, Error>(())
    })
}

/// Runs all texts, with one `progress` step per text.
pub fn measure(
    encoder: &EncoderPipeline,
    texts: &Texts,
    progress: &dyn Progress,
) -> Result<Answers> {
    let started = Instant::now();
    let texts = in_parts(&texts.texts, progress, |texts| answers(encoder, texts))?;
    let has_queries =
        matches!(encoder, EncoderPipeline::Embedding(pipeline) if query_form(pipeline).is_some());
    let reads = texts.len() * (1 + usize::from(has_queries));
    Ok(Answers {
        texts,
        time: started.elapsed(),
        reads,
    })
}

/// Answers to texts, which are read as documents.
async fn answers(encoder: &EncoderPipeline, texts: Vec<String>) -> Result<Vec<Vec<Answer>>> {
    let deadline = Deadline::within(TIMEOUT);
    let scores: Vec<Vec<f32>> = match encoder {
        EncoderPipeline::Embedding(pipeline) => return vectors(pipeline, texts).await,
        EncoderPipeline::Classification(pipeline) => scores(pipeline, inputs(texts)).await?,
        EncoderPipeline::Listwise(pipeline) => {
            let scored = pipeline.score(QUERY.to_owned(), texts, TRUNCATION, deadline);
            scored
                .await?
                .0
                .into_iter()
                .map(|score| vec![score])
                .collect()
        }
        EncoderPipeline::TokenClassification(pipeline) => {
            pipeline.token_scores(texts, TRUNCATION, deadline).await?
        }
        EncoderPipeline::LabelScores(pipeline) => {
            let labels = LABELS.map(str::to_owned);
            let texts: Vec<String> = texts
                .into_iter()
                .map(|text| fitting(pipeline, text, &labels))
                .collect();
            let logits = pipeline
                .logits(&texts, &labels, "", TRUNCATION, deadline)
                .await?;
            logits
                .rows
                .iter()
                .map(|logits| ScoreFunction::Sigmoid.apply(logits))
                .collect()
        }
        EncoderPipeline::ZeroShotEntities(pipeline) => {
            let labels = Labels::new(LABELS.map(str::to_owned).into(), LABELS.len())?;
            pipeline
                .span_scores(texts, &labels, TRUNCATION, deadline)
                .await?
        }
    };
    Ok(scores
        .into_iter()
        .map(|scores| vec![Answer::Vector(scores)])
        .collect())
}

/// A classifier's scores for each text with the next one.
pub fn pair_scores(pipeline: &ClassificationPipeline, texts: &Texts) -> Result<Vec<Vec<f32>>> {
    let pair = |pair: &[String]| Input::Pair(pair[0].as_str().into(), pair[1].as_str().into());
    let pairs = texts.texts.windows(2).map(pair).collect();
    wait(|| scores(pipeline, pairs))
}

/// A classifier's scores for each input.
pub async fn scores(
    pipeline: &ClassificationPipeline,
    inputs: Vec<Input>,
) -> Result<Vec<Vec<f32>>> {
    let deadline = Deadline::within(TIMEOUT);
    let logits = pipeline.logits(inputs, TRUNCATION, deadline).await?;
    let function = pipeline.settings().function;
    let rows = logits.rows.iter();
    Ok(rows.map(|logits| function.apply(logits)).collect())
}

async fn vectors(pipeline: &EmbeddingPipeline, texts: Vec<String>) -> Result<Vec<Vec<Answer>>> {
    let kinds = kinds(pipeline);
    let documents = embed(pipeline, texts.clone(), &kinds, Some(TextRole::Document)).await?;
    let kinds = [VectorKind::MultiVector];
    let queries = match query_form(pipeline) {
        None => Vec::new(),
        Some(_) => embed(pipeline, texts, &kinds, Some(TextRole::Query)).await?,
    };
    let mut queries = queries.into_iter();
    let answers = documents.into_iter().map(|document| {
        let query = queries.next().and_then(|query| query.multi_vector);
        by_kind(pipeline, document, query)
    });
    Ok(answers.collect())
}

/// The model's kinds of vectors.
fn kinds(pipeline: &EmbeddingPipeline) -> Vec<VectorKind> {
    let outputs = pipeline.settings().outputs().into_iter();
    outputs.map(|(kind, _)| kind).collect()
}

/// A text's vectors by kind, with those for a query if these have another form.
fn by_kind(
    pipeline: &EmbeddingPipeline,
    document: TextVectors,
    query: Option<Vec<Vec<f32>>>,
) -> Vec<Answer> {
    let settings = pipeline.settings().multi_vector.as_deref();
    let multi = document.multi_vector.zip(settings);
    let multi = multi.map(|(document, settings)| MultiVectors {
        document: unit_vectors(document),
        query: query.map(unit_vectors),
        width: settings.dimensions,
    });
    let answers = [
        document.dense.map(Answer::Vector),
        document.sparse.map(Answer::Sparse),
        multi.map(Answer::MultiVector),
    ];
    answers.into_iter().flatten().collect()
}

/// Multi-vector settings, if queries and documents are encoded differently.
fn query_form(pipeline: &EmbeddingPipeline) -> Option<&MultiVectorSettings> {
    let multi = pipeline.settings().multi_vector.as_deref();
    multi.filter(|multi| multi.query != multi.document)
}

/// A text without its last words, if the model refuses it: labels behind a text are not truncated.
pub fn fitting(pipeline: &LabelScoresPipeline, mut text: String, labels: &[String]) -> String {
    let (tokenizer, settings) = (pipeline.encoder().tokenizer(), pipeline.settings());
    while settings
        .encode(tokenizer, &text, labels, settings.max_tokens)
        .is_err()
        && let Some((start, _)) = text.rsplit_once(' ')
    {
        text = start.to_owned();
    }
    text
}

/// Runs inputs, [`PART`] at a time, with one `progress` step per input.
pub fn in_parts<I: Clone + Send + Sync, T: Send>(
    inputs: &[I],
    progress: &dyn Progress,
    run: impl AsyncFn(Vec<I>) -> Result<Vec<T>> + Sync,
) -> Result<Vec<T>> {
    let mut results = Vec::with_capacity(inputs.len());
    for part in inputs.chunks(PART) {
        results.extend(wait(|| run(part.to_vec()))?);
        part.iter().for_each(|_| progress.step());
    }
    Ok(results)
}

/// Dense vectors for texts in a role, with one `progress` step per text.
pub fn dense_vectors(
    pipeline: &EmbeddingPipeline,
    role: TextRole,
    texts: &Texts,
    progress: &dyn Progress,
) -> Result<Vec<Vec<f32>>> {
    in_parts(&texts.texts, progress, async |texts| {
        let vectors = embed(pipeline, texts, &[VectorKind::Dense], Some(role)).await?;
        Ok(vectors
            .into_iter()
            .filter_map(|vectors| vectors.dense)
            .collect())
    })
}

/// The model's first kind of vectors for texts in a role, or with the default prompt.
pub async fn search_vectors(
    pipeline: &EmbeddingPipeline,
    texts: Vec<String>,
    role: Option<TextRole>,
) -> Result<Vec<Answer>> {
    let first: Vec<VectorKind> = kinds(pipeline).into_iter().take(1).collect();
    let found = embed(pipeline, texts, &first, role).await?;
    let answers = found
        .into_iter()
        .flat_map(|vectors| by_kind(pipeline, vectors, None));
    Ok(answers.collect())
}

/// Vectors for texts in a role, or with the default prompt. Dense vectors are not normalized, which would only add rounding.
async fn embed(
    pipeline: &EmbeddingPipeline,
    texts: Vec<String>,
    kinds: &[VectorKind],
    role: Option<TextRole>,
) -> Result<Vec<TextVectors>> {
    let options = EmbeddingOptions {
        truncation: TRUNCATION,
        normalize: Some(false),
        prompt_name: match role {
            Some(role) => prompt_name(pipeline.settings(), role)?.map(str::to_owned),
            None => None,
        },
        prompt: None,
        task: None,
        dimensions: None,
        max_values: usize::MAX,
    };
    let requested = RequestedVectors {
        kinds: kinds.to_vec(),
        max_active_dims: None,
    };
    let found = pipeline
        .embed_kinds(
            inputs(texts),
            &requested,
            &options,
            Deadline::within(TIMEOUT),
        )
        .await?;
    Ok(found.vectors)
}

/// Prompt name for texts in a role.
pub fn prompt_name(settings: &EmbeddingSettings, role: TextRole) -> Result<Option<&str>> {
    // In these models, roles differ by more than their prompts.
    if settings.multi_vector.is_some() {
        return Ok(Some(role.name()));
    }
    settings.prompt_name(role.name())
}

fn inputs(texts: Vec<String>) -> Vec<Input> {
    texts.into_iter().map(Input::Text).collect()
}

/// Token vectors, normalized and concatenated.
fn unit_vectors(mut vectors: Vec<Vec<f32>>) -> Vec<f32> {
    vectors.iter_mut().for_each(|vector| normalize(vector));
    vectors.concat()
}

/// Opens the native engine's graph in `folder`, without threads.
pub fn open_native(folder: &Path) -> Result<NativeModel> {
    let path = folder.join(MODEL);
    let graph = files::read(&path)?;
    NativeModel::open(&graph, map_weights(&graph, &path)?)
}

/// Maps the weight files next to the graph at `path`.
fn map_weights(graph: &[u8], path: &Path) -> Result<WeightFiles> {
    let names = WeightFiles::names(graph)?;
    WeightFiles::map(
        names
            .into_iter()
            .map(|name| (name.clone(), path.with_file_name(name))),
        None,
    )
}

/// Opens an encoder's graph in an engine, on all CPUs.
fn open_graph(
    runtime: LoadRuntime<'_>,
    path: &Path,
    engine: Engine,
) -> Result<Arc<dyn EncoderBackend>> {
    let threads = thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    if engine == Engine::Onnx {
        return TensorEncoder::shared(OnnxBackend::open(runtime()?, path, threads)?);
    }
    let graph = files::read(path)?;
    let weights = map_weights(&graph, path)?;
    Ok(match TableModel::is_in(&graph)? {
        true => Arc::new(TableBackend::new(
            TableModel::open(&graph, weights)?,
            threads,
        )),
        false => Arc::new(NativeBackend::start(
            NativeModel::open(&graph, weights)?,
            threads,
        )?),
    })
}
