//! Texts to scores for request labels that the model reads together with a text, with the results of the packages
//! `gliclass` and `gliner2`.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::backend::{Deadline, routing::Route};
use crate::pipeline::{
    encoder::{
        Encoder, Granularity, Logits, NamedOutput, Row, Vectors,
        encoding::{EncodedWindows, EncodingOptions, Encodings, Input, MAX_BYTES, check_size},
        executor::tokenize,
    },
    entities::schema::{self, Schema},
};
use kivu_base::{Error, Result, error::at_text};
use kivu_text::{Encoding, Side, Tokenizer, Truncation, WindowOptions, WordPrompt, reach};

/// Settings for a model that reads labels and text together, from its `config.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelScoresSettings {
    /// Output name; one value per label.
    pub output: String,
    /// The token in front of a schema, in models that read labels in one (GLiNER2).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schema_token: Option<String>,
    /// The token before each label.
    pub label_token: String,
    /// The token after the labels.
    pub separator: String,
    /// Whether the labels are in front of the text, rather than behind it.
    pub labels_first: bool,
    /// The tokens that make up the text's vector.
    pub pooled: PooledTokens,
    /// Maximum tokens per text, labels and special tokens included.
    pub max_tokens: usize,
}

/// The tokens that make up a text's vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PooledTokens {
    /// The first one.
    First,
    /// The last one.
    Last,
    /// The token after the labels.
    Separator,
    /// All, labels included.
    All,
}

impl LabelScoresSettings {
    /// The labels as the model reads them, with the description of a request's task after them. Refuses labels with the
    /// tokens around labels.
    fn labels(&self, labels: &[String], prompt: &str) -> Result<String> {
        let [label_token, separator] = [&self.label_token, &self.separator].map(String::as_str);
        let is_marked = |label: &&String| label.contains(label_token) || label.contains(separator);
        match labels.iter().find(is_marked) {
            Some(label) => Err(Error::invalid(format!(
                "the label `{}` contains `{label_token}` or `{separator}`, which the model reads as its own",
                label.escape_default()
            ))
            .with_hint("rename it")),
            None => {
                let labels = labels
                    .iter()
                    .flat_map(|label| [label_token, label.as_str()]);
                Ok(labels.chain([separator, prompt]).collect())
            }
        }
    }

    /// A text's tokens, with at most `limit` tokens in total; a longer text is truncated.
    ///
    /// Pooled tokens have the type 1, all others 0.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        text: &str,
        labels: &[String],
        limit: usize,
    ) -> Result<Encoding> {
        if let Some(schema) = &self.schema_token {
            let prompt = self.schema_prompt(schema, tokenizer, labels, "")?;
            let options = WindowOptions::whole(Truncation::At(Side::Right), 1);
            let mut windows = tokenizer.word_windows(text, &prompt, limit, options)?;
            let mut encoding = windows
                .pop()
                .map(|window| window.encoding)
                .unwrap_or_default();
            mark_pooled(&mut encoding, Some(0));
            return Ok(encoding);
        }
        let text = self.joined(text, &self.labels(labels, "")?);
        let mut encoding = tokenizer.encode(&text, limit, Truncation::At(Side::Right))?;
        self.mark(&mut encoding, tokenizer, labels.len(), limit)?;
        Ok(encoding)
    }

    /// A schema's tokens in front of a text; `name` may be empty.
    fn schema_prompt(
        &self,
        token: &str,
        tokenizer: &Tokenizer,
        labels: &[String],
        name: &str,
    ) -> Result<WordPrompt> {
        let name = if name.is_empty() {
            schema::CLASSIFICATION
        } else {
            name
        };
        let (label_token, separator) = (self.label_token.as_str(), self.separator.as_str());
        let schema = Schema {
            token,
            name,
            label_token,
            labels,
            separator,
        };
        Ok(WordPrompt {
            finds_words: false,
            ..schema.prompt(tokenizer, self.max_tokens)?
        })
    }

    fn joined(&self, text: &str, labels: &str) -> String {
        match self.labels_first {
            true => format!("{labels}{text}"),
            false => format!("{text}{labels}"),
        }
    }

    /// Marks pooled tokens. Refuses texts with label tokens, and truncated labels.
    fn mark(
        &self,
        encoding: &mut Encoding,
        tokenizer: &Tokenizer,
        labels: usize,
        limit: usize,
    ) -> Result<()> {
        let [label, separator] = [&self.label_token, &self.separator]
            .map(|token| tokenizer.id(token).unwrap_or(u32::MAX));
        let ids = &encoding.ids;
        let found = ids.iter().filter(|id| **id == label).count();
        let separator = ids.iter().position(|id| *id == separator);
        if let Some(tokens) = encoding.truncated_from {
            if !self.labels_first {
                return Err(Error::too_large(format!(
                    "expected at most {limit} tokens of a text and the labels behind it, but found \
                     {tokens}"
                ))
                .with_hint("send a shorter text, or fewer or shorter labels"));
            }
            let [_, after] = tokenizer.special_ids();
            if separator.is_none_or(|separator| separator + 1 + after.len() >= ids.len()) {
                return Err(Error::too_large(format!(
                    "the labels take all {limit} tokens that the model reads, and leave none for the text"
                ))
                .with_hint("send fewer or shorter labels"));
            }
        }
        if found != labels {
            return Err(Error::invalid(format!(
                "the text or the prompt contains `{}`, which the model reads as its own",
                self.label_token
            ))
            .with_hint("remove it"));
        }
        let pooled = match self.pooled {
            PooledTokens::First => Some(0),
            PooledTokens::Last => ids.len().checked_sub(1),
            // The package takes the first token if there is no separator.
            PooledTokens::Separator => Some(separator.unwrap_or(0)),
            PooledTokens::All => None,
        };
        mark_pooled(encoding, pooled);
        Ok(())
    }
}

