//! Static embeddings: sentence-transformers' `StaticEmbedding`, and model2vec. A text's vector is the mean of its
//! tokens' table rows.
//!
//! Results match sentence-transformers for both packages' files: unknown tokens have a row too, and texts are not
//! truncated. (model2vec itself leaves unknown tokens out and truncates at 512 tokens.)

use serde_json::Value as Json;

use super::{
    modules::{Modules, POOLED},
    static_folder, static_settings,
};
use crate::{
    files::{
        io::{parse_tokenizer, read_tokenizer},
        model_folder::ModelFolder,
        weights::{Weight, Weights, check_finite, combined_sha256},
    },
    onnx::{GraphBuilder, ModelProto, any, fixed, functions, layers::Layers},
    plan::{
        Plan,
        opened_model::{MODEL, OpenedModel},
    },
    quantize,
    tokenizers::parts::to_bytes,
};
use kivu::{
    Error, Result,
    backend::{
        Engine,
        native::{MEAN_OF_INT8_ROWS, MEAN_OF_ROWS},
    },
    config::EngineChoice,
    repository::manifest::Precision,
    repository::{STATIC_EMBEDDING, TaskSettings},
    tokenizer::Tokenizer,
};

/// The architecture in the manifest.
pub const ARCHITECTURE: &str = STATIC_EMBEDDING;
/// Maximum number of tokens for models without a limit, far above what requests contain.
const MAX_TOKENS: usize = 1 << 20;

/// Whether the model in `folder` is a table.
pub fn is_in(folder: &ModelFolder) -> Result<bool> {
    Ok(static_folder(folder)?.is_some())
}

/// Opens the table in the plan's folder.
pub fn open(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = static_folder(&plan.folder)?.unwrap_or_else(|| plan.folder.clone());
    let (tokenizer, max_tokens) = without_special_tokens(&read_tokenizer(&folder)?)?;
    let weights = Weights::open(&folder)?;
    let table = table(&weights)?;
    let [height, width] = [table.shape[0], table.shape[1]];
    let vocabulary = Tokenizer::from_json(&tokenizer)?.vocabulary_size();
    if height < vocabulary {
        return Err(Error::model(format!(
            "expected a row for each of the tokenizer's {vocabulary} tokens, but found {height} rows"
        )));
    }
    let (settings, modules) = static_settings(&plan.folder, width, max_tokens)?;
    let engine = match plan.engine {
        EngineChoice::Onnx => Engine::Onnx,
        EngineChoice::Auto | EngineChoice::Native if modules.is_empty() => Engine::Native,
        EngineChoice::Auto => Engine::Onnx,
        EngineChoice::Native => {
            return Err(Error::model(
                "the native engine runs static embeddings with no module other than `Normalize`",
            )
            .with_hint("use `--engine auto`"));
        }
    };
    let sha256 = combined_sha256(&weights.sha256, modules.sources());
    Ok(OpenedModel {
        architecture: ARCHITECTURE.to_owned(),
        sha256,
        settings: TaskSettings::Embedding(settings),
        generates: &[],
        tokenizer,
        files: Vec::new(),
        unused_heads: Vec::new(),
        keeps_attention: false,
        is_export: false,
        is_quantized: false,
        engine,
        fp32_engine: engine,
        graphs: Box::new(move |precision, _| {
            Ok(vec![(MODEL, graph(&weights, &table, &modules, precision)?)])
        }),
    })
}

/// Limits how far a small file can expand: tokens that share a row get separate rows in the bundle.
const MAX_TOKENS_PER_ROW: usize = 64;

