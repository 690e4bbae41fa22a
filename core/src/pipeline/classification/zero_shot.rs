//! Scores a text for labels that the model was not trained on.
//!
//! A natural-language inference model scores how far the text entails "This example is LABEL.", with the results of the
//! `zero-shot-classification` pipeline in `transformers`. An embedding model scores the cosine similarity between the
//! text and that sentence. Other models read all labels together with a text.

use std::{collections::HashSet, sync::Arc};

use super::{
    ClassificationPipeline,
    label_scores::LabelScoresPipeline,
    label_vectors::LabelVectors,
    scores::{ScoreFunction, softmax},
};
use crate::backend::Deadline;
use crate::pipeline::{
    embedding::{
        EmbeddingOptions, EmbeddingPipeline,
        similarity::{Similarity, cosine},
    },
    encoder::{encoding::Input, usage::Usage},
};
use kivu_base::{Error, Result};
use kivu_text::{Side, Truncation};

/// The default template for models that compare a text with sentences.
const TEMPLATE: &str = "This example is {}.";
/// The placeholder for the label in a template.
const PLACEHOLDER: &str = "{}";
/// Factor on cosines before the softmax over labels, since cosines between unrelated sentences differ by a few
/// hundredths only. sentence-transformers trains its models with the same scale.
const COSINE_SCALE: f32 = 20.0;

/// A model that scores request labels.
#[derive(Clone, Debug)]
pub enum ZeroShotPipeline {
    /// A model for natural-language inference.
    Entailment(ClassificationPipeline),
    /// An embedding model.
    Embedding(EmbeddingPipeline, LabelVectors),
    /// A model that reads labels and text together.
    Labels(LabelScoresPipeline),
}

/// Request options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroShotOptions {
    /// The labels to score.
    pub labels: Labels,
    /// The sentence that contains each label; by default `This example is {}.`, or the label alone for models that read
    /// labels and text together.
    pub template: Option<Template>,
    /// Describes the task, to models that read labels and text together; others refuse it.
    pub prompt: Option<String>,
    /// Whether labels are scored independently; otherwise scores sum up to 1.
    pub multi_label: bool,
    /// Whether texts above the token limit are truncated; otherwise they are refused.
    pub truncates: bool,
}

impl ZeroShotOptions {
    /// The labels as models read them together with a text: alone, or in the template.
    pub fn filled(&self) -> Result<Vec<String>> {
        match &self.template {
            None => Ok(self.labels.as_slice().to_vec()),
            Some(template) => template.fill(self.labels.as_slice()),
        }
    }
}

/// At least one label, all distinct and not blank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<String>);

impl Labels {
    /// Checks a request's labels; at most `limit`, since each costs a model run.
    pub fn new(labels: Vec<String>, limit: usize) -> Result<Self> {
        let wrong_count = || format!("expected 1 to {limit} `labels`, but found {}", labels.len());
        if labels.is_empty() {
            return Err(Error::invalid(wrong_count()));
        }
        if labels.len() > limit {
            return Err(Error::too_large(wrong_count()));
        }
        let mut known = HashSet::new();
        for (index, label) in labels.iter().enumerate() {
            if label.trim().is_empty() {
                return Err(Error::invalid(format!(
                    "expected a label in `labels[{index}]`, but found an empty one"
                )));
            }
            if !known.insert(label) {
                return Err(Error::invalid(format!(
                    "expected each label once, but found `labels[{index}]` twice"
                )));
            }
        }
        Ok(Self(labels))
    }

    /// Labels in request order.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// A sentence with a placeholder for a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// Refuses a template without a placeholder, since all labels would score the same, and one with other braces, which
    /// mean something else in `str.format` of the `transformers` pipeline.
    pub fn new(template: String) -> Result<Self> {
        let found = match template.matches(PLACEHOLDER).count() {
            0 => "none",
            1 if template.matches(['{', '}']).count() == PLACEHOLDER.len() => {
                return Ok(Self(template));
            }
            _ => "more braces",
        };
        Err(Error::invalid(format!(
            "expected `{{}}` in `hypothesis_template` once, where the label goes, but found {found}"
        )))
    }

