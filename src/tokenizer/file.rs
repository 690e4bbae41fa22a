//! Reading a `tokenizer.json`, in one pass over its text.
//!
//! The `tokenizers` crate reads the model in it through three generic forms, one after the other, which takes
//! twice as long.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
};

use base64::{Engine, prelude::BASE64_STANDARD};
use bytes::{Buf, Bytes};
use serde::{
    Deserialize, Deserializer,
    de::{Error as _, IgnoredAny, MapAccess, Visitor, value::MapAccessDeserializer},
};
use serde_json::Value;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, TokenizerImpl,
    models::{ModelWrapper, bpe::BPE, unigram::Unigram, wordlevel::WordLevel, wordpiece::WordPiece},
};

use super::vocabulary::Vocabulary;
use crate::error::{Error, Result};

/// The tokenizer of the crate, over a vocabulary of ours or its own.
pub(super) type RawTokenizer =
    TokenizerImpl<Vocabulary, NormalizerWrapper, PreTokenizerWrapper, PostProcessorWrapper, DecoderWrapper>;

/// A `tokenizer.json`. Its padding and truncation are left out: both are a matter of the request.
#[derive(Deserialize)]
#[serde(bound(deserialize = "M: Deserialize<'de>"))]
struct File<M> {
    version: Option<String>,
    #[serde(default)]
    added_tokens: Vec<NumberedToken>,
    #[serde(default, deserialize_with = "normalizer")]
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
    post_processor: Option<PostProcessorWrapper>,
    decoder: Option<DecoderWrapper>,
    model: M,
}

/// The form of file that there is.
const VERSION: &str = "1.0";

#[derive(Deserialize)]
struct NumberedToken {
    #[serde(flatten)]
    token: AddedToken,
}

/// A normalizer whose maps of characters are as long as they say: the crate takes that much memory before it looks.
fn normalizer<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<NormalizerWrapper>, D::Error> {
    let Some(settings) = Option::<Value>::deserialize(deserializer)? else { return Ok(None) };
    if !has_whole_maps(&settings) {
        return Err(D::Error::custom("expected a map of characters, but found one that is not whole"));
    }
    NormalizerWrapper::deserialize(settings).map(Some).map_err(D::Error::custom)
}

/// Whether the maps among `settings` hold the trie whose length in bytes they begin with, as SentencePiece writes
/// them; what is no map at all is left to the crate.
fn has_whole_maps(settings: &Value) -> bool {
    match settings {
        Value::Object(members) => members.iter().all(|(name, value)| match value {
            Value::String(map) if name == "precompiled_charsmap" => {
                let length = map.get(..8).and_then(|start| BASE64_STANDARD.decode(start).ok());
                let length = length.as_deref().and_then(|start| start.first_chunk().copied());
                length.is_none_or(|length| u32::from_le_bytes(length) as usize <= map.len() / 4 * 3)
            }
            value => has_whole_maps(value),
        }),
        Value::Array(elements) => elements.iter().all(has_whole_maps),
        _ => true,
    }
}

/// Reads a file with the vocabulary that is in it.
pub(super) fn read(json: &[u8]) -> Result<RawTokenizer> {
    match parse::<TypedModel>(json) {
        Ok(file) => file.assemble(|model| Vocabulary::Standard(model.0)),
        // Files of older versions do not begin with the type, or do not say it.
        Err(_) => parse::<ModelWrapper>(json)?.assemble(Vocabulary::Standard),
    }
}

/// Reads what [`compile`] has written.
pub(super) fn read_compiled(mut file: Bytes) -> Result<RawTokenizer> {
    let damaged =
        || Error::model("expected a tokenizer's pieces, but found something else; build the bundle again");
    let length = file.try_get_u64_le().map_err(|_| damaged())?;
    let length = usize::try_from(length).ok().filter(|length| *length <= file.len()).ok_or_else(damaged)?;
    let json = file.split_to(length);
    let vocabulary = Vocabulary::read(file).ok_or_else(damaged)?;
    parse::<IgnoredAny>(&json)?.assemble(|_| vocabulary)
}

/// A file with its vocabulary in the form that it is searched in, or nothing where its model is of a kind that has
/// none: the length of the rest of the JSON, that rest, the vocabulary.
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

/// Does something with the crate, which panics where parts of a tokenizer do not fit together.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| Err(unreadable("its parts do not fit together")))
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

/// A model that says its type first, as those do that the crate writes.
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
