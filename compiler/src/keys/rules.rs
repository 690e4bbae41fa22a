//! Rules for the keys in a file, and their check.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use kivu::error::{Error, Result, quoted};

/// Keys that a file may have.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Lists of keys that are read.
    pub read: &'static [&'static [&'static str]],
    /// Lists of keys without effect on results.
    pub unused: &'static [&'static [Unused]],
    /// Objects, or lists of objects, with rules for their own keys.
    pub nested: &'static [(&'static str, &'static Self)],
}

impl Rules {
    /// Whether a key has a rule.
    pub fn mentions(&self, key: &str) -> bool {
        let is_unused = |keys: &&[Unused]| keys.iter().any(|(name, _)| *name == key);
        self.reads(key)
            || self.unused.iter().any(is_unused)
            || self.nested.iter().any(|(name, _)| *name == key)
    }

    /// Whether a key is read.
    pub fn reads(&self, key: &str) -> bool {
        self.read.iter().any(|keys| keys.contains(&key))
    }
}

/// A key, and the values with no effect on results.
pub type Unused = (&'static str, Values);

#[derive(Clone, Copy, Debug)]
pub enum Values {
    Any,
    /// These values, as a JSON list. `null` stands for a missing key.
    Only(&'static str),
    /// The same value as another key, which is read.
    SameAs(&'static str),
}

/// CrossEncoder score functions: requests choose scores with or without the sigmoid.
pub const SCORES: Values = Values::Only(
    r#"["torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Sigmoid", "torch.nn.Identity",
        "torch.nn.Sigmoid"]"#,
);

/// A file to check.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path in the model's folder, for errors.
    pub name: String,
    pub fields: Map<String, Value>,
    /// The keys that its reader asked for, besides those that the rules list.
    pub asked: BTreeSet<String>,
}

/// Keys that a build ignores at the user's risk.
#[derive(Debug)]
pub struct Allowed<'a> {
    keys: &'a [String],
    warnings: Vec<String>,
}

impl<'a> Allowed<'a> {
    pub fn new(keys: &'a [String]) -> Self {
        Self {
            keys,
            warnings: Vec::new(),
        }
    }

    /// Passes an unsupported key that the user allowed, with a warning; refuses others.
    pub fn pass(&mut self, file: &str, key: &str, value: &Value, expected: &str) -> Result<()> {
        if self.keys.iter().any(|allowed| allowed == key) {
            self.warnings.push(format!(
                "`{key}` {} in `{file}` was ignored on request: results may differ from the model authors'",
                shortened(value)
            ));
            return Ok(());
        }
        Err(Error::model(format!(
            "expected {expected} in `{file}`, but found `{key}` {}",
            shortened(value)
        ))
        .with_hint(format!(
            "use `--allow {key}` to build the model as if the key were missing, if you know that \
             it has no effect on results"
        )))
    }

    /// Returns the warnings; an allowed key that no file has is an error.
    pub fn finish(self, known: &[Document]) -> Result<Vec<String>> {
        let is_found = |key: &String| known.iter().any(|document| document.has(key));
        match self.keys.iter().find(|key| !is_found(key)) {
            None => Ok(self.warnings),
            Some(key) => Err(Error::config(format!(
                "expected `--allow` with a key of the model's files, but found `{key}`, which none of them has"
            ))),
        }
    }
}

impl Document {
    fn has(&self, key: &str) -> bool {
        fn is_in(fields: &Map<String, Value>, key: &str) -> bool {
            fields.contains_key(key) || fields.values().any(|value| is_within(value, key))
        }
        fn is_within(value: &Value, key: &str) -> bool {
            match value {
                Value::Object(fields) => is_in(fields, key),
                Value::Array(values) => values.iter().any(|value| is_within(value, key)),
                _ => false,
            }
        }
        is_in(&self.fields, key)
    }

    /// Refuses keys that are in none of these rules, or have values with an effect.
    pub fn check(&self, rules: &[&Rules], allowed: &mut Allowed<'_>) -> Result<()> {
        check_fields(&self.name, &self.fields, &self.asked, rules, allowed)
    }
}

fn check_fields(
    file: &str,
    fields: &Map<String, Value>,
    asked: &BTreeSet<String>,
    rules: &[&Rules],
    allowed: &mut Allowed<'_>,
) -> Result<()> {
    for (key, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let nested = rules
            .iter()
            .flat_map(|rules| rules.nested)
            .find(|(name, _)| name == key);
        if let Some((_, rules)) = nested {
            check_nested(&format!("{file}: {key}"), value, rules, allowed)?;
        } else if !asked.contains(key) && !rules.iter().any(|rules| rules.reads(key)) {
            let unused = rules
                .iter()
                .flat_map(|rules| rules.unused)
                .copied()
                .flatten();
            let values = unused
                .filter(|(name, _)| name == key)
                .map(|(_, values)| values);
            if let Err(expected) = expect_any(fields, key, value, values) {
                allowed.pass(file, key, value, &expected)?;
            }
        }
    }
    Ok(())
}

fn check_nested(file: &str, value: &Value, rules: &Rules, allowed: &mut Allowed<'_>) -> Result<()> {
    match value {
        Value::Object(fields) => check_fields(file, fields, &BTreeSet::new(), &[rules], allowed),
        Value::Array(values) => values
            .iter()
            .try_for_each(|value| check_nested(file, value, rules, allowed)),
        // The key's reader refuses other types.
        _ => Ok(()),
    }
}

