//! Writes a source as a bundle and measures its quality.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    calibration,
    detect::{check_keys, open},
};
use crate::{
    fast_text,
    files::io as files,
    onnx,
    plan::{
        Build, Plan, model_card,
        opened_model::{DECODER, ENCODER, LABEL_TOKENIZER, MODEL, OpenedModel},
        task::{name_entailment, require_sparse, require_template, task, unused_head},
    },
    quality::{
        self, Candidates, PairQuality, Pairs, Shortfall, Texts,
        compare::{is_better, note, qualities},
        cost::{self, Comparison},
        pairs,
        served::{self, Answers, EncoderParts, open_native},
    },
    quantize::layer_calibration::{CALIBRATION_TEXTS, Calibration, MIN_PRODUCTS},
    sentence_transformers::static_embedding,
    tokenizers::token_rows::knows_unknown_words,
};
use kivu::{
    Error, Result,
    backend::{Engine, Signature},
    model::EncoderPipeline,
    onnx_proto::{GraphProto, ModelProto},
    pipeline::{Task, embedding::EmbeddingSettings, seq2seq::Seq2SeqSettings},
    repository::{
        ModelKind, TaskSettings, WeightForm,
        bundle::{Bundle, MANIFEST, PIECES, RANGES, TOKENIZER, describe},
        manifest::{self, Manifest, Precision, Quality, VectorQuality},
    },
    tokenizer::{Side, Tokenizer, Truncation},
};
use kivu_engine::quantize::fit::MAX_BLOCK;

/// A completed build.
#[derive(Debug)]
pub struct Built {
    /// The bundle in the requested folder.
    pub bundle: Bundle,
    /// The cost before and after quantization; `None` if the build did not quantize.
    pub comparison: Option<Comparison>,
    /// Results on the requested pairs, beside the fp32 form's if the build quantized.
    pub pairs: Option<PairQuality>,
    /// Why the precision is not the default, and which head is left out.
    pub note: Option<String>,
    /// Tasks as plausible as the bundle's, if none was requested.
    pub other_tasks: Vec<Task>,
}

/// Writes a plan's bundle in the scratch folder. Unless a precision was requested, an encoder whose quality in int8 is below
/// the floor is written in the next better precision that reaches it: with block quantization, or in fp32.
pub fn write(build: Build<'_>) -> Result<Built> {
    let plan = build.plan;
    let mut model = Model::read(build)?;
    let (built, shortfall) = model.write(model.precision(), None)?;
    let Some((form, shortfall)) = shortfall else {
        return Ok(built);
    };
    let others = match model.source.is_export {
        true => &[Precision::Fp32],
        false => form.fallbacks(),
    };
    if plan.is_precision_fixed || matches!(model.source.settings, TaskSettings::Seq2Seq(..)) {
        return Err(shortfall.refusal(others));
    }
    let mut reason = format!(
        "chosen since {} is below the floor: {}",
        model.precision(),
        shortfall.description
    );
    let mut last = shortfall;
    for better in others {
        let (built, shortfall) = model.write(*better, Some(reason.clone()))?;
        let Some((_, shortfall)) = shortfall else {
            return Ok(built);
        };
        reason = format!("{reason}; and {better} too: {}", shortfall.description);
        last = shortfall;
    }
    Err(last.refusal(&[Precision::Fp32]))
}

