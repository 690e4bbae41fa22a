//! Texts to answers, by whatever task the model is for; one text that cannot be answered keeps no other from it.

use std::{sync::Arc, time::Duration};

use super::{
    parameters::Parameters,
    rows::{ErrorKind, Outcome, RowError},
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    model::{Model, Pipeline},
    pipeline::{
        Input, Usage,
        embedding::EmbeddingOptions,
        generation::GenerationOptions,
        ranking::RankingOptions,
        scores::descending,
        translation::{RequestedLanguages, TranslationOptions},
        zero_shot::{Labels, TEMPLATE, Template, ZeroShotOptions},
    },
    tokenizer::{Side, Truncation},
};

/// The longest that rows which are read together may take; a job as a whole takes as long as it takes.
const PATIENCE: Duration = Duration::from_secs(600);
/// The most labels of zero-shot classification, each of which costs a run of the model for every row.
const MOST_LABELS: usize = 100;

/// What a model says of a text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Embedding(Vec<f32>),
    Label {
        label: Arc<str>,
        score: f32,
    },
    /// Best first.
    Labels {
        labels: Vec<Arc<str>>,
        scores: Vec<f32>,
    },
    Score(f32),
    Translation(String),
}

/// The kinds of answers, each with columns of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Embedding,
    Label,
    Labels,
    Score,
    Translation,
}

impl Kind {
    /// The columns that are added to a row; one for errors comes behind them.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Embedding => &["embedding"],
            Self::Label => &["label", "score"],
            Self::Labels => &["labels", "scores"],
            Self::Score => &["score"],
            Self::Translation => &["translation"],
        }
    }
}

/// A model, and what is asked of it.
#[derive(Clone, Debug)]
pub(super) struct Answerer {
    pub(super) model: Model,
    task: Task,
}

#[derive(Clone, Debug)]
enum Task {
    Embedding(EmbeddingOptions),
    Classification { truncation: Truncation, labels: Vec<Arc<str>> },
    ZeroShot { options: ZeroShotOptions, labels: Vec<Arc<str>> },
    Ranking { query: String, options: RankingOptions },
    Translation(Box<TranslationOptions>),
}

/// Answers, and what was done to get them.
#[derive(Debug, Default)]
pub(super) struct Answers {
    pub(super) outcomes: Vec<Outcome>,
    pub(super) tokens: u64,
    pub(super) truncated: u64,
}

impl Answerer {
    /// Checks what is asked for against what the model can do.
    pub(super) fn new(model: Model, parameters: &Parameters) -> Result<Self> {
        let truncation = match parameters.truncate {
            Some(false) => Truncation::Off,
            _ => Truncation::At(Side::Right),
        };
        let shared = |labels: &[String]| labels.iter().map(|label| label.as_str().into()).collect();
        let task = match &model.pipeline {
            Pipeline::Embedding(pipeline) => {
                pipeline.prompt(parameters.prompt.as_deref())?;
                pipeline.check_dimensions(parameters.dimensions)?;
                Task::Embedding(EmbeddingOptions {
                    truncation,
                    normalize: parameters.normalize,
                    prompt_name: parameters.prompt.clone(),
                    dimensions: parameters.dimensions,
                    max_values: usize::MAX,
                })
            }
            Pipeline::Classification(pipeline) => {
                Task::Classification { truncation, labels: shared(&pipeline.settings().labels) }
            }
            Pipeline::ZeroShot(_) => {
                if parameters.labels.is_empty() {
                    return Err(Error::invalid(format!(
                        "expected `labels` for `{}`, which is for `{}`, but found none",
                        model.name, model.manifest.task
                    )));
                }
                let template = parameters.template.clone().unwrap_or_else(|| TEMPLATE.to_owned());
                let labels = Labels::new(parameters.labels.clone(), MOST_LABELS)?;
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
                Task::Translation(Box::new(TranslationOptions {
                    source: source.clone(),
                    target: target.clone(),
                    split: None,
                    truncate: parameters.truncate.unwrap_or(true),
                    clean_up_spaces: false,
                    generation: GenerationOptions::default(),
                    max_sentences: usize::MAX,
                }))
            }
        };
        Ok(Self { model, task })
    }

    /// What kind of answers come.
    pub(super) fn kind(&self) -> Kind {
        match self.task {
            Task::Embedding(_) => Kind::Embedding,
            Task::Classification { .. } => Kind::Label,
            Task::ZeroShot { .. } => Kind::Labels,
            Task::Ranking { .. } => Kind::Score,
            Task::Translation(_) => Kind::Translation,
        }
    }