    /// One sentence per label. Refuses templates and labels whose sentences would not fit into memory.
    fn fill(&self, labels: &[String]) -> Result<Vec<String>> {
        const MAX_BYTES: usize = 16 * 1024 * 1024;
        let around = self.0.len() - PLACEHOLDER.len();
        let bytes = labels
            .iter()
            .map(|label| label.len().saturating_add(around));
        let found = bytes.fold(0, usize::saturating_add);
        if found > MAX_BYTES {
            return Err(Error::too_large(format!(
                "expected at most {MAX_BYTES} bytes of labels in their sentences, but found \
                 {found}"
            ))
            .with_hint("shorten `hypothesis_template` or send fewer labels"));
        }
        Ok(labels
            .iter()
            .map(|label| self.0.replace(PLACEHOLDER, label))
            .collect())
    }
}

impl Default for Template {
    fn default() -> Self {
        Self(TEMPLATE.to_owned())
    }
}

impl ZeroShotPipeline {
    /// Creates a pipeline from an embedding model.
    pub fn embedding(pipeline: EmbeddingPipeline) -> Self {
        Self::Embedding(pipeline, LabelVectors::default())
    }

    /// Creates a pipeline from a natural-language inference model; a model with a single label is refused.
    pub fn entailment(pipeline: ClassificationPipeline) -> Result<Self> {
        if pipeline.settings().labels.len() < 2 {
            return Err(Error::model(
                "expected a model with labels for entailment and contradiction, but found one label",
            ));
        }
        Ok(Self::Entailment(pipeline))
    }

    /// Scores per text and label, in input order.
    pub async fn score(
        &self,
        texts: &[String],
        options: &ZeroShotOptions,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<f32>>, Usage)> {
        let labels = options.labels.as_slice();
        if options.prompt.is_some() && !matches!(self, Self::Labels(_)) {
            return Err(Error::invalid(
                "`prompt` is not supported: the model does not read labels and text together",
            )
            .with_hint("leave it out"));
        }
        let truncation = if options.truncates {
            Truncation::At(Side::Right)
        } else {
            Truncation::Off
        };
        let hypotheses = || options.template.clone().unwrap_or_default().fill(labels);
        match self {
            Self::Entailment(pipeline) => {
                let hypotheses = hypotheses()?;
                let hypotheses: Vec<Arc<str>> = hypotheses.into_iter().map(Into::into).collect();
                let pairs = texts.iter().flat_map(|text| {
                    let text: Arc<str> = text.as_str().into();
                    hypotheses.iter().map(move |hypothesis| {
                        Input::Pair(Arc::clone(&text), Arc::clone(hypothesis))
                    })
                });
                let truncation = if options.truncates {
                    Truncation::OnlyFirst
                } else {
                    Truncation::Off
                };
                let (pairs, count) = (pairs.collect(), labels.len());
                let logits = pipeline
                    .logits_of_texts(pairs, count, truncation, deadline)
                    .await?;
                let ids = EntailmentIds::of(&pipeline.settings().labels);
                let rows = logits.rows.chunks_exact(labels.len());
                Ok((
                    rows.map(|rows| match options.multi_label || rows.len() == 1 {
                        true => ids.probabilities(rows),
                        false => ids.shares(rows),
                    })
                    .collect(),
                    logits.usage,
                ))
            }
            Self::Embedding(pipeline, cache) => {
                let hypotheses = hypotheses()?;
                let (kept, missing) = cache.get(&hypotheses);
                let inputs = texts
                    .iter()
                    .chain(missing)
                    .cloned()
                    .map(Input::Text)
                    .collect();
                let embedding = EmbeddingOptions::for_comparison(truncation, Similarity::Cosine);
                let embeddings = pipeline.embed(inputs, &embedding, deadline).await?;
                if embeddings
                    .usage
                    .truncated
                    .iter()
                    .any(|input| *input >= texts.len())
                {
                    return Err(Error::too_large(format!(
                        "expected labels of at most {} tokens, but found more",
                        pipeline.settings().max_tokens
                    ))
                    .with_hint("send shorter labels"));
                }
                let mut embedded = embeddings.vectors;
                let vectors = cache.complete(&hypotheses, kept, embedded.split_off(texts.len()))?;
                let score = |text: &Vec<f32>| {
                    let cosines = vectors.iter().map(|vector| cosine(text, vector));
                    if options.multi_label || labels.len() == 1 {
                        cosines.map(|cosine| cosine.clamp(0.0, 1.0)).collect()
                    } else {
                        softmax(
                            &cosines
                                .map(|cosine| cosine * COSINE_SCALE)
                                .collect::<Vec<_>>(),
                        )
                    }
                };
                Ok((embedded.iter().map(score).collect(), embeddings.usage))
            }
            Self::Labels(pipeline) => {
                let prompt = options.prompt.as_deref().unwrap_or_default();
                let logits = pipeline
                    .logits(texts, &options.filled()?, prompt, truncation, deadline)
                    .await?;
                let function = match options.multi_label || labels.len() == 1 {
                    true => ScoreFunction::Sigmoid,
                    false => ScoreFunction::Softmax,
                };
                Ok((
                    logits.rows.iter().map(|row| function.apply(row)).collect(),
                    logits.usage,
                ))
            }
        }
    }
}