/// Counts the tokens of each prompt for a model that does not pool them: as in sentence-transformers all tokens but a
/// special one at the end.
pub fn count_unpooled(settings: &mut EmbeddingSettings, tokenizer: &[u8]) -> Result<()> {
    let Some(counts) = &mut settings.unpooled else {
        return Ok(());
    };
    let (tokenizer, limit) = (Tokenizer::from_json(tokenizer)?, settings.max_tokens);
    let [_, after] = tokenizer.special_ids();
    for (name, prompt) in &settings.prompts {
        let ids = match prompt.is_empty() {
            true => Vec::new(),
            false => {
                tokenizer
                    .encode(prompt, limit, Truncation::At(Side::Right))?
                    .ids
            }
        };
        let last: Vec<u32> = ids.last().copied().into_iter().collect();
        let decode = |skips_special| tokenizer.decode(&last, skips_special);
        if ids.len() >= limit {
            return Err(Error::model(format!(
                "the prompt `{name}` has {} tokens, but a text has at most {limit} with it",
                ids.len()
            )));
        }
        if after.is_empty() && decode(true)? != decode(false)? {
            return Err(Error::model(format!(
                "the prompt `{name}` ends with a special token, which `include_prompt` false does not support"
            )));
        }
        counts.insert(
            name.clone(),
            ids.len().saturating_sub(usize::from(!after.is_empty())),
        );
    }
    Ok(())
}

/// Notes whether a classifier's labels are languages, if the recipe says.
fn identify_languages(plan: &Plan, settings: &mut TaskSettings) -> Result<()> {
    match (plan.identifies_languages, settings) {
        (None, _) => Ok(()),
        (Some(identifies), TaskSettings::Classification(settings))
            if plan
                .task
                .is_none_or(|task| task == Task::TextClassification) =>
        {
            settings.identifies_languages = identifies;
            Ok(())
        }
        (Some(_), _) => Err(Error::model(format!(
            "`identifies_languages` is only for recipes with the task `{}`",
            Task::TextClassification
        ))),
    }
}

fn joined(first: Option<String>, second: Option<String>) -> Option<String> {
    let notes: Vec<String> = first.into_iter().chain(second).collect();
    (!notes.is_empty()).then(|| notes.join("; "))
}

/// An opened model, and the data that its bundles share across precisions.
struct Model<'a> {
    build: Build<'a>,
    source: OpenedModel<'a>,
    task: Task,
    other_tasks: Vec<Task>,
    /// Note on the head that is left out.
    head: Option<String>,
    warnings: Vec<String>,
    /// Texts for the quality gate.
    texts: Texts,
    /// Pairs on which the bundle and its fp32 form are measured.
    pairs: Option<Pairs>,
    /// Written and measured once, for all quantized bundles.
    reference: Option<Reference>,
}

/// A model's fp32 graphs, the reference for quality measurement.
struct Reference {
    graphs: WrittenGraphs,
    /// Encoders only; `None` until they are measured.
    answers: Option<Answers>,
}

struct WrittenGraphs {
    folder: PathBuf,
    /// Graph and weight file size.
    bytes: u64,
    signatures: Vec<(&'static str, Signature)>,
}

impl WrittenGraphs {
    fn signature(&self, graph: &str) -> Result<Signature> {
        let found = self.signatures.iter().find(|(name, _)| *name == graph);
        let found = found
            .ok_or_else(|| Error::model(format!("expected the graph `{graph}`, but found none")))?;
        Ok(found.1.clone())
    }
}

/// A bundle's quality and cost, and the vector settings for its manifest.
#[derive(Default)]
struct Measured {
    qualities: Vec<Quality>,
    comparison: Option<Comparison>,
    vectors: Option<VectorQuality>,
    pairs: Option<PairQuality>,
    note: Option<String>,
}

/// A written encoder and its quality.
struct MeasuredEncoder {
    model: EncoderPipeline,
    measured: Measured,
    /// The sample texts' document vectors or scores, if the quality was measured.
    documents: Option<Vec<Vec<f32>>>,
}

/// The graph that a manifest describes, and its measurements.
struct MeasuredGraph<'a> {
    graph: &'a str,
    signature: Signature,
    precision: Precision,
    /// How the weights are stored.
    storage: String,
    qualities: Vec<Quality>,
    vectors: Option<VectorQuality>,
}

