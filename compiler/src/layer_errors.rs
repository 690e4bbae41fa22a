//! Measures where the error of an embedding model's 8-bit forms comes from: in its fp32 graph, single matrices, their inputs,
//! or both are rounded as the 8-bit forms round them.

use std::{cell::RefCell, path::Path, sync::Arc};

use serde::Serialize;
use tempfile::TempDir;

use crate::{
    bundle::count_unpooled,
    format::open,
    layer_calibration::{CALIBRATION_TEXTS, Calibration},
    layer_forms::{LayerForms, Rounded, RoundedLayers},
    layers::BLOCK,
    onnx,
    plan::{self, Build, LoadRuntime, Request},
    progress::Progress,
    quality::served::{EncoderParts, ServedEncoder, open_native},
    scratch::Scratch,
    source::{EncoderSettings, Source, TaskSettings},
};
use kivu::{
    backend::Engine,
    error::{Error, Result},
    repository::manifest::Precision,
    tokenizer::Tokenizer,
};

/// Mean of `1 − cosine` over the texts, between vectors of the fp32 graph and of the rounded one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Errors {
    /// With rounded weights.
    pub weights: f64,
    /// With rounded inputs.
    pub activations: f64,
    /// With both.
    pub both: f64,
}

/// Errors of one matrix.
#[derive(Clone, Debug, Serialize)]
pub struct MatrixErrors {
    /// The name of its weights; matrices with the same inputs are joined and have the first one's name.
    pub name: String,
    /// Values per token before the matrix.
    pub inputs: usize,
    /// Values per token after it.
    pub outputs: usize,
    /// If nothing else is rounded.
    #[serde(flatten)]
    pub errors: Errors,
}

/// Errors of an 8-bit form.
#[derive(Clone, Debug, Serialize)]
pub struct FormErrors {
    /// The form's name.
    pub form: &'static str,
    /// If all matrices are rounded.
    pub all: Errors,
    /// Matrix by matrix.
    pub matrices: Vec<MatrixErrors>,
}

/// An 8-bit form.
struct Form {
    name: &'static str,
    precision: Precision,
    /// Inputs that share a scale; `None` if the layers are fitted.
    block: Option<fn(usize) -> usize>,
}

const FORMS: [Form; 4] = [
    Form {
        name: "int8, not fitted",
        precision: Precision::Int8,
        block: Some(|inputs| inputs),
    },
    Form {
        name: "int8",
        precision: Precision::Int8,
        block: None,
    },
    Form {
        name: "int8-blocks, not fitted",
        precision: Precision::Int8Blocks,
        block: Some(|inputs| {
            if inputs.is_multiple_of(BLOCK) {
                BLOCK
            } else {
                inputs
            }
        }),
    },
    Form {
        name: "int8-blocks",
        precision: Precision::Int8Blocks,
        block: None,
    },
];

/// The texts that layers are fitted to, one per line.
pub fn calibration_texts() -> &'static str {
    CALIBRATION_TEXTS
}

/// Measures a model's 8-bit forms on texts, one per line. [`Request::out`] is a folder for graphs, which are removed.
///
/// # Errors
/// For models other than embedding models in the native engine.
pub fn measure(
    request: &Request,
    texts: &str,
    runtime: LoadRuntime<'_>,
    progress: &dyn Progress,
) -> Result<Vec<FormErrors>> {
    let mut plan = plan::plan(request, progress)?.with_adapters_modules()?;
    plan.precision = Precision::Int8;
    let scratch = Scratch::new_in(&request.out)?;
    let build = Build {
        plan: &plan,
        scratch: scratch.path(),
        runtime,
        progress,
    };
    let source = open(build)?;
    let TaskSettings::Encoder(EncoderSettings::Embedding(mut settings)) = source.settings.clone()
    else {
        return Err(unsupported());
    };
    if source.engine != Engine::Native {
        return Err(unsupported());
    }
    plan.prompts.apply(&mut settings)?;
    count_unpooled(&mut settings, &source.tokenizer)?;
    let settings = EncoderSettings::Embedding(settings);
    let tokenizer = Arc::new(Tokenizer::from_json(&source.tokenizer)?);
    let parts = EncoderParts {
        runtime: runtime()?,
        tokenizer: &tokenizer,
        settings: &settings,
        labels: None,
    };
    let measurement = Measurement {
        source: &source,
        parts,
        texts,
        folder: scratch.path(),
    };
    let reference = measurement.vectors(Precision::Fp32, LayerForms::Plain)?;
    FORMS
        .iter()
        .map(|form| measurement.form(form, &reference, progress))
        .collect()
}

