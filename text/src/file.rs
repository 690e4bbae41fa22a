//! Reads a `tokenizer.json` in one pass. The `tokenizers` crate takes twice as long, since it buffers the model in three
//! generic forms.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Buf, Bytes};
use serde::{
    Deserialize, Deserializer,
    de::{
        DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer,
    },
};
use serde_json::{Number, Value};
use tokenizers::{
    AddedToken, DecoderWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    models::{
        ModelWrapper, bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece,
    },
};

use super::{
    character_map::TextNormalizer,
    models::{
        fast_text::{self, FastText},
        vocabulary::Vocabulary,
    },
    patterns,
};
use kivu_base::{Error, Result, foreign_file};

/// The crate's tokenizer, with one of our models or its own.
pub type RawTokenizer = TokenizerImpl<
    Vocabulary,
    TextNormalizer,
    PreTokenizerWrapper,
    PostProcessorWrapper,
    DecoderWrapper,
>;

/// A `tokenizer.json`, without its padding and truncation, which depend on the request.
#[derive(Deserialize)]
#[serde(bound(deserialize = "M: Deserialize<'de>"))]
struct File<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
    #[serde(default, deserialize_with = "normalizer")]
    normalizer: Option<TextNormalizer>,
    #[serde(default, deserialize_with = "with_patterns")]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    #[serde(default, deserialize_with = "with_patterns")]
    decoder: Option<DecoderWrapper>,
    model: M,
}

/// Supported file format version.
const VERSION: &str = "1.0";

/// An added token. As in the crate, the vocabulary decides on its id, or else the next free one.
#[derive(Deserialize)]
struct NumberedToken {
    id: Number,
    #[serde(flatten)]
    token: AddedToken,
}

impl NumberedToken {
    /// The token, if its `id` may be one: the crate refuses others.
    fn checked(self) -> Result<AddedToken> {
        match self.id.as_u64().map(u32::try_from) {
            Some(Ok(_)) => Ok(self.token),
            _ => Err(Error::model(format!(
                "expected an `id` from 0 to {} for `{}` in `added_tokens` of the tokenizer, but found {}",
                u32::MAX,
                self.token.content.escape_debug(),
                self.id
            ))),
        }
    }
}

/// Most bytes that a tokenizer's part may make of one, so that a short text cannot take all memory. Character maps of
/// SentencePiece make 11, spaces become 3.
const MAX_GROWTH: usize = 256;

fn normalizer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<TextNormalizer>, D::Error> {
    let settings = settings(deserializer)?;
    settings
        .map(TextNormalizer::new)
        .transpose()
        .map_err(D::Error::custom)
}

/// Reads a tokenizer part whose regular expressions follow Oniguruma.
fn with_patterns<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    let settings = settings(deserializer)?;
    settings
        .map(T::deserialize)
        .transpose()
        .map_err(D::Error::custom)
}

/// A part's settings, with complete character maps: the crate allocates their claimed size before it checks it.
fn settings<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Value>, D::Error> {
    let Some(mut settings) = Option::<Value>::deserialize(deserializer)? else {
        return Ok(None);
    };
    if !has_complete_maps(&settings) {
        return Err(D::Error::custom("the character map is truncated"));
    }
    let growth = growth(&settings);
    if growth > MAX_GROWTH {
        return Err(D::Error::custom(format!(
            "expected a part that makes at most {MAX_GROWTH} bytes of one, but found {growth}"
        )));
    }
    translate_patterns(&mut settings).map_err(D::Error::custom)?;
    Ok(Some(settings))
}

/// About how many bytes the steps in `settings`, one after another, can make of one. A step's type may be missing.
fn growth(settings: &Value) -> usize {
    let text = |name: &str| settings[name].as_str();
    let own = if let Some(content) = text("content") {
        let replaced = settings["pattern"]["String"].as_str().unwrap_or_default();
        content.len().div_ceil(replaced.len().max(1))
    } else if let Some(map) = text("precompiled_charsmap") {
        // What is replaced by many characters has three bytes.
        longest_replacement(map).unwrap_or_default().div_ceil(3)
    } else if let Some(prepended) = text("prepend") {
        prepended.len()
    } else {
        let widens = matches!(text("type"), Some("ByteLevel" | "BertNormalizer"));
        if widens { 2 } else { 1 }
    };
    let product = |product: usize, part: &Value| product.saturating_mul(growth(part));
    match settings {
        Value::Object(members) => members.values().fold(own.max(1), product),
        Value::Array(elements) => elements.iter().fold(1, product),
        _ => 1,
    }
}

