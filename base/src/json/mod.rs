//! Reads JSON from other programs, with limits for its memory.
//!
//! As a value tree, an object with one field takes a hundred times the memory of its text, so a text within the size
//! limit could exhaust the machine's memory. Values are counted while they are read.

mod budget;
mod content;
mod known;
mod objects;
mod ordered;
mod read;
mod syntax;
mod tree;
mod typed;

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, de::Error as _};
use serde_json::Value;

pub use self::ordered::Ordered;
pub use self::{
    budget::{Budget, max_memory},
    content::{Content, FromJson, Kind, List, from_any},
    known::{Fields, Known, Refused},
    objects::Objects,
    read::{ReadError, read, read_known},
    syntax::{syntax, wrong_scalar},
    tree::{Tree, add_field, fields},
    typed::{check, from_known, from_value},
};

/// The field names of a type with defaults for all of them.
pub fn field_names<T: Serialize + Default>() -> BTreeSet<String> {
    let value = serde_json::to_value(T::default()).unwrap_or_default();
    value
        .as_object()
        .into_iter()
        .flatten()
        .map(|(name, _)| name.clone())
        .collect()
}

/// Before the path of an error in [`flattened`] fields.
const IN_FIELD: &str = "in the field ";

/// Deserializes a type whose fields are among another object's fields, with `#[serde(flatten)]`, which alone loses the
/// fields' names in errors.
pub fn flattened<'de, D: Deserializer<'de>, T: Deserialize<'de>>(fields: D) -> Result<T, D::Error> {
    serde_path_to_error::deserialize(Objects::new(fields)).map_err(|error| {
        match error.path().to_string() {
            own if own == "." => error.into_inner(),
            path => D::Error::custom(format_args!("{IN_FIELD}`{path}`: {}", error.into_inner())),
        }
    })
}

/// The path and the cause of an error at `path`, which may be in [`flattened`] fields.
pub fn located<'a>(path: &str, cause: &'a str) -> (String, &'a str) {
    let within = cause
        .strip_prefix(IN_FIELD)
        .and_then(|rest| rest.strip_prefix('`')?.split_once("`: "));
    match within {
        Some((field, cause)) if path == "." => (field.to_owned(), cause),
        Some((field, cause)) => (format!("{path}.{field}"), cause),
        None => (path.to_owned(), cause),
    }
}

/// A value's type in JSON, for errors.
pub fn kind(value: &Value) -> &'static str {
    Kind::deserialize(value).map_or("a value", |Kind(kind)| kind)
}

#[cfg(test)]
mod tests {
    use std::{cell::Cell, rc::Rc};

    use serde::de::DeserializeOwned;
    use serde_json::json;

    use super::{
        budget::{STEP, VALUE_BYTES},
        *,
    };
    use crate::error::Error;

    fn read_within<T: DeserializeOwned>(text: &str) -> Result<T, ReadError> {
        read(text.as_bytes(), Budget::new(text.len(), 1024))
    }

    fn memory_of<T: DeserializeOwned>(text: &str) -> (bool, usize) {
        let mut is_refused = false;
        let bytes = allocation_counter::measure(|| {
            is_refused = matches!(
                read_within::<T>(text),
                Err(ReadError::Refused(Error::TooLarge { .. }))
            );
        });
        (is_refused, bytes.bytes_max as usize)
    }

    /// Objects and lists that would take a hundred times their text.
    const SMALL: [(&str, usize); 5] = [
        ("{\"\":0}", 100_000),
        ("{}", 100_000),
        ("[]", 500_000),
        ("0", 1_000_000),
        ("\"\"", 700_000),
    ];

    #[test]
    fn many_small_values_are_refused_before_they_take_memory() {
        for (item, count) in SMALL {
            let text = format!("[{}]", vec![item; count].join(","));
            let (is_refused, bytes) = memory_of::<Tree>(&text);
            let allowed = max_memory(text.len()) / 2 * 3;
            assert!(
                is_refused && bytes <= allowed,
                "{item} × {count}: {bytes} bytes"
            );
        }
    }

    #[test]
    fn texts_above_the_limit_are_counted_but_not_kept() {
        for item in ["\"a text\"", "{\"text\":\"a\"}", "[\"a\"]"] {
            let text = format!("[{}]", vec![item; 20_000].join(","));
            let mut count = 0;
            let bytes = allocation_counter::measure(|| {
                let Content::List(list) = read_within::<Content>(&text).unwrap() else {
                    panic!("{item}")
                };
                count = list.count;
            });
            assert_eq!(count, 20_000);
            assert!(
                bytes.bytes_max < 1024 * 400,
                "{item}: {} bytes",
                bytes.bytes_max
            );
        }
    }

    #[test]
    fn memory_is_held_before_it_is_taken() {
        let text = json!(vec!["a"; 5000]).to_string();
        let held = Rc::new(Cell::new(0));
        let last = Rc::clone(&held);
        let hold = move |bytes| {
            last.set(bytes);
            Ok(())
        };
        read::<Value>(text.as_bytes(), Budget::new(text.len(), 10).held_by(hold)).unwrap();
        let taken = 5000 * VALUE_BYTES;
        assert!(
            (taken..=taken + taken / STEP).contains(&held.get()),
            "{}",
            held.get()
        );
        let refuse = |_| {
            Err(Error::Overloaded {
                limit: 1,
                unit: "bytes",
            })
        };
        let refused = read::<Value>(text.as_bytes(), Budget::new(text.len(), 10).held_by(refuse))
            .unwrap_err();
        assert!(matches!(
            refused,
            ReadError::Refused(Error::Overloaded { .. })
        ));
    }

    #[test]
    fn the_largest_requests_are_read() {
        let ids: Vec<u32> = (0..512).map(|id| 7 * id + 1000).collect();
        let ids = json!({ "inputs": vec![ids; 1024] }).to_string();
        let texts = json!({ "inputs": vec!["a, [\"b\"], {c}: ".repeat(80); 1024] }).to_string();
        let pairs = json!({ "documents": vec![json!({ "text": "a" }); 1024] }).to_string();
        for body in [ids, texts, pairs] {
            assert!(read_within::<Value>(&body).is_ok(), "{} bytes", body.len());
        }
    }
}
