//! The packages' tasks: parameters in JSON and inputs to results.

use std::str::FromStr;

use kivu::{
    Deadline, Error, Model, Result,
    pipeline::{
        Input,
        classification::scores::descending,
        embedding::{EmbeddingPipeline, vectors::StoredVector},
        seq2seq::GeneratedText,
    },
    task::{
        classification::Scores,
        entities::RestorationParameters,
        extraction::read_extraction_parameters,
        read_parameters,
        text_to_text::{TextGenerator, TextToTextParameters},
    },
};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    json::{fields, read, to_json},
    results::{Results, Token},
};

/// A task, by the name of its method.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Task {
    /// Dense vectors.
    Encode,
    /// Vectors per token.
    MultiVectors,
    /// Sparse vectors.
    Sparse,
    /// Labels with scores for each text or pair.
    Classify,
    /// The requested labels with scores for each text.
    ZeroShot,
    /// Entities for each text. With labels, the model must take labels.
    Entities,
    /// An object for each text: values by the names in the schema.
    Extract,
    /// Indexes with scores, the highest first. The first input is the query, and the others are documents.
    Rank,
    /// A translation for each text.
    Translate,
    /// A generated text for each text.
    Generate,
    /// Each text's tokens.
    Tokenize,
    /// Each text with its originals. The model does not run.
    Restore,
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::deserialize(Value::from(name))
            .map_err(|_| Error::invalid(format!("unknown task `{name}`")))
    }
}

impl Task {
    /// Whether an input may be a pair of texts.
    pub fn reads_pairs(self) -> bool {
        matches!(self, Self::Classify)
    }

    /// An input's name in errors.
    pub fn place(self, index: usize) -> String {
        match (self, index) {
            (Self::Rank, 0) => "query".to_owned(),
            (Self::Rank, _) => format!("documents[{}]", index - 1),
            _ => format!("texts[{index}]"),
        }
    }
}

/// A label with its score.
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

/// The model's name, task, limits and vectors.
pub fn describe(model: &Model) -> Result<String> {
    let pipeline = model.pipeline.embedding();
    let dimensions = pipeline.and_then(|pipeline| pipeline.dimensions(None).ok());
    let dense = pipeline.and_then(|pipeline| pipeline.settings().dense.as_ref());
    let prompts = pipeline.map(|pipeline| pipeline.settings().prompts.keys().collect::<Vec<_>>());
    let prompt = |role: &str| pipeline.and_then(|pipeline| prompt_name(pipeline, role));
    to_json(&serde_json::json!({
        "name": model.name,
        "task": model.manifest.task.to_string(),
        "max_tokens": model.pipeline.max_tokens(),
        "dimensions": dimensions,
        "labels": model.pipeline.labels(),
        "prompts": prompts,
        "tasks": pipeline.map(|pipeline| &pipeline.settings().tasks),
        "query_prompt": prompt("query"),
        "document_prompt": prompt("document"),
        "similarity": dense.map(|dense| dense.similarity),
        "digest": model.digest,
    }))
}

/// Runs a task.
pub async fn run(
    model: &Model,
    task: Task,
    inputs: Vec<Input>,
    parameters: &str,
) -> Result<Results> {
    match task {
        Task::Encode => encode(model, parameters, texts(inputs)?).await,
        Task::MultiVectors => multi_vectors(model, parameters, texts(inputs)?).await,
        Task::Sparse => sparse(model, parameters, texts(inputs)?).await,
        Task::Classify => {
            let classifier = model.classifier(&read(parameters)?)?;
            let scores = classifier.run(inputs, Deadline::none()).await?;
            json(&predictions(classifier.labels(), &scores, classifier.top))
        }
        Task::ZeroShot => {
            let texts = texts(inputs)?;
            let classifier = model.zero_shot_classifier(&read(parameters)?)?;
            let scores = classifier.run(&texts, Deadline::none()).await?;
            json(&predictions(classifier.labels(), &scores, None))
        }
        Task::Entities => entities(model, parameters, texts(inputs)?).await,
        Task::Extract => {
            let texts = texts(inputs)?;
            let extractor = model.extractor(&read_extraction_parameters(parameters)?)?;
            json(&extractor.run(texts, Deadline::none()).await?.texts)
        }
        Task::Rank => rank(model, parameters, texts(inputs)?).await,
        Task::Translate => {
            let texts = texts(inputs)?;
            generated(
                &model.translator(generation_parameters(parameters)?)?,
                texts,
            )
            .await
        }
        Task::Generate => {
            let texts = texts(inputs)?;
            generated(
                &model.text_generator(generation_parameters(parameters)?)?,
                texts,
            )
            .await
        }
        Task::Tokenize => {
            let texts = texts(inputs)?;
            let reader = model.token_reader(read(parameters)?)?;
            json(&reader.run(texts, Deadline::none()).await?)
        }
        Task::Restore => {
            let texts = texts(inputs)?;
            let parameters: RestorationParameters = read(parameters)?;
            json(&parameters.restore(&texts, usize::MAX)?)
        }
    }
}