/// The longest replacement in a character map: after the trie, each ends with a zero.
fn longest_replacement(map: &str) -> Option<usize> {
    let map = BASE64_STANDARD.decode(map).ok()?;
    let (length, map) = map.split_first_chunk()?;
    let replacements = map.get(u32::from_le_bytes(*length) as usize..)?;
    replacements.split(|byte| *byte == 0).map(<[u8]>::len).max()
}

/// Translates the regular expressions in `settings`.
fn translate_patterns(settings: &mut Value) -> std::result::Result<(), String> {
    match settings {
        Value::Object(members) => members
            .iter_mut()
            .try_for_each(|(name, value)| match value {
                Value::String(pattern) if name == "Regex" => {
                    *pattern = patterns::translate(pattern)?;
                    Ok(())
                }
                value => translate_patterns(value),
            }),
        Value::Array(elements) => elements.iter_mut().try_for_each(translate_patterns),
        _ => Ok(()),
    }
}

/// Whether the character maps in `settings` contain the trie whose length in bytes they begin with, as in SentencePiece.
/// Anything else is left to the crate.
fn has_complete_maps(settings: &Value) -> bool {
    match settings {
        Value::Object(members) => members.iter().all(|(name, value)| match value {
            Value::String(map) if name == "precompiled_charsmap" => {
                let length = map
                    .get(..8)
                    .and_then(|start| BASE64_STANDARD.decode(start).ok());
                let length = length
                    .as_deref()
                    .and_then(|start| start.first_chunk().copied());
                length.is_none_or(|length| u32::from_le_bytes(length) as usize <= map.len() / 4 * 3)
            }
            value => has_complete_maps(value),
        }),
        Value::Array(elements) => elements.iter().all(has_complete_maps),
        _ => true,
    }
}

/// Reads a `tokenizer.json`.
pub fn read(json: &[u8]) -> Result<RawTokenizer> {
    if let Some(found) = foreign_file::stand_in(json) {
        return Err(Error::model(
            found.map(|found| format!("the tokenizer is {found}")),
        ));
    }
    check_prefixes(json)?;
    match parse::<TypedModel>(json) {
        Ok(file) if matches!(file.model.0, Vocabulary::FastText(_)) && file.has_parts() => Err(
            unreadable("expected only a model for fastText's features, but found other parts"),
        ),
        Ok(file) => file.assemble(|model| model.0),
        Err(error) if is_fast_text(json) => Err(error),
        // In files from older crate versions the type is not first, or missing.
        Err(_) => parse::<ModelWrapper>(json)?.assemble(Vocabulary::Standard),
    }
}

/// Reads the output from [`compile`].
pub fn read_compiled(mut file: Bytes) -> Result<RawTokenizer> {
    let damaged =
        || Error::model("the file is not a compiled tokenizer").with_hint("build the bundle again");
    let length = file.try_get_u64_le().map_err(|_| damaged())?;
    let length = usize::try_from(length)
        .ok()
        .filter(|length| *length <= file.len())
        .ok_or_else(damaged)?;
    let json = file.split_to(length);
    let vocabulary = Vocabulary::read(file).ok_or_else(damaged)?;
    parse::<IgnoredAny>(&json)?.assemble(|_| vocabulary)
}

/// Compiles a `tokenizer.json` to: the length of the JSON without the model, that JSON, the model. `None`
/// for unsupported models.
pub fn compile(json: &[u8]) -> Result<Option<Vec<u8>>> {
    if is_fast_text(json) {
        return Ok(None);
    }
    check_prefixes(json)?;
    let model = parse::<ModelWrapper>(json)?.model;
    let mut file: Value = serde_json::from_slice(json).map_err(unreadable)?;
    let Some(pieces) = Vocabulary::file_of(&model, &file["model"].take()) else {
        return Ok(None);
    };
    let rest = serde_json::to_vec(&file).map_err(unreadable)?;
    Ok(Some(
        [&(rest.len() as u64).to_le_bytes(), rest.as_slice(), &pieces].concat(),
    ))
}

