//! DeBERTa v3's tokenizer from its SentencePiece model, converted as in `transformers`.

use serde_json::{Value, json};

use super::{SentencePieces, metaspace, precompiled};
use crate::tokenizers::parts::{self, Template, to_bytes};
use kivu::{Error, Result, error::quoted};

/// The first pieces. The last one is for unknown characters.
const FIRST: [&str; 4] = ["[PAD]", "[CLS]", "[SEP]", "[UNK]"];
/// The token after the pieces.
const MASK: &str = "[MASK]";

impl SentencePieces {
    /// The `tokenizer.json`.
    pub fn deberta(&self) -> Result<Vec<u8>> {
        if !self.pieces().take(FIRST.len()).eq(FIRST) {
            return Err(Error::model(format!(
                "the SentencePiece model does not begin with {}, as DeBERTa v3's does",
                quoted(&FIRST)
            )));
        }
        let vocabulary: Vec<Value> = self
            .0
            .pieces
            .iter()
            .map(|piece| json!([piece.piece, piece.score]))
            .collect();
        let added = FIRST.iter().enumerate().chain([(vocabulary.len(), &MASK)]);
        let mut added: Vec<Value> = added
            .map(|(id, content)| parts::added(content, id))
            .collect();
        added[3]["normalized"] = true.into();
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let normalizers: Vec<Value> = [Some(strip), precompiled(&self.0), Some(spaces)]
            .into_iter()
            .flatten()
            .collect();
        let words = metaspace();
        let [_, first, last, _] = FIRST;
        let template = Template {
            before: &[(first, 1)],
            after: &[(last, 2)],
            between: 1,
            second_type: 1,
        };
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words]},
            "post_processor": template.post_processor(), "decoder": words,
            "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": false},
        });
        to_bytes(&tokenizer)
    }
}
