//! Measures an opened model as the build's quality gate does, against another model, or against a program's vectors.

use std::{collections::BTreeMap, path::Path};

use serde::Serialize;

use super::{
    compare::{note, qualities},
    pairs::{self, PairFigures, PairQuality},
    peer::PeerVectors,
    samples::{Pairs, Samples},
    served::{self, Answers},
    step_comparison,
};
use crate::{build::calibration, plan::progress::Progress};
use kivu::{
    Error, Result,
    error::quoted,
    model::{EncoderPipeline, Model},
    pipeline::{
        Task,
        embedding::{EmbeddingPipeline, EmbeddingSettings, VectorKind},
        seq2seq::Seq2SeqPipeline,
    },
    repository::{
        TaskSettings,
        bundle::TOKENIZER,
        manifest::{Quality, VectorQuality},
    },
};
use kivu_jobs::Parquet;

/// The reference that a model is compared with.
#[derive(Clone, Copy, Debug)]
pub enum Other<'a> {
    /// Another form of the model, or another model for the same task.
    Model(&'a Model),
    /// A file with another program's vectors.
    Vectors(&'a Path, Parquet),
}

/// A model's quality.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Report {
    /// The model's name.
    pub name: String,
    /// The precision's name, such as `int8`.
    pub precision: String,
    /// The reference of the comparison: `NAME, PRECISION`, or a file.
    pub other: Option<String>,
    /// Agreement with the other model, for the model's first output.
    pub quality: Option<Quality>,
    /// Agreement for additional vector kinds.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub other_vectors: BTreeMap<VectorKind, Quality>,
    /// Quality of the model's stored vectors.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub vectors: Option<VectorQuality>,
    /// Results on pairs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pairs: Option<PairQuality>,
    /// The languages between which a model translated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub languages: Option<String>,
    /// Remarks on the figures, such as skipped texts.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Report {
    fn of(model: &Model) -> Self {
        Self {
            name: model.name.clone(),
            precision: model.manifest.weights.precision.to_string(),
            ..Self::default()
        }
    }
}

/// Measures a model against another, and both on pairs.
///
/// # Errors
/// The models are for different tasks, or their outputs cannot be compared; or the pairs do not fit the model.
pub fn measure(
    model: &Model,
    other: Option<Other<'_>>,
    samples: &Samples,
    progress: &dyn Progress,
) -> Result<Report> {
    let mut report = Report::of(model);
    report.other = other.map(|other| match other {
        Other::Model(other) => format!("{}, {}", other.name, other.manifest.weights.precision),
        Other::Vectors(path, _) => path.display().to_string(),
    });
    match model.pipeline.encoder_pipeline() {
        Ok(encoder) => measure_encoder(model, &encoder, other, samples, progress, &mut report)?,
        Err(generator) => {
            measure_generator(model, generator, other, samples, progress, &mut report)?
        }
    }
    if let Some(PairQuality { model, other, .. }) = report.pairs {
        let is_undefined = |figures: &PairFigures| {
            matches!(
                figures,
                PairFigures::Scores { spearman: None } | PairFigures::Labels { accuracy: None, .. }
            )
        };
        if [Some(model), other].iter().flatten().any(is_undefined) {
            report.notes.push(
                "all pairs have the same score, so there is no correlation or accuracy".to_owned(),
            );
        }
        if matches!(
            model,
            PairFigures::References {
                cross_entropy: None,
                ..
            }
        ) {
            report.notes.push(
                "cross-entropy is not measured, since Marian's bundles have no tokenizer for translations"
                    .to_owned(),
            );
        }
    }
    Ok(report)
}

fn measure_encoder(
    model: &Model,
    encoder: &EncoderPipeline,
    other: Option<Other<'_>>,
    samples: &Samples,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let settings = &model.manifest.settings;
    let mut other_encoder = None;
    let compared = match other {
        None => None,
        Some(Other::Vectors(path, parquet)) => {
            let peer = PeerVectors::open(path, samples.texts.as_ref(), parquet)?;
            require_dimensions(settings, peer.dimensions, path)?;
            progress.stage("measure the quality", peer.texts.count());
            let own = served::measure(encoder, &peer.texts, progress)?.first_output();
            Some([Answers::of(peer.answers), own])
        }
        Some(Other::Model(other)) => {
            let found = other.pipeline.encoder_pipeline();
            let found = found.map_err(|_| different_tasks(model, other))?;
            require_comparable(settings, &other.manifest.settings)
                .map_err(|reason| reason.unwrap_or_else(|| different_tasks(model, other)))?;
            let texts = samples.texts.clone().unwrap_or_default();
            progress.stage("measure the quality", 2 * texts.count());
            let reference = served::measure(&found, &texts, progress)?;
            let own = served::measure(encoder, &texts, progress)?;
            if !reference.has_sizes_of(&own) {
                return Err(Error::config(format!(
                    "the models in `{}` and `{}` have different tokens for a text",
                    model.name, other.name
                ))
                .with_hint("their outputs cannot be compared token by token"));
            }
            other_encoder = Some(found);
            Some([reference, own])
        }
    };
    if let Some([reference, own]) = &compared {
        let mut found = qualities(settings, [reference, own]).into_iter();
        report.quality = found.next();
        report.other_vectors = settings
            .embedding()
            .into_iter()
            .flat_map(EmbeddingSettings::outputs)
            .skip(1)
            .map(|(kind, _)| kind)
            .zip(found)
            .collect();
        report.notes.extend(note(reference));
        if let EncoderPipeline::Embedding(pipeline) = encoder {
            report.vectors = stored(model, pipeline, own)?;
        }
    }
    if let Some(own) = &samples.pairs {
        let found = pairs::figures(encoder, own, progress)?;
        let other = other_encoder
            .map(|other| pairs::figures(&other, own, progress))
            .transpose()?;
        report.pairs = Some(PairQuality::new(own, found, other));
    }
    Ok(())
}

