//! Settings in `tokenizer_config.json` that `transformers` prefers to `tokenizer.json`.

use std::{collections::BTreeMap, fs};

use kivu::{
    repository::manifest::Precision,
    tokenizer::{SpecialTokens, Tokenizer},
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    copies::copy,
    models::{build_request, fixtures, request, runtime},
};

#[derive(Deserialize)]
struct Golden {
    texts: Vec<String>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    model: String,
    /// File changes, by name.
    patches: BTreeMap<String, Value>,
    ids: Vec<Vec<u32>>,
}

/// Applies a merge patch (RFC 7396).
pub(crate) fn merge(value: &mut Value, patch: &Value) {
    let Value::Object(changes) = patch else {
        *value = patch.clone();
        return;
    };
    if !value.is_object() {
        *value = Map::new().into();
    }
    for (field, change) in changes {
        match change {
            Value::Null => drop(value.as_object_mut().unwrap().remove(field)),
            change => merge(&mut value[field], change),
        }
    }
}

/// Builds a fixture with changed files, and returns its tokenizer.
fn tokenizer(model: &str, patches: &BTreeMap<String, Value>) -> Option<kivu::Result<Tokenizer>> {
    let runtime = runtime()?;
    let folder = tempfile::tempdir().unwrap();
    let [source, out] = ["model", "out"].map(|name| folder.path().join(name));
    copy(&fixtures().join("models").join(model), &source);
    for (file, patch) in patches {
        let path = source.join(file);
        let mut content = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        merge(&mut content, patch);
        fs::write(path, content.to_string()).unwrap();
    }
    let built = build_request(
        &request(source, out.clone(), Some(Precision::Fp32)),
        runtime,
    );
    Some(built.and_then(|_| Tokenizer::open(&out.join("tokenizer.json"))))
}

#[test]
fn settings_of_tokenizers_have_the_precedence_of_transformers() {
    let golden = fs::read(fixtures().join("goldens/tokenizer_settings.json")).unwrap();
    let golden: Golden = serde_json::from_slice(&golden).unwrap();
    for Case {
        model,
        patches,
        ids,
    } in &golden.cases
    {
        let Some(tokenizer) = tokenizer(model, patches) else {
            return;
        };
        let tokenizer = tokenizer.unwrap();
        for (text, expected) in golden.texts.iter().zip(ids) {
            let found = tokenizer.tokens(text, SpecialTokens::Added).unwrap();
            let found: Vec<u32> = found.iter().map(|token| token.id).collect();
            assert_eq!(found, *expected, "{model}, {patches:?}: {text}");
        }
    }
}

#[test]
fn truncation_of_the_beginning_is_refused() {
    let patch = |file: &str, patch: Value| BTreeMap::from([(file.to_owned(), patch)]);
    let refused = [
        patch("tokenizer_config.json", json!({"truncation_side": "left"})),
        patch(
            "tokenizer.json",
            json!({"truncation": {"direction": "Left"}}),
        ),
    ];
    for patches in refused {
        let Some(refusal) = tokenizer("tiny-bert", &patches) else {
            return;
        };
        let refusal = refusal.unwrap_err().to_string().to_lowercase();
        assert!(
            refusal.contains("expected `truncation_side` `right`"),
            "{refusal}"
        );
    }
}
