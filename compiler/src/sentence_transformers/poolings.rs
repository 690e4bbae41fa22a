//! sentence-transformers poolings: settings and graph nodes.

use serde_json::Value as Json;

use crate::{
    files::{
        config::{ConfigFile, OneOrMany},
        model_folder::ModelFolder,
    },
    onnx::{GraphBuilder, Value, data_type, functions},
};
use kivu::{Error, Result, error::quoted, pipeline::embedding::pooling::Pooling};

/// A pooling module.
#[derive(Debug)]
pub struct Poolings {
    /// In vector order.
    pub modes: Vec<Pooling>,
    /// Whether a prompt's tokens are pooled.
    pub includes_prompt: bool,
}

/// The masks of a text's tokens, INT64 (batch, sequence).
pub struct Masks<'a> {
    /// 1 for tokens and 0 for padding.
    pub tokens: &'a Value,
    /// 1 for tokens that are pooled.
    pub pooled: &'a Value,
}

/// Reads the module in `folder`.
pub fn open(folder: &ModelFolder) -> Result<Poolings> {
    let config = ConfigFile::open(folder)?;
    // sentence-transformers takes `null` as false.
    if config
        .fields()
        .get("include_prompt")
        .is_some_and(Json::is_null)
    {
        return Err(Error::model(
            "expected `include_prompt` true or false, but found null",
        ));
    }
    let includes_prompt = config.is_set_or("include_prompt", true)?;
    Ok(Poolings {
        modes: modes(&config)?,
        includes_prompt,
    })
}

/// Pooling modes, in vector order.
fn modes(config: &ConfigFile) -> Result<Vec<Pooling>> {
    /// Flags in versions up to 4, in vector order.
    const FLAGS: [&str; 6] = [
        "cls_token",
        "max_tokens",
        "mean_tokens",
        "mean_sqrt_len_tokens",
        "weightedmean_tokens",
        "lasttoken",
    ];
    let modes = match config.get::<OneOrMany<String>>("pooling_mode")? {
        Some(modes) => modes.into_vec(),
        None => {
            let mut modes = Vec::new();
            for flag in FLAGS {
                if config.is_set(&format!("pooling_mode_{flag}"))? {
                    modes.push(flag.to_owned());
                }
            }
            modes
        }
    };
    if modes.is_empty() {
        return Ok(vec![Pooling::Mean]);
    }
    let pooling = |mode: &String| match mode.as_str() {
        "cls" | "cls_token" => Ok(Pooling::Cls),
        "max" | "max_tokens" => Ok(Pooling::Max),
        "mean" | "mean_tokens" => Ok(Pooling::Mean),
        "mean_sqrt_len_tokens" | "mean_sqrt_len" => Ok(Pooling::MeanSqrtLen),
        "weightedmean" | "weightedmean_tokens" => Ok(Pooling::WeightedMean),
        "lasttoken" => Ok(Pooling::LastToken),
        _ => Err(Error::model(format!(
            "expected pooling modes among `cls`, `max`, `mean`, `mean_sqrt_len_tokens`, `weightedmean`, `lasttoken`, but \
             found {}",
            quoted(&modes)
        ))),
    };
    modes.iter().map(pooling).collect()
}

/// Writes token vector poolings, and concatenates the results.
pub fn write(
    graph: &mut GraphBuilder,
    modes: &[Pooling],
    tokens: &Value,
    masks: &Masks<'_>,
) -> Value {
    let vectors: Vec<Value> = modes
        .iter()
        .map(|mode| write_one(*mode, graph, tokens, masks))
        .collect();
    match &vectors[..] {
        [vector] => vector.clone(),
        _ => graph.concat(&vectors.iter().collect::<Vec<_>>(), -1),
    }
}

/// Writes the pooling; as a function if the native engine supports it.
fn write_one(mode: Pooling, graph: &mut GraphBuilder, tokens: &Value, masks: &Masks<'_>) -> Value {
    let mask = masks.pooled;
    let inputs = [tokens, mask];
    let (one, last) = (graph.one(), graph.last_axis());
    match mode {
        Pooling::Cls | Pooling::Graph => {
            graph.function("FirstOfTokens", inputs, functions::first_of_tokens)
        }
        Pooling::LastToken => graph.function("LastOfTokens", inputs, functions::last_of_tokens),
        Pooling::Mean => graph.function("MeanOfTokens", inputs, functions::mean_of_tokens),
        Pooling::Max => {
            let lowest = graph.scalar("lowest", f32::MIN);
            let is_token = graph.cast(mask, data_type::BOOL);
            let is_token = graph.unsqueeze(&is_token, &last);
            let kept = graph.choose(&is_token, tokens, &lowest);
            graph.reduce("ReduceMax", &[&kept, &one])
        }
        Pooling::MeanSqrtLen => {
            let weights = graph.float(mask);
            let sum = functions::weighted_sum(graph, tokens, &weights);
            let count = graph.reduce_keeping("ReduceSum", &[&weights, &one]);
            let root = graph.node("Sqrt", &[&count], vec![]);
            graph.div(&sum, &root)
        }
        Pooling::WeightedMean => {
            // Counted from the first token, whether it is pooled or not.
            let positions = functions::positions_of_tokens(graph, masks.tokens);
            let is_pooled = graph.float(mask);
            let weights = graph.mul(&positions, &is_pooled);
            let sum = functions::weighted_sum(graph, tokens, &weights);
            let total = graph.reduce_keeping("ReduceSum", &[&weights, &one]);
            graph.div(&sum, &total)
        }
    }
}
