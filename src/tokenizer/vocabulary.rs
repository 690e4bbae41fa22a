//! The vocabulary of a tokenizer, and the form that large ones are loaded from.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use bytes::{Buf, Bytes};
use tokenizers::{
    Model, Result as RawResult, Token,
    models::{ModelWrapper, TrainerWrapper, unigram::Unigram, unigram::UnigramTrainer},
};
use yada::{DoubleArray, builder::DoubleArrayBuilder};

/// What turns words into pieces: the crate's own models, or [`Pieces`].
#[derive(Debug)]
pub(super) enum Vocabulary {
    Own(ModelWrapper),
    Pieces(Pieces),
}

/// A Unigram vocabulary in the form that it is searched in.
///
/// The crate makes a tree of hash maps from a list of pieces: for 250,000 of them that takes a third of a second
/// and some 200 MB. This is a double-array trie that was made when the bundle was built, and takes what reading
/// it takes. Ids are those of the crate, ties and unknown characters included.
pub(super) struct Pieces {
    /// How many there are.
    count: usize,
    /// The piece that stands for unknown characters, and what one of them scores.
    unknown: Option<u32>,
    unknown_score: f64,
    byte_fallback: bool,
    /// The logarithm of each piece's probability, as little-endian 64-bit floats.
    scores: Bytes,
    /// Where each piece ends in `text`, as little-endian 32-bit integers.
    ends: Bytes,
    /// All pieces, one after the other.
    text: Bytes,
    /// From the bytes of a piece to its id.
    trie: DoubleArray<Bytes>,
}

/// The best way that is known to spell a word up to some byte.
#[derive(Clone, Copy, Default)]
struct Spelling {
    score: f64,
    /// Where its last piece begins; nothing at the word's beginning.
    start: Option<usize>,
    is_unknown: bool,
}

impl Spelling {
    fn improve(&mut self, score: f64, start: usize, is_unknown: bool) {
        if self.start.is_none() || score > self.score {
            *self = Self { score, start: Some(start), is_unknown };
        }
    }
}

/// What an unknown character costs beyond the least likely piece, as in SentencePiece.
const UNKNOWN_PENALTY: f64 = 10.0;
/// What a file of pieces begins with; the last byte counts its forms.
const MAGIC: [u8; 8] = *b"pieces\0\x01";
/// In place of the id of the unknown piece where there is none.
const NO_ID: u64 = u64::MAX;
/// The bit of a trie's unit by which it is a leaf.
const IS_LEAF: u32 = 1 << 31;
const NO_UNKNOWN: &str = "the tokenizer has no piece for unknown characters";

impl Pieces {
    /// The file of a model's pieces, or nothing where they cannot be written so: a trie has no empty pieces and
    /// none with a zero byte.
    pub(super) fn file_of(model: &Unigram) -> Option<Vec<u8>> {
        // The model gives its pieces with their scores, but not which of them stands for the unknown.
        let settings = serde_json::to_value(model).ok()?;
        let unknown = settings.get("unk_id").and_then(serde_json::Value::as_u64).unwrap_or(NO_ID);
        let byte_fallback = u64::from(model.byte_fallback());
        let pieces: Vec<&(String, f64)> = model.iter().collect();

        // Of a piece that is listed twice, the crate takes the last.
        let mut keys: Vec<(&[u8], u32)> =
            pieces.iter().zip(0..).map(|((piece, _), id)| (piece.as_bytes(), id)).collect();
        keys.sort_by(|left, right| left.0.cmp(right.0).then(right.1.cmp(&left.1)));
        keys.dedup_by_key(|(piece, _)| *piece);
        let trie = DoubleArrayBuilder::build(&keys).ok()?;

        let text: String = pieces.iter().map(|(piece, _)| piece.as_str()).collect();
        let lowest = pieces.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
        let mut file = MAGIC.to_vec();
        for number in [pieces.len() as u64, text.len() as u64, unknown, byte_fallback] {
            file.extend(number.to_le_bytes());
        }
        file.extend((lowest - UNKNOWN_PENALTY).to_le_bytes());
        file.extend(pieces.iter().flat_map(|(_, score)| score.to_le_bytes()));
        let mut end = 0_u32;
        for (piece, _) in &pieces {
            end = end.checked_add(u32::try_from(piece.len()).ok()?)?;
            file.extend(end.to_le_bytes());
        }
        file.extend(text.as_bytes());
        file.extend(trie);
        Some(file)
    }

