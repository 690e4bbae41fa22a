//! TEI's `/embed`, `/embed_all` and `/similarity`.

use serde::Deserialize;
use serde_json::Value;

use super::{
    app::App,
    inputs,
    rejection::Reply,
    request::{self, Call, Context, model_name},
    response::{characters, with_usage},
    vectors::{EncodingFormat, Form},
};
use crate::{
    error::{Error, Result},
    pipeline::{
        Input,
        embedding::{EmbeddingOptions, EmbeddingPipeline},
        pooling::cosine,
        vectors::VectorType,
    },
    tokenizer::Side,
};

#[derive(Debug, Default, Deserialize)]
#[serde(expecting = "an object")]
pub(super) struct EmbedOptions {
    /// The name of the model; by default the first embedding model.
    model: Option<String>,
    /// Whether texts beyond the model's limit are truncated; otherwise they are rejected.
    truncate: Option<bool>,
    /// The end of the text that is removed.
    truncation_direction: Option<Side>,
    /// The name of a prompt to put before each text; token ids get none.
    prompt_name: Option<String>,
    /// Whether vectors are scaled to length 1; true by default.
    normalize: Option<bool>,
    /// The number of leading values to keep of each vector.
    dimensions: Option<usize>,
    /// `float` by default; also the names of types, as in `output_dtype`.
    encoding_format: Option<EncodingFormat>,
    /// The type of the values; `float` by default.
    output_dtype: Option<VectorType>,
}

impl EmbedOptions {
    fn form(&self, pipeline: &EmbeddingPipeline) -> Result<Form> {
        Form::new(pipeline, self.encoding_format, self.output_dtype, self.dimensions, self.normalize)
    }

    /// TEI normalizes by default, whatever the model's own settings. `model` is the name that selects the model.
    fn resolve(self, app: &App, model: Option<&str>) -> EmbeddingOptions {
        EmbeddingOptions {
            truncation: app.truncation(self.truncate, self.truncation_direction),
            normalize: Some(self.normalize.unwrap_or(true)),
            prompt_name: self.prompt_name.or_else(|| app.named_prompt(model)),
            dimensions: self.dimensions,
            max_values: app.limits.values,
        }
    }
}

/// The inputs of a body, their characters, and the options.
fn parse(app: &App, mut body: Value) -> Result<(Vec<Input>, usize, EmbedOptions)> {
    let inputs = body.as_object_mut().and_then(|body| body.remove("inputs"));
    let inputs = inputs.ok_or_else(|| Error::invalid("expected an object with `inputs`, but found none"))?;
    let options: EmbedOptions = request::from_value(body)?;
    let inputs = inputs::read("inputs", inputs, app.limits.texts)?;
    let characters = characters(inputs.iter().flat_map(Input::texts));
    Ok((inputs, characters, options))
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct SimilarityRequest {
    inputs: SimilarityInputs,
    /// The name of the model; by default the first embedding model.
    model: Option<String>,
    #[serde(default, deserialize_with = "request::object")]
    parameters: Option<EmbedOptions>,
}

impl SimilarityRequest {
    pub(super) fn model(&self) -> Option<&str> {
        let parameters = self.parameters.as_ref();
        self.model.as_deref().or_else(|| parameters?.model.as_deref())
    }
}

#[derive(Deserialize)]
#[serde(expecting = "an object with `source_sentence` and `sentences`")]
struct SimilarityInputs {
    /// The text that the others are compared with.
    source_sentence: Value,
    sentences: Value,
}

/// Embed texts
pub(super) async fn embed(Call(context, body): Call<Value>) -> Reply {
    let name = model_name(&body).map(str::to_owned);
    let (_, pipeline) = context.app.embedding(name.as_deref())?;
    embed_with(&context, pipeline, name.as_deref(), body).await
}

/// Embeds with the model that `name` selects.
pub(super) async fn embed_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: Value,
) -> Reply {
    let (inputs, characters, options) = parse(&context.app, body)?;
    let form = options.form(pipeline)?;
    let options = options.resolve(&context.app, name);
    let embeddings = pipeline.embed(inputs, &options, context.deadline).await?;
    let vectors: Vec<_> = embeddings.vectors.into_iter().map(|vector| form.apply(vector)).collect();
    Ok(with_usage(context, &vectors, &embeddings.usage, characters))
}

/// Embed each token
pub(super) async fn embed_all(Call(context, body): Call<Value>) -> Reply {
    let name = model_name(&body).map(str::to_owned);
    let (_, pipeline) = context.app.embedding(name.as_deref())?;
    let (inputs, characters, options) = parse(&context.app, body)?;
    let options = options.resolve(&context.app, name.as_deref());
    let embeddings = pipeline.embed_all(inputs, &options, context.deadline).await?;
    Ok(with_usage(&context, &embeddings.vectors, &embeddings.usage, characters))
}

/// Compare sentences with a source sentence
pub(super) async fn similarity(Call(context, body): Call<SimilarityRequest>) -> Reply {
    let (_, pipeline) = context.app.embedding(body.model())?;
    let name = body.model().map(str::to_owned);
    similarity_with(&context, pipeline, name.as_deref(), body).await
}

pub(super) async fn similarity_with(
    context: &Context,
    pipeline: &EmbeddingPipeline,
    name: Option<&str>,
    body: SimilarityRequest,
) -> Reply {
    let app = &context.app;
    // The source sentence is one of the texts of the request.
    let limit = app.limits.texts.saturating_sub(1).max(1);
    let mut texts = inputs::texts("inputs.source_sentence", body.inputs.source_sentence, 1)?;
    texts.extend(inputs::texts("inputs.sentences", body.inputs.sentences, limit)?);
    let characters = characters(texts.iter().map(String::as_str));
    let inputs = texts.into_iter().map(Input::Text).collect();
    let options = body.parameters.unwrap_or_default().resolve(app, name);
    let embeddings = pipeline.embed(inputs, &options, context.deadline).await?;
    let (source, sentences) = embeddings.vectors.split_at(1);
    let similarities: Vec<f32> = sentences.iter().map(|sentence| cosine(&source[0], sentence)).collect();
    Ok(with_usage(context, &similarities, &embeddings.usage, characters))
}
