//! Parts of a `tokenizer.json`: checks, and the tokens around a text.

use serde_json::{Value, json};

use kivu::{
    error::{Error, Result, quoted},
    repository::bundle::TOKENIZER,
};

/// Refuses a `tokenizer.json` for a SentencePiece model with other parts than the conversion writes: their tokenizer
/// classes replace these parts, or settings in them.
pub(super) fn check_pieces(json: &[u8]) -> Result<()> {
    const PARTS: [(&str, &str, &[&str]); 2] = [
        (
            "normalizer",
            "normalizers",
            &["Precompiled", "Replace", "Strip", "Prepend", "Lowercase", "Nmt", "NFKC"],
        ),
        ("pre_tokenizer", "pretokenizers", &["Metaspace", "WhitespaceSplit"]),
    ];
    let tokenizer = parsed(json)?;
    for (part, list, known) in PARTS {
        let mut open = vec![&tokenizer[part]];
        while let Some(value) = open.pop() {
            match value["type"].as_str() {
                Some("Sequence") => open.extend(value[list].as_array().into_iter().flatten()),
                Some(found) if !known.contains(&found) => {
                    return Err(Error::model(format!(
                        "expected a `{part}` among {} in `{TOKENIZER}` for a SentencePiece model, but found `{found}`",
                        quoted(known)
                    )));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Whether the tokenizer has SentencePiece's unigram model.
pub(super) fn is_unigram(json: &[u8]) -> Result<bool> {
    Ok(parsed(json)?["model"]["type"] == "Unigram")
}

fn parsed(json: &[u8]) -> Result<Value> {
    serde_json::from_slice(json).map_err(|error| Error::model_because("cannot read the tokenizer", error))
}

/// A `tokenizer.json` that adds these tokens before and after texts.
pub(super) fn with_template(json: &[u8], [before, after]: [&[(&str, i64)]; 2]) -> Result<Vec<u8>> {
    let mut tokenizer = parsed(json)?;
    let token = |(name, _): &(&str, i64)| json!({"SpecialToken": {"id": name, "type_id": 0}});
    let text = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let around = |texts: &[&str]| -> Vec<Value> {
        let texts = texts.iter().map(|name| text(name));
        before.iter().map(token).chain(texts).chain(after.iter().map(token)).collect()
    };
    let tokens = before
        .iter()
        .chain(after)
        .map(|(name, id)| ((*name).to_owned(), json!({"id": name, "ids": [id], "tokens": [name]})));
    tokenizer["post_processor"] = json!({
        "type": "TemplateProcessing", "single": around(&["A"]), "pair": around(&["A", "B"]),
        "special_tokens": tokens.collect::<serde_json::Map<_, _>>(),
    });
    serde_json::to_vec(&tokenizer).map_err(|error| Error::model_because("cannot write the tokenizer", error))
}
