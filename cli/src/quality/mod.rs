//! `kivu quality`: how close a model is to another form of it, and how well it does on a user's pairs.

mod figures;
mod table;

use std::{
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::Args;

use self::figures::{Row, pair_rows, rows};
pub use self::figures::{short, text};
use super::{
    interrupt::{Ended, interruptible},
    library::resolve::{BuildArguments, for_comparison, resolve},
    services::Services,
    terminal::{Format, Progress},
};
use crate::examples::examples;
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::{Config, FleetConfig},
    model::Model,
    names::named,
    repository::manifest::Precision,
};
use kivu_compiler::{
    library::{
        model_library::{Options, size},
        resolve::{self, Location},
    },
    quality::{
        Candidates, ColumnNames, Other, PairQuality, Pairs, Report, Samples, measure,
        table::table as measure_table,
    },
};

/// Measure a model's quality: against fp32, another bundle or another program's vectors, and on pairs
///
/// FILE may be JSON Lines, CSV, TSV or Parquet, plain or compressed; texts also a `.txt` file with one per line. The
/// columns of `--pairs` determine what is measured: `text1`, `text2` and `score` (rank correlation) or `label`
/// (accuracy), `question` and `passage` (recall@10), `text` and `label` (accuracy), `text` and `reference` (chrF2, exact
/// match).
#[derive(Debug, Args)]
#[command(after_help = examples("quality"))]
pub struct Arguments {
    /// A bundle, or a name as in `kivu serve`; missing models are built
    model: PathBuf,
    /// fp32, int8 or int8-blocks of the same model, another bundle or name, or a file with vectors (.npy, or a column
    /// `embedding` as `kivu batch` writes it) [default: fp32, unless `--pairs` is set]
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,
    /// File with texts to compare on, at least 20 [default: Kivu's 300]
    #[arg(long, value_name = "FILE")]
    texts: Option<PathBuf>,
    /// File with pairs and what is expected of them, at least 10
    #[arg(long, value_name = "FILE")]
    pairs: Option<PathBuf>,
    /// Compare all precisions in one table: results, size and speed, and for classifiers figures per label and wrong rows
    #[arg(long, conflicts_with_all = ["against", "precision"])]
    all: bool,
    /// A column's name in the files, such as `label=category`; repeatable
    #[arg(long, value_name = "NAME=COLUMN", value_parser = column)]
    column: Vec<(String, String)>,
    /// A label that a zero-shot model chooses among; repeatable [default: the labels in `--pairs`]
    #[arg(long, requires = "pairs")]
    label: Vec<String>,
    /// The hypothesis for a zero-shot model, with {} for the label
    #[arg(long, value_name = "HYPOTHESIS_TEMPLATE", requires = "pairs")]
    template: Option<String>,
    #[command(flatten)]
    format: Format,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// `NAME=COLUMN`.
fn column(text: &str) -> std::result::Result<(String, String), String> {
    text.split_once('=')
        .map(|(name, column)| (name.to_owned(), column.to_owned()))
        .ok_or_else(|| "expected NAME=COLUMN, such as `label=category`".to_owned())
}

/// The reference of a comparison, as given on the command line.
enum Against {
    /// Another precision of the same model.
    Precision(Precision),
    /// A bundle or a name.
    Model(PathBuf),
    /// Another program's vectors.
    Vectors(PathBuf),
}

impl Against {
    fn of(other: PathBuf) -> Self {
        let precision = other.to_str().and_then(named::<Precision>);
        match precision {
            Some(precision) if !other.exists() => Self::Precision(precision),
            _ if other.is_file()
                && other
                    .extension()
                    .is_none_or(|extension| extension != "toml") =>
            {
                Self::Vectors(other)
            }
            _ => Self::Model(other),
        }
    }
}

pub fn run(arguments: Arguments, config: Config, services: Services) -> Result<ExitCode> {
    interruptible(move || run_quality(arguments, config, &services)).map(Ended::code)
}

fn run_quality(arguments: Arguments, mut config: Config, services: &Services) -> Result<ExitCode> {
    let (cloud, parquet) = (&services.cloud, services.parquet);
    let Arguments {
        model: named,
        against,
        texts,
        pairs,
        all,
        column,
        label,
        template,
        format,
        build,
    } = arguments;
    if !column.is_empty() && texts.is_none() && pairs.is_none() {
        return Err(Error::config(
            "`--column` has no effect without `--texts` or `--pairs`",
        ));
    }
    // Files are read first, since models may have to be built.
    let columns = ColumnNames::new(column)?;
    let mut samples = Samples::open(texts.as_deref(), pairs.as_deref(), &columns, parquet)?;
    if all && samples.texts.is_some() && samples.pairs.is_some() {
        return Err(Error::config(
            "`--all` measures either `--texts` or `--pairs`, but found both",
        ));
    }
    let against = match (against, &samples.pairs) {
        (None, _) if all => None,
        (Some(other), _) => Some(Against::of(other)),
        (None, Some(_)) if samples.texts.is_some() => {
            return Err(Error::config(
                "expected `--against` with `--texts` and `--pairs`, but found none",
            )
            .with_hint("say what to compare the texts with, such as `--against fp32`"));
        }
        (None, Some(_)) => None,
        (None, None) => Some(Against::Precision(Precision::Fp32)),
    };
    let mut options = build.options(&config);
    let location = Location::of(&named, &options, &config)?;
    // The other precisions are built from a bundle's source.
    if all && matches!(location, Location::Model(_)) {
        options.precision = Some(Precision::Fp32);
    }
    config.engine = options.engine;
    // Only local models can be compared.
    config.fleet = FleetConfig::default();
    let path = match location {
        // A requested precision is measured, however poor its quality.
        Location::Model(model) if options.precision.is_some() => {
            for_comparison(&model, &options, &config)?
        }
        _ => resolve(&named, &options, &config)?,
    };
    let model = Model::open(&path, &config, cloud)?;
    let candidates = Candidates {
        labels: label,
        template,
    };
    let for_task = |pairs: Pairs| pairs.for_task(model.manifest.task, candidates);
    samples.pairs = samples.pairs.map(for_task).transpose()?;
    let progress = Progress::default();
    if all {
        let own = Own {
            named: &named,
            path,
            model,
        };
        let mut notes = Vec::new();
        let forms = own.in_all_precisions(&options, &config, cloud, &mut notes)?;
        let table = measure_table(&forms, &samples, &progress);
        progress.clear();
        let mut table = table?;
        table.notes.extend(notes);
        return format.print(&table, table::lines);
    }
    let other = match &against {
        Some(Against::Precision(precision)) => Some(Model::open(
            &in_precision(&named, &path, &model, *precision, &options, &config)?,
            &config,
            cloud,
        )?),
        Some(Against::Model(other)) => Some(Model::open(
            &resolve(other, &options, &config)?,
            &config,
            cloud,
        )?),
        Some(Against::Vectors(_)) | None => None,
    };
    if let (Some(Against::Precision(precision)), Some(other)) = (&against, &other) {
        require_same(&model, other, *precision)?;
    }
    let other = match (&other, &against) {
        (Some(other), _) => Some(Other::Model(other)),
        (None, Some(Against::Vectors(path))) => Some(Other::Vectors(path, parquet)),
        _ => None,
    };
    let report = measure(&model, other, &samples, &progress);
    progress.clear();
    format.print(&report?, lines)
}

/// The model to measure, as it was named.
struct Own<'a> {
    named: &'a Path,
    path: PathBuf,
    model: Model,
}

