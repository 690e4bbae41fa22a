//! Token classification: entities with a model's own labels or with requested labels.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Scope, TruncationParameters, labels::LabelList};
use kivu_base::{Error, Result, json::flattened, json_schemas::Alias};
use kivu_core::{
    backend::Deadline,
    pipeline::{
        classification::zero_shot::Labels,
        entities::{
            Aggregation,
            tags::TransitionBiases,
            token_classification::{
                FoundEntities, TokenClassificationOptions, TokenClassificationPipeline,
            },
            zero_shot_entities::{EntitySearch, ZeroShotEntitiesOptions, ZeroShotEntitiesPipeline},
        },
        redaction::{
            Key, Redaction, Redactor,
            patterns::{PATTERNS, Patterns},
            placeholders::{Mapping, NumberScope, Replacement, Restored, Style, restore},
        },
    },
};
use kivu_text::{Truncation, WindowOptions};

/// Patterns beside a model's entities, and how what is found is replaced.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct RedactionParameters {
    /// Also find these patterns, separated by commas, or `all`: numbers with check digits, addresses, keys
    pub patterns: Option<LabelList>,
    /// Add texts in which entities are replaced by their labels
    pub redact: Option<bool>,
    /// What the replacements have besides labels: nothing, a number, a keyed hash, or the encrypted original [default: label]
    pub redact_style: Option<Style>,
    /// Where the same original has the same number [default: text]
    pub redact_scope: Option<NumberScope>,
    /// The key for the styles `hash` and `encrypt`: 64 hexadecimal digits.
    pub redact_key: Option<Key>,
    /// The originals by placeholder from earlier texts, whose numbers are continued.
    pub redact_mapping: Option<Mapping>,
}

impl RedactionParameters {
    /// Checks the parameters.
    ///
    /// # Errors
    /// A pattern is unknown, the key does not fit the style, or a parameter has no effect.
    pub fn prepare(&self) -> Result<Redaction> {
        let patterns = match &self.patterns {
            Some(names) => Patterns::new(&names.read("parameters.patterns", PATTERNS.len())?)?,
            None => Patterns::default(),
        };
        let style = self.redact_style.unwrap_or_default();
        let redacts = self.redact.unwrap_or(false);
        let refuse = |given: &[(&str, bool)], needed: &str| match given.iter().find(|given| given.1)
        {
            Some((name, _)) => Err(Error::invalid(format!(
                "`{name}` has no effect without {needed}"
            ))),
            None => Ok(()),
        };
        let numbers = [
            ("redact_scope", self.redact_scope.is_some()),
            ("redact_mapping", self.redact_mapping.is_some()),
        ];
        if !redacts {
            let style = ("redact_style", self.redact_style.is_some());
            let key = ("redact_key", self.redact_key.is_some());
            refuse(&[style, key, numbers[0], numbers[1]], "`redact`")?;
        } else if style != Style::Number {
            refuse(&numbers, "the `redact_style` `number`")?;
        }
        let replacement = redacts.then(|| Replacement::new(style, self.redact_key.clone()));
        Ok(Redaction {
            patterns,
            replacement: replacement.transpose()?,
            scope: self.redact_scope.unwrap_or_default(),
            known: self.redact_mapping.clone().unwrap_or_default(),
        })
    }
}

/// What puts originals back into texts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct RestorationParameters {
    /// The originals by placeholder, from the styles `number` and `hash`.
    pub redact_mapping: Option<Mapping>,
    /// The key of encrypted originals: 64 hexadecimal digits.
    pub redact_key: Option<Key>,
}

impl RestorationParameters {
    /// Puts the originals back into texts that have at most `max_bytes` bytes with them.
    ///
    /// # Errors
    /// There is neither a mapping nor a key, or a text is too long.
    pub fn restore(&self, texts: &[String], max_bytes: usize) -> Result<Vec<Restored>> {
        let (mapping, key) = (self.redact_mapping.as_ref(), self.redact_key.as_ref());
        if mapping.is_none() && key.is_none() {
            return Err(Error::invalid(
                "expected `redact_mapping` or `redact_key`, but found neither",
            ));
        }
        let none = Mapping::default();
        let (mut rest, mut restored) = (max_bytes, Vec::new());
        for text in texts {
            let found = restore(text, mapping.unwrap_or(&none), key, rest)?;
            rest = rest.saturating_sub(found.text.len());
            restored.push(found);
        }
        Ok(restored)
    }
}

/// Token classification parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct TokenClassificationParameters {
    /// How token labels become entities [default: simple]
    pub aggregation_strategy: Option<Aggregation>,
    /// Entity labels to leave out, separated by commas [default: O]
    pub ignore_labels: Option<LabelList>,
    /// Read long texts in windows that overlap by this many tokens, or words with a model that takes labels
    pub stride: Option<usize>,
    /// Find more or longer entities, or fewer or shorter ones, with a model whose labels mark ends (`E-`, `S-`)
    pub transition_biases: Option<TransitionBiases>,
    /// What else is found, and how it is replaced.
    #[serde(flatten, deserialize_with = "flattened")]
    pub redaction: RedactionParameters,
    /// How texts above the token limit are handled.
    #[serde(flatten, deserialize_with = "flattened")]
    pub truncation: TruncationParameters,
}

