//! Placeholders in place of originals, and back.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    ops::Range,
    sync::LazyLock,
};

use regex::Regex;
use schemars::JsonSchema;
use serde::{
    Deserialize, Deserializer, Serialize,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::Value;

use super::key::Key;
use kivu_base::{Error, Result};

/// What a placeholder has besides the label.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Style {
    /// Nothing: `[PERSON]`. It cannot be restored.
    #[default]
    Label,
    /// A number, the same for the same original: `[PERSON_1]`.
    Number,
    /// A hash of the original with the caller's key: `[PERSON#0f3a…]`.
    Hash,
    /// The original, encrypted with the caller's key: `[PERSON:q83v…]`.
    Encrypt,
}

/// Where the same original has the same number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum NumberScope {
    /// Within a text.
    #[default]
    Text,
    /// In all texts of a request.
    Request,
}

/// A style with its key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Replacement {
    /// [`Style::Label`].
    #[default]
    Label,
    /// [`Style::Number`].
    Number,
    /// [`Style::Hash`].
    Hash(Key),
    /// [`Style::Encrypt`].
    Encrypt(Key),
}

impl Replacement {
    /// A style with its key.
    ///
    /// # Errors
    /// The style needs a key and there is none, or there is one without effect.
    pub fn new(style: Style, key: Option<Key>) -> Result<Self> {
        match (style, key) {
            (Style::Label, None) => Ok(Self::Label),
            (Style::Number, None) => Ok(Self::Number),
            (Style::Hash, Some(key)) => Ok(Self::Hash(key)),
            (Style::Encrypt, Some(key)) => Ok(Self::Encrypt(key)),
            (Style::Label | Style::Number, Some(_)) => Err(Error::invalid(
                "a key has an effect only on the styles `hash` and `encrypt`",
            )
            .with_hint("omit it, or choose one of them")),
            (Style::Hash | Style::Encrypt, None) => Err(Error::invalid(
                "the styles `hash` and `encrypt` need a key, but there is none",
            )
            .with_hint("make one with `openssl rand -hex 32`")),
        }
    }

    /// Whether placeholders may be replaced by originals again.
    pub fn is_reversible(&self) -> bool {
        *self != Self::Label
    }
}

/// Originals by placeholder: a secret.
#[derive(Clone, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(transparent)]
#[schemars(inline)]
pub struct Mapping(pub BTreeMap<String, String>);

impl Mapping {
    /// Whether there is no placeholder.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<'de> Deserialize<'de> for Mapping {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(MappingVisitor)
    }
}

/// Reads any values, since an error in one would have its name, which may be an original.
struct MappingVisitor;

impl<'de> Visitor<'de> for MappingVisitor {
    type Value = Mapping;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with originals by placeholder")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Mapping, A::Error> {
        let mut originals = BTreeMap::new();
        let mut place = 0;
        while let Some((name, value)) = entries.next_entry::<String, Value>()? {
            place += 1;
            let Value::String(original) = value else {
                return Err(A::Error::custom(format_args!(
                    "expected a text for each placeholder, but found another value in place {place}"
                )));
            };
            if originals.insert(name, original).is_some() {
                return Err(A::Error::custom(format_args!(
                    "expected each placeholder once, but found an earlier one in place {place}"
                )));
            }
        }
        Ok(Mapping(originals))
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Mapping({} placeholders)", self.0.len())
    }
}

/// The placeholders that were given out so far.
#[derive(Clone, Default)]
pub struct Memory {
    /// Originals by placeholder, for styles that need it.
    pub mapping: Mapping,
    /// Placeholders by label and original.
    known: HashMap<(String, String), String>,
    /// The highest number by label.
    counts: HashMap<String, u64>,
    /// Size of the placeholders and originals in `mapping`.
    bytes: usize,
}

/// A placeholder: a label, and a number, hash or encrypted original.
static PLACEHOLDER: LazyLock<Option<Regex>> = LazyLock::new(|| {
    Regex::new(r"\[([^\[\]:\r\n]*)(?:_([0-9]{1,18})|#([0-9a-f]{32})|:([A-Za-z0-9_-]{22,}))\]").ok()
});

/// The places of placeholders in a text.
pub fn placeholders(text: &str) -> impl Iterator<Item = Range<usize>> {
    let found = PLACEHOLDER.iter().flat_map(|known| known.find_iter(text));
    found.map(|found| found.range())
}

