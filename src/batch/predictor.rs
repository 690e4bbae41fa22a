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
        Input, Task, Usage,
        classification::ClassificationPipeline,
        embedding::{EmbeddingOptions, EmbeddingPipeline, RequestedVectors, TextVectors, VectorKind},
        entities::TextEntities,
        generation::GenerationOptions,
        ranking::{RankingOptions, RankingPipeline},
        scores::descending,
        seq2seq::{GeneratedText, RequestedLanguages, Seq2SeqOptions, Seq2SeqPipeline},
        token_classification::{FoundEntities, TokenClassificationOptions, TokenClassificationPipeline},
        vectors::{Conversion, VectorType},
        zero_shot::{Labels, TEMPLATE, Template, ZeroShotOptions, ZeroShotPipeline},
        zero_shot_entities::{EntitySearch, ZeroShotEntitiesOptions, ZeroShotEntitiesPipeline},
    },
    tokenizer::{Side, Truncation, WindowOptions},
};

/// For one chunk's rows; the job as a whole has no timeout.
const TIMEOUT: Duration = Duration::from_secs(600);
/// For one chunk's texts, so that long texts with a large stride do not exhaust memory.
const MAX_WINDOWS: usize = 8192;
/// For zero-shot classification, which runs the model once per row and label.
const MAX_LABELS: usize = 100;

/// A model with job options.
#[derive(Clone, Debug)]
pub(super) enum Predictor {
    Embedding {
        pipeline: EmbeddingPipeline,
        options: EmbeddingOptions,
        vector_type: VectorType,
        conversion: Conversion,
    },
    Vectors {
        pipeline: EmbeddingPipeline,
        options: EmbeddingOptions,
        requested: RequestedVectors,
        has_words: bool,
    },
    Classification {
        pipeline: ClassificationPipeline,
        truncation: Truncation,
        labels: Vec<Arc<str>>,
    },
    TokenClassification(TokenClassificationPipeline, TokenClassificationOptions),
    ZeroShotEntities(ZeroShotEntitiesPipeline, ZeroShotEntitiesOptions),
    ZeroShot {
        pipeline: ZeroShotPipeline,
        options: ZeroShotOptions,
        labels: Vec<Arc<str>>,
    },
    Ranking {
        pipeline: RankingPipeline,
        query: String,
        options: RankingOptions,
    },
    /// Translations, summaries and other texts, with their column.
    Seq2Seq(Seq2SeqPipeline, Box<Seq2SeqOptions>, Columns),
}

impl Predictor {
    /// Checks that the model supports the parameters.
    pub(super) fn new(model: &Model, parameters: &Parameters) -> Result<Self> {
        let truncates = parameters.truncates(&model.settings);
        let truncation = if truncates { Truncation::At(Side::Right) } else { Truncation::Off };
        let windows = WindowOptions {
            stride: parameters.stride,
            truncation,
            max_windows: MAX_WINDOWS,
            begin_at_words: false,
        };
        let redacts = parameters.redact.unwrap_or(false);
        let shared = |labels: &[String]| labels.iter().map(|label| label.as_str().into()).collect();
        Ok(match model.pipeline.clone() {
            Pipeline::Embedding(pipeline) => embedding(pipeline, parameters, truncation)?,
            Pipeline::Classification(pipeline) => {
                let labels = shared(&pipeline.settings().labels);
                Self::Classification { pipeline, truncation, labels }
            }
            Pipeline::TokenClassification(pipeline) => {
                let ignored = parameters.ignore_labels.clone();
                let ignored = (!ignored.is_empty()).then_some(ignored);
                let options =
                    TokenClassificationOptions::new(parameters.aggregation, ignored, windows, redacts)?;
                Self::TokenClassification(pipeline, options)
            }
            Pipeline::ZeroShotEntities(pipeline) => {
                let labels = labels(model, parameters)?;
                let search =
                    EntitySearch::new(parameters.threshold, parameters.flat, parameters.multi_label)?;
                Self::ZeroShotEntities(pipeline, ZeroShotEntitiesOptions { labels, search, windows, redacts })
            }
            Pipeline::ZeroShot(pipeline) => {
                let labels = labels(model, parameters)?;
                let template = parameters.template.clone().unwrap_or_else(|| TEMPLATE.to_owned());
                let names = shared(labels.as_slice());
                let multi_label = parameters.multi_label.unwrap_or(false);
                let options = ZeroShotOptions { labels, template: Template::new(template)?, multi_label };
                Self::ZeroShot { pipeline, options, labels: names }
            }
            Pipeline::Ranking(pipeline) => {
                let query = parameters.query.clone().filter(|query| !query.trim().is_empty());
                let query = query.ok_or_else(|| lacks(model, "a `query`"))?;
                Self::Ranking { pipeline, query, options: RankingOptions { truncation, raw_scores: false } }
            }
            Pipeline::Translation(pipeline) => {
                let (source, target) = (&parameters.source_language, &parameters.target_language);
                let wanted = RequestedLanguages { source: source.as_deref(), target: target.as_deref() };
                pipeline.check_languages(wanted).map_err(|error| {
                    Error::invalid(format!("{error}; see `source-language` and `target-language`"))
                })?;
                Self::Seq2Seq(pipeline, generation_options(parameters, truncates), TRANSLATION)
            }
            Pipeline::TextToText(pipeline) => {
                let column = if model.manifest.task == Task::Summarization { SUMMARY } else { GENERATED };
                Self::Seq2Seq(pipeline, generation_options(parameters, truncates), column)
            }
        })
    }

