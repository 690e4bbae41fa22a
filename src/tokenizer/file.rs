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
    de::{DeserializeOwned, Error as _, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    models::{ModelWrapper, bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece},
};

use super::{patterns, vocabulary::Vocabulary};
use crate::error::{Error, Result};

/// The crate's tokenizer, with one of our models or its own.
pub(super) type RawTokenizer =
    TokenizerImpl<Vocabulary, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A `tokenizer.json`, without its padding and truncation, which depend on the request.
#[derive(Deserialize)]
#[serde(bound(deserialize = "M: Deserialize<'de>"))]
struct File<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
    #[serde(default, deserialize_with = "normalizer")]
    normalizer: Option<NormalizerWrapper>,
    #[serde(default, deserialize_with = "with_patterns")]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    #[serde(default, deserialize_with = "with_patterns")]
    decoder: Option<DecoderWrapper>,
    model: M,
}

/// Supported file format version.
const VERSION: &str = "1.0";

#[derive(Deserialize)]
struct NumberedToken {
    #[serde(flatten)]
    token: AddedToken,
}

/// A normalizer with complete character maps: the crate allocates their claimed size before it checks it.
fn normalizer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<NormalizerWrapper>, D::Error> {
    let Some(mut settings) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    if !has_complete_maps(&settings) {
        return Err(D::Error::custom("expected a character map, but found a truncated one"));
    }
    translate_patterns(&mut settings).map_err(D::Error::custom)?;
    NormalizerWrapper::deserialize(settings).map(Some).map_err(D::Error::custom)
}

/// Reads a tokenizer part whose regular expressions follow Oniguruma.
fn with_patterns<'de, D: Deserializer<'de>, T: DeserializeOwned>(
    deserializer: D,
) -> std::result::Result<Option<T>, D::Error> {
    let Some(mut settings) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    translate_patterns(&mut settings).map_err(D::Error::custom)?;
    T::deserialize(settings).map(Some).map_err(D::Error::custom)
}

/// Translates the regular expressions in `settings`.
fn translate_patterns(settings: &mut Value) -> std::result::Result<(), String> {
    match settings {
        Value::Object(members) => members.iter_mut().try_for_each(|(name, value)| match value {
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
                let length = map.get(..8).and_then(|start| BASE64_STANDARD.decode(start).ok());
                let length = length.as_deref().and_then(|start| start.first_chunk().copied());
                length.is_none_or(|length| u32::from_le_bytes(length) as usize <= map.len() / 4 * 3)
            }
            value => has_complete_maps(value),
        }),
        Value::Array(elements) => elements.iter().all(has_complete_maps),
        _ => true,
    }
}

/// Reads a `tokenizer.json`.
pub(super) fn read(json: &[u8]) -> Result<RawTokenizer> {
    match parse::<TypedModel>(json) {
        Ok(file) => file.assemble(|model| Vocabulary::Standard(model.0)),
        // In files from older crate versions the type is not first, or missing.
        Err(_) => parse::<ModelWrapper>(json)?.assemble(Vocabulary::Standard),
    }
}

/// Reads the output from [`compile`].
pub(super) fn read_compiled(mut file: Bytes) -> Result<RawTokenizer> {
    let damaged =
        || Error::model("expected a compiled tokenizer, but found something else; build the bundle again");
    let length = file.try_get_u64_le().map_err(|_| damaged())?;
    let length = usize::try_from(length).ok().filter(|length| *length <= file.len()).ok_or_else(damaged)?;
    let json = file.split_to(length);
    let vocabulary = Vocabulary::read(file).ok_or_else(damaged)?;
    parse::<IgnoredAny>(&json)?.assemble(|_| vocabulary)
}

/// Compiles a `tokenizer.json` to: the length of the JSON without the model, that JSON, the model. `None`
/// for unsupported models.
pub(super) fn compile(json: &[u8]) -> Result<Option<Vec<u8>>> {
    let model = parse::<ModelWrapper>(json)?.model;
    let mut file: Value = serde_json::from_slice(json).map_err(unreadable)?;
    let Some(pieces) = Vocabulary::file_of(&model, &file["model"].take()) else { return Ok(None) };
    let rest = serde_json::to_vec(&file).map_err(unreadable)?;
    Ok(Some([&(rest.len() as u64).to_le_bytes(), rest.as_slice(), &pieces].concat()))
}

fn parse<'a, M: Deserialize<'a>>(json: &'a [u8]) -> Result<File<M>> {
    let file: File<M> = guarded(|| serde_json::from_slice(json).map_err(unreadable))?;
    if let Some(version) = file.version.as_deref().filter(|version| *version != VERSION) {
        return Err(Error::model(format!(
            "expected a tokenizer of version {VERSION}, but found `{}`",
            version.escape_default()
        )));
    }
    Ok(file)
}

/// Calls the crate, which panics if a tokenizer's parts do not match.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(unreadable("its parts do not match")))
}

fn unreadable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    Error::model_because("cannot read the tokenizer", error)
}

impl<M> File<M> {
    fn assemble(self, vocabulary: impl FnOnce(M) -> Vocabulary) -> Result<RawTokenizer> {
        guarded(|| {
            let mut tokenizer = RawTokenizer::new(vocabulary(self.model));
            tokenizer.with_normalizer(self.normalizer).map_err(unreadable)?;
            tokenizer
                .with_pre_tokenizer(self.pre_tokenizer)
                .with_post_processor(self.post_processor)
                .with_decoder(self.decoder);
            let tokens = self.added_tokens.into_iter().map(|numbered| numbered.token);
            tokenizer.add_tokens(tokens).map_err(unreadable)?;
            Ok(tokenizer)
        })
    }
}

/// A model with its type first, as the crate writes it.
struct TypedModel(ModelWrapper);

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
        let kind = match map.next_entry::<&str, &str>()? {
            Some(("type", kind)) => kind,
            _ => return Err(A::Error::custom("expected `type` first")),
        };
        let rest = MapAccessDeserializer::new(map);
        Ok(TypedModel(match kind {
            "BPE" => ModelWrapper::BPE(BPE::deserialize(rest)?),
            "Unigram" => ModelWrapper::Unigram(Unigram::deserialize(rest)?),
            "WordLevel" => ModelWrapper::WordLevel(WordLevel::deserialize(rest)?),
            "WordPiece" => ModelWrapper::WordPiece(WordPiece::deserialize(rest)?),
            other => return Err(A::Error::custom(format!("expected a known model, but found `{other}`"))),
        }))
    }
}
