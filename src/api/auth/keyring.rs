//! Hashes of keys, and whether a key is one of those.

use sha2::{Digest, Sha256};
use subtle::{Choice, ConditionallySelectable, ConstantTimeEq};

use crate::error::{Error, Result};

/// What every key begins with, so that one that leaks is recognised for what it is.
const MARK: &str = "kivu_";
/// The random bytes of a key: nobody guesses them, so a plain hash of it is as good as a slow one.
const KEY_BYTES: usize = 32;
const LONGEST_NAME: usize = 64;

type Hash = [u8; 32];

/// The keys that are good, as their hashes.
#[derive(Debug, Default)]
pub(super) struct Keyring {
    keys: Vec<(String, Hash)>,
}

impl Keyring {
    /// Reads `NAME:SHA256`, one a line; empty lines and those that begin with `#` say nothing.
    ///
    /// An error tells the line, never what is in it: it may be a key that somebody put there by mistake.
    pub(super) fn parse(text: &str) -> Result<Self> {
        let lines = text.lines().map(str::trim).enumerate();
        let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let keys = lines.map(|(place, line)| {
            entry(line).ok_or_else(|| {
                Error::config(format!(
                    "expected `NAME:SHA256` of a key, but found something else in line {}; \
                     `kivu key NAME` prints such a line",
                    place + 1
                ))
            })
        });
        Ok(Self { keys: keys.collect::<Result<_>>()? })
    }

    /// The name of the key, if it is good. How long it takes tells nothing about the keys there are.
    pub(super) fn find(&self, key: &str) -> Option<&str> {
        let hash = hash(key);
        let (mut found, mut place) = (Choice::from(0), 0_u32);
        for (at, (_, known)) in (0_u32..).zip(&self.keys) {
            let same = known.ct_eq(&hash);
            place.conditional_assign(&at, same);
            found |= same;
        }
        let (name, _) = self.keys.get(place as usize)?;
        bool::from(found).then_some(name)
    }
}

/// A line of a keyring.
fn entry(line: &str) -> Option<(String, Hash)> {
    let (name, digits) = line.rsplit_once(':')?;
    let (name, digits) = (name.trim(), digits.trim());
    if !is_name(name) || digits.len() != 64 || !digits.is_ascii() {
        return None;
    }
    let mut hash = Hash::default();
    for (byte, pair) in hash.iter_mut().zip(digits.as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok()?;
    }
    Some((name.to_owned(), hash))
}

/// Whether a name can stand in a line and in the log.
fn is_name(name: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.@".contains(c);
    (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_plain)
}

pub(super) fn hash(key: &str) -> Hash {
    Sha256::digest(key.as_bytes()).into()
}

/// A new key, and the line by which a keyring knows it.
pub fn make_key(name: &str) -> Result<(String, String)> {
    if !is_name(name) {
        return Err(Error::config(format!(
            "expected a name of at most {LONGEST_NAME} letters, digits, `-`, `_`, `.` or `@`, but found `{}`",
            name.escape_default()
        )));
    }
    let mut bytes = [0; KEY_BYTES];
    getrandom::fill(&mut bytes)
        .map_err(|error| Error::io("cannot make a random key")(std::io::Error::other(error.to_string())))?;
    let key = format!("{MARK}{}", hex(&bytes));
    let line = format!("{name}:{}", hex(&hash(&key)));
    Ok((key, line))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_found_by_its_line_and_no_other_is() {
        let (alice, alices) = make_key("alice").unwrap();
        let (bob, bobs) = make_key("bob@example.org").unwrap();
        let ring = Keyring::parse(&format!("# who may ask\n{alices}\n\n  {bobs}  \n")).unwrap();
        assert_eq!(ring.find(&alice), Some("alice"));
        assert_eq!(ring.find(&bob), Some("bob@example.org"));
        for wrong in ["", "kivu_", &alice[1..], &alice.to_uppercase(), &alices] {
            assert_eq!(ring.find(wrong), None, "{wrong}");
        }
        assert_eq!(Keyring::default().find(&alice), None, "an empty ring opens nothing");
        assert_ne!(alice, make_key("alice").unwrap().0);
    }

    #[test]
    fn a_line_that_is_no_hash_is_told_by_its_number_only() {
        let (key, _) = make_key("alice").unwrap();
        for wrong in ["alice:12", "alice:", &format!("a b:{}", "0".repeat(64)), &"é".repeat(32)] {
            assert!(Keyring::parse(wrong).is_err(), "{wrong}");
        }
        let error = Keyring::parse(&format!("\n{key}")).unwrap_err();
        insta::assert_snapshot!(error, @"expected `NAME:SHA256` of a key, but found something else in line 2; `kivu key NAME` prints such a line");
    }

    #[test]
    fn a_name_can_stand_in_a_line() {
        assert!(make_key("").is_err());
        assert!(make_key("a:b").is_err());
        assert!(make_key(&"a".repeat(65)).is_err());
    }
}