/// Whether a file's model finds fastText's features, which the crate does not know.
fn is_fast_text(json: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct File<'a> {
        #[serde(borrow)]
        model: Model<'a>,
    }
    #[derive(Deserialize)]
    struct Model<'a> {
        r#type: &'a str,
    }
    serde_json::from_slice::<File<'_>>(json).is_ok_and(|file| file.model.r#type == fast_text::TYPE)
}

/// Refuses byte pairs without their model's prefix: the crate cuts its length off, without checking
/// that the rest is text.
fn check_prefixes(json: &[u8]) -> Result<()> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Model {
        continuing_subword_prefix: Option<String>,
        merges: Option<Vec<Merge>>,
    }
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Merge {
        Pair([String; 2]),
        Line(String),
    }
    #[derive(Deserialize)]
    struct File {
        model: Model,
    }
    if !has_prefix(json) {
        return Ok(());
    }
    // Invalid files are refused later.
    let Ok(File { model }) = serde_json::from_slice(json) else {
        return Ok(());
    };
    let prefix = model.continuing_subword_prefix.unwrap_or_default();
    let merges = model.merges.unwrap_or_default();
    let second = |merge: &Merge| match merge {
        Merge::Pair([_, second]) => second.starts_with(&prefix),
        Merge::Line(line) => line
            .split_once(' ')
            .is_none_or(|(_, second)| second.starts_with(&prefix)),
    };
    match merges.iter().all(second) {
        true => Ok(()),
        false => Err(Error::model(format!(
            "expected `merges` whose second part begins with the `continuing_subword_prefix` `{}` in the tokenizer, but \
             found another",
            prefix.escape_debug()
        ))),
    }
}

/// Refuses byte pairs of which some are left apart at random, as in training: a text's tokens would differ from call to call.
fn check_dropout(vocabulary: &Vocabulary) -> Result<()> {
    let Vocabulary::Standard(ModelWrapper::BPE(model)) = vocabulary else {
        return Ok(());
    };
    match model.dropout.filter(|dropout| *dropout != 0.0) {
        None => Ok(()),
        Some(found) => Err(Error::model(format!(
            "`dropout` {found} in the tokenizer is not supported: each text would have other tokens each time"
        ))
        .with_hint("set it to null")),
    }
}

/// Whether a file has a subword prefix, without parsing it: most have none.
fn has_prefix(json: &[u8]) -> bool {
    const KEY: &str = "\"continuing_subword_prefix\"";
    let json = std::str::from_utf8(json).unwrap_or_default();
    let Some((_, value)) = json.split_once(KEY) else {
        return false;
    };
    let value = value.trim_start().trim_start_matches(':').trim_start();
    !value.starts_with("null") && !value.starts_with("\"\"")
}

fn parse<'a, M: Deserialize<'a>>(json: &'a [u8]) -> Result<File<M>> {
    let file: File<M> = guarded(|| serde_json::from_slice(json).map_err(unreadable))?;
    if let Some(version) = file
        .version
        .as_deref()
        .filter(|version| *version != VERSION)
    {
        return Err(Error::model(format!(
            "expected a tokenizer of version {VERSION}, but found `{}`",
            version.escape_default()
        )));
    }
    Ok(file)
}

/// Calls the crate, which panics if a tokenizer's parts do not match.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(unreadable("its parts do not match")))
}

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::model_because("cannot read the tokenizer", error)
}

impl<M> File<M> {
    /// Whether there is anything but the model.
    fn has_parts(&self) -> bool {
        !self.added_tokens.is_empty()
            || self.normalizer.is_some()
            || self.pre_tokenizer.is_some()
            || self.post_processor.is_some()
            || self.decoder.is_some()
    }

