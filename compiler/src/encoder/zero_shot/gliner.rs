//! GLiNER: an encoder that reads labels in front of a text, and a span head. Model and encoder settings are in
//! `gliner_config.json`.

use serde_json::{Map, Value, json};

use super::{
    gliner_config::{self, GLINER, LABELS_ENCODER, encoder_of, is_set, own_encoder, weights_of},
    label_encoder,
    spans::{SPAN_LOGITS, Scored, SpanHead},
};
use crate::encoder::{config::EncoderConfig, families, heads::OutputHeads, source};
use crate::{
    files::{config::ConfigFile, model_folder::ModelFolder, weights::Weights},
    plan::{Plan, opened_model::OpenedModel},
    sentence_transformers::max_tokens,
    tokenizers::{
        parts, sentencepiece::SentencePieces, token_rows::within_vocabulary,
        tokenizer_config::read_tokenizer,
    },
};
use kivu::{
    Error, Result,
    error::quoted,
    pipeline::entities::zero_shot_entities::ZeroShotEntitiesSettings,
    repository::{TaskSettings, bundle::TOKENIZER},
    tokenizer::Tokenizer,
};

/// DeBERTa v3's SentencePiece model.
const PIECES: &str = "spm.model";
/// Tokenizer files, in order of preference.
const TOKENIZERS: [&str; 2] = [TOKENIZER, PIECES];
/// Prefix for encoder weights.
const PREFIX: &str = "token_rep_layer.bert_layer.model.";
/// Values of `span_mode`: for models that score spans by their first and last words, and for models that score words.
const MARKERS: &str = "markerV0";
const WORD_LEVEL: &str = "token_level";
/// Maximum head width, far above published models.
const MAX_WIDTH: usize = 1 << 16;
/// Values of `model_type`. `span_mode` and `labels_encoder` determine the kind.
const KINDS: [&str; 5] = [
    "gliner",
    "gliner_uni_encoder_span",
    "gliner_uni_encoder_token",
    "gliner_bi_encoder_span",
    "gliner_bi_encoder_token",
];
/// Fields that identify other kinds of GLiNER.
const OTHER_KINDS: [(&str, &str); 3] = [
    ("labels_decoder", "a decoder that generates labels"),
    ("relations_layer", "relations"),
    ("span_encoder_config", "an encoder for spans"),
];

/// Whether `folder` has GLiNER settings.
pub fn is_gliner(folder: &ModelFolder) -> bool {
    folder.join(GLINER).is_file()
}

/// The encoder's repository, if its files are missing. `folder` has the settings; `has` finds other files.
pub fn missing_encoder(folder: &ModelFolder, has: impl Fn(&str) -> bool) -> Result<Option<String>> {
    let config = ConfigFile::open_or_empty(folder, GLINER)?;
    let has_tokenizer = TOKENIZERS.iter().any(|name| has(name));
    let has_config = is_set(&config, "encoder_config") || has(ConfigFile::NAME);
    if has_tokenizer && has_config {
        Ok(None)
    } else {
        config.get("model_name")
    }
}

/// Reads the model in the plan's folder.
pub fn open_gliner(plan: &Plan) -> Result<OpenedModel<'static>> {
    let folder = &plan.folder;
    let config = ConfigFile::open_or_empty(folder, GLINER)?;
    check(&config)?;
    let place = |names: &[&str]| {
        let is_own = names.iter().any(|name| folder.join(name).is_file());
        plan.encoder.as_ref().filter(|_| !is_own).unwrap_or(folder)
    };
    let of_tokenizer = place(&TOKENIZERS);
    let reads_labels = !is_set(&config, LABELS_ENCODER);
    let tokens = Some(tokens(&config)?).filter(|_| reads_labels);
    let tokenizer = tokenizer(&config, of_tokenizer, tokens.as_ref())?;
    let mut encoder = encoder(&config, place(&[ConfigFile::NAME]))?;
    let mut weights = Weights::open(folder)?;
    let labels = match reads_labels {
        true => None,
        false => {
            // Such models have a recurrent layer that they do not use.
            drop(weights.split_off("rnn."));
            Some(label_encoder::open(
                &config,
                folder,
                &mut weights,
                width(&config)?,
            )?)
        }
    };
    families::arrange(&mut encoder, &mut weights)?;
    let weights = weights_of(&mut encoder, weights, PREFIX)?;
    let tokenizer = within_vocabulary(tokenizer, encoder.vocabulary)?;
    let (labels, label_settings) = labels.unzip();
    let settings = ZeroShotEntitiesSettings {
        label_encoder: label_settings,
        ..settings(&config, of_tokenizer, &encoder, tokens)?
    };
    let head = SpanHead {
        encoder_width: encoder.encoder_limits.hidden,
        width: width(&config)?,
        scored: settings
            .max_entity_words
            .map_or(Scored::Words, Scored::Spans),
        recurrent_layers: if reads_labels {
            config.get("num_rnn_layers")?.unwrap_or(1)
        } else {
            0
        },
        marker: if reads_labels {
            Some(marker(&config, &settings, &tokenizer)?)
        } else {
            None
        },
        max_tokens: settings.max_tokens,
    };
    let settings = TaskSettings::ZeroShotEntities(settings);
    source::of_parts(
        plan,
        source::Parts {
            config: encoder,
            weights,
            heads: OutputHeads::spans(head),
            settings,
            tokenizer,
            labels,
        },
    )
}

