//! Translation: what is generated, against what `transformers` generates, and what clients see.

mod asking;
mod generating;
mod looping;
mod texts;