/// The texts of a task without pairs.
fn texts(inputs: Vec<Input>) -> Result<Vec<String>> {
    let text = |input| match input {
        Input::Text(text) => Ok(text),
        _ => Err(Error::invalid("expected texts, but found a pair")),
    };
    inputs.into_iter().map(text).collect()
}

fn inputs(texts: Vec<String>) -> Vec<Input> {
    texts.into_iter().map(Input::Text).collect()
}

async fn encode(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Results> {
    let embedder = model.embedder(&read(parameters)?)?;
    let found = embedder.run(inputs(texts), Deadline::none()).await?;
    let dense = found.vectors.into_iter().filter_map(|text| text.dense);
    let rows: Vec<_> = dense
        .map(|vector| embedder.conversion.convert(vector))
        .collect();
    Ok(Results::Vectors {
        counts: vec![1; rows.len()],
        rows,
    })
}

async fn multi_vectors(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Results> {
    let embedder = model.token_embedder(&read(parameters)?)?;
    let found = embedder.run(inputs(texts), Deadline::none()).await?.vectors;
    Ok(Results::Vectors {
        counts: found.iter().map(|text| text.len() as u32).collect(),
        rows: found
            .into_iter()
            .flatten()
            .map(StoredVector::Float)
            .collect(),
    })
}

async fn sparse(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Results> {
    let embedder = model.embedder(&read(parameters)?)?;
    let found = embedder.run(inputs(texts), Deadline::none()).await?;
    let token = |(id, weight)| (embedder.word(id).map_or(Token::Id(id), Token::Word), weight);
    let weights = found.vectors.into_iter().filter_map(|text| text.sparse);
    Ok(Results::Sparse(
        weights
            .map(|sparse| sparse.0.into_iter().map(token).collect())
            .collect(),
    ))
}

async fn entities(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Results> {
    let fields = fields(parameters)?;
    let has_labels = fields.contains_key("labels");
    let others: &[&str] = match has_labels {
        true => &["aggregation_strategy", "transition_biases"],
        false => &["threshold"],
    };
    if let Some(name) = others.iter().find(|name| fields.contains_key(**name)) {
        let with = if has_labels { "without" } else { "with" };
        return Err(
            Error::invalid(format!("`{name}` has an effect only {with} `labels`"))
                .with_hint("leave it out"),
        );
    }
    let finder = if has_labels {
        model.labelled_entity_finder(&read_parameters(fields)?)?
    } else {
        model.entity_finder(&read_parameters(fields)?)?
    };
    json(&finder.run(texts, Deadline::none()).await?.texts)
}

async fn rank(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Results> {
    let mut texts = texts.into_iter();
    let query = texts
        .next()
        .ok_or_else(|| Error::invalid("expected a query, but found no text"))?;
    let Top { top_k } = read(parameters)?;
    if top_k == Some(0) {
        return Err(Error::invalid("expected `top_k` above 0, but found 0"));
    }
    let ranker = model.ranker(&read(parameters)?)?;
    let (scores, _) = ranker.run(query, texts.collect(), Deadline::none()).await?;
    let order = descending(&scores)
        .into_iter()
        .take(top_k.unwrap_or(usize::MAX));
    let ranks: Vec<_> = order
        .map(|index| Ranked {
            index,
            score: scores[index],
        })
        .collect();
    json(&ranks)
}

/// Parameters for one generated text for each text.
fn generation_parameters(parameters: &str) -> Result<TextToTextParameters> {
    let parameters: TextToTextParameters = read(parameters)?;
    let count = parameters
        .generate_parameters
        .as_ref()
        .and_then(|options| options.num_return_sequences);
    match count.filter(|count| *count > 1) {
        None => Ok(parameters),
        Some(count) => Err(Error::invalid(format!(
            "`num_return_sequences` {count} is not supported: each text has one result here"
        ))
        .with_hint("leave it out")),
    }
}

/// The best text for each text; empty if generation was asked for none.
async fn generated(generator: &TextGenerator, texts: Vec<String>) -> Result<Results> {
    let found = generator.run(texts, Deadline::none()).await?;
    let best = |texts: Vec<GeneratedText>| {
        texts
            .into_iter()
            .next()
            .map(|best| best.text)
            .unwrap_or_default()
    };
    json(&found.texts.into_iter().map(best).collect::<Vec<_>>())
}

fn predictions<'a>(
    labels: &'a [String],
    scores: &Scores,
    top: Option<usize>,
) -> Vec<Vec<Prediction<'a>>> {
    let of_text = |row: &Vec<f32>| {
        let best = descending(row).into_iter().take(top.unwrap_or(usize::MAX));
        best.map(|label| Prediction {
            label: &labels[label],
            score: row[label],
        })
        .collect()
    };
    scores.rows.iter().map(of_text).collect()
}

/// The model's prompt for a role, if it has one.
fn prompt_name(pipeline: &EmbeddingPipeline, role: &str) -> Option<String> {
    pipeline.prompt_name(role).ok().flatten().map(str::to_owned)
}

fn json(value: &impl Serialize) -> Result<Results> {
    to_json(value).map(Results::Json)
}
