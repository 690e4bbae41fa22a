//! Byte-pair tokenizers in slow form, `vocab.json` and `merges.txt`: RoBERTa's, BART's and DeBERTa v1's.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{
    parts::{Template, added, to_bytes},
    tokenizer_config::{add_tokens, read_tokenizer},
};
use crate::files::{
    config::ConfigFile,
    io::{read, read_json},
    model_folder::ModelFolder,
};
use kivu::{Error, Result, repository::bundle::TOKENIZER};

const VOCABULARY: &str = "vocab.json";
const MERGES: &str = "merges.txt";
/// Prefix of the first line in [`MERGES`].
const VERSION: &str = "#version";
/// Special tokens: before a text, padding, after a text, unknown, and the mask, which includes the spaces before it.
type Special = [&'static str; 5];
const ROBERTA: Special = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];
const BERT: Special = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"];

/// Reads the `tokenizer.json` in `folder`, or converts the slow tokenizer's files as `transformers` does.
pub fn tokenizer(folder: &ModelFolder) -> Result<Vec<u8>> {
    read_or_convert(folder, ROBERTA)
}

/// The same with BERT's special tokens: pairs have one token between them.
pub fn bert_tokenizer(folder: &ModelFolder) -> Result<Vec<u8>> {
    read_or_convert(folder, BERT)
}

fn read_or_convert(folder: &ModelFolder, tokens: Special) -> Result<Vec<u8>> {
    let merges = folder.join(MERGES);
    if folder.join(TOKENIZER).is_file() || !merges.is_file() {
        return read_tokenizer(folder);
    }
    let ids: BTreeMap<String, u32> = read_json(&folder.join(VOCABULARY))?;
    let special = |token: &str| {
        let missing = || {
            Error::model(format!(
                "expected `{token}` in `{VOCABULARY}`, but found none"
            ))
        };
        ids.get(token).copied().ok_or_else(missing)
    };
    let [begin, _, end, _, mask] = tokens;
    let [first, last] = [special(begin)?, special(end)?];
    let merges = String::from_utf8_lossy(&read(&merges)?).into_owned();
    let merges = merges
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with(VERSION));
    let merges = merges.map(|line| {
        line.split_once(' ')
            .map(|(left, right)| [left, right])
            .ok_or_else(|| {
                Error::model(format!(
                    "expected two pieces in each line of `{MERGES}`, but found `{line}`"
                ))
            })
    });
    let merges = merges.collect::<Result<Vec<_>>>()?;
    let added = tokens.iter().filter_map(|token| {
        let mut added = added(token, ids.get(*token)?);
        added["lstrip"] = (*token == mask).into();
        Some(added)
    });
    let config = ConfigFile::open_or_empty(folder, "tokenizer_config.json")?;
    let bytes = json!({
        "type": "ByteLevel", "add_prefix_space": config.is_set("add_prefix_space")?, "trim_offsets": true,
        "use_regex": true,
    });
    let post_processor = match tokens {
        ROBERTA => json!({
            "type": "RobertaProcessing", "sep": [end, last], "cls": [begin, first], "trim_offsets": true,
            "add_prefix_space": bytes["add_prefix_space"],
        }),
        _ => {
            let template = Template {
                before: &[(begin, first)],
                after: &[(end, last)],
                between: 1,
                second_type: 1,
            };
            template.post_processor()
        }
    };
    let mut tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": post_processor,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": ids, "merges": merges,
        },
    });
    if let Value::Object(tokenizer) = &mut tokenizer {
        add_tokens(tokenizer, folder, &config)?;
    }
    to_bytes(&tokenizer)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    #[test]
    fn listed_tokens_are_added_and_replace_their_flags() {
        let folder = tempfile::tempdir().unwrap();
        let source = Path::new("../tests/fixtures/models/tiny-deberta-cls");
        for name in [VOCABULARY, MERGES] {
            fs::copy(source.join(name), folder.path().join(name)).unwrap();
        }
        let listed = json!({ "added_tokens_decoder": {
            "1": { "content": "[CLS]", "rstrip": true, "special": true },
            "4": { "content": "[MASK]", "lstrip": false, "normalized": true, "special": true },
            "400": { "content": "<new>" },
        }});
        let path = folder.path().join("tokenizer_config.json");
        fs::write(path, listed.to_string()).unwrap();
        let bytes = bert_tokenizer(&ModelFolder::new(folder.path())).unwrap();
        let tokenizer: Value = serde_json::from_slice(&bytes).unwrap();
        let flags = |content: &str| {
            let added = tokenizer["added_tokens"].as_array().unwrap().iter();
            let token = added.clone().find(|token| token["content"] == content);
            ["id", "lstrip", "rstrip", "normalized"].map(|name| token.unwrap()[name].clone())
        };
        assert_eq!(json!(flags("[CLS]")), json!([1, false, true, false]));
        assert_eq!(json!(flags("[MASK]")), json!([4, false, false, false]));
        assert_eq!(json!(flags("<new>")), json!([400, false, false, true]));
    }
}