/// Refuses other kinds of GLiNER, and unsupported options that change results.
fn check(config: &ConfigFile) -> Result<()> {
    let unsupported = |expected: &str, found: &str| {
        Err(Error::model(format!(
            "expected {expected} in `{GLINER}`, but found {found}"
        )))
    };
    if let Some((field, kind)) = OTHER_KINDS.iter().find(|(field, _)| is_set(config, field)) {
        return unsupported(
            &format!("a model that scores words or spans, without {kind},"),
            &format!("`{field}` {}", config.fields()[*field]),
        );
    }
    let texts = [
        ("model_type", "gliner", &KINDS[..]),
        ("span_mode", MARKERS, &[MARKERS, WORD_LEVEL]),
        ("subtoken_pooling", "first", &["first"]),
        ("words_splitter_type", "whitespace", &["whitespace"]),
    ];
    for (field, default, supported) in texts {
        let found: String = config.get(field)?.unwrap_or_else(|| default.to_owned());
        if !supported.contains(&&*found) {
            return unsupported(
                &format!("`{field}` {}", quoted(supported)),
                &format!("`{found}`"),
            );
        }
    }
    let flags = [
        ("fuse_layers", false),
        ("embed_ent_token", true),
        ("precomputed_prompts_mode", false),
    ];
    for (field, expected) in flags {
        if let Some(found) = config
            .get::<bool>(field)?
            .filter(|found| *found != expected)
        {
            return unsupported(&format!("`{field}` {expected}"), &found.to_string());
        }
    }
    match config
        .get::<String>("post_fusion_schema")?
        .filter(|schema| !schema.is_empty())
    {
        Some(schema) => unsupported("no `post_fusion_schema`", &format!("`{schema}`")),
        None => Ok(()),
    }
}

/// Reads the encoder description.
fn encoder(config: &ConfigFile, folder: &ModelFolder) -> Result<EncoderConfig> {
    let file = match own_encoder(config, "encoder_config")? {
        Some(file) => file,
        None => ConfigFile::open(folder).map_err(|error| incomplete(config, error))?,
    };
    encoder_of(&file, folder, "GLiNER")
}

/// Reads the `tokenizer.json`, or converts DeBERTa v3's SentencePiece model, and adds `gliner`'s `tokens` for labels.
fn tokenizer(
    config: &ConfigFile,
    folder: &ModelFolder,
    tokens: Option<&[String; 2]>,
) -> Result<Vec<u8>> {
    let pieces = folder.join(PIECES);
    let file = match !folder.join(TOKENIZER).is_file() && pieces.is_file() {
        true => SentencePieces::open(&pieces)?.deberta()?,
        false => read_tokenizer(folder).map_err(|error| incomplete(config, error))?,
    };
    let tokenizer = Tokenizer::from_json(&file)?;
    let missing = tokens.filter(|[label_token, _]| tokenizer.id(label_token).is_none());
    let Some([label_token, separator]) = missing else {
        return Ok(file);
    };
    let invalid = |error| Error::model_because("cannot add tokens to the tokenizer", error);
    let mut json: Map<String, Value> = serde_json::from_slice(&file).map_err(invalid)?;
    let added = ["[FLERT]", label_token, separator]
        .into_iter()
        .zip(tokenizer.vocabulary_size()..);
    let added = added.map(|(content, id)| parts::added(content, id));
    if let Value::Array(known) = json.entry("added_tokens").or_insert_with(|| json!([])) {
        known.extend(added);
    }
    serde_json::to_vec(&json).map_err(invalid)
}

/// The tokens before each label and after the last one.
fn tokens(config: &ConfigFile) -> Result<[String; 2]> {
    let token = |field: &str, default: &str| {
        Ok::<_, Error>(config.get(field)?.unwrap_or_else(|| default.to_owned()))
    };
    Ok([
        token("ent_token", "<<ENT>>")?,
        token("sep_token", "<<SEP>>")?,
    ])
}

/// Error for a model published without its encoder's files.
fn incomplete(config: &ConfigFile, error: Error) -> Error {
    let files = format!("`config.json` and `tokenizer.json` or `{PIECES}`");
    gliner_config::incomplete(config, "model_name", ["the encoder", &files], error)
}

