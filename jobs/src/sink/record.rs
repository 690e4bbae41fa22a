//! Rows as a sink stores them.

use serde_json::Value;

use crate::output::answer::{Cell, ErrorKind, RowError, RowResult};
use kivu::pipeline::embedding::vectors::StoredVector;

/// A row with its vector.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub id: String,
    pub vector: Vec<f32>,
    /// In the settings' order; null for missing values.
    pub metadata: Vec<Value>,
}

/// A refused row's error, without its text.
pub fn refusal(message: impl Into<String>) -> RowError {
    RowError::new(ErrorKind::Sink, message)
}

/// A row's id: a text or an integer.
pub fn id(value: &Value, column: &str) -> Result<String, RowError> {
    let wrong = |found: &str| {
        Err(refusal(format!(
            "expected a text or an integer as the id in `{column}`, but found {found}"
        )))
    };
    match value {
        Value::String(text) if text.is_empty() => wrong("an empty text"),
        Value::String(text) => Ok(text.clone()),
        Value::Number(number) if number.is_i64() || number.is_u64() => Ok(number.to_string()),
        Value::Null => wrong("nothing"),
        _ => wrong("another value"),
    }
}

/// The dense vector in an answer, which must have this many finite values.
pub fn vector(result: &mut RowResult, dimensions: usize) -> Result<Vec<f32>, RowError> {
    let answer = match result {
        Ok(answer) => std::mem::take(answer),
        Err(error) => return Err(error.clone()),
    };
    let Some(Cell::Vector(StoredVector::Float(vector))) = answer.into_iter().next() else {
        return Err(refusal("the model returned no vector of floats"));
    };
    if vector.len() != dimensions {
        return Err(refusal(format!(
            "expected a vector of {dimensions} values, but found {}",
            vector.len()
        )));
    }
    match vector.iter().find(|value| !value.is_finite()) {
        Some(found) => Err(refusal(format!(
            "expected finite values in the vector, but found {found}"
        ))),
        None => Ok(vector),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_are_texts_or_integers() {
        let of = |value: Value| id(&value, "key");
        assert_eq!(of(json!("a b")).unwrap(), "a b");
        assert_eq!(
            of(json!(18446744073709551615_u64)).unwrap(),
            "18446744073709551615"
        );
        insta::assert_snapshot!(of(Value::Null).unwrap_err().message, @"expected a text or an integer as the id in `key`, but found nothing");
        for wrong in [json!(""), json!(1.5), json!(true), json!(["a"])] {
            assert!(of(wrong.clone()).is_err(), "{wrong}");
        }
    }

    #[test]
    fn vectors_have_finite_values() {
        let of =
            |values: Vec<f32>| vector(&mut Ok(vec![Cell::Vector(StoredVector::Float(values))]), 2);
        assert_eq!(of(vec![1.0, 0.0]).unwrap(), [1.0, 0.0]);
        insta::assert_snapshot!(of(vec![1.0, f32::NAN]).unwrap_err().message, @"expected finite values in the vector, but found NaN");
        insta::assert_snapshot!(of(vec![1.0]).unwrap_err().message, @"expected a vector of 2 values, but found 1");
        let failed = RowError::new(ErrorKind::Model, "none");
        assert_eq!(vector(&mut Err(failed.clone()), 2).unwrap_err(), failed);
    }
}