impl Own<'_> {
    /// Opens the model in every precision, fp32 first, with the bundles' sizes. Missing ones are built; a note says why a
    /// quantized one cannot be.
    fn in_all_precisions(
        self,
        options: &Options,
        config: &Config,
        cloud: &Cloud,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(Model, u64)>> {
        let own = self.model.manifest.weights.precision;
        let all = [Precision::Fp32, Precision::Int8Blocks, Precision::Int8];
        let mut others = Vec::new();
        for precision in all.into_iter().filter(|precision| *precision != own) {
            let built = in_precision(
                self.named,
                &self.path,
                &self.model,
                precision,
                options,
                config,
            );
            let path = match built {
                Err(error)
                    if precision != Precision::Fp32 && !matches!(error, Error::Io { .. }) =>
                {
                    notes.push(format!("no {precision}: {}", error.with_causes()));
                    continue;
                }
                built => built?,
            };
            let other = Model::open(&path, config, cloud)?;
            require_same(&self.model, &other, precision)?;
            let bytes = size(&other.manifest);
            others.push((other, bytes));
        }
        let bytes = size(&self.model.manifest);
        others.push((self.model, bytes));
        let order = |(model, _): &(Model, u64)| {
            let own = model.manifest.weights.precision;
            all.iter().position(|precision| *precision == own)
        };
        others.sort_by_key(order);
        Ok(others)
    }
}

/// The bundle of the same model in another precision, which is built if it does not exist.
fn in_precision(
    named: &Path,
    path: &Path,
    model: &Model,
    precision: Precision,
    options: &Options,
    config: &Config,
) -> Result<PathBuf> {
    let manifest = &model.manifest;
    let options = Options {
        task: Some(manifest.task),
        is_sparse: manifest
            .settings
            .embedding()
            .is_some_and(|settings| settings.sparse.is_some()),
        precision: Some(precision),
        engine: options.engine,
        allow: manifest.allowed.clone(),
    };
    let origin = match Location::of(named, &Options::default(), config)? {
        Location::Model(model) => Some(model),
        Location::Bundle(_) => resolve::origin(path, manifest, config)?,
    };
    match origin {
        Some(model) => for_comparison(&model, &options, config),
        None => Err(Error::config(format!(
            "the source of `{}` is unknown: the bundle has only its name, `{}`",
            named.display(),
            manifest.source.from
        ))
        .with_hint(format!(
            "build it with `--precision {precision}` and name that bundle with `--against`"
        ))),
    }
}

/// Refuses bundles of different weights, whose comparison would say nothing about the precision.
fn require_same(model: &Model, other: &Model, precision: Precision) -> Result<()> {
    let [own, found] = [model, other].map(|model| &model.manifest.source.sha256);
    if own == found {
        return Ok(());
    }
    Err(Error::config(format!(
        "expected the weights of `{}` with the SHA-256 {own} in {precision}, but found {found}",
        model.name
    ))
    .with_hint("its source has changed since it was built: build it again"))
}

/// The report as text.
fn lines(report: &Report) -> Vec<String> {
    let against = report.other.iter().map(|other| format!(" against {other}"));
    let title = format!(
        "{}, {}{}",
        report.name,
        report.precision,
        against.collect::<String>()
    );
    let line = |(name, value): Row| format!("  {name:16} {value}");
    std::iter::once(title)
        .chain(rows(report).into_iter().map(line))
        .collect()
}

/// Results on pairs in one line.
pub fn pairs_text(quality: &PairQuality) -> String {
    let figures: Vec<String> = pair_rows(quality)
        .into_iter()
        .map(|(name, value)| format!("{name} {value}"))
        .collect();
    format!("{} {}: {}", quality.pairs, quality.kind, figures.join(", "))
}
