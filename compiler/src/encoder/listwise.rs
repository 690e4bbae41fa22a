//! The head of jina-reranker-v3, which reads a query and all texts in one prompt: two layers on token vectors.

use super::{config::EncoderConfig, families::LISTWISE, heads::OutputHeads};
use crate::{
    files::{config::ConfigFile, weights::Weights},
    plan::Plan,
    sentence_transformers::{max_tokens, modules::Dense},
    tokenizers::tokenizer_config,
};
use kivu::{
    Error, Result, backend::native::MULTI_VECTORS,
    pipeline::classification::listwise::ListwiseSettings,
};

/// As in the authors' code.
const MAX_QUERY_TOKENS: usize = 512;
const MAX_TEXT_TOKENS: usize = 2048;
const MAX_TEXTS: usize = 125;

/// The settings and the head, if the model is of this class. An adapter may add another head.
pub fn open(
    plan: &Plan,
    config: &EncoderConfig,
    weights: &Weights,
) -> Result<Option<(ListwiseSettings, OutputHeads)>> {
    if config.encoder_limits.architecture != LISTWISE || config.head.is_some() {
        return Ok(None);
    }
    // Truncated texts are decoded.
    let tokenizer = ConfigFile::open_or_empty(&plan.folder, tokenizer_config::NAME)?;
    let clean_up = "clean_up_tokenization_spaces";
    if tokenizer.is_set(clean_up)? {
        return Err(Error::model(format!(
            "expected `{clean_up}` false for `{LISTWISE}`, but found true"
        )));
    }
    // The authors' code cuts texts to their own limit only.
    let max_tokens = max_tokens(&plan.folder, &config.encoder_limits)?;
    if max_tokens < MAX_TEXT_TOKENS {
        return Err(Error::model(format!(
            "expected a `model_max_length` of at least {MAX_TEXT_TOKENS}, the tokens of a text, for `{LISTWISE}`, but found \
             {max_tokens}"
        )));
    }
    let layer = |name, inputs| {
        let weight = weights.tensors.get(name);
        let outputs = weight.and_then(|weight| weight.shape.first().copied());
        Dense::of_weights(
            weights.take_whole(name, &[outputs.unwrap_or(0), inputs])?,
            None,
        )
    };
    let first = layer("projector.0.weight", config.encoder_limits.hidden)?.with_relu();
    let last = layer("projector.2.weight", first.outputs())?;
    let settings = ListwiseSettings {
        output: MULTI_VECTORS.to_owned(),
        dimensions: last.outputs(),
        max_tokens,
        max_query_tokens: MAX_QUERY_TOKENS,
        max_text_tokens: MAX_TEXT_TOKENS,
        max_texts: MAX_TEXTS,
    };
    let heads = OutputHeads {
        multi_vector: Some(vec![first, last]),
        ..OutputHeads::default()
    };
    Ok(Some((settings, heads)))
}
