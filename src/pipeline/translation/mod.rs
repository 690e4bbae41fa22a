//! Texts to texts of another language.

mod execute;
mod languages;
mod pipeline;
pub mod remote;
mod segmentation;
mod settings;
pub mod shortlist;
mod sources;

pub use self::{
    languages::{Directions, LanguageNames, Pair, RequestedLanguages},
    pipeline::{
        Decoding, GeneratedIds, Translation, TranslationOptions, TranslationParts, TranslationPipeline,
        Translations,
    },
    settings::{Decoder, Languages, TokenSide, TranslationSettings, UnknownTokens},
    sources::{SpecialTokens, Split},
};
