//! Tokenization: texts to a model's tokens.

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::embedding::{ChosenPrompt, RequestedPrompt};
use crate::model::Model;
use kivu_base::{Error, Result};
use kivu_core::{
    backend::Deadline,
    pipeline::seq2seq::{RequestedLanguages, Seq2SeqPipeline},
};
use kivu_text::{SpecialTokens, Token, Tokenizer, UNMATCHED};

/// Tokenization parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct TokenParameters {
    /// Whether the model's special tokens are added; true by default.
    pub add_special_tokens: Option<bool>,
    /// Prompt to put before each text, by name.
    pub prompt_name: Option<String>,
    /// A text to put before each text, instead of one of the model's prompts.
    pub prompt: Option<String>,
    /// Replaces the instruction in the model's prompt for queries, if it has one, or in the one that is named.
    pub instruction: Option<String>,
    /// The task whose prompt is put before each text, in a model with tasks, unless another prompt is requested.
    pub task: Option<String>,
    /// The source language, for translation models with a special token for it.
    pub src_lang: Option<String>,
    /// The target language, for translation models with a special token for it.
    pub tgt_lang: Option<String>,
}

/// A token and the part of the text that it represents.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "Token")]
pub struct TextToken {
    /// Number in the vocabulary.
    pub id: u32,
    /// The text that the token represents.
    pub text: String,
    /// Whether it is a special token, such as `[SEP]`.
    pub special: bool,
    /// Its first character's position; `null` for added special tokens.
    pub start: Option<usize>,
    /// The position after its last character.
    pub stop: Option<usize>,
}

/// A model's tokenizer with checked parameters.
#[derive(Clone, Debug)]
pub struct TokenReader {
    parameters: TokenParameters,
    prompt: String,
    tokenizer: Arc<Tokenizer>,
    generator: Option<Seq2SeqPipeline>,
    max_tokens: usize,
}

impl TokenParameters {
    /// Checks the prompt, and whether languages have an effect.
    pub fn prepare(self, model: &Model) -> Result<TokenReader> {
        let Self {
            prompt_name,
            prompt,
            instruction,
            task,
            src_lang,
            tgt_lang,
            ..
        } = &self;
        let refuse = |kind: &str, fields: &[(&str, &Option<String>)]| match fields
            .iter()
            .find(|(_, given)| given.is_some())
        {
            None => Ok(()),
            Some((field, _)) => Err(Error::invalid(format!(
                "expected {kind} model for `{field}`, but `{}` is for `{}`",
                model.name, model.manifest.task
            ))
            .with_hint("leave it out")),
        };
        if model.pipeline.translation().is_none() {
            let languages = [("src_lang", src_lang), ("tgt_lang", tgt_lang)];
            refuse("a translation", &languages)?;
        }
        let prompt = match (model.pipeline.embedding(), prompt_name.as_deref()) {
            (Some(pipeline), name) => {
                let requested = RequestedPrompt {
                    name,
                    prompt: prompt.as_deref(),
                    instruction: instruction.as_deref(),
                    task: task.as_deref(),
                };
                let ChosenPrompt { name, prompt, .. } = requested.choose(pipeline)?;
                match prompt {
                    Some(prompt) => Some(prompt),
                    None => pipeline.prompt(name.as_deref())?.map(str::to_owned),
                }
            }
            (None, Some(name)) => {
                return Err(Error::invalid(format!("unknown prompt `{name}`"))
                    .with_hint(format!("`{}` has none", model.name)));
            }
            (None, None) => {
                let given = [
                    ("prompt", prompt),
                    ("instruction", instruction),
                    ("task", task),
                ];
                refuse("an embedding", &given)?;
                // Tasks that use an embedding model apply its default prompt only.
                let pipeline = model.pipeline.embedding_of_any_task();
                pipeline
                    .map(|pipeline| pipeline.prompt(None))
                    .transpose()?
                    .flatten()
                    .map(str::to_owned)
            }
        };
        Ok(TokenReader {
            prompt: prompt.unwrap_or_default(),
            tokenizer: Arc::clone(model.pipeline.tokenizer()),
            generator: model.pipeline.generator().cloned(),
            max_tokens: usize::MAX,
            parameters: self,
        })
    }
}

impl TokenReader {
    /// Refuses texts that have more than `max_tokens` tokens together.
    #[must_use]
    pub fn with_max_tokens(self, max_tokens: usize) -> Self {
        Self { max_tokens, ..self }
    }

    /// Tokenizes texts.
    pub async fn run(self, texts: Vec<String>, deadline: Deadline) -> Result<Vec<Vec<TextToken>>> {
        deadline.off_thread(move || self.tokens(texts)).await
    }

    fn tokens(&self, texts: Vec<String>) -> Result<Vec<Vec<TextToken>>> {
        let TokenParameters {
            add_special_tokens,
            src_lang,
            tgt_lang,
            ..
        } = &self.parameters;
        let wanted = RequestedLanguages {
            source: src_lang.as_deref(),
            target: tgt_lang.as_deref(),
        };
        let special = match add_special_tokens {
            Some(false) => SpecialTokens::LeftOut,
            _ => SpecialTokens::Added,
        };
        let (mut left, mut answer) = (self.max_tokens, Vec::with_capacity(texts.len()));
        for text in texts {
            let text = format!("{}{text}", self.prompt);
            // Far too long texts are rejected before their tokens take up memory.
            if left < usize::MAX && self.tokenizer.exceeds(&text, left)? {
                return Err(self.too_many());
            }
            let tokens = match &self.generator {
                Some(generator) => generator.tokens(&text, special, wanted)?,
                None => self.tokenizer.tokens(&text, special)?,
            };
            left = left
                .checked_sub(tokens.len())
                .ok_or_else(|| self.too_many())?;
            answer.push(text_tokens(&text, tokens));
        }
        Ok(answer)
    }

    fn too_many(&self) -> Error {
        Error::too_large(format!(
            "the response would have more than {} tokens",
            self.max_tokens
        ))
        .with_hint("send fewer or shorter texts at once")
    }
}

/// Tokens with their text parts.
fn text_tokens(text: &str, tokens: Vec<Token>) -> Vec<TextToken> {
    // Spans are in characters, slices in bytes.
    let starts: Vec<usize> = text
        .char_indices()
        .map(|(byte, _)| byte)
        .chain([text.len()])
        .collect();
    let slice = |(start, stop): (usize, usize)| {
        Some(
            text.get(*starts.get(start)?..*starts.get(stop)?)?
                .to_owned(),
        )
    };
    tokens
        .into_iter()
        .map(|token| TextToken {
            id: token.id,
            text: token
                .span
                .and_then(slice)
                .unwrap_or_else(|| token.text.trim_start_matches(UNMATCHED).to_owned()),
            special: token.special,
            start: token.span.map(|(start, _)| start),
            stop: token.span.map(|(_, stop)| stop),
        })
        .collect()
}
