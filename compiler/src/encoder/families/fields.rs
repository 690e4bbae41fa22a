//! `config.json` fields shared between families.

use std::{collections::BTreeMap, fmt::Debug};

use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::rope::{self, Rope};
use crate::{
    encoder::config::{
        Bias, Biases, Details, EncoderConfig, EncoderLimits, FeedForward, Gate, Head, HeadInput,
        HeadRead, Heads, Names, Positions, Span, rows_up_to,
    },
    files::config::{ConfigFile, head_width},
    model_types::{ANY_SIZES, Family, FirstPosition, Sizes},
    onnx::layers::{Activation, AttentionWindow, NormKind},
};
use kivu::{Error, Result};

/// BERT's default for the normalizations' epsilon.
const EPSILON: f32 = 1e-12;

impl EncoderConfig {
    /// Defaults for most families: full attention, normalizations and linear layers with biases, no positions and no
    /// token types. The epsilon is BERT's default.
    pub fn new(
        config: &ConfigFile,
        names: &str,
        heads: Heads,
        feed_forward: FeedForward,
    ) -> Result<Self> {
        let fields = sizes(config);
        let encoder_limits = EncoderLimits::of(config, fields)?;
        let layers = config.require_any_size(&fields.layers)?;
        Ok(Self {
            head: Head::read(config)?,
            details: Details {
                ties_words: config.is_set_or("tie_word_embeddings", true)?,
                ..Details::default()
            },
            ..Self::without_head(config, names, encoder_limits, layers, heads, feed_forward)?
        })
    }

    /// The same defaults for a family whose sizes have other names, without a head.
    pub fn without_head(
        config: &ConfigFile,
        names: &str,
        encoder_limits: EncoderLimits,
        layers: usize,
        heads: Heads,
        feed_forward: FeedForward,
    ) -> Result<Self> {
        Ok(Self {
            encoder_limits,
            vocabulary: config.require_size("vocab_size")?,
            layers,
            heads,
            feed_forward,
            norm: NormKind::Layer { has_bias: true },
            epsilon: EPSILON,
            positions: Positions::None,
            types: 0,
            spans: vec![Span::ALL],
            bias: Bias::None,
            biases: Biases::ALL,
            names: Names::of(names)?,
            head: None,
            head_input: HeadInput::first(Activation::Tanh),
            decoder: None,
            details: Details::default(),
            convolutions: None,
            tasks: None,
        })
    }
}

impl EncoderLimits {
    /// Reads an export's fields, which are the same in all families.
    pub fn read(config: &ConfigFile) -> Result<Self> {
        Self::of(config, &ANY_SIZES)
    }

    fn of(config: &ConfigFile, fields: &Sizes) -> Result<Self> {
        let rows = config.require_any_size(&fields.positions)?;
        // Rows before the first position's are unused.
        let unusable = padding(config)?.map_or(0, rows_up_to);
        let max_positions = rows.saturating_sub(unusable);
        Ok(Self {
            architecture: config.architecture().to_owned(),
            hidden: config.require_any_size(&fields.hidden)?,
            max_positions,
            longest: max_positions,
        })
    }
}

impl Heads {
    /// As many key heads as query heads; they split the hidden size evenly.
    pub fn read(config: &ConfigFile) -> Result<Self> {
        let fields = sizes(config);
        let heads = config.require_any_size(&fields.heads)?;
        let width = head_width(config.require_any_size(&fields.hidden)?, heads)?;
        Ok(Self {
            queries: heads,
            keys: heads,
            width,
        })
    }
}

impl FeedForward {
    /// Parts in files of BERT and its successors.
    pub fn read(config: &ConfigFile, gate: Gate) -> Result<Self> {
        Ok(Self {
            width: config.require_size("intermediate_size")?,
            activation: activation(config, &["hidden_act"])?,
            gate,
        })
    }
}

/// The normalizations' epsilon, in files of BERT and its successors.
pub fn epsilon(config: &ConfigFile) -> Result<f32> {
    config.epsilon(&["layer_norm_eps"], EPSILON)
}