    /// Answer columns.
    pub(super) fn columns(&self) -> Columns {
        match self {
            Self::Embedding { vector_type, .. } => match vector_type {
                VectorType::Float => EMBEDDING,
                VectorType::Int8 | VectorType::Binary => EMBEDDING_INT8,
                VectorType::Uint8 | VectorType::Ubinary => EMBEDDING_UINT8,
            },
            Self::Vectors { requested, .. } => {
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
            Self::Classification { .. } => LABEL,
            Self::TokenClassification(_, TokenClassificationOptions { redacts: true, .. })
            | Self::ZeroShotEntities(_, ZeroShotEntitiesOptions { redacts: true, .. }) => REDACTED,
            Self::TokenClassification(..) | Self::ZeroShotEntities(..) => ENTITIES,
            Self::ZeroShot { .. } => LABELS,
            Self::Ranking { .. } => SCORE,
            Self::Seq2Seq(.., columns) => columns,
        }
    }

    /// Runs the model on the texts.
    ///
    /// If the model fails for all texts, and there are several, the texts are not the cause, and the result is an error.
    pub(super) async fn predict(&self, texts: Vec<Result<String, RowError>>) -> Result<Answers> {
        let mut answers = Answers::default();
        let (mut valid, mut places) = (Vec::new(), Vec::new());
        for (place, text) in texts.into_iter().enumerate() {
            answers.results.push(match text {
                // A text with only spaces is valid, as it is over HTTP.
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
        // Boxed, since the task futures are large.
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
        match self {
            Self::Embedding { pipeline, options, conversion, .. } => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let embeddings = pipeline.embed(inputs, options, deadline).await?;
                let cell = |vector| vec![Cell::Vector(conversion.convert(vector))];
                Ok((embeddings.vectors.into_iter().map(cell).collect(), embeddings.usage))
            }
            Self::Vectors { pipeline, options, requested, has_words } => {
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
            Self::Classification { pipeline, truncation, labels } => {
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
            Self::TokenClassification(pipeline, options) => {
                Ok(entities(pipeline.entities(texts, options, deadline).await?))
            }
            Self::ZeroShotEntities(pipeline, options) => {
                Ok(entities(pipeline.entities(texts, options, deadline).await?))
            }
            Self::ZeroShot { pipeline, options, labels } => {
                let (rows, usage) = pipeline.score(&texts, options, deadline).await?;
                let sorted = |scores: Vec<f32>| {
                    let order = descending(&scores);
                    let names = order.iter().map(|label| Arc::clone(&labels[*label])).collect();
                    let scores = order.iter().map(|label| scores[*label]).collect();
                    vec![Cell::Texts(names), Cell::Numbers(scores)]
                };
                Ok((rows.into_iter().map(sorted).collect(), usage))
            }
            Self::Ranking { pipeline, query, options } => {
                let (scores, usage) = pipeline.score(query.clone(), texts, *options, deadline).await?;
                Ok((scores.into_iter().map(|score| vec![Cell::Number(score)]).collect(), usage))
            }
            Self::Seq2Seq(pipeline, options, _) => {
                let generated = pipeline.generate(texts, options, deadline).await?;
                let best = generated.texts.into_iter().map(|best_first| best_first.into_iter().next());
                let answer = |best: Option<GeneratedText>| {
                    vec![Cell::Text(best.map_or_else(String::new, |best| best.text).into())]
                };
                Ok((best.map(answer).collect(), generated.usage))
            }
        }
    }
}

/// Job labels, which the model needs.
fn labels(model: &Model, parameters: &Parameters) -> Result<Labels> {
    if parameters.labels.is_empty() {
        return Err(lacks(model, "`labels`"));
    }
    Labels::new(parameters.labels.clone(), MAX_LABELS)
}

fn lacks(model: &Model, parameter: &str) -> Error {
    let Model { name, manifest, .. } = model;
    Error::invalid(format!(
        "expected {parameter} for `{name}`, which is for `{}`, but found none",
        manifest.task
    ))
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

fn generation_options(parameters: &Parameters, truncate: bool) -> Box<Seq2SeqOptions> {
    Box::new(Seq2SeqOptions {
        source: parameters.source_language.clone(),
        target: parameters.target_language.clone(),
        split: None,
        truncate,
        clean_up_spaces: false,
        generation: GenerationOptions::default(),
        max_sentences: usize::MAX,
    })
}

/// The predictor for an embedding model, which must have the vectors that the parameters name.
fn embedding(
    pipeline: EmbeddingPipeline,
    parameters: &Parameters,
    truncation: Truncation,
) -> Result<Predictor> {
    pipeline.prompt(parameters.prompt.as_deref())?;
    let settings = pipeline.settings();
    let mut kinds = parameters.outputs.clone();
    if kinds.is_empty() {
        kinds.extend(settings.outputs().first().map(|(kind, _)| *kind));
    }
    let mut options = EmbeddingOptions {
        truncation,
        normalize: parameters.normalize,
        prompt_name: parameters.prompt.clone(),
        dimensions: parameters.dimensions,
        max_values: usize::MAX,
    };
    let vector_type = parameters.vector_type.unwrap_or_default();
    if kinds != [VectorKind::Dense] {
        let requested = RequestedVectors { kinds, max_active_dims: parameters.max_active_dims };
        pipeline.check(&requested)?;
        if vector_type != VectorType::Float {
            return Err(Error::invalid(format!(
                "expected vectors of type `float` with `outputs` other than `dense`, but found `{vector_type}`"
            )));
        }
        let has_words = parameters.words == Some(true);
        return Ok(Predictor::Vectors { pipeline, options, requested, has_words });
    }
    pipeline.check_dimensions(parameters.dimensions)?;
    let conversion = pipeline.conversion(vector_type, parameters.dimensions)?;
    if matches!(conversion, Conversion::Integers { .. }) {
        if parameters.normalize == Some(false) {
            return Err(Error::invalid(format!(
                "expected normalized vectors for the type `{vector_type}`, but found `normalize` false"
            )));
        }
        options.normalize = Some(true);
    }
    Ok(Predictor::Embedding { pipeline, options, vector_type, conversion })
}

fn count(answers: &mut Answers, usage: &Usage) {
    answers.tokens += usage.tokens as u64;
    answers.truncated += usage.truncated.len() as u64;
}

/// Whether the text did not cause the error.
fn is_internal(error: &Error) -> bool {
    !matches!(error, Error::Malformed { .. } | Error::Invalid { .. } | Error::TooLarge { .. })
}
