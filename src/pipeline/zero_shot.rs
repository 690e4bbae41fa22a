//! A text to scores for labels that the model was not trained on.
//!
//! Either by natural-language inference, as the `zero-shot-classification` pipeline of `transformers` does it:
//! how far does the text entail "This example is LABEL."? Or, with an embedding model, by the angle between the
//! text and that sentence.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lru::LruCache;

use super::{
    Usage,
    classification::{ClassificationInput, ClassificationPipeline, softmax},
    embedding::{EmbeddingOptions, EmbeddingPipeline, Input},
    pooling::cosine,
};
use crate::{
    backend::Deadline,
    error::{Error, Result},
    tokenizer::{PairTruncation, Side, Truncation},
};

/// The sentence that a label is put into where no other is asked for.
pub const TEMPLATE: &str = "This example is {}.";
/// Where a label goes in a template.
const GAP: &str = "{}";
/// What cosines are multiplied by before the softmax over labels: those of unrelated sentences differ by a few
/// hundredths only. The scale that sentence-transformers trains its models with.
const COSINE_SCALE: f32 = 20.0;

/// How labels are scored.
#[derive(Clone, Debug)]
pub enum ZeroShotPipeline {
    /// By a model of natural-language inference.
    Entailment(ClassificationPipeline),
    /// By an embedding model.
    Embedding(EmbeddingPipeline, LabelVectors),
}

/// The vectors of labels that were asked for lately: most callers ask for the same ones again and again.
///
/// A text has the same vector in any company, so that an answer does not depend on what was kept.
#[derive(Clone, Debug)]
pub struct LabelVectors(Arc<Mutex<LruCache<String, Arc<[f32]>>>>);

impl LabelVectors {
    const MOST: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
    /// A label with its template is a short sentence; what is longer would only fill the memory.
    const LONGEST_BYTES: usize = 256;

    /// The vector of each sentence, where it is known.
    fn of(&self, sentences: &[String]) -> Vec<Option<Arc<[f32]>>> {
        let mut kept = self.lock();
        sentences.iter().map(|sentence| kept.get(sentence).cloned()).collect()
    }

    fn keep(&self, sentence: String, vector: Vec<f32>) -> Arc<[f32]> {
        let vector: Arc<[f32]> = vector.into();
        if sentence.len() <= Self::LONGEST_BYTES {
            self.lock().put(sentence, Arc::clone(&vector));
        }
        vector
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, Arc<[f32]>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for LabelVectors {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(LruCache::new(Self::MOST))))
    }
}

/// What a request asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZeroShotOptions {
    /// The labels.
    pub labels: Labels,
    /// The sentence that labels are put into.
    pub template: Template,
    /// Whether each label is scored on its own; otherwise scores sum to 1.
    pub multi_label: bool,
}

/// Labels to choose from: at least one, none empty, none twice, without spaces around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels(Vec<String>);

impl Labels {
    /// The labels of a request; at most `limit`, since each costs a run of the model.
    pub fn new(labels: Vec<String>, limit: usize) -> Result<Self> {
        let labels: Vec<String> = labels.into_iter().map(|label| label.trim().to_owned()).collect();
        let found = labels.len();
        if found == 0 {
            return Err(Error::invalid(format!("expected 1 to {limit} `candidate_labels`, but found 0")));
        }
        if found > limit {
            return Err(Error::too_large(format!(
                "expected 1 to {limit} `candidate_labels`, but found {found}"
            )));
        }
        for (place, label) in labels.iter().enumerate() {
            if label.is_empty() {
                return Err(Error::invalid(format!(
                    "expected a label in `candidate_labels[{place}]`, but found an empty one"
                )));
            }
            if labels[..place].contains(label) {
                return Err(Error::invalid(format!(
                    "expected each label once, but found `candidate_labels[{place}]` twice"
                )));
            }
        }
        Ok(Self(labels))
    }

    /// The labels of a string with commas between them; what is empty is dropped.
    pub fn split(labels: &str) -> Vec<String> {
        labels.split(',').map(str::trim).filter(|label| !label.is_empty()).map(str::to_owned).collect()
    }

    /// The labels in the order in which they were given.
    pub fn as_slice(&self) -> &[String] {
        &self.0
    }
}

