//! A function per task: parameters in JSON, texts, and results as the packages pass them on. Results without vectors
//! are JSON, equal to the server's responses.

use kivu::{
    Deadline, Error, Model, Result,
    pipeline::{
        Input,
        classification::scores::descending,
        embedding::{EmbeddingPipeline, vectors::StoredVector},
        seq2seq::GeneratedText,
    },
    task::{
        classification::{ClassificationParameters, Scores, ZeroShotParameters},
        embedding::EmbeddingParameters,
        entities::{TokenClassificationParameters, ZeroShotEntitiesParameters},
        extraction::read_extraction_parameters,
        ranking::RankingParameters,
        read_parameters,
        text_to_text::{TextGenerator, TextToTextParameters},
        tokens::TokenParameters,
    },
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value, json};

/// A sparse vector: weights by token, by ascending token id.
pub type Weights = Vec<(Token, f32)>;

/// A token in a sparse vector.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub enum Token {
    /// A token's id.
    Id(u32),
    /// A token's word, if words are requested and it has one.
    Word(String),
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
    to_json(&json!({
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

/// Dense vectors.
pub async fn encode(
    model: &Model,
    parameters: &str,
    texts: Vec<String>,
) -> Result<Vec<StoredVector>> {
    let parameters: EmbeddingParameters = read(parameters)?;
    let embedder = model.embedder(&parameters)?;
    let found = embedder
        .run(
            texts.into_iter().map(Input::Text).collect(),
            Deadline::none(),
        )
        .await?;
    let dense = found.vectors.into_iter().filter_map(|text| text.dense);
    Ok(dense
        .map(|vector| embedder.conversion.convert(vector))
        .collect())
}

/// Vectors per token.
pub async fn multi_vectors(
    model: &Model,
    parameters: &str,
    texts: Vec<String>,
) -> Result<Vec<Vec<Vec<f32>>>> {
    let parameters: EmbeddingParameters = read(parameters)?;
    let embedder = model.token_embedder(&parameters)?;
    let texts = texts.into_iter().map(Input::Text).collect();
    Ok(embedder.run(texts, Deadline::none()).await?.vectors)
}

/// Sparse vectors.
pub async fn sparse(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Vec<Weights>> {
    let parameters: EmbeddingParameters = read(parameters)?;
    let embedder = model.embedder(&parameters)?;
    let texts = texts.into_iter().map(Input::Text).collect();
    let found = embedder.run(texts, Deadline::none()).await?;
    let token = |(id, weight)| (embedder.word(id).map_or(Token::Id(id), Token::Word), weight);
    let weights = found.vectors.into_iter().filter_map(|text| text.sparse);
    Ok(weights
        .map(|sparse| sparse.0.into_iter().map(token).collect())
        .collect())
}

/// Labels with scores for each text or pair.
pub async fn classify(model: &Model, parameters: &str, inputs: Vec<Input>) -> Result<String> {
    let parameters: ClassificationParameters = read(parameters)?;
    let classifier = model.classifier(&parameters)?;
    let scores = classifier.run(inputs, Deadline::none()).await?;
    to_json(&predictions(classifier.labels(), &scores, classifier.top))
}

/// The requested labels with scores for each text.
pub async fn zero_shot(model: &Model, parameters: &str, texts: Vec<String>) -> Result<String> {
    let parameters: ZeroShotParameters = read(parameters)?;
    let classifier = model.zero_shot_classifier(&parameters)?;
    let scores = classifier.run(&texts, Deadline::none()).await?;
    to_json(&predictions(classifier.labels(), &scores, None))
}

/// Entities for each text. With labels, the model must take labels.
pub async fn entities(model: &Model, parameters: &str, texts: Vec<String>) -> Result<String> {
    let fields = fields(parameters)?;
    let finder = if fields.contains_key("labels") {
        let parameters: ZeroShotEntitiesParameters = read_parameters(fields)?;
        model.labelled_entity_finder(&parameters)?
    } else {
        let parameters: TokenClassificationParameters = read_parameters(fields)?;
        model.entity_finder(&parameters)?
    };
    to_json(&finder.run(texts, Deadline::none()).await?.texts)
}

/// An object for each text: values by the names in the schema.
pub async fn extract(model: &Model, parameters: &str, texts: Vec<String>) -> Result<String> {
    let extractor = model.extractor(&read_extraction_parameters(parameters)?)?;
    to_json(&extractor.run(texts, Deadline::none()).await?.texts)
}

/// Indexes with scores, the highest first.
pub async fn rank(
    model: &Model,
    parameters: &str,
    query: String,
    documents: Vec<String>,
) -> Result<String> {
    let Top { top_k } = read(parameters)?;
    if top_k == Some(0) {
        return Err(Error::invalid("expected `top_k` above 0, but found 0"));
    }
    let parameters: RankingParameters = read(parameters)?;
    let ranker = model.ranker(&parameters)?;
    let (scores, _) = ranker.run(query, documents, Deadline::none()).await?;
    let order = descending(&scores)
        .into_iter()
        .take(top_k.unwrap_or(usize::MAX));
    let ranks: Vec<_> = order
        .map(|index| Ranked {
            index,
            score: scores[index],
        })
        .collect();
    to_json(&ranks)
}

/// A translation for each text.
pub async fn translate(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Vec<String>> {
    let parameters = generation_parameters(parameters)?;
    generated(&model.translator(parameters)?, texts).await
}

/// A generated text for each text.
pub async fn generate(model: &Model, parameters: &str, texts: Vec<String>) -> Result<Vec<String>> {
    let parameters = generation_parameters(parameters)?;
    generated(&model.text_generator(parameters)?, texts).await
}

/// Each text's tokens.
pub async fn tokenize(model: &Model, parameters: &str, texts: Vec<String>) -> Result<String> {
    let parameters: TokenParameters = read(parameters)?;
    to_json(
        &model
            .token_reader(parameters)?
            .run(texts, Deadline::none())
            .await?,
    )
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
            "expected one text for each text, but found `num_return_sequences` {count}"
        ))
        .with_hint("leave it out")),
    }
}

/// The best text for each text; empty if generation was asked for none.
async fn generated(generator: &TextGenerator, texts: Vec<String>) -> Result<Vec<String>> {
    let found = generator.run(texts, Deadline::none()).await?;
    let best = |texts: Vec<GeneratedText>| {
        texts
            .into_iter()
            .next()
            .map(|best| best.text)
            .unwrap_or_default()
    };
    Ok(found.texts.into_iter().map(best).collect())
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

fn fields(parameters: &str) -> Result<Map<String, Value>> {
    serde_json::from_str(parameters).map_err(|error| Error::invalid(error.to_string()))
}

/// Reads parameters from JSON; errors name the parameter.
pub fn read<T: DeserializeOwned>(parameters: &str) -> Result<T> {
    read_parameters(fields(parameters)?)
}

/// Writes results.
pub fn to_json(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value)
        .map_err(|error| Error::inference_because("cannot write the results", error))
}
