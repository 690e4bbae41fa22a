//! Embedded recipes.

use std::path::{Path, PathBuf};

use crate::files::io as files;
use kivu::Result;

/// A recipe from `models/`.
#[derive(Debug, PartialEq, Eq)]
pub struct EmbeddedRecipe {
    /// Model name.
    pub name: &'static str,
    /// The recipe and the files it refers to, by relative paths.
    pub files: &'static [(&'static str, &'static [u8])],
}

macro_rules! recipe {
    ($name:literal $(, $file:literal)*) => {
        EmbeddedRecipe {
            name: $name,
            files: &[
                (concat!($name, ".toml"), include_bytes!(concat!("../../models/", $name, ".toml"))),
                $(($file, include_bytes!(concat!("../../models/", $file)))),*
            ],
        }
    };
}

/// All recipes in `models/`, sorted by name.
pub static RECIPES: [EmbeddedRecipe; 7] = [
    recipe!("minilm"),
    recipe!("rank"),
    recipe!(
        "sentiment",
        "sentiment/adapter_config.json",
        "sentiment/adapter_model.safetensors",
        "sentiment/config.json"
    ),
    recipe!("text-language"),
    recipe!("translate-en-pt"),
    recipe!("translate-pt-en"),
    recipe!("zero-shot"),
];

impl EmbeddedRecipe {
    /// Writes the files into `folder`; returns the recipe's path.
    pub fn write(&self, folder: &Path) -> Result<PathBuf> {
        for (name, bytes) in self.files {
            let path = folder.join(name);
            files::create_folder(path.parent().unwrap_or(folder))?;
            files::write(&path, bytes)?;
        }
        Ok(folder.join(self.files[0].0))
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::plan::recipe::Recipe;

    #[test]
    fn all_recipes_of_the_checkout_are_in_the_program() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("models");
        let paths = fs::read_dir(folder)
            .unwrap()
            .map(|entry| entry.unwrap().path());
        let recipes = paths.filter(|path| {
            path.extension()
                .is_some_and(|extension| extension == "toml")
        });
        assert_eq!(recipes.count(), RECIPES.len());
        for recipe in &RECIPES {
            let folder = tempfile::tempdir().unwrap();
            let written = Recipe::open(&recipe.write(folder.path()).unwrap()).unwrap();
            assert_eq!(written.name, recipe.name);
            if let Some(adapter) = written.source.adapter {
                assert!(
                    folder
                        .path()
                        .join(adapter)
                        .join("adapter_config.json")
                        .exists()
                );
            }
        }
    }
}
