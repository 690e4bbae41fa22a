//! From texts to answers, one file a task; what tasks share lies beside them.

pub mod adapter;
pub mod classification;
pub mod embedding;
pub mod encoder;
pub mod generation;
pub mod pooling;
pub mod ranking;
pub mod translation;
pub mod zero_shot;

use std::{
    fmt,
    str::FromStr,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use self::encoder::Source;
use crate::{
    backend::{Deadline, routing::Location},
    error::{Error, Result, at_text},
    telemetry,
    tokenizer::Encoding,
};

/// What a model is for, by the names that the model hub uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Task {
    /// A text to a vector.
    FeatureExtraction,
    /// A text, or two, to scores for the model's own labels.
    TextClassification,
    /// A query and texts to an order of the texts.
    TextRanking,
    /// A text to scores for labels that come with the request.
    ZeroShotClassification,
    /// A text to a text in another language.
    Translation,
}

impl Task {
    /// Every task, in the order of the documentation.
    pub const ALL: [Self; 5] = [
        Self::FeatureExtraction,
        Self::TextClassification,
        Self::TextRanking,
        Self::ZeroShotClassification,
        Self::Translation,
    ];
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::FeatureExtraction => "feature-extraction",
            Self::TextClassification => "text-classification",
            Self::TextRanking => "text-ranking",
            Self::ZeroShotClassification => "zero-shot-classification",
            Self::Translation => "translation",
        })
    }
}

impl FromStr for Task {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let known = Self::ALL.map(|task| task.to_string());
        Self::ALL.into_iter().find(|task| task.to_string() == name).ok_or_else(|| {
            Error::config(format!("expected a task of {}, but found `{name}`", crate::error::quoted(&known)))
        })
    }
}

/// More text than this is tokenised off the threads that serve connections.
const INLINE_BYTES: usize = 8 * 1024;

/// A request's texts as the model reads them.
struct Encodings {
    list: Vec<Encoding>,
    /// The words of each that is one text, where a model may want to make its tokens itself.
    texts: Vec<Option<String>>,
    /// Time spent on making them.
    tokenization: Duration,
}

impl Encodings {
    /// What `work` makes of texts of `size` bytes, here and now or off the thread.
    async fn make(
        size: usize,
        deadline: Deadline,
        work: impl FnOnce() -> Result<Vec<(Encoding, Option<String>)>> + Send + 'static,
    ) -> Result<Self> {
        let started = Instant::now();
        let made = if size <= INLINE_BYTES { work()? } else { deadline.off_thread(work).await? };
        let (list, texts) = made.into_iter().unzip();
        Ok(Self { list, texts, tokenization: started.elapsed() })
    }

    /// The tokens of all texts.
    fn tokens(&self) -> usize {
        self.list.iter().map(Encoding::len).sum()
    }

    fn sources(&self) -> Vec<Source<'_>> {
        let texts = self.texts.iter().map(Option::as_deref);
        self.list.iter().zip(texts).map(|(encoding, text)| Source { encoding, text }).collect()
    }
}

/// Encodes each input, and says of an error which one it is about. Stops at the deadline, since nobody waits for
/// the rest.
fn encode_each<I>(
    inputs: impl ExactSizeIterator<Item = I>,
    deadline: Deadline,
    encode: impl Fn(I) -> Result<(Encoding, Option<String>)>,
) -> Result<Vec<(Encoding, Option<String>)>> {
    let count = inputs.len();
    let encode = |(place, input)| {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        encode(input).map_err(|error| at_text(error, place, count))
    };
    inputs.enumerate().map(encode).collect()
}

/// What was done to a request's texts, and how long it took.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The tokens that went into the model, special tokens included.
    pub tokens: usize,
    /// The tokens that the model wrote.
    pub generated: usize,
    /// The places of the texts that were shortened.
    pub truncated: Vec<usize>,
    /// Time spent on tokenising.
    pub tokenization: Duration,
    /// Time spent in the model, waiting for it included.
    pub inference: Duration,
    /// Where the model ran.
    pub location: Location,
}

impl Usage {
    /// What the encodings of a request's texts tell; counted at once.
    fn of(encodings: &Encodings, location: Location, inference: Duration) -> Self {
        let Encodings { list, tokenization, .. } = encodings;
        let tokens = encodings.tokens();
        telemetry::encoded(tokens, *tokenization, inference);
        let was_shortened = |text: &usize| list[*text].truncated_from.is_some();
        Self {
            tokens,
            generated: 0,
            truncated: (0..list.len()).filter(was_shortened).collect(),
            tokenization: *tokenization,
            inference,
            location,
        }
    }
}
