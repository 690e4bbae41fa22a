//! The pickle stack machine, with the instructions that build dictionaries, tuples and tensors.

use std::{collections::HashMap, rc::Rc};

use super::tensor::{Kind, Storage, Tensor};
use kivu::{Error, Result};

/// Maximum number of values on the stack, in the memo and in containers.
const MAX_VALUES: usize = 1 << 18;
/// Maximum depth of nested tuples.
const MAX_DEPTH: u8 = 8;
/// A Python function or type that a pickle may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Global {
    OrderedDict,
    RebuildTensor,
    RebuildParameter,
    Storage(Kind),
}

impl Global {
    fn named(module: &str, name: &str) -> Result<Self> {
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Self::OrderedDict,
            ("torch._utils", "_rebuild_tensor_v2") => Self::RebuildTensor,
            ("torch._utils", "_rebuild_parameter") => Self::RebuildParameter,
            ("torch", "HalfStorage") => Self::Storage(Kind::F16),
            ("torch", "BFloat16Storage") => Self::Storage(Kind::BF16),
            ("torch", "FloatStorage") => Self::Storage(Kind::F32),
            ("torch", "DoubleStorage") => Self::Storage(Kind::F64),
            ("torch", "LongStorage") => Self::Storage(Kind::Integer(8)),
            ("torch", "IntStorage") => Self::Storage(Kind::Integer(4)),
            ("torch", "ShortStorage") => Self::Storage(Kind::Integer(2)),
            ("torch", "CharStorage" | "ByteStorage" | "BoolStorage") => {
                Self::Storage(Kind::Integer(1))
            }
            _ => {
                return Err(Error::model(format!(
                    "expected only tensors in the pickle, but found `{module}.{name}`, which Kivu does not run"
                )));
            }
        })
    }
}

/// A stack value. Containers that may change are in [`Machine::containers`].
#[derive(Clone, Debug)]
pub enum Value {
    Mark,
    None,
    Bool(bool),
    Int(i64),
    Text(Rc<str>),
    /// The values and the nesting depth.
    Tuple(Rc<[Self]>, u8),
    Container(usize),
    Global(Global),
    Storage(Rc<Storage>),
    Tensor(Rc<Tensor>),
}

/// A container's values; `None` if the pickled object is not a container.
pub struct Object(Option<Vec<Value>>);

impl Object {
    pub fn values(&self) -> Result<&[Value]> {
        let other = || Error::model("the checkpoint is not a dictionary of tensors");
        self.0.as_deref().ok_or_else(other)
    }

    /// A dictionary's keys and values.
    pub fn items(&self) -> Result<impl Iterator<Item = &[Value; 2]>> {
        Ok(self.values()?.as_chunks().0.iter())
    }
}

/// A pickle program's state.
pub struct Machine<'a> {
    rest: &'a [u8],
    stack: Vec<Value>,
    memo: HashMap<u32, Value>,
    /// Dictionaries: alternating keys and values. Lists: values.
    containers: Vec<Vec<Value>>,
    /// Total number of values in containers.
    contained: usize,
}

impl<'a> Machine<'a> {
    /// Runs a pickle; returns its object and the bytes after it.
    pub fn run(pickle: &'a [u8]) -> Result<(Object, &'a [u8])> {
        let mut machine = Self {
            rest: pickle,
            stack: Vec::new(),
            memo: HashMap::new(),
            containers: Vec::new(),
            contained: 0,
        };
        while machine.step()? {
            let sizes = [
                machine.stack.len(),
                machine.memo.len(),
                machine.containers.len(),
                machine.contained,
            ];
            if sizes.iter().any(|size| *size > MAX_VALUES) {
                return Err(Error::model(format!(
                    "expected at most {MAX_VALUES} values in the pickle, but found more"
                )));
            }
        }
        let values = match machine.pop()? {
            Value::Container(index) => Some(std::mem::take(&mut machine.containers[index])),
            _ => None,
        };
        Ok((Object(values), machine.rest))
    }

