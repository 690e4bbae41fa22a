//! Models that are not built, from `not-built.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

use crate::files::config::ConfigFile;

/// Models, by any of these marks, and why they are not built, or what to use instead.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NotBuilt {
    #[serde(default)]
    model_types: Vec<String>,
    #[serde(default)]
    class_endings: Vec<String>,
    /// Parts of class names.
    #[serde(default)]
    class_parts: Vec<String>,
    /// Keys in `config.json`.
    #[serde(default)]
    keys: Vec<String>,
    reason: String,
}

/// In the order in which they are compared.
#[derive(Default, Deserialize)]
struct File {
    models: Vec<NotBuilt>,
}

static FILE: LazyLock<File> =
    LazyLock::new(|| toml::from_str(include_str!("not-built.toml")).unwrap_or_default());

impl NotBuilt {
    fn describes(&self, config: &ConfigFile) -> bool {
        let class = config.architecture();
        self.model_types
            .iter()
            .any(|own| own == config.model_type())
            || self.class_endings.iter().any(|end| class.ends_with(end))
            || self.class_parts.iter().any(|part| class.contains(part))
            || self
                .keys
                .iter()
                .any(|key| config.fields().contains_key(key))
    }
}

/// Why a known model is not built, or what to do with another unsupported model.
pub fn alternative(config: &ConfigFile) -> &'static str {
    let mut models = FILE.models.iter();
    let found = models.find(|models| models.describes(config));
    found.map_or(
        "export other encoders with `optimum-cli export onnx`",
        |models| &models.reason,
    )
}
