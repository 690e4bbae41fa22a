//! Texts to texts of another language.

mod settings;
pub mod shortlist;

pub use self::settings::{Decoder, Languages, TokenSide, TranslationSettings, UnknownTokens};
