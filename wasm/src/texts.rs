//! JavaScript strings as texts. `arguments.js` has checked that they are strings.

use js_sys::{Array, JsString};
use kivu::{Result, pipeline::Input};
use kivu_bindings::{Task, check, half_a_pair, no_pair};
use wasm_bindgen::{JsCast, JsValue};

/// A string as a text, which is not empty.
fn text(value: &JsValue, place: impl Fn() -> String) -> Result<String> {
    let string: &JsString = value.unchecked_ref();
    if !string.is_valid_utf16() {
        return Err(half_a_pair(&place()));
    }
    check(string.into(), place)
}

/// A batch of texts, or pairs of texts that a model reads together; the first one has the position `first`.
pub fn inputs(task: Task, values: &Array, first: u32) -> Result<Vec<Input>> {
    let input = |(index, value): (usize, JsValue)| {
        let place = || task.place(first as usize + index);
        let Some(pair) = value.dyn_ref::<Array>() else {
            return text(&value, place).map(Input::Text);
        };
        if pair.length() != 2 {
            return Err(no_pair(&place(), pair.length() as usize));
        }
        let part = |number: u32| text(&pair.get(number), || format!("{}[{number}]", place()));
        Ok(Input::Pair(part(0)?.into(), part(1)?.into()))
    };
    values.iter().enumerate().map(input).collect()
}
