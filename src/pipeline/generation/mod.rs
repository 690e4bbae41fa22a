//! Writing texts token by token, as `generate` of `transformers` does: greedy, drawn, or by beam search.

mod beams;
mod processors;
mod resolved;
mod scores;
mod search;
mod settings;
mod single;

use self::{beams::Beams, single::Single};
pub use self::{
    search::{Bounds, MOST_BEAMS, Search},
    settings::{EarlyStopping, GenerationOptions, GenerationSettings},
};
use crate::{
    backend::{Deadline, seq2seq::Decoder},
    error::{Error, Result},
};

/// A text that was generated.
#[derive(Clone, Debug, PartialEq)]
pub struct Generated {
    /// The token ids, from the one after the decoder's first to the end of the text, if it came to one.
    pub ids: Vec<i64>,
    /// The logarithm of its probability, divided by its length as the search wants it; of beam search only.
    pub score: Option<f32>,
}

/// A source whose target is generated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// The number of its tokens.
    pub length: usize,
    /// Its place in the request, from which what is drawn for it follows.
    pub number: usize,
}

/// A token that continues a row.
#[derive(Clone, Copy, Debug)]
struct Next {
    row: usize,
    token: i64,
}

/// Generates the targets of `sources`, which the decoder has a row each of: of each source as many as the search
/// wants, the best first.
///
/// - A target that is finished leaves the batch.
/// - Whatever the decoder gives, the loop ends at the search's greatest length, and at the deadline.
pub fn generate(
    decoder: &mut dyn Decoder,
    sources: &[Source],
    search: &Search,
    deadline: Deadline,
) -> Result<Vec<Vec<Generated>>> {
    let mut groups: Vec<Group<'_>> = sources.iter().map(|source| Group::new(search, *source)).collect();
    // The rows that each source has in the decoder; nothing for one that is done.
    let mut rows = vec![1; groups.len()];
    let mut tokens = vec![search.start; groups.len()];
    while !tokens.is_empty() {
        if deadline.has_passed() {
            return Err(deadline.exceeded());
        }
        let logits = decoder.step(&tokens)?;
        let width = logits.width;
        if width == 0 || logits.values.len() != tokens.len() * width {
            return Err(wrong_logits(tokens.len(), logits.values.len()));
        }
        let (mut left, mut first, mut parents) = (logits.values, 0, Vec::with_capacity(tokens.len()));
        let count = tokens.len();
        tokens.clear();
        for (group, rows) in groups.iter_mut().zip(&mut rows).filter(|(_, rows)| **rows > 0) {
            let (own, rest) = left.split_at_mut(*rows * width);
            let next = group.advance(own, width)?;
            parents.extend(next.iter().map(|next| first + next.row));
            tokens.extend(next.iter().map(|next| next.token));
            first += *rows;
            *rows = next.len();
            left = rest;
        }
        let moved = parents.len() != count || parents.iter().enumerate().any(|(row, parent)| row != *parent);
        if moved && !parents.is_empty() {
            decoder.reorder(&parents)?;
        }
    }
    Ok(groups.into_iter().map(Group::finish).collect())
}

fn wrong_logits(rows: usize, found: usize) -> Error {
    Error::Inference {
        message: format!("expected `logits` of {rows} rows, but found {found} values"),
        source: None,
    }
}

/// The texts of one source.
#[derive(Debug)]
enum Group<'a> {
    Single(Single<'a>),
    Beams(Beams<'a>),
}

impl<'a> Group<'a> {
    fn new(search: &'a Search, source: Source) -> Self {
        let max_length = search.max_length(source.length);
        if search.beams > 1 {
            Self::Beams(Beams::new(search, max_length, source.number))
        } else {
            Self::Single(Single::new(search, max_length, source.number))
        }
    }

    fn advance(&mut self, logits: &mut [f32], width: usize) -> Result<Vec<Next>> {
        match self {
            Self::Single(single) => single.advance(logits, width),
            Self::Beams(beams) => beams.advance(logits, width),
        }
    }

    fn finish(self) -> Vec<Generated> {
        match self {
            Self::Single(single) => single.finish(),
            Self::Beams(beams) => beams.finish(),
        }
    }
}