/// A position table, whose first rows may have no position.
pub fn positions(config: &ConfigFile) -> Result<Positions> {
    Ok(match padding(config)? {
        Some(padding) => Positions::TableAfter { padding },
        None => Positions::Table,
    })
}

/// The padding id after which positions start, in families where they do.
fn padding(config: &ConfigFile) -> Result<Option<i64>> {
    let first = match config.model_type() {
        // Exports only.
        "longformer" | "luke" => FirstPosition::AfterPadding,
        other => Family::named(other).map_or(FirstPosition::Zero, |family| family.positions),
    };
    Ok(match first {
        FirstPosition::Zero => None,
        FirstPosition::AfterPadding => Some(config.get("pad_token_id")?.unwrap_or(1)),
        FirstPosition::AfterFixedPadding(padding) => Some(padding),
    })
}

fn sizes(config: &ConfigFile) -> &'static Sizes {
    Family::named(config.model_type()).map_or(&ANY_SIZES, |family| &family.sizes)
}

/// Activation named by the first field present; GELU by default.
pub fn activation(config: &ConfigFile, fields: &[&str]) -> Result<Activation> {
    Activation::named(
        config
            .get_any::<String>(fields)?
            .as_deref()
            .unwrap_or("gelu"),
    )
}

/// The vector that a head without layers before the labels reads.
pub fn head_read(config: &ConfigFile) -> Result<HeadRead> {
    match config.get::<String>("classifier_pooling")?.as_deref() {
        None | Some("cls") => Ok(HeadRead::First),
        Some("mean") => Ok(HeadRead::Mean),
        Some(other) => Err(Error::model(format!(
            "expected `classifier_pooling` `cls` or `mean`, but found `{other}`"
        ))),
    }
}

/// Refuses a config with a `field` other than `expected`; a missing field passes.
pub fn expect<T: DeserializeOwned + Debug + PartialEq>(
    config: &ConfigFile,
    field: &str,
    expected: &T,
) -> Result<()> {
    match config.get::<T>(field)? {
        Some(found) if found != *expected => {
            let message = format!("expected `{field}` {expected:?}, but found {found:?}");
            Err(Error::model(message.replace('"', "`")))
        }
        _ => Ok(()),
    }
}

/// Refuses relative positions. Without a value, models have no positions in `transformers` 4.57 if the key is null.
pub fn expect_absolute_positions(config: &ConfigFile) -> Result<()> {
    const FIELD: &str = "position_embedding_type";
    expect(config, FIELD, &"absolute".to_owned())?;
    match config.is_null(FIELD) {
        true => Err(Error::model(format!(
            "expected `{FIELD}` `absolute`, but found null"
        ))),
        false => Ok(()),
    }
}

/// Window size in tokens for layers with local attention.
pub fn window(config: &ConfigFile, field: &str, default: usize) -> Result<usize> {
    match config.get::<usize>(field)? {
        Some(found) if found < 2 => Err(Error::model(format!(
            "expected `{field}` of at least 2, but found {found}"
        ))),
        _ => Ok(config.get_size(field)?.unwrap_or(default)),
    }
}

/// Window size in tokens; `None` if the file says `null`.
pub fn optional_window(config: &ConfigFile, field: &str, default: usize) -> Result<Option<usize>> {
    match config.is_null(field) {
        true => Ok(None),
        false => Ok(Some(config.get_size(field)?.unwrap_or(default))),
    }
}

/// Period, in layers, at which a layer has full attention.
pub fn period(config: &ConfigFile, fields: &[&str], default: usize) -> Result<usize> {
    /// Far above any model's.
    const MAX: usize = 1 << 12;
    match config.get_any(fields)?.unwrap_or(default) {
        layers @ 1..=MAX => Ok(layers),
        found => Err(Error::model(format!(
            "expected `{}` from 1 to {MAX}, but found {found}",
            fields[0]
        ))),
    }
}

/// Spans per layer from `layer_types`, full or sliding; `None` in files without the list.
pub fn spans_by_type(config: &ConfigFile, [full, sliding]: [Span; 2]) -> Result<Option<Vec<Span>>> {
    let Some(types) = config.get::<Vec<String>>("layer_types")? else {
        return Ok(None);
    };
    let spans = spans_of(config, &types, |is_full| match is_full {
        true => Ok(full.clone()),
        false => Ok(sliding.clone()),
    });
    spans.map(Some)
}

