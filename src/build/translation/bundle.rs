//! From a translation model that was read to the files of a bundle.

use std::{num::NonZeroUsize, path::Path};

use super::{decoder, encoder, model::TranslationModel, quality};
use crate::{
    backend::onnx::{Runtime, Session},
    build::{
        Plan, Product, Progress, TaskSettings,
        cost::{self, Comparison},
        exported,
        folder::{create_folder, write_file, write_tokenizer},
        onnx::{self, proto::ModelProto},
        weights::Weights,
    },
    error::{Error, Result},
    pipeline::{
        Task,
        generation::GenerationSettings,
        translation::{Decoder, Languages, TranslationSettings, UnknownTokens},
    },
    repository::manifest::{self, Precision, Quality},
};

const ENCODER: &str = "encoder.onnx";
const DECODER: &str = "decoder.onnx";
const SHORTLIST: &str = "shortlist.bin";
const TARGET_TOKENIZER: &str = "target.json";

/// A translation model that was read, whatever it was read from.
pub(in crate::build) struct Opened {
    pub(in crate::build) origin: Origin,
    pub(in crate::build) settings: OpenedSettings,
    /// The `tokenizer.json` of what is read.
    pub(in crate::build) tokenizer: Vec<u8>,
    /// That of what is written, where it is another.
    pub(in crate::build) target_tokenizer: Option<Vec<u8>>,
    /// The file of the shortlist.
    pub(in crate::build) shortlist: Option<Vec<u8>>,
}

/// Where the graphs come from.
pub(in crate::build) enum Origin {
    /// They are made of weights.
    Weights {
        /// What is made.
        model: Box<TranslationModel>,
        /// What it is made of.
        weights: Weights,
    },
    /// They were made by somebody else.
    Export(Box<exported::Export>),
}

impl Origin {
    fn architecture(&self) -> &str {
        match self {
            Self::Weights { model, .. } => &model.architecture,
            Self::Export(export) => &export.architecture,
        }
    }

    fn sha256(&self) -> &str {
        match self {
            Self::Weights { weights, .. } => weights.sha256(),
            Self::Export(export) => &export.sha256,
        }
    }

    fn max_positions(&self) -> usize {
        match self {
            Self::Weights { model, .. } => model.positions.length,
            Self::Export(export) => export.max_positions,
        }
    }

    /// The encoder and the decoder, with weights in that form.
    fn graphs(&self, precision: Precision, runtime: Runtime, scratch: &Path) -> Result<[ModelProto; 2]> {
        match self {
            Self::Weights { model, weights } => {
                Ok([encoder(model, weights, precision)?, decoder(model, weights, precision)?])
            }
            Self::Export(export) => export.graphs(precision, runtime, scratch),
        }
    }
}

/// What the files of a model say of its use.
pub(in crate::build) struct OpenedSettings {
    pub(in crate::build) max_tokens: usize,
    /// The languages; none where the files do not say.
    pub(in crate::build) languages: Option<Languages>,
    pub(in crate::build) generation: GenerationSettings,
    pub(in crate::build) unknown_tokens: Option<UnknownTokens>,
}

/// How close the graphs in the second folder come to those in the first, and what it saves.
fn measure(
    [reference, folder]: [&Path; 2],
    sizes: [u64; 2],
    settings: &TranslationSettings,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<(Quality, Comparison)> {
    progress.stage("measure the quality", quality::count(&settings.languages, sizes[0]));
    let files = |folder: &Path| [ENCODER, DECODER].map(|name| folder.join(name));
    let subject = quality::Subject {
        settings,
        reference: files(reference),
        quantised: files(folder),
        folder,
        weights: sizes[0],
    };
    let (quality, spent) = quality::measure(runtime, &subject, &|| progress.step())?;
    // Both run at once, each on a half of the CPUs: a text at a time.
    Ok((quality, spent.compare(sizes, 1)))
}

/// How weights are stored, in words.
fn plan_of(precision: Precision) -> &'static str {
    match precision {
        Precision::Fp32 => "none",
        Precision::Int8 => {
            "encoder: int8, one scale an output channel and one a token, but queries, keys and values one for every \
             32 weights; decoder and tables: int8, one scale for every 64 to 256 weights; activations likewise; the \
             rest: fp32"
        }
        Precision::Int8Blocks => {
            "matrices: int8, one scale for every 32 weights, activations likewise; tables: int8, one scale for \
             every 64 to 256 weights; the rest: fp32"
        }
    }
}

/// Writes the graphs and the other files of a bundle, and measures it.
pub(in crate::build) fn compile(
    opened: Opened,
    plan: &Plan,
    scratch: &Path,
    runtime: Runtime,
    progress: &dyn Progress,
) -> Result<Product> {
    if let Some(task) = plan.task.filter(|task| *task != Task::Translation) {
        return Err(Error::model(format!("expected a model for `{task}`, but found one that translates")));
    }
    let Opened { origin, settings, tokenizer, target_tokenizer, shortlist } = opened;
    let languages = plan.languages.clone().or(settings.languages).ok_or_else(|| {
        Error::model(format!(
            "expected the languages of `{}` in its files, but found none; name them in a recipe: \
             `[languages]` with `source` and `target`",
            plan.name
        ))
    })?;
    let write = |precision, name: &str| {
        let folder = create_folder(&scratch.join(name))?;
        let [encoder, decoder] = origin.graphs(precision, runtime, scratch)?;
        onnx::write_all([(ENCODER, encoder), (DECODER, decoder)], &folder)?;
        progress.step();
        Ok::<_, Error>(folder)
    };
    progress.stage("write the graphs", if plan.precision == Precision::Fp32 { 1 } else { 2 });
    let (reference, folder) = match plan.precision {
        Precision::Fp32 => (None, write(Precision::Fp32, "fp32")?),
        quantised => (Some(write(Precision::Fp32, "fp32")?), write(quantised, "quantised")?),
    };
    let sizes = match &reference {
        Some(reference) => [cost::size(reference)?, cost::size(&folder)?],
        None => [0; 2],
    };
    write_tokenizer(&folder, &tokenizer)?;
    let put = |name: &str, bytes: Option<Vec<u8>>| match bytes {
        Some(bytes) => write_file(&folder.join(name), &bytes).map(|()| Some(name.to_owned())),
        None => Ok(None),
    };
    let target_tokenizer = put(TARGET_TOKENIZER, target_tokenizer)?;
    let shortlist = put(SHORTLIST, shortlist)?;
    let signature = |name: &str| {
        let session = Session::open(runtime, &folder.join(name), NonZeroUsize::MIN)?;
        Ok::<_, Error>(session.signature().clone())
    };
    let settings = TranslationSettings {
        max_tokens: settings.max_tokens,
        max_positions: origin.max_positions(),
        unknown_tokens: settings.unknown_tokens,
        target_tokenizer,
        shortlist,
        decoder: Decoder { graph: DECODER.to_owned(), signature: signature(DECODER)? },
        languages,
        generation: settings.generation,
    };
    let compared = match &reference {
        Some(reference) => Some(measure([reference, folder.as_path()], sizes, &settings, runtime, progress)?),
        None => None,
    };
    let (quality, comparison) = compared.unzip();
    Ok(Product {
        architecture: origin.architecture().to_owned(),
        sha256: origin.sha256().to_owned(),
        task: Task::Translation,
        graph: ENCODER,
        signature: signature(ENCODER)?,
        settings: TaskSettings::Translation(Box::new(settings)),
        weights: manifest::Weights {
            precision: plan.precision,
            plan: plan_of(plan.precision).to_owned(),
            quality,
        },
        comparison,
        folder,
    })
}