/// A sentence with a gap for a label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Template(String);

impl Template {
    /// A template; one without a gap would say the same of every label.
    pub fn new(template: String) -> Result<Self> {
        if template.contains(GAP) {
            Ok(Self(template))
        } else {
            Err(Error::invalid(
                "expected `{}` in `hypothesis_template`, where the label goes, but found none",
            ))
        }
    }

    fn fill(&self, label: &str) -> String {
        self.0.replace(GAP, label)
    }

    /// The sentence of each label. A long template, or one with many gaps, times many labels is more than memory holds,
    /// and is refused.
    fn fill_all(&self, labels: &[String]) -> Result<Vec<String>> {
        const MOST_BYTES: usize = 16 * 1024 * 1024;
        let gaps = self.0.matches(GAP).count();
        let around = self.0.len() - gaps * GAP.len();
        let bytes = labels.iter().map(|label| gaps.saturating_mul(label.len()).saturating_add(around));
        let found = bytes.fold(0, usize::saturating_add);
        if found > MOST_BYTES {
            return Err(Error::too_large(format!(
                "expected at most {MOST_BYTES} bytes of labels in their sentences, but found {found}; \
                 shorten `hypothesis_template` or send fewer labels"
            )));
        }
        Ok(labels.iter().map(|label| self.fill(label)).collect())
    }
}

impl ZeroShotPipeline {
    /// Scores by the angle between a text and its labels.
    pub fn embedding(pipeline: EmbeddingPipeline) -> Self {
        Self::Embedding(pipeline, LabelVectors::default())
    }

    /// Checks that a model's labels are those of inference.
    pub fn entailment(pipeline: ClassificationPipeline) -> Result<Self> {
        if pipeline.settings().labels.len() < 2 {
            return Err(Error::model(
                "expected a model with labels for entailment and contradiction, but found one label",
            ));
        }
        Ok(Self::Entailment(pipeline))
    }

    /// The score of each label for each text, in the order of texts and labels.
    pub async fn score(
        &self,
        texts: &[String],
        options: &ZeroShotOptions,
        deadline: Deadline,
    ) -> Result<(Vec<Vec<f32>>, Usage)> {
        let labels = options.labels.as_slice();
        let hypotheses = options.template.fill_all(labels)?;
        match self {
            Self::Entailment(pipeline) => {
                let hypotheses: Vec<Arc<str>> = hypotheses.into_iter().map(Into::into).collect();
                let pairs = texts.iter().flat_map(|text| {
                    // Shared: a long text times a thousand labels would not fit into memory.
                    let text: Arc<str> = text.as_str().into();
                    let pair = move |hypothesis: &Arc<str>| {
                        ClassificationInput::Pair(Arc::clone(&text), Arc::clone(hypothesis))
                    };
                    hypotheses.iter().map(pair)
                });
                let logits = pipeline.logits(pairs.collect(), PairTruncation::OnlyFirst, deadline).await?;
                let ids = EntailmentIds::of(&pipeline.settings().labels);
                let rows = logits.rows.chunks_exact(labels.len());
                Ok((rows.map(|rows| ids.scores(rows, options.multi_label)).collect(), logits.usage))
            }
            Self::Embedding(pipeline, known) => {
                let mut vectors = known.of(&hypotheses);
                let unknown = hypotheses.iter().zip(&vectors).filter(|(_, vector)| vector.is_none());
                let unknown = unknown.map(|(hypothesis, _)| hypothesis);
                let inputs = texts.iter().chain(unknown).cloned().map(Input::Text).collect();
                let embedding = EmbeddingOptions {
                    truncation: Truncation::At(Side::Right),
                    normalize: Some(true),
                    prompt_name: None,
                    dimensions: None,
                    max_values: usize::MAX,
                };
                let embeddings = pipeline.embed(inputs, &embedding, deadline).await?;
                let mut embedded = embeddings.vectors;
                let mut found = embedded.split_off(texts.len()).into_iter();
                for (hypothesis, vector) in hypotheses.into_iter().zip(&mut vectors) {
                    if vector.is_none() {
                        *vector = found.next().map(|found| known.keep(hypothesis, found));
                    }
                }
                let score = |text: &Vec<f32>| {
                    let cosines = vectors.iter().flatten().map(|vector| cosine(text, vector));
                    if options.multi_label || labels.len() == 1 {
                        cosines.map(|cosine| cosine.clamp(0.0, 1.0)).collect()
                    } else {
                        softmax(&cosines.map(|cosine| cosine * COSINE_SCALE).collect::<Vec<_>>())
                    }
                };
                Ok((embedded.iter().map(score).collect(), embeddings.usage))
            }
        }
    }
}

