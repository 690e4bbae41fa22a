//! `kivu models`: the models on this machine.

use std::{
    fs,
    path::PathBuf,
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};

use clap::Args;
use serde::Serialize;

use super::catalogue::{self, catalogue};
use crate::{examples::examples, quality, terminal::Format};
use kivu::{
    Result,
    config::Config,
    pipeline::Task,
    repository::{
        Bundle,
        bundle::{Home, MANIFEST},
        manifest::{Precision, Quality},
    },
};
use kivu_compiler::library::model_library::{ModelLibrary, size};

/// List the models on this machine: built by name, or without `--out`
///
/// With --all, the list has published models that people use most, and the recipes: `kivu serve NAME` downloads and
/// builds one. Sizes and memory are those of int8, measured with each model's shape.
#[derive(Debug, Args)]
#[command(after_help = examples("models"))]
pub struct Arguments {
    /// List models that can be built, instead of those on this machine
    #[arg(long)]
    all: bool,
    #[command(flatten)]
    format: Format,
}

/// A model served by `kivu serve NAME`.
#[derive(Debug, Serialize)]
pub struct Row {
    pub name: String,
    task: Task,
    precision: Precision,
    bytes: u64,
    /// Seconds since the build.
    age_s: u64,
    quality: Option<Quality>,
    /// The Kivu version that built it, if it was built by name. Another version builds it again.
    version: Option<String>,
    bundle: PathBuf,
}

impl Row {
    fn new(name: String, bundle: &Bundle, built: SystemTime, version: Option<String>) -> Self {
        let manifest = bundle.manifest();
        let bundle = match bundle.home() {
            Home::Folder(folder) => folder.clone(),
            Home::S3(..) | Home::Memory(_) => bundle.path(""),
        };
        Self {
            name,
            task: manifest.task,
            precision: manifest.weights.precision,
            bytes: size(manifest),
            age_s: built.elapsed().map_or(0, |age| age.as_secs()),
            quality: manifest.weights.quality,
            version,
            bundle,
        }
    }

    fn line(&self, width: usize) -> String {
        let Self {
            name,
            task,
            precision,
            bytes,
            age_s,
            ..
        } = self;
        let (task, precision, size) =
            (task.to_string(), precision.to_string(), *bytes as f64 / 1e6);
        let (age, quality) = (age(*age_s), quality::short(self.quality));
        let current = env!("CARGO_PKG_VERSION");
        let version = self.version.as_ref().filter(|version| *version != current);
        let version = version
            .map(|version| format!("  (built by Kivu {version})"))
            .unwrap_or_default();
        format!(
            "{name:width$}  {task:24}  {precision:11}  {size:8.1} MB  {age:>8}  {quality}{version}"
        )
    }
}

pub fn run(arguments: &Arguments, config: &Config) -> Result<ExitCode> {
    let format = arguments.format;
    match arguments.all {
        true => format.print(&catalogue()?, |known| catalogue::lines(known.iter())),
        false => format.print(&rows(config), |rows| match rows.is_empty() {
            true => vec!["no models yet; `kivu serve minilm` builds one".to_owned()],
            false => lines(rows),
        }),
    }
}

/// The models on this machine.
pub fn rows(config: &Config) -> Vec<Row> {
    let named = ModelLibrary::new(config).list().into_iter();
    let named =
        named.map(|entry| Row::new(entry.name, &entry.bundle, entry.built, Some(entry.version)));
    named.chain(built_without_out(config)).collect()
}

/// Lines of a table.
pub fn lines(rows: &[Row]) -> Vec<String> {
    let width = rows
        .iter()
        .map(|row| row.name.len())
        .max()
        .unwrap_or_default()
        .max(4);
    let (name, task, precision) = ("NAME", "TASK", "PRECISION");
    let head = format!(
        "{name:width$}  {task:24}  {precision:11}  {:>11}  {:>8}  QUALITY",
        "SIZE", "AGE"
    );
    [head]
        .into_iter()
        .chain(rows.iter().map(|row| row.line(width)))
        .collect()
}

/// Bundles built without `--out`.
fn built_without_out(config: &Config) -> Vec<Row> {
    let entries = fs::read_dir(config.bundles())
        .into_iter()
        .flatten()
        .flatten();
    let mut rows: Vec<Row> = entries
        .filter(|entry| !entry.file_name().as_encoded_bytes().starts_with(b"."))
        .filter_map(|entry| {
            let bundle = Bundle::open(&entry.path()).ok()?;
            let built =
                fs::metadata(entry.path().join(MANIFEST)).and_then(|found| found.modified());
            let name = entry.file_name().to_string_lossy().into_owned();
            Some(Row::new(name, &bundle, built.unwrap_or(UNIX_EPOCH), None))
        })
        .collect();
    rows.sort_by(|left, right| left.name.cmp(&right.name));
    rows
}

/// A duration in its largest unit.
pub fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h", seconds / 3600),
        _ => format!("{} d", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_size_age_and_quality() {
        let row = Row {
            name: "BAAI/bge-small-en-v1.5".into(),
            task: Task::FeatureExtraction,
            precision: Precision::Int8,
            bytes: 34_000_000,
            age_s: 7200,
            quality: Some(Quality::Embedding {
                texts: 300,
                mean_cosine: 0.9939,
                worst_cosine: 0.9831,
                neighbours: None,
                terms: None,
                score_difference: None,
            }),
            version: Some("0.0.1".into()),
            bundle: "b".into(),
        };
        insta::assert_snapshot!(row.line(22), @"BAAI/bge-small-en-v1.5  feature-extraction        int8             34.0 MB       2 h  cosine 0.9939  (built by Kivu 0.0.1)");
        assert_eq!(
            [59, 60, 86_399, 86_400].map(age),
            ["59 s", "1 min", "23 h", "1 d"]
        );
    }
}
