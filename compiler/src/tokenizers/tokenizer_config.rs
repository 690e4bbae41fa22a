//! A model's `tokenizer.json` as `transformers` loads it: some settings in `tokenizer_config.json` take precedence.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{
    classes,
    parts::{Template, added, to_bytes},
    token_types,
    vocabularies::{self, content},
};
use crate::{
    files::{config::ConfigFile, io as files, model_folder::ModelFolder},
    model_types::Family,
};
use kivu::{Error, Result, repository::bundle::TOKENIZER, tokenizer::Tokenizer};

/// File name.
pub const NAME: &str = "tokenizer_config.json";
/// Classes with settings that replace a `BertNormalizer`'s.
const BERT: [&str; 4] = [
    "BertTokenizer",
    "DistilBertTokenizer",
    "ElectraTokenizer",
    MPNET,
];
/// Ignores `tokenize_chinese_chars`, unlike the others in [`BERT`].
const MPNET: &str = "MPNetTokenizer";
/// Classes with settings that replace the byte-pair settings.
const ROBERTA: [&str; 2] = ["RobertaTokenizer", "BartTokenizer"];

/// The class of the first DeBERTa.
const DEBERTA: &str = "DebertaTokenizer";

/// Classes with a setting for the id of unknown pieces.
const NUMBERED_UNKNOWN: [&str; 2] = ["DebertaV2Tokenizer", "XLNetTokenizer"];

/// Classes with settings that replace the tokens around a text, with their first and last token.
const LLAMA: [(&str, (&str, &str)); 2] = [
    ("LlamaTokenizer", ("<s>", "</s>")),
    ("GemmaTokenizer", ("<bos>", "<eos>")),
];
/// Key of the token for unknown words.
pub const UNKNOWN: &str = "unk_token";
/// Special token keys.
const SPECIAL: [&str; 7] = [
    "bos_token",
    "eos_token",
    UNKNOWN,
    "sep_token",
    "pad_token",
    "cls_token",
    "mask_token",
];
/// Keys for lists of special tokens.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];
/// Keys for special tokens by name.
const NAMED: [&str; 2] = ["extra_special_tokens", "model_specific_special_tokens"];
const SPECIAL_FILE: &str = "special_tokens_map.json";

/// Key of the full token list, which replaces older files.
const LISTED: &str = "added_tokens_decoder";
/// Added tokens with their ids, in older files.
pub const ADDED_FILE: &str = "added_tokens.json";

/// An entry in `added_tokens_decoder`, with `tokenizer.json` field names and `AddedToken` defaults.
#[derive(Debug, Deserialize)]
pub struct AddedToken {
    pub content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    pub lstrip: bool,
    #[serde(default)]
    pub rstrip: bool,
    normalized: Option<bool>,
    #[serde(default)]
    pub special: bool,
}

/// Reads the `tokenizer.json` in `folder` and applies the settings in its `tokenizer_config.json`.
pub fn read_tokenizer(folder: &ModelFolder) -> Result<Vec<u8>> {
    read_and_make(folder, None)
}

/// The same; `make` replaces the parts that a class makes of the vocabulary.
fn read_and_make(folder: &ModelFolder, make: Option<Make>) -> Result<Vec<u8>> {
    let class = class(folder)?;
    let class = class.trim_end_matches("Fast");
    let config = ConfigFile::open_or_empty(folder, NAME)?;
    let special = ConfigFile::open_or_empty(folder, SPECIAL_FILE)?;
    let json = match vocabularies::tokenizer(folder, class, [&config, &special])? {
        Some(json) => json,
        None => files::read_tokenizer(folder)?,
    };
    let before: Map<String, Value> = files::parse_tokenizer(&json)?;
    let model = before.get("model").unwrap_or(&Value::Null);
    check_model(model, class)?;
    check_unknown(model, class, &config)?;
    let mut tokenizer = before.clone();
    if let Some(make) = make {
        make(&mut tokenizer, [&config, &special])?;
    }
    match class {
        class if ROBERTA.contains(&class) => set_byte_pairs(&mut tokenizer, &config)?,
        class if BERT.contains(&class) => set_normalizer(&mut tokenizer, &config, class)?,
        _ => {}
    }
    let of_model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    // Version 5 of `transformers` keeps what the file says.
    let is_newer = is_newer(&of_model) || classes::are_newer(&config);
    if !ROBERTA.contains(&class) && !is_newer {
        set_prefix_space(&mut tokenizer, &config)?;
    }
    if make.is_some() || names_other_class(&config, &of_model)? {
        set_made_tokens(&mut tokenizer, folder, &config)?;
    } else {
        add_tokens(&mut tokenizer, folder, &config)?;
    }
    add_special_tokens(&mut tokenizer, folder, class, &config)?;
    if let Some((begin, end)) = LLAMA
        .iter()
        .find_map(|(name, tokens)| (*name == class && !is_newer).then_some(*tokens))
    {
        let named = with_special_tokens(folder, config.clone())?;
        set_ends(&mut tokenizer, &named, [begin, end])?;
    }
    if !token_types::returns_types(folder, &config)? {
        token_types::remove_types(&mut tokenizer);
    }
    check_truncation(&tokenizer, &config)?;
    if tokenizer == before {
        return Ok(json);
    }
    to_bytes(&tokenizer)
}

