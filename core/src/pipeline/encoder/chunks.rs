//! Late chunking: the model reads a text as a whole, and each chunk's vector is pooled from the chunk's own tokens,
//! which attend to all chunks.

use std::ops::Range;

use crate::pipeline::seq2seq::segmentation::{Segment, split};
use kivu_base::{Error, Result};

/// A text and its chunks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chunks {
    text: String,
    /// In bytes, in text order.
    spans: Vec<Range<usize>>,
}

impl Chunks {
    /// Joins texts into one, each a chunk. A space separates two texts unless one has white space at the boundary.
    pub fn joined<S: AsRef<str>>(texts: impl IntoIterator<Item = S>) -> Self {
        let (mut text, mut spans) = (String::new(), Vec::new());
        for chunk in texts {
            let chunk = chunk.as_ref();
            if !text.is_empty()
                && !text.ends_with(char::is_whitespace)
                && !chunk.starts_with(char::is_whitespace)
            {
                text.push(' ');
            }
            spans.push(text.len()..text.len() + chunk.len());
            text.push_str(chunk);
        }
        Self { text, spans }
    }

    /// A text whose chunks are its sentences, at most `max`, without the white space around them.
    pub fn sentences(text: String, max: usize) -> Result<Self> {
        let (mut spans, mut start) = (Vec::new(), 0);
        for segment in split(&text, max) {
            let (Segment::Sentence(part) | Segment::Space(part)) = segment;
            if let Segment::Sentence(_) = segment {
                spans.push(start..start + part.len());
            }
            start += part.len();
        }
        if spans.len() > max {
            return Err(Error::too_large(format!(
                "expected a text of at most {max} sentences, since the model takes as many tokens, \
                 but found more"
            ))
            .with_hint("send a shorter text"));
        }
        if spans.is_empty() {
            spans.push(0..text.len());
        }
        Ok(Self { text, spans })
    }

    /// Number of chunks.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    /// Start and end per chunk, in characters.
    pub fn spans(&self) -> Vec<[usize; 2]> {
        let (mut byte, mut character) = (0, 0);
        let mut characters = |end: usize| {
            character += self.text[byte..end].chars().count();
            byte = end;
            character
        };
        self.spans
            .iter()
            .map(|span| [characters(span.start), characters(span.end)])
            .collect()
    }

    /// The text after a prompt, with the chunk ends in bytes.
    pub fn prompted(&self, prompt: Option<&str>) -> (String, Vec<usize>) {
        let prompt = prompt.unwrap_or_default();
        (
            format!("{prompt}{}", self.text),
            self.spans
                .iter()
                .map(|span| prompt.len() + span.end)
                .collect(),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_joined_with_white_space() {
        let chunks = Chunks::joined(["Olá.", "Two", " three\n", "four"]);
        assert_eq!(chunks.text, "Olá. Two three\nfour");
        assert_eq!(chunks.spans(), [[0, 4], [5, 8], [8, 15], [15, 19]]);
        assert_eq!(chunks.prompted(Some("q: ")).1, [8, 12, 19, 23]);
    }

    #[test]
    fn sentences_have_their_places_in_the_text() {
        let sentences = |text: &str, max| Chunks::sentences(text.into(), max);
        let text = " É o Dr. Silva.  Two?\nThree ";
        assert_eq!(
            sentences(text, 3).unwrap().spans(),
            [[1, 15], [17, 21], [22, 27]]
        );
        assert_eq!(sentences(" \n", 3).unwrap().spans(), [[0, 2]]);
        insta::assert_snapshot!(sentences(text, 2).unwrap_err(), @"expected a text of at most 2 sentences, since the model takes as many tokens, but found more; send a shorter text");
    }
}
