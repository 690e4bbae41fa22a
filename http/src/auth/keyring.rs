//! API key hashes, and key lookup among them.

use std::{collections::HashMap, str::SplitWhitespace};

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use super::key_limits::KeyLimits;
use kivu::{Error, Result, hexadecimal::hex};

/// Prefix for every key, by which secret scanners recognize a leaked one.
const PREFIX: &str = "kivu_";
/// Random bytes per key: enough that a plain hash is as safe as a slow one.
const KEY_BYTES: usize = 32;
const MAX_NAME_CHARS: usize = 64;

type Hash = [u8; 32];

/// Valid keys, as SHA-256 hashes.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: Vec<(Key, Hash)>,
}

/// A key without its secret.
#[derive(Clone, Debug)]
pub struct Key {
    pub name: String,
    pub limits: KeyLimits,
}

impl Keyring {
    /// Parses lines with `NAME:SHA256` and optional limits; empty lines and lines that begin with `#` are ignored. A key has
    /// one line, since only one line's limits would count.
    ///
    /// Errors name the line number but not its content, which may be a key pasted by mistake.
    pub fn parse(text: &str) -> Result<Self> {
        let (ring, checked) = Self::of_valid_lines(text);
        checked.map(|()| ring)
    }

    /// The keys in well-formed lines that no other line repeats, and the first error of the others.
    pub fn of_valid_lines(text: &str) -> (Self, Result<()>) {
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let (mut keys, mut places, mut checked) = (Vec::new(), HashMap::new(), Ok(()));
        for (index, line) in lines {
            let error = match parse_line(line) {
                Ok((key, hash)) => match places.insert(hash, index) {
                    None => {
                        keys.push((key, hash));
                        continue;
                    }
                    Some(first) => {
                        keys.retain(|(_, known)| *known != hash);
                        Error::config(format!(
                            "expected each key once, but found the same in lines {} and {}",
                            first + 1,
                            index + 1
                        ))
                        .with_hint("leave one of them out")
                    }
                },
                Err(expected) => Error::config(format!(
                    "expected {expected}, but found something else in line {}",
                    index + 1
                ))
                .with_hint("`kivu key NAME` prints such a line"),
            };
            checked = checked.and(Err(error));
        }
        (Self { keys }, checked)
    }

    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// A ring with plain-text keys, which all have the same name.
    pub fn of<'a>(name: &str, keys: impl Iterator<Item = &'a str>) -> Self {
        let of = |key: &str| {
            (
                Key {
                    name: name.to_owned(),
                    limits: KeyLimits::default(),
                },
                hash(key.as_bytes()),
            )
        };
        Self {
            keys: keys.map(of).collect(),
        }
    }

    /// Finds a key. The time taken does not depend on the keys in the ring.
    pub fn find(&self, key: &str) -> Option<&Key> {
        let hash = hash(key.as_bytes());
        let (mut found, mut index) = (Choice::from(0), 0_u32);
        for (at, (_, known)) in (0_u32..).zip(&self.keys) {
            let same = known.ct_eq(&hash);
            index.conditional_assign(&at, same);
            found |= same;
        }
        let (key, _) = self.keys.get(index as usize)?;
        bool::from(found).then_some(key)
    }
}

/// A line's key, or what was expected of it.
fn parse_line(line: &str) -> Result<(Key, Hash), &'static str> {
    let (name, hash, fields) = parse_key(line).ok_or("`NAME:SHA256` of a key")?;
    let limits = KeyLimits::parse(fields).ok_or(
        "limits as `expires=YYYY-MM-DD`, `models=NAME,NAME`, `per-minute=COUNT` or `per-day=COUNT`, each once, after a key",
    )?;
    Ok((
        Key {
            name: name.to_owned(),
            limits,
        },
        hash,
    ))
}

/// A key's name and hash, and the fields after them.
fn parse_key(line: &str) -> Option<(&str, Hash, SplitWhitespace<'_>)> {
    let (name, rest) = line.rsplit_once(':')?;
    let (name, mut fields) = (name.trim(), rest.split_whitespace());
    let digits = fields.next()?;
    let is_hex = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !is_name(name) || digits.len() != 64 || !is_hex {
        return None;
    }
    let mut hash = Hash::default();
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((name, hash, fields))
}