/// Parameters for entities with requested labels, named as in zero-shot classification and in the package `gliner`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `candidate_labels`")]
#[schemars(transform = Alias("candidate_labels", "labels"), transform = Alias("flat_ner", "flat"))]
pub struct ZeroShotEntitiesParameters {
    /// A list of labels, or a string with commas between them or with a JSON list.
    #[serde(alias = "labels")]
    pub candidate_labels: LabelList,
    /// Find entities with scores above this one, with a model that takes labels [default: 0.5]
    #[schemars(range(min = 0, max = 1))]
    pub threshold: Option<f32>,
    /// Whether no entity is inside of another; true by default. GLiNER2 chooses entities for each label by itself unless a
    /// request has this parameter or `multi_label`.
    #[serde(alias = "flat")]
    pub flat_ner: Option<bool>,
    /// Whether the same words may be several entities.
    pub multi_label: Option<bool>,
    /// Reads long texts in windows that overlap by this many words.
    pub stride: Option<usize>,
    /// What else is found, and how it is replaced.
    #[serde(flatten, deserialize_with = "flattened")]
    pub redaction: RedactionParameters,
    /// How texts above the token limit are handled; labels count towards the limit.
    #[serde(flatten, deserialize_with = "flattened")]
    pub truncation: TruncationParameters,
}

/// A model that finds entities, with checked parameters.
#[derive(Clone, Debug)]
pub enum EntityFinder {
    /// With the model's own labels.
    Own(TokenClassificationPipeline, TokenClassificationOptions),
    /// With requested labels.
    Labels(ZeroShotEntitiesPipeline, ZeroShotEntitiesOptions),
}

impl TokenClassificationParameters {
    /// Checks the parameters.
    pub fn prepare(
        &self,
        pipeline: &TokenClassificationPipeline,
        scope: &Scope,
    ) -> Result<EntityFinder> {
        let ignored = self.ignore_labels.as_ref();
        let ignored =
            ignored.map(|labels| labels.read("parameters.ignore_labels", scope.max_labels));
        let TruncationParameters {
            truncate,
            truncation_direction,
        } = self.truncation;
        let truncation = match (truncate, truncation_direction) {
            // No text is too long.
            (None, None) if pipeline.divides_texts() => Truncation::Off,
            _ => self.truncation.truncation(scope),
        };
        let windows = WindowOptions {
            stride: self.stride,
            truncation,
            max_windows: scope.max_parts,
            begin_at_words: false,
        };
        let options = TokenClassificationOptions::new(
            self.aggregation_strategy,
            ignored.transpose()?,
            windows,
            self.redaction.prepare()?,
        )?;
        let options = pipeline.with_biases(options, self.transition_biases)?;
        Ok(EntityFinder::Own(pipeline.clone(), options))
    }
}

impl ZeroShotEntitiesParameters {
    /// Checks the parameters.
    pub fn prepare(
        &self,
        pipeline: &ZeroShotEntitiesPipeline,
        scope: &Scope,
    ) -> Result<EntityFinder> {
        let labels = self.candidate_labels.read("labels", scope.max_labels)?;
        let is_given = self.flat_ner.is_some() || self.multi_label.is_some();
        let options = ZeroShotEntitiesOptions {
            labels: Labels::new(labels, scope.max_labels)?,
            search: EntitySearch {
                by_label: pipeline.settings().schema_token.is_some() && !is_given,
                ..EntitySearch::new(self.threshold, self.flat_ner, self.multi_label)?
            },
            windows: WindowOptions {
                stride: self.stride,
                truncation: self.truncation.truncation(scope),
                max_windows: scope.max_parts,
                begin_at_words: false,
            },
            redaction: self.redaction.prepare()?,
        };
        Ok(EntityFinder::Labels(pipeline.clone(), options))
    }
}

impl EntityFinder {
    /// Whether entities are replaced in texts.
    pub fn redacts(&self) -> bool {
        self.redaction().replacement.is_some()
    }

    fn redaction(&self) -> &Redaction {
        match self {
            Self::Own(_, options) => &options.redaction,
            Self::Labels(_, options) => &options.redaction,
        }
    }

    /// Finds entities in texts.
    pub fn run(
        &self,
        texts: Vec<String>,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<FoundEntities>> {
        Box::pin(async move {
            let mut redactor = self.redaction().begin()?;
            self.run_with(texts, &mut redactor, deadline).await
        })
    }

    /// Finds entities in texts that follow others, whose numbers `redactor` continues.
    pub fn run_with<'a>(
        &'a self,
        texts: Vec<String>,
        redactor: &'a mut Redactor<'_>,
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<FoundEntities>> {
        Box::pin(async move {
            redactor.begin_request();
            match self {
                Self::Own(pipeline, options) => {
                    pipeline.entities(texts, options, redactor, deadline).await
                }
                Self::Labels(pipeline, options) => {
                    pipeline.entities(texts, options, redactor, deadline).await
                }
            }
        })
    }
}
