//! Parts of a `tokenizer.json`: checks, and the tokens around a text.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::{
    files::io::parse_tokenizer,
    tokenizers::parts::{Template, to_bytes},
};
use kivu::{
    Error, Result,
    error::quoted,
    pipeline::seq2seq::{Languages, are_languages, tagged},
    repository::bundle::TOKENIZER,
};

/// Refuses a `tokenizer.json` for a SentencePiece model with other parts than the conversion writes: their tokenizer
/// classes replace these parts, or settings in them.
pub fn check_pieces(json: &[u8]) -> Result<()> {
    const PARTS: [(&str, &str, &[&str]); 2] = [
        (
            "normalizer",
            "normalizers",
            &[
                "Precompiled",
                "Replace",
                "Strip",
                "Prepend",
                "Lowercase",
                "Nmt",
                "NFKC",
            ],
        ),
        (
            "pre_tokenizer",
            "pretokenizers",
            &["Metaspace", "WhitespaceSplit"],
        ),
    ];
    let tokenizer: Value = parse_tokenizer(json)?;
    for (part, list, known) in PARTS {
        let mut open = vec![&tokenizer[part]];
        while let Some(value) = open.pop() {
            match value["type"].as_str() {
                Some("Sequence") => open.extend(value[list].as_array().into_iter().flatten()),
                Some(found) if !known.contains(&found) => {
                    return Err(Error::model(format!(
                        "`{part}` `{found}` in `{TOKENIZER}` is not supported for a SentencePiece model; supported: {}",
                        quoted(known)
                    )));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// All ids by name: of the model's pieces and of added tokens.
pub fn ids(json: &[u8]) -> Result<BTreeMap<String, u32>> {
    let tokenizer: Value = parse_tokenizer(json)?;
    let name = |token: &Value| token.as_str().map(str::to_owned);
    let id = |id: &Value| u32::try_from(id.as_u64()?).ok();
    let vocabulary = &tokenizer["model"]["vocab"];
    // A unigram model's ids are places in a list.
    let listed = vocabulary.as_array().into_iter().flatten().zip(0..);
    let listed = listed.filter_map(|(piece, id)| Some((name(&piece[0])?, id)));
    let named = vocabulary.as_object().into_iter().flatten();
    let named = named.filter_map(|(piece, value)| Some((piece.clone(), id(value)?)));
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let added = added.filter_map(|token| Some((name(&token["content"])?, id(&token["id"])?)));
    Ok(listed.chain(named).chain(added).collect())
}

/// Whether the tokenizer has SentencePiece's unigram model.
pub fn is_unigram(json: &[u8]) -> Result<bool> {
    Ok(parse_tokenizer::<Value>(json)?["model"]["type"] == "Unigram")
}

/// The languages of a tokenizer with tags such as `<2pt>` in its vocabulary. Other tokens may have the form of a tag, so
/// that nearly all have to be languages.
pub fn tags(json: &[u8]) -> Result<Option<Languages>> {
    let tokenizer: Value = parse_tokenizer(json)?;
    let pieces = tokenizer["model"]["vocab"].as_array().into_iter().flatten();
    let added = tokenizer["added_tokens"].as_array().into_iter().flatten();
    let tokens = pieces
        .map(|piece| &piece[0])
        .chain(added.map(|token| &token["content"]));
    let codes: BTreeSet<String> = tokens
        .filter_map(|token| tagged(token.as_str()?))
        .map(str::to_owned)
        .collect();
    let all: Vec<String> = codes.iter().cloned().collect();
    Ok(are_languages(&all).then_some(Languages::Tags { codes }))
}

/// A `tokenizer.json` that adds these tokens before and after texts.
pub fn with_template(json: &[u8], [before, after]: [&[(&str, i64)]; 2]) -> Result<Vec<u8>> {
    let mut tokenizer: Value = parse_tokenizer(json)?;
    let template = Template {
        before,
        after,
        between: 0,
        second_type: 0,
    };
    tokenizer["post_processor"] = template.post_processor();
    to_bytes(&tokenizer)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn tags_are_pieces_or_added_tokens_with_language_codes() {
        let tags_of = |pieces: &[&str], added: &[&str]| {
            let pieces: Vec<_> = pieces.iter().map(|piece| json!([piece, 0.0])).collect();
            let added: Vec<_> = added
                .iter()
                .map(|token| json!({"id": 0, "content": token}))
                .collect();
            let tokenizer =
                json!({"model": {"type": "Unigram", "vocab": pieces}, "added_tokens": added});
            match tags(tokenizer.to_string().as_bytes()).unwrap() {
                Some(Languages::Tags { codes }) => codes.into_iter().collect(),
                _ => Vec::new(),
            }
        };
        let none: [&str; 0] = [];
        assert_eq!(
            tags_of(
                &["<unk>", "<2en>", "<2zh_Latn>", "<2>", "<2x y>", "2pt"],
                &["<2pt>", "<2en>"]
            ),
            ["en", "pt", "zh_Latn"]
        );
        assert_eq!(tags_of(&["<2pt>", "<2fr>"], &[]), none);
        assert_eq!(tags_of(&["<2en>", "<2qqx>", "<2b>"], &[]), none);
        assert_eq!(tags_of(&["<0x0A>", "a"], &["<extra_id_0>"]), none);
    }
}
