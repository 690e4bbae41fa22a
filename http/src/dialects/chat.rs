//! NVIDIA's `/v1/chat/completions` for models that find personal data: a text's entities as an assistant's message. No
//! text is generated.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bodies::{
    inputs,
    rejection::ApiResult,
    request::{Context, JsonRequest, RequestBody},
    response::with_usage,
};
use kivu::{
    Error, Result, clock,
    error::quoted,
    json::Content,
    model::Pipeline,
    pipeline::{
        Task, Usage,
        entities::{Entity, IndexedText, zero_shot_entities::THRESHOLD},
    },
    repository::{Manifest, TaskSettings},
    task::{
        TruncationParameters,
        entities::{
            EntityFinder, RedactionParameters, TokenClassificationParameters,
            ZeroShotEntitiesParameters,
        },
        labels::LabelList,
    },
};

/// Labels if a request has none: those that NVIDIA's service has by default.
const DEFAULT_LABELS: &str = include_str!("chat-labels.txt").trim_ascii_end();
/// Windows share at most this many words, or tokens, like NVIDIA's by default.
const MAX_STRIDE: usize = 128;

/// A chat request, whose last user message is the text in which entities are found.
#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `messages`")]
pub struct ChatRequest {
    /// Model name; the default is the first model that finds entities.
    model: Option<String>,
    /// The messages; only the last one with the role `user` is read.
    #[schemars(length(min = 1))]
    messages: Vec<ChatMessage>,
    /// Entity labels. By default NVIDIA's 55 labels for personal data, or all labels of a model with its own.
    labels: Option<LabelList>,
    /// Entities have higher scores; 0.5 by default.
    #[schemars(range(min = 0, max = 1))]
    threshold: Option<f32>,
    /// Whether no entity is inside of another; false by default.
    flat_ner: Option<bool>,
    /// Must be above `overlap`. Long texts are read in windows as long as the model allows, whatever its value.
    #[schemars(range(min = 1, max = 2048))]
    chunk_length: Option<usize>,
    /// Windows overlap by at most 128 words and a third of their length, whatever its value.
    #[schemars(range(max = 512))]
    overlap: Option<usize>,
}

impl RequestBody for ChatRequest {
    const FIELDS: &str = "body.chat";
}

#[derive(Deserialize, JsonSchema)]
#[serde(expecting = "an object with `role` and `content`")]
#[schemars(inline)]
struct ChatMessage {
    /// The author.
    role: ChatRole,
    /// A text, or a list with one text part.
    content: Option<ChatContent>,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChatRole {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

#[derive(Deserialize, JsonSchema)]
#[serde(untagged, expecting = "expected a string, or a list of text parts")]
#[schemars(inline)]
enum ChatContent {
    Text(String),
    Parts(Vec<ChatPart>),
}

#[derive(Deserialize, JsonSchema)]
#[schemars(inline)]
struct ChatPart {
    /// `text`.
    #[serde(rename = "type")]
    _type: ChatPartType,
    /// The text.
    text: String,
}

#[derive(Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(inline)]
enum ChatPartType {
    Text,
}

#[derive(Serialize, JsonSchema)]
pub struct ChatCompletion<'a> {
    /// `chatcmpl-` and a new UUID.
    id: String,
    /// `chat.completion`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    /// The name of the model that ran.
    model: &'a str,
    /// One answer.
    choices: [Choice; 1],
    /// Tokens of the request.
    usage: ChatUsage,
}

#[derive(Serialize, JsonSchema)]
struct Choice {
    /// Always 0.
    index: usize,
    /// The answer.
    message: Answer,
    /// Always `stop`.
    finish_reason: &'static str,
}

#[derive(Serialize, JsonSchema)]
struct Answer {
    /// `assistant`.
    role: &'static str,
    /// JSON with `total_entities`, `entities` and `tagged_text`.
    content: String,
}

#[derive(Serialize, JsonSchema)]
struct ChatUsage {
    /// Input tokens, special tokens included.
    prompt_tokens: usize,
    /// Always 0: the model generates nothing.
    completion_tokens: usize,
    /// The same as `prompt_tokens`.
    total_tokens: usize,
}

/// The JSON in an answer.
#[derive(Serialize)]
struct TaggedEntities<'a> {
    total_entities: usize,
    entities: Vec<TextEntity<'a>>,
    /// The text, with each entity as `[entity](label)`; of overlapping entities, only the first.
    tagged_text: String,
}

