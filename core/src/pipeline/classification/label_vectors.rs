//! Label vectors, which do not depend on texts: they are computed once and kept.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard},
};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use crate::backend::{Deadline, encoder::EncoderBackend};
use crate::pipeline::encoder::{
    Encoder, Granularity, NamedOutput, Vectors,
    encoding::{EncodingOptions, Input},
};
use kivu_base::{Error, Result, locked};
use kivu_text::{Side, Tokenizer, Truncation};

/// A label's vector, shared by requests.
type Shared = Arc<[f32]>;

/// An LRU cache for label vectors, since most clients send the same labels with every request.
///
/// A text's vector does not depend on other texts in the request, so results do not depend on the cache.
#[derive(Clone, Debug)]
pub struct LabelVectors(Arc<Mutex<LruCache<String, Shared>>>);

impl LabelVectors {
    const MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
    /// Maximum bytes per cached label or sentence: a label with its template is short.
    const MAX_BYTES: usize = 256;

    /// Vectors that are kept, by label, and the labels without one.
    pub fn get<'a>(&self, labels: &'a [String]) -> (Vec<Option<Shared>>, Vec<&'a String>) {
        let mut cache = self.lock();
        let kept: Vec<_> = labels
            .iter()
            .map(|label| cache.get(label).cloned())
            .collect();
        let missing = labels
            .iter()
            .zip(&kept)
            .filter(|(_, vector)| vector.is_none());
        let missing = missing.map(|(label, _)| label).collect();
        (kept, missing)
    }

    /// Keeps the vectors of labels without one, given in order, and returns the vectors of all.
    pub fn complete(
        &self,
        labels: &[String],
        kept: Vec<Option<Shared>>,
        found: Vec<Vec<f32>>,
    ) -> Result<Vec<Shared>> {
        let (mut cache, mut found) = (self.lock(), found.into_iter());
        let vectors = labels.iter().zip(kept).map(|(label, vector)| {
            vector.or_else(|| {
                let vector: Shared = found.next()?.into();
                if label.len() <= Self::MAX_BYTES {
                    cache.put(label.clone(), Arc::clone(&vector));
                }
                Some(vector)
            })
        });
        let vectors: Option<Vec<_>> = vectors.collect();
        vectors.ok_or_else(|| Error::inference("expected a vector per label, but found fewer"))
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<String, Shared>> {
        locked(&self.0)
    }
}

impl Default for LabelVectors {
    fn default() -> Self {
        Self(Arc::new(Mutex::new(LruCache::new(Self::MAX))))
    }
}

/// A bundle's second encoder, which reads labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LabelEncoderSettings {
    /// Graph file name.
    pub graph: String,
    /// Tokenizer file name.
    pub tokenizer: String,
    /// Output name; a vector per label.
    pub output: String,
    /// Values per vector.
    pub dimensions: usize,
    /// Maximum tokens per label, special tokens included; longer labels are truncated.
    pub max_tokens: usize,
}

/// An encoder for labels, with the vectors that it has computed.
#[derive(Clone, Debug)]
pub struct LabelEncoder {
    encoder: Encoder,
    vectors: LabelVectors,
}

impl LabelEncoder {
    /// Joins a tokenizer and a model. Fails if the model's signature differs from the settings.
    pub fn new(
        tokenizer: Arc<Tokenizer>,
        backend: Arc<dyn EncoderBackend>,
        settings: &LabelEncoderSettings,
    ) -> Result<Self> {
        let LabelEncoderSettings {
            output,
            dimensions,
            max_tokens,
            ..
        } = settings;
        let output = NamedOutput {
            name: output.clone(),
            width: *dimensions,
            vectors: Vectors::Any,
        };
        let encoder = Encoder::new(tokenizer, backend.into(), vec![output], None, *max_tokens)?;
        Ok(Self {
            encoder,
            vectors: LabelVectors::default(),
        })
    }

    /// The labels' vectors, one after the other.
    pub async fn encode(&self, labels: &[String], deadline: Deadline) -> Result<Arc<[f32]>> {
        let (kept, missing) = self.vectors.get(labels);
        let missing: Vec<Input> = missing.into_iter().cloned().map(Input::Text).collect();
        let found = match missing.is_empty() {
            true => Vec::new(),
            false => {
                let options = EncodingOptions::new(Truncation::At(Side::Right));
                self.encoder
                    .logits(missing, options, Granularity::Texts, deadline)
                    .await?
                    .rows
            }
        };
        let vectors = self.vectors.complete(labels, kept, found)?;
        Ok(vectors
            .iter()
            .flat_map(|vector| vector.iter().copied())
            .collect())
    }
}
