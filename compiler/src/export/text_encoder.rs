//! Opens an encoder export as a bundle source. The architecture does not matter, except for the head that it names.

use super::{
    layers::{self, Export, POOLED},
    quantize::{check_precision, is_quantized, prepare},
};
use crate::{
    encoder::{
        EncoderLimits, Head, HeadKind, LOGITS, text_settings, token_settings, unnamed_label_head,
    },
    files::{config::ConfigFile, model_folder::ModelFolder, module_list::has_pooling},
    onnx,
    plan::{
        Build, Plan,
        opened_model::{MODEL, OpenedModel},
    },
    sentence_transformers::{embedding_settings, makes_vectors},
    tokenizers::{
        token_rows::{other_unknown_token, within_vocabulary},
        tokenizer_config::read_tokenizer,
    },
};
use kivu::{
    Error, Result,
    backend::Engine,
    config::EngineChoice,
    error::quoted,
    onnx_proto::{Dimension, DimensionProto, ModelProto, ValueInfoProto, data_type},
    pipeline::{
        embedding::EmbeddingSettings, entities::token_classification::TokenClassificationSettings,
    },
    repository::{TaskSettings, manifest::Precision},
    tokenizer::Tokenizer,
};

/// Graph files, in order of preference.
pub const GRAPHS: [&str; 4] = [
    "model.onnx",
    "model_quantized.onnx",
    "onnx/model.onnx",
    "onnx/model_quantized.onnx",
];

/// Supported outputs, in order of preference: a vector per token, or one per text that is already pooled.
const OUTPUTS: [&str; 3] = ["last_hidden_state", "token_embeddings", POOLED];

/// Reads the export in the plan's folder.
pub fn open(build: Build<'_>) -> Result<OpenedModel<'_>> {
    let plan = build.plan;
    let path = GRAPHS
        .iter()
        .map(|name| plan.folder.join(name))
        .find(|path| path.is_file());
    let config = ConfigFile::open(&plan.folder)?;
    let path = path.ok_or_else(|| {
        Error::model(format!(
            "expected an ONNX export (`model.onnx`) in `{}`, but found none",
            plan.folder.display()
        ))
    })?;
    let encoder_limits = EncoderLimits::read(&config)?;
    let model = onnx::read(&path)?;
    check_axes(&model)?;
    check_outputs(&model)?;
    let is_quantized = is_quantized(&model);
    let tokenizer = read_tokenizer(&plan.folder)?;
    let tokenizer = match config.get_size("vocab_size")? {
        Some(rows) => within_vocabulary(tokenizer, rows)?,
        None => tokenizer,
    };
    let head = head(plan, &config, &model)?;
    let settings = match &head {
        Some(head) if head.kind == HeadKind::Text => {
            check_padding(&config, &tokenizer)?;
            TaskSettings::Classification(text_settings(&plan.folder, head, &encoder_limits)?)
        }
        Some(head) => {
            let unknown_token = other_unknown_token(&plan.folder, &tokenizer)?;
            let settings = token_settings(&plan.folder, head, &encoder_limits)?;
            TaskSettings::TokenClassification(TokenClassificationSettings {
                unknown_token,
                ..settings
            })
        }
        None => TaskSettings::Embedding(embedding(plan, &model, &encoder_limits)?),
    };
    let layers = match plan.engine {
        EngineChoice::Onnx => None,
        _ if is_quantized || plan.precision == Precision::Fp32 => None,
        EngineChoice::Auto | EngineChoice::Native => {
            let export = Export {
                model: &model,
                config: &config,
                head,
                settings: &settings,
                tokenizer: &tokenizer,
            };
            let read = layers::read(build, export);
            read.inspect_err(|reason| tracing::info!("the export stays a graph: {reason}"))
                .ok()
        }
    };
    check_precision(plan.precision, [is_quantized, layers.is_some()], &path)?;
    Ok(OpenedModel {
        settings,
        generates: &[],
        architecture: encoder_limits.architecture,
        sha256: onnx::sha256(&path)?,
        tokenizer,
        files: Vec::new(),
        unused_heads: Vec::new(),
        keeps_attention: layers.as_ref().is_some_and(|layers| layers.keeps_attention),
        is_export: layers.is_none(),
        is_quantized,
        engine: match layers {
            Some(_) => Engine::Native,
            None => Engine::Onnx,
        },
        fp32_engine: Engine::Onnx,
        graphs: Box::new(move |precision, forms| match &layers {
            Some(layers) if precision != Precision::Fp32 => (layers.graphs)(precision, forms),
            _ => Ok(vec![(MODEL, prepare(&model, precision, build)?)]),
        }),
    })
}

/// Refuses inputs for a fixed number or length of texts.
fn check_axes(model: &ModelProto) -> Result<()> {
    let fixed = |axis: &DimensionProto| match axis.value {
        Some(Dimension::DimValue(length)) if length > 0 => length.to_string(),
        _ => "any".to_owned(),
    };
    for input in model.graph.iter().flat_map(|graph| &graph.input) {
        let tensor = input.r#type.as_ref().and_then(|it| it.tensor_type.as_ref());
        let shape = tensor.and_then(|tensor| tensor.shape.as_ref());
        let axes: Vec<String> = shape
            .iter()
            .flat_map(|shape| &shape.dim)
            .map(fixed)
            .collect();
        if axes.len() == 2 && axes.iter().any(|axis| axis != "any") {
            return Err(Error::model(format!(
                "the input `{}` has a fixed shape, ({})",
                input.name,
                axes.join(", ")
            ))
            .with_hint("export the model with dynamic axes, as `optimum-cli export onnx` does"));
        }
    }
    Ok(())
}

/// Refuses outputs in half precision.
pub fn check_outputs(model: &ModelProto) -> Result<()> {
    const HALVES: [i32; 2] = [data_type::FLOAT16, data_type::BFLOAT16];
    let is_half = |output: &&ValueInfoProto| {
        let tensor = output
            .r#type
            .as_ref()
            .and_then(|it| it.tensor_type.as_ref());
        tensor.is_some_and(|tensor| HALVES.contains(&tensor.elem_type))
    };
    match model
        .graph
        .iter()
        .flat_map(|graph| &graph.output)
        .find(is_half)
    {
        None => Ok(()),
        Some(output) => Err(Error::model(format!(
            "the output `{}` of the export is in half precision",
            output.name
        ))
        .with_hint(
            "export the model in fp32, as `optimum-cli export onnx` does without `--dtype`",
        )),
    }
}

/// The label head that the config names, if the graph has its output: classifiers can be exported without it.
fn head(plan: &Plan, config: &ConfigFile, model: &ModelProto) -> Result<Option<Head>> {
    if !outputs(model).contains(&LOGITS) || makes_vectors(&plan.folder)? {
        return Ok(None);
    }
    match Head::read(config)? {
        Some(head) => Ok(Some(head)),
        None if !config.names_head() => unnamed_label_head(plan, config, LOGITS),
        None => Err(Error::model(format!(
            "expected `architectures` to name the label head of an export with the output \
             `{LOGITS}`, such as `…ForSequenceClassification`, but found `{}`",
            config.architecture()
        ))
        .with_hint("for embeddings, export the model with `--task feature-extraction`")),
    }
}

/// Refuses a padding token other than the tokenizer's: a decoder's exported head reads the last token before it.
fn check_padding(config: &ConfigFile, tokenizer: &[u8]) -> Result<()> {
    let found = Tokenizer::from_json(tokenizer)?.padding_id();
    match config.get::<u32>("pad_token_id")? {
        Some(expected) if expected != found => Err(Error::model(format!(
            "expected `pad_token_id` {found}, with which texts are padded, in an export with a \
             label head, but found {expected}"
        ))
        .with_hint("build from the weights")),
        _ => Ok(()),
    }
}

/// Settings for an export that computes embeddings.
fn embedding(
    plan: &Plan,
    model: &ModelProto,
    encoder_limits: &EncoderLimits,
) -> Result<EmbeddingSettings> {
    let output = output(model, &plan.folder)?;
    let (settings, _) = embedding_settings(&plan.folder, output, encoder_limits)?;
    if settings.unpooled.is_some() {
        return Err(Error::model(
            "expected `include_prompt` true in the pooling of an export, but found false",
        )
        .with_hint("build from the weights"));
    }
    let read = settings
        .dense
        .as_ref()
        .map_or("", |dense| dense.output.as_str());
    if !outputs(model).contains(&read) {
        return Err(Error::model(format!(
            "expected an export with the output `{}`, since the model has modules after its \
             pooling, but found only `{output}`",
            read
        ))
        .with_hint("build from the weights, or export the model with sentence-transformers"));
    }
    Ok(settings)
}

/// The output for embeddings. Unless the folder has pooling settings, prefers an output pooled by the graph.
pub fn output(model: &ModelProto, folder: &ModelFolder) -> Result<&'static str> {
    let found = outputs(model);
    let mut preferred = OUTPUTS;
    if !has_pooling(folder) {
        preferred.rotate_right(1);
    }
    preferred
        .into_iter()
        .find(|name| found.contains(name))
        .ok_or_else(|| {
            Error::model(format!(
                "expected an output among {}, but found {}",
                quoted(&OUTPUTS),
                quoted(&found)
            ))
        })
}

