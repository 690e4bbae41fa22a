//! Heads that score labels in a request: GLiNER, GLiNER2 and GLiClass.

mod counted_labels;
pub mod spans;
mod text_scores;
mod word_scores;
