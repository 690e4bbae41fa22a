//! GLiClass: an encoder that reads a text and labels together, and a head with a score for each label. The encoder's
//! settings are inside the model's.

use serde_json::{Map, Value};

use super::{
    gliner_config::{DEFAULT_ENCODER, choice, encoder_of, weights_of},
    spans::{SPAN_LOGITS, Scored, SpanHead},
    text_scores::{Pairs, TextHead},
};
use crate::encoder::{config::EncoderConfig, heads::OutputHeads, source};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
    plan::{Plan, opened_model::OpenedModel},
    sentence_transformers::max_tokens,
    tokenizers::{token_rows::within_vocabulary, tokenizer_config::read_tokenizer},
};
use kivu::{
    Error, Result,
    error::quoted,
    pipeline::classification::label_scores::{LabelScoresSettings, PooledTokens},
    repository::TaskSettings,
    tokenizer::Tokenizer,
};

/// The `model_type`.
pub const GLICLASS: &str = "GLiClass";
/// Encoders whose settings and weights are compared with the package.
const ENCODERS: [&str; 2] = [DEFAULT_ENCODER, "modernbert"];
/// Prefix for encoder weights.
const PREFIX: &str = "model.encoder_model.";
/// Token before each label, as the package writes it.
const LABEL: &str = "<<LABEL>>";
/// Token after the labels.
const SEPARATOR: &str = "<<SEP>>";
/// Values of `scorer_type`.
const SCORERS: [(&str, Pairs); 3] = [
    ("simple", Pairs::Dot),
    ("weighted-dot", Pairs::Products),
    ("mlp", Pairs::Layers),
];
/// Values of `pooling_strategy`.
const POOLINGS: [&str; 4] = ["first", "last", "avg", "sum"];

/// Whether the model in `folder` is a GLiClass model.
pub fn is_gliclass(folder: &ModelFolder) -> bool {
    ConfigFile::open(folder).is_ok_and(|config| config.model_type() == GLICLASS)
}

/// Reads the model in the plan's folder.
pub fn open_gliclass(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = &plan.folder;
    let config = ConfigFile::open(folder)?;
    check(&config)?;
    let mut encoder = encoder(&config, folder)?;
    let weights = weights_of(&mut encoder, Weights::open(folder)?, PREFIX)?;
    let tokenizer = within_vocabulary(read_tokenizer(folder)?, encoder.vocabulary)?;
    let settings = settings(&config, folder, &encoder)?;
    let marker = {
        let tokenizer = Tokenizer::from_json(&tokenizer)?;
        if settings.pooled == PooledTokens::Separator {
            token(&config, &tokenizer, SEPARATOR, "text_token_index")?;
        }
        token(&config, &tokenizer, LABEL, "class_token_index")?
    };
    let width = encoder.encoder_limits.hidden;
    let head = TextHead {
        hidden: config.get_size("hidden_size")?.unwrap_or(width),
        is_mean: strategy(&config)? == "avg",
        is_normalized: config.is_set("normalize_features")?,
        pairs: scorer(&config)?,
    };
    let head = SpanHead {
        encoder_width: width,
        width,
        scored: Scored::Text(head),
        recurrent_layers: 0,
        marker: Some(marker),
        max_tokens: settings.max_tokens,
    };
    let settings = TaskSettings::LabelScores(settings);
    source::of_parts(
        plan,
        source::Parts {
            config: encoder,
            weights,
            heads: OutputHeads::spans(head),
            settings,
            tokenizer,
            labels: None,
        },
    )
}

/// Refuses other architectures, and unsupported options that change results.
fn check(config: &ConfigFile) -> Result<()> {
    let unsupported = |field: &str, expected: &str, found: &Value| {
        Err(Error::model(format!(
            "expected `{field}` {expected} in `config.json`, but found {found}"
        )))
    };
    let expected = [
        ("architecture_type", Value::from("uni-encoder")),
        ("class_token_pooling", "first".into()),
        ("embed_class_token", true.into()),
        ("encoder_layer_id", (-1).into()),
        ("max_labels_alloc", "dynamic".into()),
        ("projector_hidden_act", "gelu".into()),
        ("squeeze_layers", false.into()),
        ("use_lstm", false.into()),
        ("use_segment_embeddings", false.into()),
    ];
    for (field, expected) in expected {
        if let Some(found) = config
            .get::<Value>(field)?
            .filter(|found| *found != expected)
        {
            return unsupported(field, &expected.to_string(), &found);
        }
    }
    scorer(config)?;
    let strategy = strategy(config)?;
    if config.is_set("extract_text_features")? && strategy != "first" {
        return unsupported(
            "pooling_strategy",
            "\"first\" with `extract_text_features` true",
            &Value::from(strategy),
        );
    }
    Ok(())
}

fn scorer(config: &ConfigFile) -> Result<Pairs> {
    choice(config, "scorer_type", SCORERS)
}

fn strategy(config: &ConfigFile) -> Result<&'static str> {
    choice(
        config,
        "pooling_strategy",
        POOLINGS.map(|name| (name, name)),
    )
}