/// Refuses a `model` that is not of its class, or whose tokens depend on where a text is cut.
fn check_model(model: &Value, class: &str) -> Result<()> {
    let kind = model["type"].as_str().unwrap_or_default();
    if class == DEBERTA && kind != "BPE" {
        return Err(Error::model(format!(
            "expected byte pairs for the class `{class}`, but found `{kind}`"
        )));
    }
    match model["end_of_word_suffix"]
        .as_str()
        .filter(|suffix| !suffix.is_empty())
    {
        Some(found) => Err(Error::model(format!(
            "expected no `end_of_word_suffix` in `{TOKENIZER}`, but found `{}`",
            found.escape_debug()
        ))),
        None => Ok(()),
    }
}

/// Like [`read_tokenizer`], for models that `transformers` has since version 5 only: it makes the tokenizers of
/// `BertTokenizer`, and of `XLMRobertaTokenizer`, if it `reads_pieces`, from their vocabularies, whatever else is in
/// `tokenizer.json`.
pub fn read_newer_tokenizer(folder: &ModelFolder, reads_pieces: bool) -> Result<Vec<u8>> {
    let class = class(folder)?;
    match class.trim_end_matches("Fast") {
        "BertTokenizer" => read_and_make(folder, Some(vocabularies::make_word_pieces)),
        "PreTrainedTokenizer" | "TokenizersBackend" => read_tokenizer(folder),
        "XLMRobertaTokenizer" if reads_pieces => {
            read_and_make(folder, Some(vocabularies::make_pieces))
        }
        _ => Err(Error::model(format!(
            "expected the tokenizer class `BertTokenizer` for this model, but found `{class}`"
        ))),
    }
}

/// Refuses another id for unknown pieces than the `model`'s, in the classes of version 5 of `transformers` that read it.
fn check_unknown(model: &Value, class: &str, config: &ConfigFile) -> Result<()> {
    let found: Option<Value> = config.get("unk_id")?;
    match found.filter(|found| NUMBERED_UNKNOWN.contains(&class) && *found != model["unk_id"]) {
        Some(found) => Err(Error::model(format!(
            "expected {}, the `unk_id` of `{TOKENIZER}`, as `unk_id` in `{NAME}`, but found {found}",
            model["unk_id"]
        ))),
        None => Ok(()),
    }
}

/// Replaces parts of a tokenizer, with these settings.
type Make = fn(&mut Map<String, Value>, [&ConfigFile; 2]) -> Result<()>;

/// Class of the tokenizer in `folder`; depends on the model if no file names it.
pub fn class(folder: &ModelFolder) -> Result<String> {
    let config = ConfigFile::open_or_empty(folder, NAME)?;
    let of_model = ConfigFile::open_or_empty(folder, ConfigFile::NAME)?;
    let class: Option<String> = config
        .get("tokenizer_class")?
        .or(of_model.get("tokenizer_class")?);
    let family = Family::named(of_model.model_type());
    Ok(match class {
        Some(class) if is_newer(&of_model) && is_in_file(folder, &class, &config, family)? => {
            "TokenizersBackend".to_owned()
        }
        Some(class) => class,
        None => family
            .map(|family| family.tokenizer_class.clone())
            .unwrap_or_default(),
    })
}

/// Whether a model's tokenizer is that of version 5 of `transformers`.
fn is_newer(model: &ConfigFile) -> bool {
    Family::named(model.model_type()).is_some_and(|family| family.is_newer)
}

/// Whether version 5 of `transformers` has the tokenizer in `tokenizer.json`, without flags of its class, which it does not
/// read.
fn is_in_file(
    folder: &ModelFolder,
    class: &str,
    config: &ConfigFile,
    family: Option<&Family>,
) -> Result<bool> {
    let Some(json) = files::read_if_exists(&folder.join(TOKENIZER))? else {
        return Ok(false);
    };
    // Other families have a class, whatever the files name.
    if !family.is_some_and(|family| family.has_own_tokenizer) {
        return Ok(true);
    }
    let tokenizer: Value = serde_json::from_slice(&json).unwrap_or(Value::Null);
    let class = class.trim_end_matches("Fast");
    Ok(classes::is_as_made(class, &tokenizer, config.fields()))
}

