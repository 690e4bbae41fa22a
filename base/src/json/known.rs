//! Fields that an object may have: which are read, which have no effect, and which are refused.
//!
//! Objects may have other fields, which are ignored. A misspelt option would be ignored as well, so that a name close to
//! a known one is refused. So are fields of other APIs, which a client sends to the wrong route.

use serde_json::Value;

use crate::names::similar;

/// Tables with all fields of an object: those of several APIs where these share a route.
pub type Known = &'static [&'static Fields];

/// The fields of an object in an API. Each is in one list.
#[derive(Debug, Default)]
pub struct Fields {
    /// Fields that are read.
    pub read: &'static [&'static str],
    /// Fields that do not change results.
    pub without_effect: &'static [&'static str],
    /// Fields that would change results, but are not supported.
    pub refused: &'static [Refused],
    /// Fields that other objects have. They are refused, and names that probably mean one of them.
    pub foreign: &'static [Refused],
    /// Known fields of nested objects, by the name of the outer field; also for objects in lists.
    pub inner: &'static [(&'static str, Known)],
}

/// A field that is refused unless its value asks for nothing.
#[derive(Clone, Copy, Debug)]
pub struct Refused {
    /// The field's name, without its object's path.
    pub name: &'static str,
    /// Values, as JSON, that are the same as a missing field, also in a list; apart from `null` and empty values.
    pub unless: &'static [&'static str],
    /// A hint that says what to use instead.
    pub hint: &'static str,
}

/// Begins the message for a refused field. The refused field's name follows, and is added to its object's path.
pub const REFUSED: &str = "refused field ";
/// Characters of a value in errors.
const MAX_VALUE: usize = 20;

/// How a field that was found is treated.
#[derive(Default)]
pub enum Found {
    #[default]
    Unknown,
    Known(Known),
    /// The name, and the field that it is, or probably means.
    Refused(String, &'static Refused),
    /// The name, and the right one.
    Misspelt(String, &'static str),
}

impl Found {
    pub fn of(name: &str, known: Known) -> Self {
        let inner = || {
            let mut inner = known.iter().flat_map(|fields| fields.inner);
            let inner = inner.find(|(field, _)| *field == name);
            Self::Known(inner.map_or(&[], |(_, inner)| inner))
        };
        if known.iter().any(|fields| fields.read.contains(&name)) {
            return inner();
        }
        let refused = |of: fn(&Fields) -> &'static [Refused]| {
            let mut refused = known.iter().flat_map(|fields| of(fields));
            let refused = refused.find(|field| field.name == name);
            refused.map(|refused| Self::Refused(name.to_owned(), refused))
        };
        if let Some(refused) = refused(|fields| fields.refused) {
            return refused;
        }
        if known.iter().any(|all| all.without_effect.contains(&name)) {
            return inner();
        }
        if let Some(foreign) = refused(|fields| fields.foreign) {
            return foreign;
        }
        if let Some(right) = nearest(name, known) {
            return Self::Misspelt(name.to_owned(), right);
        }
        nearest_foreign(name, known).map_or(Self::Unknown, |foreign| {
            Self::Refused(name.to_owned(), foreign)
        })
    }
}

impl Refused {
    /// Whether the value is the same as a missing field: `null`, empty, one in `unless`, or a list of only such values.
    pub fn is_missing(&self, value: &Value) -> bool {
        let is_same = |literal: &&str| {
            serde_json::from_str::<Value>(literal).is_ok_and(|neutral| match neutral.as_f64() {
                Some(number) => value.as_f64() == Some(number),
                None => neutral == *value,
            })
        };
        match value {
            Value::Null => true,
            Value::String(text) if text.is_empty() => true,
            Value::Object(fields) if fields.is_empty() => true,
            Value::Array(values) if values.iter().all(|value| self.is_missing(value)) => true,
            _ => self.unless.iter().any(is_same),
        }
    }
}

/// A number or a boolean. Other values may be a client's text.
pub fn shown(value: &Value) -> String {
    match value {
        Value::Bool(_) | Value::Number(_) => {
            let value: String = value.to_string().chars().take(MAX_VALUE).collect();
            format!(": {value}")
        }
        _ => String::new(),
    }
}

/// The known field that a name probably means; its beginning is enough for one that is read.
fn nearest(name: &str, known: Known) -> Option<&'static str> {
    /// Shorter names begin many others.
    const MIN_BEGINNING: usize = 5;
    let beginning = || {
        let mut read = known.iter().flat_map(|fields| fields.read);
        let is_long = name.len() >= MIN_BEGINNING;
        read.find(|field| is_long && field.starts_with(name))
            .copied()
    };
    similar(name, known.iter().flat_map(|fields| fields.names())).or_else(beginning)
}

/// The foreign field that a name probably means: one with the same letters, or for a long name also a close one.
fn nearest_foreign(name: &str, known: Known) -> Option<&'static Refused> {
    /// Clients' own fields are close to shorter names, such as `context` to `content`.
    const MIN_SIMILAR: usize = 8;
    let foreign = || known.iter().flat_map(|fields| fields.foreign);
    let right = similar(name, foreign().map(|field| field.name))?;
    let plain = |name: &str| name.replace(['_', '-'], "").to_ascii_lowercase();
    let is_meant = name.len() >= MIN_SIMILAR || plain(name) == plain(right);
    foreign().find(|field| is_meant && field.name == right)
}

impl Fields {
    /// All names but foreign ones.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        let refused = self.refused.iter().map(|field| field.name);
        self.read
            .iter()
            .chain(self.without_effect)
            .copied()
            .chain(refused)
    }
}