/// The span of each layer, by whether it has full attention.
fn spans_of(
    config: &ConfigFile,
    types: &[String],
    span: impl Fn(bool) -> Result<Span>,
) -> Result<Vec<Span>> {
    let layers = config.require_size("num_hidden_layers")?;
    if types.len() != layers {
        return Err(Error::model(format!(
            "expected `layer_types` of {layers} layers, but found {}",
            types.len()
        )));
    }
    let [full, sliding] = LayerKinds::NAMES;
    let spans = types.iter().map(|name| match name {
        name if name == full => span(true),
        name if name == sliding => span(false),
        other => Err(Error::model(format!(
            "expected `layer_types` `{full}` or `{sliding}`, but found `{other}`"
        ))),
    });
    spans.collect()
}

/// Layers with full attention, and layers with a window to both sides; each kind has rotary positions of its own.
pub struct LayerKinds {
    /// The kind of each layer, by name.
    pub types: Vec<String>,
    /// Rotary positions by the kind's name.
    pub ropes: BTreeMap<String, Option<Rope>>,
    /// Tokens on each side of a token.
    pub window: usize,
    /// Head width in layers with full attention, and in the others.
    pub widths: [usize; 2],
}

impl LayerKinds {
    pub const FULL: &str = "full_attention";
    /// With a window.
    pub const SLIDING: &str = "sliding_attention";
    pub const NAMES: [&str; 2] = [Self::FULL, Self::SLIDING];

    /// The kinds of so many layers, of which every `period`-th one has full attention.
    pub fn alternating(layers: usize, period: usize) -> Vec<String> {
        let kind = |layer: usize| match layer.is_multiple_of(period) {
            true => Self::FULL.to_owned(),
            false => Self::SLIDING.to_owned(),
        };
        (1..=layers).map(kind).collect()
    }

    /// Rotary positions by kind, if the file has them; a kind without layers may be `null`.
    pub fn ropes(config: &ConfigFile) -> Result<Option<BTreeMap<String, Option<Rope>>>> {
        config.get("rope_parameters")
    }

    /// Rotary positions with a base for full attention, and one for the others.
    pub fn ropes_of_bases(bases: [f64; 2]) -> BTreeMap<String, Option<Rope>> {
        let named = Self::NAMES.map(str::to_owned).into_iter().zip(bases);
        named
            .map(|(kind, base)| (kind, Some(Rope::of_base(base))))
            .collect()
    }

    /// Spans per layer.
    pub fn spans(&self, config: &ConfigFile) -> Result<Vec<Span>> {
        spans_of(config, &self.types, |is_full| {
            let place = usize::from(!is_full);
            let kind = Self::NAMES[place];
            let rope = self.ropes.get(kind).and_then(Option::as_ref);
            let Some(rope) = rope.filter(|rope| rope.rope_theta.is_some()) else {
                return Err(Error::model(format!(
                    "expected a `rope_theta` for `{kind}` in `rope_parameters`, but found none"
                )));
            };
            let window = match is_full {
                true => AttentionWindow::ALL,
                false => AttentionWindow::within(self.window),
            };
            Ok(Span {
                window,
                rotary: Some(rope::of_kind(config, self.widths[place], rope)?),
            })
        })
    }
}

/// Whether `auto_map` names a class of the model's own code that begins with `name`, for whatever task.
pub fn has_code(config: &ConfigFile, name: &str) -> bool {
    let map = config.value("auto_map").and_then(Value::as_object);
    let mut paths = map
        .into_iter()
        .flat_map(Map::values)
        .filter_map(Value::as_str);
    paths.any(|path| {
        path.rsplit('.')
            .next()
            .is_some_and(|class| class.starts_with(name))
    })
}

/// The class with the model's own code for vectors, if `auto_map` names one.
pub fn code_class(config: &ConfigFile) -> Option<&str> {
    let path = config.value("auto_map")?.get("AutoModel")?.as_str()?;
    path.rsplit('.').next()
}
