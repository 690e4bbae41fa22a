//! Running a model on texts. A text that fails does not affect the others.

use std::{sync::Arc, time::Duration};

use super::{
    answer::{
        ALL_VECTORS, Answer, Answers, Cell, Columns, EMBEDDING, EMBEDDING_INT8, EMBEDDING_MULTI_VECTOR,
        EMBEDDING_SPARSE, EMBEDDING_UINT8, ENTITIES, ErrorKind, GENERATED, LABEL, LABELS, MULTI_VECTOR,
        REDACTED, RowError, SCORE, SPARSE, SPARSE_MULTI_VECTOR, SUMMARY, TRANSLATION,
    },
    parameters::Parameters,
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        Input, Task as NamedTask, Usage,
        embedding::{EmbeddingOptions, EmbeddingPipeline, RequestedVectors, TextVectors, VectorKind},
        entities::TextEntities,
        generation::GenerationOptions,
        ranking::RankingOptions,
        scores::descending,
        seq2seq::{GeneratedText, RequestedLanguages, Seq2SeqOptions},
        token_classification::{FoundEntities, TokenClassificationOptions},
        vectors::{Conversion, VectorType},
        zero_shot::{Labels, TEMPLATE, Template, ZeroShotOptions},
        zero_shot_entities::{EntitySearch, ZeroShotEntitiesOptions},
    },
    tokenizer::{Side, Truncation, WindowOptions},
};

/// For the rows of one chunk; the job as a whole has no timeout.
const TIMEOUT: Duration = Duration::from_secs(600);
/// Of the texts of one chunk, so that long texts with a large stride do not exhaust memory.
const MAX_WINDOWS: usize = 8192;
/// Of zero-shot classification, which runs the model once per row and label.
const MAX_LABELS: usize = 100;

/// A model with the options of a job.
#[derive(Clone, Debug)]
pub(super) struct Predictor {
    model: Model,
    task: Task,
}

#[derive(Clone, Debug)]
enum Task {
    Embedding { options: EmbeddingOptions, vector_type: VectorType, conversion: Conversion },
    Vectors { options: EmbeddingOptions, requested: RequestedVectors, has_words: bool },
    Classification { truncation: Truncation, labels: Vec<Arc<str>> },
    TokenClassification(TokenClassificationOptions),
    ZeroShotEntities(ZeroShotEntitiesOptions),
    ZeroShot { options: ZeroShotOptions, labels: Vec<Arc<str>> },
    Ranking { query: String, options: RankingOptions },
    // Translations, summaries and other texts, with their column.
    Seq2Seq(Box<Seq2SeqOptions>, Columns),
}

impl Predictor {
    /// Checks that the model supports the parameters.
    pub(super) fn new(model: Model, parameters: &Parameters) -> Result<Self> {
        let truncation = match parameters.truncate {
            Some(false) => Truncation::Off,
            _ => Truncation::At(Side::Right),
        };
        let shared = |labels: &[String]| labels.iter().map(|label| label.as_str().into()).collect();
        let task = match &model.pipeline {
            Pipeline::Embedding(pipeline) => embedding(pipeline, parameters, truncation)?,
            Pipeline::Classification(pipeline) => {
                Task::Classification { truncation, labels: shared(&pipeline.settings().labels) }
            }
            Pipeline::TokenClassification(_) => {
                let windows =
                    WindowOptions { stride: parameters.stride, truncation, max_windows: MAX_WINDOWS };
                let ignored = parameters.ignore_labels.clone();
                let ignored = (!ignored.is_empty()).then_some(ignored);
                let redacts = parameters.redact.unwrap_or(false);
                let options =
                    TokenClassificationOptions::new(parameters.aggregation, ignored, windows, redacts)?;
                Task::TokenClassification(options)
            }
            Pipeline::ZeroShotEntities(_) => Task::ZeroShotEntities(ZeroShotEntitiesOptions {
                labels: labels(&model, parameters)?,
                search: EntitySearch::new(parameters.threshold, parameters.flat, parameters.multi_label)?,
                windows: WindowOptions { stride: parameters.stride, truncation, max_windows: MAX_WINDOWS },
                redacts: parameters.redact.unwrap_or(false),
            }),
            Pipeline::ZeroShot(_) => {
                let labels = labels(&model, parameters)?;
                let template = parameters.template.clone().unwrap_or_else(|| TEMPLATE.to_owned());
                let names = shared(labels.as_slice());
                let multi_label = parameters.multi_label.unwrap_or(false);
                let options = ZeroShotOptions { labels, template: Template::new(template)?, multi_label };
                Task::ZeroShot { options, labels: names }
            }
            Pipeline::Ranking(_) => {
                let query = parameters.query.clone().filter(|query| !query.trim().is_empty());
                let query = query.ok_or_else(|| {
                    Error::invalid(format!(
                        "expected a `query` for `{}`, which is for `{}`, but found none",
                        model.name, model.manifest.task
                    ))
                })?;
                Task::Ranking { query, options: RankingOptions { truncation, raw_scores: false } }
            }
            Pipeline::Translation(pipeline) => {
                let (source, target) = (&parameters.source_language, &parameters.target_language);
                let wanted = RequestedLanguages { source: source.as_deref(), target: target.as_deref() };
                pipeline.check_languages(wanted).map_err(|error| {
                    Error::invalid(format!("{error}; see `source-language` and `target-language`"))
                })?;
                Task::Seq2Seq(generation_options(parameters), TRANSLATION)
            }
            Pipeline::TextToText(_) => {
                let column =
                    if model.manifest.task == NamedTask::Summarization { SUMMARY } else { GENERATED };
                Task::Seq2Seq(generation_options(parameters), column)
            }
        };
        Ok(Self { model, task })
    }

