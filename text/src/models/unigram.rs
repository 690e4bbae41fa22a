//! Unigram models: a word becomes its most likely piece sequence.

use bytes::Bytes;
use tokenizers::{Result as RawResult, Token, models::unigram::Unigram as RawUnigram};

use super::trie::{PieceTrie, number, take};

/// A Unigram model on top of a [`PieceTrie`].
///
/// The crate builds a tree of hash maps, which takes a third of a second and some 200 MB for 250,000 pieces. Both
/// return the same ids, also for ties and unknown characters.
pub struct Unigram {
    pieces: PieceTrie,
    /// The piece for unknown characters, and the score per character.
    unknown: Option<u32>,
    unknown_score: f64,
    byte_fallback: bool,
    /// Log-probability per piece, as little-endian 64-bit floats.
    scores: Bytes,
}

/// The best known spelling for a word prefix.
#[derive(Clone, Copy, Default)]
struct Spelling {
    score: f64,
    /// Last piece's start; `None` for the empty prefix.
    start: Option<usize>,
    is_unknown: bool,
}

impl Spelling {
    fn improve(&mut self, other: Self) {
        if self.start.is_none() || other.score > self.score {
            *self = other;
        }
    }
}

/// An unknown character's penalty relative to the least likely piece, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;
/// Magic number in the file; the last byte is the version.
pub const MAGIC: [u8; 8] = *b"pieces\0\x01";
/// Replaces the unknown piece's id if there is none.
const NO_ID: u64 = u64::MAX;
const NO_UNKNOWN: &str = "the tokenizer has no piece for unknown characters";

impl Unigram {
    /// Compiles a model; `None` if it has a piece that a trie cannot have.
    pub fn file_of(model: &RawUnigram) -> Option<Vec<u8>> {
        // The crate has no accessor for the unknown piece's id.
        let settings = serde_json::to_value(model).ok()?;
        let unknown = settings
            .get("unk_id")
            .and_then(serde_json::Value::as_u64)
            .unwrap_or(NO_ID);
        let byte_fallback = u64::from(model.byte_fallback());
        let pieces: Vec<&(String, f64)> = model.iter().collect();

        // Like the `tokenizers` crate, uses the last of duplicate pieces.
        let mut keys: Vec<(&[u8], u32)> = pieces
            .iter()
            .zip(0..)
            .map(|((piece, _), id)| (piece.as_bytes(), id))
            .collect();
        keys.sort_by(|left, right| left.0.cmp(right.0).then(right.1.cmp(&left.1)));
        keys.dedup_by_key(|(piece, _)| *piece);
        let by_id: Vec<&str> = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
        let text_bytes: usize = by_id.iter().map(|piece| piece.len()).sum();

        let lowest = pieces
            .iter()
            .map(|(_, score)| *score)
            .fold(f64::INFINITY, f64::min);
        let mut file = MAGIC.to_vec();
        for number in [
            pieces.len() as u64,
            text_bytes as u64,
            unknown,
            byte_fallback,
        ] {
            file.extend(number.to_le_bytes());
        }
        file.extend((lowest - UNKNOWN_PENALTY).to_le_bytes());
        file.extend(pieces.iter().flat_map(|(_, score)| score.to_le_bytes()));
        PieceTrie::write(&by_id, &keys, &mut file)?;
        Some(file)
    }

    /// Reads the output from [`file_of`](Self::file_of) after [`MAGIC`]; `None` if it is invalid.
    pub fn read(mut file: Bytes) -> Option<Self> {
        let mut next = || number(&mut file);
        let [count, text_bytes, unknown, byte_fallback] = [next()?, next()?, next()?, next()?];
        let unknown_score = f64::from_bits(next()?);
        let scores = take(&mut file, count, 8)?;
        Some(Self {
            pieces: PieceTrie::read(count, text_bytes, file)?,
            unknown: if unknown == NO_ID {
                None
            } else {
                Some(u32::try_from(unknown).ok()?)
            },
            unknown_score,
            byte_fallback: byte_fallback != 0,
            scores,
        })
    }

    pub fn pieces(&self) -> &PieceTrie {
        &self.pieces
    }

    pub fn tokenize(&self, word: &str) -> RawResult<Vec<Token>> {
        let (mut tokens, mut start) = (Vec::new(), 0);
        for piece in self.split(word)? {
            let span = (start, start + piece.len());
            start = span.1;
            if let Some(id) = self.pieces.id_of(piece) {
                tokens.push(Token::new(id, piece.to_owned(), span));
            } else if let Some(bytes) = self.bytes_of(piece) {
                tokens.extend(bytes.into_iter().map(|id| self.pieces.token(id, span)));
            } else {
                let id = self.unknown.ok_or(NO_UNKNOWN)?;
                tokens.push(Token::new(id, piece.to_owned(), span));
            }
        }
        Ok(tokens)
    }

    fn score(&self, id: u32) -> f64 {
        let (scores, _) = self.scores.as_chunks();
        scores
            .get(id as usize)
            .map_or(f64::NEG_INFINITY, |score| f64::from_le_bytes(*score))
    }

    /// Splits a word into its most likely pieces (Viterbi); consecutive unknown characters are one piece.
    fn split<'a>(&self, word: &'a str) -> RawResult<Vec<&'a str>> {
        let mut spellings = vec![Spelling::default(); word.len() + 1];
        for (start, character) in word.char_indices() {
            let score = spellings[start].score;
            let mut has_character = false;
            for (id, length) in self.pieces.prefixes(&word.as_bytes()[start..]) {
                spellings[start + length].improve(Spelling {
                    score: score + self.score(id),
                    start: Some(start),
                    is_unknown: Some(id) == self.unknown,
                });
                has_character |= length == character.len_utf8();
            }
            if !has_character {
                self.unknown.ok_or(NO_UNKNOWN)?;
                spellings[start + character.len_utf8()].improve(Spelling {
                    score: score + self.unknown_score,
                    start: Some(start),
                    is_unknown: true,
                });
            }
        }
        let (mut pieces, mut end, mut unknown_end) = (Vec::new(), word.len(), None);
        while let Some(start) = spellings[end].start {
            if spellings[end].is_unknown {
                unknown_end.get_or_insert(end);
            } else {
                pieces.extend(
                    unknown_end
                        .take()
                        .map(|unknown_end| &word[end..unknown_end]),
                );
                pieces.push(&word[start..end]);
            }
            end = start;
        }
        pieces.extend(unknown_end.map(|unknown_end| &word[..unknown_end]));
        pieces.reverse();
        Ok(pieces)
    }

    /// Byte pieces for a text that is not a piece, if the model has all of them.
    fn bytes_of(&self, text: &str) -> Option<Vec<u32>> {
        let byte = |byte: u8| self.pieces.id_of(&format!("<0x{byte:02X}>"));
        if self.byte_fallback {
            text.bytes().map(byte).collect()
        } else {
            None
        }
    }
}
