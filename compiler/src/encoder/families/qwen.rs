//! Qwen2 and Qwen3: gte-Qwen2, mxbai-rerank-v2, Qwen3-Embedding, Qwen3-Reranker; and Qwen3 in code of its own: with a head
//! (jina-reranker-v3), and attending to all tokens (pplx-embed-v1, voyage-4-nano).

use super::{
    decoders::{self, Defaults},
    fields,
};
use crate::{
    encoder::config::{Biases, Details, EncoderConfig, Head, HeadKind, OutputProjection, Span},
    files::{config::ConfigFile, weights::Weights},
    onnx::layers::AttentionWindow,
};
use kivu::{Error, Result};

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(32),
    ..Defaults::LLAMA
};

/// The `model_type` of pplx-embed-v1, and its class.
pub const PPLX: &str = "bidirectional_pplx_qwen3";
const PPLX_CLASS: &str = "PPLXQwen3Model";
/// How classes in the code of voyage-4-nano begin, and its projection.
const VOYAGE_CODE: &str = "Qwen3Bidirectional";
const PROJECTION: &str = "linear";

/// The class of jina-reranker-v3.
pub const LISTWISE: &str = "JinaForRanking";

/// Layers before the first one with a window, if the files do not name the number.
const MAX_WINDOW_LAYERS: usize = 28;

pub fn read_qwen2(config: &ConfigFile) -> Result<EncoderConfig> {
    let shared = decoders::read(config, "llama", &DEFAULTS, spans(config, &DEFAULTS)?)?;
    Ok(EncoderConfig {
        biases: Biases {
            projections: true,
            ..shared.biases
        },
        ..shared
    })
}

pub fn read_qwen3(config: &ConfigFile) -> Result<EncoderConfig> {
    let code = fields::code_class(config);
    match [Some(config.architecture()), code].map(|class| class == Some(LISTWISE)) {
        [true, true] => read_listwise(config),
        [false, false] if fields::has_code(config, VOYAGE_CODE) => read_voyage(config),
        [false, false] => read_layers(config),
        _ => Err(Error::model(format!(
            "expected `{LISTWISE}` in `architectures` and `auto_map`, but found it in one of them"
        ))),
    }
}

/// jina-reranker-v3. Its successor has windows.
fn read_listwise(config: &ConfigFile) -> Result<EncoderConfig> {
    let layers = read_layers(config)?;
    let is_causal = |span: &Span| span.window == AttentionWindow::BEFORE;
    match layers.spans.iter().all(is_causal) {
        true => Ok(layers),
        false => Err(Error::model(format!(
            "`{LISTWISE}` with attention windows is not supported"
        ))
        .with_hint(
            "Kivu runs jina-reranker-v3; the prompt of jina-reranker-v3.5 is not known here",
        )),
    }
}

/// pplx-embed-v1, whose tokens attend to all others. Its code for chunks of documents is another class.
pub fn read_pplx(config: &ConfigFile) -> Result<EncoderConfig> {
    let class = fields::code_class(config).unwrap_or(PPLX_CLASS);
    match [class, config.architecture()]
        .into_iter()
        .find(|class| *class != PPLX_CLASS)
    {
        None => attending_to_all(read_layers(config)?),
        Some(other) => Err(Error::model(format!(
            "expected `{PPLX_CLASS}` in `{PPLX}`, but found `{other}`"
        ))),
    }
}

/// voyage-4-nano: the same, with a projection that has an output per label.
fn read_voyage(config: &ConfigFile) -> Result<EncoderConfig> {
    // The class does not read it.
    config.get::<bool>("use_bidirectional_attention")?;
    let mut shared = attending_to_all(read_layers(config)?)?;
    let outputs = Head::of(HeadKind::Text, config)?.labels.len();
    let inputs = std::mem::replace(&mut shared.encoder_limits.hidden, outputs);
    shared.details.output_projection = Some(OutputProjection {
        name: PROJECTION,
        inputs,
    });
    Ok(shared)
}

/// The same layers without a causal mask. The classes have no masks for windows, and no label heads.
fn attending_to_all(mut layers: EncoderConfig) -> Result<EncoderConfig> {
    if layers.head.is_some() {
        return Err(Error::model(format!(
            "expected a model without a label head in code of its own, but found `{}`",
            layers.encoder_limits.architecture
        )));
    }
    for span in &mut layers.spans {
        if span.window.before.is_some() {
            return Err(Error::model(
                "expected layers without windows in code of its own, which attends to all tokens, but found a \
                 `sliding_window`",
            ));
        }
        span.window = AttentionWindow::ALL;
    }
    Ok(layers)
}

/// Moves the projection beside the body into it.
pub fn rename(config: &EncoderConfig, weights: &mut Weights) {
    let projection = config.details.output_projection;
    let [own, inner] =
        ["", config.names.prefix].map(|prefix| format!("{prefix}{PROJECTION}.weight"));
    if projection.is_some_and(|projection| projection.name == PROJECTION)
        && weights.has(&format!("{}{}", config.names.prefix, config.names.words))
        && let Some(weight) = weights.tensors.remove(&own)
    {
        weights.tensors.insert(inner, weight);
    }
}

fn read_layers(config: &ConfigFile) -> Result<EncoderConfig> {
    let defaults = Defaults {
        head_width: Some(128),
        ..DEFAULTS
    };
    let shared = decoders::read(config, "qwen3", &defaults, spans(config, &defaults)?)?;
    Ok(EncoderConfig {
        biases: decoders::attention_biases(config)?,
        details: Details {
            norms_each_head: true,
            ..shared.details
        },
        ..shared
    })
}

/// Full attention in all layers, or a window in the listed layers, or from a layer on.
fn spans(config: &ConfigFile, defaults: &Defaults) -> Result<Vec<Span>> {
    let is_used = config.is_set("use_sliding_window")?;
    let window = fields::optional_window(config, "sliding_window", 4096)?.filter(|_| is_used);
    let first = config
        .get::<usize>("max_window_layers")?
        .unwrap_or(MAX_WINDOW_LAYERS);
    let [full, sliding] = decoders::spans(config, defaults, window)?;
    let listed = fields::spans_by_type(config, [full.clone(), sliding.clone()])?;
    if window.is_some() {
        let span = |layer| {
            if layer < first {
                full.clone()
            } else {
                sliding.clone()
            }
        };
        let layers = 0..config.require_size("num_hidden_layers")?;
        return Ok(listed.unwrap_or_else(|| layers.map(span).collect()));
    }
    let types: Vec<String> = config.get("layer_types")?.unwrap_or_default();
    match types.iter().find(|kind| *kind != "full_attention") {
        None => Ok(vec![full]),
        Some(kind) => Err(Error::model(format!(
            "expected `use_sliding_window` true and a `sliding_window` for the `layer_types` `{kind}`, but found no window"
        ))),
    }
}
