//! How CSV fields are separated, quoted and escaped.

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use kivu::{Error, Result};

/// The most frequent delimiter in a header is used; in a tie, the tab, or else the first in this list.
pub const DELIMITERS: [u8; 5] = *b",;\t|\x01";

/// How a CSV file is written; `None` if it must be detected, or has its default.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CsvOptions {
    /// Between fields; detected in the header by default.
    pub delimiter: Option<u8>,
    /// Around fields; `"` by default. Without it, quotes are part of the fields.
    pub quote: Option<Mark>,
    /// Before quotes within fields; detected by default. Without it, they are doubled.
    pub escape: Option<Mark>,
    /// An unquoted field that means NULL; by default an empty one, or `\N` with an escape character and without quotes.
    pub null: Option<String>,
    /// Whether the first line has the columns' names, as by default; otherwise they are `column1`, `column2`, …
    pub header: Option<bool>,
}

/// A character, or that there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Mark {
    /// The file has no such character.
    None,
    /// An ASCII character.
    Character(u8),
}

impl Mark {
    fn of(text: &str) -> Result<Self, String> {
        match text {
            "none" => Ok(Self::None),
            _ => character(text)
                .map(Self::Character)
                .ok_or_else(|| format!("{CHARACTER}, or `none`")),
        }
    }

    fn character(self) -> Option<u8> {
        match self {
            Self::None => None,
            Self::Character(character) => Some(character),
        }
    }
}

impl From<Option<u8>> for Mark {
    fn from(character: Option<u8>) -> Self {
        character.map_or(Self::None, Self::Character)
    }
}

/// The forms of a character in options.
const CHARACTER: &str = "an ASCII character, itself or as `\\t`, `^A` or `\\x01`";

/// An ASCII character, itself or as it is written in the options of databases: `\t`, `^A`, `\x01`, `\u0001`, `\001`.
fn character(text: &str) -> Option<u8> {
    let code = match text.as_bytes() {
        [character] => Some(*character),
        b"\\t" | b"tab" => Some(b'\t'),
        [b'^', letter @ b'A'..=b'_'] => Some(letter - b'@'),
        [b'\\', b'x' | b'u', ..] => u8::from_str_radix(&text[2..], 16).ok(),
        [b'\\', _, _, _] => u8::from_str_radix(&text[1..], 8).ok(),
        _ => None,
    };
    code.filter(|code| code.is_ascii() && !matches!(code, b'\0' | b'\r' | b'\n'))
}

impl CsvOptions {
    /// Sets an option by its name in rules and metadata, or returns the expected value. `None` if there is no such
    /// option.
    pub fn set(&mut self, name: &str, value: &str) -> Option<Result<(), String>> {
        let mark = || Mark::of(value).map(Some);
        let set = match name {
            "delimiter" => character(value)
                .map(|found| self.delimiter = Some(found))
                .ok_or_else(|| CHARACTER.to_owned()),
            "quote" => mark().map(|found| self.quote = found),
            "escape" => mark().map(|found| self.escape = found),
            "null" => {
                self.null = Some(value.to_owned());
                Ok(())
            }
            "header" => value
                .parse()
                .map(|found| self.header = Some(found))
                .map_err(|_| "`true` or `false`".to_owned()),
            _ => return None,
        };
        Some(set)
    }

    pub fn has_header(&self) -> bool {
        self.header.unwrap_or(true)
    }

    /// The dialect of a file with this delimiter, whose records end with `line_end`.
    ///
    /// # Errors
    /// A character has two meanings.
    pub fn dialect(&self, delimiter: u8, line_end: LineEnd) -> Result<Dialect> {
        let quote = self
            .quote
            .map_or(Some(Dialect::QUOTE), |mark| mark.character());
        let escape = self.escape.and_then(Mark::character);
        // A doubled quote is a quote in every dialect.
        let escape = escape.filter(|escape| Some(*escape) != quote);
        if [quote, escape].contains(&Some(delimiter)) {
            return Err(Error::invalid(format!(
                "the `delimiter` {} is also `quote` or `escape`",
                shown(delimiter)
            ))
            .with_hint("choose another"));
        }
        let null = match (&self.null, quote, escape) {
            (Some(null), ..) => null.clone().into_bytes(),
            (None, None, Some(escape)) => vec![escape, b'N'],
            (None, ..) => Vec::new(),
        };
        Ok(Dialect {
            delimiter,
            quote,
            escape,
            null,
            line_end,
            is_quote_known: self.quote.is_some(),
        })
    }
}

/// How the records of a CSV file end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineEnd {
    /// LF, or any number of CRs and LF.
    LineFeed,
    /// CR without LF.
    CarriageReturn,
}

/// How a CSV file is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialect {
    pub delimiter: u8,
    /// `None` if quotes are part of the fields.
    pub quote: Option<u8>,
    /// Makes the next character part of the field.
    pub escape: Option<u8>,
    /// An unquoted field without a value.
    pub null: Vec<u8>,
    pub line_end: LineEnd,
    /// Whether the user or a checkpoint says how fields are quoted.
    pub is_quote_known: bool,
}

impl Dialect {
    pub const QUOTE: u8 = b'"';