    /// Reads what [`Pieces::file_of`] has written; nothing where a file is something else. What it holds stays
    /// where it is.
    pub(super) fn read(mut file: Bytes) -> Option<Self> {
        let mut take = |count: u64, size: usize| {
            let length = usize::try_from(count).ok()?.checked_mul(size)?;
            (length <= file.len()).then(|| file.split_to(length))
        };
        if take(1, MAGIC.len())? != MAGIC[..] {
            return None;
        }
        let mut number = || Some(take(1, 8)?.get_u64_le());
        let [count, text_bytes, unknown, byte_fallback] = [number()?, number()?, number()?, number()?];
        let unknown_score = f64::from_bits(number()?);
        let (scores, ends, text) = (take(count, 8)?, take(count, 4)?, take(text_bytes, 1)?);
        // The crate looks no further than the array for all but its leaves, which it never goes on from unless it
        // begins with one.
        let begins_with_leaf =
            file.first_chunk().is_some_and(|unit| u32::from_le_bytes(*unit) & IS_LEAF != 0);
        if begins_with_leaf {
            return None;
        }
        Some(Self {
            count: usize::try_from(count).ok()?,
            unknown: if unknown == NO_ID { None } else { Some(u32::try_from(unknown).ok()?) },
            unknown_score,
            byte_fallback: byte_fallback != 0,
            scores,
            ends,
            text,
            trie: DoubleArray::new(file).ok()?,
        })
    }

    /// The pieces that `text` begins with: their ids and lengths in bytes, the shortest first.
    fn beginning<'a>(&'a self, text: &'a str) -> impl Iterator<Item = (u32, usize)> + 'a {
        self.trie.common_prefix_search(text).filter(|(id, _)| (*id as usize) < self.count)
    }

    fn score(&self, id: u32) -> f64 {
        let (scores, _) = self.scores.as_chunks();
        scores.get(id as usize).map_or(f64::NEG_INFINITY, |score| f64::from_le_bytes(*score))
    }

    /// Splits a word into its most likely pieces (Viterbi); runs of unknown characters stay together.
    fn split<'a>(&self, word: &'a str) -> RawResult<Vec<&'a str>> {
        let mut spellings = vec![Spelling::default(); word.len() + 1];
        for (start, character) in word.char_indices() {
            let score = spellings[start].score;
            let mut has_character = false;
            for (id, length) in self.beginning(&word[start..]) {
                let score = score + self.score(id);
                spellings[start + length].improve(score, start, Some(id) == self.unknown);
                has_character |= length == character.len_utf8();
            }
            if !has_character {
                self.unknown.ok_or(NO_UNKNOWN)?;
                spellings[start + character.len_utf8()].improve(score + self.unknown_score, start, true);
            }
        }
        let (mut pieces, mut end, mut unknown_end) = (Vec::new(), word.len(), None);
        while let Some(start) = spellings[end].start {
            if spellings[end].is_unknown {
                unknown_end.get_or_insert(end);
            } else {
                pieces.extend(unknown_end.take().map(|unknown_end| &word[end..unknown_end]));
                pieces.push(&word[start..end]);
            }
            end = start;
        }
        pieces.extend(unknown_end.map(|unknown_end| &word[..unknown_end]));
        pieces.reverse();
        Ok(pieces)
    }

    /// The pieces that stand for the bytes of a text that has no piece, if there are all of them.
    fn bytes_of(&self, text: &str) -> Option<Vec<u32>> {
        let byte = |byte: u8| self.token_to_id(&format!("<0x{byte:02X}>"));
        if self.byte_fallback { text.bytes().map(byte).collect() } else { None }
    }

    fn piece(&self, id: u32) -> Option<&str> {
        let (ends, _) = self.ends.as_chunks();
        let end = |id: u32| Some(u32::from_le_bytes(*ends.get(id as usize)?) as usize);
        let start = if id == 0 { 0 } else { end(id - 1)? };
        std::str::from_utf8(self.text.get(start..end(id)?)?).ok()
    }
}

