//! Parts of a `tokenizer.json` that several tokenizers have.

use std::iter;

use serde::Serialize;
use serde_json::{Map, Value, json};

use kivu::{Error, Result};

/// A token that is never split.
pub fn added(content: &str, id: impl Serialize) -> Value {
    json!({
        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
        "normalized": false, "special": true,
    })
}

/// Special tokens with their ids, around texts.
pub struct Template<'a, I> {
    pub before: &'a [(&'a str, I)],
    pub after: &'a [(&'a str, I)],
    /// How many times the tokens after a text stand between the texts of a pair.
    pub between: usize,
    /// The token type of a pair's second text and the tokens after it.
    pub second_type: u32,
}

impl<I: Serialize> Template<'_, I> {
    pub fn post_processor(&self) -> Value {
        self.with_start(&[])
    }

    /// The same with the tokens before a text also before a pair's second text.
    pub fn around_each_text(&self) -> Value {
        self.with_start(self.before)
    }

    /// The same with tokens before a pair's second text.
    fn with_start(&self, second_start: &[(&str, I)]) -> Value {
        let part =
            |kind: &str, name: &str, type_id: u32| json!({kind: {"id": name, "type_id": type_id}});
        let special = |tokens: &[(&str, I)], type_id: u32| -> Vec<Value> {
            let names = tokens.iter().map(|(name, _)| name);
            names
                .map(|name| part("SpecialToken", name, type_id))
                .collect()
        };
        let start = [special(self.before, 0), vec![part("Sequence", "A", 0)]].concat();
        let end = special(self.after, 0);
        let single = [&start[..], &end].concat();
        let second_start = special(second_start, self.second_type);
        let second = vec![part("Sequence", "B", self.second_type)];
        let second_end = special(self.after, self.second_type);
        let tokens = self.before.iter().chain(self.after).map(|(name, id)| {
            let token = json!({"id": name, "ids": [id], "tokens": [name]});
            ((*name).to_owned(), token)
        });
        let between = iter::repeat_n(end, self.between).flatten().collect();
        let pair = [start, between, second_start, second, second_end].concat();
        json!({
            "type": "TemplateProcessing", "single": single, "pair": pair,
            "special_tokens": tokens.collect::<Map<_, _>>(),
        })
    }
}

/// The file's bytes.
pub fn to_bytes(tokenizer: &impl Serialize) -> Result<Vec<u8>> {
    serde_json::to_vec(tokenizer)
        .map_err(|error| Error::model_because("cannot write the tokenizer", error))
}