/// Whether a model with a tokenizer of its own names a class that makes the same one from the vocabulary.
fn names_other_class(config: &ConfigFile, model: &ConfigFile) -> Result<bool> {
    let has_own = |family: &Family| family.is_newer && family.has_own_tokenizer;
    let named: Option<String> = config
        .get("tokenizer_class")?
        .or(model.get("tokenizer_class")?);
    let is_other = named.is_some_and(|class| !classes::is_own(class.trim_end_matches("Fast")));
    Ok(is_other && Family::named(model.model_type()).is_some_and(has_own))
}

/// Sets letter case, accents and Chinese characters, where the file normalizes like BERT.
fn set_normalizer(
    tokenizer: &mut Map<String, Value>,
    config: &ConfigFile,
    class: &str,
) -> Result<()> {
    let normalizer = tokenizer
        .get_mut("normalizer")
        .and_then(Value::as_object_mut);
    let Some(normalizer) = normalizer.filter(|normalizer| normalizer["type"] == "BertNormalizer")
    else {
        return Ok(());
    };
    let or_true = |field| Ok::<_, Error>(config.get(field)?.unwrap_or(true).into());
    normalizer.insert("lowercase".to_owned(), or_true("do_lower_case")?);
    normalizer.insert(
        "strip_accents".to_owned(),
        config.get::<bool>("strip_accents")?.into(),
    );
    if class != MPNET {
        normalizer.insert(
            "handle_chinese_chars".to_owned(),
            or_true("tokenize_chinese_chars")?,
        );
    }
    Ok(())
}

/// Sets whether texts begin with a space, and whether token offsets exclude spaces.
fn set_byte_pairs(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let settings = [
        ("add_prefix_space", config.is_set("add_prefix_space")?),
        ("trim_offsets", config.get("trim_offsets")?.unwrap_or(true)),
    ];
    for (part, settings) in [
        ("pre_tokenizer", &settings[..1]),
        ("post_processor", &settings[..]),
    ] {
        let Some(fields) = tokenizer.get_mut(part).and_then(Value::as_object_mut) else {
            continue;
        };
        for (field, value) in settings {
            if let Some(found) = fields.get_mut(*field) {
                *found = (*value).into();
            }
        }
    }
    Ok(())
}

/// Sets whether byte-pair texts begin with a space, in classes without other byte-pair settings.
fn set_prefix_space(tokenizer: &mut Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let has_space = config.is_set("add_prefix_space")?;
    if let Some(part) = tokenizer
        .get_mut("pre_tokenizer")
        .filter(|part| part["type"] == "ByteLevel")
    {
        part["add_prefix_space"] = has_space.into();
    }
    Ok(())
}

/// Sets the tokens around a text, by the class's flags.
fn set_ends(
    tokenizer: &mut Map<String, Value>,
    config: &ConfigFile,
    defaults: [&str; 2],
) -> Result<()> {
    let flags = [
        config.is_set_or("add_bos_token", true)?,
        config.is_set("add_eos_token")?,
    ];
    // The ids in the file need not be the tokens' own.
    let known = Tokenizer::from_json(&to_bytes(tokenizer)?)?;
    let mut ends = Vec::new();
    for ((key, default), _) in ["bos_token", "eos_token"]
        .iter()
        .zip(defaults)
        .zip(flags)
        .filter(|(_, flag)| *flag)
    {
        let token = config
            .fields()
            .get(*key)
            .and_then(content)
            .unwrap_or(default)
            .to_owned();
        let added = tokenizer.get("added_tokens").and_then(Value::as_array);
        let is_added =
            added.is_some_and(|added| added.iter().any(|known| known["content"] == token));
        let id = known.id(&token).filter(|_| is_added).ok_or_else(|| {
            Error::model(format!(
                "expected the token `{token}` of `{key}` in the tokenizer, but found none"
            ))
        })?;
        ends.push((*key, token, id));
    }
    let tokens = |key: &str| -> Vec<_> {
        let named = ends.iter().filter(|(found, ..)| *found == key);
        named.map(|(_, token, id)| (token.as_str(), *id)).collect()
    };
    let template = Template {
        before: &tokens("bos_token"),
        after: &tokens("eos_token"),
        between: 1,
        second_type: 1,
    };
    let template = template.around_each_text();
    tokenizer.insert("post_processor".to_owned(), template);
    Ok(())
}

