//! Runs a decoder step by step for a batch of sources.

use super::{
    beam_search::BeamSearch,
    config::GenerationConfig,
    hypothesis::{Continuation, Generated},
    sampler::Sampler,
};
use crate::backend::{Deadline, seq2seq::Decoder};
use kivu_base::{Error, Result};

/// A source sequence whose target is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceInfo {
    /// Source length in tokens, special tokens included.
    pub length: usize,
    /// Its index in the request, which is added to the seed when sampling.
    pub number: usize,
}

/// Generates `num_return_sequences` targets per source, the best first. The decoder starts with one row per source.
///
/// - Finished sources leave the batch.
/// - The loop ends at the maximum length and fails at the deadline, whatever the decoder returns.
pub fn generate(
    decoder: &mut dyn Decoder,
    sources: &[SourceInfo],
    config: &GenerationConfig,
    deadline: Deadline,
) -> Result<Vec<Vec<Generated>>> {
    let mut targets: Vec<Targets<'_>> = sources
        .iter()
        .map(|source| Targets::new(config, *source))
        .collect();
    // Decoder rows per source; 0 once it is finished.
    let mut rows = vec![1; targets.len()];
    let mut tokens = vec![config.start(); targets.len()];
    while !tokens.is_empty() {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let logits = decoder.step(&tokens)?;
        let (width, count) = (logits.width, tokens.len());
        if width == 0 || logits.values.len() != count * width {
            let message = format!(
                "expected `logits` of {count} rows, but found {} values",
                logits.values.len()
            );
            return Err(Error::inference(message));
        }
        let (mut rest, mut first, mut parents) = (logits.values, 0, Vec::with_capacity(count));
        tokens.clear();
        for (targets, rows) in targets
            .iter_mut()
            .zip(&mut rows)
            .filter(|(_, rows)| **rows > 0)
        {
            let (own, others) = rest.split_at_mut(*rows * width);
            let next = targets.advance(own, width)?;
            parents.extend(next.iter().map(|next| first + next.row));
            tokens.extend(next.iter().map(|next| next.token));
            first += *rows;
            *rows = next.len();
            rest = others;
        }
        if !parents.is_empty() && !parents.iter().copied().eq(0..count) {
            decoder.reorder(&parents)?;
        }
    }
    Ok(targets.into_iter().map(Targets::finish).collect())
}

/// Targets for one source.
#[derive(Debug)]
enum Targets<'a> {
    Sampled(Sampler<'a>),
    Beams(BeamSearch<'a>),
}

impl<'a> Targets<'a> {
    fn new(config: &'a GenerationConfig, source: SourceInfo) -> Self {
        let max_length = config.max_length(source.length);
        if config.num_beams > 1 {
            Self::Beams(BeamSearch::new(config, max_length, source.number))
        } else {
            Self::Sampled(Sampler::new(config, max_length, source.number))
        }
    }

    fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Continuation>> {
        match self {
            Self::Sampled(sampler) => sampler.advance(logits, width),
            Self::Beams(beams) => beams.advance(logits, width),
        }
    }

    fn finish(self) -> Vec<Generated> {
        match self {
            Self::Sampled(sampler) => sampler.finish(),
            Self::Beams(beams) => beams.finish(),
        }
    }
}
