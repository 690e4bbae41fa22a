//! Decodes byte pieces as SentencePiece does.

use tokenizers::DecoderWrapper;

/// The text for a byte that belongs to no character.
const REPLACEMENT: &str = "\u{FFFD}";

/// Whether byte pieces are decoded first, as in tokenizers that are built from a SentencePiece model. In others,
/// `transformers` uses the crate's decoder as well.
pub fn come_first(decoder: &DecoderWrapper) -> bool {
    let DecoderWrapper::Sequence(sequence) = decoder else {
        return false;
    };
    matches!(
        sequence.get_decoders(),
        [DecoderWrapper::ByteFallback(_), ..]
    )
}

/// Replaces the bytes that belong to no character. The crate replaces all bytes of a run that has one.
pub fn replace_invalid(tokens: Vec<String>) -> Vec<String> {
    let (mut replaced, mut run) = (Vec::with_capacity(tokens.len()), Vec::new());
    for token in tokens {
        match byte(&token) {
            Some(byte) => run.push((byte, token)),
            None => {
                replaced.extend(valid(std::mem::take(&mut run)));
                replaced.push(token);
            }
        }
    }
    replaced.extend(valid(run));
    replaced
}

/// A run's tokens.
fn valid(run: Vec<(u8, String)>) -> impl Iterator<Item = String> {
    let (bytes, tokens): (Vec<u8>, Vec<String>) = run.into_iter().unzip();
    let parts = bytes
        .utf8_chunks()
        .map(|chunk| (chunk.valid().len(), chunk.invalid().len()));
    let is_valid: Vec<bool> = parts
        .flat_map(|(valid, invalid)| [vec![true; valid], vec![false; invalid]].concat())
        .collect();
    tokens.into_iter().zip(is_valid).map(|(token, is_valid)| {
        if is_valid {
            token
        } else {
            REPLACEMENT.to_owned()
        }
    })
}

/// The byte of a piece such as `<0x41>`.
fn byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    u8::from_str_radix(digits, 16)
        .ok()
        .filter(|_| digits.len() == 2)
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use crate::Tokenizer;

    /// A tokenizer with a piece per byte, and `▁a`.
    fn tokenizer(decoders: &Value) -> Tokenizer {
        let bytes = (0..=255).map(|byte: u32| (format!("<0x{byte:02X}>"), byte.into()));
        let vocabulary: Map<String, Value> = bytes.chain([("▁a".to_owned(), 256.into())]).collect();
        let model = json!({"type": "WordLevel", "vocab": vocabulary, "unk_token": "▁a"});
        let decoder = json!({"type": "Sequence", "decoders": decoders});
        let file =
            json!({"version": "1.0", "added_tokens": [], "model": model, "decoder": decoder});
        Tokenizer::from_json(file.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn bytes_are_decoded_as_by_sentencepiece() {
        let spaces = json!({"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": true});
        let tokenizer = tokenizer(&json!([{"type": "ByteFallback"}, spaces]));
        // Expected texts: the Python package `sentencepiece` 0.2.3.
        for (ids, expected) in [
            (&[0xE4, 0xBD, 0xA0, 0xE5, 0xA5][..], "你��"),
            (&[0xD8, 0xD8, 0xAA], "�ت"),
            (&[0x47, 0x80], "G�"),
            (&[0xF0, 0x9F, 0x98], "���"),
            (&[0xED, 0xA0, 0x80], "���"),
            (&[0xC0, 0xAF, 0x41], "��A"),
            (&[256, 0xE4, 0xBD, 256, 0xE4, 0xBD, 0xA0], "a�� a你"),
        ] {
            assert_eq!(tokenizer.decode(ids, true).unwrap(), expected, "{ids:?}");
        }
    }

    #[test]
    fn other_decoders_are_those_of_the_crate() {
        let spaces = json!({"type": "Replace", "pattern": {"String": "▁"}, "content": " "});
        let tokenizer = tokenizer(&json!([spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]));
        assert_eq!(tokenizer.decode(&[0x47, 0x80], true).unwrap(), "��");
    }
}
