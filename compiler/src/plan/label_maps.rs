//! A classifier's label names in `config.json`: `id2label`, which names the labels in results, and `label2id`, by which
//! `transformers` finds the entailment for zero-shot classification.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::files::config::ConfigFile;

/// Labels by id.
pub const LABELS: &str = "id2label";
/// Ids by label.
pub const LABEL_IDS: &str = "label2id";

/// Describes the expected `label2id`, if the file's contradicts `id2label`.
///
/// Ids may be numbers or digits. Either map may leave labels out, or have only the default names: `transformers` writes
/// these for the map that was not set.
pub fn contradiction(config: &ConfigFile) -> Option<String> {
    let found = config
        .fields()
        .get(LABEL_IDS)
        .filter(|found| !found.is_null())?;
    let Some(ids) = found.as_object().and_then(ids) else {
        return Some(format!("an id for each label in `{LABEL_IDS}`"));
    };
    if are_default(ids.iter().copied()) {
        return None;
    }
    let Some(labels) = config
        .fields()
        .get(LABELS)
        .filter(|labels| !labels.is_null())
    else {
        return Some(format!("`{LABELS}`, which names the labels in results,"));
    };
    // The reader refuses other forms.
    let labels: BTreeMap<usize, &str> = labels
        .as_object()?
        .iter()
        .map(|(id, label)| Some((id.parse().ok()?, label.as_str()?)))
        .collect::<Option<_>>()?;
    let is_default = are_default(labels.iter().map(|(id, label)| (*label, *id)));
    let agrees = |(label, id): &(&str, usize)| match labels.get(id) {
        Some(_) if is_default => ids.iter().filter(|(_, other)| other == id).count() == 1,
        found => found == Some(label),
    };
    (!ids.iter().all(agrees)).then(|| format!("the labels of `{LABELS}` in `{LABEL_IDS}`"))
}

/// Labels with their ids; `None` if an id is not a number.
pub fn ids(map: &Map<String, Value>) -> Option<Vec<(&str, usize)>> {
    let id = |value: &Value| match value {
        Value::String(digits) => digits.parse().ok(),
        value => usize::try_from(value.as_u64()?).ok(),
    };
    map.iter()
        .map(|(label, value)| Some((label.as_str(), id(value)?)))
        .collect()
}

/// Whether a label is an entailment for `transformers`.
pub fn is_entailment(label: &str) -> bool {
    label.to_lowercase().starts_with("entail")
}

fn are_default<'a>(mut labels: impl Iterator<Item = (&'a str, usize)>) -> bool {
    labels.all(|(label, id)| label == format!("LABEL_{id}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn found(labels: &Value, ids: &Value) -> Option<String> {
        let fields = json!({ LABELS: labels, LABEL_IDS: ids });
        contradiction(&ConfigFile::new(
            "config.json",
            fields.as_object().cloned().unwrap(),
        ))
    }

    #[test]
    fn maps_that_contradict_each_other_are_found() {
        let named = json!({"0": "no", "1": "yes"});
        for ids in [
            json!({"no": 1, "yes": 0}),
            json!({"no": 0, "yes": 0}),
            json!({"no": 0, "perhaps": 1}),
            json!({"No": 0, "yes": 1}),
            json!({"no": 0, "yes": 1, "perhaps": 2}),
            json!({"LABEL_0": 1, "LABEL_1": 0}),
        ] {
            let expected = "the labels of `id2label` in `label2id`";
            assert_eq!(found(&named, &ids).as_deref(), Some(expected), "{ids}");
        }
        for ids in [json!({"no": -1}), json!({"no": "a"}), json!(["no", "yes"])] {
            let expected = "an id for each label in `label2id`";
            assert_eq!(found(&named, &ids).as_deref(), Some(expected), "{ids}");
        }
        let unnamed = json!({"0": "LABEL_0", "1": "LABEL_1"});
        for ids in [json!({"no": 0, "yes": 2}), json!({"no": 0, "yes": 0})] {
            assert!(found(&unnamed, &ids).is_some(), "{ids}");
        }
        let alone = found(&Value::Null, &json!({"no": 0, "yes": 1}));
        assert_eq!(
            alone.as_deref(),
            Some("`id2label`, which names the labels in results,")
        );
    }

    #[test]
    fn maps_may_be_incomplete_or_of_default_names() {
        let named = json!({"0": "no", "1": "yes"});
        let unnamed = json!({"0": "LABEL_0", "1": "LABEL_1"});
        for (labels, ids) in [
            (&named, json!({"no": 0, "yes": 1})),
            (&named, json!({"yes": "1", "no": "0"})),
            (&named, json!({"yes": 1})),
            (&named, json!({})),
            (&named, Value::Null),
            (&named, json!({"LABEL_0": 0, "LABEL_1": 1})),
            (&named, json!({"LABEL_0": 0, "LABEL_1": 1, "LABEL_2": 2})),
            (&unnamed, json!({"yes": 0, "no": 1})),
            (&json!({"0": "no", "1": "no"}), json!({"no": 1})),
            (&Value::Null, json!({"LABEL_0": 0, "LABEL_1": 1})),
            (&Value::Null, Value::Null),
        ] {
            assert_eq!(found(labels, &ids), None, "{labels} {ids}");
        }
    }
}