impl<'a> Model<'a> {
    fn read(build: Build<'a>) -> Result<Self> {
        let Build { plan, progress, .. } = build;
        progress.stage("read the weights", 1);
        let mut warnings = check_keys(plan)?;
        warnings.extend(model_card::warning(plan));
        let mut source = open(build)?;
        require_sparse(plan, &source)?;
        require_template(plan, &source)?;
        knows_unknown_words(&source.tokenizer)?;
        if let TaskSettings::Embedding(settings) = &mut source.settings {
            plan.prompts.apply(settings)?;
            count_unpooled(settings, &source.tokenizer)?;
        }
        identify_languages(plan, &mut source.settings)?;
        let (task, other_tasks) = task(plan, &source.settings, source.generates)?;
        if let TaskSettings::Classification(settings) = &mut source.settings
            && task == Task::ZeroShotClassification
        {
            warnings.extend(name_entailment(plan, &mut settings.labels)?);
        }
        let head = unused_head(plan, &source)?;
        progress.step();
        let texts = plan.samples.texts.clone().unwrap_or_default();
        let pairs = plan.samples.pairs.clone();
        let for_task = |pairs: Pairs| pairs.for_task(task, Candidates::default());
        Ok(Self {
            build,
            source,
            task,
            other_tasks,
            head,
            warnings,
            texts,
            pairs: pairs.map(for_task).transpose()?,
            reference: None,
        })
    }

    /// The precision to begin with: the vectors in fastText models are small and stay exact.
    fn precision(&self) -> Precision {
        match self.source.architecture == fast_text::ARCHITECTURE {
            true => Precision::Fp32,
            false => self.build.plan.precision,
        }
    }

    /// Writes a bundle, with the reason for its precision. Returns it with its quality shortfall, if any.
    fn write(
        &mut self,
        precision: Precision,
        reason: Option<String>,
    ) -> Result<(Built, Option<(WeightForm, Shortfall)>)> {
        let plan = self.build.plan;
        let mut graphs = self.write_graphs(precision, None)?;
        let tokenizer = Arc::new(self.write_files(&graphs.folder)?);
        let mut settings = self.source.settings.clone();
        let mut storage = self.form(precision).storage().to_owned();
        if self.source.keeps_attention && precision == Precision::Int8Blocks {
            storage.push_str("; attention: fp32");
        }
        let (graph, measured) = match &mut settings {
            TaskSettings::Seq2Seq(settings) => {
                settings.decoder.signature = graphs.signature(DECODER)?;
                (ENCODER, self.measure_generator(settings, &graphs)?)
            }
            settings => {
                let labels = self
                    .source
                    .files
                    .iter()
                    .find(|(name, _)| *name == LABEL_TOKENIZER);
                let labels = labels
                    .map(|(_, json)| Tokenizer::from_json(json).map(Arc::new))
                    .transpose()?;
                let (runtime, labels) = (self.build.runtime, labels.as_ref());
                let parts = EncoderParts {
                    runtime,
                    tokenizer: &tokenizer,
                    settings,
                    labels,
                };
                let mut encoder = self.measure_encoder(parts, &graphs, precision)?;
                if matches!(
                    self.form(precision),
                    WeightForm::NativeInt8 | WeightForm::NativeBlocks
                ) {
                    let fitting = self.fit(parts, precision, &mut graphs, &mut encoder)?;
                    storage = format!("{storage}; {fitting}");
                }
                if let Some(own) = &self.pairs {
                    encoder.measured.pairs =
                        Some(self.measure_pairs(parts, &encoder.model, own)?);
                }
                (MODEL, self.calibrate_vectors(encoder, &graphs.folder)?)
            }
        };
        let Measured {
            qualities,
            comparison,
            vectors,
            pairs,
            note,
        } = measured;
        let shortfall = plan.floor.as_ref().and_then(|floor| {
            qualities
                .iter()
                .find_map(|quality| quality::shortfall(quality, floor))
        });
        let form = self.form(precision);
        let signature = graphs.signature(graph)?;
        if let Some(reason) = &reason {
            storage = format!("{storage}; {reason}");
        }
        let graph = MeasuredGraph {
            graph,
            signature,
            precision,
            storage,
            qualities,
            vectors,
        };
        let mut manifest = self.manifest(settings, graph);
        let folder = graphs.folder;
        manifest.files = files::list(&folder)?
            .iter()
            .map(|(path, _)| {
                describe(
                    path,
                    path.file_name()
                        .unwrap_or_default()
                        .to_string_lossy()
                        .into_owned(),
                )
            })
            .collect::<Result<_>>()?;
        files::write(&folder.join(MANIFEST), manifest.to_text()?.as_bytes())?;
        let note = joined(joined(self.head.clone(), note), reason);
        let built = Built {
            bundle: Bundle::open(&folder)?,
            comparison,
            pairs,
            note,
            other_tasks: self.other_tasks.clone(),
        };
        Ok((built, shortfall.map(|shortfall| (form, shortfall))))
    }

