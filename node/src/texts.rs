//! JavaScript strings as texts. The thread of JavaScript only copies them; they are checked on another one.

use kivu::{Result, pipeline::Input};
use kivu_bindings::{Task, check, half_a_pair, no_pair};
use napi::{Either, JsString};

/// A string's UTF-16 code units.
struct Units(Vec<u16>);

impl Units {
    fn copy(text: JsString<'_>) -> napi::Result<Self> {
        let mut units = Vec::from(text.into_utf16()?);
        // The copy ends with a zero.
        units.pop();
        Ok(Self(units))
    }

    /// The text, which is not empty.
    fn text(&self, place: impl Fn() -> String) -> Result<String> {
        let text = String::from_utf16(&self.0).map_err(|_| half_a_pair(&place()))?;
        check(text, place)
    }
}

/// A batch of texts, or pairs of texts that a model reads together.
pub struct Inputs(Vec<Either<Units, Vec<Units>>>);

impl Inputs {
    pub fn copy(inputs: Vec<Either<JsString<'_>, Vec<JsString<'_>>>>) -> napi::Result<Self> {
        let copy = |input: Either<JsString<'_>, Vec<JsString<'_>>>| {
            Ok(match input {
                Either::A(text) => Either::A(Units::copy(text)?),
                Either::B(pair) => Either::B(
                    pair.into_iter()
                        .map(Units::copy)
                        .collect::<napi::Result<_>>()?,
                ),
            })
        };
        inputs
            .into_iter()
            .map(copy)
            .collect::<napi::Result<_>>()
            .map(Self)
    }

    /// The inputs for a task; the first one has the position `first`.
    pub fn read(&self, task: Task, first: u32) -> Result<Vec<Input>> {
        let input = |(index, input): (usize, &Either<Units, Vec<Units>>)| {
            let place = || task.place(first as usize + index);
            let part = |part: &Units, number: usize| part.text(|| format!("{}[{number}]", place()));
            match input {
                Either::A(text) => text.text(place).map(Input::Text),
                Either::B(pair) => match pair.as_slice() {
                    [left, right] => Ok(Input::Pair(part(left, 0)?.into(), part(right, 1)?.into())),
                    _ => Err(no_pair(&place(), pair.len())),
                },
            }
        };
        self.0.iter().enumerate().map(input).collect()
    }
}