fn unsupported() -> Error {
    Error::model(
        "expected an embedding model that runs in the native engine, but found another model",
    )
}

struct Measurement<'a> {
    source: &'a Source<'a>,
    parts: EncoderParts<'a>,
    texts: &'a str,
    folder: &'a Path,
}

impl Measurement<'_> {
    fn form(
        &self,
        form: &Form,
        reference: &[Vec<f32>],
        progress: &dyn Progress,
    ) -> Result<FormErrors> {
        let folder = self.write(form.precision, LayerForms::Plain)?;
        let native = (open_native(folder.path())?, form.precision);
        let calibration = Calibration::record(native, |backend| {
            let served =
                ServedEncoder::with_backend(self.parts, folder.path(), Engine::Native, backend)?;
            served.run(CALIBRATION_TEXTS)
        })?;
        let errors = |only: Option<&str>| {
            let mut layers = RoundedLayers {
                calibration: &calibration,
                block: form.block,
                rounded: Rounded::Both,
                only,
                seen: RefCell::default(),
            };
            let mut error = |rounded| {
                layers.rounded = rounded;
                let found = self.vectors(Precision::Fp32, LayerForms::Rounded(&layers))?;
                progress.step();
                Ok::<_, Error>(mean_error(reference, &found))
            };
            let (weights, activations) = (error(Rounded::Weights)?, error(Rounded::Activations)?);
            let errors = Errors {
                weights,
                activations,
                both: error(Rounded::Both)?,
            };
            Ok::<_, Error>((errors, layers.seen.into_inner()))
        };
        let (all, mut seen) = errors(None)?;
        // Each graph adds its layers; layers that share weights have the same name.
        seen.truncate(seen.len() / 3);
        seen.dedup();
        progress.stage(form.name, 3 * seen.len());
        let matrix = |(name, [inputs, outputs]): (String, [usize; 2])| {
            let (errors, _) = errors(Some(&name))?;
            Ok::<_, Error>(MatrixErrors {
                name,
                inputs,
                outputs,
                errors,
            })
        };
        Ok(FormErrors {
            form: form.name,
            all,
            matrices: seen.into_iter().map(matrix).collect::<Result<_>>()?,
        })
    }

    /// Vectors from a graph in ONNX Runtime.
    fn vectors(&self, precision: Precision, layers: LayerForms<'_>) -> Result<Vec<Vec<f32>>> {
        let folder = self.write(precision, layers)?;
        let served = ServedEncoder::open(self.parts, folder.path(), Engine::Onnx)?;
        served.vectors_of(self.texts)?.ok_or_else(unsupported)
    }

    /// Writes graphs into a folder.
    fn write(&self, precision: Precision, layers: LayerForms<'_>) -> Result<TempDir> {
        let folder = tempfile::tempdir_in(self.folder).map_err(Error::io(format!(
            "cannot create a folder in `{}`",
            self.folder.display()
        )))?;
        onnx::write_all((self.source.graphs)(precision, layers)?, folder.path())?;
        Ok(folder)
    }
}

/// Mean of `1 − cosine`, in double precision, since errors are small.
fn mean_error(reference: &[Vec<f32>], found: &[Vec<f32>]) -> f64 {
    let dot = |left: &[f32], right: &[f32]| {
        left.iter()
            .zip(right)
            .map(|(left, right)| f64::from(*left) * f64::from(*right))
            .sum::<f64>()
    };
    let error = |(left, right): (&Vec<f32>, &Vec<f32>)| {
        1.0 - dot(left, right) / (dot(left, left) * dot(right, right)).sqrt()
    };
    reference.iter().zip(found).map(error).sum::<f64>() / reference.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_mean_distances_from_a_cosine_of_one() {
        let reference = [vec![1.0, 0.0], vec![0.0, 2.0]];
        assert_eq!(mean_error(&reference, &reference), 0.0);
        assert_eq!(
            mean_error(&reference, &[vec![3.0, 0.0], vec![1.0, 0.0]]),
            0.5
        );
        assert!(mean_error(&reference, &[vec![0.0, 0.0], vec![0.0, 1.0]]).is_nan());
    }
}
