//! Runs a model on texts. A text that fails does not affect the others.

use std::{sync::Arc, time::Duration};

use super::{
    answer::{Answer, Answers, Cell, CellType, Columns, ErrorKind, LABEL, RowError, SCORE},
    parameters::Parameters,
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        Input, Task, Usage,
        embedding::{TextVectors, VectorKind},
        entities::TextEntities,
        scores::descending,
        seq2seq::{GeneratedText, Seq2SeqOptions, Seq2SeqPipeline},
        vectors::VectorType,
        zero_shot::Labels,
    },
    task::{
        Scope,
        classification::{ClassificationParameters, Classifier, ZeroShotClassifier, ZeroShotParameters},
        embedding::{Embedder, EmbeddingParameters},
        entities::{EntityFinder, TokenClassificationParameters, ZeroShotEntitiesParameters},
        ranking::{Ranker, RankingParameters},
        text_to_text::TextToTextParameters,
    },
};

/// For one chunk's rows; the job as a whole has no timeout.
const TIMEOUT: Duration = Duration::from_secs(600);
/// For one chunk's texts, so that long texts with a large stride do not exhaust memory.
const MAX_WINDOWS: usize = 8192;
/// For zero-shot classification, which runs the model once per row and label.
const MAX_LABELS: usize = 100;

/// A model with a job's parameters.
#[derive(Clone, Debug)]
pub(super) enum Predictor {
    Embedding(Embedder),
    Classification(Classifier),
    ZeroShot(ZeroShotClassifier),
    Entities(EntityFinder),
    Ranking(Ranker, String),
    /// Translations, summaries and other texts, with their column.
    TextToText(Seq2SeqPipeline, Box<Seq2SeqOptions>, &'static str),
}

impl Predictor {
    /// Checks that the model supports the parameters.
    pub(super) fn new(model: &Model, parameters: &Parameters) -> Result<Self> {
        let options = &parameters.options;
        let scope = Scope {
            truncate: parameters.truncates(&model.settings),
            max_values: usize::MAX,
            max_parts: MAX_WINDOWS,
            max_labels: MAX_LABELS,
        };
        let has_labels =
            || options.get("labels").is_some_and(|labels| Labels::parts(labels).next().is_some());
        let require = |is_set, name| if is_set { Ok(()) } else { Err(lacks(model, name)) };
        Ok(match &model.pipeline {
            Pipeline::Embedding(pipeline) => {
                let parameters: EmbeddingParameters = options.parameters()?;
                pipeline.prompt(parameters.prompt_name.as_deref())?;
                Self::Embedding(parameters.prepare(pipeline, &scope)?)
            }
            Pipeline::Classification(pipeline) => {
                let parameters: ClassificationParameters = options.parameters()?;
                Self::Classification(parameters.prepare(pipeline, &scope)?)
            }
            Pipeline::TokenClassification(pipeline) => {
                let parameters: TokenClassificationParameters = options.parameters()?;
                // Labels that are left out have no cost, so their number is not limited.
                Self::Entities(parameters.prepare(pipeline, &Scope { max_labels: usize::MAX, ..scope })?)
            }
            Pipeline::ZeroShotEntities(pipeline) => {
                require(has_labels(), "`labels`")?;
                let parameters: ZeroShotEntitiesParameters = options.parameters()?;
                Self::Entities(parameters.prepare(pipeline, &scope)?)
            }
            Pipeline::ZeroShot(pipeline) => {
                require(has_labels(), "`labels`")?;
                let parameters: ZeroShotParameters = options.parameters()?;
                Self::ZeroShot(parameters.prepare(pipeline, &scope)?)
            }
            Pipeline::Ranking(pipeline) => {
                let query = parameters.query.clone().filter(|query| !query.trim().is_empty());
                let query = query.ok_or_else(|| lacks(model, "a `query`"))?;
                let parameters: RankingParameters = options.parameters()?;
                Self::Ranking(parameters.prepare(pipeline, &scope), query)
            }
            Pipeline::Translation(pipeline) | Pipeline::TextToText(pipeline) => {
                let parameters: TextToTextParameters = options.parameters()?;
                if model.manifest.task == Task::Translation {
                    pipeline.check_languages(parameters.languages()).map_err(|error| {
                        Error::invalid(format!("{error}; see `source-language` and `target-language`"))
                    })?;
                }
                let options = parameters.options(&Scope { max_parts: usize::MAX, ..scope });
                Self::TextToText(pipeline.clone(), options.into(), model.manifest.task.generated_name())
            }
        })
    }

