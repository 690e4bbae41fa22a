//! Texts to texts of another language.

mod languages;
mod pipeline;
pub mod remote;
mod sentences;
mod settings;
pub mod shortlist;
mod sources;
mod writing;

pub use self::{
    languages::{Directions, LanguageNames, Pair, Wanted},
    pipeline::{
        Decoding, GeneratedIds, Parts, Translation, TranslationOptions, TranslationPipeline, Translations,
    },
    settings::{Decoder, Languages, TokenSide, TranslationSettings, UnknownTokens},
    sources::{SpecialTokens, Split},
};
