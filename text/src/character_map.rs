//! SentencePiece's normalization: the longest key of the model's character map is replaced, at each place of a text.
//!
//! The crate's `Precompiled` takes the shortest key in a grapheme cluster, and drops the rest. In texts in Unicode's
//! decomposed form, Vietnamese loses its tones, and Korean stays in parts.

use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::Value;
use tokenizers::{NormalizedString, Normalizer, NormalizerWrapper, Result as RawResult};

/// The normalizer's type in a bundle's `tokenizer.json`, where it is the first in a sequence.
pub const LONGEST_KEYS: &str = "SentencePiece";

/// A character map, and the crate's normalizers after it.
#[derive(Debug)]
pub struct TextNormalizer {
    map: Option<CharacterMap>,
    rest: NormalizerWrapper,
}

/// Replacements by key.
#[derive(Debug)]
struct CharacterMap {
    /// The keys, in a double-array trie.
    units: Vec<u32>,
    /// Each ends with a zero.
    replacements: String,
}

impl TextNormalizer {
    /// The normalizer with these settings.
    pub fn new(mut settings: Value) -> RawResult<Self> {
        let steps = settings
            .get_mut("normalizers")
            .and_then(Value::as_array_mut);
        let own = steps.and_then(|steps| steps.extract_if(..1.min(steps.len()), is_own).next());
        let map = own.map(|own| CharacterMap::new(&own)).transpose()?;
        let rest = serde_json::from_value(settings)?;
        Ok(Self { map, rest })
    }

    /// The crate's normalizer, unless there is a character map before it.
    pub fn standard(&self) -> Option<&NormalizerWrapper> {
        self.map.is_none().then_some(&self.rest)
    }
}

fn is_own(step: &mut Value) -> bool {
    step["type"] == LONGEST_KEYS
}

impl Normalizer for TextNormalizer {
    fn normalize(&self, text: &mut NormalizedString) -> RawResult<()> {
        if let Some(map) = &self.map {
            map.normalize(text);
        }
        self.rest.normalize(text)
    }
}

impl CharacterMap {
    fn new(settings: &Value) -> RawResult<Self> {
        let map = settings["precompiled_charsmap"]
            .as_str()
            .unwrap_or_default();
        let map = BASE64_STANDARD.decode(map)?;
        let cut = || "the character map is truncated";
        let (length, map) = map.split_first_chunk().ok_or_else(cut)?;
        let length = u32::from_le_bytes(*length) as usize;
        let (units, replacements) = map.split_at_checked(length).ok_or_else(cut)?;
        let units = units.as_chunks().0.iter();
        Ok(Self {
            units: units.map(|unit| u32::from_le_bytes(*unit)).collect(),
            replacements: std::str::from_utf8(replacements)?.to_owned(),
        })
    }

    fn normalize(&self, text: &mut NormalizedString) {
        let (mut rest, mut removed, mut is_changed) = (text.get(), 0, false);
        let mut changes: Vec<(char, isize)> = Vec::with_capacity(rest.len());
        while let Some(first) = rest.chars().next() {
            let found = self.longest(rest);
            is_changed |= found.is_some();
            let unchanged = || (first.len_utf8(), &rest[..first.len_utf8()]);
            let (length, new) = found.unwrap_or_else(unchanged);
            let old = rest[..length].chars().count();
            let inserted = |place| isize::from(place >= old);
            changes.extend(
                new.chars()
                    .enumerate()
                    .map(|(place, c)| (c, inserted(place))),
            );
            let left = old.saturating_sub(new.chars().count());
            match changes.last_mut() {
                Some((_, change)) => *change -= left.cast_signed(),
                None => removed += left,
            }
            rest = &rest[length..];
        }
        if is_changed {
            text.transform(changes, removed);
        }
    }

    /// The length of the longest key with which a text begins, and its replacement.
    fn longest(&self, text: &str) -> Option<(usize, &str)> {
        const LEAF: u32 = 1 << 31;
        let offset = |unit: u32| (unit >> 10) << ((unit & (1 << 9)) >> 6);
        let (mut node, mut found) = (offset(*self.units.first()?), None);
        for (place, byte) in text.bytes().enumerate().take_while(|(_, byte)| *byte > 0) {
            node ^= u32::from(byte);
            match self.units.get(node as usize) {
                Some(unit) if unit & (LEAF | 0xff) == u32::from(byte) => {
                    node ^= offset(*unit);
                    if unit >> 8 & 1 == 1 {
                        found = Some((place + 1, *self.units.get(node as usize)? & !LEAF));
                    }
                }
                _ => break,
            }
        }
        let (length, start) = found?;
        let replacement = self
            .replacements
            .get(start as usize..)?
            .split('\0')
            .next()?;
        text.is_char_boundary(length)
            .then_some((length, replacement))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tokenizers::tokenizer::normalizer::Range;

    use super::*;

    /// A map that removes `a`, and replaces `ab` by `c`.
    fn settings() -> Value {
        let mut units = vec![0; 0x704];
        let node = |label: u8, offset: u32| u32::from(label) | 1 << 8 | offset << 10;
        units[0] = 0x100 << 10;
        (units[0x161], units[0x361]) = (node(b'a', 0x200), 1 << 31);
        (units[0x303], units[0x703]) = (node(b'b', 0x400), 1 << 31 | 1);
        let length = 4 * units.len() as u32;
        let bytes = [length].into_iter().chain(units).flat_map(u32::to_le_bytes);
        let map: Vec<u8> = bytes.chain(*b"\0c\0").collect();
        let map =
            json!({"type": LONGEST_KEYS, "precompiled_charsmap": BASE64_STANDARD.encode(map)});
        json!({"type": "Sequence", "normalizers": [map, {"type": "Lowercase"}]})
    }

    #[test]
    fn the_longest_key_is_replaced_and_places_are_kept() {
        let normalizer = TextNormalizer::new(settings()).unwrap();
        let mut text = NormalizedString::from("aabXa\0");
        normalizer.normalize(&mut text).unwrap();
        assert_eq!(text.get(), "cx\0");
        let place = |start| text.convert_offsets(Range::Normalized(start..start + 1));
        assert_eq!([0, 1, 2].map(place), [Some(1..2), Some(3..4), Some(5..6)]);
        let mut text = NormalizedString::from("aa");
        normalizer.normalize(&mut text).unwrap();
        assert_eq!(text.get(), "");
        assert!(normalizer.standard().is_none());
    }

    #[test]
    fn damaged_maps_are_refused() {
        for map in ["", "AAAA", "/////w=="] {
            let mut settings = settings();
            settings["normalizers"][0]["precompiled_charsmap"] = map.into();
            assert!(TextNormalizer::new(settings).is_err(), "{map}");
        }
    }
}
