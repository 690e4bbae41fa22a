//! Token ids, which must have a row in the model's table.

use serde_json::{Map, Value};

use super::{
    parts::to_bytes,
    tokenizer_config::{NAME, UNKNOWN, special_token},
};
use crate::files::{io::parse_tokenizer, model_folder::ModelFolder};
use kivu::{
    Error, Result,
    pipeline::seq2seq::UnknownTokens,
    tokenizer::{Tokenizer, Truncation},
};

/// Refuses tokens without a row in a table with `rows` rows: no text with these tokens could be computed.
///
/// Removes special tokens added for other models, such as image tokens, which the model's texts do not contain.
pub fn within_vocabulary(json: Vec<u8>, rows: usize) -> Result<Vec<u8>> {
    within_vocabulary_or_unknown(json, rows, None)
}

/// Like [`within_vocabulary`], for a tokenizer with ids that are read as another token's.
pub fn within_vocabulary_or_unknown(
    json: Vec<u8>,
    rows: usize,
    unknown: Option<&UnknownTokens>,
) -> Result<Vec<u8>> {
    let first = u32::try_from(rows).unwrap_or(u32::MAX);
    let end = unknown.map_or(u32::MAX, |unknown| unknown.from);
    let tokens_beyond = |tokenizer: &Tokenizer| {
        let mut tokens = tokenizer.tokens_from(first);
        tokens.retain(|(id, _)| *id < end);
        tokens
    };
    let beyond = tokens_beyond(&Tokenizer::from_json(&json)?);
    if beyond.is_empty() {
        return Ok(json);
    }
    let mut file: Map<String, Value> = parse_tokenizer(&json)?;
    let mut removed = Vec::new();
    if let Some(Value::Array(added)) = file.get_mut("added_tokens") {
        let is_beyond = |token: &Value| beyond.iter().any(|(_, name)| token["content"] == **name);
        removed.extend(added.extract_if(.., |token| token["special"] == true && is_beyond(token)));
    }
    if let Some(Value::Object(vocabulary)) = file
        .get_mut("model")
        .and_then(|model| model.get_mut("vocab"))
    {
        removed
            .iter()
            .filter_map(|token| token["content"].as_str())
            .for_each(|token| drop(vocabulary.remove(token)));
    }
    let json = to_bytes(&file)?;
    let tokenizer = Tokenizer::from_json(&json)?;
    let pair = tokenizer.encode_pair(["", ""], usize::MAX, Truncation::Off)?;
    let around = pair.ids.into_iter().chain(tokenizer.special_ids().concat());
    let around = around
        .filter(|id| *id >= first)
        .map(|id| (id, "around texts".to_owned()));
    match tokens_beyond(&tokenizer).into_iter().chain(around).next() {
        None => {
            tracing::warn!(
                "leaving out {} special tokens of the tokenizer, from `{}` on, which the model has no vectors for",
                beyond.len(),
                beyond[0].1
            );
            Ok(json)
        }
        Some((id, token)) => Err(Error::model(format!(
            "expected tokens with ids below {rows}, the rows of the model's table, but found \
             `{token}` with {id}"
        ))
        .with_hint(
            "resize the model's table (`resize_token_embeddings`), or remove the token from the \
             tokenizer",
        )),
    }
}

/// Refuses a tokenizer that gives tokens types without a row in a table with `rows` rows: in texts, or in pairs if the
/// model reads them. A model without a table has no token types.
pub fn within_types(json: &[u8], rows: usize, reads_pairs: bool) -> Result<()> {
    let tokenizer = Tokenizer::from_json(json)?;
    let pair = reads_pairs
        .then(|| tokenizer.encode_pair(["a", "a"], usize::MAX, Truncation::Off))
        .transpose()?;
    let text = tokenizer.encode("a", usize::MAX, Truncation::Off)?;
    let types = pair
        .into_iter()
        .chain([text])
        .flat_map(|encoding| encoding.type_ids);
    let largest = types.max().unwrap_or(0) as usize;
    if rows == 0 || largest < rows {
        return Ok(());
    }
    Err(Error::model(format!(
        "expected types of tokens below {rows}, the `type_vocab_size` of the model, but found {largest} in the \
         `post_processor` of the tokenizer"
    )))
}

/// Refuses a tokenizer that puts the token `padding`, to which no position belongs, around texts: the model reads longer
/// texts than the rows of its position table suggest.
pub fn has_positions(json: &[u8], padding: i64) -> Result<()> {
    let tokenizer = Tokenizer::from_json(json)?;
    let pair = tokenizer.encode_pair(["", ""], usize::MAX, Truncation::Off)?;
    match pair.ids.into_iter().find(|id| i64::from(*id) == padding) {
        None => Ok(()),
        Some(id) => Err(Error::model(format!(
            "expected the id of the padding token as `pad_token_id`, but found {id}, the id of `{}`, which is part of \
             texts",
            tokenizer.token(id).unwrap_or_default()
        ))),
    }
}