/// The names of a graph's outputs.
fn outputs(model: &ModelProto) -> Vec<&str> {
    model
        .graph
        .iter()
        .flat_map(|graph| &graph.output)
        .map(|output| output.name.as_str())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn export() -> ModelProto {
        let path = "../tests/fixtures/exports/tiny-bert-st/model.onnx";
        onnx::read(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap()
    }

    fn tensor(value: &mut ValueInfoProto) -> &mut kivu::onnx_proto::TensorTypeProto {
        value.r#type.as_mut().unwrap().tensor_type.as_mut().unwrap()
    }

    #[test]
    fn fixed_shapes_are_refused() {
        check_axes(&export()).unwrap();
        let refused = |axis: usize, length| {
            let mut model = export();
            let input = &mut model.graph.as_mut().unwrap().input[1];
            tensor(input).shape.as_mut().unwrap().dim[axis].value =
                Some(Dimension::DimValue(length));
            check_axes(&model).unwrap_err().to_string()
        };
        insta::assert_snapshot!(refused(0, 1), @"the input `attention_mask` has a fixed shape, (1, any); export the model with dynamic axes, as `optimum-cli export onnx` does");
        insta::assert_snapshot!(refused(1, 128), @"the input `attention_mask` has a fixed shape, (any, 128); export the model with dynamic axes, as `optimum-cli export onnx` does");
    }

    #[test]
    fn outputs_in_half_precision_are_refused() {
        check_outputs(&export()).unwrap();
        for half in [data_type::FLOAT16, data_type::BFLOAT16] {
            let mut model = export();
            let output = model.graph.as_mut().unwrap().output.last_mut().unwrap();
            tensor(output).elem_type = half;
            let error = check_outputs(&model).unwrap_err();
            assert!(
                error
                    .problem()
                    .ends_with("of the export is in half precision")
            );
        }
    }
}
