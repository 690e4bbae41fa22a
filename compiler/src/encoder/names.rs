//! Weight names in encoder families, from `names.toml`.

use std::{collections::BTreeMap, sync::LazyLock};

use serde::Deserialize;
use toml::{Table, Value};

use kivu::{Error, Result, error::BoxError};

/// Weight names in a family.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Names {
    /// Body prefix in models with a head.
    #[serde(default)]
    pub prefix: &'static str,
    /// Word embedding table.
    pub words: &'static str,
    /// Other names of this table in files, since other layers share it.
    #[serde(default)]
    pub words_aliases: Vec<&'static str>,
    /// Embedding normalization; `None` in models without one.
    pub embedding_norm: Option<&'static str>,
    pub layer: &'static str,
    /// Queries, keys and values: three matrices, or one.
    pub projections: Vec<&'static str>,
    pub query_key_norms: Option<[&'static str; 2]>,
    pub attention_output: &'static str,
    pub norms: Norms,
    /// The first feed-forward matrix, or its two halves.
    pub up: Vec<&'static str>,
    pub down: &'static str,
    /// The head's layer before the labels, and whether its name has the body's prefix.
    pub dense: (&'static str, bool),
    /// The normalization after it.
    pub dense_norm: Option<&'static str>,
    #[serde(default)]
    pub labels: &'static str,
}

/// Normalizations in a layer and at the output.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum Norms {
    /// Normalizes the sum of a part's input and output; a second normalization adds the input again.
    After {
        attention: Vec<&'static str>,
        output: &'static str,
    },
    /// Normalizes a part's input; the first layer's attention has none unless `is_first_normal`. Each part's output is
    /// normalized too if there are names in `after`.
    Before {
        attention: &'static str,
        feed_forward: &'static str,
        after: Option<[&'static str; 2]>,
        last: &'static str,
        is_first_normal: bool,
    },
}

static SETS: LazyLock<BTreeMap<String, Names>> = LazyLock::new(|| sets().unwrap_or_default());

impl Names {
    /// The names in a set of `names.toml`.
    pub fn of(set: &str) -> Result<&'static Self> {
        let found = SETS.get(set);
        found.ok_or_else(|| Error::model(format!("no weight names for `{set}`")))
    }

    /// Whether these are the names in a set.
    pub fn is(&self, set: &str) -> bool {
        Self::of(set).is_ok_and(|names| std::ptr::eq(names, self))
    }
}

fn sets() -> Result<BTreeMap<String, Names>, BoxError> {
    let written: BTreeMap<String, Table> = toml::from_str(include_str!("names.toml"))?;
    let whole = written.keys().map(|set| (set, whole(set, &written)));
    // In JSON, texts without escapes are borrowed.
    let json = serde_json::to_string(&whole.collect::<BTreeMap<_, _>>())?;
    Ok(serde_json::from_str(json.leak())?)
}

/// A set, completed with the one that it is like.
fn whole(set: &str, written: &BTreeMap<String, Table>) -> Table {
    let mut own = written.get(set).cloned().unwrap_or_default();
    if let Some(Value::String(like)) = own.remove("like") {
        for (key, value) in whole(&like, written) {
            own.entry(key).or_insert(value);
        }
    }
    own.retain(|_, name| name.as_str() != Some(""));
    own
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sets_are_whole() {
        let sets = sets().unwrap();
        assert_eq!(sets["jina-v3-transformers"].prefix, "roberta.");
        assert_eq!(sets["megatron-bert"].embedding_norm, None);
        assert_eq!(sets["t5-gated"].labels, "");
    }
}