    /// The columns of the answers.
    pub(super) fn columns(&self) -> Columns {
        match &self.task {
            Task::Embedding { vector_type, .. } => match vector_type {
                VectorType::Float => EMBEDDING,
                VectorType::Int8 | VectorType::Binary => EMBEDDING_INT8,
                VectorType::Uint8 | VectorType::Ubinary => EMBEDDING_UINT8,
            },
            Task::Vectors { requested, .. } => {
                let has = |kind| requested.kinds.contains(&kind);
                match [VectorKind::Dense, VectorKind::Sparse, VectorKind::MultiVector].map(has) {
                    [true, true, true] => ALL_VECTORS,
                    [true, true, false] => EMBEDDING_SPARSE,
                    [true, false, true] => EMBEDDING_MULTI_VECTOR,
                    [true, false, false] => EMBEDDING,
                    [false, true, true] => SPARSE_MULTI_VECTOR,
                    [false, true, false] => SPARSE,
                    [false, false, _] => MULTI_VECTOR,
                }
            }
            Task::Classification { .. } => LABEL,
            Task::TokenClassification(TokenClassificationOptions { redacts: true, .. })
            | Task::ZeroShotEntities(ZeroShotEntitiesOptions { redacts: true, .. }) => REDACTED,
            Task::TokenClassification(_) | Task::ZeroShotEntities(_) => ENTITIES,
            Task::ZeroShot { .. } => LABELS,
            Task::Ranking { .. } => SCORE,
            Task::Seq2Seq(_, columns) => columns,
        }
    }

    /// Runs the model on the texts.
    ///
    /// If the model fails for each of several texts, the cause is not the texts, and the result is an error.
    pub(super) async fn predict(&self, texts: Vec<Result<String, RowError>>) -> Result<Answers> {
        let mut answers = Answers::default();
        let (mut valid, mut places) = (Vec::new(), Vec::new());
        for (place, text) in texts.into_iter().enumerate() {
            answers.results.push(match text {
                // A text of spaces is valid, as it is over HTTP.
                Ok(text) if text.is_empty() => {
                    Err(RowError::new(ErrorKind::Text, "expected a text, but found an empty one"))
                }
                Ok(text) => {
                    valid.push(text);
                    places.push(place);
                    // Replaced below.
                    Ok(Answer::new())
                }
                Err(error) => Err(error),
            });
        }
        if valid.is_empty() {
            return Ok(answers);
        }
        // Boxed, since the futures of the tasks are large.
        match Box::pin(self.run(valid.clone())).await {
            Ok((found, usage)) => {
                count(&mut answers, &usage);
                for (place, answer) in places.into_iter().zip(found) {
                    answers.results[place] = Ok(answer);
                }
            }
            Err(error) if valid.len() == 1 && !is_internal(&error) => {
                answers.results[places[0]] = Err(RowError::new(ErrorKind::Input, error.to_string()));
            }
            Err(_) => self.predict_singly(valid, &places, &mut answers).await?,
        }
        Ok(answers)
    }