/// Makes the special tokens named by the files unsplittable, as `transformers` does; refuses the ones that the
/// tokenizer lacks, with ids beyond the model's table.
fn add_special_tokens(
    tokenizer: &mut Map<String, Value>,
    folder: &ModelFolder,
    class: &str,
    config: &ConfigFile,
) -> Result<()> {
    let sources = token_files(folder, config)?;
    let vocabulary = tokenizer
        .get("model")
        .and_then(|model| model.get("vocab"))
        .cloned()
        .unwrap_or_default();
    let Some(Value::Array(known)) = tokenizer.get_mut("added_tokens") else {
        return Ok(());
    };
    let has_key = |key: &str| sources.iter().any(|file| file.fields().contains_key(key));
    let defaults = classes::special_tokens(class).filter(|(key, _)| !has_key(key));
    for (key, token) in sources
        .iter()
        .flat_map(|file| special_tokens(file.fields()))
        .chain(defaults)
    {
        if known.iter().any(|known| known["content"] == token) {
            continue;
        }
        let id = id_of(&vocabulary, token).ok_or_else(|| {
            Error::model(format!(
                "expected the token `{token}` of `{key}` in `{TOKENIZER}`, but found none, so that the model has no \
                 vector for it"
            ))
        })?;
        known.push(added(token, id));
    }
    Ok(())
}

/// Whether the config has a full token list; then `special_tokens_map.json` and `added_tokens.json` are not read.
pub fn lists_tokens(config: &ConfigFile) -> bool {
    config
        .fields()
        .get(LISTED)
        .is_some_and(|list| !list.is_null())
}

/// Tokens that the files in `folder` list, by id.
pub fn listed_tokens(
    folder: &ModelFolder,
    config: &ConfigFile,
) -> Result<BTreeMap<u32, AddedToken>> {
    if let Some(listed) = config.get(LISTED)? {
        return Ok(listed);
    }
    let listed: Option<BTreeMap<String, u32>> =
        files::read_json_if_exists(&folder.join(ADDED_FILE))?;
    let sources = token_files(folder, config)?;
    let named: BTreeSet<&str> = sources
        .iter()
        .flat_map(|file| special_tokens(file.fields()))
        .map(|(_, token)| token)
        .collect();
    let token = |(content, id): (String, u32)| {
        let token = AddedToken {
            special: named.contains(content.as_str()),
            content,
            single_word: false,
            lstrip: false,
            rstrip: false,
            normalized: None,
        };
        (id, token)
    };
    let listed = listed.unwrap_or_default();
    let ids: BTreeSet<u32> = listed.values().copied().collect();
    match ids.len() == listed.len() {
        true => Ok(listed.into_iter().map(token).collect()),
        false => Err(Error::model(format!(
            "expected another id for each token in `{ADDED_FILE}`, but found one for several tokens"
        ))),
    }
}

/// The config with the special tokens that `special_tokens_map.json` names, if it is read. As in `transformers`, that
/// file takes precedence, and its list is added to the config's.
pub fn with_special_tokens(folder: &ModelFolder, config: ConfigFile) -> Result<ConfigFile> {
    if lists_tokens(&config) {
        return Ok(config);
    }
    let mut fields = config.fields().clone();
    let special = ConfigFile::open_or_empty(folder, SPECIAL_FILE)?;
    for (key, value) in special.fields().clone() {
        match (fields.get_mut(&key), value) {
            (Some(Value::Array(tokens)), Value::Array(more)) => {
                let is_new =
                    |token: &Value| !tokens.iter().any(|known| content(known) == content(token));
                let more: Vec<Value> = more.into_iter().filter(is_new).collect();
                tokens.extend(more);
            }
            (_, value) => drop(fields.insert(key, value)),
        }
    }
    Ok(ConfigFile::new(NAME, fields))
}

/// Files that name special tokens; the first one that has a key decides.
fn token_files(folder: &ModelFolder, config: &ConfigFile) -> Result<Vec<ConfigFile>> {
    let mut files = vec![config.clone()];
    if !lists_tokens(config) {
        files.push(ConfigFile::open_or_empty(folder, SPECIAL_FILE)?);
    }
    Ok(files)
}

/// The special token of `key`: named by the files in `folder`, or by the tokenizer class.
pub fn special_token(folder: &ModelFolder, key: &str) -> Result<Option<String>> {
    let files = token_files(folder, &ConfigFile::open_or_empty(folder, NAME)?)?;
    if let Some(value) = files.iter().find_map(|file| file.fields().get(key)) {
        return Ok(content(value).map(str::to_owned));
    }
    let class = class(folder)?;
    let mut defaults = classes::special_tokens(class.trim_end_matches("Fast"));
    Ok(defaults.find_map(|(found, token)| (found == key).then(|| token.to_owned())))
}

