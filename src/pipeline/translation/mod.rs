//! Texts to texts of another language.

mod languages;
mod pipeline;
mod sentences;
mod settings;
pub mod shortlist;
mod sources;

pub use self::{
    languages::{Directions, LanguageNames, Pair, Wanted},
    pipeline::{
        Decoding, GeneratedIds, Parts, Translation, TranslationOptions, TranslationPipeline, Translations,
    },
    settings::{Decoder, Languages, TokenSide, TranslationSettings, UnknownTokens},
    sources::Split,
};