    /// Executes an instruction; `false` at the end.
    fn step(&mut self) -> Result<bool> {
        match self.byte()? {
            b'.' => return Ok(false),
            // PROTO and FRAME need no action.
            0x80 => self.skip(1)?,
            0x95 => self.skip(8)?,
            b'(' => self.stack.push(Value::Mark),
            b'0' => drop(self.pop()?),
            b'N' => self.stack.push(Value::None),
            code @ (0x88 | 0x89) => self.stack.push(Value::Bool(code == 0x88)),
            b'K' => {
                let value = self.byte()?;
                self.stack.push(Value::Int(value.into()));
            }
            b'M' => {
                let bytes = self.array()?;
                self.stack
                    .push(Value::Int(u16::from_le_bytes(bytes).into()));
            }
            b'J' => {
                let bytes = self.array()?;
                self.stack
                    .push(Value::Int(i32::from_le_bytes(bytes).into()));
            }
            0x8a => self.long()?,
            b'X' => {
                let length = u32::from_le_bytes(self.array()?);
                self.text(length as usize)?;
            }
            0x8c => {
                let length = self.byte()?;
                self.text(length.into())?;
            }
            b'q' => {
                let place = self.byte()?;
                self.remember(place.into())?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.array()?);
                self.remember(place)?;
            }
            0x94 => self.remember(self.memo.len() as u32)?,
            b'h' => {
                let place = self.byte()?;
                self.recall(place.into())?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.array()?);
                self.recall(place)?;
            }
            b'}' | b']' => self.new_container(Vec::new()),
            b')' => self.tuple(Vec::new())?,
            // TUPLE1 to TUPLE3
            count @ 0x85..=0x87 => {
                let start = self
                    .stack
                    .len()
                    .checked_sub((count - 0x84).into())
                    .ok_or_else(underflow)?;
                let values = self.stack.split_off(start);
                self.tuple(values)?;
            }
            b't' => {
                let values = self.pop_to_mark()?;
                self.tuple(values)?;
            }
            b's' => {
                let start = self.stack.len().checked_sub(2).ok_or_else(underflow)?;
                let values = self.stack.split_off(start);
                self.extend(values)?;
            }
            b'a' => {
                let value = self.pop()?;
                self.extend(vec![value])?;
            }
            b'u' | b'e' => {
                let values = self.pop_to_mark()?;
                self.extend(values)?;
            }
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.stack.push(Value::Global(Global::named(module, name)?));
            }
            0x93 => {
                let (name, module) = (self.pop()?, self.pop()?);
                let (Value::Text(module), Value::Text(name)) = (module, name) else {
                    return Err(underflow());
                };
                self.stack
                    .push(Value::Global(Global::named(&module, &name)?));
            }
            b'Q' => {
                let id = self.pop()?;
                let storage = storage(&id)?;
                self.stack.push(Value::Storage(Rc::new(storage)));
            }
            b'R' => self.call()?,
            // A dictionary's attributes, `_metadata`.
            b'b' => drop(self.pop()?),
            other => {
                return Err(Error::model(format!(
                    "expected only tensors in the pickle, but found the instruction {other:#04x}, which Kivu does not run"
                )));
            }
        }
        Ok(true)
    }

    fn byte(&mut self) -> Result<u8> {
        Ok(self.take(1)?[0])
    }

    fn array<const COUNT: usize>(&mut self) -> Result<[u8; COUNT]> {
        let (bytes, rest) = self.rest.split_first_chunk().ok_or_else(truncated)?;
        self.rest = rest;
        Ok(*bytes)
    }

    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(count).ok_or_else(truncated)?;
        self.rest = rest;
        Ok(bytes)
    }

    fn skip(&mut self, count: usize) -> Result<()> {
        self.take(count).map(|_| ())
    }

    fn line(&mut self) -> Result<&'a str> {
        let end = self
            .rest
            .iter()
            .position(|byte| *byte == b'\n')
            .ok_or_else(truncated)?;
        let line = self.take(end + 1)?;
        utf8(&line[..end])
    }

    fn text(&mut self, length: usize) -> Result<()> {
        let text = utf8(self.take(length)?)?;
        self.stack.push(Value::Text(text.into()));
        Ok(())
    }

    /// LONG1: an arbitrary-length integer; up to 8 bytes are supported.
    fn long(&mut self) -> Result<()> {
        let length = self.byte()?.into();
        let bytes = self.take(length)?;
        let sign = bytes.last().is_some_and(|byte| byte & 0x80 != 0);
        let mut value = if sign { [0xff; 8] } else { [0; 8] };
        let target = value
            .get_mut(..length)
            .ok_or_else(|| Error::model("expected integers with at most 64 bits"))?;
        target.copy_from_slice(bytes);
        self.stack.push(Value::Int(i64::from_le_bytes(value)));
        Ok(())
    }

    fn pop(&mut self) -> Result<Value> {
        self.stack.pop().ok_or_else(underflow)
    }

    fn pop_to_mark(&mut self) -> Result<Vec<Value>> {
        let mark = self
            .stack
            .iter()
            .rposition(|value| matches!(value, Value::Mark))
            .ok_or_else(underflow)?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Ok(values)
    }

    fn remember(&mut self, place: u32) -> Result<()> {
        let value = self.stack.last().ok_or_else(underflow)?.clone();
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Result<()> {
        let value = self.memo.get(&place).ok_or_else(underflow)?.clone();
        self.stack.push(value);
        Ok(())
    }

    fn new_container(&mut self, values: Vec<Value>) {
        self.stack.push(Value::Container(self.containers.len()));
        self.containers.push(values);
    }

    fn tuple(&mut self, values: Vec<Value>) -> Result<()> {
        let depths = values.iter().map(|value| {
            if let Value::Tuple(_, depth) = value {
                *depth
            } else {
                0
            }
        });
        let depth = depths.max().unwrap_or(0) + 1;
        if depth > MAX_DEPTH {
            return Err(Error::model(format!(
                "expected at most {MAX_DEPTH} nested tuples, but found more"
            )));
        }
        self.contained += values.len();
        self.stack.push(Value::Tuple(values.into(), depth));
        Ok(())
    }

    /// Appends values to the container on the stack.
    fn extend(&mut self, values: Vec<Value>) -> Result<()> {
        let Some(Value::Container(index)) = self.stack.last() else {
            return Err(underflow());
        };
        self.contained += values.len();
        self.containers[*index].extend(values);
        Ok(())
    }

    /// REDUCE: a call to a [`Global`] function.
    fn call(&mut self) -> Result<()> {
        let (arguments, function) = (self.pop()?, self.pop()?);
        let (Value::Tuple(arguments, _), Value::Global(function)) = (arguments, function) else {
            return Err(underflow());
        };
        match (function, &arguments[..]) {
            (Global::OrderedDict, []) => self.new_container(Vec::new()),
            (
                Global::RebuildTensor,
                [
                    Value::Storage(storage),
                    Value::Int(offset),
                    Value::Tuple(shape, _),
                    Value::Tuple(strides, _),
                    others @ ..,
                ],
            ) => {
                // Required gradients, hooks, and tensor properties such as `neg`, which changes signs.
                let is_empty = |value: &Value| match value {
                    Value::None => true,
                    Value::Container(index) => self.containers[*index].is_empty(),
                    _ => false,
                };
                if !others.get(2).is_none_or(is_empty) {
                    return Err(Error::model(
                        "a tensor has additional properties, which are not supported",
                    ));
                }
                let tensor = Tensor {
                    storage: Storage::clone(storage),
                    offset: size(&Value::Int(*offset))?,
                    shape: shape.iter().map(size).collect::<Result<_>>()?,
                    strides: strides.iter().map(size).collect::<Result<_>>()?,
                };
                tensor.len()?;
                self.contained += shape.len() + strides.len();
                self.stack.push(Value::Tensor(Rc::new(tensor)));
            }
            (Global::RebuildParameter, [Value::Tensor(tensor), ..]) => {
                self.stack.push(Value::Tensor(Rc::clone(tensor)));
            }
            _ => {
                return Err(Error::model(format!(
                    "the pickle is damaged: {function:?} has other arguments than PyTorch writes"
                )));
            }
        }
        Ok(())
    }
}

