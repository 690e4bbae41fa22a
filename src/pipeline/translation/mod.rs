//! Texts to texts in another language.

pub mod shortlist;