#[derive(Serialize)]
struct TextEntity<'a> {
    text: &'a str,
    label: &'a str,
    start: usize,
    end: usize,
    score: f32,
}

/// Find entities, in the form of chat completions
pub async fn completions(JsonRequest(context, body): JsonRequest<ChatRequest>) -> ApiResult {
    body.check_windows()?;
    let takes_labels = |own: &Manifest| matches!(own.settings, TaskSettings::ZeroShotEntities(_));
    let has_labels = |own: &Manifest| matches!(own.settings, TaskSettings::TokenClassification(_));
    let serves: [&(dyn Fn(&Manifest) -> bool + Sync); 2] = [&takes_labels, &has_labels];
    let (model, pipeline) = context
        .pipeline(
            body.model.as_deref(),
            Task::TokenClassification,
            &serves,
            Some,
        )
        .await?;
    let (threshold, labels) = (body.threshold.unwrap_or(THRESHOLD), body.labels.clone());
    let finder = body.finder(&context, pipeline)?;
    let kept = match (&finder, labels) {
        (EntityFinder::Own(pipeline, _), Some(labels)) => {
            let labels = labels.read("labels", context.scope().max_labels)?;
            // An empty list would hide all entities.
            inputs::count("labels", labels.len(), context.scope().max_labels)?;
            let known = pipeline.settings().entity_labels();
            if let Some(unknown) = labels.iter().find(|label| !known.contains(label.as_str())) {
                let known: Vec<&str> = known.into_iter().collect();
                return Err(Error::invalid(format!(
                    "expected `labels` of the model, among {}, but found `{}`",
                    quoted(&known),
                    unknown.escape_debug()
                ))
                .into());
            }
            Some(labels.into_iter().collect::<BTreeSet<String>>())
        }
        _ => None,
    };
    let text = inputs::text(&"messages", Content::Text(body.text()?), &context.texts)?;
    let found = finder.run(vec![text.clone()], context.deadline).await?;
    let is_kept = |entity: &&Entity| {
        let has_label = |labels: &BTreeSet<String>| labels.contains(entity.label());
        entity.score > threshold && kept.as_ref().is_none_or(has_label)
    };
    let entities: Vec<&Entity> = found
        .texts
        .iter()
        .flat_map(|found| found.entities())
        .filter(is_kept)
        .collect();
    let answer = serde_json::to_string(&TaggedEntities::new(&text, &entities))
        .map_err(|error| Error::inference(format!("the entities cannot be written: {error}")))?;
    Ok(with_usage(
        &context,
        &ChatCompletion::new(&model.name, answer, &found.usage),
        &found.usage,
    ))
}

impl ChatRequest {
    /// Refuses values outside of their ranges.
    fn check_windows(&self) -> Result<()> {
        let (length, overlap) = (
            self.chunk_length.unwrap_or(384),
            self.overlap.unwrap_or(MAX_STRIDE),
        );
        let is_overlap_given = self.overlap.is_some();
        if !(1..=2048).contains(&length) || overlap > 512 || is_overlap_given && overlap >= length {
            return Err(Error::invalid(format!(
                "expected a `chunk_length` from 1 to 2048, and an `overlap` below it and of at most 512, but found {length} \
                 and {overlap}"
            )));
        }
        Ok(())
    }

    /// The last user message's text.
    fn text(self) -> Result<String> {
        let is_user = |message: &ChatMessage| message.role == ChatRole::User;
        let message = self.messages.into_iter().rfind(is_user);
        let message = message.ok_or_else(|| {
            Error::invalid("expected a message with the role `user` in `messages`, but found none")
        })?;
        match message.content {
            Some(ChatContent::Text(text)) => Ok(text),
            Some(ChatContent::Parts(mut parts)) if parts.len() == 1 => Ok(parts.remove(0).text),
            Some(ChatContent::Parts(parts)) => Err(Error::invalid(format!(
                "expected one text part in the last user message's `content`, but found {}",
                parts.len()
            ))),
            None => Err(Error::invalid(
                "expected a text in the last user message's `content`, but found none",
            )),
        }
    }

