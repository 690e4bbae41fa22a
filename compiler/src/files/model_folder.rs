//! A model's folder, whose settings are parsed once in a build.

use std::{
    cell::RefCell,
    collections::BTreeMap,
    ops::Deref,
    path::{Path, PathBuf},
    rc::Rc,
};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::io::read_json_if_exists;
use kivu::Result;

/// A folder with a model's files, or with some of them.
///
/// A settings file is parsed when it is first asked for. The folder keeps the result, as do its clones and the
/// folders inside of it.
#[derive(Clone, Debug, Default)]
pub struct ModelFolder {
    path: PathBuf,
    objects: Parsed<Object>,
    lists: Parsed<Vec<Object>>,
}

type Object = Map<String, Value>;
/// Parsed files by path.
type Parsed<T> = Rc<RefCell<BTreeMap<PathBuf, Rc<T>>>>;

impl ModelFolder {
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            ..Self::default()
        }
    }

    /// A folder inside of this one.
    pub fn inner(&self, path: impl AsRef<Path>) -> Self {
        Self {
            path: self.path.join(path),
            ..self.clone()
        }
    }

    /// The JSON object in the file called `name`; `None` if it does not exist.
    pub fn object(&self, name: &str) -> Result<Option<Rc<Object>>> {
        parsed(&self.objects, self.path.join(name))
    }

    /// The JSON objects listed in the file called `name`; `None` if it does not exist.
    pub fn list(&self, name: &str) -> Result<Option<Rc<Vec<Object>>>> {
        parsed(&self.lists, self.path.join(name))
    }
}

/// Missing files are looked for again, since a download may add them.
fn parsed<T: DeserializeOwned>(known: &Parsed<T>, path: PathBuf) -> Result<Option<Rc<T>>> {
    if let Some(known) = known.borrow().get(&path) {
        return Ok(Some(Rc::clone(known)));
    }
    let Some(read) = read_json_if_exists(&path)?.map(Rc::new) else {
        return Ok(None);
    };
    known.borrow_mut().insert(path, Rc::clone(&read));
    Ok(Some(read))
}

impl Deref for ModelFolder {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.path
    }
}

impl AsRef<Path> for ModelFolder {
    fn as_ref(&self) -> &Path {
        &self.path
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_file_is_parsed_once() {
        let path = tempfile::tempdir().unwrap();
        let folder = ModelFolder::new(path.path());
        assert!(folder.object("inner/config.json").unwrap().is_none());
        fs::create_dir(path.path().join("inner")).unwrap();
        fs::write(path.path().join("inner/config.json"), r#"{"a": 1}"#).unwrap();
        let first = folder.object("inner/config.json").unwrap().unwrap();
        fs::write(path.path().join("inner/config.json"), "{").unwrap();
        let again = folder
            .inner("inner")
            .object("config.json")
            .unwrap()
            .unwrap();
        assert!(Rc::ptr_eq(&first, &again));
        let other = ModelFolder::new(path.path());
        assert!(other.object("inner/config.json").is_err());
    }
}
