//! Texts to texts of another language.

mod execute;
mod languages;
mod pipeline;
pub mod remote;
mod segmentation;
mod settings;
pub mod shortlist;
mod source_encoder;

pub use self::{
    execute::Decoding,
    languages::{Directions, LanguagePair, ListedLanguage, RequestedLanguages},
    pipeline::{GeneratedIds, Translation, TranslationParts, TranslationPipeline, Translations},
    settings::{Decoder, Languages, TokenSide, TranslationSettings, UnknownTokens},
    source_encoder::{SpecialTokens, Split, TranslationOptions},
};
