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
    backend::{
        Deadline, Engine,
        encoder::EncoderBackend,
        native::{NativeBackend, NativeModel, TableBackend, TableModel, WeightFiles},
        tensors::TensorEncoder,
    },
    error::{Error, Result},
    model::Pipeline,
    onnx::OnnxBackend,
    pipeline::{
        Input,
        classification::{
            ClassificationPipeline,
            label_scores::LabelScoresPipeline,
            label_vectors::LabelEncoder,
            listwise::ListwisePipeline,
            ranking::RankingPipeline,
            scores::ScoreFunction,
            zero_shot::{Labels, ZeroShotPipeline},
        },
        embedding::{
            EmbeddingOptions, EmbeddingPipeline, EmbeddingSettings, RequestedVectors, TextVectors,
            VectorKind, multi_vector::MultiVectorSettings, pooling::normalize, roles::TextRole,
        },
        entities::{
            token_classification::TokenClassificationPipeline,
            zero_shot_entities::ZeroShotEntitiesPipeline,
        },
        seq2seq::Seq2SeqPipeline,
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
pub const TRUNCATION: Truncation = Truncation::At(Side::Right);

/// An encoder in the pipeline that serves it.
pub enum ServedEncoder {
    /// Embeds texts.
    Embedding(EmbeddingPipeline),
    /// Scores a text, or a pair of texts, for the model's own labels.
    Classification(ClassificationPipeline),
    /// Scores texts that it reads together with a query.
    Listwise(ListwisePipeline),
    /// Scores tokens for the model's own labels.
    TokenClassification(TokenClassificationPipeline),
    /// Scores texts for labels that the model reads with them.
    LabelScores(LabelScoresPipeline),
    /// Scores spans for labels that the model reads with the text or on their own.
    ZeroShotEntities(ZeroShotEntitiesPipeline),
}

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
    /// For texts.
    pub tokenizer: &'a Arc<Tokenizer>,
    /// The settings in the bundle's manifest, which decide on the pipeline.
    pub settings: &'a TaskSettings,
    /// For labels, if another model reads them.
    pub labels: Option<&'a Arc<Tokenizer>>,
}

impl ServedEncoder {
    /// Opens the graph in `folder`.
    pub fn open(parts: EncoderParts<'_>, folder: &Path, engine: Engine) -> Result<Self> {
        let backend = open_graph(parts.runtime, &folder.join(MODEL), engine)?;
        Self::with_backend(parts, folder, engine, backend)
    }

    /// Like [`open`](Self::open), with `backend` in place of the text encoder's graph.
    pub fn with_backend(
        parts: EncoderParts<'_>,
        folder: &Path,
        engine: Engine,
        backend: Arc<dyn EncoderBackend>,
    ) -> Result<Self> {
        let tokenizer = Arc::clone(parts.tokenizer);
        Ok(match parts.settings.clone() {
            TaskSettings::Embedding(settings) => {
                Self::Embedding(EmbeddingPipeline::new(tokenizer, backend, settings)?)
            }
            TaskSettings::Classification(settings) => {
                Self::Classification(ClassificationPipeline::new(tokenizer, backend, settings)?)
            }
            TaskSettings::Listwise(settings) => {
                Self::Listwise(ListwisePipeline::new(tokenizer, backend, settings)?)
            }
            TaskSettings::TokenClassification(settings) => Self::TokenClassification(
                TokenClassificationPipeline::new(tokenizer, backend, settings)?,
            ),
            TaskSettings::LabelScores(settings) => {
                Self::LabelScores(LabelScoresPipeline::new(tokenizer, backend, settings)?)
            }
            TaskSettings::ZeroShotEntities(settings) => {
                let labels = settings.label_encoder.as_ref().zip(parts.labels);
                let labels = labels.map(|(settings, tokenizer)| {
                    let backend = open_graph(parts.runtime, &folder.join(&settings.graph), engine)?;
                    LabelEncoder::new(Arc::clone(tokenizer), backend, settings)
                });
                let labels = labels.transpose()?;
                Self::ZeroShotEntities(ZeroShotEntitiesPipeline::new(
                    tokenizer, backend, settings, labels,
                )?)
            }
            TaskSettings::Seq2Seq(_) => {
                return Err(Error::model(
                    "expected an encoder, but found a model that generates texts",
                ));
            }
        })
    }

