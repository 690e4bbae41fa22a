//! Explains why a text is not JSON, without repeating any of it.

use serde_json::Error;

/// The message without its position. serde_json calls a value that begins like `null`, `true` or `false` an "ident".
pub fn syntax(error: &Error) -> String {
    let text = error.to_string();
    let cause = text.split(" at line ").next().unwrap_or_default();
    cause.replace("expected ident", "expected value")
}

/// What a single string or number contains that JSON or programs cannot have; `None` for other errors. serde_json's error
/// codes are private.
pub fn wrong_scalar(error: &Error) -> Option<&'static str> {
    Some(match syntax(error).as_str() {
        "unexpected end of hex escape" | "lone leading surrogate in hex escape" => {
            "a lone surrogate, half of a character such as an emoji"
        }
        "number out of range" => "a number that is out of range",
        "invalid unicode code point" => "bytes that are not UTF-8",
        "control character (\\u0000-\\u001F) found while parsing a string" => {
            "a control character, such as a line break, that is not escaped"
        }
        _ => return None,
    })
}

/// Words for values in other languages, with what JSON has instead.
const WORDS: [(&str, &str); 7] = [
    ("NaN", "`null`"),
    ("Infinity", "`null`"),
    ("inf", "`null`"),
    ("None", "`null`"),
    ("undefined", "`null`"),
    ("True", "`true`"),
    ("False", "`false`"),
];

/// The word of another language at which an error was found, and what JSON has instead.
pub fn foreign_word(text: &[u8], error: &Error) -> Option<(&'static str, &'static str)> {
    let line = text
        .split(|byte| *byte == b'\n')
        .nth(error.line().checked_sub(1)?)?;
    let rest = line.get(error.column().checked_sub(1)?..)?;
    let is_word = |word: &str| {
        rest.strip_prefix(word.as_bytes())
            .is_some_and(|after| !after.first().is_some_and(u8::is_ascii_alphanumeric))
    };
    WORDS.into_iter().find(|(word, _)| is_word(word))
}

/// The encoding of a text that cannot be JSON, since it is not UTF-8 or begins with a byte order mark.
pub fn foreign_encoding(text: &[u8]) -> Option<&'static str> {
    Some(match text {
        [0xef, 0xbb, 0xbf, ..] => "a byte order mark",
        [0xff, 0xfe, 0, 0, ..] | [0, 0, 0xfe, 0xff, ..] => "UTF-32",
        [first, 0, 0, 0, ..] | [0, 0, 0, first, ..] if *first != 0 => "UTF-32",
        [0xff, 0xfe, ..] | [0xfe, 0xff, ..] => "UTF-16",
        [first, 0, ..] | [0, first, ..] if *first != 0 => "UTF-16",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_encodings_are_recognized_with_and_without_a_mark() {
        let text = "{\"inputs\": \"a\"}";
        let utf_16: Vec<u16> = text.encode_utf16().collect();
        let bytes = |mark: &[u8], units: Vec<Vec<u8>>| [mark, &units.concat()].concat();
        let le = || utf_16.iter().map(|unit| unit.to_le_bytes().to_vec());
        let be = || utf_16.iter().map(|unit| unit.to_be_bytes().to_vec());
        let wide = || text.chars().map(u32::from);
        let wide_le = || wide().map(|unit| unit.to_le_bytes().to_vec()).collect();
        let wide_be = || wide().map(|unit| unit.to_be_bytes().to_vec()).collect();
        for (text, expected) in [
            (text.as_bytes().to_vec(), None),
            (b"".to_vec(), None),
            (b"7".to_vec(), None),
            (
                bytes(b"\xef\xbb\xbf", vec![text.into()]),
                Some("a byte order mark"),
            ),
            (bytes(b"\xff\xfe", le().collect()), Some("UTF-16")),
            (bytes(b"\xfe\xff", be().collect()), Some("UTF-16")),
            (bytes(b"", le().collect()), Some("UTF-16")),
            (bytes(b"", be().collect()), Some("UTF-16")),
            (bytes(b"\xff\xfe\0\0", wide_le()), Some("UTF-32")),
            (bytes(b"\0\0\xfe\xff", wide_be()), Some("UTF-32")),
            (bytes(b"", wide_le()), Some("UTF-32")),
            (bytes(b"", wide_be()), Some("UTF-32")),
        ] {
            assert_eq!(foreign_encoding(&text), expected, "{text:02x?}");
        }
    }

    #[test]
    fn words_are_recognized_only_as_wholes() {
        let word = |text: &str| {
            let error = serde_json::from_str::<serde_json::Value>(text).unwrap_err();
            foreign_word(text.as_bytes(), &error).map(|(word, _)| word)
        };
        assert_eq!(word("[1, NaN]"), Some("NaN"));
        assert_eq!(word("[1,\n -Infinity]"), Some("Infinity"));
        assert_eq!(word("{\"a\": None}"), Some("None"));
        assert_eq!(word("{\"a\": undefined}"), Some("undefined"));
        assert_eq!(word("[Nancy]"), None);
        assert_eq!(word("[1,]"), None);
    }
}
