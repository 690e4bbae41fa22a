//! M2M100, NLLB and Marian, from the files that `transformers` saves.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    bundle::{Opened, OpenedSettings, Origin},
    model::{Memory, Norms, Positions, Stack, Table, Tables, TranslationModel, Waves, first_of},
    vocabulary::{Tokenizers, many_to_many, marian, read_json},
};
use crate::{
    build::{
        encoder::{read_config, require_heads_fit, required},
        exported,
        layers::Activation,
        weights::Weights,
    },
    error::{Error, Result, quoted},
    pipeline::generation::{GenerationOptions, GenerationSettings},
};

/// The `model_type`s that are supported.
pub(in crate::build) const MODEL_TYPES: [&str; 2] = [M2M100, MARIAN];
const M2M100: &str = "m2m_100";
const MARIAN: &str = "marian";

/// What both families say nothing of.
const EPSILON: f32 = 1e-5;
const PREFIX: (&str, &str) = ("model.", "encoder.layers.0.fc1.weight");
const SHARED: &str = "model.shared.weight";
const SOURCE: &str = "model.encoder.embed_tokens.weight";
const TARGET: &str = "model.decoder.embed_tokens.weight";
const OUTPUT: &str = "lm_head.weight";
const BIAS: &str = "final_logits_bias";

/// The fields of `config.json` that matter.
#[derive(Debug, Deserialize)]
struct Config {
    model_type: Option<String>,
    #[serde(default)]
    architectures: Vec<String>,
    d_model: Option<usize>,
    encoder_layers: Option<usize>,
    decoder_layers: Option<usize>,
    encoder_attention_heads: Option<usize>,
    decoder_attention_heads: Option<usize>,
    encoder_ffn_dim: Option<usize>,
    decoder_ffn_dim: Option<usize>,
    activation_function: Option<String>,
    max_position_embeddings: Option<usize>,
    #[serde(default)]
    scale_embedding: bool,
    share_encoder_decoder_embeddings: Option<bool>,
    tie_word_embeddings: Option<bool>,
    vocab_size: Option<usize>,
    decoder_vocab_size: Option<usize>,
    pad_token_id: Option<i64>,
}

/// The most values of a table of positions: that of the largest models is a hundredth of it.
const MOST_POSITION_VALUES: usize = 1 << 28;

/// The ids of `generation_config.json`, or of a `config.json` of old.
#[derive(Debug, Deserialize)]
struct SpecialIds {
    decoder_start_token_id: Option<i64>,
    eos_token_id: Option<OneOrMany>,
    pad_token_id: Option<i64>,
    bos_token_id: Option<i64>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum OneOrMany {
    One(i64),
    Many(Vec<i64>),
}

/// Whether the `config.json` in `folder` is that of a model that is read here.
pub(in crate::build) fn is_in(folder: &Path) -> bool {
    let config: Option<Config> = read_config(folder).ok();
    let model_type = config.and_then(|config| config.model_type).unwrap_or_default();
    MODEL_TYPES.contains(&model_type.as_str()) && Weights::are_in(folder)
}

/// Reads the model in `folder`.
pub(in crate::build) fn open(folder: &Path) -> Result<Opened> {
    let config: Config = read_config(folder)?;
    let weights = Weights::open(folder)?.with_prefix(PREFIX.0, PREFIX.1);
    let in_folder = |error| Error::model_because(format!("cannot build from `{}`", folder.display()), error);
    let model = config.model(&weights).map_err(in_folder)?;
    let sizes = [model.tables.source.rows, model.tables.output.rows];
    let positions = model.positions.length;
    config
        .opened(folder, sizes, positions, Origin::Weights { model: Box::new(model), weights })
        .map_err(in_folder)
}

/// Whether `folder` holds the graphs of a model that is read here, as `optimum-cli` exports them.
pub(in crate::build) fn is_export_in(folder: &Path) -> bool {
    exported::is_in(folder)
}

/// Reads the exported graphs in `folder`, and the files that say how the model is used.
pub(in crate::build) fn open_export(folder: &Path) -> Result<Opened> {
    let config: Config = read_config(folder)?;
    let in_folder = |error| Error::model_because(format!("cannot build from `{}`", folder.display()), error);
    let known = config.model_type.as_deref().is_some_and(|kind| MODEL_TYPES.contains(&kind));
    if !known {
        return Err(in_folder(Error::model(format!(
            "expected a `model_type` of {}, but found `{}`",
            quoted(&MODEL_TYPES),
            config.model_type.as_deref().unwrap_or("none")
        ))));
    }
    let rows = required(config.vocab_size, "vocab_size").map_err(in_folder)?;
    let sizes = [rows, config.decoder_vocab_size.unwrap_or(rows)];
    let positions = required(config.max_position_embeddings, "max_position_embeddings").map_err(in_folder)?;
    let architecture =
        config.architectures.first().or(config.model_type.as_ref()).cloned().unwrap_or_default();
    let export = exported::Export::open(folder, architecture, positions)?;
    config.opened(folder, sizes, positions, Origin::Export(Box::new(export))).map_err(in_folder)
}

impl Config {
    /// Puts together what was read with what the other files in `folder` say.
    fn opened(&self, folder: &Path, sizes: [usize; 2], positions: usize, origin: Origin) -> Result<Opened> {
        let Tokenizers { source, target, unknown_tokens, languages, max_tokens } = match self.is_marian() {
            true => marian(folder, sizes),
            false => many_to_many(folder, sizes[0]),
        }?;
        let settings = OpenedSettings {
            max_tokens: max_tokens.map_or(positions, |tokens| tokens.min(positions)),
            languages,
            generation: generation(folder)?,
            unknown_tokens,
        };
        Ok(Opened { settings, origin, tokenizer: source, target_tokenizer: target, shortlist: None })
    }