/// Checks an unread key: passes if one of its entries says that its value has no effect on results; otherwise returns
/// what was expected.
fn expect_any<'a>(
    fields: &Map<String, Value>,
    key: &str,
    value: &Value,
    entries: impl Iterator<Item = &'a Values>,
) -> std::result::Result<(), String> {
    let mut expected: Option<String> = None;
    for values in entries {
        match expect(fields, key, value, values) {
            Ok(()) => return Ok(()),
            Err(other) => expected = expected.or(Some(other)),
        }
    }
    let unknown =
        || "only keys that are supported, or known to have no effect on results,".to_owned();
    Err(expected.unwrap_or_else(unknown))
}

/// Checks an unread key against one entry.
fn expect(
    fields: &Map<String, Value>,
    key: &str,
    value: &Value,
    values: &Values,
) -> std::result::Result<(), String> {
    let (is_unused, expected) = match values {
        Values::Any => (true, String::new()),
        Values::Only(values) => {
            let values: Vec<Value> = serde_json::from_str(values).unwrap_or_default();
            let is_unused = values.iter().any(|supported| is_same(supported, value));
            let values: Vec<String> = values.iter().map(Value::to_string).collect();
            let expected = match &values[..] {
                [] => format!("no `{key}`"),
                values => format!("`{key}` {}", quoted(values)),
            };
            (is_unused, expected)
        }
        Values::SameAs(other) => {
            let is_unused = fields
                .get(*other)
                .is_some_and(|other| is_same(other, value));
            (
                is_unused,
                format!("the same value for `{key}` as for `{other}`"),
            )
        }
    };
    if is_unused { Ok(()) } else { Err(expected) }
}

/// Whether two values are equal; integers and floats are numbers alike.
fn is_same(left: &Value, right: &Value) -> bool {
    match (left.as_f64(), right.as_f64()) {
        (Some(left), Some(right)) => left == right,
        _ => left == right,
    }
}

/// A value for an error or a warning.
fn shortened(value: &Value) -> String {
    const MAX: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const INNER: Rules = Rules {
        read: &[&["factor"]],
        unused: &[],
        nested: &[],
    };
    const RULES: Rules = Rules {
        read: &[&["d_model"]],
        unused: &[&[
            ("dropout", Values::Any),
            ("chunks", Values::Only("[0, false]")),
            ("hidden_size", Values::SameAs("d_model")),
            ("fp8", Values::Only("[]")),
        ]],
        nested: &[("rope", &INNER)],
    };

    fn check(fields: &Value, allowed: &[&str]) -> Result<Vec<String>> {
        let keys: Vec<String> = allowed.iter().map(|key| (*key).to_owned()).collect();
        let mut allowed = Allowed::new(&keys);
        let fields = fields.as_object().cloned().unwrap();
        let document = Document {
            name: "config.json".to_owned(),
            fields,
            asked: BTreeSet::from(["asked".to_owned()]),
        };
        document.check(&[&RULES], &mut allowed)?;
        allowed.finish(&[document])
    }

    #[test]
    fn keys_are_read_or_without_effect_or_refused() {
        let known = json!({
            "d_model": 4, "dropout": 0.1, "chunks": 0.0, "hidden_size": 4, "rope": {"factor": 2.0}, "unknown": null,
            "asked": 1,
        });
        assert_eq!(check(&known, &[]).unwrap(), [""; 0]);
        let refusals = [
            json!({"is_causal": false}),
            json!({"chunks": 1}),
            json!({"d_model": 4, "hidden_size": 8}),
            json!({"fp8": {"bits": 8}}),
            json!({"rope": {"factor": 2.0, "beta": 1}}),
            json!({"rope": {"asked": 1}}),
            json!({"rope": [{"factor": 2.0}, {"beta": 1}]}),
            json!({"unknown": "a".repeat(100)}),
        ];
        let refusals = refusals.map(|fields| check(&fields, &[]).unwrap_err().to_string());
        let refusals =
            refusals.map(|refusal| refusal.split_once("; use `--allow").unwrap().0.to_owned());
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected only keys that are supported, or known to have no effect on results, in `config.json`, but found `is_causal` false
        expected `chunks` `0`, `false` in `config.json`, but found `chunks` 1
        expected the same value for `hidden_size` as for `d_model` in `config.json`, but found `hidden_size` 8
        expected no `fp8` in `config.json`, but found `fp8` {"bits":8}
        expected only keys that are supported, or known to have no effect on results, in `config.json: rope`, but found `beta` 1
        expected only keys that are supported, or known to have no effect on results, in `config.json: rope`, but found `asked` 1
        expected only keys that are supported, or known to have no effect on results, in `config.json: rope`, but found `beta` 1
        expected only keys that are supported, or known to have no effect on results, in `config.json`, but found `unknown` "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…
        "#);
    }

    #[test]
    fn allowed_keys_become_warnings() {
        let fields = json!({"rope": {"beta": 1}, "dropout": 0.1});
        let warnings = check(&fields, &["beta"]).unwrap().join("\n");
        insta::assert_snapshot!(warnings, @"`beta` 1 in `config.json: rope` was ignored on request: results may differ from the model authors'");
        let refusal = check(&fields, &["beta", "gamma"]).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected `--allow` with a key of the model's files, but found `gamma`, which none of them has");
    }
}
