//! Classification, with a model's own labels or with requested labels.

use futures::future::BoxFuture;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{Scope, TruncationParameters, labels::LabelList};
use kivu_base::{Error, Result, json::flattened, json_schemas::Alias};
use kivu_core::{
    backend::Deadline,
    pipeline::{
        Input, Usage,
        classification::{
            ClassificationPipeline,
            scores::ScoreFunction,
            zero_shot::{Labels, Template, ZeroShotOptions, ZeroShotPipeline},
        },
        embedding::instructions::check_size,
    },
};
use kivu_text::Truncation;

/// Text classification parameters.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object")]
pub struct ClassificationParameters {
    /// Maps the model's output to scores; the model's own function by default.
    pub function_to_apply: Option<ScoreFunction>,
    /// Number of labels to return; all by default.
    #[schemars(range(min = 1))]
    pub top_k: Option<usize>,
    /// How texts above the token limit are handled.
    #[serde(flatten, deserialize_with = "flattened")]
    pub truncation: TruncationParameters,
}

/// Scores in text and label order.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// A score per label, for each text.
    pub rows: Vec<Vec<f32>>,
    /// Tokens and duration.
    pub usage: Usage,
}

/// A classifier with checked parameters.
#[derive(Clone, Debug)]
pub struct Classifier {
    pipeline: ClassificationPipeline,
    truncation: Truncation,
    function: ScoreFunction,
    /// Maximum number of labels in a response.
    pub top: Option<usize>,
}

impl ClassificationParameters {
    /// Checks the parameters.
    pub fn prepare(&self, pipeline: &ClassificationPipeline, scope: &Scope) -> Result<Classifier> {
        if self.top_k == Some(0) {
            return Err(Error::invalid(
                "expected `parameters.top_k` above 0, but found 0",
            ));
        }
        Ok(Classifier {
            pipeline: pipeline.clone(),
            truncation: self.truncation.truncation(scope),
            function: self
                .function_to_apply
                .unwrap_or(pipeline.settings().function),
            top: self.top_k,
        })
    }
}

impl Classifier {
    /// The model's labels.
    pub fn labels(&self) -> &[String] {
        &self.pipeline.settings().labels
    }

    /// Scores texts or pairs, whose first text gets the model's prompt, as in sentence-transformers' `CrossEncoder`.
    pub fn run(&self, inputs: Vec<Input>, deadline: Deadline) -> BoxFuture<'_, Result<Scores>> {
        Box::pin(async move {
            let prompted = |input| match input {
                Input::Pair(first, second) => Input::Pair(self.pipeline.prompted(&first), second),
                other => other,
            };
            let inputs = inputs.into_iter().map(prompted).collect();
            let logits = self
                .pipeline
                .logits(inputs, self.truncation, deadline)
                .await?;
            let rows = logits
                .rows
                .iter()
                .map(|row| self.function.apply(row))
                .collect();
            Ok(Scores {
                rows,
                usage: logits.usage,
            })
        })
    }
}

/// Zero-shot classification parameters.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(expecting = "an object with `candidate_labels`")]
#[schemars(transform = Alias("candidate_labels", "labels"), transform = Alias("multi_label", "multi_class"))]
pub struct ZeroShotParameters {
    /// Labels: a list, or a string with commas between them or with a JSON list.
    #[serde(alias = "labels")]
    pub candidate_labels: LabelList,
    /// The hypothesis for zero-shot classification, with {} for the label
    pub hypothesis_template: Option<String>,
    /// Describes the task, to models that read labels and text together.
    pub prompt: Option<String>,
    /// Score each label independently
    #[serde(alias = "multi_class")]
    pub multi_label: Option<bool>,
    /// Whether texts above the token limit are truncated; otherwise they are refused.
    pub truncate: Option<bool>,
}

/// A zero-shot classifier with checked labels.
#[derive(Clone, Debug)]
pub struct ZeroShotClassifier {
    pipeline: ZeroShotPipeline,
    options: ZeroShotOptions,
}

impl ZeroShotParameters {
    /// Checks labels and template.
    pub fn prepare(
        &self,
        pipeline: &ZeroShotPipeline,
        scope: &Scope,
    ) -> Result<ZeroShotClassifier> {
        let labels = self.candidate_labels.read("labels", scope.max_labels)?;
        if let Some(prompt) = &self.prompt {
            check_size("prompt", prompt)?;
        }
        let options = ZeroShotOptions {
            labels: Labels::new(labels, scope.max_labels)?,
            template: self
                .hypothesis_template
                .clone()
                .map(Template::new)
                .transpose()?,
            prompt: self.prompt.clone(),
            multi_label: self.multi_label.unwrap_or(false),
            truncates: self.truncate.unwrap_or(scope.truncate),
        };
        Ok(ZeroShotClassifier {
            pipeline: pipeline.clone(),
            options,
        })
    }
}

impl ZeroShotClassifier {
    /// The requested labels.
    pub fn labels(&self) -> &[String] {
        self.options.labels.as_slice()
    }

    /// Scores texts.
    pub fn run<'a>(
        &'a self,
        texts: &'a [String],
        deadline: Deadline,
    ) -> BoxFuture<'a, Result<Scores>> {
        Box::pin(async move {
            let (rows, usage) = self.pipeline.score(texts, &self.options, deadline).await?;
            Ok(Scores { rows, usage })
        })
    }
}