impl Memory {
    /// Continues with the numbers of earlier texts.
    ///
    /// # Errors
    /// A name in `mapping` is no placeholder with a number; the message does not contain it.
    pub fn continued(mapping: &Mapping) -> Result<Self> {
        let mut memory = Self::default();
        for (place, (placeholder, original)) in mapping.0.iter().enumerate() {
            let parts = PLACEHOLDER.as_ref().and_then(|known| {
                let captures = known.captures(placeholder)?;
                let is_whole = captures.get(0)?.len() == placeholder.len();
                let number: u64 = captures.get(2)?.as_str().parse().ok()?;
                is_whole.then(|| (captures[1].to_owned(), number))
            });
            let (label, number) = parts.ok_or_else(|| {
                Error::invalid(format!(
                    "the mapping's name in place {} is not a placeholder such as `[PERSON_1]`",
                    place + 1
                ))
            })?;
            let count = memory.counts.entry(label.clone()).or_default();
            *count = number.max(*count);
            memory.bytes += placeholder.len() + original.len();
            memory
                .known
                .insert((label, original.clone()), placeholder.clone());
        }
        memory.mapping = mapping.clone();
        Ok(memory)
    }

    /// The placeholder for an original.
    ///
    /// # Errors
    /// The original is too long to be encrypted.
    pub fn placeholder(
        &mut self,
        replacement: &Replacement,
        label: &str,
        original: &str,
    ) -> Result<String> {
        if *replacement == Replacement::Label {
            return Ok(format!("[{label}]"));
        }
        let label = label.replace(['[', ']', ':', '\r', '\n'], " ");
        let known = (label, original.to_owned());
        if let Some(placeholder) = self.known.get(&known) {
            return Ok(placeholder.clone());
        }
        let (label, original) = &known;
        let placeholder = match replacement {
            Replacement::Label => format!("[{label}]"),
            Replacement::Number => {
                let count = self.counts.entry(label.clone()).or_default();
                *count += 1;
                format!("[{label}_{count}]")
            }
            Replacement::Hash(key) => format!("[{label}#{}]", key.hash(label, original)),
            Replacement::Encrypt(key) => {
                return Ok(format!("[{label}:{}]", key.seal(label, original)?));
            }
        };
        self.bytes += placeholder.len() + original.len();
        self.mapping.0.insert(placeholder.clone(), original.clone());
        self.known.insert(known, placeholder.clone());
        Ok(placeholder)
    }

    /// Numbers a text's placeholders after those of earlier texts. The text was redacted by itself, with this mapping.
    ///
    /// # Errors
    /// A new placeholder would follow more than `max_bytes` bytes of placeholders and originals.
    pub fn renumber(&mut self, text: &str, own: &Mapping, max_bytes: usize) -> Result<String> {
        let (mut renumbered, mut end) = (String::with_capacity(text.len()), 0);
        let found = PLACEHOLDER
            .iter()
            .flat_map(|known| known.captures_iter(text));
        for place in found {
            let (Some(whole), Some(label)) = (place.get(0), place.get(1)) else {
                continue;
            };
            let Some(original) = own.0.get(whole.as_str()) else {
                continue;
            };
            let label = label.as_str();
            let known = (label.to_owned(), original.clone());
            if self.bytes > max_bytes && !self.known.contains_key(&known) {
                return Err(Error::too_large(format!(
                    "the texts have more than {max_bytes} bytes of different originals"
                ))
                .with_hint("use the style `hash` or `encrypt`"));
            }
            renumbered.push_str(&text[end..whole.start()]);
            renumbered.push_str(&self.placeholder(&Replacement::Number, label, original)?);
            end = whole.end();
        }
        renumbered.push_str(&text[end..]);
        Ok(renumbered)
    }
}

/// A text with its originals.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Restored {
    /// The text.
    pub text: String,
    /// Number of placeholders that were replaced.
    pub restored: usize,
    /// Number of placeholders that are neither in the mapping nor encrypted with the key, and stay.
    pub unknown: usize,
}

/// Replaces placeholders by their originals: those in `mapping`, and those encrypted with `key`.
///
/// # Errors
/// The text would have more than `max_bytes` bytes: a mapping may have long originals.
pub fn restore(
    text: &str,
    mapping: &Mapping,
    key: Option<&Key>,
    max_bytes: usize,
) -> Result<Restored> {
    let (mut found, mut end) = (
        Restored {
            text: String::with_capacity(text.len()),
            restored: 0,
            unknown: 0,
        },
        0,
    );
    let fits = |bytes: usize| match bytes > max_bytes {
        false => Ok(()),
        true => Err(
            Error::too_large("the texts would be too long with their originals")
                .with_hint("send fewer or shorter ones"),
        ),
    };
    for place in PLACEHOLDER
        .iter()
        .flat_map(|known| known.captures_iter(text))
    {
        let Some(whole) = place.get(0) else { continue };
        let sealed = || {
            let (label, sealed) = (place.get(1)?, place.get(4)?);
            key?.open(label.as_str(), sealed.as_str())
        };
        let known = mapping.0.get(whole.as_str()).cloned();
        let Some(original) = known.or_else(sealed) else {
            found.unknown += 1;
            continue;
        };
        found.text.push_str(&text[end..whole.start()]);
        fits(found.text.len() + original.len())?;
        found.text.push_str(&original);
        found.restored += 1;
        end = whole.end();
    }
    found.text.push_str(&text[end..]);
    fits(found.text.len())?;
    Ok(found)
}
