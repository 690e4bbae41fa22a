//! The modules of a sentence-transformers model, by `modules.json`, and by a `Router` those of queries and documents.

use std::{
    collections::BTreeMap,
    path::{Component, Path, PathBuf},
};

use serde::Deserialize;

use super::{
    config::ConfigFile,
    files::{read_json, read_json_if_exists},
};
use kivu::error::{Error, Result, quoted};

const MODULES: &str = "modules.json";
/// Classes that send queries and documents through modules of their own, and their settings.
const ROUTERS: [&str; 2] = ["Router", "Asym"];
const ROUTER: &str = "router_config.json";
/// The class of weights of the tokens of queries.
const STATIC_QUERIES: &str = "SparseStaticEmbedding";

/// A module of a model.
#[derive(Clone, PartialEq, Deserialize)]
pub(super) struct Module {
    path: String,
    r#type: String,
}

impl Module {
    /// The class, without its package.
    pub(super) fn class(&self) -> &str {
        self.r#type.rsplit('.').next().unwrap_or_default()
    }

    pub(super) fn is_in(&self, package: &str) -> bool {
        self.r#type.split('.').next() == Some(package)
    }

    /// The folder of the module, which must be inside of the model's.
    pub(super) fn folder(&self, folder: &Path) -> Result<PathBuf> {
        let path = &self.path;
        let mut parts = Path::new(path).components();
        if !parts.all(|part| matches!(part, Component::Normal(_) | Component::CurDir)) {
            return Err(Error::model(format!(
                "expected modules in the folder of the model, but found `{path}`"
            )));
        }
        let is_here = path.is_empty() || path == ".";
        Ok(if is_here { folder.to_owned() } else { folder.join(path) })
    }

    pub(super) fn is_splade(&self) -> bool {
        self.class() == "SpladePooling"
    }
}

/// Whether the folder has settings for pooling.
pub(super) fn has_pooling(folder: &Path) -> bool {
    folder.join(MODULES).is_file()
}

/// The list of modules; empty if the folder has none. Of a `Router`, the modules of documents.
pub(super) fn modules(folder: &Path) -> Result<Vec<Module>> {
    let mut list = listed(folder)?;
    if let Some(router) = Router::of(&list, folder)? {
        list.splice(..1, router.documents);
    }
    Ok(list)
}

/// A list of modules for queries, and one for documents. Their paths are those in the folder of the model.
struct Router {
    documents: Vec<Module>,
    /// The folder of the weights of queries, if these are static; otherwise the model reads queries like documents.
    static_queries: Option<PathBuf>,
}

#[derive(Deserialize)]
struct RouterFile {
    types: BTreeMap<String, String>,
    structure: BTreeMap<String, Vec<String>>,
    parameters: RouterParameters,
}

#[derive(Deserialize)]
struct RouterParameters {
    default_route: Option<String>,
    /// Names of routes by tuples of task and modality, in Python's notation.
    route_mappings: Option<BTreeMap<String, String>>,
}

impl Router {
    /// The router that a list of modules begins with, if it does. Routes that need two encoders are refused.
    fn of(list: &[Module], folder: &Path) -> Result<Option<Self>> {
        let Some(first) = list.first().filter(|first| ROUTERS.contains(&first.class())) else {
            return Ok(None);
        };
        let files = first.folder(folder)?;
        let file: RouterFile = match read_json_if_exists(&files.join(ROUTER))? {
            Some(file) => file,
            // Old versions.
            None => read_json(&files.join(ConfigFile::NAME))?,
        };
        let route = |task| {
            let modules = file.structure.get(file.route(task)?).into_iter().flatten();
            let module = |name: &String| {
                let found = file.types.get(name).map(|r#type| {
                    let path = Path::new(&first.path).join(name).display().to_string();
                    Module { path, r#type: r#type.clone() }
                });
                found.ok_or_else(|| {
                    Error::model(format!("expected the type of `{name}` in `{ROUTER}`, but found none"))
                })
            };
            modules.map(module).collect::<Result<Vec<_>>>()
        };
        let (queries, documents) = (route("query")?, route("document")?);
        let static_queries = match &queries[..] {
            queries if *queries == documents => None,
            [weights] if weights.class() == STATIC_QUERIES && documents.iter().any(Module::is_splade) => {
                Some(weights.folder(folder)?)
            }
            _ => {
                let [queries, documents] = [queries, documents]
                    .map(|modules| quoted(&modules.iter().map(|module| module.class()).collect::<Vec<_>>()));
                return Err(Error::model(format!(
                    "expected a `Router` with one encoder, for documents with sparse vectors and queries with weights of \
                     tokens (`{STATIC_QUERIES}`), or for both alike, but found {queries} for queries and {documents} for \
                     documents; build the models of both on their own"
                )));
            }
        };
        Ok(Some(Self { documents, static_queries }))
    }
}

impl RouterFile {
    /// The name of the route of texts for a task, which sentence-transformers finds in this order.
    fn route(&self, task: &str) -> Result<&str> {
        let mappings = self.parameters.route_mappings.iter().flatten();
        let keys = [
            format!("('{task}', 'text')"),
            format!("('{task}', None)"),
            "(None, 'text')".into(),
            "(None, None)".into(),
        ];
        let mapped = || {
            keys.iter()
                .find_map(|key| mappings.clone().find(|(found, _)| *found == key).map(|(_, name)| name))
        };
        let named = || [task, "text"].into_iter().find_map(|name| self.structure.get_key_value(name));
        let found =
            mapped().or_else(|| named().map(|(name, _)| name)).or(self.parameters.default_route.as_ref());
        let found = found.filter(|name| self.structure.contains_key(*name));
        found.map(String::as_str).ok_or_else(|| {
            let routes: Vec<_> = self.structure.keys().collect();
            Error::model(format!("expected a route `{task}` in `{ROUTER}`, but found {}", quoted(&routes)))
        })
    }
}

/// The folder of the weights of queries, if the model does not read queries.
pub(super) fn static_queries(folder: &Path) -> Result<Option<PathBuf>> {
    let list = listed(folder)?;
    Ok(Router::of(&list, folder)?.and_then(|router| router.static_queries))
}

fn listed(folder: &Path) -> Result<Vec<Module>> {
    Ok(read_json_if_exists(&folder.join(MODULES))?.unwrap_or_default())
}
