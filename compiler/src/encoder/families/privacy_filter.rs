//! OpenAI's privacy filter: gpt-oss as an encoder, whose tokens attend to a window on both sides.

use serde_json::Value;

use super::{
    decoders::{self, Defaults},
    rope,
};
use crate::{
    encoder::config::{
        Biases, Details, EncoderConfig, ExpertLayers, FeedForward, Gate, Heads, Span,
    },
    files::{config::ConfigFile, weights::Weights},
    onnx::{
        functions::LimitedGate,
        layers::{Activation, AttentionWindow, ExpertKind, NormKind},
    },
};
use kivu::{Error, Result};

const DEFAULTS: Defaults = Defaults {
    key_heads: Some(2),
    head_width: Some(64),
    epsilon: 1e-5,
    ..Defaults::LLAMA
};

/// Far above published models'.
const MAX_EXPERTS: usize = 1024;

/// The labels if the file has none, or only their number: each with `B-`, `I-`, `E-` and `S-`, after `O`.
const CATEGORIES: [&str; 8] = [
    "account_number",
    "private_address",
    "private_date",
    "private_email",
    "private_person",
    "private_phone",
    "private_url",
    "secret",
];

pub fn read(config: &ConfigFile) -> Result<EncoderConfig> {
    // The class refuses `null`, in place of which other families have a default.
    for field in [
        "head_dim",
        "num_experts",
        "num_experts_per_tok",
        "num_key_value_heads",
        "num_local_experts",
        "rms_norm_eps",
        "sliding_window",
        "swiglu_alpha",
        "swiglu_limit",
    ] {
        if config.is_null(field) {
            return Err(Error::model(format!(
                "expected a number as `{field}`, but found null"
            )));
        }
    }
    let heads = decoders::heads(config, &DEFAULTS)?;
    let feed_forward = FeedForward {
        width: config.require_size("intermediate_size")?,
        activation: Activation::Swish,
        gate: Gate::First,
    };
    let mut shared = EncoderConfig::new(config, "llama", heads, feed_forward)?;
    let tagged = |category| ["B", "I", "E", "S"].map(|tag| format!("{tag}-{category}"));
    let labels = CATEGORIES.into_iter().flat_map(tagged);
    let labels: Vec<String> = std::iter::once("O".to_owned()).chain(labels).collect();
    let count: Option<usize> = config.get("num_labels")?;
    if let Some(head) = &mut shared.head
        && config.value("id2label").is_none_or(Value::is_null)
        && count.is_none_or(|count| count == labels.len())
    {
        head.labels = labels;
    }
    let bias = config.is_set_or("attention_bias", true)?;
    let window = config.get_size("sliding_window")?.unwrap_or(128);
    Ok(EncoderConfig {
        norm: NormKind::RootMeanSquare { adds_one: false },
        epsilon: config.epsilon(&["rms_norm_eps"], DEFAULTS.epsilon)?,
        spans: vec![Span {
            window: AttentionWindow::within(window),
            rotary: Some(rope::of_gpt_oss(config, heads.width)?),
        }],
        biases: Biases {
            projections: bias,
            attention_output: bias,
            up: true,
            down: true,
        },
        details: Details {
            sinks: Some("self_attn.sinks"),
            pairs_neighbours: true,
            experts: Some(experts(config)?),
            // Rounding them changes which experts a token passes, and with them its label.
            keeps_attention: true,
            ..shared.details
        },
        ..shared
    })
}

fn experts(config: &ConfigFile) -> Result<ExpertLayers> {
    // The second name takes precedence.
    let count = config.get_size("num_local_experts")?;
    let count = config.get_size("num_experts")?.or(count).unwrap_or(128);
    let top = config.get_size("num_experts_per_tok")?.unwrap_or(4);
    let alpha: f32 = config.get("swiglu_alpha")?.unwrap_or(1.702);
    let limit: f32 = config.get("swiglu_limit")?.unwrap_or(7.0);
    if count > MAX_EXPERTS || !(1..=count).contains(&top) {
        return Err(Error::model(format!(
            "expected `num_local_experts` up to {MAX_EXPERTS} and `num_experts_per_tok` from 1 up to their number, but found \
             {count} and {top}"
        )));
    }
    if !(alpha.is_finite() && limit >= 0.0 && limit.is_finite()) {
        return Err(Error::model(format!(
            "expected a finite `swiglu_alpha`, and a `swiglu_limit` of at least 0, but found {alpha} and {limit}"
        )));
    }
    Ok(ExpertLayers {
        every: 1,
        count,
        top,
        name: "mlp",
        kind: ExpertKind::Gated(LimitedGate { alpha, limit }),
    })
}