    /// Answers each text, or says why not.
    ///
    /// Where the model fails for every one of several texts the fault is not theirs: that is an error.
    pub(super) async fn answer(&self, texts: Vec<std::result::Result<String, RowError>>) -> Result<Answers> {
        let mut answers = Answers::default();
        let (mut good, mut places) = (Vec::new(), Vec::new());
        for (place, text) in texts.into_iter().enumerate() {
            answers.outcomes.push(match text {
                // Spaces alone are a text, as they are over HTTP.
                Ok(text) if text.is_empty() => Err(RowError {
                    kind: ErrorKind::Text,
                    message: "expected a text, but found an empty one".into(),
                }),
                Ok(text) => {
                    good.push(text);
                    places.push(place);
                    // Replaced below.
                    Ok(Answer::Score(0.0))
                }
                Err(error) => Err(error),
            });
        }
        if good.is_empty() {
            return Ok(answers);
        }
        // Boxed: the tasks' futures are deep, and this one is part of deeper ones.
        match Box::pin(self.ask(good.clone())).await {
            Ok((found, usage)) => {
                answers.count(&usage);
                for (place, answer) in places.into_iter().zip(found) {
                    answers.outcomes[place] = Ok(answer);
                }
            }
            Err(error) if good.len() == 1 && !is_ours(&error) => {
                answers.outcomes[places[0]] =
                    Err(RowError { kind: ErrorKind::Input, message: error.to_string() });
            }
            Err(_) => self.answer_singly(good, &places, &mut answers).await?,
        }
        Ok(answers)
    }

    async fn answer_singly(&self, texts: Vec<String>, places: &[usize], answers: &mut Answers) -> Result<()> {
        let mut failed = 0;
        for (text, place) in texts.into_iter().zip(places) {
            answers.outcomes[*place] = match Box::pin(self.ask(vec![text])).await {
                Ok((mut found, usage)) => {
                    answers.count(&usage);
                    found.pop().ok_or_else(|| RowError {
                        kind: ErrorKind::Model,
                        message: "expected an answer, but the model gave none".into(),
                    })
                }
                Err(error) if is_ours(&error) => {
                    failed += 1;
                    if failed == places.len() {
                        return Err(error);
                    }
                    Err(RowError { kind: ErrorKind::Model, message: error.to_string() })
                }
                Err(error) => Err(RowError { kind: ErrorKind::Input, message: error.to_string() }),
            };
        }
        Ok(())
    }

    async fn ask(&self, texts: Vec<String>) -> Result<(Vec<Answer>, Usage)> {
        let deadline = Deadline::within(PATIENCE);
        match (&self.model.pipeline, &self.task) {
            (Pipeline::Embedding(pipeline), Task::Embedding(options)) => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let embeddings = pipeline.embed(inputs, options, deadline).await?;
                Ok((embeddings.vectors.into_iter().map(Answer::Embedding).collect(), embeddings.usage))
            }
            (Pipeline::Classification(pipeline), Task::Classification { truncation, labels }) => {
                let inputs = texts.into_iter().map(Input::Text).collect();
                let logits = pipeline.logits(inputs, (*truncation).into(), deadline).await?;
                let function = pipeline.settings().function;
                let best = |row: &Vec<f32>| {
                    let scores = function.apply(row);
                    let best = descending(&scores)[0];
                    Answer::Label { label: Arc::clone(&labels[best]), score: scores[best] }
                };
                Ok((logits.rows.iter().map(best).collect(), logits.usage))
            }
            (Pipeline::ZeroShot(pipeline), Task::ZeroShot { options, labels }) => {
                let (rows, usage) = pipeline.score(&texts, options, deadline).await?;
                let sorted = |scores: Vec<f32>| {
                    let order = descending(&scores);
                    let names = order.iter().map(|label| Arc::clone(&labels[*label])).collect();
                    Answer::Labels {
                        labels: names,
                        scores: order.iter().map(|label| scores[*label]).collect(),
                    }
                };
                Ok((rows.into_iter().map(sorted).collect(), usage))
            }
            (Pipeline::Ranking(pipeline), Task::Ranking { query, options }) => {
                let (scores, usage) = pipeline.score(query.clone(), texts, *options, deadline).await?;
                Ok((scores.into_iter().map(Answer::Score).collect(), usage))
            }
            (Pipeline::Translation(pipeline), Task::Translation(options)) => {
                let translations = pipeline.translate(texts, options, deadline).await?;
                let best = translations.texts.into_iter().map(|best_first| best_first.into_iter().next());
                let answer =
                    best.map(|best| Answer::Translation(best.map_or_else(String::new, |best| best.text)));
                Ok((answer.collect(), translations.usage))
            }
            _ => Err(Error::inference_because(
                "the task is not that of the model",
                "it was another when the job began",
            )),
        }
    }
}

impl Answers {
    fn count(&mut self, usage: &Usage) {
        self.tokens += usage.tokens as u64;
        self.truncated += usage.truncated.len() as u64;
    }
}

/// Whether an error is not the text's fault.
fn is_ours(error: &Error) -> bool {
    !matches!(error, Error::Malformed { .. } | Error::Invalid { .. } | Error::TooLarge { .. })
}
