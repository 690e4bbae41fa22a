//! Names of an enum's values, as serde reads them, and names that are close to others.

use schemars::{JsonSchema, schema_for};
use serde::de::{DeserializeOwned, IntoDeserializer, value::Error};

/// Names up to this length are too similar to each other for suggestions.
const MAX_SHORT_NAME: usize = 3;

/// The known name that `name` probably means: the same letters, or at most two edits away, or one for names with four
/// characters.
pub fn similar<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let length = name.chars().count();
    let edits = match length {
        0..=MAX_SHORT_NAME => return None,
        4 => 1,
        _ => 2,
    };
    let distance = |known: &'a str| {
        if letters(name).eq(letters(known)) {
            return Some((0, known));
        }
        let is_comparable = known.len() > MAX_SHORT_NAME && known.len().abs_diff(length) <= edits;
        let distance = is_comparable.then(|| strsim::osa_distance(name, known))?;
        (distance <= edits).then_some((distance, known))
    };
    known.filter_map(distance).min().map(|(_, known)| known)
}

/// Letters and digits, in lower case: `topN` and `TOP-N` have those of `top_n`.
fn letters(name: &str) -> impl Iterator<Item = char> {
    let letters = name.chars().filter(|c| c.is_alphanumeric());
    letters.map(|c| c.to_ascii_lowercase())
}

/// The names of an enum's values, each with its description, which it must have.
pub fn described<T: JsonSchema>() -> Vec<(String, String)> {
    let schema = schema_for!(T);
    let values = schema.get("oneOf").and_then(|values| values.as_array());
    let described = values.into_iter().flatten().map(|value| {
        ["const", "description"].map(|key| value[key].as_str().unwrap_or_default().to_owned())
    });
    described.map(Into::into).collect()
}

/// The names of an enum's values.
pub fn names<T: JsonSchema>() -> Vec<String> {
    described::<T>().into_iter().map(|(name, _)| name).collect()
}

/// Parses a variant's serialized name.
pub fn named<T: DeserializeOwned>(name: &str) -> Option<T> {
    T::deserialize(IntoDeserializer::<Error>::into_deserializer(name)).ok()
}

/// A choice between names, such as "`a`, `b` or `c`".
pub fn choice(names: &[String]) -> String {
    let names: Vec<_> = names.iter().map(|name| format!("`{name}`")).collect();
    match &names[..] {
        [others @ .., last] if !others.is_empty() => format!("{} or {last}", others.join(", ")),
        names => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AuthMode, EngineChoice, Load, LogFormat, Policy};

    #[test]
    fn names_in_another_form_are_similar() {
        let known = ["top_n", "model", "max_tokens_per_doc"];
        for (name, expected) in [
            ("topN", Some("top_n")),
            ("TOP-N", Some("top_n")),
            ("maxTokensPerDoc", Some("max_tokens_per_doc")),
            ("modell", Some("model")),
            ("tops", None),
        ] {
            assert_eq!(similar(name, known.into_iter()), expected, "{name}");
        }
    }

    #[test]
    fn enums_have_the_names_of_serde() {
        assert_eq!(names::<Load>(), ["start", "on-demand"]);
        assert_eq!(named("on-demand"), Some(Load::OnDemand));
        assert_eq!(named::<Load>("OnDemand"), None);
        let all = [
            names::<AuthMode>(),
            names::<EngineChoice>(),
            names::<LogFormat>(),
            names::<Policy>(),
        ];
        assert_eq!(all.map(|names| names.len()), [4, 3, 2, 3]);
        let all = ["a", "b", "c"].map(str::to_owned);
        let choices = [1, 2, 3].map(|count| choice(&all[..count]));
        assert_eq!(choices, ["`a`", "`a` or `b`", "`a`, `b` or `c`"]);
    }
}
