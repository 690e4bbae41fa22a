//! Runs a model on texts. A text that fails does not affect the others.

use std::{sync::Arc, time::Duration};

use super::parameters::Parameters;
use crate::output::answer::{
    Answer, Answers, Cell, CellType, Columns, ErrorKind, Numbered, RowError, RowResult,
    label_columns, score_column,
};
use kivu::{
    Error, Result,
    backend::Deadline,
    model::{Model, Pipeline},
    pipeline::{
        Input, Task, Usage,
        classification::scores::descending,
        embedding::{TextVectors, VectorKind, vectors::VectorType},
        entities::TextEntities,
        redaction::{
            Key,
            placeholders::{NumberScope, Style},
        },
        seq2seq::GeneratedText,
    },
    task::{
        JobNumberScope, JobOptions, Scope,
        classification::{
            self, ClassificationParameters, Classifier, ZeroShotClassifier, ZeroShotParameters,
        },
        embedding::{Embedder, EmbeddingParameters},
        entities::{
            EntityFinder, RedactionParameters, TokenClassificationParameters,
            ZeroShotEntitiesParameters,
        },
        extraction::{ExtractionParameters, Extractor},
        ranking::{Ranker, RankingParameters},
        text_to_text::{TextGenerator, TextToTextParameters},
    },
};

/// For one chunk's rows; the job as a whole has no timeout.
const TIMEOUT: Duration = Duration::from_secs(600);

/// A model with a job's parameters.
#[derive(Clone, Debug)]
pub enum Predictor {
    Embedding(Embedder),
    Classification(Classifier, Scores),
    ZeroShot(ZeroShotClassifier, Scores),
    /// With whether replacements are numbered in the file.
    Entities(EntityFinder, bool),
    Extraction(Extractor),
    Ranking(Ranker, String),
    /// Translations, summaries and other texts, with their column.
    TextToText(TextGenerator, &'static str),
}

/// Which of a text's labels and scores an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scores {
    /// The best label and its score.
    Best,
    /// The best label and score, and lists with all, the best first.
    All,
}

impl Scores {
    fn columns(self) -> Columns {
        let all = [("labels", CellType::Texts), ("scores", CellType::Numbers)];
        match self {
            Self::Best => label_columns(),
            Self::All => label_columns().iter().copied().chain(all).collect(),
        }
    }

    /// Each text's answer, and the usage.
    fn answers(self, labels: &[String], found: classification::Scores) -> (Vec<Answer>, Usage) {
        let labels: Vec<Arc<str>> = labels.iter().map(|label| label.as_str().into()).collect();
        let answers = found.rows.iter().map(|scores| self.answer(&labels, scores));
        (answers.collect(), found.usage)
    }

    fn answer(self, labels: &[Arc<str>], scores: &[f32]) -> Answer {
        let order = descending(scores);
        let best = [
            Cell::Text(Arc::clone(&labels[order[0]])),
            Cell::Number(scores[order[0]]),
        ];
        match self {
            Self::Best => best.into(),
            Self::All => {
                let names = order.iter().map(|label| Arc::clone(&labels[*label]));
                let sorted = order.iter().map(|label| scores[*label]);
                let all = [
                    Cell::Texts(names.collect()),
                    Cell::Numbers(sorted.collect()),
                ];
                best.into_iter().chain(all).collect()
            }
        }
    }
}

impl Predictor {
    /// Checks that the model supports the parameters, for texts that run in chunks.
    pub fn new(model: &Model, parameters: &Parameters) -> Result<Self> {
        let predictor = Self::of_model(model, parameters)?;
        match predictor.is_listwise() {
            true => Err(Error::invalid(format!(
                "`{}` ranks texts by reading all of them together, but rows are read in chunks",
                model.name
            ))
            .with_hint("send a query and its texts in one request, such as `/rerank`")),
            false => Ok(predictor),
        }
    }

