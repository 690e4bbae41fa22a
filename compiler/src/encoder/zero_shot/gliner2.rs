//! GLiNER2: an encoder that reads a schema in front of a text, with heads for entities and for labels. The encoder's settings
//! are in a folder of their own.

use kivu_engine::program::SchemaTokens;
use serde_json::{Map, Value};

use super::{
    gliner_config::{choice, encoder_of, weights_of},
    gliner2_head::{CountedSpans, Mixing},
    spans::{SPAN_LOGITS, Scored, SpanHead},
};
use crate::encoder::{config::EncoderConfig, heads::OutputHeads, source};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
    plan::{Plan, opened_model::OpenedModel, task::choose},
    sentence_transformers::max_tokens,
    tokenizers::{token_rows::within_vocabulary, tokenizer_config::read_tokenizer},
};
use kivu::{
    Error, Result,
    pipeline::{
        Task,
        classification::label_scores::{LabelScoresSettings, PooledTokens},
        entities::{
            schema::{ENTITY, FIELD, LABEL, RELATION_END, SCHEMA, SCHEMA_SEPARATOR, SEPARATOR},
            zero_shot_entities::ZeroShotEntitiesSettings,
        },
    },
    repository::TaskSettings,
    tokenizer::Tokenizer,
};

/// The `model_type`.
pub const GLINER2: &str = "extractor";
/// Folder with the encoder's settings.
pub const ENCODER_CONFIG: &str = "encoder_config";
/// Prefix for encoder weights.
const PREFIX: &str = "encoder.";
/// Values of `counting_layer`.
const COUNTING_LAYERS: [(&str, Mixing); 3] = [
    ("count_lstm", Mixing::Joined),
    ("count_lstm_v2", Mixing::Attention),
    ("count_lstm_moe", Mixing::Experts),
];
/// Weights that score spans. All bundles have the head for labels.
const ENTITY_HEADS: [&str; 3] = ["span_rep.", "count_embed.", "count_pred."];

/// Whether the model in `folder` is a GLiNER2 model.
pub fn is_gliner2(folder: &ModelFolder) -> bool {
    ConfigFile::open(folder).is_ok_and(|config| config.model_type() == GLINER2)
}

/// Reads the model in the plan's folder: with the head for the plan's task.
pub fn open_gliner2(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = &plan.folder;
    let config = ConfigFile::open(folder)?;
    check(&config)?;
    let mut encoder = encoder(folder)?;
    let (task, _) = choose(
        plan,
        vec![Task::TokenClassification, Task::ZeroShotClassification],
    );
    let scores_labels = task == Task::ZeroShotClassification;
    let mut weights = Weights::open(folder)?;
    if scores_labels {
        ENTITY_HEADS
            .iter()
            .for_each(|head| drop(weights.split_off(head)));
    }
    let weights = weights_of(&mut encoder, weights, PREFIX)?;
    let tokenizer = within_vocabulary(read_tokenizer(folder)?, encoder.vocabulary)?;
    let max_tokens = max_tokens(folder, &encoder.encoder_limits)?;
    let longest = max_width(&config)?;
    let parsed = Tokenizer::from_json(&tokenizer)?;
    for other in [SEPARATOR, SCHEMA_SEPARATOR] {
        token(&parsed, other)?;
    }
    let tokens = SchemaTokens {
        schema: token(&parsed, SCHEMA)?,
        fields: [token(&parsed, FIELD)?, token(&parsed, RELATION_END)?],
        class: token(&parsed, LABEL)?,
    };
    let marker = if scores_labels {
        tokens.class
    } else {
        token(&parsed, ENTITY)?
    };
    let head = SpanHead {
        encoder_width: encoder.encoder_limits.hidden,
        width: encoder.encoder_limits.hidden,
        scored: match scores_labels {
            true => Scored::Labels,
            false => Scored::CountedSpans(CountedSpans {
                longest,
                tokens,
                mixing: mixing(&config)?,
            }),
        },
        recurrent_layers: 0,
        marker: Some(marker),
        max_tokens,
    };
    let settings = match scores_labels {
        true => TaskSettings::LabelScores(LabelScoresSettings {
            output: SPAN_LOGITS.to_owned(),
            schema_token: Some(SCHEMA.to_owned()),
            label_token: LABEL.to_owned(),
            separator: SEPARATOR.to_owned(),
            labels_first: true,
            pooled: PooledTokens::First,
            max_tokens,
        }),
        false => TaskSettings::ZeroShotEntities(ZeroShotEntitiesSettings {
            output: SPAN_LOGITS.to_owned(),
            schema_token: Some(SCHEMA.to_owned()),
            label_token: ENTITY.to_owned(),
            separator: SEPARATOR.to_owned(),
            max_entity_words: Some(longest),
            label_encoder: None,
            // The package has no limit.
            max_words: max_tokens,
            max_tokens,
        }),
    };
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
    let expected = [("architecture", "span"), ("token_pooling", "first")];
    for (field, expected) in expected {
        if let Some(found) = config
            .get::<Value>(field)?
            .filter(|found| found != expected)
        {
            return Err(Error::model(format!(
                "expected `{field}` \"{expected}\" in `config.json`, but found {found}"
            )));
        }
    }
    if let Some(found) = span_head(config)?
        .get("span_mode")
        .filter(|mode| *mode != "markerV0")
    {
        return Err(Error::model(format!(
            "expected `span_mode` \"markerV0\" in the `span_head` of `config.json`, but found {found}"
        )));
    }
    mixing(config)?;
    max_width(config).map(drop)
}

