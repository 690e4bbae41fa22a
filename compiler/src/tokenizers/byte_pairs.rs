//! Byte-pair tokenizers in slow form, `vocab.json` and `merges.txt`: RoBERTa's, BART's and DeBERTa v1's.

use std::collections::BTreeMap;

use serde_json::json;

use super::{
    parts::{Template, added, to_bytes},
    tokenizer_config::read_tokenizer,
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
    let tokenizer = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": added.collect::<Vec<_>>(),
        "normalizer": null, "pre_tokenizer": bytes, "decoder": bytes,
        "post_processor": post_processor,
        "model": {
            "type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": "",
            "end_of_word_suffix": "", "fuse_unk": false, "byte_fallback": false, "vocab": ids, "merges": merges,
        },
    });
    to_bytes(&tokenizer)
}
