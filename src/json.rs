//! Estimates the memory that JSON takes once it is parsed.
//!
//! As a value tree, an object with one field takes a hundred times the memory of its text, so a body within the size
//! limit could exhaust the machine's memory.

use serde_json::Value;

/// Limit: a multiple of the text size plus a constant. Real requests stay far below it.
const MAX_FACTOR: usize = 6;
const MAX_EXTRA_BYTES: usize = 18 * 1024 * 1024;
/// Value size in a list that has grown, and the additional size of an object with one field. While a list is
/// reallocated, it takes half as much again.
const VALUE_BYTES: usize = 64;
const OBJECT_BYTES: usize = 640;

/// Whether parsing `text` takes at most [`max_weight`].
pub(crate) fn is_light(text: &[u8]) -> bool {
    weight(text) <= max_weight(text.len())
}

/// Maximum memory for parsing a text with this size, in bytes.
pub(crate) fn max_weight(bytes: usize) -> usize {
    bytes.saturating_mul(MAX_FACTOR).saturating_add(MAX_EXTRA_BYTES)
}

/// Memory for parsing `text`, without its strings, in bytes.
///
/// Values and objects are counted by the characters that separate them, outside strings. Invalid JSON
/// is left to the parser.
pub(crate) fn weight(text: &[u8]) -> usize {
    let (mut values, mut objects) = (1_usize, 0_usize);
    let mut rest = text.iter();
    while let Some(byte) = rest.next() {
        match byte {
            b',' | b'[' | b':' => values += 1,
            b'{' => objects += 1,
            b'"' => {
                while let Some(byte) = rest.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(rest.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    values.saturating_mul(VALUE_BYTES).saturating_add(objects.saturating_mul(OBJECT_BYTES))
}

/// Message for a syntax error. serde_json calls a value that begins like `null`, `true` or `false` an "ident".
pub(crate) fn syntax(error: &serde_json::Error) -> String {
    error.to_string().replace("expected ident", "expected value")
}

/// A value's type in JSON, for errors.
pub(crate) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(number) if number.is_u64() => "a number",
        Value::Number(_) => "a number that is negative or not whole",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_body_of_small_objects_would_take_a_hundred_times_its_size() {
        for (item, count) in
            [("{\"\":0}", 100_000), ("{}", 100_000), ("[]", 500_000), ("0", 1_000_000), ("\"\"", 700_000)]
        {
            let text = format!("[{}]", vec![item; count].join(","));
            let read = || serde_json::from_str::<Value>(&text).map(drop).unwrap();
            let taken = allocation_counter::measure(read).bytes_max as usize;
            assert!(!is_light(text.as_bytes()), "{item} takes {taken} bytes for {}", text.len());
        }
    }

    #[test]
    fn light_texts_stay_below_the_limit() {
        for item in
            ["{\"\":0}", "{\"a\":{\"b\":0}}", "[[]]", "7", "1234567", "\"a, b\"", "{\"text\":\"a cat\"}"]
        {
            for count in [1, 1000, 20_000, 200_000, 270_000] {
                let text = format!("[{}]", vec![item; count].join(","));
                if is_light(text.as_bytes()) {
                    let read = || serde_json::from_str::<Value>(&text).map(drop).unwrap();
                    let taken = allocation_counter::measure(read).bytes_max as usize;
                    let allowed = (MAX_FACTOR * text.len() + MAX_EXTRA_BYTES) / 2 * 3;
                    assert!(taken <= allowed, "{item} × {count}: {taken} bytes");
                }
            }
        }
    }

    #[test]
    fn the_largest_requests_are_light() {
        let ids: Vec<u32> = (0..512).map(|id| 7 * id + 1000).collect();
        let ids = json!({ "inputs": vec![ids; 1024] }).to_string();
        let texts = json!({ "inputs": vec!["a, [\"b\"], {c}: ".repeat(80); 1024] }).to_string();
        let pairs = json!({ "documents": vec![json!({ "text": "a" }); 1024] }).to_string();
        for body in [ids, texts, pairs] {
            assert!(is_light(body.as_bytes()), "{} bytes", body.len());
        }
    }
}