fn span_head(config: &ConfigFile) -> Result<Map<String, Value>> {
    Ok(config.get("span_head")?.unwrap_or_default())
}

/// Maximum number of words in a span: among the head's settings, or in older models beside them.
fn max_width(config: &ConfigFile) -> Result<usize> {
    let found = match span_head(config)?.get("max_width") {
        None | Some(Value::Null) => config.get::<Value>("max_width")?,
        Some(found) => Some(found.clone()),
    };
    let found = found.unwrap_or_else(|| 8.into());
    // Each span length is a part of the graph.
    let width = found.as_u64().and_then(|width| usize::try_from(width).ok());
    width
        .filter(|width| (1..=256).contains(width))
        .ok_or_else(|| {
            Error::model(format!(
                "expected a `max_width` from 1 to 256 in `config.json`, but found {found}"
            ))
        })
}

fn mixing(config: &ConfigFile) -> Result<Mixing> {
    choice(config, "counting_layer", COUNTING_LAYERS)
}

/// Reads the encoder description.
fn encoder(folder: &ModelFolder) -> Result<EncoderConfig> {
    let own = ConfigFile::open(&folder.inner(ENCODER_CONFIG))?;
    encoder_of(&own, folder, "GLiNER2")
}

/// The id of a token that the package adds to the encoder's tokenizer.
fn token(tokenizer: &Tokenizer, token: &str) -> Result<u32> {
    match tokenizer.ids(token)?[..] {
        [id] if tokenizer.id(token) == Some(id) => Ok(id),
        _ => Err(Error::model(format!(
            "expected the token `{token}` in the tokenizer, but found none"
        ))
        .with_hint(
            "load the model with the package `gliner2` and save it again with `save_pretrained`",
        )),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_architectures_and_options_are_refused_by_name() {
        let checked = |field: &str, value: Value| {
            let mut config = json!({ "model_type": "extractor" });
            config[field] = value;
            check(&ConfigFile::new(
                ConfigFile::NAME,
                config.as_object().cloned().unwrap(),
            ))
        };
        let refusal = |field: &str, value: Value| checked(field, value).unwrap_err().to_string();
        let refusals = [
            refusal("architecture", json!("boundary")),
            refusal("token_pooling", json!("mean")),
            refusal("counting_layer", json!("count_transformer")),
            refusal("span_head", json!({ "span_mode": "marker" })),
            refusal("span_head", json!({ "max_width": 0 })),
            refusal("max_width", json!(1000)),
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected `architecture` "span" in `config.json`, but found "boundary"
        expected `token_pooling` "first" in `config.json`, but found "mean"
        `counting_layer` `count_transformer` in `config.json` is not supported; supported: `count_lstm`, `count_lstm_v2`, `count_lstm_moe`
        expected `span_mode` "markerV0" in the `span_head` of `config.json`, but found "marker"
        expected a `max_width` from 1 to 256 in `config.json`, but found 0
        expected a `max_width` from 1 to 256 in `config.json`, but found 1000
        "#);
        for (field, value) in [
            ("max_width", json!(12)),
            ("architecture", Value::Null),
            ("span_head", Value::Null),
        ] {
            checked(field, value).unwrap();
        }
    }
}
