//! Modules in a sentence-transformers model, from `modules.json`, with a `Router`'s query and document modules.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Component, Path},
};

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{config::ConfigFile, model_folder::ModelFolder};
use kivu::{Error, Result, error::quoted};

pub const MODULES: &str = "modules.json";
/// Classes with separate modules for queries and documents, and their settings.
const ROUTERS: [&str; 2] = ["Router", "Asym"];
pub const ROUTER: &str = "router_config.json";
/// Class for static query token weights.
const STATIC_QUERIES: &str = "SparseStaticEmbedding";

/// Packages for sentence-transformers' own classes, by version. From version 5.4 on, each class has its own file.
const PACKAGES: [&str; 7] = [
    "sentence_transformers.models",
    "sentence_transformers.base.modules",
    "sentence_transformers.cross_encoder.modules",
    "sentence_transformers.multi_vector_encoder.modules",
    "sentence_transformers.sentence_transformer.modules",
    "sentence_transformers.sparse_encoder.models",
    "sentence_transformers.sparse_encoder.modules",
];
/// The class in a model's own code that passes a request's task on, and the keys of its tasks: in jina-embeddings-v3, and in
/// jina-embeddings-v5, where the class pools, too.
const TASK_TRANSFORMER: &str = "custom_st.Transformer";
const TASKS: [&str; 2] = ["lora_adaptations", POOLED_TASKS];
const POOLED_TASKS: &str = "task_names";
/// Other classes built like sentence-transformers' own.
const PYLATE_DENSE: &str = "pylate.models.Dense.Dense";

/// One module.
#[derive(Clone, PartialEq, Deserialize)]
pub struct Module {
    path: String,
    r#type: String,
}

impl Module {
    /// The class name for sentence-transformers and PyLate, and the full path for any other class.
    pub fn class(&self) -> &str {
        let path = self.r#type.as_str();
        let Some((place, class)) = path.rsplit_once('.') else {
            return path;
        };
        let file = place
            .rsplit_once('.')
            .filter(|(_, file)| file.replace('_', "").eq_ignore_ascii_case(class));
        let is_known = PACKAGES.contains(&place)
            || file.is_some_and(|(package, _)| PACKAGES.contains(&package))
            || path == PYLATE_DENSE;
        if is_known { class } else { path }
    }

    /// The full path of the class.
    pub fn path_of_class(&self) -> &str {
        &self.r#type
    }

    /// Whether it is a PyLate layer, which transforms token vectors.
    pub fn is_pylates(&self) -> bool {
        self.r#type == PYLATE_DENSE
    }

    pub fn is_router(&self) -> bool {
        ROUTERS.contains(&self.class())
    }

    /// Whether it is a transformer in the code of jina-embeddings-v5.
    pub fn is_task_pooling(&self, folder: &ModelFolder) -> Result<bool> {
        let config = ConfigFile::open_or_empty(&self.folder(folder)?, ConfigFile::NAME)?;
        Ok(self.class() == "Transformer" && config.fields().contains_key(POOLED_TASKS))
    }

    /// The module's folder, which must be inside the model's.
    pub fn folder(&self, folder: &ModelFolder) -> Result<ModelFolder> {
        let path = &self.path;
        let mut parts = Path::new(path).components();
        let is_inner = |part: Component<'_>| match part {
            // Changes in hidden folders are not noticed.
            Component::Normal(name) => !name.as_encoded_bytes().starts_with(b"."),
            part => part == Component::CurDir,
        };
        if !parts.all(is_inner) {
            return Err(Error::model(format!(
                "expected modules in the model's folder, and not in hidden ones, but found `{path}`"
            )));
        }
        let is_here = path.is_empty() || path == ".";
        Ok(if is_here {
            folder.clone()
        } else {
            folder.inner(path)
        })
    }

    pub fn is_splade(&self) -> bool {
        self.class() == "SpladePooling"
    }
}

/// Whether the folder has settings for pooling.
pub fn has_pooling(folder: &ModelFolder) -> bool {
    folder.join(MODULES).is_file()
}

