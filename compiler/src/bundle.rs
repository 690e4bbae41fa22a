//! Writes a source as a bundle and measures its quality.

use std::{
    num::NonZeroUsize,
    path::{Path, PathBuf},
};

use super::{
    bergamot, calibration,
    config::ConfigFile,
    cost::{self, Comparison},
    encoder, export, files,
    keys::{self, Kind},
    onnx,
    plan::{Build, Plan},
    quality::{self, Shortfall, model::EncoderModel},
    seq2seq,
    source::{DECODER, ENCODER, EncoderSettings, MODEL, Source, TaskSettings},
    static_embedding,
    task::{task, unused_head},
    weights::Weights,
};
use kivu::{
    backend::{
        Engine, Signature,
        onnx::{Runtime, Session},
    },
    error::{Error, Result},
    pipeline::{Task, embedding::EmbeddingSettings},
    repository::{
        ModelKind, WeightForm,
        bundle::{MANIFEST, PIECES, RANGES, TOKENIZER, describe},
        manifest::{self, Manifest, Precision, Quality, VectorQuality},
    },
    tokenizer::Tokenizer,
};

/// A bundle in a folder inside the scratch folder.
pub(super) struct Written {
    pub(super) folder: PathBuf,
    /// Cost before and after, if the weights were quantized.
    pub(super) comparison: Option<Comparison>,
    /// Why its precision is not the default, and which head is left out.
    pub(super) note: Option<String>,
    /// Tasks as plausible as the bundle's, if none was requested.
    pub(super) other_tasks: Vec<Task>,
}

/// Writes a plan's bundle. Unless a precision was requested, an encoder with int8 quality below the floor is written
/// with block quantization, if that is better.
pub(super) fn write(build: Build<'_>) -> Result<Written> {
    let plan = build.plan;
    let (written, shortfall) = write_in(build, None)?;
    let Some((form, shortfall)) = shortfall else { return Ok(written) };
    let others = if Weights::are_in(&plan.transformer()?) { form.fallbacks() } else { &[Precision::Fp32] };
    let is_fixed = plan.is_precision_fixed || seq2seq::is_in(&plan.folder);
    let [better, _] = others else { return Err(shortfall.refusal(others)) };
    if is_fixed {
        return Err(shortfall.refusal(others));
    }
    let reason = format!("chosen since int8 is below the floor: {}", shortfall.description);
    let better = Plan { precision: *better, ..plan.clone() };
    match write_in(Build { plan: &better, ..build }, Some(reason))? {
        (written, None) => Ok(written),
        (_, Some((form, shortfall))) => Err(shortfall.refusal(form.fallbacks())),
    }
}

fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    let notes: Vec<String> = first.into_iter().chain(second).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// Writes a plan's bundle, with the reason for its precision. Returns it with its quality shortfall, if any.
fn write_in(build: Build<'_>, reason: Option<String>) -> Result<(Written, Option<(WeightForm, Shortfall)>)> {
    let Build { plan, scratch, progress, .. } = build;
    progress.stage("read the weights", 1);
    let warnings = check_keys(plan)?;
    let mut source = open(build)?;
    if let TaskSettings::Encoder(EncoderSettings::Embedding(settings)) = &mut source.settings {
        plan.prompts.apply(settings)?;
    }
    let (task, other_tasks) = task(plan, &source.settings)?;
    let head = unused_head(plan, &source)?;
    let runtime = (build.runtime)()?;
    progress.step();

    let is_compared = plan.precision != Precision::Fp32 && !source.is_quantized;
    progress.stage("write the graphs", 1 + usize::from(is_compared));
    let write = |precision, name: &str| {
        let folder = files::create_folder(&scratch.join(name))?;
        onnx::write_all((source.graphs)(precision)?, &folder)?;
        progress.step();
        Ok::<_, Error>(folder)
    };
    let reference = is_compared.then(|| write(Precision::Fp32, "fp32")).transpose()?;
    let folder = write(plan.precision, &format!("bundle-{}", plan.precision))?;
    let forms = match &reference {
        Some(reference) => {
            Some(([reference.as_path(), &folder], [cost::size(reference)?, cost::size(&folder)?]))
        }
        None => None,
    };
    files::write(&folder.join(TOKENIZER), &source.tokenizer)?;
    if let Some(compiled) = Tokenizer::compile(&source.tokenizer)? {
        files::write(&folder.join(PIECES), &compiled)?;
    }
    for (name, bytes) in &source.files {
        files::write(&folder.join(name), bytes)?;
    }

    let signature = |graph| signature(&folder.join(graph), runtime);
    let mut vectors = None;
    let (graph, measured) = match &mut source.settings {
        TaskSettings::Encoder(settings) => {
            let tokenizer = Tokenizer::from_json(&source.tokenizer)?;
            let open = |folder: &Path, engine| EncoderModel::open(runtime, folder, engine);
            let model = open(&folder, source.engine)?;
            quality::encoder::check(&model, &tokenizer, settings)?;
            let measured = match forms {
                None => None,
                Some(([reference, _], sizes)) => {
                    let models = [&open(reference, Engine::Onnx)?, &model];
                    Some(quality::encoder::measure(models, sizes, &tokenizer, settings, progress)?)
                }
            };
            let (measured, of_sentences) = measured.unzip();
            if let EncoderSettings::Embedding(settings) = settings
                && settings.dense.is_some()
                && task == Task::FeatureExtraction
            {
                let (ranges, quality) =
                    calibration::calibrate(&model, &tokenizer, settings, of_sentences, progress)?;
                files::write(&folder.join(RANGES), &ranges.to_bytes())?;
                vectors = Some(quality);
            }
            (MODEL, measured)
        }
        TaskSettings::Seq2Seq(settings, _) => {
            settings.decoder.signature = signature(DECODER)?;
            let measure = |forms| quality::seq2seq::measure(runtime, forms, settings, progress);
            let measured = forms.map(measure).transpose()?;
            (ENCODER, measured.map(|(quality, comparison)| (vec![quality], comparison)))
        }
    };
    let (qualities, comparison) = measured.unzip();
    let qualities = qualities.unwrap_or_default();
    let shortfall = qualities.iter().find_map(|quality| quality::shortfall(quality, &plan.floor));
    let form = form(plan, &source);
    let mut manifest = manifest(plan, task, source, (graph, signature(graph)?), (qualities, vectors));
    manifest.warnings = warnings;
    if let Some(reason) = &reason {
        manifest.weights.plan = format!("{}; {reason}", manifest.weights.plan);
    }
    manifest.files = files::list(&folder)?
        .iter()
        .map(|(path, _)| describe(path, path.file_name().unwrap_or_default().to_string_lossy().into_owned()))
        .collect::<Result<_>>()?;
    files::write(&folder.join(MANIFEST), manifest.to_text()?.as_bytes())?;
    Ok((
        Written { folder, comparison, note: joined(head, reason), other_tasks },
        shortfall.map(|shortfall| (form, shortfall)),
    ))
}

/// Model formats.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Format {
    Bergamot,
    StaticEmbedding,
    Gliner,
    Seq2Seq,
    Encoder,
    Export,
}

/// Checks the keys in all model files; returns warnings about keys that the plan allows.
fn check_keys(plan: &Plan) -> Result<Vec<String>> {
    let kind = match format(plan)? {
        Format::Bergamot => return Ok(Vec::new()),
        Format::StaticEmbedding | Format::Encoder => Kind::Encoder,
        Format::Gliner => Kind::Gliner,
        Format::Seq2Seq => Kind::Seq2Seq,
        Format::Export => Kind::Export,
    };
    keys::check(plan, kind)
}

