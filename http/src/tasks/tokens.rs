//! TEI's `/tokenize` and `/decode`.

use std::sync::Arc;

use axum::Json;
use schemars::JsonSchema;
use serde::Deserialize;

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{Context, JsonRequest, RequestBody},
};
use kivu::{
    Error,
    json::{Content, flattened},
    json_schemas::{Texts, TokenIdLists},
    task::tokens::{TextToken, TokenParameters},
};

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
pub struct TokenizeRequest {
    /// The texts to tokenize: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// Model name; the default is the first model.
    model: Option<String>,
    #[serde(flatten, deserialize_with = "flattened")]
    parameters: TokenParameters,
}

impl RequestBody for TokenizeRequest {
    const FIELDS: &str = "body.tokenize";
}

/// Tokens in a request or a response: each takes as much memory as several numbers.
fn max_tokens(context: &Context) -> usize {
    const VALUES_PER_TOKEN: usize = 8;
    context.app.limits.values / VALUES_PER_TOKEN
}

pub async fn tokenize(
    JsonRequest(context, body): JsonRequest<TokenizeRequest>,
) -> ApiResult<Json<Vec<Vec<TextToken>>>> {
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let model = context.model(body.model.as_deref()).await?;
    let mut parameters = body.parameters;
    parameters.prompt_name = inputs::one_role([
        ("prompt_name", parameters.prompt_name),
        ("model", context.models.named_prompt(body.model.as_deref())),
    ])?;
    let reader = model
        .token_reader(parameters)?
        .with_max_tokens(max_tokens(&context));
    Ok(Json(reader.run(texts, context.deadline).await?))
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `ids`")]
pub struct DecodeRequest {
    /// A text's token ids, or a list of such lists.
    #[schemars(with = "TokenIdLists")]
    ids: Content,
    /// Model name; the default is the first model.
    model: Option<String>,
    /// Whether special tokens are omitted; true by default.
    skip_special_tokens: Option<bool>,
}

impl RequestBody for DecodeRequest {
    const FIELDS: &str = "body.decode";
}

pub async fn decode(
    JsonRequest(context, body): JsonRequest<DecodeRequest>,
) -> ApiResult<Json<Vec<String>>> {
    let lists = inputs::id_lists("ids", body.ids, &context.texts)?;
    let (found, max) = (
        lists.iter().map(Vec::len).sum::<usize>(),
        max_tokens(&context),
    );
    if found > max {
        return Err(Error::too_large(format!(
            "expected at most {max} token ids, but found {found}"
        ))
        .into());
    }
    let tokenizer = Arc::clone(
        context
            .model(body.model.as_deref())
            .await?
            .pipeline
            .target_tokenizer(),
    );
    let skips = body.skip_special_tokens.unwrap_or(true);
    let work = move || {
        let texts = lists.iter().map(|ids| tokenizer.decode(ids, skips));
        texts.collect::<Result<Vec<_>, Error>>()
    };
    Ok(Json(context.deadline.off_thread(work).await?))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::scripted::ask;

    #[tokio::test]
    async fn null_is_a_missing_option() {
        for (path, body, option) in [
            (
                "/tokenize",
                json!({ "inputs": "cat" }),
                "add_special_tokens",
            ),
            ("/decode", json!({ "ids": [7] }), "skip_special_tokens"),
        ] {
            let mut with_null = body.clone();
            with_null[option] = json!(null);
            assert_eq!(ask(path, &with_null).await, ask(path, &body).await);
        }
    }

    #[tokio::test]
    async fn languages_are_for_translation_models() {
        let mut found = Vec::new();
        for (model, field) in [
            ("embedding", "src_lang"),
            ("classification", "tgt_lang"),
            ("translation", "src_lang"),
        ] {
            let body = json!({ "model": model, "inputs": "cat", field: "en" });
            let (status, answer) = ask("/tokenize", &body).await;
            found.push(format!("{} {}", status.as_u16(), answer["error"]));
        }
        insta::assert_snapshot!(found.join("\n"), @r#"
        422 "expected a translation model for `src_lang`, but `embedding` is for `feature-extraction`; leave it out"
        422 "expected a translation model for `tgt_lang`, but `classification` is for `text-classification`; leave it out"
        200 null
        "#);
    }
}