    async fn predict_singly(
        &self,
        texts: Vec<String>,
        places: &[usize],
        answers: &mut Answers,
    ) -> Result<()> {
        let mut failed = 0;
        for (text, place) in texts.into_iter().zip(places) {
            answers.results[*place] = match Box::pin(self.run(vec![text])).await {
                Ok((mut found, usage)) => {
                    count(answers, &usage);
                    found.pop().ok_or_else(|| {
                        RowError::new(ErrorKind::Model, "expected a result, but the model returned none")
                    })
                }
                Err(error) if is_internal(&error) => {
                    failed += 1;
                    if failed == places.len() {
                        return Err(error);
                    }
                    Err(RowError::new(ErrorKind::Model, error.to_string()))
                }
                Err(error) => Err(RowError::new(ErrorKind::Input, error.to_string())),
            };
        }
        Ok(())
    }

    async fn run(&self, texts: Vec<String>) -> Result<(Vec<Answer>, Usage)> {
        let deadline = Deadline::within(TIMEOUT);
        match (&self.model.pipeline, &self.task) {
            (Pipeline::Embedding(pipeline), Task::Embedding { options, conversion, .. }) => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let embeddings = pipeline.embed(inputs, options, deadline).await?;
                let cell = |vector| vec![Cell::Vector(conversion.convert(vector))];
                Ok((embeddings.vectors.into_iter().map(cell).collect(), embeddings.usage))
            }
            (Pipeline::Embedding(pipeline), Task::Vectors { options, requested, has_words }) => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let embeddings = pipeline.embed_kinds(inputs, requested, options, deadline).await?;
                let tokenizer = pipeline.encoder().tokenizer();
                let name = |id: u32| {
                    let word = if *has_words { tokenizer.token(id) } else { None };
                    word.unwrap_or_else(|| id.to_string())
                };
                let cells = |TextVectors { dense, sparse, multi_vector }| {
                    let dense = dense.map(Cell::Numbers);
                    let sparse = sparse.map(|sparse| {
                        Cell::Weights(sparse.0.into_iter().map(|(id, weight)| (name(id), weight)).collect())
                    });
                    dense.into_iter().chain(sparse).chain(multi_vector.map(Cell::Vectors)).collect()
                };
                Ok((embeddings.vectors.into_iter().map(cells).collect(), embeddings.usage))
            }
            (Pipeline::Classification(pipeline), Task::Classification { truncation, labels }) => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let logits = pipeline.logits(inputs, *truncation, deadline).await?;
                let function = pipeline.settings().function;
                let best = |row: &Vec<f32>| {
                    let scores = function.apply(row);
                    let best = descending(&scores)[0];
                    vec![Cell::Text(Arc::clone(&labels[best])), Cell::Number(scores[best])]
                };
                Ok((logits.rows.iter().map(best).collect(), logits.usage))
            }
            (Pipeline::TokenClassification(pipeline), Task::TokenClassification(options)) => {
                Ok(entities(pipeline.entities(texts, options, deadline).await?))
            }
            (Pipeline::ZeroShotEntities(pipeline), Task::ZeroShotEntities(options)) => {
                Ok(entities(pipeline.entities(texts, options, deadline).await?))
            }
            (Pipeline::ZeroShot(pipeline), Task::ZeroShot { options, labels }) => {
                let (rows, usage) = pipeline.score(&texts, options, deadline).await?;
                let sorted = |scores: Vec<f32>| {
                    let order = descending(&scores);
                    let names = order.iter().map(|label| Arc::clone(&labels[*label])).collect();
                    let scores = order.iter().map(|label| scores[*label]).collect();
                    vec![Cell::Texts(names), Cell::Numbers(scores)]
                };
                Ok((rows.into_iter().map(sorted).collect(), usage))
            }
            (Pipeline::Ranking(pipeline), Task::Ranking { query, options }) => {
                let (scores, usage) = pipeline.score(query.clone(), texts, *options, deadline).await?;
                Ok((scores.into_iter().map(|score| vec![Cell::Number(score)]).collect(), usage))
            }
            (Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline), Task::Seq2Seq(options, _)) => {
                let generated = pipeline.generate(texts, options, deadline).await?;
                let best = generated.texts.into_iter().map(|best_first| best_first.into_iter().next());
                let answer = |best: Option<GeneratedText>| {
                    vec![Cell::Text(best.map_or_else(String::new, |best| best.text).into())]
                };
                Ok((best.map(answer).collect(), generated.usage))
            }
            _ => Err(Error::inference("the task of the model differs from that at the start of the job")),
        }
    }
}

