//! TEI's `/tokenize` and `/decode`.

use std::sync::Arc;

use axum::Json;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{inputs, rejection::Reply, request::Call};
use crate::{
    error::Error,
    json::Content,
    json_schemas::{Texts, TokenIdLists},
    pipeline::seq2seq::{RequestedLanguages, SpecialTokens},
    tokenizer::Token,
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub(super) struct TokenizeRequest {
    #[schemars(with = "Texts")]
    inputs: Content,
    model: Option<String>,
    /// Whether the model's special tokens are added; true by default.
    #[serde(default = "yes")]
    add_special_tokens: bool,
    /// Prompt to put before each text, by name.
    prompt_name: Option<String>,
    /// The source language, for translation models with a special token for it.
    src_lang: Option<String>,
    /// The target language, for translation models with a special token for it.
    tgt_lang: Option<String>,
}

fn yes() -> bool {
    true
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Token")]
pub(super) struct SimpleToken {
    id: u32,
    /// The text that the token represents.
    text: String,
    special: bool,
    /// Its first character's position; `null` for added special tokens.
    start: Option<usize>,
    /// The position after its last character.
    stop: Option<usize>,
}

pub(super) async fn tokenize(
    Call(context, body): Call<TokenizeRequest>,
) -> Reply<Json<Vec<Vec<SimpleToken>>>> {
    /// Response numbers that take as much memory as a token.
    const VALUES_PER_TOKEN: usize = 8;
    let app = &context.app;
    let max_tokens = app.limits.values / VALUES_PER_TOKEN;
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let model = context.model(body.model.as_deref()).await?;
    let name = body.prompt_name.or_else(|| app.named_prompt(body.model.as_deref()));
    let prompt = match (model.pipeline.embedding(), name) {
        (Some(pipeline), name) => pipeline.prompt(name.as_deref())?,
        // Tasks that use an embedding model apply its default prompt only.
        (None, None) => match model.pipeline.embedding_of_any_task() {
            Some(pipeline) => pipeline.prompt(None)?,
            None => None,
        },
        (None, Some(name)) => {
            return Err(Error::invalid(format!("unknown prompt `{name}`; `{}` has none", model.name)).into());
        }
    };
    let prompt = prompt.unwrap_or_default().to_owned();
    let tokenizer = Arc::clone(model.pipeline.tokenizer());
    let generator = model.pipeline.generator().cloned();
    let special = if body.add_special_tokens { SpecialTokens::Added } else { SpecialTokens::LeftOut };
    let work = move || {
        let wanted =
            RequestedLanguages { source: body.src_lang.as_deref(), target: body.tgt_lang.as_deref() };
        let (mut left, mut answer) = (max_tokens, Vec::with_capacity(texts.len()));
        let too_many = || {
            Error::too_large(format!(
                "expected a response of at most {max_tokens} tokens, but found more; \
                 send fewer or shorter texts at once"
            ))
        };
        for text in texts {
            let text = format!("{prompt}{text}");
            // Far too long texts are rejected before their tokens take up memory.
            if tokenizer.exceeds(&text, left)? {
                return Err(too_many());
            }
            let tokens = match &generator {
                Some(generator) => generator.tokens(&text, special, wanted)?,
                None => tokenizer.tokens(&text, body.add_special_tokens)?,
            };
            left = left.checked_sub(tokens.len()).ok_or_else(too_many)?;
            answer.push(simple_tokens(&text, tokens));
        }
        Ok(answer)
    };
    Ok(Json(context.deadline.off_thread(work).await?))
}

/// Tokens with their text parts.
fn simple_tokens(text: &str, tokens: Vec<Token>) -> Vec<SimpleToken> {
    // Spans are in characters, slices in bytes.
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

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `ids`")]
pub(super) struct DecodeRequest {
    #[schemars(with = "TokenIdLists")]
    ids: Content,
    model: Option<String>,
    /// Whether special tokens are omitted; true by default.
    #[serde(default = "yes")]
    skip_special_tokens: bool,
}

pub(super) async fn decode(Call(context, body): Call<DecodeRequest>) -> Reply<Json<Vec<String>>> {
    let lists = inputs::id_lists("ids", body.ids, &context.texts)?;
    let tokenizer = Arc::clone(context.model(body.model.as_deref()).await?.pipeline.tokenizer());
    let work = move || {
        let texts = lists.iter().map(|ids| tokenizer.decode(ids, body.skip_special_tokens));
        texts.collect::<Result<Vec<_>, Error>>()
    };
    Ok(Json(context.deadline.off_thread(work).await?))
}