    /// Writes the bundle's graphs, and the fp32 reference before the first quantized form.
    fn write_graphs(
        &mut self,
        precision: Precision,
        calibration: Option<&Calibration>,
    ) -> Result<WrittenGraphs> {
        let Build {
            scratch, progress, ..
        } = self.build;
        let is_compared = precision != Precision::Fp32 && !self.source.is_quantized;
        let lacks_reference = is_compared && self.reference.is_none();
        let (stage, kind) = match calibration {
            Some(_) => ("fit the layers", "-fitted"),
            None => ("write the graphs", ""),
        };
        progress.stage(stage, 1 + usize::from(lacks_reference));
        let write = |precision, name: &str| {
            let folder = files::create_folder(&scratch.join(name))?;
            let graphs = (self.source.graphs)(precision, calibration)?;
            let signature = |(name, model): &(&'static str, ModelProto)| {
                Ok((
                    *name,
                    Signature::declared(model.graph.as_ref().unwrap_or(&GraphProto::default()))?,
                ))
            };
            let signatures = graphs.iter().map(signature).collect::<Result<_>>()?;
            onnx::write_all(graphs, &folder)?;
            progress.step();
            Ok::<_, Error>(WrittenGraphs {
                bytes: cost::size(&folder)?,
                folder,
                signatures,
            })
        };
        if lacks_reference {
            self.reference = Some(Reference {
                graphs: write(Precision::Fp32, "fp32")?,
                answers: None,
            });
        }
        write(precision, &format!("bundle-{precision}{kind}"))
    }

    /// Writes an encoder in 8 bits again, with layers that are fitted to sample texts, and keeps that form if it is
    /// better. Returns its description.
    fn fit(
        &mut self,
        parts: EncoderParts<'_>,
        precision: Precision,
        graphs: &mut WrittenGraphs,
        encoder: &mut MeasuredEncoder,
    ) -> Result<String> {
        let (folder, model) = (&graphs.folder, open_native(&graphs.folder)?);
        if model.token_products() < MIN_PRODUCTS {
            return Ok(format!(
                "not fitted to sample texts, with less than {MIN_PRODUCTS} products a token"
            ));
        }
        let calibration = Calibration::record(model, precision, |backend| {
            let model = served::with_backend(parts, folder, Engine::Native, backend)?;
            served::run(&model, CALIBRATION_TEXTS)
        })?;
        if !calibration.is_sufficient() {
            let tokens = calibration.tokens();
            return Ok(format!(
                "not fitted to sample texts, which have only {tokens} tokens"
            ));
        }
        if !calibration.has_layers() {
            return Ok(
                "not fitted to sample texts, since no quantized matrix runs on all tokens"
                    .to_owned(),
            );
        }
        let fitted = self.write_graphs(precision, Some(&calibration))?;
        let [layers, scaled] = calibration.counts();
        if layers == 0 {
            return Ok(
                "not fitted to sample texts, since the weights were quantized before".to_owned(),
            );
        }
        let found = self.measure_encoder(parts, &fitted, precision)?;
        if !is_better(&encoder.measured.qualities, &found.measured.qualities) {
            return Ok(
                "not fitted to sample texts, which would not improve the quality".to_owned(),
            );
        }
        for (path, _) in files::list(&fitted.folder)? {
            files::rename(
                &path,
                &graphs.folder.join(path.file_name().unwrap_or_default()),
            )?;
        }
        *graphs = WrittenGraphs {
            folder: graphs.folder.clone(),
            ..fitted
        };
        *encoder = found;
        let scales = match precision {
            Precision::Int8Blocks => {
                format!(
                    "one scale for every {MAX_BLOCK} weights or fewer, and likewise activations"
                )
            }
            _ => "up to 8 scales an output channel and a token".to_owned(),
        };
        Ok(format!(
            "{layers} matrices fitted to {} tokens of sample texts, with {scales}, and {scaled} of them with a factor an \
             input column",
            calibration.tokens()
        ))
    }