    fn of_model(model: &Model, parameters: &Parameters) -> Result<Self> {
        let options = &parameters.options;
        let scope = Scope {
            truncate: parameters.truncates(&model.settings),
            ..Scope::OF_TEXTS
        };
        let require_labels = || {
            let labels = options.get("labels").filter(|labels| !labels.is_empty());
            labels.map(drop).ok_or_else(|| lacks(model, "`labels`"))
        };
        let scores = match options.all_scores() {
            true => Scores::All,
            false => Scores::Best,
        };
        Ok(match &model.pipeline {
            Pipeline::Embedding(pipeline) => {
                let parameters: EmbeddingParameters = options.parameters()?;
                pipeline.prompt(parameters.prompt_name.as_deref())?;
                Self::Embedding(parameters.prepare(pipeline, &scope)?)
            }
            Pipeline::Classification(pipeline) => Self::Classification(
                options
                    .parameters::<ClassificationParameters>()?
                    .prepare(pipeline, &scope)?,
                scores,
            ),
            Pipeline::TokenClassification(pipeline) => {
                let mut parameters: TokenClassificationParameters = options.parameters()?;
                let is_of_file = complete(&mut parameters.redaction, options, model)?;
                // Labels that are left out have no cost, so their number is not limited.
                let scope = Scope {
                    max_labels: usize::MAX,
                    ..scope
                };
                Self::Entities(parameters.prepare(pipeline, &scope)?, is_of_file)
            }
            Pipeline::ZeroShotEntities(pipeline) if options.has_schema() => {
                if options.get("labels").is_some() {
                    return Err(
                        Error::invalid("expected `labels` or `schema`, but found both")
                            .with_hint("omit one of them"),
                    );
                }
                Self::Extraction(
                    options
                        .parameters::<ExtractionParameters>()?
                        .prepare(pipeline, &scope)?,
                )
            }
            Pipeline::ZeroShotEntities(pipeline) => {
                require_labels()?;
                let mut parameters: ZeroShotEntitiesParameters = options.parameters()?;
                let is_of_file = complete(&mut parameters.redaction, options, model)?;
                Self::Entities(parameters.prepare(pipeline, &scope)?, is_of_file)
            }
            Pipeline::ZeroShot(pipeline) => {
                require_labels()?;
                Self::ZeroShot(
                    options
                        .parameters::<ZeroShotParameters>()?
                        .prepare(pipeline, &scope)?,
                    scores,
                )
            }
            Pipeline::Ranking(pipeline) => {
                let query = parameters
                    .query
                    .clone()
                    .filter(|query| !query.trim().is_empty());
                let query = query.ok_or_else(|| lacks(model, "a `query`"))?;
                Self::Ranking(
                    options
                        .parameters::<RankingParameters>()?
                        .prepare(pipeline, &scope)?,
                    query,
                )
            }
            Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
                let parameters: TextToTextParameters = options.parameters()?;
                if model.manifest.task == Task::Translation {
                    pipeline
                        .check_languages(parameters.languages())
                        .map_err(|error| {
                            Error::invalid(error.message())
                                .with_hint("see `source-language` and `target-language`")
                        })?;
                }
                let generator = parameters.prepare(
                    pipeline,
                    &Scope {
                        max_parts: usize::MAX,
                        ..scope
                    },
                );
                Self::TextToText(generator, model.manifest.task.generated_name())
            }
        })
    }

    /// Like [`Self::new`], for texts that are in no file.
    pub fn of_texts(model: &Model, parameters: &Parameters) -> Result<Self> {
        Self::new(model, parameters)?.without_file()
    }

    /// The same for texts that run together.
    pub fn of_list(model: &Model, parameters: &Parameters) -> Result<Self> {
        Self::of_model(model, parameters)?.without_file()
    }

    fn without_file(self) -> Result<Self> {
        match self {
            Self::Entities(_, true) => Err(Error::invalid(
                "the `redact-scope` `file` is not supported here: the texts are in no file",
            )
            .with_hint("use `text`, or the `redact-style` `hash`")),
            predictor => Ok(predictor),
        }
    }

    fn is_listwise(&self) -> bool {
        matches!(self, Self::Ranking(ranker, _) if ranker.is_listwise())
    }

    /// Answer columns.
    pub fn columns(&self) -> Columns {
        let entities = ("entities", CellType::Json);
        match self {
            Self::Embedding(embedder) => {
                let vectors = match embedder.output_dtype {
                    VectorType::Float => CellType::Numbers,
                    VectorType::Int8 | VectorType::Binary => CellType::Int8s,
                    VectorType::Uint8 | VectorType::Ubinary => CellType::Uint8s,
                };
                let all = [
                    (VectorKind::Dense, ("embedding", vectors)),
                    (VectorKind::Sparse, ("sparse", CellType::Json)),
                    (VectorKind::MultiVector, ("multi_vector", CellType::Json)),
                ];
                let requested = all
                    .into_iter()
                    .filter(|(kind, _)| embedder.requested.kinds.contains(kind));
                requested.map(|(_, column)| column).collect()
            }
            Self::Classification(_, scores) | Self::ZeroShot(_, scores) => scores.columns(),
            Self::Entities(finder, _) if finder.redacts() => {
                [("redacted", CellType::Text), entities].into()
            }
            Self::Entities(..) => [entities].into(),
            Self::Extraction(_) => [("extracted", CellType::Json)].into(),
            Self::Ranking(..) => score_column(),
            Self::TextToText(_, column) => [(*column, CellType::Text)].into(),
        }
    }

    /// Dimensions of the vectors, which a sink stores.
    ///
    /// # Errors
    /// The answers are no dense vectors of floats.
    pub fn stored_dimensions(&self) -> Result<usize> {
        let Self::Embedding(embedder) = self else {
            return Err(Error::config(
                "a sink takes vectors, but the model is not an embedding model",
            ));
        };
        if embedder.requested.kinds != [VectorKind::Dense]
            || embedder.output_dtype != VectorType::Float
        {
            return Err(Error::config(
                "a sink takes dense vectors of floats; omit `outputs` and `vector-type`",
            ));
        }
        embedder.pipeline.dimensions(embedder.options.dimensions)
    }

    /// The fewest bytes that a text's answer has as JSON.
    pub fn min_answer_bytes(&self) -> usize {
        // A digit and a comma, and brackets.
        let numbers = |count: usize| 2 * count + 1;
        match self {
            Self::Embedding(embedder) if embedder.requested.kinds.contains(&VectorKind::Dense) => {
                let dimensions = embedder.pipeline.dimensions(embedder.options.dimensions);
                numbers(match embedder.output_dtype {
                    VectorType::Float | VectorType::Int8 | VectorType::Uint8 => {
                        dimensions.unwrap_or_default()
                    }
                    VectorType::Binary | VectorType::Ubinary => dimensions.unwrap_or_default() / 8,
                })
            }
            Self::ZeroShot(classifier, Scores::All) => {
                let labels = classifier.labels();
                let names: usize = labels.iter().map(|label| label.len() + 3).sum();
                names + numbers(labels.len())
            }
            _ => 1,
        }
    }

    /// Runs the model on a chunk's texts.
    ///
    /// If the model fails for all texts, the texts are not the cause, and the result is an error.
    pub async fn predict(&self, texts: Vec<Result<String, RowError>>) -> Result<Answers> {
        self.predict_by(texts, Deadline::within(TIMEOUT)).await
    }

    /// Runs the model on the texts of a caller that waits until `deadline`.
    pub async fn predict_by(
        &self,
        texts: Vec<Result<String, RowError>>,
        deadline: Deadline,
    ) -> Result<Answers> {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let mut answers = Answers::default();
        // A text with only spaces is valid, as it is over HTTP.
        let refuse_empty = |text: String| match text.is_empty() {
            true => Err(RowError::new(
                ErrorKind::Text,
                "expected a text, but found an empty one",
            )),
            false => Ok(text),
        };
        let texts: Vec<_> = texts
            .into_iter()
            .map(|text| text.and_then(refuse_empty))
            .collect();
        let valid: Vec<String> = texts.iter().flatten().cloned().collect();
        let mut found = match valid.is_empty() {
            true => Vec::new().into_iter(),
            false => self
                .results(valid, deadline, &mut answers)
                .await?
                .into_iter(),
        };
        let result = |text: Result<String, RowError>| {
            text.and_then(|_| found.next().unwrap_or_else(missing))
        };
        answers.results = texts.into_iter().map(result).collect();
        Ok(answers)
    }

    /// A result for each text, from one run, or from a run per text if that fails.
    async fn results(
        &self,
        texts: Vec<String>,
        deadline: Deadline,
        answers: &mut Answers,
    ) -> Result<Vec<RowResult>> {
        let refused = |error: &Error| Err(RowError::new(ErrorKind::Input, error.message()));
        match self.counted(texts.clone(), deadline, answers).await {
            Ok(found) => return Ok(found),
            Err(error) if texts.len() == 1 && !is_internal(&error) => {
                return Ok(vec![refused(&error)]);
            }
            Err(error) if deadline.has_passed() || self.is_listwise() => return Err(error),
            Err(_) => {}
        }
        let (mut results, mut failed, count) = (Vec::new(), 0, texts.len());
        for text in texts {
            match self.counted(vec![text], deadline, answers).await {
                Ok(found) => results.push(found.into_iter().next().unwrap_or_else(missing)),
                Err(error) if is_internal(&error) => {
                    failed += 1;
                    if failed == count {
                        return Err(error);
                    }
                    results.push(Err(RowError::new(ErrorKind::Model, error.message())));
                }
                Err(error) => results.push(refused(&error)),
            }
        }
        Ok(results)
    }

    /// Runs the model once, and counts its usage.
    async fn counted(
        &self,
        texts: Vec<String>,
        deadline: Deadline,
        answers: &mut Answers,
    ) -> Result<Vec<RowResult>> {
        // Boxed, since the task futures are large.
        let (found, usage) = Box::pin(self.run(texts, deadline)).await?;
        answers.tokens += usage.tokens as u64;
        answers.truncated += usage.truncated.len() as u64;
        Ok(found.into_iter().map(Ok).collect())
    }

    async fn run(&self, texts: Vec<String>, deadline: Deadline) -> Result<(Vec<Answer>, Usage)> {
        match self {
            Self::Embedding(embedder) => {
                let found = embedder
                    .run(texts.into_iter().map(Input::Text).collect(), deadline)
                    .await?;
                let cells = |text| vector_cells(embedder, text);
                Ok((found.vectors.into_iter().map(cells).collect(), found.usage))
            }
            Self::Classification(classifier, kept) => {
                let found = classifier
                    .run(texts.into_iter().map(Input::Text).collect(), deadline)
                    .await?;
                Ok(kept.answers(classifier.labels(), found))
            }
            Self::ZeroShot(classifier, kept) => {
                let found = classifier.run(&texts, deadline).await?;
                Ok(kept.answers(classifier.labels(), found))
            }
            Self::Entities(finder, is_of_file) => {
                let found = finder.run(texts, deadline).await?;
                let answer = |found| match found {
                    TextEntities::Entities(entities) => vec![Cell::Entities(entities)],
                    TextEntities::Redacted {
                        text,
                        entities,
                        mapping,
                    } => {
                        let text = match mapping.filter(|_| *is_of_file) {
                            Some(mapping) => Cell::Numbered(Numbered { text, mapping }),
                            None => Cell::Text(text.into()),
                        };
                        vec![text, Cell::Entities(entities)]
                    }
                };
                Ok((found.texts.into_iter().map(answer).collect(), found.usage))
            }
            Self::Extraction(extractor) => {
                let found = extractor.run(texts, deadline).await?;
                Ok((
                    found
                        .texts
                        .into_iter()
                        .map(|own| vec![Cell::Extracted(own)])
                        .collect(),
                    found.usage,
                ))
            }
            Self::Ranking(ranker, query) => {
                let (scores, usage) = ranker.run(query.clone(), texts, deadline).await?;
                Ok((
                    scores
                        .into_iter()
                        .map(|score| vec![Cell::Number(score)])
                        .collect(),
                    usage,
                ))
            }
            Self::TextToText(generator, _) => {
                let generated = generator.run(texts, deadline).await?;
                let best =
                    |texts: Vec<GeneratedText>| texts.into_iter().map(|text| text.text).next();
                let answer = |texts| vec![Cell::Text(best(texts).unwrap_or_default().into())];
                Ok((
                    generated.texts.into_iter().map(answer).collect(),
                    generated.usage,
                ))
            }
        }
    }
}

