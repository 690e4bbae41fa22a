//! DeBERTa v3's tokenizer from its SentencePiece model, converted as in `transformers`.

use serde_json::{Value, json};

use super::{SPACE, SentencePieces, precompiled};
use kivu::error::{Error, Result, quoted};

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
        let added = added.map(|(id, content)| {
            json!({
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": *content == FIRST[3], "special": true,
            })
        });
        let added: Vec<Value> = added.collect();
        let strip = json!({"type": "Strip", "strip_left": true, "strip_right": true});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "});
        let normalizers: Vec<Value> = [Some(strip), precompiled(&self.0), Some(spaces)]
            .into_iter()
            .flatten()
            .collect();
        let words = json!({"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "always", "split": true});
        let text = |name: &str, kind: u32| json!({"Sequence": {"id": name, "type_id": kind}});
        let special =
            |name: &str, kind: u32| json!({"SpecialToken": {"id": name, "type_id": kind}});
        let token = |id: usize| json!({"id": FIRST[id], "ids": [id], "tokens": [FIRST[id]]});
        let [_, first, last, _] = FIRST;
        let tokenizer = json!({
            "version": "1.0", "truncation": null, "padding": null, "added_tokens": added,
            "normalizer": {"type": "Sequence", "normalizers": normalizers},
            "pre_tokenizer": {"type": "Sequence", "pretokenizers": [words]},
            "post_processor": {
                "type": "TemplateProcessing",
                "single": [special(first, 0), text("A", 0), special(last, 0)],
                "pair": [special(first, 0), text("A", 0), special(last, 0), text("B", 1), special(last, 1)],
                "special_tokens": {first: token(1), last: token(2)},
            },
            "decoder": words,
            "model": {"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": false},
        });
        serde_json::to_vec(&tokenizer)
            .map_err(|error| Error::model_because("cannot write the tokenizer", error))
    }
}