    /// The model with the request's parameters. Long texts are read in windows.
    fn finder(&self, context: &Context, pipeline: &Pipeline) -> Result<EntityFinder> {
        let stride = |window: usize| Some(MAX_STRIDE.min(window / 3));
        match pipeline {
            Pipeline::ZeroShotEntities(pipeline) => {
                let labels = || {
                    DEFAULT_LABELS
                        .parse::<LabelList>()
                        .unwrap_or_else(|never: std::convert::Infallible| match never {})
                };
                let parameters = ZeroShotEntitiesParameters {
                    candidate_labels: self.labels.clone().unwrap_or_else(labels),
                    threshold: self.threshold,
                    flat_ner: Some(self.flat_ner.unwrap_or(false)),
                    multi_label: None,
                    stride: stride(pipeline.settings().max_words),
                    redaction: RedactionParameters::default(),
                    truncation: TruncationParameters::default(),
                };
                parameters.prepare(pipeline, &context.scope())
            }
            Pipeline::TokenClassification(pipeline) => {
                let is_wrong = |threshold: &f32| !(0.0..=1.0).contains(threshold);
                if let Some(threshold) = self.threshold.filter(is_wrong) {
                    return Err(Error::invalid(format!(
                        "expected a `threshold` from 0 to 1, but found {threshold}"
                    )));
                }
                let stride = stride(pipeline.settings().max_tokens);
                let parameters = TokenClassificationParameters {
                    stride,
                    ..Default::default()
                };
                parameters.prepare(pipeline, &context.scope())
            }
            _ => Err(Error::invalid("the model does not find entities")),
        }
    }
}

impl<'a> ChatCompletion<'a> {
    fn new(model: &'a str, content: String, usage: &Usage) -> Self {
        Self {
            id: format!("chatcmpl-{}", uuid::Uuid::new_v4().simple()),
            object: "chat.completion",
            created: clock::since_1970().as_secs(),
            model,
            choices: [Choice {
                index: 0,
                message: Answer {
                    role: "assistant",
                    content,
                },
                finish_reason: "stop",
            }],
            usage: ChatUsage {
                prompt_tokens: usage.tokens,
                completion_tokens: 0,
                total_tokens: usage.tokens,
            },
        }
    }
}

impl<'a> TaggedEntities<'a> {
    fn new(text: &'a str, entities: &[&'a Entity]) -> Self {
        let indexed = IndexedText::new(text);
        let part = |start, end| indexed.part(start, end);
        let (mut tagged_text, mut place) = (String::with_capacity(text.len()), 0);
        for entity in entities {
            if entity.start >= place {
                tagged_text += part(place, entity.start);
                tagged_text += &format!("[{}]({})", part(entity.start, entity.end), entity.label());
                place = entity.end;
            }
        }
        tagged_text += &text[indexed.byte(place)..];
        let entities = entities.iter().map(|entity| TextEntity {
            text: part(entity.start, entity.end),
            label: entity.label(),
            start: entity.start,
            end: entity.end,
            score: entity.score,
        });
        let entities: Vec<_> = entities.collect();
        Self {
            total_entities: entities.len(),
            entities,
            tagged_text,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu::pipeline::entities::EntityLabel;

    #[test]
    fn entities_are_tagged_in_the_text() {
        let entity = |start: usize, end: usize| Entity {
            label: EntityLabel::Group {
                entity_group: "name".into(),
            },
            score: 0.75,
            word: String::new(),
            start,
            end,
        };
        let (first, inner, last) = (entity(2, 10), entity(2, 5), entity(14, 17));
        let found = TaggedEntities::new("👩\u{200d}Ann Lee met Bob", &[&first, &inner, &last]);
        assert_eq!(
            found.tagged_text,
            "👩\u{200d}[Ann Lee ](name)met [Bob](name)"
        );
        insta::assert_snapshot!(
            serde_json::to_string(&found.entities[2]).unwrap(),
            @r#"{"text":"Bob","label":"name","start":14,"end":17,"score":0.75}"#
        );
        assert_eq!(TaggedEntities::new("", &[]).tagged_text, "");
    }
}