/// Adds the configured key, if the style needs one, and returns whether numbers are counted in the file.
fn complete(
    redaction: &mut RedactionParameters,
    options: &JobOptions,
    model: &Model,
) -> Result<bool> {
    let key = model.settings.redact_key.as_ref();
    if let Some(key) = key
        && matches!(redaction.redact_style, Some(Style::Hash | Style::Encrypt))
    {
        redaction.redact_key = Some(Key::from_hex(&key.0)?);
    }
    let scope = options.number_scope();
    // Refused with another style. The job's writer counts in the file.
    redaction.redact_scope = scope.map(|_| NumberScope::Text);
    Ok(scope == Some(JobNumberScope::File))
}

fn vector_cells(embedder: &Embedder, text: TextVectors) -> Answer {
    let dense = text
        .dense
        .map(|vector| Cell::Vector(embedder.conversion.convert(vector)));
    let name = |id: u32| embedder.word(id).unwrap_or_else(|| id.to_string());
    let sparse = text.sparse.map(|sparse| {
        Cell::Weights(
            sparse
                .0
                .into_iter()
                .map(|(id, weight)| (name(id), weight))
                .collect(),
        )
    });
    dense
        .into_iter()
        .chain(sparse)
        .chain(text.multi_vector.map(Cell::Vectors))
        .collect()
}

fn lacks(model: &Model, parameter: &str) -> Error {
    let Model { name, manifest, .. } = model;
    Error::invalid(format!(
        "expected {parameter} for `{name}`, which is for `{}`, but found none",
        manifest.task
    ))
}

fn missing() -> RowResult {
    Err(RowError::new(
        ErrorKind::Model,
        "the model returned no result",
    ))
}

/// Whether the error has a cause other than the text.
fn is_internal(error: &Error) -> bool {
    !matches!(
        error,
        Error::Malformed { .. } | Error::Invalid { .. } | Error::TooLarge { .. }
    )
}
