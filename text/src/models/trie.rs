//! Vocabulary tokens as a trie that is searched in the file's bytes.

use std::collections::BTreeMap;

use bytes::{Buf, Bytes};
use serde_json::Value;
use tokenizers::Token;
use yada::{DoubleArray, builder::DoubleArrayBuilder};

/// Pieces by id, and ids by piece: a double-array trie that is built with the bundle, so that loading it takes no more
/// than reading its bytes.
pub struct PieceTrie {
    count: usize,
    /// Each piece's end in `text`, as little-endian 32-bit integers.
    ends: Bytes,
    /// All pieces, concatenated.
    text: Bytes,
    /// Maps piece bytes to ids.
    trie: DoubleArray<Bytes>,
}

/// Bit that marks a trie unit as a leaf.
const IS_LEAF: u32 = 1 << 31;

impl PieceTrie {
    /// Appends pieces to a file: `by_id`, and sorted `keys` with their ids. `None` for pieces that a trie cannot have:
    /// empty pieces, or pieces with a zero byte.
    pub fn write(by_id: &[&str], keys: &[(&[u8], u32)], file: &mut Vec<u8>) -> Option<()> {
        let trie = DoubleArrayBuilder::build(keys).ok()?;
        let mut end = 0_u32;
        for piece in by_id {
            end = end.checked_add(u32::try_from(piece.len()).ok()?)?;
            file.extend(end.to_le_bytes());
        }
        by_id.iter().for_each(|piece| file.extend(piece.as_bytes()));
        file.extend(trie);
        Some(())
    }

    /// Reads the output from [`write`](Self::write), with `count` pieces and `text_bytes` bytes; `None`
    /// if it is invalid.
    pub fn read(count: u64, text_bytes: u64, mut file: Bytes) -> Option<Self> {
        let (ends, text) = (take(&mut file, count, 4)?, take(&mut file, text_bytes, 1)?);
        // The crate checks bounds, except when it continues from a leaf, which it only does if the root is one.
        let root_is_leaf = file
            .first_chunk()
            .is_some_and(|unit| u32::from_le_bytes(*unit) & IS_LEAF != 0);
        if root_is_leaf {
            return None;
        }
        Some(Self {
            count: usize::try_from(count).ok()?,
            ends,
            text,
            trie: DoubleArray::new(file).ok()?,
        })
    }

    /// Id count.
    pub fn count(&self) -> usize {
        self.count
    }

    /// Pieces that are prefixes of `text`, the shortest first: ids and lengths in bytes.
    pub fn prefixes<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (u32, usize)> + 'a {
        // A zero byte leads the crate to unused units, which may start other pieces.
        let has_no_zero = |(_, length): &(u32, usize)| !text[..*length].contains(&0);
        let matches = self.trie.common_prefix_search(text).take_while(has_no_zero);
        matches.filter(|(id, _)| (*id as usize) < self.count)
    }

    pub fn id_of(&self, piece: &str) -> Option<u32> {
        self.prefixes(piece.as_bytes())
            .find(|(_, length)| *length == piece.len())
            .map(|(id, _)| id)
    }

    /// A token with the piece of this id.
    pub fn token(&self, id: u32, span: (usize, usize)) -> Token {
        Token::new(id, self.piece(id).unwrap_or_default().to_owned(), span)
    }

    /// The piece with this id; `None` for unused ids.
    pub fn piece(&self, id: u32) -> Option<&str> {
        let (ends, _) = self.ends.as_chunks();
        let end = |id: u32| Some(u32::from_le_bytes(*ends.get(id as usize)?) as usize);
        let start = if id == 0 { 0 } else { end(id - 1)? };
        std::str::from_utf8(self.text.get(start..end(id)?)?)
            .ok()
            .filter(|piece| !piece.is_empty())
    }
}

/// Ids by piece in a model of a `tokenizer.json`, sorted by bytes, as a trie requires.
pub fn vocabulary(model: &Value) -> Option<BTreeMap<&str, u32>> {
    let pieces = model.get("vocab")?.as_object()?.iter();
    pieces
        .map(|(piece, id)| Some((piece.as_str(), u32::try_from(id.as_u64()?).ok()?)))
        .collect()
}

/// Empty places for the pieces by id; `None` if most ids are unused, since each takes memory.
pub fn places<'a>(ids: &BTreeMap<&'a str, u32>) -> Option<Vec<&'a str>> {
    let count = *ids.values().max()? as usize + 1;
    (count <= 2 * ids.len()).then(|| vec![""; count])
}

/// A trie's keys.
pub fn keys<'a>(ids: &BTreeMap<&'a str, u32>) -> Vec<(&'a [u8], u32)> {
    let keys = ids.iter().map(|(piece, id)| (piece.as_bytes(), *id));
    keys.collect()
}

/// Reads the next `count` values from a file, `size` bytes each; `None` if it has fewer.
pub fn take(file: &mut Bytes, count: u64, size: usize) -> Option<Bytes> {
    let length = usize::try_from(count).ok()?.checked_mul(size)?;
    (length <= file.len()).then(|| file.split_to(length))
}

/// Reads the next number from a file.
pub fn number(file: &mut Bytes) -> Option<u64> {
    file.try_get_u64_le().ok()
}