/// The model's label ids for entailment and contradiction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntailmentIds {
    entailment: usize,
    contradiction: usize,
}

impl EntailmentIds {
    /// As in `transformers`, entailment is found by name, or is the last label; contradiction is the first label, or
    /// the last if entailment is the first.
    fn of(labels: &[String]) -> Self {
        let last = labels.len() - 1;
        let entailment = labels
            .iter()
            .position(|label| label.to_lowercase().starts_with("entail"))
            .unwrap_or(last);
        Self {
            entailment,
            contradiction: if entailment == 0 { last } else { 0 },
        }
    }

    /// Each label's own probability, from the pair logits.
    fn probabilities(self, rows: &[Vec<f32>]) -> Vec<f32> {
        let pairs = rows
            .iter()
            .map(|row| softmax(&[row[self.contradiction], row[self.entailment]]));
        pairs.map(|pair| pair[1]).collect()
    }

    /// The labels' shares, which add up to 1, from the pair logits.
    fn shares(self, rows: &[Vec<f32>]) -> Vec<f32> {
        softmax(
            &rows
                .iter()
                .map(|row| row[self.entailment])
                .collect::<Vec<_>>(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entailment_is_found_by_name() {
        let ids = |labels: &[&str]| {
            let ids = EntailmentIds::of(
                &labels
                    .iter()
                    .map(|label| (*label).to_owned())
                    .collect::<Vec<_>>(),
            );
            (ids.entailment, ids.contradiction)
        };
        assert_eq!(ids(&["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]), (2, 0));
        assert_eq!(ids(&["entailment", "neutral", "contradiction"]), (0, 2));
        assert_eq!(ids(&["LABEL_0", "LABEL_1", "LABEL_2"]), (2, 0));
    }

    #[test]
    fn unusable_labels_and_templates_are_refused() {
        let labels = |labels: &[&str]| {
            Labels::new(labels.iter().map(|label| (*label).to_owned()).collect(), 3)
                .unwrap_err()
                .to_string()
        };
        insta::assert_snapshot!(labels(&[]), @"expected 1 to 3 `labels`, but found 0");
        insta::assert_snapshot!(labels(&["a", " "]), @"expected a label in `labels[1]`, but found an empty one");
        insta::assert_snapshot!(labels(&["a", "b", "a"]), @"expected each label once, but found `labels[2]` twice");
        insta::assert_snapshot!(labels(&["a", "b", "c", "d"]), @"expected 1 to 3 `labels`, but found 4");
        // As in `transformers`, white space belongs to the labels of a list.
        assert_eq!(
            Labels::new(vec![" a".into(), "a".into()], 3)
                .unwrap()
                .as_slice(),
            [" a", "a"]
        );
        let template = |text: &str| Template::new(text.into()).unwrap_err().to_string();
        insta::assert_snapshot!(template("no gap"), @"expected `{}` in `hypothesis_template` once, where the label goes, but found none");
        for text in ["{} and {}", "{} {0}", "{{}}", "{} {{", "}{}"] {
            insta::allow_duplicates! {
                insta::assert_snapshot!(template(text), @"expected `{}` in `hypothesis_template` once, where the label goes, but found more braces");
            }
        }
    }

    #[test]
    fn a_template_that_would_exhaust_memory_is_refused() {
        let labels: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let long = Template::new(format!("{{}}{}", "y".repeat(2_000_000))).unwrap();
        let taken = allocation_counter::measure(|| {
            insta::assert_snapshot!(long.fill(&labels).unwrap_err(), @"expected at most 16777216 bytes of labels in their sentences, but found 2000002890; shorten `hypothesis_template` or send fewer labels");
        });
        assert!(taken.bytes_max < 8 << 20, "{}", taken.bytes_max);
        assert_eq!(
            Template::new("a {}.".into())
                .unwrap()
                .fill(&labels[..2])
                .unwrap(),
            ["a 0.", "a 1."]
        );
    }
}