fn settings(
    config: &ConfigFile,
    folder: &ModelFolder,
    encoder: &EncoderConfig,
    tokens: Option<[String; 2]>,
) -> Result<ZeroShotEntitiesSettings> {
    let [label_token, separator] = tokens.unwrap_or_default();
    let settings = ZeroShotEntitiesSettings {
        output: SPAN_LOGITS.to_owned(),
        schema_token: None,
        label_token,
        separator,
        label_encoder: None,
        max_entity_words: match scores_words(config)? {
            true => None,
            false => Some(config.get("max_width")?.unwrap_or(12)),
        },
        max_words: config.get("max_len")?.unwrap_or(384),
        max_tokens: max_tokens(folder, &encoder.encoder_limits)?,
    };
    // Each span length is a part of the graph.
    let width = settings.max_entity_words.unwrap_or(1);
    if !(1..=256).contains(&width) || settings.max_words == 0 {
        return Err(Error::model(format!(
            "expected `max_width` from 1 to 256 and `max_len` above 0, but found {width} and {}",
            settings.max_words
        )));
    }
    Ok(settings)
}

/// Whether the model scores words, not spans.
fn scores_words(config: &ConfigFile) -> Result<bool> {
    Ok(config
        .get::<String>("span_mode")?
        .is_some_and(|mode| mode == WORD_LEVEL))
}

/// Reads the head width.
fn width(config: &ConfigFile) -> Result<usize> {
    let width: usize = config.require("hidden_size")?;
    match width.is_multiple_of(2) && (1..=MAX_WIDTH).contains(&width) {
        true => Ok(width),
        false => Err(Error::model(format!(
            "expected an even `hidden_size` from 2 to {MAX_WIDTH} in `{GLINER}`, but found {width}"
        ))),
    }
}

/// Token id before each label.
fn marker(
    config: &ConfigFile,
    settings: &ZeroShotEntitiesSettings,
    tokenizer: &[u8],
) -> Result<u32> {
    let tokenizer = Tokenizer::from_json(tokenizer)?;
    let token = &settings.label_token;
    let [marker] = tokenizer.ids(token)?[..] else {
        return Err(Error::model(format!(
            "expected `{token}` to be a single token, but found several"
        )));
    };
    let expected = config
        .get::<i64>("class_token_index")?
        .filter(|index| *index >= 0);
    match expected.filter(|expected| *expected != i64::from(marker)) {
        Some(expected) => Err(Error::model(format!(
            "expected the token {expected} for `{token}`, the `class_token_index` of `{GLINER}`, but found {marker} in \
             the tokenizer"
        ))),
        None => Ok(marker),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn other_kinds_and_options_are_refused_by_name() {
        let refusal = |field: &str, value: Value| {
            let mut config =
                json!({ "span_mode": "markerV0", "labels_encoder": null, "labels_decoder": "" });
            config[field] = value;
            check(&ConfigFile::new(
                GLINER,
                config.as_object().cloned().unwrap(),
            ))
            .unwrap_err()
            .to_string()
        };
        let refusals = [
            refusal("labels_decoder", json!("gpt2")),
            refusal("relations_layer", json!("biaffine")),
            refusal("span_encoder_config", json!({ "type": "transformer" })),
            refusal("model_type", json!("gliner_uni_encoder_token_relex")),
            refusal("span_mode", json!("markerV1")),
            refusal("subtoken_pooling", json!("mean")),
            refusal("words_splitter_type", json!("spacy")),
            refusal("fuse_layers", json!(true)),
            refusal("embed_ent_token", json!(false)),
            refusal("post_fusion_schema", json!("l2l-l2t")),
        ];
        insta::assert_snapshot!(refusals.join("\n"), @r#"
        expected a model that scores words or spans, without a decoder that generates labels, in `gliner_config.json`, but found `labels_decoder` "gpt2"
        expected a model that scores words or spans, without relations, in `gliner_config.json`, but found `relations_layer` "biaffine"
        expected a model that scores words or spans, without an encoder for spans, in `gliner_config.json`, but found `span_encoder_config` {"type":"transformer"}
        expected `model_type` `gliner`, `gliner_uni_encoder_span`, `gliner_uni_encoder_token`, `gliner_bi_encoder_span`, `gliner_bi_encoder_token` in `gliner_config.json`, but found `gliner_uni_encoder_token_relex`
        expected `span_mode` `markerV0`, `token_level` in `gliner_config.json`, but found `markerV1`
        expected `subtoken_pooling` `first` in `gliner_config.json`, but found `mean`
        expected `words_splitter_type` `whitespace` in `gliner_config.json`, but found `spacy`
        expected `fuse_layers` false in `gliner_config.json`, but found true
        expected `embed_ent_token` true in `gliner_config.json`, but found false
        expected no `post_fusion_schema` in `gliner_config.json`, but found `l2l-l2t`
        "#);
        let legacy = json!({ "model_name": "microsoft/deberta-v3-small", "has_rnn": true });
        check(&ConfigFile::new(
            GLINER,
            legacy.as_object().cloned().unwrap(),
        ))
        .unwrap();
    }
}