/// The module list; empty if the folder has none. In a `Router`, the document modules.
pub fn modules(folder: &ModelFolder) -> Result<Vec<Module>> {
    let mut list = listed(folder)?;
    if let Some(router) = Router::of(&list, folder)? {
        list.splice(..1, router.documents);
    }
    Ok(list)
}

/// Separate module lists for queries and documents. Paths are relative to the model's folder.
struct Router {
    documents: Vec<Module>,
    queries: Vec<Module>,
    /// Folder with query weights, if they are static; otherwise the model reads queries like documents.
    static_queries: Option<ModelFolder>,
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
    /// Route names by (task, modality) tuples, in Python's notation.
    route_mappings: Option<BTreeMap<String, String>>,
}

impl Router {
    /// The router at the start of a module list, if any. Routes with two encoders are refused.
    fn of(list: &[Module], folder: &ModelFolder) -> Result<Option<Self>> {
        let Some(first) = list.first().filter(|first| first.is_router()) else {
            return Ok(None);
        };
        let files = first.folder(folder)?;
        let file = match ConfigFile::open_if_exists(&files, ROUTER)? {
            Some(file) => file,
            // Old versions.
            None => ConfigFile::open(&files)?,
        };
        let file: RouterFile = file.whole()?;
        let route = |task| {
            let modules = file.structure.get(file.route(task)?).into_iter().flatten();
            let module = |name: &String| {
                let found = file.types.get(name).map(|r#type| {
                    let path = Path::new(&first.path).join(name).display().to_string();
                    Module {
                        path,
                        r#type: r#type.clone(),
                    }
                });
                found.ok_or_else(|| {
                    Error::model(format!(
                        "expected the type of `{name}` in `{ROUTER}`, but found none"
                    ))
                })
            };
            modules.map(module).collect::<Result<Vec<_>>>()
        };
        let (queries, documents) = (route("query")?, route("document")?);
        let static_queries = match &queries[..] {
            queries if *queries == documents => None,
            [weights]
                if weights.class() == STATIC_QUERIES && documents.iter().any(Module::is_splade) =>
            {
                Some(weights.folder(folder)?)
            }
            _ => {
                let [queries, documents] = [queries, documents].map(|modules| {
                    quoted(
                        &modules
                            .iter()
                            .map(|module| module.class())
                            .collect::<Vec<_>>(),
                    )
                });
                return Err(Error::model(format!(
                    "expected a `Router` with one encoder, for documents with sparse vectors and \
                     queries with token weights (`{STATIC_QUERIES}`), or for both alike, but found \
                     {queries} for queries and {documents} for documents"
                ))
                .with_hint("build the models of both on their own"));
            }
        };
        Ok(Some(Self {
            documents,
            queries,
            static_queries,
        }))
    }
}

impl RouterFile {
    /// Name of a task's text route, looked up in sentence-transformers' order.
    fn route(&self, task: &str) -> Result<&str> {
        let mappings = self.parameters.route_mappings.iter().flatten();
        let keys = [
            format!("('{task}', 'text')"),
            format!("('{task}', None)"),
            "(None, 'text')".into(),
            "(None, None)".into(),
        ];
        let mapped = || {
            keys.iter().find_map(|key| {
                mappings
                    .clone()
                    .find(|(found, _)| *found == key)
                    .map(|(_, name)| name)
            })
        };
        let named = || {
            [task, "text"]
                .into_iter()
                .find_map(|name| self.structure.get_key_value(name))
        };
        let found = mapped()
            .or_else(|| named().map(|(name, _)| name))
            .or(self.parameters.default_route.as_ref());
        let found = found.filter(|name| self.structure.contains_key(*name));
        found.map(String::as_str).ok_or_else(|| {
            let routes: Vec<_> = self.structure.keys().collect();
            Error::model(format!(
                "expected a route `{task}` in `{ROUTER}`, but found {}",
                quoted(&routes)
            ))
        })
    }
}

