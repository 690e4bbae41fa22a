//! Fields in a model's `config.json` and similar files.

use std::{cell::RefCell, collections::BTreeSet, rc::Rc};

use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use super::model_folder::ModelFolder;
use kivu::{Error, Result};

/// Maximum size, far above published models. Some tables are sized by values that no weight confirms.
const MAX_SIZE: usize = 1 << 21;

/// A JSON object with model settings. A field that is `null` counts as missing.
///
/// It records which fields were asked for, so that those which no reader knows can be refused.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    name: &'static str,
    fields: Rc<Map<String, Value>>,
    asked: RefCell<BTreeSet<String>>,
}

/// A value or a list.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(value) => vec![value],
            Self::Many(values) => values,
        }
    }
}

impl ConfigFile {
    /// The main file.
    pub const NAME: &str = "config.json";

    pub fn new(name: &'static str, fields: Map<String, Value>) -> Self {
        Self::of_shared(name, Rc::new(fields))
    }

    fn of_shared(name: &'static str, fields: Rc<Map<String, Value>>) -> Self {
        Self {
            name,
            fields,
            asked: RefCell::default(),
        }
    }

    /// Reads the `config.json` in `folder`.
    pub fn open(folder: &ModelFolder) -> Result<Self> {
        Self::open_if_exists(folder, Self::NAME)?.ok_or_else(|| {
            Error::model(format!(
                "expected a model in `{}`, but found no `config.json`",
                folder.display()
            ))
        })
    }

    /// Reads the file called `name` in `folder`; `None` if it does not exist.
    pub fn open_if_exists(folder: &ModelFolder, name: &'static str) -> Result<Option<Self>> {
        let fields = folder.object(name)?;
        Ok(fields.map(|fields| Self::of_shared(name, fields)))
    }

    /// Reads the file called `name` in `folder`; an empty object if it does not exist.
    pub fn open_or_empty(folder: &ModelFolder, name: &'static str) -> Result<Self> {
        Ok(Self::open_if_exists(folder, name)?.unwrap_or_else(|| Self::new(name, Map::new())))
    }

    /// All fields; looking at them is not recorded.
    pub fn fields(&self) -> &Map<String, Value> {
        &self.fields
    }

    /// [`fields`](Self::fields), without a copy.
    pub fn shared_fields(&self) -> Rc<Map<String, Value>> {
        Rc::clone(&self.fields)
    }

    /// A field's value, which may be `null`.
    pub fn value(&self, field: &str) -> Option<&Value> {
        self.asked.borrow_mut().insert(field.to_owned());
        self.fields.get(field)
    }

    /// Whether a field is there and `null`.
    pub fn is_null(&self, field: &str) -> bool {
        self.value(field).is_some_and(Value::is_null)
    }

    /// The same fields, before any of them was asked for.
    pub fn unread(&self) -> Self {
        Self::of_shared(self.name, Rc::clone(&self.fields))
    }

    /// The fields that were asked for until now, whether they are in the file or not.
    pub fn asked(&self) -> BTreeSet<String> {
        self.asked.borrow().clone()
    }

    pub fn get<T: DeserializeOwned>(&self, field: &str) -> Result<Option<T>> {
        self.get_any(&[field])
    }

    /// Gets a field that model families name differently.
    pub fn get_any<T: DeserializeOwned>(&self, fields: &[&str]) -> Result<Option<T>> {
        Ok(self.find(fields)?.map(|(_, value)| value))
    }

