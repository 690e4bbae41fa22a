//! Decodes token ids for OpenAI's embedding models. Some of their clients send ids instead of texts.

use std::{io::Read, sync::LazyLock};

use flate2::read::ZlibDecoder;

use kivu_base::{Error, Result};

/// All token lengths, a byte each, then their bytes; compressed by `tests/fixtures/make_cl100k.py`.
const COMPRESSED: &[u8] = include_bytes!("cl100k.bin");
/// Token count without special tokens, whose ids follow.
const COUNT: usize = 100_256;

/// The tokens, decompressed when they are first used.
static TOKENS: LazyLock<Option<Tokens>> = LazyLock::new(Tokens::decompress);

struct Tokens {
    bytes: Vec<u8>,
    /// The position after each token in `bytes`.
    ends: Vec<u32>,
}

impl Tokens {
    fn decompress() -> Option<Self> {
        let mut bytes = Vec::new();
        ZlibDecoder::new(COMPRESSED).read_to_end(&mut bytes).ok()?;
        let mut end = u32::try_from(COUNT).ok()?;
        let ends = bytes.get(..COUNT)?.iter().map(|length| {
            end += u32::from(*length);
            end
        });
        let ends: Vec<u32> = ends.collect();
        (end as usize == bytes.len()).then_some(Self { bytes, ends })
    }

    fn get(&self, id: usize) -> Option<&[u8]> {
        let end = *self.ends.get(id)? as usize;
        let start = id
            .checked_sub(1)
            .map_or(COUNT, |before| self.ends[before] as usize);
        self.bytes.get(start..end)
    }
}

/// Decodes `cl100k_base` ids to text. Characters that are cut at either end are replaced.
///
/// # Errors
/// If an id is unknown or belongs to a special token, or the tokens have more than `max_bytes` bytes: some are twenty times
/// as long as their ids.
pub fn decode(ids: &[u32], max_bytes: usize) -> Result<String> {
    let tokens = TOKENS
        .as_ref()
        .ok_or_else(|| Error::model("cannot decompress the `cl100k_base` tokens"))?;
    let mut bytes = Vec::new();
    for id in ids {
        bytes.extend_from_slice(tokens.get(*id as usize).ok_or_else(|| {
            Error::invalid(format!(
                "expected token ids of `cl100k_base` below {COUNT}, but found {id}"
            ))
        })?);
        if bytes.len() > max_bytes {
            return Err(Error::too_large(format!(
                "expected token ids with at most {max_bytes} bytes of text, but found more"
            )));
        }
    }
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use base64::{Engine, prelude::BASE64_STANDARD};
    use sha2::{Digest, Sha256};

    use super::*;

    #[test]
    fn the_tokens_are_those_of_the_published_file() {
        let tokens = TOKENS.as_ref().unwrap();
        let mut hash = Sha256::new();
        for id in 0..COUNT {
            hash.update(format!(
                "{} {id}\n",
                BASE64_STANDARD.encode(tokens.get(id).unwrap())
            ));
        }
        let hash: String = hash
            .finalize()
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        assert_eq!(
            hash,
            "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
        );
    }

    #[test]
    fn ids_of_tiktoken_are_their_text() {
        // tiktoken 0.14.
        assert_eq!(
            decode(
                &[
                    3923, 374, 5655, 6975, 30, 220, 57668, 53901, 11, 289, 9603, 509
                ],
                100
            )
            .unwrap(),
            "What is deep learning? 你好, wörld"
        );
        assert_eq!(decode(&[57668], 3).unwrap(), "你");
        insta::assert_snapshot!(decode(&[3923, 100257], 100).unwrap_err(), @"expected token ids of `cl100k_base` below 100256, but found 100257");
    }

    #[test]
    fn long_texts_of_short_ids_are_refused_before_they_take_memory() {
        // 128 spaces.
        let ids = vec![58_040; 1_000_000];
        let taken = allocation_counter::measure(|| {
            insta::assert_snapshot!(decode(&ids, 100_000).unwrap_err(), @"expected token ids with at most 100000 bytes of text, but found more");
        });
        // The tokens themselves are decompressed once.
        assert!(taken.bytes_max < 8 << 20, "{}", taken.bytes_max);
        assert_eq!(decode(&ids[..2], 256).unwrap(), " ".repeat(256));
    }
}
