//! Translation: what is generated, against what `transformers` generates.

mod generating;
