//! XLM-RoBERTa's tokenizer from its SentencePiece model, converted as in `transformers`.

use serde_json::{Value, json};

use super::{SPACE, SentencePieces, precompiled, to_json};
use crate::tokenizers::parts::{Template, added};
use kivu::Result;

/// The first ids, in place of the first three pieces.
const FIRST: [&str; 4] = ["<s>", "<pad>", "</s>", "<unk>"];
const REPLACED: usize = 3;
/// The token after the pieces, which includes the spaces before it.
const MASK: &str = "<mask>";

impl SentencePieces {
    /// The `tokenizer.json`.
    pub fn xlm_roberta(&self) -> Result<Vec<u8>> {
        let first = FIRST.iter().map(|token| json!([token, 0.0]));
        let pieces = self
            .0
            .pieces
            .iter()
            .skip(REPLACED)
            .map(|piece| json!([piece.piece, piece.score]));
        let vocabulary: Vec<Value> = first.chain(pieces).chain([json!([MASK, 0.0])]).collect();
        let ids = FIRST.iter().zip(0..).chain([(&MASK, vocabulary.len() - 1)]);
        let mut tokens: Vec<Value> = ids.map(|(token, id)| added(token, id)).collect();
        // The mask token.
        if let Some(mask) = tokens.last_mut() {
            mask["lstrip"] = json!(true);
        }
        let strip = json!({"type": "Strip", "strip_left": false, "strip_right": true});
        let spaces = json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": SPACE});
        let normalizers: Vec<Value> = [precompiled(&self.0), Some(strip), Some(spaces)]
            .into_iter()
            .flatten()
            .collect();
        let [begin, _, end, _] = FIRST;
        let template = Template {
            before: &[(begin, 0)],
            after: &[(end, 2)],
            between: 2,
            second_type: 0,
        };
        let model =
            json!({"type": "Unigram", "unk_id": 3, "vocab": vocabulary, "byte_fallback": false});
        let normalizer = json!({"type": "Sequence", "normalizers": normalizers});
        to_json(
            &model,
            &normalizer,
            &tokens,
            Some(&template.post_processor()),
        )
    }
}
