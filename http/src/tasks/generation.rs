//! Text generation with the model hub's body: translations, summaries and others.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{self, Context},
    response::{OneOrMany, with_usage},
};
use kivu::{
    Error, Result,
    json::{self, Content},
    json_schemas::Texts,
    pipeline::{
        Task,
        generation::GenerationOptions,
        seq2seq::{GeneratedText, Seq2SeqPipeline, Split},
    },
    task::text_to_text::TextToTextParameters,
};

/// The model hub's body for a model that generates texts.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `inputs`")]
#[schemars(rename = "GenerationRequest")]
pub struct HubGenerationRequest {
    /// The texts from which the model generates: one, or a list.
    #[schemars(with = "Texts")]
    inputs: Content,
    /// Languages and generation options, with defaults for all.
    parameters: Option<HubParameters>,
}

/// Generation options may also be here, outside of `generate_parameters`, which takes precedence.
#[derive(Default, Deserialize, Serialize, JsonSchema)]
#[serde(expecting = "an object")]
#[schemars(rename = "GenerationParameters")]
pub struct HubParameters {
    /// The source language, for translation models with several.
    src_lang: Option<String>,
    /// The target language, for translation models with several.
    tgt_lang: Option<String>,
    /// Whether spaces before punctuation are removed; false by default.
    clean_up_tokenization_spaces: Option<bool>,
    /// Whether texts above the token limit are truncated or refused.
    truncation: Option<HubTruncation>,
    /// The same, as a boolean.
    truncate: Option<bool>,
    /// Generation options, which take precedence over the same options next to it.
    generate_parameters: Option<GenerationOptions>,
}

/// The hub's truncation strategies; for a single text they amount to two.
#[derive(Clone, Copy, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(inline)]
enum HubTruncation {
    DoNotTruncate,
    LongestFirst,
    OnlyFirst,
    OnlySecond,
}

/// Refuses names in a body's `parameters` that are not supported: most of them would change the texts.
pub fn check_parameters(body: &Value) -> Result<()> {
    let Some(Value::Object(parameters)) = body.get("parameters") else {
        return Ok(());
    };
    let (own, options) = (
        json::field_names::<HubParameters>(),
        GenerationOptions::names(),
    );
    match parameters
        .keys()
        .find(|name| !own.contains(*name) && !options.contains(*name))
    {
        None => Ok(()),
        Some(name) => Err(Error::invalid(format!(
            "unknown option of the task or of `generate`: `parameters.{}`",
            name.escape_debug()
        ))
        .with_hint("leave it out")),
    }
}

/// Moves generation options among a body's parameters, where clients send them as well, into `generate_parameters`.
/// Options already in there take precedence.
fn gather(body: &mut Value) {
    const OPTIONS: &str = "generate_parameters";
    let Some(Value::Object(parameters)) = body.get_mut("parameters") else {
        return;
    };
    let known = GenerationOptions::names();
    let (mut options, mut others): (Map<_, _>, Map<_, _>) = std::mem::take(parameters)
        .into_iter()
        .partition(|(name, _)| known.contains(name));
    match others.get_mut(OPTIONS) {
        None | Some(Value::Null) if options.is_empty() => {}
        None | Some(Value::Null) => drop(others.insert(OPTIONS.to_owned(), options.into())),
        Some(Value::Object(own)) => {
            options.append(own);
            *own = options;
        }
        // Refused as `generate_parameters`.
        Some(_) => {}
    }
    *parameters = others;
}

/// Responds like the `transformers` pipeline for `task`: one object per text, or one list of objects per text if there
/// are several texts with several results.
pub async fn generate_with(
    context: &Context,
    pipeline: &Seq2SeqPipeline,
    task: Task,
    mut body: Value,
) -> ApiResult {
    gather(&mut body);
    let body: HubGenerationRequest = request::from_value(body)?;
    let is_single = body.inputs.is_text();
    let texts = inputs::texts("inputs", body.inputs, &context.texts)?;
    let parameters = body.parameters.unwrap_or_default();
    let truncation = parameters.truncation.map(|strategy| match strategy {
        HubTruncation::LongestFirst | HubTruncation::OnlyFirst => true,
        HubTruncation::DoNotTruncate | HubTruncation::OnlySecond => false,
    });
    let truncate = inputs::one_value([
        ("truncation", truncation),
        ("truncate", parameters.truncate),
    ])?;
    let split = (truncate == Some(true)).then_some(Split::Never);
    let parameters = TextToTextParameters {
        src_lang: parameters.src_lang,
        tgt_lang: parameters.tgt_lang,
        split,
        truncate,
        clean_up_tokenization_spaces: parameters.clean_up_tokenization_spaces,
        generate_parameters: parameters.generate_parameters,
    };
    let generated = parameters
        .prepare(pipeline, &context.scope())
        .run(texts, context.deadline)
        .await?;
    let field = match task {
        Task::Translation => "translation_text",
        Task::Summarization => "summary_text",
        _ => "generated_text",
    };
    let of_text = |texts: Vec<GeneratedText>| -> Vec<_> {
        texts
            .into_iter()
            .map(|text| BTreeMap::from([(field, text.text)]))
            .collect()
    };
    let mut lists: Vec<_> = generated.texts.into_iter().map(of_text).collect();
    let is_flat = is_single || lists.iter().all(|list| list.len() == 1);
    let answer = match is_flat {
        true => OneOrMany::One(lists.drain(..).flatten().collect()),
        false => OneOrMany::Many(lists),
    };
    Ok(with_usage(context, &answer, &generated.usage))
}