/// Whether the files in `folder` name `token`, and no other, as the special token of `key`.
pub fn names_special_token(folder: &ModelFolder, key: &str, token: &str) -> Result<bool> {
    let files = token_files(folder, &ConfigFile::open_or_empty(folder, NAME)?)?;
    let values = files.iter().filter_map(|file| file.fields().get(key));
    let tokens: Vec<Option<&str>> = values.map(content).collect();
    Ok(!tokens.is_empty() && tokens.iter().all(|found| *found == Some(token)))
}

/// Special tokens named by settings, with their keys.
fn special_tokens(fields: &Map<String, Value>) -> impl Iterator<Item = (&str, &str)> {
    fields.iter().flat_map(|(key, value)| {
        let tokens: Vec<&Value> = match value {
            Value::Array(tokens) if LISTS.contains(&key.as_str()) => tokens.iter().collect(),
            Value::Object(tokens) if NAMED.contains(&key.as_str()) => tokens.values().collect(),
            token if SPECIAL.contains(&key.as_str()) => vec![token],
            _ => Vec::new(),
        };
        tokens
            .into_iter()
            .filter_map(content)
            .map(move |token| (key.as_str(), token))
    })
}

/// Id of a piece in the model: by name, or by index in a list with pieces and scores.
fn id_of(vocabulary: &Value, piece: &str) -> Option<u64> {
    match vocabulary {
        Value::Object(ids) => ids.get(piece)?.as_u64(),
        Value::Array(pieces) => pieces
            .iter()
            .position(|entry| entry[0] == piece)
            .and_then(|place| place.try_into().ok()),
        _ => None,
    }
}

/// Refuses tokenizers that truncate texts at the start: here, requests choose the side, and the end is the default.
fn check_truncation(tokenizer: &Map<String, Value>, config: &ConfigFile) -> Result<()> {
    let of_file = tokenizer
        .get("truncation")
        .and_then(|truncation| truncation["direction"].as_str());
    let side = config
        .get::<String>("truncation_side")?
        .or(of_file.map(str::to_owned));
    match side.filter(|side| !side.eq_ignore_ascii_case("right")) {
        None => Ok(()),
        Some(found) => Err(Error::model(format!(
            "expected `truncation_side` `right` in `{NAME}`, but found `{found}`"
        ))
        .with_hint("set it to `right`, and `truncation_direction` to `left` in requests")),
    }
}

/// Sets the tokens that version 5 of `transformers` adds to a vocabulary: the listed ones, or else those in the file, by
/// ascending id.
fn set_made_tokens(
    tokenizer: &mut Map<String, Value>,
    folder: &ModelFolder,
    config: &ConfigFile,
) -> Result<()> {
    if lists_tokens(config) {
        tokenizer.insert("added_tokens".to_owned(), json!([]));
    }
    add_tokens(tokenizer, folder, config)?;
    if let Some(Value::Array(added)) = tokenizer.get_mut("added_tokens") {
        let by_id: BTreeMap<Option<u64>, Value> = std::mem::take(added)
            .into_iter()
            .map(|token| (token["id"].as_u64(), token))
            .collect();
        added.extend(by_id.into_values());
    }
    Ok(())
}

/// Adds the listed tokens, by ascending id; existing tokens keep their place, and existing special tokens are found before
/// or after normalization as before. Older files only add tokens.
pub fn add_tokens(
    tokenizer: &mut Map<String, Value>,
    folder: &ModelFolder,
    config: &ConfigFile,
) -> Result<()> {
    let added = listed_tokens(folder, config)?;
    let named: BTreeSet<&str> = special_tokens(config.fields())
        .map(|(_, token)| token)
        .collect();
    let Some(Value::Array(known)) = tokenizer.get_mut("added_tokens") else {
        return Ok(());
    };
    for (
        id,
        AddedToken {
            content,
            single_word,
            lstrip,
            rstrip,
            normalized,
            special,
        },
    ) in added
    {
        let special = special || named.contains(content.as_str());
        let found = known.iter().position(|token| token["content"] == content);
        if found.is_some() && !lists_tokens(config) {
            continue;
        }
        let id = found.map_or_else(|| id.into(), |place| known[place]["id"].clone());
        let before = found
            .map(|place| &known[place])
            .filter(|token| token["special"] == true && special);
        let normalized = before
            .and_then(|token| token["normalized"].as_bool())
            .or(normalized);
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

#[cfg(test)]
mod tests;