    /// Finds the first field that exists. The others are other names of it, so they count as read, too.
    fn find<'a, T: DeserializeOwned>(
        &self,
        fields: &'a [impl AsRef<str>],
    ) -> Result<Option<(&'a str, T)>> {
        let found: Vec<_> = fields
            .iter()
            .map(AsRef::as_ref)
            .filter_map(|field| Some((field, self.value(field)?)))
            .collect();
        let Some((field, value)) = found.into_iter().find(|(_, value)| !value.is_null()) else {
            return Ok(None);
        };
        let unreadable = |error| {
            Error::model_because(format!("cannot read `{field}` in `{}`", self.name), error)
        };
        T::deserialize(value)
            .map(|value| Some((field, value)))
            .map_err(unreadable)
    }

    /// The whole file, with fields that are not recorded.
    pub fn whole<T: DeserializeOwned>(&self) -> Result<T> {
        T::deserialize(&*self.fields)
            .map_err(|error| Error::model_because(format!("cannot read `{}`", self.name), error))
    }

    /// A count: values, layers, heads, tokens or positions. Refused above [`MAX_SIZE`].
    pub fn get_size(&self, field: &str) -> Result<Option<usize>> {
        self.get_any_size(&[field])
    }

    fn get_any_size(&self, fields: &[impl AsRef<str>]) -> Result<Option<usize>> {
        match self.find(fields)? {
            Some((field, size)) if !(1..=MAX_SIZE).contains(&size) => Err(Error::model(format!(
                "expected `{field}` from 1 to {MAX_SIZE}, but found {size}"
            ))),
            found => Ok(found.map(|(_, size)| size)),
        }
    }

    pub fn require_size(&self, field: &str) -> Result<usize> {
        self.require_any_size(&[field])
    }

    pub fn require_any_size(&self, fields: &[impl AsRef<str>]) -> Result<usize> {
        self.get_any_size(fields)?
            .ok_or_else(|| self.missing(fields))
    }

    /// The epsilon of normalizations, or else `default`. Refused below 0, where rows without variance have no root; PyTorch
    /// and the engines compute with 0.
    pub fn epsilon(&self, fields: &[&str], default: f32) -> Result<f32> {
        match self.find(fields)? {
            Some((field, epsilon)) if !(0.0..f32::INFINITY).contains(&epsilon) => {
                Err(Error::model(format!(
                    "expected a finite `{field}` of at least 0, but found {epsilon}"
                )))
            }
            found => Ok(found.map_or(default, |(_, epsilon)| epsilon)),
        }
    }

    /// Whether a field is `true`.
    pub fn is_set(&self, field: &str) -> Result<bool> {
        self.is_set_or(field, false)
    }

    /// Whether a field is `true`. An absent field has the default, but `null` means no, as in Python.
    pub fn is_set_or(&self, field: &str, default: bool) -> Result<bool> {
        Ok(self
            .get(field)?
            .unwrap_or(default && !self.fields.contains_key(field)))
    }

    /// Gets a required field.
    pub fn require<T: DeserializeOwned>(&self, field: &str) -> Result<T> {
        self.require_any(&[field])
    }

    pub fn require_any<T: DeserializeOwned>(&self, fields: &[&str]) -> Result<T> {
        self.get_any(fields)?.ok_or_else(|| self.missing(fields))
    }

    fn missing(&self, fields: &[impl AsRef<str>]) -> Error {
        Error::model(format!(
            "expected `{}` in `{}`, but found none",
            fields[0].as_ref(),
            self.name
        ))
    }

    /// The `model_type`; empty if there is none.
    pub fn model_type(&self) -> &str {
        self.fields
            .get("model_type")
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    /// Class that the weights were trained as, or the model type if no class is named.
    pub fn architecture(&self) -> &str {
        self.fields
            .get("architectures")
            .and_then(|names| names[0].as_str())
            .filter(|name| !name.is_empty())
            .unwrap_or(self.model_type())
    }

    /// Whether `architectures` names another class than the base model's. Without a class, the file says nothing about
    /// a head.
    pub fn names_head(&self) -> bool {
        let class = self.architecture();
        let is_base = class.ends_with("Model") && !class.contains("Head");
        class != self.model_type() && !is_base
    }
}

/// Head width, if the heads split a token's vector evenly.
pub fn head_width(hidden: usize, heads: usize) -> Result<usize> {
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(Error::model(format!(
            "expected `hidden_size` to be a multiple of `num_attention_heads`, but found {hidden} and {heads}"
        )));
    }
    Ok(hidden / heads)
}
