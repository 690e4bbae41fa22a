//! Messages from
//! [`sentencepiece_model.proto`](https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto),
//! with the used fields.

use bytes::Bytes;
use prost::Message;

/// `TrainerSpec.ModelType.UNIGRAM`, which is the default.
pub(super) const UNIGRAM: i32 = 1;
/// `TrainerSpec.ModelType.BPE`.
pub(super) const BPE: i32 = 2;
/// `ModelProto.SentencePiece.Type.NORMAL`, which is the default.
pub(super) const NORMAL: i32 = 1;
/// `ModelProto.SentencePiece.Type.USER_DEFINED`.
pub(super) const USER_DEFINED: i32 = 4;

/// `ModelProto.SentencePiece.Type.BYTE`.
pub(super) const BYTE: i32 = 6;

#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<SentencePiece>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer_spec: Option<NormalizerSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct SentencePiece {
    #[prost(string, tag = "1")]
    pub(super) piece: String,
    #[prost(float, tag = "2")]
    pub(super) score: f32,
    #[prost(int32, optional, tag = "3")]
    pub(super) r#type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    pub(super) model_type: Option<i32>,
    #[prost(bool, tag = "24")]
    pub(super) treat_whitespace_as_suffix: bool,
    #[prost(bool, tag = "35")]
    pub(super) byte_fallback: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NormalizerSpec {
    #[prost(bytes = "bytes", tag = "2")]
    pub(super) precompiled_charsmap: Bytes,
    #[prost(bool, optional, tag = "3")]
    pub(super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(super) escape_whitespaces: Option<bool>,
}