/// Reads the encoder description.
fn encoder(config: &ConfigFile, folder: &ModelFolder) -> Result<EncoderConfig> {
    let mut fields: Map<String, Value> = config.require("encoder_config")?;
    fields
        .entry("model_type")
        .or_insert_with(|| DEFAULT_ENCODER.into());
    let own = ConfigFile::new(ConfigFile::NAME, fields);
    if !ENCODERS.contains(&own.model_type()) {
        return Err(Error::model(format!(
            "the `model_type` `{}` in the `encoder_config` of a {GLICLASS} model is not supported; supported: {}",
            own.model_type(),
            quoted(&ENCODERS)
        )));
    }
    encoder_of(&own, folder, GLICLASS)
}

fn settings(
    config: &ConfigFile,
    folder: &ModelFolder,
    encoder: &EncoderConfig,
) -> Result<LabelScoresSettings> {
    Ok(LabelScoresSettings {
        output: SPAN_LOGITS.to_owned(),
        schema_token: None,
        label_token: LABEL.to_owned(),
        separator: SEPARATOR.to_owned(),
        labels_first: config.is_set("prompt_first")?,
        pooled: match strategy(config)? {
            "first" if config.is_set("extract_text_features")? => PooledTokens::Separator,
            "first" => PooledTokens::First,
            "last" => PooledTokens::Last,
            _ => PooledTokens::All,
        },
        max_tokens: max_tokens(folder, &encoder.encoder_limits)?,
    })
}

/// The id of a token that the package puts into texts, which must be the one in the config.
fn token(config: &ConfigFile, tokenizer: &Tokenizer, token: &str, field: &str) -> Result<u32> {
    let expected: i64 = config.require(field)?;
    match tokenizer.id(token) {
        Some(found) if i64::from(found) == expected => Ok(found),
        found => Err(Error::model(format!(
            "expected the token {expected} for `{token}`, the `{field}` of `config.json`, but found {} in the tokenizer",
            found.map_or("none".to_owned(), |found| found.to_string())
        ))),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_architectures_and_options_are_refused_by_name() {
        let config = |field: &str, value: Value| {
            let mut config = json!({ "model_type": "GLiClass", "encoder_config": { "model_type": "deberta-v2" } });
            config[field] = value;
            ConfigFile::new(ConfigFile::NAME, config.as_object().cloned().unwrap())
        };
        let refusal = |field: &str, value: Value| {
            let config = config(field, value);
            let encoder = || encoder(&config, &ModelFolder::new("model")).map(drop);
            check(&config)
                .and_then(|()| encoder())
                .unwrap_err()
                .to_string()
        };
        let refusals = [
            refusal("architecture_type", json!("bi-encoder-fused")),
            refusal("class_token_pooling", json!("average")),
            refusal("embed_class_token", json!(false)),
            refusal("encoder_layer_id", json!(3)),
            refusal("max_labels_alloc", json!(25)),
            refusal("projector_hidden_act", json!("mish")),
            refusal("squeeze_layers", json!(true)),
            refusal("use_lstm", json!(true)),
            refusal("use_segment_embeddings", json!(true)),
            refusal("scorer_type", json!("hopfield")),
            refusal("pooling_strategy", json!("rms")),
            refusal("encoder_config", json!({ "model_type": "qwen2" })),
            refusal("encoder_config", Value::Null),
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected `architecture_type` "uni-encoder" in `config.json`, but found "bi-encoder-fused"
        expected `class_token_pooling` "first" in `config.json`, but found "average"
        expected `embed_class_token` true in `config.json`, but found false
        expected `encoder_layer_id` -1 in `config.json`, but found 3
        expected `max_labels_alloc` "dynamic" in `config.json`, but found 25
        expected `projector_hidden_act` "gelu" in `config.json`, but found "mish"
        expected `squeeze_layers` false in `config.json`, but found true
        expected `use_lstm` false in `config.json`, but found true
        expected `use_segment_embeddings` false in `config.json`, but found true
        `scorer_type` `hopfield` in `config.json` is not supported; supported: `simple`, `weighted-dot`, `mlp`
        `pooling_strategy` `rms` in `config.json` is not supported; supported: `first`, `last`, `avg`, `sum`
        the `model_type` `qwen2` in the `encoder_config` of a GLiClass model is not supported; supported: `deberta-v2`, `modernbert`
        expected `encoder_config` in `config.json`, but found none
        "#);
        for field in ["scorer_type", "pooling_strategy", "use_lstm"] {
            check(&config(field, Value::Null)).unwrap();
        }
        let mut both = config("extract_text_features", json!(true))
            .fields()
            .clone();
        both.insert("pooling_strategy".to_owned(), json!("avg"));
        let refusal = check(&ConfigFile::new(ConfigFile::NAME, both))
            .unwrap_err()
            .to_string();
        insta::assert_snapshot!(
            refusal,
            @r#"expected `pooling_strategy` "first" with `extract_text_features` true in `config.json`, but found "avg""#
        );
    }
}