    fn assemble(self, vocabulary: impl FnOnce(M) -> Vocabulary) -> Result<RawTokenizer> {
        guarded(|| {
            let vocabulary = vocabulary(self.model);
            check_dropout(&vocabulary)?;
            let mut tokenizer = RawTokenizer::new(vocabulary);
            tokenizer
                .with_normalizer(self.normalizer)
                .map_err(unreadable)?;
            tokenizer
                .with_pre_tokenizer(self.pre_tokenizer)
                .with_post_processor(self.post_processor)
                .with_decoder(self.decoder);
            let tokens = self.added_tokens.into_iter().map(NumberedToken::checked);
            let tokens = tokens.collect::<Result<Vec<_>>>()?;
            tokenizer.add_tokens(tokens).map_err(unreadable)?;
            Ok(tokenizer)
        })
    }
}

/// A model with its type first, as the crate writes it.
struct TypedModel(Vocabulary);

impl<'de> Deserialize<'de> for TypedModel {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        deserializer.deserialize_map(TypedModelVisitor)
    }
}

struct TypedModelVisitor;

impl<'de> Visitor<'de> for TypedModelVisitor {
    type Value = TypedModel;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a model that begins with its `type`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> std::result::Result<TypedModel, A::Error> {
        let Some(("type", kind)) = map.next_entry::<&str, &str>()? else {
            return Err(A::Error::custom("expected `type` first"));
        };
        let rest = MapAccessDeserializer::new(map);
        if kind == fast_text::TYPE {
            return Ok(TypedModel(Vocabulary::FastText(FastText::deserialize(
                rest,
            )?)));
        }
        Ok(TypedModel(Vocabulary::Standard(match kind {
            "BPE" => ModelWrapper::BPE(BPE::deserialize(rest)?),
            "Unigram" => ModelWrapper::Unigram(Unigram::deserialize(rest)?),
            "WordLevel" => ModelWrapper::WordLevel(WordLevel::deserialize(rest)?),
            "WordPiece" => ModelWrapper::WordPiece(WordPiece::deserialize(rest)?),
            other => {
                return Err(A::Error::custom(format!(
                    "unknown model `{other}` of the tokenizer"
                )));
            }
        })))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn byte_pairs_that_are_merged_at_random_are_refused() {
        // The type is first, or the crate's own reader finds it.
        for model in ["\"type\": \"BPE\", ", ""] {
            let read = |dropout: &str| {
                let file = format!(
                    "{{\"version\": \"1.0\", \"added_tokens\": [], \"model\": {{{model}\"dropout\": {dropout}, \
                     \"vocab\": {{\"a\": 0, \"b\": 1, \"ab\": 2}}, \"merges\": [\"a b\"]}}}}"
                );
                read(file.as_bytes()).map(drop)
            };
            read("null").unwrap();
            read("0.0").unwrap();
            for dropout in ["0.1", "1.0"] {
                let expected = format!(
                    "`dropout` {} in the tokenizer is not supported: each text would have other tokens each time; set it to \
                     null",
                    dropout.trim_end_matches(".0")
                );
                assert_eq!(read(dropout).unwrap_err().to_string(), expected);
            }
        }
    }

    #[test]
    fn parts_that_make_texts_long_are_refused() {
        let read = |part: &str, settings: &Value| {
            let model = json!({"type": "WordLevel", "vocab": {"u": 0}, "unk_token": "u"});
            let file =
                json!({"version": "1.0", "added_tokens": [], part: settings, "model": model});
            read(file.to_string().as_bytes()).map(drop)
        };
        let sequence = |parts: &str, step: Value, count| {
            let steps: Vec<_> = std::iter::repeat_n(step, count).collect();
            json!({"type": "Sequence", parts: steps})
        };
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let doubling = || replace(json!({"String": "a"}), "aa");
        let untyped = || json!({"pattern": {"Regex": "a"}, "content": "aa"});
        let map = |replacement: usize| {
            let map = [
                &4_u32.to_le_bytes()[..],
                &[0; 4],
                &vec![b'a'; replacement],
                &[0],
            ]
            .concat();
            json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(map)})
        };
        let bytes = || json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
        for (part, settings, expected) in [
            (
                "normalizer",
                sequence("normalizers", doubling(), 40),
                1 << 40,
            ),
            ("normalizer", sequence("normalizers", doubling(), 9), 512),
            ("normalizer", sequence("normalizers", untyped(), 9), 512),
            (
                "normalizer",
                sequence("normalizers", json!({"type": "ByteLevel"}), 70),
                usize::MAX,
            ),
            (
                "normalizer",
                replace(json!({"Regex": ""}), &"b".repeat(300)),
                300,
            ),
            (
                "normalizer",
                json!({"type": "Prepend", "prepend": "b".repeat(300)}),
                300,
            ),
            ("normalizer", map(900), 300),
            ("pre_tokenizer", sequence("pretokenizers", bytes(), 9), 512),
            ("decoder", sequence("decoders", doubling(), 9), 512),
        ] {
            let error = read(part, &settings).unwrap_err().chain();
            let expected = format!(
                "expected a part that makes at most 256 bytes of one, but found {expected}"
            );
            assert!(error.contains(&expected), "{error}");
        }
        for (part, settings) in [
            ("normalizer", sequence("normalizers", doubling(), 8)),
            (
                "normalizer",
                replace(json!({"String": "long words"}), "other words"),
            ),
            (
                "normalizer",
                json!({"type": "Sequence", "normalizers": [map(33), replace(json!({"String": " "}), "▁")]}),
            ),
            ("pre_tokenizer", bytes()),
        ] {
            if let Err(error) = read(part, &settings) {
                assert!(!error.chain().contains("bytes of one"), "{}", error.chain());
            }
        }
    }

    #[test]
    fn the_vocabulary_decides_on_the_ids_of_added_tokens() {
        let read = |ids: [Value; 3]| {
            let tokens = ["<a>", "b", "<c>"].into_iter().zip(ids);
            let added: Vec<Value> = tokens
                .map(|(content, id)| {
                    json!({
                        "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                        "normalized": false, "special": true,
                    })
                })
                .collect();
            let model = json!({"type": "WordLevel", "vocab": {"b": 0, "u": 1}, "unk_token": "u"});
            let file = json!({"version": "1.0", "added_tokens": added, "model": model});
            let read = read(file.to_string().as_bytes())?;
            Ok::<_, Error>(["<a>", "b", "<c>"].map(|token| read.token_to_id(token).unwrap()))
        };
        // A duplicate, another token's, and one beyond the vocabulary.
        for ids in [[2, 0, 3], [3, 0, 3], [0, 1, 2], [4_000_000_000_u32, 9, 8]] {
            assert_eq!(read(ids.map(Value::from)).unwrap(), [2, 0, 3], "{ids:?}");
        }
        let refusal = |id: Value| read([json!(2), json!(0), id]).unwrap_err().chain();
        for id in [json!(-1), json!(3.5), json!(3.0), json!(1_u64 << 32)] {
            let expected = format!(
                "expected an `id` from 0 to 4294967295 for `<c>` in `added_tokens` of the tokenizer, but found {id}"
            );
            assert_eq!(refusal(id), expected);
        }
        for id in [json!(null), json!("3")] {
            assert!(refusal(id).contains("expected a JSON number"));
        }
    }

    #[test]
    fn byte_pairs_begin_with_the_prefix_of_their_model() {
        let file = |prefix: Value, merge: Value| {
            let model = json!({
                "type": "BPE", "vocab": {"ã": 0, "x": 1, "xb": 2, "ãb": 3, "ãxb": 4},
                "continuing_subword_prefix": prefix, "merges": [merge],
            });
            let file = json!({"version": "1.0", "added_tokens": [], "model": model});
            read(&serde_json::to_vec_pretty(&file).unwrap()).map(drop)
        };
        file(json!("x"), json!(["ã", "xb"])).unwrap();
        file(json!(null), json!(["ã", "xb"])).unwrap();
        let merges = [json!(["ã", "ãb"]), json!("ã ãb")];
        let refusals = merges.map(|merge| file(json!("x"), merge).unwrap_err().to_string());
        assert_eq!(refusals[0], refusals[1]);
        insta::assert_snapshot!(refusals[0], @"expected `merges` whose second part begins with the `continuing_subword_prefix` `x` in the tokenizer, but found another");
    }
}