/// Which of a model's labels mean entailment and contradiction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EntailmentIds {
    entailment: usize,
    contradiction: usize,
}

impl EntailmentIds {
    /// Entailment is found by its name, or is the last; contradiction is the first, or the last where that is
    /// entailment (so `transformers` has it).
    fn of(labels: &[String]) -> Self {
        let last = labels.len() - 1;
        let entailment =
            labels.iter().position(|label| label.to_lowercase().starts_with("entail")).unwrap_or(last);
        Self { entailment, contradiction: if entailment == 0 { last } else { 0 } }
    }

    /// The scores of labels from the logits of their pairs.
    fn scores(self, rows: &[Vec<f32>], multi_label: bool) -> Vec<f32> {
        if multi_label || rows.len() == 1 {
            let pairs = rows.iter().map(|row| softmax(&[row[self.contradiction], row[self.entailment]]));
            return pairs.map(|pair| pair[1]).collect();
        }
        softmax(&rows.iter().map(|row| row[self.entailment]).collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entailment_is_found_by_its_name() {
        let ids = |labels: &[&str]| {
            let ids = EntailmentIds::of(&labels.iter().map(|label| (*label).to_owned()).collect::<Vec<_>>());
            (ids.entailment, ids.contradiction)
        };
        assert_eq!(ids(&["CONTRADICTION", "NEUTRAL", "ENTAILMENT"]), (2, 0));
        assert_eq!(ids(&["entailment", "neutral", "contradiction"]), (0, 2));
        assert_eq!(ids(&["LABEL_0", "LABEL_1", "LABEL_2"]), (2, 0));
    }

    #[test]
    fn labels_and_templates_that_cannot_be_are_refused() {
        let labels = |labels: &[&str]| {
            Labels::new(labels.iter().map(|label| (*label).to_owned()).collect(), 3).unwrap_err().to_string()
        };
        insta::assert_snapshot!(labels(&[]), @"expected 1 to 3 `candidate_labels`, but found 0");
        insta::assert_snapshot!(labels(&["a", " "]), @"expected a label in `candidate_labels[1]`, but found an empty one");
        insta::assert_snapshot!(labels(&["a", "b", "a"]), @"expected each label once, but found `candidate_labels[2]` twice");
        insta::assert_snapshot!(labels(&["a", "b", "c", "d"]), @"expected 1 to 3 `candidate_labels`, but found 4");
        insta::assert_snapshot!(labels(&["a", " a\t"]), @"expected each label once, but found `candidate_labels[1]` twice");
        assert_eq!(Labels::new(vec![" a".into(), "b ".into()], 3).unwrap().as_slice(), ["a", "b"]);
        assert_eq!(Labels::split("a, b,,c "), ["a", "b", "c"]);
        assert!(Template::new("no gap".into()).is_err());
    }

    #[test]
    fn a_template_that_fills_the_memory_is_refused() {
        let labels: Vec<String> = (0..1000).map(|number| number.to_string()).collect();
        let long = Template::new(format!("{{}}{}", "y".repeat(2_000_000))).unwrap();
        let many = Template::new("{}".repeat(1_000_000)).unwrap();
        let taken = allocation_counter::measure(|| {
            insta::assert_snapshot!(long.fill_all(&labels).unwrap_err(), @"expected at most 16777216 bytes of labels in their sentences, but found 2000002890; shorten `hypothesis_template` or send fewer labels");
            assert!(many.fill_all(&["x".repeat(4_000_000)]).is_err());
        });
        assert!(taken.bytes_max < 8 << 20, "{}", taken.bytes_max);
        assert_eq!(Template::new("{}, {}".into()).unwrap().fill_all(&labels[..2]).unwrap(), ["0, 0", "1, 1"]);
    }
}