/// Rows for all tokens.
///
/// model2vec may store a row for several tokens (`mapping`) and a factor per token (`weights`).
fn table(weights: &Weights) -> Result<Weight> {
    let matrix = ["embedding.weight", "embeddings"]
        .iter()
        .find_map(|name| weights.tensors.get(*name));
    let matrix = matrix.ok_or_else(|| {
        Error::model(
            "expected `embedding.weight` or `embeddings` as a matrix of floats, but found neither",
        )
    })?;
    check_finite("embedding.weight", matrix)?;
    let &[height, width] = &matrix.shape[..] else {
        return Err(Error::model(format!(
            "expected a vector matrix, but found the shape {:?}",
            matrix.shape
        )));
    };
    if height == 0 || width == 0 {
        return Err(Error::model(format!(
            "expected a table of vectors, but found the shape {:?}",
            matrix.shape
        )));
    }
    let mapping = weights.integers.get("mapping");
    let mut rows = match mapping {
        None => matrix.values.clone(),
        Some(mapping) if mapping.len() / MAX_TOKENS_PER_ROW > height => {
            return Err(Error::model(format!(
                "expected at most {MAX_TOKENS_PER_ROW} tokens for each row of the table on average, but found {} in \
                 `mapping` for {height} rows",
                mapping.len()
            )));
        }
        Some(mapping) => {
            let mut rows = Vec::with_capacity(mapping.len().saturating_mul(width));
            for row in mapping {
                let row = usize::try_from(*row)
                    .ok()
                    .filter(|row| *row < height)
                    .ok_or_else(|| {
                        Error::model(format!(
                            "expected `mapping` to rows below {height}, but found {row}"
                        ))
                    })?;
                rows.extend_from_slice(&matrix.values[row * width..(row + 1) * width]);
            }
            rows
        }
    };
    let height = rows.len() / width;
    weights.check_all(|name| {
        ["embedding.weight", "embeddings", "mapping", "weights"].contains(&name)
    })?;
    if weights.has("weights") {
        let factors = &weights.take("weights", &[height])?.values;
        for (row, factor) in rows.chunks_exact_mut(width).zip(factors) {
            row.iter_mut().for_each(|value| *value *= factor);
        }
    }
    Ok(Weight {
        shape: vec![height, width],
        values: rows,
    })
}

/// Removes the post-processor that adds special tokens; also returns the token count at which it truncates.
fn without_special_tokens(tokenizer: &[u8]) -> Result<(Vec<u8>, usize)> {
    let mut file: Json = parse_tokenizer(tokenizer)?;
    let max_tokens = file["truncation"]["max_length"]
        .as_u64()
        .and_then(|length| usize::try_from(length).ok());
    if let Some(steps) = file.get_mut("post_processor") {
        *steps = Json::Null;
    }
    Ok((to_bytes(&file)?, max_tokens.unwrap_or(MAX_TOKENS)))
}

fn graph(
    weights: &Weights,
    table: &Weight,
    modules: &Modules,
    precision: Precision,
) -> Result<ModelProto> {
    const NAME: &str = "embedding.weight";
    let mut layers = Layers::new(weights, precision, table.shape[1], 0.0);
    layers.graph = GraphBuilder::with_functions();
    let graph = &mut layers.graph;
    let ids = graph.input("input_ids", &["batch", "sequence"]);
    let mask = graph.input("attention_mask", &["batch", "sequence"]);
    let mean = match precision {
        Precision::Fp32 => {
            let values = graph.floats(NAME, &table.shape, &table.values);
            graph.function(
                MEAN_OF_ROWS,
                [&values, &ids, &mask],
                functions::mean_of_rows,
            )
        }
        Precision::Int8 | Precision::Int8Blocks => {
            let rows = quantize::rows(&table.values, table.shape[1]);
            let values = graph.bytes(&format!("{NAME}.int8"), &table.shape, &rows.values);
            let scales = graph.floats(
                &format!("{NAME}.scales"),
                &[table.shape[0], 1],
                &rows.scales,
            );
            let inputs = [&values, &scales, &ids, &mask];
            graph.function(MEAN_OF_INT8_ROWS, inputs, functions::mean_of_int8_rows)
        }
    };
    let vector = modules.write(&mut layers, &mean, &mask);
    layers.graph.output(
        &vector,
        POOLED,
        [any("batch"), fixed(modules.dimensions()?)],
    );
    Ok(layers.graph.finish(ARCHITECTURE))
}
