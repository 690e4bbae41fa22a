//! A caller's key, for placeholders that are hashes or encrypted originals.

use std::fmt;

use aes_gcm_siv::{
    Aes256GcmSiv, KeyInit, Nonce,
    aead::{Aead, Payload},
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, Mac};
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de};
use sha2::Sha256;

use kivu_base::{Error, Result, hexadecimal::hex};

/// Bytes in a key.
const KEY_BYTES: usize = 32;
/// Bytes of a hash in a placeholder.
pub const HASH_BYTES: usize = 16;

/// A key of 32 bytes, as 64 hexadecimal digits.
#[derive(Clone, PartialEq, Eq, JsonSchema)]
#[schemars(inline)]
pub struct Key(#[schemars(with = "String", length(equal = 64))] [u8; KEY_BYTES]);

impl fmt::Debug for Key {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Key(…)")
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::from_hex(&text).map_err(|error| de::Error::custom(error.message()))
    }
}

impl Key {
    /// Reads 64 hexadecimal digits.
    ///
    /// # Errors
    /// The text has another length or other characters; the message does not contain it.
    pub fn from_hex(text: &str) -> Result<Self> {
        let wrong = |found: String| {
            Error::invalid(format!(
                "expected a key of 32 bytes, as 64 hexadecimal digits, but found {found}"
            ))
            .with_hint("make one with `openssl rand -hex 32`")
        };
        let count = text.chars().count();
        if count != 2 * KEY_BYTES {
            return Err(wrong(format!("{count} characters")));
        }
        let mut key = [0; KEY_BYTES];
        let digits: Option<Vec<u32>> = text.chars().map(|digit| digit.to_digit(16)).collect();
        let digits = digits.ok_or_else(|| wrong("other characters".to_owned()))?;
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = (pair[0] * 16 + pair[1]) as u8;
        }
        Ok(Self(key))
    }

    /// HMAC-SHA-256 of a label, a zero byte and a value, as its first 16 bytes in hexadecimal.
    pub fn hash(&self, label: &str, value: &str) -> String {
        // Keys of any length are valid.
        let Ok(mut mac) = <Hmac<Sha256> as KeyInit>::new_from_slice(&self.0) else {
            return String::new();
        };
        for part in [label.as_bytes(), &[0], value.as_bytes()] {
            mac.update(part);
        }
        let bytes = mac.finalize().into_bytes();
        hex(&bytes[..HASH_BYTES])
    }

    /// AES-256-GCM-SIV (RFC 8452) of a value with the label as associated data, as base64url without padding. The nonce is
    /// zero: equal values have equal placeholders, which is all that the mode reveals in this case.
    ///
    /// # Errors
    /// The value is longer than 2^36 bytes.
    pub fn seal(&self, label: &str, value: &str) -> Result<String> {
        let payload = Payload {
            msg: value.as_bytes(),
            aad: label.as_bytes(),
        };
        let sealed = Aes256GcmSiv::new(&self.0.into()).encrypt(&Nonce::default(), payload);
        let sealed =
            sealed.map_err(|_| Error::invalid("an original is too long to be encrypted"))?;
        Ok(URL_SAFE_NO_PAD.encode(sealed))
    }

    /// The value that [`seal`](Self::seal) encrypted with this key and label, if it is one.
    pub fn open(&self, label: &str, sealed: &str) -> Option<String> {
        let sealed = URL_SAFE_NO_PAD.decode(sealed).ok()?;
        let payload = Payload {
            msg: &sealed,
            aad: label.as_bytes(),
        };
        let value = Aes256GcmSiv::new(&self.0.into()).decrypt(&Nonce::default(), payload);
        String::from_utf8(value.ok()?).ok()
    }
}