    /// Writes a bundle's precision-independent files. Returns the tokenizer as served.
    fn write_files(&self, folder: &Path) -> Result<Tokenizer> {
        let OpenedModel {
            tokenizer, files, ..
        } = &self.source;
        files::write(&folder.join(TOKENIZER), tokenizer)?;
        for (name, bytes) in files {
            files::write(&folder.join(name), bytes)?;
        }
        match Tokenizer::compile(tokenizer)? {
            Some(compiled) => {
                files::write(&folder.join(PIECES), &compiled)?;
                Tokenizer::from_compiled(compiled)
            }
            None => Tokenizer::from_json(tokenizer),
        }
    }

    /// Measures an encoder through its serving pipeline.
    fn measure_encoder(
        &mut self,
        parts: EncoderParts<'_>,
        graphs: &WrittenGraphs,
        precision: Precision,
    ) -> Result<MeasuredEncoder> {
        let [engine, of_fp32] = [precision, Precision::Fp32].map(|it| self.engine(it));
        let progress = self.build.progress;
        let model = served::open(parts, &graphs.folder, engine)?;
        served::check(&model, &self.texts)?;
        let (mut measured, mut documents) = (Measured::default(), None);
        if let Some(Reference {
            graphs: of_reference,
            answers,
        }) = &mut self.reference
            && precision != Precision::Fp32
        {
            let forms = 1 + usize::from(answers.is_none());
            progress.stage("measure the quality", forms * self.texts.count());
            let reference = match answers.take() {
                Some(answers) => answers,
                None => {
                    let reference = served::open(parts, &of_reference.folder, of_fp32)?;
                    served::measure(&reference, &self.texts, progress)?
                }
            };
            let built = served::measure(&model, &self.texts, progress)?;
            let bytes = [of_reference.bytes, graphs.bytes];
            measured.comparison = Some(Comparison::new(
                bytes,
                [reference.time, built.time],
                built.reads,
            ));
            measured.qualities = qualities(parts.settings, [&reference, &built]);
            measured.note = note(&reference);
            *answers = Some(reference);
            documents = Some(built.values());
        }
        Ok(MeasuredEncoder {
            model,
            measured,
            documents,
        })
    }

    /// Measures and writes the ranges of an embedding model's vectors.
    fn calibrate_vectors(&self, encoder: MeasuredEncoder, folder: &Path) -> Result<Measured> {
        let MeasuredEncoder {
            model,
            mut measured,
            documents,
        } = encoder;
        if let EncoderPipeline::Embedding(pipeline) = &model
            && pipeline.settings().dense.is_some()
            && self.task == Task::FeatureExtraction
        {
            let (ranges, quality) =
                calibration::calibrate(pipeline, documents, &self.texts, self.build.progress)?;
            files::write(&folder.join(RANGES), &ranges.to_bytes())?;
            measured.vectors = Some(quality);
        }
        Ok(measured)
    }

    /// Measures an encoder on the user's pairs, and the fp32 reference if there is one.
    fn measure_pairs(
        &self,
        parts: EncoderParts<'_>,
        model: &EncoderPipeline,
        own: &Pairs,
    ) -> Result<PairQuality> {
        let progress = self.build.progress;
        let reference = self.reference.as_ref().map(|Reference { graphs, .. }| {
            pairs::figures(
                &served::open(parts, &graphs.folder, self.engine(Precision::Fp32))?,
                own,
                progress,
            )
        });
        Ok(PairQuality::new(
            own,
            pairs::figures(model, own, progress)?,
            reference.transpose()?,
        ))
    }

