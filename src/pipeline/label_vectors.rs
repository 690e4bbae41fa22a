//! Label vectors, which do not depend on texts: they are computed once and kept.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use lru::LruCache;
use serde::{Deserialize, Serialize};

use super::{
    encoder::{Encoder, Granularity, NamedOutput, Vectors},
    encoding::{EncodingOptions, Input},
};
use crate::{
    backend::{Backend, Deadline},
    error::{Error, Result},
    tokenizer::{Side, Tokenizer, Truncation},
};

/// An LRU cache for label vectors, since most clients send the same labels with every request.
///
/// A text's vector does not depend on other texts in the request, so results do not depend on the cache.
#[derive(Clone, Debug)]
pub struct LabelVectors(Arc<Mutex<LruCache<String, Arc<[f32]>>>>);

impl LabelVectors {
    const MAX: NonZeroUsize = NonZeroUsize::new(1024).unwrap();
    /// Maximum bytes per cached label or sentence: a label with its template is short.
    const MAX_BYTES: usize = 256;

    pub(super) fn get(&self, sentences: &[String]) -> Vec<Option<Arc<[f32]>>> {
        let mut cache = self.lock();
        sentences.iter().map(|sentence| cache.get(sentence).cloned()).collect()
    }

    pub(super) fn put(&self, sentence: String, vector: Vec<f32>) -> Arc<[f32]> {
        let vector: Arc<[f32]> = vector.into();
        if sentence.len() <= Self::MAX_BYTES {
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
        backend: Arc<dyn Backend>,
        settings: &LabelEncoderSettings,
    ) -> Result<Self> {
        let LabelEncoderSettings { output, dimensions, max_tokens, .. } = settings;
        let output = NamedOutput { name: output.clone(), width: *dimensions, vectors: Vectors::Any };
        let encoder = Encoder::new(tokenizer, backend.into(), vec![output], None, *max_tokens)?;
        Ok(Self { encoder, vectors: LabelVectors::default() })
    }

    /// The labels' vectors, one after the other.
    pub(super) async fn encode(&self, labels: &[String], deadline: Deadline) -> Result<Arc<[f32]>> {
        let mut vectors = self.vectors.get(labels);
        let missing = labels.iter().zip(&vectors).filter(|(_, vector)| vector.is_none());
        let missing: Vec<Input> = missing.map(|(label, _)| Input::Text(label.clone())).collect();
        if !missing.is_empty() {
            let options = EncodingOptions::new(Truncation::At(Side::Right));
            let found = self.encoder.logits(missing, options, Granularity::Texts, deadline).await?;
            let mut found = found.rows.into_iter();
            for (label, vector) in labels.iter().zip(&mut vectors) {
                if vector.is_none() {
                    *vector = found.next().map(|found| self.vectors.put(label.clone(), found));
                }
            }
        }
        let vectors: Option<Vec<_>> = vectors.into_iter().collect();
        let vectors =
            vectors.ok_or_else(|| Error::inference("expected a vector per label, but found fewer"))?;
        Ok(vectors.iter().flat_map(|vector| vector.iter().copied()).collect())
    }
}
