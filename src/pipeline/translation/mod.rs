//! Texts to texts of another language.

mod settings;

pub use self::settings::{Decoder, Languages, TokenSide, TranslationSettings};