    /// Measures a text generator.
    fn measure_generator(
        &self,
        settings: &Seq2SeqSettings,
        graphs: &WrittenGraphs,
    ) -> Result<Measured> {
        let (texts, progress) = (self.build.plan.samples.texts.as_ref(), self.build.progress);
        let runtime = (self.build.runtime)()?;
        let Some(Reference {
            graphs: reference, ..
        }) = &self.reference
        else {
            let model = quality::step_comparison::check(runtime, &graphs.folder, settings)?;
            let pairs = self.pairs.as_ref().map(|own| {
                let found = quality::step_comparison::references(&model, own, progress)?;
                Ok::<_, Error>(PairQuality::new(own, found, None))
            });
            return Ok(Measured {
                pairs: pairs.transpose()?,
                ..Measured::default()
            });
        };
        let folders = [reference.folder.as_path(), &graphs.folder];
        let pair = quality::step_comparison::Pair::open(runtime, folders, settings)?;
        let bytes = [reference.bytes, graphs.bytes];
        let (quality, comparison) =
            quality::step_comparison::measure(&pair, texts, bytes, progress)?;
        let pairs = self.pairs.as_ref().map(|own| {
            let [reference, built] = pair.references(own, progress)?;
            Ok::<_, Error>(PairQuality::new(own, built, Some(reference)))
        });
        Ok(Measured {
            qualities: vec![quality],
            comparison: Some(comparison),
            pairs: pairs.transpose()?,
            ..Measured::default()
        })
    }

    /// The engine that a bundle in this precision is for.
    fn engine(&self, precision: Precision) -> Engine {
        match precision {
            Precision::Fp32 => self.source.fp32_engine,
            Precision::Int8 | Precision::Int8Blocks => self.source.engine,
        }
    }

    fn form(&self, precision: Precision) -> WeightForm {
        WeightForm::new(precision, self.engine(precision), self.kind())
    }

    fn kind(&self) -> ModelKind {
        let source = &self.source;
        match source.settings {
            _ if source.is_quantized => ModelKind::Export,
            _ if [static_embedding::ARCHITECTURE, fast_text::ARCHITECTURE]
                .contains(&&*source.architecture) =>
            {
                ModelKind::Table
            }
            TaskSettings::Seq2Seq(..) => ModelKind::Generator,
            _ => ModelKind::Encoder,
        }
    }

    /// The bundle's manifest, without its file list.
    fn manifest(&self, settings: TaskSettings, measured: MeasuredGraph<'_>) -> Manifest {
        let MeasuredGraph {
            graph,
            signature,
            precision,
            storage,
            qualities,
            vectors,
        } = measured;
        let (plan, source) = (self.build.plan, &self.source);
        let mut qualities = qualities.into_iter();
        let quality = qualities.next();
        let kinds = settings
            .embedding()
            .into_iter()
            .flat_map(EmbeddingSettings::outputs)
            .skip(1);
        let other_vectors = kinds.map(|(kind, _)| kind).zip(qualities).collect();
        Manifest {
            format: Manifest::FORMAT,
            name: plan.name.clone(),
            aliases: plan.aliases.clone(),
            task: self.task,
            graph: graph.to_owned(),
            engine: self.engine(precision),
            source: manifest::Origin {
                architecture: source.architecture.clone(),
                from: plan.from.clone(),
                sha256: source.sha256.clone(),
            },
            weights: manifest::Weights {
                precision,
                plan: storage,
                quality,
                other_vectors,
            },
            vectors,
            settings,
            tensors: plan.tensors.clone(),
            allowed: plan.allow.clone(),
            warnings: self.warnings.clone(),
            signature,
            files: Vec::new(),
        }
    }
}