/// Opens the model in the plan's folder.
fn open(build: Build<'_>) -> Result<Source<'_>> {
    let format = format(build.plan)?;
    if build.plan.adapter.is_some() && format != Format::Encoder {
        return Err(Error::model(format!(
            "expected an encoder from safetensors or a checkpoint of PyTorch as the base of an adapter, but found another \
             model in `{}`; merge the adapter with `merge_and_unload` and `save_pretrained`",
            build.plan.folder.display()
        )));
    }
    match format {
        Format::Bergamot => bergamot::open(build.plan),
        Format::StaticEmbedding => static_embedding::open(build.plan),
        Format::Gliner => encoder::open_gliner(build.plan),
        Format::Seq2Seq => seq2seq::open(build),
        Format::Encoder => encoder::open(build.plan),
        Format::Export => export::open(build),
    }
}

/// Detects the model format in the plan's folder.
fn format(plan: &Plan) -> Result<Format> {
    let (folder, transformer) = (&plan.folder, &plan.transformer()?);
    if bergamot::is_in(folder) {
        Ok(Format::Bergamot)
    } else if static_embedding::is_in(folder)? {
        Ok(Format::StaticEmbedding)
    } else if encoder::is_gliner(folder) {
        Ok(Format::Gliner)
    } else if !transformer.join(ConfigFile::NAME).is_file() {
        let found = match transformer.join(MANIFEST).is_file() {
            true => "a bundle; `kivu serve` serves it",
            false => "neither `config.json` nor `model.….bin`",
        };
        Err(Error::model(format!(
            "expected a model in `{}` (`config.json`, `{TOKENIZER}`, and `model.safetensors` or `model.onnx`, or \
             for a Bergamot student `model.….bin`, `lex.….bin` and `{TOKENIZER}`), but found {found}",
            transformer.display()
        )))
    } else if seq2seq::is_in(folder) {
        Ok(Format::Seq2Seq)
    } else if Weights::are_in(transformer) && (is_supported(transformer) || !export::is_in(folder)) {
        Ok(Format::Encoder)
    } else {
        Ok(Format::Export)
    }
}

/// Whether `folder` has a supported encoder. Weights of other models are ignored if there is an export.
fn is_supported(folder: &Path) -> bool {
    ConfigFile::open(folder).is_ok_and(|config| encoder::MODEL_TYPES.contains(&config.model_type()))
}

fn signature(graph: &Path, runtime: Runtime) -> Result<Signature> {
    Ok(Session::open(runtime, graph, NonZeroUsize::MIN)?.signature().clone())
}

/// The weight form to write.
fn form(plan: &Plan, source: &Source<'_>) -> WeightForm {
    let kind = match source.settings {
        _ if source.is_quantized => ModelKind::Export,
        _ if source.architecture == static_embedding::ARCHITECTURE => ModelKind::Table,
        TaskSettings::Seq2Seq(..) => ModelKind::Generator,
        TaskSettings::Encoder(_) => ModelKind::Encoder,
    };
    WeightForm::new(plan.precision, source.engine, kind)
}

/// The manifest for the bundle in `folder`.
fn manifest(
    plan: &Plan,
    task: Task,
    source: Source<'_>,
    (graph, signature): (&str, Signature),
    (qualities, vectors): (Vec<Quality>, Option<VectorQuality>),
) -> Manifest {
    let storage = form(plan, &source).storage();
    let (mut embedding, mut classification, mut token_classification) = (None, None, None);
    let (mut zero_shot_entities, mut seq2seq) = (None, None);
    match source.settings {
        TaskSettings::Encoder(EncoderSettings::Embedding(settings)) => embedding = Some(settings),
        TaskSettings::Encoder(EncoderSettings::Classification(settings)) => classification = Some(settings),
        TaskSettings::Encoder(EncoderSettings::TokenClassification(settings)) => {
            token_classification = Some(settings);
        }
        TaskSettings::Encoder(EncoderSettings::ZeroShotEntities(settings)) => {
            zero_shot_entities = Some(settings);
        }
        TaskSettings::Seq2Seq(settings, _) => seq2seq = Some(*settings),
    }
    let mut qualities = qualities.into_iter();
    let quality = qualities.next();
    let kinds = embedding.iter().flat_map(EmbeddingSettings::outputs).skip(1);
    let other_vectors = kinds.map(|(kind, _)| kind).zip(qualities).collect();
    Manifest {
        format: Manifest::FORMAT,
        name: plan.name.clone(),
        aliases: plan.aliases.clone(),
        task,
        graph: graph.to_owned(),
        engine: source.engine,
        source: manifest::Source {
            architecture: source.architecture,
            from: plan.from.clone(),
            sha256: source.sha256,
        },
        weights: manifest::Weights {
            precision: plan.precision,
            plan: storage.to_owned(),
            quality,
            other_vectors,
        },
        vectors,
        embedding,
        classification,
        token_classification,
        zero_shot_entities,
        seq2seq,
        tensors: plan.tensors.clone(),
        warnings: Vec::new(),
        signature,
        files: Vec::new(),
    }
}