/// A model that scores request labels, which it reads together with a text.
#[derive(Clone, Debug)]
pub struct LabelScoresPipeline {
    encoder: Encoder,
    settings: Arc<LabelScoresSettings>,
}

impl LabelScoresPipeline {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings, or if the tokenizer has
    /// no token before labels.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        route: impl Into<Route>,
        settings: LabelScoresSettings,
    ) -> Result<Self> {
        if tokenizer.id(&settings.label_token).is_none() {
            return Err(Error::model(format!(
                "expected the token `{}` in the tokenizer, as the manifest names it, but found none",
                settings.label_token
            )));
        }
        let output = vec![NamedOutput {
            name: settings.output.clone(),
            width: 1,
            vectors: Vectors::Any,
        }];
        let encoder = Encoder::new(tokenizer, route.into(), output, None, settings.max_tokens)?;
        Ok(Self {
            encoder,
            settings: settings.into(),
        })
    }

    /// Settings from the bundle's manifest.
    pub fn settings(&self) -> &LabelScoresSettings {
        &self.settings
    }

    /// The encoder, with the tokenizer and the token limit.
    pub fn encoder(&self) -> &Encoder {
        &self.encoder
    }

    /// Logits per text, in label order. `prompt` describes the task to the model; it may be empty.
    pub async fn logits(
        &self,
        texts: &[String],
        labels: &[String],
        prompt: &str,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Logits> {
        let encodings = match &self.settings.schema_token {
            Some(token) => {
                self.with_schema(token, texts, labels, prompt, truncation, deadline)
                    .await?
            }
            None => {
                self.with_labels(texts, labels, prompt, truncation, deadline)
                    .await?
            }
        };
        let (count, values) = (labels.len(), |row: Row<'_>| row.values.to_vec());
        let (rows, usage) = self
            .encoder
            .run(&encodings, Granularity::Texts, deadline, values)
            .await?;
        match rows.iter().find(|row| row.len() != count) {
            None => Ok(Logits { rows, usage }),
            Some(row) => Err(Error::inference(format!(
                "expected a score for each of {count} labels, but found {}",
                row.len()
            ))),
        }
    }

    /// Texts after a schema.
    async fn with_schema(
        &self,
        token: &str,
        texts: &[String],
        labels: &[String],
        name: &str,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let (token, labels, name) = (token.to_owned(), labels.to_vec(), name.to_owned());
        let (settings, own) = (
            Arc::clone(&self.settings),
            Arc::clone(self.encoder.tokenizer()),
        );
        let size = labels.iter().map(String::len).sum::<usize>() + name.len();
        let prompt = move || settings.schema_prompt(&token, &own, &labels, &name);
        let prompt = tokenize(size, deadline, prompt).await?;
        let tokenizer = self.encoder.input_tokenizer(deadline).await?;
        let options = WindowOptions::whole(truncation, texts.len());
        let EncodedWindows { mut encodings, .. } = tokenizer
            .encode_words(&texts.to_vec().into(), prompt, options)
            .await?;
        let list = encodings.list.iter_mut();
        list.for_each(|encoding| mark_pooled(encoding, Some(0)));
        Ok(encodings)
    }

    /// Texts with labels in front of them or behind them.
    async fn with_labels(
        &self,
        texts: &[String],
        labels: &[String],
        prompt: &str,
        truncation: Truncation,
        deadline: Deadline,
    ) -> Result<Encodings> {
        let (settings, count) = (&self.settings, labels.len());
        let prompt = settings.labels(labels, prompt)?;
        let tokenizer = self.encoder.input_tokenizer(deadline).await?;
        let (limit, reach) = (tokenizer.limit, reach(tokenizer.limit));
        // Checked before the labels are copied for each text.
        check_size(
            texts
                .iter()
                .map(|text| prompt.len() + text.len().min(reach))
                .sum(),
            MAX_BYTES,
        )?;
        let inputs = texts
            .iter()
            .map(|text| Input::Text(settings.joined(text, &prompt)))
            .collect();
        let options = EncodingOptions::new(truncation);
        let mut encodings = tokenizer.encode(inputs, &options).await?;
        for (index, encoding) in encodings.list.iter_mut().enumerate() {
            let marked = settings.mark(encoding, tokenizer.tokenizer, count, limit);
            marked.map_err(|error| at_text(error, index, texts.len()))?;
        }
        Ok(encodings)
    }
}

/// Marks the token that is pooled; all without a place.
fn mark_pooled(encoding: &mut Encoding, pooled: Option<usize>) {
    let is_pooled = |place: usize| pooled.is_none_or(|pooled| place == pooled);
    let places = 0..encoding.ids.len();
    encoding.type_ids = places.map(|place| u32::from(is_pooled(place))).collect();
}
