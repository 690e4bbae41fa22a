//! Rules for the keys in files, from `keys.toml`, and their check.

use std::{
    collections::{BTreeMap, BTreeSet},
    rc::Rc,
    sync::LazyLock,
};

use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value};

use kivu::{Error, Result, error::quoted};

/// Sets of keys by group and name.
type Sets = BTreeMap<String, BTreeMap<String, Set>>;
static SETS: LazyLock<std::result::Result<Sets, toml::de::Error>> =
    LazyLock::new(|| toml::from_str(include_str!("keys.toml")));

/// Keys that a file may have; `keys.toml` describes the fields.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Set {
    uses: Vec<String>,
    read: Keys,
    any: Keys,
    only: BTreeMap<String, Vec<Value>>,
    same: BTreeMap<String, String>,
    not_null: Keys,
    required: Keys,
    nested: BTreeMap<String, String>,
    #[serde(rename = "family")]
    _family: IgnoredAny,
}

/// Keys, which are written several in a string.
#[derive(Debug, Default, Deserialize)]
#[serde(from = "Vec<String>")]
struct Keys(BTreeSet<String>);

impl From<Vec<String>> for Keys {
    fn from(lists: Vec<String>) -> Self {
        let keys = lists.iter().flat_map(|keys| keys.split(' '));
        Self(keys.map(str::to_owned).collect())
    }
}

impl Set {
    /// `None` if there is no set of this name, such as `encoder.bert`.
    fn named(name: &str) -> Result<Option<&'static Self>> {
        let sets = SETS.as_ref().map_err(|error| {
            Error::config(format!("cannot read the sets of keys: {}", error.message()))
        })?;
        let (group, own) = name.split_once('.').unwrap_or_default();
        Ok(sets.get(group).and_then(|sets| sets.get(own)))
    }

    /// Checks an unread key: passes if an entry says that its value has no effect on results; otherwise returns what
    /// was expected, if the key is known.
    fn passes(
        &self,
        fields: &Map<String, Value>,
        key: &str,
        value: &Value,
    ) -> std::result::Result<(), Problem> {
        let (only, same) = (self.only.get(key), self.same.get(key));
        let is_other = |other: &Value| is_same(other, value);
        if self.any.0.contains(key)
            || only.is_some_and(|values| values.iter().any(is_other))
            || same.is_some_and(|other| fields.get(other).is_some_and(is_other))
        {
            return Ok(());
        }
        let values = only.map(|values| match &values[..] {
            [] => Problem::Unsupported,
            values => {
                let values: Vec<String> = values.iter().map(Value::to_string).collect();
                Problem::Expected(format!("`{key}` {}", quoted(&values)))
            }
        });
        let other = same
            .map(|other| Problem::Expected(format!("the same value for `{key}` as for `{other}`")));
        Err(other.or(values).unwrap_or(Problem::Unknown))
    }
}

/// Why a key is refused.
enum Problem {
    /// Its effect on results is not known.
    Unknown,
    Unsupported,
    /// What its value has to be.
    Expected(String),
}