/// Folder with query weights, if the model does not read queries.
pub fn static_queries(folder: &ModelFolder) -> Result<Option<ModelFolder>> {
    let list = listed(folder)?;
    Ok(Router::of(&list, folder)?.and_then(|router| router.static_queries))
}

/// The listed modules, each with its description in the file.
pub fn described(folder: &ModelFolder) -> Result<Vec<(Map<String, Value>, Module)>> {
    let list = folder.list(MODULES)?.unwrap_or_default();
    Ok(list.iter().cloned().zip(listed(folder)?).collect())
}

/// A `Router`'s modules, if there is one.
pub fn routed(folder: &ModelFolder) -> Result<Vec<Module>> {
    let router = Router::of(&listed(folder)?, folder)?;
    Ok(router
        .map(|router| [router.documents, router.queries].concat())
        .unwrap_or_default())
}

fn listed(folder: &ModelFolder) -> Result<Vec<Module>> {
    let list = folder.list(MODULES)?.unwrap_or_default();
    // sentence-transformers keeps the last module with a name, in place of the first.
    let mut names = BTreeSet::new();
    let name = |fields: &Map<String, Value>| fields.get("name").map(Value::to_string);
    if let Some(twice) = list
        .iter()
        .filter_map(name)
        .find(|name| !names.insert(name.clone()))
    {
        return Err(Error::model(format!(
            "expected another `name` for each module in `{MODULES}`, but found `{twice}` twice"
        )));
    }
    let module = |fields: &Map<String, Value>| {
        Module::deserialize(fields).map_err(|error| {
            let path = folder.join(MODULES);
            Error::model_because(format!("cannot read `{}`", path.display()), error)
        })
    };
    let mut list: Vec<Module> = list.iter().map(module).collect::<Result<_>>()?;
    if let Some(first) = list
        .first_mut()
        .filter(|first| first.r#type == TASK_TRANSFORMER)
    {
        let config = ConfigFile::open_or_empty(&first.folder(folder)?, ConfigFile::NAME)?;
        if TASKS
            .iter()
            .any(|key| config.value(key).is_some_and(Value::is_array))
        {
            first.r#type = format!("{}.Transformer", PACKAGES[0]);
        }
    }
    Ok(list)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn modules_with_one_name_are_refused() {
        let found = |names: [Value; 3]| {
            let folder = tempfile::tempdir().unwrap();
            let entry = |name: &Value| json!({ "name": name, "path": "", "type": "a.B" });
            let list: Vec<Value> = names.iter().map(entry).collect();
            std::fs::write(folder.path().join(MODULES), json!(list).to_string()).unwrap();
            modules(&ModelFolder::new(folder.path())).map(|list| list.len())
        };
        assert_eq!(found([json!("0"), json!("1"), json!(1)]).unwrap(), 3);
        let refusal = found([json!("0"), json!("1"), json!("1")]).unwrap_err();
        insta::assert_snapshot!(refusal, @r#"expected another `name` for each module in `modules.json`, but found `"1"` twice"#);
    }

    #[test]
    fn classes_are_known_by_their_whole_paths() {
        let class = |path: &str| {
            Module {
                path: String::new(),
                r#type: path.to_owned(),
            }
            .class()
            .to_owned()
        };
        for path in [
            "sentence_transformers.models.Pooling",
            "sentence_transformers.models.Pooling.Pooling",
            "sentence_transformers.sentence_transformer.modules.pooling.Pooling",
        ] {
            assert_eq!(class(path), "Pooling");
        }
        assert_eq!(class("sentence_transformers.models.LayerNorm"), "LayerNorm");
        let path = "sentence_transformers.sentence_transformer.modules.layer_norm.LayerNorm";
        assert_eq!(class(path), "LayerNorm");
        assert_eq!(class("pylate.models.Dense.Dense"), "Dense");
        for other in [
            "Pooling",
            "my_pool.Pooling",
            "custom_st.Transformer",
            "sentence_transformers.Pooling",
            "sentence_transformers.models.other.Pooling",
            "pylate.models.Pooling",
        ] {
            assert_eq!(class(other), other);
        }
    }
}
