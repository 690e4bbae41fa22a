//! The `tokenizer.json` of a model as `transformers` loads it: some settings of `tokenizer_config.json` take precedence.

use std::{collections::BTreeMap, path::Path};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{config::ConfigFile, files};
use kivu::error::{Error, Result};

/// The name of the file.
const NAME: &str = "tokenizer_config.json";
/// Classes whose settings replace those of a `BertNormalizer`.
const BERT: [&str; 4] = ["BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", MPNET];
/// It leaves Chinese characters to the file.
const MPNET: &str = "MPNetTokenizer";
/// Classes whose settings replace those of byte pairs.
const ROBERTA: [&str; 2] = ["RobertaTokenizer", "BartTokenizer"];

/// An entry of `added_tokens_decoder`, by the fields of a `tokenizer.json`, with the defaults of `AddedToken`.
#[derive(Deserialize)]
struct AddedToken {
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    special: bool,
}

/// The `tokenizer.json` in `folder` with the settings of its `tokenizer_config.json`.
pub(super) fn read_tokenizer(folder: &Path) -> Result<Vec<u8>> {
    let json = files::read_tokenizer(folder)?;
    let unreadable = |error| Error::model_because("cannot read the tokenizer", error);
    let before: Map<String, Value> = serde_json::from_slice(&json).map_err(unreadable)?;
    let config = ConfigFile::open_or_empty(folder, NAME)?;
    let mut tokenizer = before.clone();
    match class(folder, &config)?.trim_end_matches("Fast") {
        class if BERT.contains(&class) => set_normalizer(&mut tokenizer, &config, class)?,
        class if ROBERTA.contains(&class) => set_byte_pairs(&mut tokenizer, &config)?,
        _ => {}
    }
    add_tokens(&mut tokenizer, &config)?;
    check_truncation(&tokenizer, &config)?;
    if tokenizer == before {
        return Ok(json);
    }
    serde_json::to_vec(&tokenizer).map_err(|error| Error::model_because("cannot write the tokenizer", error))
}

/// The class of the tokenizer, which depends on the model if no file names it.
fn class(folder: &Path, config: &ConfigFile) -> Result<String> {
    let of_model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let class = config.get("tokenizer_class")?.or(of_model.get("tokenizer_class")?);
    Ok(class.unwrap_or_else(|| match of_model.model_type() {
        "bert" => "BertTokenizer".to_owned(),
        "distilbert" => "DistilBertTokenizer".to_owned(),
        "mpnet" => MPNET.to_owned(),
        "roberta" => "RobertaTokenizer".to_owned(),
        "bart" => "BartTokenizer".to_owned(),
        _ => String::new(),
    }))
}

/// Sets letter case, accents and Chinese characters, where the file normalizes like BERT.
fn set_normalizer(tokenizer: &mut Map<String, Value>, config: &ConfigFile, class: &str) -> Result<()> {
    let normalizer = tokenizer.get_mut("normalizer").and_then(Value::as_object_mut);
    let Some(normalizer) = normalizer.filter(|normalizer| normalizer["type"] == "BertNormalizer") else {
        return Ok(());
    };
    let or_true = |field| Ok::<_, Error>(config.get(field)?.unwrap_or(true).into());
    normalizer.insert("lowercase".to_owned(), or_true("do_lower_case")?);
    normalizer.insert("strip_accents".to_owned(), config.get::<bool>("strip_accents")?.into());
    if class != MPNET {
        normalizer.insert("handle_chinese_chars".to_owned(), or_true("tokenize_chinese_chars")?);
    }
    Ok(())
}

/// Sets whether texts begin with a space, and whether the places of tokens exclude spaces.
fn set_byte_pairs(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let settings = [
        ("add_prefix_space", config.is_set("add_prefix_space")?),
        ("trim_offsets", config.get("trim_offsets")?.unwrap_or(true)),
    ];
    for (part, settings) in [("pre_tokenizer", &settings[..1]), ("post_processor", &settings[..])] {
        let Some(fields) = tokenizer.get_mut(part).and_then(Value::as_object_mut) else { continue };
        for (field, value) in settings {
            if let Some(found) = fields.get_mut(*field) {
                *found = (*value).into();
            }
        }
    }
    Ok(())
}

/// Refuses tokenizers that cut off the beginning of long texts: here, requests choose the side, and the end is the default.
fn check_truncation(tokenizer: &Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let of_file = tokenizer.get("truncation").and_then(|truncation| truncation["direction"].as_str());
    let side = config.get::<String>("truncation_side")?.or(of_file.map(str::to_owned));
    match side.filter(|side| !side.eq_ignore_ascii_case("right")) {
        None => Ok(()),
        Some(found) => Err(Error::model(format!(
            "expected `truncation_side` `right` in `{NAME}`, but found `{found}`; set it to `right`, and \
             `truncation_direction` to `left` in requests"
        ))),
    }
}

/// Adds the tokens of `added_tokens_decoder`, by ascending id; those that the file has keep their place.
fn add_tokens(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let added: BTreeMap<u32, AddedToken> = config.get("added_tokens_decoder")?.unwrap_or_default();
    let Some(Value::Array(known)) = tokenizer.get_mut("added_tokens") else { return Ok(()) };
    for (id, AddedToken { content, single_word, lstrip, rstrip, normalized, special }) in added {
        let found = known.iter().position(|token| token["content"] == content);
        let id = found.map_or_else(|| id.into(), |place| known[place]["id"].clone());
        let token = json!({
            "id": id, "content": content, "single_word": single_word, "lstrip": lstrip, "rstrip": rstrip,
            "normalized": normalized.unwrap_or(!special), "special": special,
        });
        match found {
            Some(place) => known[place] = token,
            None => known.push(token),
        }
    }
    Ok(())
}
