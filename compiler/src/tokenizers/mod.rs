//! Tokenizers of Hugging Face folders, as one `tokenizer.json`.

#[doc(hidden)]
pub mod byte_pairs;
pub mod classes;
pub mod parts;
pub mod sentencepiece;
pub mod token_rows;
pub mod token_types;
pub mod tokenizer_config;
pub mod vocabularies;