/// Words of which most vocabularies have no part: rare letters, and a long word.
fn unknown_words() -> impl Iterator<Item = String> {
    // Private use, cuneiform, a rare Chinese character, Tifinagh, Cherokee, an emoji.
    let letters = [
        "\u{e000}",
        "\u{12000}",
        "\u{2a6d6}",
        "\u{2d5e}",
        "\u{13a0}",
        "\u{1fae8}",
    ];
    letters
        .map(str::to_owned)
        .into_iter()
        .chain(["x".repeat(1000)])
}

/// Refuses a tokenizer that fails on unknown words, since its token for them is not in its vocabulary: such texts could
/// not be answered.
pub fn knows_unknown_words(json: &[u8]) -> Result<()> {
    let tokenizer = Tokenizer::from_json(json)?;
    unknown_words().try_for_each(|word| match tokenizer.ids(&word) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::model_because(
            "expected a tokenizer with a token for unknown words (`unk_token` or `unk_id`) in its vocabulary, but found one \
             that fails on them",
            error,
        )),
    })
}

/// The token for unknown words that the files name, if it is not the vocabulary's. Refuses files without one if the
/// vocabulary has one: entities would contain the token instead of the word.
pub fn other_unknown_token(folder: &ModelFolder, tokenizer: &[u8]) -> Result<Option<u32>> {
    let named = special_token(folder, UNKNOWN)?;
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    match (
        named.as_deref().and_then(|token| tokenizer.id(token)),
        tokenizer.unknown_id(),
    ) {
        (None, Some(id)) => Err(Error::model(format!(
            "expected `unk_token` `{}` in `{NAME}`, as in the vocabulary, but found {}",
            tokenizer.token(id).unwrap_or_default(),
            named.map_or("none".to_owned(), |token| format!("`{token}`"))
        ))),
        (named, found) => Ok(named.filter(|named| Some(*named) != found)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fixture::tokenizer;

    fn with_token(special: bool) -> Vec<u8> {
        let mut file = tokenizer();
        let token = json!({
            "id": 900, "content": "<image>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special,
        });
        file["added_tokens"].as_array_mut().unwrap().push(token);
        serde_json::to_vec(&file).unwrap()
    }

    #[test]
    fn tokens_without_a_row_are_refused() {
        let json = serde_json::to_vec(&tokenizer()).unwrap();
        let rows = Tokenizer::from_json(&json).unwrap().vocabulary_size();
        assert_eq!(within_vocabulary(json.clone(), rows).unwrap(), json);
        let refusal = |json: Vec<u8>| within_vocabulary(json, rows - 1).unwrap_err().to_string();
        let last = Tokenizer::from_json(&json)
            .unwrap()
            .tokens_from(rows as u32 - 1)
            .remove(0)
            .1;
        let expected = format!(
            "expected tokens with ids below {}, the rows of the model's table, but found `{last}`",
            rows - 1
        );
        assert!(refusal(json).starts_with(&expected), "{expected}");
        let added = within_vocabulary(with_token(false), rows)
            .unwrap_err()
            .to_string();
        assert!(
            added.contains(&format!("found `<image>` with {rows}")),
            "{added}"
        );
    }

    #[test]
    fn tokenizers_without_a_token_for_unknown_words_are_refused() {
        let mut file = tokenizer();
        knows_unknown_words(&serde_json::to_vec(&file).unwrap()).unwrap();
        file["model"]["unk_token"] = "none".into();
        let refusal = knows_unknown_words(&serde_json::to_vec(&file).unwrap()).unwrap_err();
        let expected = "expected a tokenizer with a token for unknown words (`unk_token` or `unk_id`) in its vocabulary";
        assert!(refusal.to_string().starts_with(expected), "{refusal}");
    }

    #[test]
    fn types_without_a_row_are_refused() {
        let json = serde_json::to_vec(&tokenizer()).unwrap();
        let are_known = |rows, reads_pairs| within_types(&json, rows, reads_pairs).is_ok();
        assert!(are_known(2, true) && are_known(1, false) && are_known(0, true));
        let refusal = within_types(&json, 1, true).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected types of tokens below 1, the `type_vocab_size` of the model, but found 1 in the `post_processor` of the tokenizer");
    }

    #[test]
    fn tokens_around_texts_have_positions() {
        let json = serde_json::to_vec(&tokenizer()).unwrap();
        let end = Tokenizer::from_json(&json)
            .unwrap()
            .id("[SEP]")
            .unwrap()
            .into();
        has_positions(&json, 0).unwrap();
        let refusal = has_positions(&json, end).unwrap_err().to_string();
        assert!(
            refusal.contains(&format!("but found {end}, the id of `[SEP]`")),
            "{refusal}"
        );
    }

    #[test]
    fn special_tokens_of_other_models_are_left_out() {
        let rows = Tokenizer::from_json(&serde_json::to_vec(&tokenizer()).unwrap())
            .unwrap()
            .vocabulary_size();
        // Its id is the next free one, whatever the file says.
        let json = within_vocabulary(with_token(true), rows).unwrap();
        let tokenizer = Tokenizer::from_json(&json).unwrap();
        assert_eq!(tokenizer.id("<image>"), None);
        assert_eq!(tokenizer.vocabulary_size(), rows);
        // Special tokens around texts cannot be removed.
        let refusal = within_vocabulary(json, 1).unwrap_err().to_string();
        assert!(
            refusal.contains("expected tokens with ids below 1"),
            "{refusal}"
        );
    }
}