    /// An opened model's encoder; the pipeline of a model that generates texts.
    pub fn of(pipeline: &Pipeline) -> std::result::Result<Self, &Seq2SeqPipeline> {
        Ok(match pipeline {
            Pipeline::Embedding(pipeline)
            | Pipeline::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _))
            | Pipeline::Ranking(RankingPipeline::Embedding(pipeline)) => {
                Self::Embedding(pipeline.clone())
            }
            Pipeline::Classification(pipeline)
            | Pipeline::ZeroShot(ZeroShotPipeline::Entailment(pipeline))
            | Pipeline::Ranking(RankingPipeline::CrossEncoder(pipeline)) => {
                Self::Classification(pipeline.clone())
            }
            Pipeline::Ranking(RankingPipeline::Listwise(pipeline)) => {
                Self::Listwise(pipeline.clone())
            }
            Pipeline::TokenClassification(pipeline) => Self::TokenClassification(pipeline.clone()),
            Pipeline::ZeroShot(ZeroShotPipeline::Labels(pipeline)) => {
                Self::LabelScores(pipeline.clone())
            }
            Pipeline::ZeroShotEntities(pipeline) => Self::ZeroShotEntities(pipeline.clone()),
            Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
                return Err(pipeline);
            }
        })
    }

    /// Runs one text. Fails if the outputs do not match the settings, or are not finite.
    pub fn check(&self, texts: &Texts) -> Result<()> {
        let text = texts.lines().take(1).map(str::to_owned).collect();
        let answer = wait(|| self.answers(text));
        answer.map(drop).map_err(|error| {
            Error::model_because("the model fails on a sample text", error)
                .with_hint("check its weights and `config.json`")
        })
    }

    /// Runs texts, one per line, one after the other.
    pub fn run(&self, texts: &str) -> Result<()> {
        wait(|| async {
            for text in texts.lines() {
                self.answers(vec![text.to_owned()]).await?;
            }
            Ok::<_, Error>(())
        })
    }

    /// Runs all texts, with one `progress` step per text.
    pub fn measure(&self, texts: &Texts, progress: &dyn Progress) -> Result<Answers> {
        let started = Instant::now();
        let texts = in_parts(&texts.texts, progress, |texts| self.answers(texts))?;
        let reads = texts.len() * if self.query_form().is_some() { 2 } else { 1 };
        Ok(Answers {
            texts,
            time: started.elapsed(),
            reads,
        })
    }

    /// Answers to texts, which are read as documents.
    async fn answers(&self, texts: Vec<String>) -> Result<Vec<Vec<Answer>>> {
        let deadline = Deadline::within(TIMEOUT);
        let scores: Vec<Vec<f32>> = match self {
            Self::Embedding(pipeline) => return self.vectors(pipeline, texts).await,
            Self::Classification(pipeline) => {
                let logits = pipeline.logits(inputs(texts), TRUNCATION, deadline).await?;
                let function = pipeline.settings().function;
                logits
                    .rows
                    .iter()
                    .map(|logits| function.apply(logits))
                    .collect()
            }
            Self::Listwise(pipeline) => {
                let scored = pipeline.score(QUERY.to_owned(), texts, TRUNCATION, deadline);
                scored
                    .await?
                    .0
                    .into_iter()
                    .map(|score| vec![score])
                    .collect()
            }
            Self::TokenClassification(pipeline) => {
                pipeline.token_scores(texts, TRUNCATION, deadline).await?
            }
            Self::LabelScores(pipeline) => {
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
            Self::ZeroShotEntities(pipeline) => {
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

    async fn vectors(
        &self,
        pipeline: &EmbeddingPipeline,
        texts: Vec<String>,
    ) -> Result<Vec<Vec<Answer>>> {
        let kinds: Vec<VectorKind> = pipeline
            .settings()
            .outputs()
            .iter()
            .map(|(kind, _)| *kind)
            .collect();
        let documents = embed(pipeline, texts.clone(), &kinds, Some(TextRole::Document)).await?;
        let queries = match self.query_form() {
            None => Vec::new(),
            Some(_) => {
                embed(
                    pipeline,
                    texts,
                    &[VectorKind::MultiVector],
                    Some(TextRole::Query),
                )
                .await?
            }
        };
        let mut queries = queries.into_iter();
        let answers = documents.into_iter().map(|document| {
            let query = queries.next().and_then(|query| query.multi_vector);
            let multi = document
                .multi_vector
                .zip(pipeline.settings().multi_vector.as_deref());
            let multi = multi.map(|(document, settings)| {
                let query = query.map(unit_vectors);
                MultiVectors {
                    document: unit_vectors(document),
                    query,
                    width: settings.dimensions,
                }
            });
            let dense = document.dense.map(Answer::Vector);
            let others = [
                document.sparse.map(Answer::Sparse),
                multi.map(Answer::MultiVector),
            ];
            dense
                .into_iter()
                .chain(others.into_iter().flatten())
                .collect()
        });
        Ok(answers.collect())
    }

    /// Multi-vector settings, if queries and documents are encoded differently.
    fn query_form(&self) -> Option<&MultiVectorSettings> {
        let Self::Embedding(pipeline) = self else {
            return None;
        };
        pipeline
            .settings()
            .multi_vector
            .as_deref()
            .filter(|multi| multi.query != multi.document)
    }
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
    let settings = pipeline.settings();
    let kinds: Vec<VectorKind> = settings
        .outputs()
        .iter()
        .map(|(kind, _)| *kind)
        .take(1)
        .collect();
    let found = embed(pipeline, texts, &kinds, role).await?;
    let answer = |vectors: TextVectors| {
        let multi = vectors
            .multi_vector
            .zip(settings.multi_vector.as_deref())
            .map(|(vectors, multi)| {
                let document = unit_vectors(vectors);
                Answer::MultiVector(MultiVectors {
                    document,
                    query: None,
                    width: multi.dimensions,
                })
            });
        vectors
            .dense
            .map(Answer::Vector)
            .or(vectors.sparse.map(Answer::Sparse))
            .or(multi)
    };
    Ok(found.into_iter().filter_map(answer).collect())
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