fn measure_generator(
    model: &Model,
    generator: &Seq2SeqPipeline,
    other: Option<Other<'_>>,
    samples: &Samples,
    progress: &dyn Progress,
    report: &mut Report,
) -> Result<()> {
    let other = match other {
        None => None,
        Some(Other::Vectors(path, _)) => {
            return Err(Error::config(format!(
                "expected another model for `{}`, which generates texts, but found vectors in `{}`",
                model.name,
                path.display()
            )));
        }
        Some(Other::Model(other)) => {
            let found = other
                .pipeline
                .encoder_pipeline()
                .err()
                .ok_or_else(|| different_tasks(model, other))?;
            let settings = [generator, found].map(|pipeline| {
                let settings = pipeline.settings();
                (
                    &settings.languages,
                    &settings.target_tokenizer,
                    &settings.generation.eos_token_ids,
                )
            });
            let is_same = |file: &str| {
                let hash =
                    |model: &Model| model.manifest.file(file).map(|file| file.sha256.clone());
                hash(model) == hash(other)
            };
            let target = generator
                .settings()
                .target_tokenizer
                .as_deref()
                .unwrap_or(TOKENIZER);
            if settings[0] != settings[1] || !is_same(TOKENIZER) || !is_same(target) {
                return Err(Error::config(format!(
                    "expected two forms of one model, which have the same tokens, but found `{}` \
                     and `{}`",
                    model.name, other.name
                ))
                .with_hint("compare other models by `--pairs` with texts and references"));
            }
            report.quality = Some(step_comparison::quality_of(
                [found, generator],
                samples.texts.as_ref(),
                progress,
            )?);
            Some(found)
        }
    };
    if let Some(own @ Pairs::References(_)) = &samples.pairs {
        let found = step_comparison::references(generator, own, progress)?;
        let other = other
            .map(|other| step_comparison::references(other, own, progress))
            .transpose()?;
        report.pairs = Some(PairQuality::new(own, found, other));
    } else if let Some(own) = &samples.pairs {
        return Err(pairs::unfit(own, "a model with vectors or labels"));
    }
    report.languages = step_comparison::languages(generator);
    Ok(())
}

/// Quality of the model's stored vectors; `None` if it has no ranges.
fn stored(
    model: &Model,
    pipeline: &EmbeddingPipeline,
    own: &Answers,
) -> Result<Option<VectorQuality>> {
    if model.manifest.vectors.is_none() || model.manifest.task != Task::FeatureExtraction {
        return Ok(None);
    }
    calibration::quality(&own.values(), |wanted| pipeline.conversion(wanted, None)).map(Some)
}

fn different_tasks(model: &Model, other: &Model) -> Error {
    Error::config(format!(
        "expected models for the same task, but `{}` is for `{}` and `{}` for `{}`",
        model.name, model.manifest.task, other.name, other.manifest.task
    ))
}

/// Refuses outputs that cannot be compared; without an error if they are those of different tasks.
fn require_comparable(left: &TaskSettings, right: &TaskSettings) -> Result<(), Option<Error>> {
    let same_labels = |left: &[String], right: &[String]| match left == right {
        true => Ok(()),
        false => Err(Some(Error::config(format!(
            "expected models with the same labels, but found {} and {}",
            quoted(left),
            quoted(right)
        )))),
    };
    match (left, right) {
        (TaskSettings::Embedding(left), TaskSettings::Embedding(right)) => {
            let shown = |settings: &EmbeddingSettings| {
                let outputs = settings.outputs().into_iter();
                outputs
                    .map(|(kind, values)| format!("{kind} ({values} values)"))
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            if shown(left) == shown(right) {
                return Ok(());
            }
            Err(Some(
                Error::config(format!(
                    "expected models with the same vectors, but found {} and {}",
                    shown(left),
                    shown(right)
                ))
                .with_hint("`--pairs` measures each of them"),
            ))
        }
        (TaskSettings::Classification(left), TaskSettings::Classification(right)) => {
            same_labels(&left.labels, &right.labels)
        }
        (TaskSettings::TokenClassification(left), TaskSettings::TokenClassification(right)) => {
            same_labels(&left.labels, &right.labels)
        }
        (TaskSettings::Listwise(_), TaskSettings::Listwise(_))
        | (TaskSettings::LabelScores(_), TaskSettings::LabelScores(_))
        | (TaskSettings::ZeroShotEntities(_), TaskSettings::ZeroShotEntities(_)) => Ok(()),
        _ => Err(None),
    }
}

/// Refuses vectors of another size than the model's.
fn require_dimensions(settings: &TaskSettings, found: usize, path: &Path) -> Result<()> {
    let dense = settings
        .embedding()
        .into_iter()
        .flat_map(EmbeddingSettings::outputs)
        .find(|(kind, _)| *kind == VectorKind::Dense);
    match dense {
        Some((_, dimensions)) if dimensions == found => Ok(()),
        Some((_, dimensions)) => Err(Error::config(format!(
            "expected vectors of {dimensions} values, as the model's, in `{}`, but found {found} values",
            path.display()
        ))),
        None => Err(Error::config(format!(
            "the vectors in `{}` need a model with dense vectors",
            path.display()
        ))),
    }
}
