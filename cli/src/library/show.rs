//! `kivu show`: a model's description.

use std::{path::PathBuf, process::ExitCode};

use clap::Args;
use serde_json::json;

use crate::{examples::examples, quality, terminal::print};
use kivu::{
    Error, Result,
    cloud::Cloud,
    config::Config,
    error::quoted,
    repository::{Bundle, Manifest, manifest::Precision, remote, s3::Url},
};
use kivu_compiler::library::{
    model_library::{Options, size},
    resolve,
};

/// Describe a built model: task, limits, quality, origin
#[derive(Debug, Args)]
#[command(after_help = examples("show"))]
pub struct Arguments {
    /// A bundle, its URL, or a built model's name as in `kivu serve`
    model: PathBuf,
    /// Print the manifest as JSON, with `bundle` and `digest`
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments, config: &Config, cloud: &Cloud) -> Result<ExitCode> {
    let model = arguments.model.display();
    let path = resolve::find(&arguments.model, &Options::default(), config)?.ok_or_else(|| {
        Error::config(format!(
            "expected a built model, but `{model}` is not built yet"
        ))
        .with_hint(format!("`kivu build {model}` builds it"))
    })?;
    let bundle = match Url::of(&path) {
        Some(url) => remote::open(&cloud.store()?, &url?)?,
        None => Bundle::open(&path)?,
    };
    let path = path.display().to_string();
    match arguments.json {
        true => print(&json_text(&bundle, &path)?)?,
        false => lines(&bundle, &path)
            .iter()
            .try_for_each(|(name, value)| print(&format!("{name:13} {value}")))?,
    }
    Ok(ExitCode::SUCCESS)
}

fn json_text(bundle: &Bundle, path: &str) -> Result<String> {
    let failed = |error| Error::model_because("cannot serialize the manifest", error);
    let mut manifest = serde_json::to_value(bundle.manifest()).map_err(failed)?;
    manifest["bundle"] = json!(path);
    manifest["digest"] = json!(bundle.digest());
    serde_json::to_string_pretty(&manifest).map_err(failed)
}

fn lines(bundle: &Bundle, path: &str) -> Vec<(&'static str, String)> {
    let manifest = bundle.manifest();
    let Manifest {
        name,
        aliases,
        task,
        engine,
        source,
        weights,
        warnings,
        ..
    } = manifest;
    let precision = match weights.precision {
        Precision::Fp32 => weights.precision.to_string(),
        quantized => format!("{quantized}, {}", weights.plan),
    };
    let mut lines = vec![
        ("name", name.clone()),
        ("task", task.to_string()),
        ("architecture", source.architecture.clone()),
        ("origin", source.from.clone()),
        ("precision", precision),
        ("engine", engine.to_string()),
        ("size", format!("{:.1} MB", size(manifest) as f64 / 1e6)),
    ];
    lines.extend(
        manifest
            .max_tokens()
            .map(|tokens| ("max tokens", tokens.to_string())),
    );
    if let Some(embedding) = manifest.settings.embedding() {
        let outputs = embedding.outputs().into_iter();
        let outputs: Vec<_> = outputs
            .map(|(kind, values)| format!("{kind} ({values} values)"))
            .collect();
        lines.push(("vectors", outputs.join(", ")));
        let prompts: Vec<&String> = embedding.prompts.keys().collect();
        lines.extend((!prompts.is_empty()).then(|| ("prompts", quoted(&prompts))));
        lines.extend((!embedding.tasks.is_empty()).then(|| ("tasks", quoted(&embedding.tasks))));
    }
    let labels = manifest.settings.labels();
    lines.extend(labels.map(|labels| ("labels", quoted(labels))));
    lines.push(("quality", quality::text(weights.quality)));
    lines.extend((!aliases.is_empty()).then(|| ("aliases", quoted(aliases))));
    lines.extend(warnings.iter().map(|warning| ("warning", warning.clone())));
    lines.push(("bundle", path.to_owned()));
    lines.push(("digest", bundle.digest().to_owned()));
    lines
}