    /// Answer columns.
    pub(super) fn columns(&self) -> Columns {
        let entities = ("entities", CellType::Json);
        match self {
            Self::Embedding(embedder) => {
                let column = |kind| match (kind, embedder.output_dtype) {
                    (VectorKind::Sparse, _) => ("sparse", CellType::Json),
                    (VectorKind::MultiVector, _) => ("multi_vector", CellType::Json),
                    (VectorKind::Dense, VectorType::Float) => ("embedding", CellType::Numbers),
                    (VectorKind::Dense, VectorType::Int8 | VectorType::Binary) => {
                        ("embedding", CellType::Int8s)
                    }
                    (VectorKind::Dense, VectorType::Uint8 | VectorType::Ubinary) => {
                        ("embedding", CellType::Uint8s)
                    }
                };
                let kinds = [VectorKind::Dense, VectorKind::Sparse, VectorKind::MultiVector];
                kinds.into_iter().filter(|kind| embedder.requested.kinds.contains(kind)).map(column).collect()
            }
            Self::Classification(_) => LABEL,
            Self::ZeroShot(_) => [("labels", CellType::Texts), ("scores", CellType::Numbers)].into(),
            Self::Entities(finder) if finder.redacts() => [("redacted", CellType::Text), entities].into(),
            Self::Entities(_) => [entities].into(),
            Self::Ranking(..) => SCORE,
            Self::TextToText(.., column) => [(*column, CellType::Text)].into(),
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
            Self::Embedding(embedder) => {
                let found = embedder.run(texts.into_iter().map(Input::Text).collect(), deadline).await?;
                let cells = |text| vector_cells(embedder, text);
                Ok((found.vectors.into_iter().map(cells).collect(), found.usage))
            }
            Self::Classification(classifier) => {
                let scores = classifier.run(texts.into_iter().map(Input::Text).collect(), deadline).await?;
                let labels = shared(classifier.labels());
                let best = |scores: &Vec<f32>| {
                    let best = descending(scores)[0];
                    vec![Cell::Text(Arc::clone(&labels[best])), Cell::Number(scores[best])]
                };
                Ok((scores.rows.iter().map(best).collect(), scores.usage))
            }
            Self::ZeroShot(classifier) => {
                let scores = classifier.run(&texts, deadline).await?;
                let labels = shared(classifier.labels());
                let sorted = |scores: Vec<f32>| {
                    let order = descending(&scores);
                    let names = order.iter().map(|label| Arc::clone(&labels[*label])).collect();
                    let scores = order.iter().map(|label| scores[*label]).collect();
                    vec![Cell::Texts(names), Cell::Numbers(scores)]
                };
                Ok((scores.rows.into_iter().map(sorted).collect(), scores.usage))
            }
            Self::Entities(finder) => {
                let found = finder.run(texts, deadline).await?;
                let answer = |found| match found {
                    TextEntities::Entities(entities) => vec![Cell::Entities(entities)],
                    TextEntities::Redacted { text, entities } => {
                        vec![Cell::Text(text.into()), Cell::Entities(entities)]
                    }
                };
                Ok((found.texts.into_iter().map(answer).collect(), found.usage))
            }
            Self::Ranking(ranker, query) => {
                let (scores, usage) = ranker.run(query.clone(), texts, deadline).await?;
                Ok((scores.into_iter().map(|score| vec![Cell::Number(score)]).collect(), usage))
            }
            Self::TextToText(pipeline, options, _) => {
                let generated = pipeline.generate(texts, options, deadline).await?;
                let best = generated.texts.into_iter().map(|texts| texts.into_iter().next());
                let answer = |best: Option<GeneratedText>| {
                    vec![Cell::Text(best.map_or_else(String::new, |best| best.text).into())]
                };
                Ok((best.map(answer).collect(), generated.usage))
            }
        }
    }
}

fn vector_cells(embedder: &Embedder, text: TextVectors) -> Answer {
    let dense = text.dense.map(|vector| Cell::Vector(embedder.conversion.convert(vector)));
    let name = |id: u32| embedder.word(id).unwrap_or_else(|| id.to_string());
    let sparse = text
        .sparse
        .map(|sparse| Cell::Weights(sparse.0.into_iter().map(|(id, weight)| (name(id), weight)).collect()));
    dense.into_iter().chain(sparse).chain(text.multi_vector.map(Cell::Vectors)).collect()
}

fn shared(labels: &[String]) -> Vec<Arc<str>> {
    labels.iter().map(|label| label.as_str().into()).collect()
}

fn lacks(model: &Model, parameter: &str) -> Error {
    let Model { name, manifest, .. } = model;
    Error::invalid(format!(
        "expected {parameter} for `{name}`, which is for `{}`, but found none",
        manifest.task
    ))
}

fn count(answers: &mut Answers, usage: &Usage) {
    answers.tokens += usage.tokens as u64;
    answers.truncated += usage.truncated.len() as u64;
}

/// Whether the error has a cause other than the text.
fn is_internal(error: &Error) -> bool {
    !matches!(error, Error::Malformed { .. } | Error::Invalid { .. } | Error::TooLarge { .. })
}
