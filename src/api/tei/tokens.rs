//! TEI's `/tokenize` and `/decode`.

use std::sync::Arc;

use axum::{
    Json,
    extract::{Request, State},
    response::IntoResponse,
};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use super::Answer;
use crate::{
    api::{App, inputs, openapi::schemas, request},
    error::Error,
    model::Pipeline,
    pipeline::{
        ranking::RankingPipeline,
        translation::{RequestedLanguages, SpecialTokens},
        zero_shot::ZeroShotPipeline,
    },
    tokenizer::Token,
};

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `inputs`")]
struct TokenizeRequest {
    #[schema(schema_with = schemas::texts)]
    inputs: Value,
    model: Option<String>,
    /// Whether the model's special tokens are added.
    #[serde(default = "yes")]
    add_special_tokens: bool,
    /// The prompt that is put before each text.
    prompt_name: Option<String>,
    /// The language of the texts, for a translator whose special tokens name it.
    src_lang: Option<String>,
    /// The language of their translation, likewise.
    tgt_lang: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, ToSchema)]
#[schema(as = Token)]
struct SimpleToken {
    id: u32,
    /// The part of the text that it stands for.
    text: String,
    special: bool,
    /// The character that it begins with; none where the tokenizer added it.
    start: Option<usize>,
    stop: Option<usize>,
}

/// The tokens of texts
#[utoipa::path(
    post, path = "/tokenize", tag = "TEI",
    request_body(content = TokenizeRequest, example = json!({ "inputs": "Hello, wörld!" })),
    responses((
        status = 200, description = "A list of tokens for each text; nothing is cut.", body = Vec<Vec<SimpleToken>>,
        example = json!([[
            { "id": 101, "text": "[CLS]", "special": true, "start": null, "stop": null },
            { "id": 7592, "text": "Hello", "special": false, "start": 0, "stop": 5 }
        ]])
    ))
)]
pub(in crate::api) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Answer {
    /// The numbers in an answer that take as much room as one token does.
    const VALUES_A_TOKEN: usize = 8;
    let (body, deadline): (TokenizeRequest, _) = request::read(&app, request).await?;
    let most_tokens = app.limits.values / VALUES_A_TOKEN;
    let texts = inputs::texts("inputs", body.inputs, app.limits.texts)?;
    let model = app.model(body.model.as_deref())?;
    let prompt = match (&model.pipeline, body.prompt_name) {
        (Pipeline::Embedding(pipeline), name) => {
            pipeline.prompt(name.as_deref())?.unwrap_or_default().to_owned()
        }
        // Tasks on top of an embedding put its default prompt before texts, and no other.
        (
            Pipeline::Ranking(RankingPipeline::Embedding(pipeline))
            | Pipeline::ZeroShot(ZeroShotPipeline::Embedding(pipeline, _)),
            None,
        ) => pipeline.prompt(None)?.unwrap_or_default().to_owned(),
        (_, None) => String::new(),
        (_, Some(name)) => {
            return Err(Error::invalid(format!("unknown prompt `{name}`; `{}` has none", model.name)).into());
        }
    };
    let tokenizer = Arc::clone(model.pipeline.tokenizer());
    let translator = match &model.pipeline {
        Pipeline::Translation(pipeline) => Some(pipeline.clone()),
        _ => None,
    };
    let special = if body.add_special_tokens { SpecialTokens::Added } else { SpecialTokens::LeftOut };
    let work = move || {
        let wanted =
            RequestedLanguages { source: body.src_lang.as_deref(), target: body.tgt_lang.as_deref() };
        let (mut left, mut answer) = (most_tokens, Vec::with_capacity(texts.len()));
        let too_many = || {
            Error::too_large(format!(
                "expected an answer of at most {most_tokens} tokens, but found more; \
                 send fewer or shorter texts at once"
            ))
        };
        for text in texts {
            let text = format!("{prompt}{text}");
            // What is far too long is refused before its tokens take the memory that it would cost to count them.
            if tokenizer.exceeds(&text, left)? {
                return Err(too_many());
            }
            let tokens = match &translator {
                Some(translator) => translator.tokens(&text, special, wanted)?,
                None => tokenizer.tokens(&text, body.add_special_tokens)?,
            };
            left = left.checked_sub(tokens.len()).ok_or_else(too_many)?;
            answer.push(simple_tokens(&text, tokens));
        }
        Ok(answer)
    };
    Ok(Json(deadline.off_thread(work).await?).into_response())
}

/// Tokens with the part of the text that each stands for.
fn simple_tokens(text: &str, tokens: Vec<Token>) -> Vec<SimpleToken> {
    // Spans count characters; slicing wants bytes.
    let starts: Vec<usize> = text.char_indices().map(|(byte, _)| byte).chain([text.len()]).collect();
    let slice =
        |(start, stop): (usize, usize)| Some(text.get(*starts.get(start)?..*starts.get(stop)?)?.to_owned());
    tokens
        .into_iter()
        .map(|token| SimpleToken {
            id: token.id,
            text: token.span.and_then(slice).unwrap_or(token.text),
            special: token.special,
            start: token.span.map(|(start, _)| start),
            stop: token.span.map(|(_, stop)| stop),
        })
        .collect()
}

#[derive(Deserialize, ToSchema)]
#[serde(expecting = "an object with `ids`")]
struct DecodeRequest {
    #[schema(schema_with = schemas::id_lists)]
    ids: Value,
    model: Option<String>,
    /// Whether special tokens are left out.
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

/// The texts of token ids
#[utoipa::path(
    post, path = "/decode", tag = "TEI",
    request_body(content = DecodeRequest, example = json!({ "ids": [101, 7592, 102] })),
    responses((
        status = 200, description = "A text for each list.", body = Vec<String>, example = json!(["hello"])
    ))
)]
pub(in crate::api) async fn decode(State(app): State<Arc<App>>, request: Request) -> Answer {
    let (body, deadline): (DecodeRequest, _) = request::read(&app, request).await?;
    let lists = inputs::id_lists("ids", body.ids, app.limits.texts)?;
    let tokenizer = Arc::clone(app.model(body.model.as_deref())?.pipeline.tokenizer());
    let work = move || {
        let texts = lists.iter().map(|ids| tokenizer.decode(ids, body.skip_special_tokens));
        texts.collect::<Result<Vec<_>, Error>>()
    };
    Ok(Json(deadline.off_thread(work).await?).into_response())
}