    fn is_marian(&self) -> bool {
        self.model_type.as_deref() == Some(MARIAN)
    }

    fn model(&self, weights: &Weights) -> Result<TranslationModel> {
        let hidden = required(self.d_model, "d_model")?;
        let stack = |layers, heads: (Option<usize>, &str), width, names: [&str; 2]| {
            let heads = required(heads.0, heads.1)?;
            require_heads_fit(hidden, heads)?;
            Ok::<_, Error>(Stack {
                layers: required(layers, names[0])?,
                heads,
                intermediate: required(width, names[1])?,
            })
        };
        let length = required(self.max_position_embeddings, "max_position_embeddings")?;
        let padding = required(self.pad_token_id, "pad_token_id")?;
        // Positions are made here and not read, so that nothing else says how many there can be.
        let values = length
            .checked_add(usize::try_from(padding).unwrap_or(0))
            .and_then(|rows| rows.checked_add(1)?.checked_mul(hidden));
        if values.is_none_or(|values| values > MOST_POSITION_VALUES) {
            return Err(Error::model(format!(
                "expected `max_position_embeddings` times `d_model` of at most {MOST_POSITION_VALUES}, but found {length} \
                 times {hidden}, with the padding at {padding}"
            )));
        }
        let is_marian = self.is_marian();
        let (norms, waves, padding, memory) = match is_marian {
            true => (Norms::After, Waves::ShortOfTheEnd, None, Memory::Attention),
            false => (Norms::Before, Waves::ToTheEnd, Some(padding), Memory::Attention),
        };
        Ok(TranslationModel {
            architecture: self
                .architectures
                .first()
                .or(self.model_type.as_ref())
                .cloned()
                .unwrap_or_default(),
            hidden,
            encoder: stack(
                self.encoder_layers,
                (self.encoder_attention_heads, "encoder_attention_heads"),
                self.encoder_ffn_dim,
                ["encoder_layers", "encoder_ffn_dim"],
            )?,
            decoder: stack(
                self.decoder_layers,
                (self.decoder_attention_heads, "decoder_attention_heads"),
                self.decoder_ffn_dim,
                ["decoder_layers", "decoder_ffn_dim"],
            )?,
            tables: self.tables(weights)?,
            activation: Activation::of_name(self.activation_function.as_deref().unwrap_or("relu"))?,
            norms,
            epsilon: EPSILON,
            positions: Positions { length, waves, padding },
            scale: if self.scale_embedding { (hidden as f32).sqrt() } else { 1.0 },
            memory,
            trained_in_integers: false,
            starts_empty: false,
            has_shortlist: false,
        })
    }

    /// Where the tables are: files of tied matrices keep one of them, under the name of any.
    fn tables(&self, weights: &Weights) -> Result<Tables> {
        let rows = required(self.vocab_size, "vocab_size")?;
        let target_rows = self.decoder_vocab_size.unwrap_or(rows);
        let is_shared = self.share_encoder_decoder_embeddings.unwrap_or(true);
        let (sources, targets): (&[&str], &[&str]) = match is_shared {
            true => (&[SHARED, SOURCE, TARGET, OUTPUT], &[SHARED, TARGET, SOURCE, OUTPUT]),
            false => (&[SOURCE], &[TARGET, OUTPUT]),
        };
        let source = Table { name: first_of(weights, sources)?, rows };
        let target = Table { name: first_of(weights, targets)?, rows: target_rows };
        let has_own_output = self.tie_word_embeddings == Some(false) && weights.has(OUTPUT);
        let output = if has_own_output {
            Table { name: OUTPUT.to_owned(), rows: target_rows }
        } else {
            target.clone()
        };
        Ok(Tables { source, target, output, bias: weights.has(BIAS).then(|| BIAS.to_owned()) })
    }
}

/// How the model in `folder` generates, by its `generation_config.json`, or by its `config.json` where there is no
/// such file.
fn generation(folder: &Path) -> Result<GenerationSettings> {
    let config: Option<Map<String, Value>> = read_json(folder, "generation_config.json")?;
    let config = match config {
        Some(config) => config,
        None => read_config(folder)?,
    };
    let unreadable = |error| Error::model_because("cannot read how the model generates", error);
    let ids: SpecialIds = serde_json::from_value(Value::Object(config.clone())).map_err(unreadable)?;
    let eos_token_ids = match required(ids.eos_token_id, "eos_token_id")? {
        OneOrMany::One(id) => vec![id],
        OneOrMany::Many(ids) => ids,
    };
    let Some(last) = eos_token_ids.first().copied() else {
        return Err(Error::model("expected an `eos_token_id` at least, but found an empty list"));
    };
    let known = config.into_iter().filter(|(name, _)| GenerationOptions::NAMES.contains(&name.as_str()));
    let defaults = serde_json::from_value(Value::Object(known.collect())).map_err(unreadable)?;
    Ok(GenerationSettings {
        decoder_start_token_id: required(
            ids.decoder_start_token_id.or(ids.bos_token_id),
            "decoder_start_token_id",
        )?,
        pad_token_id: ids.pad_token_id.unwrap_or(last),
        eos_token_ids,
        length_factor: None,
        defaults,
    })
}
