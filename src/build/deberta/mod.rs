//! Encoders after DeBERTa-v2 and -v3, from `config.json` and weights to a graph.
//!
//! Their attention looks at distances. To the product of a token's query with another's key come two more: of the
//! query with a key that stands for how far apart the two are, and of the key with a query that does. These
//! keys and queries are the same for every text, and so they are constants here; distances far off share
//! them in buckets.

mod config;
mod distances;
mod graph;

pub(super) use self::{config::DebertaConfig, graph::graph};
use super::encoder::WORDS;

/// The family's `model_type`.
pub(super) const MODEL_TYPE: &str = "deberta-v2";
/// The prefix under which a model with a head stores its body, and a weight to tell by whether it does.
pub(super) const PREFIX: (&str, &str) = ("deberta.", WORDS);
