//! Tokenizers for folders without a `tokenizer.json`, converted as in `transformers`: BERT's vocabulary, and
//! XLM-RoBERTa's SentencePiece model.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::{
    parts::{Template, added, to_bytes},
    sentencepiece::SentencePieces,
};
use crate::files::{config::ConfigFile, io::read};
use kivu::{Error, Result, repository::bundle::TOKENIZER};

const WORDS: &str = "vocab.txt";
const PIECES: &str = "sentencepiece.bpe.model";
/// Classes with [`WORDS`] as their vocabulary.
const BERT: [&str; 3] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer"];
/// Keys for BERT's special tokens, with their defaults.
const SPECIAL: [(&str, &str); 5] = [
    ("pad_token", "[PAD]"),
    ("unk_token", "[UNK]"),
    ("cls_token", "[CLS]"),
    ("sep_token", "[SEP]"),
    ("mask_token", "[MASK]"),
];

/// Converts the slow tokenizer in `folder`, for its class, to a `tokenizer.json`; `settings` contain its special
/// tokens. `None` if the folder has a `tokenizer.json`, or other files.
pub fn tokenizer(
    folder: &Path,
    class: &str,
    settings: [&ConfigFile; 2],
) -> Result<Option<Vec<u8>>> {
    if folder.join(TOKENIZER).is_file() {
        return Ok(None);
    }
    if BERT.contains(&class) && folder.join(WORDS).is_file() {
        return word_pieces(folder, settings).map(Some);
    }
    if class == "XLMRobertaTokenizer" && folder.join(PIECES).is_file() {
        return SentencePieces::open(&folder.join(PIECES))?
            .xlm_roberta()
            .map(Some);
    }
    Ok(None)
}

/// BERT's tokenizer, without settings from `tokenizer_config.json`.
fn word_pieces(folder: &Path, settings: [&ConfigFile; 2]) -> Result<Vec<u8>> {
    let text = read(&folder.join(WORDS))?;
    let text = String::from_utf8(text)
        .map_err(|error| Error::model_because(format!("expected UTF-8 in `{WORDS}`"), error))?;
    // A piece is a line without its line feed; among duplicate pieces, the last one is used.
    let lines = text.strip_suffix('\n').unwrap_or(&text).split('\n');
    let ids = lines
        .zip(0..)
        .map(|(piece, id)| (piece.trim_end_matches('\r').to_owned(), json!(id)))
        .collect();
    let tokenizer = of_pieces(&ids, settings, WORDS)?;
    to_bytes(&tokenizer)
}

/// Replaces the parts that `transformers` 5 makes for `BertTokenizer` from the vocabulary.
pub fn make_word_pieces(
    tokenizer: &mut Map<String, Value>,
    settings: [&ConfigFile; 2],
) -> Result<()> {
    let model = expect_model(tokenizer, "BertTokenizer", "WordPiece")?;
    let ids = model["vocab"].as_object().cloned().unwrap_or_default();
    replace(tokenizer, of_pieces(&ids, settings, TOKENIZER)?);
    Ok(())
}

/// The same for `XLMRobertaTokenizer`, which keeps the file's character map.
pub fn make_pieces(tokenizer: &mut Map<String, Value>, settings: [&ConfigFile; 2]) -> Result<()> {
    let model = expect_model(tokenizer, "XLMRobertaTokenizer", "Unigram")?;
    let pieces = model["vocab"].take();
    let token = |key: &str, default: &str| {
        let named = settings.iter().find_map(|file| file.fields().get(key));
        let token = named.and_then(content).unwrap_or(default).to_owned();
        let mut known = pieces.as_array().into_iter().flatten();
        match known.position(|piece| piece[0] == token) {
            Some(id) => Ok((token, json!(id))),
            None => Err(missing(&token, key, TOKENIZER)),
        }
    };
    let [begin, end] = [token("bos_token", "<s>")?, token("eos_token", "</s>")?];
    let [begin, end] = [&begin, &end].map(|(token, id)| (token.as_str(), id));
    let template = Template {
        before: &[begin],
        after: &[end],
        between: 2,
        second_type: 0,
    };
    let [config, _] = settings;
    let scheme = if config.is_set_or("add_prefix_space", true)? {
        "always"
    } else {
        "never"
    };
    let normalizer = tokenizer.get("normalizer").unwrap_or(&Value::Null);
    let parts = normalizer["normalizers"].as_array();
    let parts = parts.map_or(std::slice::from_ref(normalizer), Vec::as_slice);
    let map = parts.iter().find(|part| part["type"] == "Precompiled");
    let made = json!({
        "normalizer": map,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [
                {"type": "WhitespaceSplit"},
                {"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": true},
            ],
        },
        "post_processor": template.post_processor(),
        "model": {"type": "Unigram", "unk_id": 3, "byte_fallback": false, "vocab": pieces},
    });
    replace(tokenizer, made);
    Ok(())
}

fn expect_model<'a>(
    tokenizer: &'a mut Map<String, Value>,
    class: &str,
    expected: &str,
) -> Result<&'a mut Value> {
    match tokenizer.get_mut("model") {
        Some(model) if model["type"] == expected => Ok(model),
        found => Err(Error::model(format!(
            "expected a `{expected}` vocabulary for `{class}` in `{TOKENIZER}`, but found `{}`",
            found
                .and_then(|model| model["type"].as_str())
                .unwrap_or("none")
        ))),
    }
}

fn replace(tokenizer: &mut Map<String, Value>, mut made: Value) {
    for part in ["normalizer", "pre_tokenizer", "post_processor", "model"] {
        tokenizer.insert(part.to_owned(), made[part].take());
    }
}

fn missing(token: &str, key: &str, name: &str) -> Error {
    Error::model(format!(
        "expected `{token}` (`{key}`) in `{name}`, but found none"
    ))
}

/// BERT's tokenizer with these pieces, which come from the file `name`.
fn of_pieces(ids: &Map<String, Value>, settings: [&ConfigFile; 2], name: &str) -> Result<Value> {
    let token = |(key, default): &(&str, &str)| {
        let named = settings.iter().find_map(|file| file.fields().get(*key));
        let token = named.and_then(content).unwrap_or(default).to_owned();
        let id = ids.get(&token).cloned();
        let id = id.ok_or_else(|| missing(&token, key, name))?;
        Ok::<_, Error>((token, id))
    };
    let special: Vec<(String, Value)> = SPECIAL.iter().map(token).collect::<Result<_>>()?;
    let mut added: Vec<Value> = special.iter().map(|(token, id)| added(token, id)).collect();
    added.sort_by_key(|token| token["id"].as_u64());
    let [_, unknown, first, last, _] = [0, 1, 2, 3, 4].map(|place| special[place].0.as_str());
    let normalizer = json!({
        "type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null,
        "lowercase": true,
    });
    let template = Template {
        before: &[(first, &special[2].1)],
        after: &[(last, &special[3].1)],
        between: 1,
        second_type: 1,
    };
    Ok(json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added, "normalizer": normalizer,
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": template.post_processor(),
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": true},
        "model": {
            "type": "WordPiece", "unk_token": unknown, "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": ids,
        },
    }))
}

/// A token's text; the token is a string or an object.
pub fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token.get("content")?.as_str())
}
