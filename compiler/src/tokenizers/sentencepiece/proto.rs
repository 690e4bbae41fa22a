//! Messages from
//! [`sentencepiece_model.proto`](https://github.com/google/sentencepiece/blob/master/src/sentencepiece_model.proto),
//! with the used fields.

use bytes::Bytes;
use prost::Message;

/// `TrainerSpec.ModelType.UNIGRAM`, which is the default.
pub const UNIGRAM: i32 = 1;
/// `TrainerSpec.ModelType.BPE`.
pub const BPE: i32 = 2;
/// `ModelProto.SentencePiece.Type.NORMAL`, which is the default.
pub const NORMAL: i32 = 1;
/// `ModelProto.SentencePiece.Type.USER_DEFINED`.
pub const USER_DEFINED: i32 = 4;

/// `ModelProto.SentencePiece.Type.BYTE`.
pub const BYTE: i32 = 6;

#[derive(Clone, PartialEq, Message)]
pub struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub pieces: Vec<SentencePiece>,
    #[prost(message, optional, tag = "2")]
    pub trainer_spec: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    pub normalizer_spec: Option<NormalizerSpec>,
}

#[derive(Clone, PartialEq, Message)]
pub struct SentencePiece {
    #[prost(string, tag = "1")]
    pub piece: String,
    #[prost(float, tag = "2")]
    pub score: f32,
    #[prost(int32, optional, tag = "3")]
    pub r#type: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub struct TrainerSpec {
    #[prost(int32, optional, tag = "3")]
    pub model_type: Option<i32>,
    #[prost(bool, tag = "24")]
    pub treat_whitespace_as_suffix: bool,
    #[prost(bool, tag = "35")]
    pub byte_fallback: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct NormalizerSpec {
    #[prost(bytes = "bytes", tag = "2")]
    pub precompiled_charsmap: Bytes,
    #[prost(bool, optional, tag = "3")]
    pub add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub escape_whitespaces: Option<bool>,
}