/// Reorders the rows of queries and keys where rotations pair neighbouring values of a head: all first values, and then all
/// second ones, as rotations pair them in other families. The products of queries and keys stay the same.
pub fn arrange(config: &mut EncoderConfig, weights: &mut Weights) {
    if !std::mem::take(&mut config.details.pairs_neighbours) {
        return;
    }
    let (names, Heads { width, .. }) = (config.names, config.heads);
    for layer in 0..config.layers {
        for name in &names.projections[..2] {
            let name = config.name_in_layer(layer, name);
            for part in ["weight", "bias"] {
                let Some(found) = weights.find_mut(&format!("{name}.{part}"), names.prefix) else {
                    continue;
                };
                let columns = found.shape.get(1).copied().unwrap_or(1).max(1);
                let halves = |head: &[f32]| -> Vec<f32> {
                    let rows = head.chunks(columns);
                    let seconds = rows.clone().skip(1).step_by(2);
                    rows.step_by(2).chain(seconds).flatten().copied().collect()
                };
                found.values = found
                    .values
                    .chunks(width * columns)
                    .flat_map(halves)
                    .collect();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};

    use super::*;

    /// The fields of a class whose other fields have their defaults, and some fields.
    fn read_with(fields: &Value) -> Result<EncoderConfig> {
        let mut all = json!({
            "model_type": "openai_privacy_filter", "architectures": ["OpenAIPrivacyFilterForTokenClassification"],
            "hidden_size": 640, "num_hidden_layers": 8, "num_attention_heads": 14, "intermediate_size": 640,
            "max_position_embeddings": 131_072, "vocab_size": 200_064,
        });
        let all: &mut Map<_, _> = all.as_object_mut().unwrap();
        all.extend(fields.as_object().unwrap().clone());
        read(&ConfigFile::new(ConfigFile::NAME, all.clone()))
    }

    #[test]
    fn defaults_are_those_of_the_config_class() {
        let defaults = json!({
            "attention_bias": true, "head_dim": 64, "num_experts_per_tok": 4, "num_key_value_heads": 2,
            "num_local_experts": 128, "rms_norm_eps": 1e-5, "sliding_window": 128, "swiglu_alpha": 1.702, "swiglu_limit": 7.0,
            "rope_parameters": {
                "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": false,
                "original_max_position_embeddings": 4096, "rope_theta": 150_000.0,
            },
        });
        let found = read_with(&json!({})).unwrap();
        assert_eq!(
            format!("{found:?}"),
            format!("{:?}", read_with(&defaults).unwrap())
        );
        for empty in [
            json!({"rope_parameters": null}),
            json!({"rope_scaling": {}, "num_experts": 128}),
        ] {
            assert_eq!(
                format!("{found:?}"),
                format!("{:?}", read_with(&empty).unwrap())
            );
        }
        assert_eq!(
            (found.context(), found.head.unwrap().labels.len()),
            (Some(1024), 33)
        );
        let labels = |count: usize| {
            let head = read_with(&json!({ "num_labels": count })).unwrap().head;
            head.unwrap().labels
        };
        assert_eq!(labels(33)[1], "B-account_number");
        assert_eq!(labels(3), ["LABEL_0", "LABEL_1", "LABEL_2"]);
        let rotary = |fields| read_with(&fields).unwrap().spans.remove(0).rotary.unwrap();
        let plain = rotary(json!({"rope_parameters": {}}));
        assert_eq!(
            (plain.base, plain.scaling),
            (150_000.0, crate::onnx::layers::Scaling::None)
        );
        assert_eq!(rotary(json!({"rope_theta": 1e4})).base, 1e4);
        let experts = |fields| read_with(&fields).unwrap().details.experts.unwrap().count;
        assert_eq!(
            experts(json!({"num_local_experts": 16, "num_experts": 8})),
            8
        );
    }

    #[test]
    fn odd_configs_are_refused_by_name() {
        let refusals = [
            json!({"sliding_window": null}),
            json!({"num_experts_per_tok": 129}),
            json!({"swiglu_limit": -1.0}),
            json!({"head_dim": 63}),
            json!({"num_key_value_heads": 3}),
            json!({"rope_parameters": {"rope_type": "axial"}}),
            json!({"rope_parameters": {"rope_type": "proportional", "partial_rotary_factor": 1.5}}),
            json!({"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "partial_rotary_factor": 0.5}}),
        ];
        let refusals = refusals
            .map(|fields| read_with(&fields).unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @r"
        expected a number as `sliding_window`, but found null
        expected `num_local_experts` up to 1024 and `num_experts_per_tok` from 1 up to their number, but found 128 and 129
        expected a finite `swiglu_alpha`, and a `swiglu_limit` of at least 0, but found 1.702 and -1
        expected an even number of rotated values in a head, but found 1 of 63
        expected `num_attention_heads` to be a multiple of `num_key_value_heads`, but found 14 and 3, of 64 values
        expected rotary positions without scaling (`default`), `linear`, `dynamic`, `llama3`, `yarn`, `longrope`, `proportional`, but found `axial`
        expected a `partial_rotary_factor` from 0 to 1, but found 1.5
        expected rotary positions without `partial_rotary_factor`, but found 0.5
        ");
    }
}