/// Whether a name is safe in a keyring line and in the log.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    (1..=MAX_NAME_CHARS).contains(&name.len()) && name.chars().all(is_plain)
}

pub fn hash(key: &[u8]) -> Hash {
    Sha256::digest(key).into()
}

/// Creates a random key without limits; returns it with its line for a keyring.
pub fn make_key(name: &str) -> Result<(String, String)> {
    make_limited_key(name, &KeyLimits::default())
}

/// Creates a random key; returns it with its line for a keyring.
pub fn make_limited_key(name: &str, limits: &KeyLimits) -> Result<(String, String)> {
    limits.validate()?;
    if !is_name(name) {
        return Err(Error::config(format!(
            "expected a name of 1 to {MAX_NAME_CHARS} letters, digits, `-`, `_`, `.` or `@`, but found `{}`",
            name.escape_default()
        )));
    }
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes).map_err(|error| {
        Error::io("cannot create a random key")(std::io::Error::other(error.to_string()))
    })?;
    let key = format!("{PREFIX}{}", hex(&bytes));
    let line = format!("{name}:{}{limits}", hex(&hash(key.as_bytes())));
    Ok((key, line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_listed_keys_are_found() {
        let (alice, alices) = make_key("alice").unwrap();
        let (bob, bobs) = make_key("bob@example.org").unwrap();
        let ring = Keyring::parse(&format!("# clients\n{alices}\n\n  {bobs}  \n")).unwrap();
        let find = |key: &str| ring.find(key).map(|key| key.name.as_str());
        assert_eq!(find(&alice), Some("alice"));
        assert_eq!(find(&bob), Some("bob@example.org"));
        for wrong in ["", "kivu_", &alice[1..], &alice.to_uppercase(), &alices] {
            assert_eq!(find(wrong), None, "{wrong}");
        }
        assert!(Keyring::default().find(&alice).is_none(), "empty keyring");
        assert_ne!(alice, make_key("alice").unwrap().0);
    }

    #[test]
    fn an_invalid_line_is_reported_by_number_only() {
        let (key, line) = make_key("alice").unwrap();
        let (spaced, signed, misspelled) = (
            format!("a b:{}", "0".repeat(64)),
            format!("alice:{}", "+f".repeat(32)),
            format!("{line} expire=2027-01-31"),
        );
        let other = "é".repeat(32);
        for wrong in ["alice:12", "alice:", &spaced, &signed, &other, &misspelled] {
            assert!(Keyring::parse(wrong).is_err(), "{wrong}");
        }
        let error = Keyring::parse(&format!("\n{key}")).unwrap_err();
        insta::assert_snapshot!(error, @"expected `NAME:SHA256` of a key, but found something else in line 2; `kivu key NAME` prints such a line");
    }

    #[test]
    fn a_key_has_the_limits_of_one_line() {
        let (_, line) = make_key("alice").unwrap();
        let error = Keyring::parse(&format!("{line} models=rank\n\n{line}")).unwrap_err();
        insta::assert_snapshot!(error, @"expected each key once, but found the same in lines 1 and 3; leave one of them out");
    }

    #[test]
    fn an_invalid_limit_is_not_taken_for_an_invalid_key() {
        let (_, line) = make_key("alice").unwrap();
        for limit in [
            "expires=tomorrow",
            "foo=1",
            "per-day=0",
            "per-day=1 per-day=2",
            "secret",
        ] {
            let error = Keyring::parse(&format!("{line} {limit}")).unwrap_err();
            insta::allow_duplicates! {
                insta::assert_snapshot!(error, @"expected limits as `expires=YYYY-MM-DD`, `models=NAME,NAME`, `per-minute=COUNT` or `per-day=COUNT`, each once, after a key, but found something else in line 1; `kivu key NAME` prints such a line");
            }
        }
    }

    #[test]
    fn a_line_has_the_limits_of_its_key() {
        let limits = KeyLimits {
            models: vec!["minilm".into()],
            per_minute: Some(6),
            ..KeyLimits::default()
        };
        let (key, line) = make_limited_key("alice", &limits).unwrap();
        let ring = Keyring::parse(&line).unwrap();
        assert_eq!(ring.find(&key).unwrap().limits, limits);
    }

    #[test]
    fn names_are_validated() {
        assert!(make_key("").is_err());
        assert!(make_key("a:b").is_err());
        assert!(make_key(&"a".repeat(65)).is_err());
    }
}
