//! Vocabularies, and how words are divided into their tokens.

pub mod bert;
pub mod byte_pairs;
pub mod byte_pieces;
pub mod cl100k;
pub mod fast_text;
pub mod trie;
pub mod unigram;
pub mod vocabulary;
pub mod word_pieces;