/// The keys in a set, and in those that it uses.
pub struct Rules(Vec<&'static Set>);

impl Rules {
    /// The rules of named sets, such as `encoder.bert`.
    pub fn of(names: &[&str]) -> Result<Self> {
        let mut sets = Vec::new();
        for name in names {
            let set = Set::named(name)?.ok_or_else(|| {
                Error::config(format!("expected a set of keys, but found `{name}`"))
            })?;
            let uses: Vec<&str> = set.uses.iter().map(String::as_str).collect();
            sets.push(set);
            sets.extend(Self::of(&uses)?.0);
        }
        Ok(Self(sets))
    }

    /// Whether there is a set of this name.
    pub fn exist(name: &str) -> Result<bool> {
        Ok(Set::named(name)?.is_some())
    }

    /// Whether a key has a rule.
    pub fn mentions(&self, key: &str) -> bool {
        self.reads(key)
            || self.0.iter().any(|set| {
                set.any.0.contains(key)
                    || set.only.contains_key(key)
                    || set.same.contains_key(key)
                    || set.nested.contains_key(key)
            })
    }

    /// Whether a key is read.
    pub fn reads(&self, key: &str) -> bool {
        self.0.iter().any(|set| set.read.0.contains(key))
    }

    /// Whether a key must not be null.
    fn refuses_null(&self, key: &str) -> bool {
        self.0.iter().any(|set| set.not_null.0.contains(key))
    }

    /// Rules for a key's own keys, if it is an object.
    fn nested(&self, key: &str) -> Result<Option<Self>> {
        let name = self.0.iter().find_map(|set| set.nested.get(key));
        name.map(|name| Self::of(&[name])).transpose()
    }

    /// Checks an unread key.
    fn passes(
        &self,
        fields: &Map<String, Value>,
        key: &str,
        value: &Value,
    ) -> std::result::Result<(), Problem> {
        let mut problem = Problem::Unknown;
        for set in &self.0 {
            match set.passes(fields, key, value) {
                Ok(()) => return Ok(()),
                Err(other) if matches!(problem, Problem::Unknown) => problem = other,
                Err(_) => {}
            }
        }
        Err(problem)
    }
}

/// A file to check.
#[derive(Clone, Debug)]
pub struct Document {
    /// The path in the model's folder, for errors.
    pub name: String,
    pub fields: Rc<Map<String, Value>>,
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

    /// Passes a key that the user allowed, with a warning; refuses others.
    pub fn pass(&mut self, file: &str, key: &str, value: &Value, expected: &str) -> Result<()> {
        self.pass_despite(file, key, value, &Problem::Expected(expected.to_owned()))
    }

    fn pass_despite(
        &mut self,
        file: &str,
        key: &str,
        value: &Value,
        problem: &Problem,
    ) -> Result<()> {
        let found = format!("`{key}` {}", shortened(value));
        if self.keys.iter().any(|allowed| allowed == key) {
            self.warnings.push(format!(
                "{found} in `{file}` was ignored on request: results may differ from the model authors'"
            ));
            return Ok(());
        }
        Err(Error::model(match problem {
            Problem::Unknown => format!("{found} in `{file}` is unknown, and may change results"),
            Problem::Unsupported => format!("{found} in `{file}` is not supported"),
            Problem::Expected(expected) => {
                format!("expected {expected} in `{file}`, but found {found}")
            }
        })
        .with_hint(format!(
            "use `--allow {key}` to build the model as if the key were missing, if you know that \
             it has no effect on results"
        )))
    }

    /// Passes code other than the known files if the user allowed `key`, which names it; refuses it otherwise.
    pub fn pass_code(&mut self, key: &str, file: &str, found: &str) -> Result<()> {
        if self.keys.iter().any(|allowed| allowed == key) {
            self.warnings.push(format!(
                "Kivu does not know `{file}` ({found}), and built the model as another file with its class describes it: \
                 results may differ from the model authors'"
            ));
            return Ok(());
        }
        Err(Error::model(format!(
            "expected `{file}` as Kivu knows it, since no code is run, but found {found}"
        ))
        .with_hint(format!(
            "use `--allow {key}` to build the model as the known file describes it, if you know that both compute the same"
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

    /// Refuses keys that are not in these rules, or have values with an effect.
    pub fn check(&self, rules: &Rules, allowed: &mut Allowed<'_>) -> Result<()> {
        check_fields(&self.name, &self.fields, &self.asked, rules, allowed)
    }
}

fn check_fields(
    file: &str,
    fields: &Map<String, Value>,
    asked: &BTreeSet<String>,
    rules: &Rules,
    allowed: &mut Allowed<'_>,
) -> Result<()> {
    let required = rules.0.iter().flat_map(|set| &set.required.0);
    for key in required {
        if fields.get(key).is_none_or(Value::is_null) {
            return Err(Error::model(format!(
                "expected `{key}` in `{file}`, but found none"
            )));
        }
    }
    for (key, value) in fields {
        if value.is_null() {
            if rules.refuses_null(key) {
                let expected = format!("a value for `{key}`, or no such key,");
                allowed.pass(file, key, value, &expected)?;
            }
        } else if let Some(rules) = rules.nested(key)? {
            check_nested(&format!("{file}: {key}"), value, &rules, allowed)?;
        } else if !asked.contains(key)
            && !rules.reads(key)
            && let Err(problem) = rules.passes(fields, key, value)
        {
            allowed.pass_despite(file, key, value, &problem)?;
        }
    }
    Ok(())
}

fn check_nested(file: &str, value: &Value, rules: &Rules, allowed: &mut Allowed<'_>) -> Result<()> {
    match value {
        Value::Object(fields) => check_fields(file, fields, &BTreeSet::new(), rules, allowed),
        Value::Array(values) => values
            .iter()
            .try_for_each(|value| check_nested(file, value, rules, allowed)),
        // The key's reader refuses other types.
        _ => Ok(()),
    }
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
    use kivu::pipeline::generation::GenerationOptions;

    fn check(fields: &Value, allowed: &[&str]) -> Result<Vec<String>> {
        check_set("encoder.distilbert", fields, allowed)
    }

    fn check_set(set: &str, fields: &Value, allowed: &[&str]) -> Result<Vec<String>> {
        let keys: Vec<String> = allowed.iter().map(|key| (*key).to_owned()).collect();
        let mut allowed = Allowed::new(&keys);
        let fields = Rc::new(fields.as_object().cloned().unwrap());
        let document = Document {
            name: "config.json".to_owned(),
            fields,
            asked: ["asked", "hidden_dim"].map(str::to_owned).into(),
        };
        document.check(&Rules::of(&[set])?, &mut allowed)?;
        allowed.finish(&[document])
    }

    #[test]
    fn all_sets_that_are_named_exist() {
        for set in SETS.as_ref().unwrap().values().flat_map(BTreeMap::values) {
            for name in set.uses.iter().chain(set.nested.values()) {
                assert!(Rules::exist(name).unwrap(), "{name}");
            }
        }
    }

    #[test]
    fn keys_are_read_or_without_effect_or_refused() {
        let known = json!({
            "vocab_size": 4, "dropout": 0.1, "pruned_heads": {}, "hidden_dim": 4, "intermediate_size": 4.0,
            "sentence_transformers": {"version": "1"}, "unknown": null, "asked": 1,
        });
        assert_eq!(check(&known, &[]).unwrap(), [""; 0]);
        let refusals = [
            json!({"is_causal": false}),
            json!({"use_cache": 1}),
            json!({"hidden_dim": 4, "intermediate_size": 8}),
            json!({"quantization_config": {"bits": 8}}),
            json!({"sentence_transformers": {"version": "1", "beta": 1}}),
            json!({"sentence_transformers": {"asked": 1}}),
            json!({"sentence_transformers": [{"version": "1"}, {"beta": 1}]}),
            json!({"unknown": "a".repeat(100)}),
            json!({"token_classification_bias": null}),
        ];
        let refusals = refusals.map(|fields| check(&fields, &[]).unwrap_err().to_string());
        let refusals =
            refusals.map(|refusal| refusal.split_once("; use `--allow").unwrap().0.to_owned());
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        `is_causal` false in `config.json` is unknown, and may change results
        expected `use_cache` `true`, `false` in `config.json`, but found `use_cache` 1
        expected the same value for `intermediate_size` as for `hidden_dim` in `config.json`, but found `intermediate_size` 8
        `quantization_config` {"bits":8} in `config.json` is not supported
        `beta` 1 in `config.json: sentence_transformers` is unknown, and may change results
        `asked` 1 in `config.json: sentence_transformers` is unknown, and may change results
        `beta` 1 in `config.json: sentence_transformers` is unknown, and may change results
        `unknown` "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa… in `config.json` is unknown, and may change results
        expected a value for `token_classification_bias`, or no such key, in `config.json`, but found `token_classification_bias` null
        "#);
        let refusal = check_set("tokenizer.file", &json!({"decoder": {"type": null}}), &[]);
        let refusal = refusal.unwrap_err().to_string();
        assert_eq!(
            refusal,
            "expected `type` in `config.json: decoder`, but found none"
        );
        let (decoder, null) = ("encoder.llama", json!({"is_causal": null}));
        check_set(decoder, &null, &[]).unwrap_err();
        check_set(decoder, &null, &["is_causal"]).unwrap();
    }

    #[test]
    fn unsupported_options_for_generating_are_refused() {
        let check = |fields: &Value| check_set("generation.options", fields, &[]);
        let unused = json!({"penalty_alpha": null, "guidance_scale": 1.0, "sequence_bias": null});
        check(&unused).unwrap();
        let refusals = [
            json!({"exponential_decay_length_penalty": [2, 1.5]}),
            json!({"num_beam_groups": 2}),
            json!({"use_cache": 0}),
            json!({"top_h": 0.4}),
            json!({"watermarking_config": {"greenlist_ratio": 0.25}}),
        ];
        let refusals = refusals.map(|fields| check(&fields).unwrap_err().to_string());
        let refusals =
            refusals.map(|refusal| refusal.split_once("; use `--allow").unwrap().0.to_owned());
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        `exponential_decay_length_penalty` [2,1.5] in `config.json` is not supported
        expected `num_beam_groups` `1` in `config.json`, but found `num_beam_groups` 2
        expected `use_cache` `true`, `false` in `config.json`, but found `use_cache` 0
        `top_h` 0.4 in `config.json` is not supported
        `watermarking_config` {"greenlist_ratio":0.25} in `config.json` is not supported
        "#);
    }

    #[test]
    fn all_options_of_requests_are_read() {
        let rules = Rules::of(&["generation.options"]).unwrap();
        let options = GenerationOptions::names().into_iter();
        // Only requests can set a seed.
        for name in options.filter(|name| name != "seed") {
            assert!(rules.reads(&name), "{name}");
        }
    }

    #[test]
    fn allowed_keys_become_warnings() {
        let fields = json!({"sentence_transformers": {"beta": 1}, "dropout": 0.1});
        let warnings = check(&fields, &["beta"]).unwrap().join("\n");
        insta::assert_snapshot!(warnings, @"`beta` 1 in `config.json: sentence_transformers` was ignored on request: results may differ from the model authors'");
        let refusal = check(&fields, &["beta", "gamma"]).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected `--allow` with a key of the model's files, but found `gamma`, which none of them has");
    }
}
