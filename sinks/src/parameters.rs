//! Parameters in a sink's URL.

use std::collections::BTreeMap;

use percent_encoding::percent_decode_str;

use kivu::{Error, Result};

/// Default name for the column or field with the vectors.
pub const VECTOR: &str = "embedding";

/// Parameters in a query. Plus signs stay, as in libpq.
pub struct Parameters(BTreeMap<String, String>);

impl Parameters {
    /// Refuses a name that occurs twice.
    pub fn of(query: &str) -> Result<Self> {
        let mut found = BTreeMap::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            if found.insert(decoded(name), decoded(value)).is_some() {
                return Err(Error::config(format!(
                    "expected each parameter in the sink's URL once, but found `{}` twice",
                    decoded(name)
                )));
            }
        }
        Ok(Self(found))
    }

    pub fn take(&mut self, name: &str) -> Option<String> {
        self.0.remove(name)
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub fn set(&mut self, name: &str, value: &str) {
        self.0.insert(name.to_owned(), value.to_owned());
    }

    /// Refuses parameters that are left.
    pub fn end(&self, known: &str) -> Result<()> {
        match self.0.keys().next() {
            Some(name) => Err(Error::config(format!(
                "expected only the parameters {known} in the sink's URL, but found `{name}`"
            ))),
            None => Ok(()),
        }
    }

    pub fn query(&self) -> String {
        let pairs: Vec<String> = self
            .0
            .iter()
            .map(|(name, value)| pair(name, value))
            .collect();
        if pairs.is_empty() {
            String::new()
        } else {
            format!("?{}", pairs.join("&"))
        }
    }
}

pub fn pair(name: &str, value: &str) -> String {
    format!(
        "{name}={}",
        percent_encoding::utf8_percent_encode(value, percent_encoding::NON_ALPHANUMERIC)
    )
}

pub fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}
