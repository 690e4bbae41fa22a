//! GLiNER's second encoder, for labels: mean token vectors, as wide as the head.

use super::gliner_config::{self, LABELS_ENCODER, LABELS_ENCODER_CONFIG, own_encoder};
use crate::encoder::{config::Positions, families, heads::OutputHeads, source::LabelParts};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
    plan::opened_model::{LABEL_TOKENIZER, LABELS},
    sentence_transformers::{
        max_tokens,
        modules::{Modules, POOLED},
    },
    tokenizers::{
        token_rows::{has_positions, within_types, within_vocabulary},
        tokenizer_config::read_tokenizer,
    },
};
use kivu::{Error, Result, pipeline::classification::label_vectors::LabelEncoderSettings};

/// Folder with the tokenizer, and with the encoder's `config.json` if the model's settings lack it.
pub const FOLDER: &str = "labels_tokenizer";
/// Prefix for all tensors.
const ALL: &str = "token_rep_layer.labels_";
/// Prefix for encoder weights.
const PREFIX: &str = "token_rep_layer.labels_encoder.model.";
const PROJECTION: &str = "token_rep_layer.labels_projection";

/// Reads the encoder whose vectors have `width` values, and takes its weights out of the model's.
pub fn open(
    config: &ConfigFile,
    folder: &ModelFolder,
    weights: &mut Weights,
    width: usize,
) -> Result<(LabelParts, LabelEncoderSettings)> {
    let folder = &folder.inner(FOLDER);
    let file = match own_encoder(config, LABELS_ENCODER_CONFIG)? {
        Some(file) => file,
        None => ConfigFile::open(folder).map_err(|error| incomplete(config, error))?,
    };
    let tokenizer = read_tokenizer(folder).map_err(|error| incomplete(config, error))?;
    let mut encoder = families::of(&file, folder)?;
    encoder.head = None;
    let weights = weights
        .split_off(ALL)
        .with_prefix(PREFIX, encoder.names.words);
    families::adapt(&mut encoder, &weights)?;
    let tokenizer = within_vocabulary(tokenizer, encoder.vocabulary)?;
    within_types(&tokenizer, encoder.types, false)?;
    if let Positions::TableAfter { padding } = encoder.positions {
        has_positions(&tokenizer, padding)?;
    }
    let mut modules = Modules::mean(encoder.encoder_limits.hidden);
    if encoder.encoder_limits.hidden != width {
        modules.project(&weights, PROJECTION, width)?;
    }
    let settings = LabelEncoderSettings {
        graph: LABELS.to_owned(),
        tokenizer: LABEL_TOKENIZER.to_owned(),
        output: POOLED.to_owned(),
        dimensions: width,
        max_tokens: max_tokens(folder, &encoder.encoder_limits)?,
    };
    let heads = OutputHeads::dense(Some(modules));
    Ok((
        LabelParts {
            config: encoder,
            weights,
            heads,
            tokenizer,
        },
        settings,
    ))
}

/// Error for a model published without its second encoder's files.
fn incomplete(config: &ConfigFile, error: Error) -> Error {
    let encoder = format!("the encoder for labels in `{FOLDER}`,");
    let files = "`config.json`, `tokenizer.json` and `tokenizer_config.json`";
    gliner_config::incomplete(config, LABELS_ENCODER, [&encoder, files], error)
}
