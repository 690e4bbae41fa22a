//! Texts to texts, by models with an encoder and a decoder: translations, summaries and others.

mod execute;
mod languages;
mod pipeline;
pub mod remote;
pub mod segmentation;
mod settings;
pub mod shortlist;
mod source_encoder;
mod unknown_text;

pub use self::{
    execute::Decoding,
    languages::{
        Directions, LanguagePair, ListedLanguage, RequestedLanguages, are_languages,
        identified_code,
    },
    pipeline::{GeneratedIds, GeneratedText, GeneratedTexts, Seq2SeqParts, Seq2SeqPipeline},
    settings::{
        Decoder, Languages, Seq2SeqSettings, TargetToken, TokenSide, UnknownTokens, tag, tagged,
    },
    source_encoder::{Seq2SeqOptions, Split},
};
