//! Translation: results compared with `transformers`, and responses to clients.

mod asking;
mod generating;
mod looping;
mod tags;
mod texts;