    /// The dialect.
    ///
    /// # Errors
    /// What means NULL is not one unquoted field.
    pub fn checked(self) -> Result<Self> {
        let (null, escape) = (&self.null, self.escape);
        let is_special =
            |byte: &u8| [self.delimiter, b'\r', b'\n'].contains(byte) || Some(*byte) == self.quote;
        if null.iter().any(is_special) || escape.is_some() && null.last().copied() == escape {
            let null = String::from_utf8_lossy(null);
            return Err(Error::invalid(format!(
                "the `null` `{}` is not one field without quotes",
                null.escape_debug()
            ))
            .with_hint("choose another"));
        }
        Ok(self)
    }

    fn is_quoted(&self, raw: &[u8]) -> bool {
        self.quote.is_some() && raw.first().copied() == self.quote
    }

    /// Whether a field, as it is in the file, has no value. Databases that write escapes also write `\N`.
    pub fn is_null(&self, raw: &[u8]) -> bool {
        raw == self.null || self.escape.is_some_and(|escape| raw == [escape, b'N'])
    }

    /// The value of a field: without quotes and escapes.
    pub fn value<'a>(&self, raw: &'a [u8]) -> Cow<'a, [u8]> {
        let is_quoted = self.is_quoted(raw);
        let inner = match (is_quoted, raw) {
            (true, [_, inner @ .., last]) if Some(*last) == self.quote => inner,
            (true, [_, inner @ ..]) => inner,
            _ => raw,
        };
        let is_special =
            |byte: &u8| Some(*byte) == self.escape || (is_quoted && Some(*byte) == self.quote);
        let Some(first) = inner.iter().position(is_special) else {
            return Cow::Borrowed(inner);
        };
        let mut value = inner[..first].to_vec();
        let mut rest = &inner[first..];
        while let [byte, after @ ..] = rest {
            rest = after;
            match after {
                [next, after @ ..] if is_special(byte) => {
                    rest = after;
                    self.push_escaped(&mut value, *byte, *next);
                }
                _ => value.push(*byte),
            }
        }
        Cow::Owned(value)
    }

    /// Adds what the escape, or the first of two quotes, and the next character mean.
    fn push_escaped(&self, value: &mut Vec<u8>, escape: u8, next: u8) {
        match (self.quote, next) {
            // Text formats of databases.
            (None, b'n') => value.push(b'\n'),
            (None, b'r') => value.push(b'\r'),
            (None, b't') => value.push(b'\t'),
            (None, b'b') => value.push(8),
            (None, b'f') => value.push(12),
            (None, b'v') => value.push(11),
            (None, _) => value.push(next),
            // Most programs escape quotes only, so that `C:\new` has no escapes.
            (Some(quote), _) => {
                if ![quote, escape, self.delimiter, b'\r', b'\n'].contains(&next) {
                    value.push(escape);
                }
                value.push(next);
            }
        }
    }

    /// Appends a value as a field; `false` if this dialect cannot state it.
    pub fn write(&self, value: &[u8], output: &mut Vec<u8>) -> bool {
        let is_special = |byte: &u8| {
            *byte == self.delimiter
                || matches!(*byte, b'\r' | b'\n')
                || Some(*byte) == self.quote
                || Some(*byte) == self.escape
        };
        let is_null = self.is_null(value);
        if !is_null && !value.iter().any(is_special) {
            output.extend_from_slice(value);
            return true;
        }
        match (self.quote, self.escape) {
            (Some(quote), _) => {
                self.write_quoted(quote, value, output);
                true
            }
            (None, Some(escape)) if !is_null || value.first() == Some(&escape) => {
                for byte in value {
                    if is_special(byte) {
                        output.push(escape);
                    }
                    output.push(match byte {
                        b'\r' => b'r',
                        b'\n' => b'n',
                        b'\t' if self.delimiter == b'\t' => b't',
                        byte => *byte,
                    });
                }
                true
            }
            (None, _) => false,
        }
    }

    /// Appends a value as a field in quotes.
    pub fn write_quoted(&self, quote: u8, value: &[u8], output: &mut Vec<u8>) {
        output.push(quote);
        for byte in value {
            if *byte == quote {
                output.push(self.escape.unwrap_or(quote));
            } else if Some(*byte) == self.escape {
                output.push(*byte);
            }
            output.push(*byte);
        }
        output.push(quote);
    }

    /// Appends a field of another dialect, which differs by its delimiter only. Keeps its bytes, unless they would mean
    /// something else.
    pub fn convert(&self, raw: &[u8], from: &Self, output: &mut Vec<u8>) -> bool {
        // Also within quotes, since a malformed field goes on after them.
        let is_ambiguous = raw.contains(&self.delimiter)
            || self.escape.is_some_and(|escape| raw.contains(&escape));
        if !is_ambiguous || self.is_null(raw) {
            output.extend_from_slice(raw);
            return true;
        }
        self.write(&from.value(raw), output)
    }

    /// A message as this dialect can state it.
    pub fn plain<'a>(&self, message: &'a str) -> Cow<'a, str> {
        if self.quote.or(self.escape).is_some() {
            return Cow::Borrowed(message);
        }
        let is_special = |character: char| {
            character == char::from(self.delimiter) || matches!(character, '\r' | '\n')
        };
        Cow::Owned(message.replace(is_special, " "))
    }
}

/// Shows a character in a message.
pub fn shown(character: u8) -> String {
    match character {
        b'\t' => "tabs".to_owned(),
        0..b' ' => format!("`^{}`", char::from(character + b'@')),
        _ => format!("`{}`", char::from(character)),
    }
}