impl std::fmt::Debug for Pieces {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pieces").field("count", &self.count).finish_non_exhaustive()
    }
}

impl Model for Pieces {
    type Trainer = UnigramTrainer;

    fn tokenize(&self, word: &str) -> RawResult<Vec<Token>> {
        let (mut tokens, mut start) = (Vec::new(), 0);
        for piece in self.split(word)? {
            let span = (start, start + piece.len());
            start = span.1;
            if let Some(id) = self.token_to_id(piece) {
                tokens.push(Token::new(id, piece.to_owned(), span));
            } else if let Some(bytes) = self.bytes_of(piece) {
                let token = |id| Token::new(id, self.piece(id).unwrap_or_default().to_owned(), span);
                tokens.extend(bytes.into_iter().map(token));
            } else {
                let id = self.unknown.ok_or(NO_UNKNOWN)?;
                tokens.push(Token::new(id, piece.to_owned(), span));
            }
        }
        Ok(tokens)
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        self.beginning(token).find(|(_, length)| *length == token.len()).map(|(id, _)| id)
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        self.piece(id).map(str::to_owned)
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        (0..self.count as u32).filter_map(|id| Some((self.id_to_token(id)?, id))).collect()
    }

    fn get_vocab_size(&self) -> usize {
        self.count
    }

    fn save(&self, _: &Path, _: Option<&str>) -> RawResult<Vec<PathBuf>> {
        Err("pieces are read, and written by the build of a bundle only".into())
    }

    fn get_trainer(&self) -> Self::Trainer {
        UnigramTrainer::default()
    }
}

impl Model for Vocabulary {
    type Trainer = TrainerWrapper;

    fn tokenize(&self, word: &str) -> RawResult<Vec<Token>> {
        match self {
            Self::Own(model) => model.tokenize(word),
            Self::Pieces(pieces) => pieces.tokenize(word),
        }
    }

    fn token_to_id(&self, token: &str) -> Option<u32> {
        match self {
            Self::Own(model) => model.token_to_id(token),
            Self::Pieces(pieces) => pieces.token_to_id(token),
        }
    }

    fn id_to_token(&self, id: u32) -> Option<String> {
        match self {
            Self::Own(model) => model.id_to_token(id),
            Self::Pieces(pieces) => pieces.id_to_token(id),
        }
    }

    fn get_vocab(&self) -> HashMap<String, u32> {
        match self {
            Self::Own(model) => model.get_vocab(),
            Self::Pieces(pieces) => pieces.get_vocab(),
        }
    }

    fn get_vocab_size(&self) -> usize {
        match self {
            Self::Own(model) => model.get_vocab_size(),
            Self::Pieces(pieces) => pieces.get_vocab_size(),
        }
    }

    fn save(&self, folder: &Path, prefix: Option<&str>) -> RawResult<Vec<PathBuf>> {
        match self {
            Self::Own(model) => model.save(folder, prefix),
            Self::Pieces(pieces) => pieces.save(folder, prefix),
        }
    }

    fn get_trainer(&self) -> Self::Trainer {
        match self {
            Self::Own(model) => model.get_trainer(),
            Self::Pieces(pieces) => pieces.get_trainer().into(),
        }
    }
}