/// The labels of a job, which its model needs.
fn labels(model: &Model, parameters: &Parameters) -> Result<Labels> {
    if parameters.labels.is_empty() {
        return Err(Error::invalid(format!(
            "expected `labels` for `{}`, which is for `{}`, but found none",
            model.name, model.manifest.task
        )));
    }
    Labels::new(parameters.labels.clone(), MAX_LABELS)
}

fn entities(found: FoundEntities) -> (Vec<Answer>, Usage) {
    let answer = |found| match found {
        TextEntities::Entities(entities) => vec![Cell::Entities(entities)],
        TextEntities::Redacted { text, entities } => {
            vec![Cell::Text(text.into()), Cell::Entities(entities)]
        }
    };
    (found.texts.into_iter().map(answer).collect(), found.usage)
}

fn generation_options(parameters: &Parameters) -> Box<Seq2SeqOptions> {
    Box::new(Seq2SeqOptions {
        source: parameters.source_language.clone(),
        target: parameters.target_language.clone(),
        split: None,
        truncate: parameters.truncate.unwrap_or(true),
        clean_up_spaces: false,
        generation: GenerationOptions::default(),
        max_sentences: usize::MAX,
    })
}

/// The task of an embedding model, which must have the vectors that the parameters name.
fn embedding(pipeline: &EmbeddingPipeline, parameters: &Parameters, truncation: Truncation) -> Result<Task> {
    pipeline.prompt(parameters.prompt.as_deref())?;
    let settings = pipeline.settings();
    let mut kinds = parameters.outputs.clone();
    if kinds.is_empty() {
        kinds.extend(settings.outputs().first().map(|(kind, _)| *kind));
    }
    let vector_type = parameters.vector_type.unwrap_or_default();
    if kinds != [VectorKind::Dense] {
        let requested = RequestedVectors { kinds, max_active_dims: parameters.max_active_dims };
        pipeline.check(&requested)?;
        if vector_type != VectorType::Float {
            return Err(Error::invalid(format!(
                "expected vectors of type `float` with `outputs` other than `dense`, but found `{vector_type}`"
            )));
        }
        let options = EmbeddingOptions {
            truncation,
            normalize: parameters.normalize,
            prompt_name: parameters.prompt.clone(),
            dimensions: parameters.dimensions,
            max_values: usize::MAX,
        };
        let has_words = parameters.words == Some(true);
        return Ok(Task::Vectors { options, requested, has_words });
    }
    pipeline.check_dimensions(parameters.dimensions)?;
    let conversion = pipeline.conversion(vector_type, parameters.dimensions)?;
    let is_ranged = matches!(conversion, Conversion::Integers { .. });
    if is_ranged && parameters.normalize == Some(false) {
        return Err(Error::invalid(format!(
            "expected normalized vectors for the type `{vector_type}`, but found `normalize` false"
        )));
    }
    let options = EmbeddingOptions {
        truncation,
        normalize: if is_ranged { Some(true) } else { parameters.normalize },
        prompt_name: parameters.prompt.clone(),
        dimensions: parameters.dimensions,
        max_values: usize::MAX,
    };
    Ok(Task::Embedding { options, vector_type, conversion })
}

fn count(answers: &mut Answers, usage: &Usage) {
    answers.tokens += usage.tokens as u64;
    answers.truncated += usage.truncated.len() as u64;
}

/// Whether the text did not cause the error.
fn is_internal(error: &Error) -> bool {
    !matches!(error, Error::Malformed { .. } | Error::Invalid { .. } | Error::TooLarge { .. })
}