/// Parses a persistent id into a storage: `('storage', type, key, location, length)`.
fn storage(id: &Value) -> Result<Storage> {
    let Value::Tuple(id, _) = id else {
        return Err(underflow());
    };
    let [
        Value::Text(_),
        Value::Global(Global::Storage(kind)),
        Value::Text(key),
        _,
        length,
        view @ ..,
    ] = &id[..]
    else {
        return Err(underflow());
    };
    if !view.iter().all(|part| matches!(part, Value::None)) {
        return Err(Error::model(format!(
            "expected a whole storage `{key}`, but found a part of another"
        )));
    }
    if !key.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Error::model(format!(
            "expected a storage number, but found `{key}`"
        )));
    }
    Ok(Storage {
        kind: *kind,
        key: Rc::clone(key),
        len: size(length)?,
    })
}

fn size(value: &Value) -> Result<usize> {
    match value {
        Value::Int(value) => usize::try_from(*value)
            .map_err(|_| Error::model(format!("expected a size, but found {value}"))),
        _ => Err(underflow()),
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes)
        .map_err(|error| Error::model_because("expected UTF-8 in the pickle", error))
}

pub fn truncated() -> Error {
    Error::model("expected the end of the pickle, but found the end of the file")
}

pub fn underflow() -> Error {
    Error::model("the pickle is damaged: an instruction lacks its operands")
}
