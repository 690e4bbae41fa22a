//! Published models that people use most, and the recipes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use kivu::{Error, Result};

/// A model that `kivu serve NAME` downloads and builds.
#[derive(Debug, Serialize)]
pub struct Known {
    pub name: String,
    pub kind: String,
    pub languages: String,
    /// The bundle's size in int8, in MB.
    pub megabytes: u32,
    /// A server's memory after requests, in MB, if it was measured.
    pub memory_megabytes: Option<u32>,
}

#[derive(Deserialize)]
struct Catalogue {
    shapes: BTreeMap<String, Figures>,
    #[serde(flatten)]
    kinds: BTreeMap<String, BTreeMap<String, Entry>>,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct Figures {
    megabytes: u32,
    memory: u32,
}

/// A model has a shape whose figures are known, or is a recipe with its own size.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    languages: String,
    shape: Option<String>,
    megabytes: Option<u32>,
}

/// All models by kind, the smallest first.
///
/// # Errors
/// A shape is not in the catalogue.
pub fn catalogue() -> Result<Vec<Known>> {
    let Catalogue { shapes, kinds } = toml::from_str(include_str!("catalogue.toml"))
        .map_err(|error| Error::model_because("cannot read the catalogue", error))?;
    let mut all = Vec::new();
    for (kind, models) in kinds {
        for (name, entry) in models {
            let figures = entry.shape.and_then(|shape| shapes.get(&shape)).copied();
            let megabytes = figures.map(|figures| figures.megabytes).or(entry.megabytes);
            all.push(Known {
                megabytes: megabytes.ok_or_else(|| {
                    Error::model(format!("expected the size of `{name}`, but found none"))
                })?,
                memory_megabytes: figures.map(|figures| figures.memory),
                kind: kind.clone(),
                languages: entry.languages,
                name,
            });
        }
    }
    all.sort_by(|left, right| {
        (&left.kind, left.megabytes, &left.name).cmp(&(&right.kind, right.megabytes, &right.name))
    });
    Ok(all)
}

/// Lines of a table.
pub fn lines<'a>(models: impl Iterator<Item = &'a Known> + Clone) -> Vec<String> {
    let width = models
        .clone()
        .map(|model| model.name.len())
        .max()
        .unwrap_or_default();
    let line = |model: &Known| {
        let Known {
            name,
            kind,
            languages,
            megabytes,
            memory_megabytes,
        } = model;
        let memory =
            memory_megabytes.map_or("–".to_owned(), |megabytes| format!("{megabytes} MB"));
        format!("{name:width$}  {kind:14}  {languages:9}  {megabytes:6} MB  {memory:>7}")
    };
    let head = format!(
        "{:width$}  {:14}  {:9}  {:>9}  {:>7}",
        "NAME", "KIND", "LANGUAGES", "SIZE", "MEMORY"
    );
    [head].into_iter().chain(models.map(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use kivu_compiler::RECIPES;

    #[test]
    fn the_catalogue_has_published_models_and_all_recipes() {
        let all = catalogue().unwrap();
        let (published, recipes): (Vec<_>, Vec<_>) =
            all.iter().partition(|model| model.name.contains('/'));
        assert!(
            published.len() >= 45
                && published
                    .iter()
                    .all(|model| model.memory_megabytes.is_some())
        );
        let mut names: Vec<_> = recipes.iter().map(|model| model.name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            RECIPES.iter().map(|recipe| recipe.name).collect::<Vec<_>>()
        );
        let few = all
            .iter()
            .filter(|model| model.name.contains("gliner_s") || model.name == "sentiment");
        insta::assert_snapshot!(lines(few).join("\n"), @"
        NAME                       KIND            LANGUAGES       SIZE   MEMORY
        sentiment                  classification  en             27 MB        –
        urchade/gliner_small-v2.1  entities        en            208 MB   153 MB
        ");
    }
}
