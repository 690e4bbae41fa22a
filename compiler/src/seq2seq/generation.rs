//! Generation settings from model files and from `transformers` pipelines.

use serde::Deserialize;
use serde_json::{Map, Value};

use super::{
    fairseq::{BART, MARIAN, MBART, PEGASUS},
    instructions::of_tasks,
};
use crate::files::{
    config::{ConfigFile, OneOrMany},
    io::parse_tokenizer,
    model_folder::ModelFolder,
};
use kivu::{
    Error, Result,
    pipeline::generation::{GenerationOptions, GenerationSettings, TokenIds},
};

/// Generation settings from `generation_config.json`, or from `config.json` if that file does not exist.
pub fn generation(folder: &ModelFolder, config: &ConfigFile) -> Result<GenerationSettings> {
    let own = ConfigFile::open_if_exists(folder, "generation_config.json")?;
    let forced = if own.is_none() {
        forced_tokens(config)?
    } else {
        GenerationOptions::default()
    };
    let config = own.as_ref().unwrap_or(config);
    let eos_token_ids = config.require::<OneOrMany<i64>>("eos_token_id")?.into_vec();
    let Some(end) = eos_token_ids.first().copied() else {
        return Err(Error::model(
            "expected at least one `eos_token_id`, but found an empty list",
        ));
    };
    let defaults = options(config.fields())?.or(&forced);
    Ok(GenerationSettings {
        decoder_start_token_id: start(config)?,
        pad_token_id: config.get("pad_token_id")?.unwrap_or(end),
        eos_token_ids,
        length_factor: None,
        defaults,
    })
}

/// Refuses tokens in `generation` beyond the model's `rows`, forced ones that are suppressed, and start, end or padding
/// tokens that the tokenizer does not treat as special, since they would be decoded into texts.
pub fn check_tokens(generation: &GenerationSettings, tokenizer: &[u8], rows: usize) -> Result<()> {
    let special = special_ids(tokenizer)?;
    let ends = [
        ("decoder_start_token_id", generation.decoder_start_token_id),
        ("pad_token_id", generation.pad_token_id),
    ];
    let ends = ends.into_iter().chain(
        generation
            .eos_token_ids
            .iter()
            .map(|id| ("eos_token_id", *id)),
    );
    if let Some((name, id)) = ends.clone().find(|(_, id)| !special.contains(id)) {
        return Err(Error::model(format!(
            "expected a special token as `{name}`, but found {id}, which is not among `added_tokens` with `special` \
             true in the tokenizer"
        )));
    }
    let options = &generation.defaults;
    let named = |error: Error| Error::model(error.to_string());
    options.check_forced().map_err(named)?;
    let forced = options
        .forced_eos_token_id
        .iter()
        .flat_map(|ids| ids.as_slice());
    let others = options
        .forced_bos_token_id
        .map(|id| ("forced_bos_token_id", id))
        .into_iter();
    let mut others = others
        .chain(forced.map(|id| ("forced_eos_token_id", *id)))
        .chain(ends);
    let is_known = |id: i64| usize::try_from(id).is_ok_and(|id| id < rows);
    match others.find(|(_, id)| !is_known(*id)) {
        None => Ok(()),
        Some((name, id)) => Err(Error::model(format!(
            "expected a `{name}` below {rows}, the model's ids, but found {id}"
        ))),
    }
}

/// Ids of a `tokenizer.json`'s special tokens.
fn special_ids(tokenizer: &[u8]) -> Result<Vec<i64>> {
    #[derive(Deserialize)]
    struct Token {
        id: i64,
        special: bool,
    }
    #[derive(Deserialize)]
    struct File {
        added_tokens: Vec<Token>,
    }
    let file: File = parse_tokenizer(tokenizer)?;
    Ok(file
        .added_tokens
        .into_iter()
        .filter(|token| token.special)
        .map(|token| token.id)
        .collect())
}

/// The decoder's start token, alone or as a one-element list. A longer list has a start token per text of a batch, and
/// is refused.
fn start(config: &ConfigFile) -> Result<i64> {
    let ids: TokenIds = config.require_any(&["decoder_start_token_id", "bos_token_id"])?;
    match ids.as_slice() {
        [id] => Ok(*id),
        ids => Err(Error::model(format!(
            "expected one `decoder_start_token_id`, but found {}, which `transformers` takes for the texts of a batch",
            ids.len()
        ))),
    }
}

/// Tokens that `transformers` forces in models without a `generation_config.json`, by config class.
fn forced_tokens(config: &ConfigFile) -> Result<GenerationOptions> {
    let end = match config.model_type() {
        BART | MBART => Some(2),
        PEGASUS => Some(1),
        MARIAN => Some(0),
        _ => None,
    };
    // A `null` field forces nothing.
    let is_given = config.fields().contains_key("forced_eos_token_id");
    // The option's name in old BART files.
    let forces_begin =
        config.model_type() == BART && config.is_set("force_bos_token_to_be_generated")?;
    let begin = if forces_begin {
        Some(config.get("bos_token_id")?.unwrap_or(0))
    } else {
        None
    };
    Ok(GenerationOptions {
        forced_bos_token_id: begin,
        forced_eos_token_id: end.filter(|_| !is_given).map(TokenIds::One),
        ..GenerationOptions::default()
    })
}

/// Generation options among a file's fields.
fn options(fields: &Map<String, Value>) -> Result<GenerationOptions> {
    let mut names = GenerationOptions::names();
    // Only requests can set a seed, and the start token has a separate setting.
    for name in ["seed", "decoder_start_token_id"] {
        names.remove(name);
    }
    let fields = fields.iter().filter(|(name, _)| names.contains(*name));
    let fields: Map<String, Value> = fields
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| Error::model_because("cannot read the generation options", error))
}

/// Settings and text prefix that the `transformers` pipeline for `task` uses; the model's decoder has `positions`.
///
/// Pipeline defaults take precedence over the model's. Both yield to the task's parameters in `config.json`, except for
/// the maximum number of new tokens, which takes precedence over a length there.
pub fn for_pipeline(
    settings: GenerationSettings,
    config: &ConfigFile,
    task: &str,
    positions: usize,
) -> Result<(GenerationSettings, String)> {
    const BEAMS: usize = 4;
    const NEW_TOKENS: usize = 256;
    /// Maximum length in `transformers` that counts as unset.
    const DEFAULT_LENGTH: usize = 20;
    let of_task = of_tasks(config)?
        .get(task)
        .and_then(Value::as_object)
        .cloned()
        .unwrap_or_default();
    let mut defaults = settings.defaults;
    defaults.num_beams = Some(BEAMS);
    if defaults
        .max_length
        .is_none_or(|length| length == DEFAULT_LENGTH)
    {
        defaults.max_new_tokens = Some(NEW_TOKENS);
    }
    let mut merged = options(&of_task)?;
    // In a request, a length in either unit replaces both defaults; here each is set separately.
    merged.max_length = merged.max_length.or(defaults.max_length);
    merged.max_new_tokens = merged.max_new_tokens.or(defaults.max_new_tokens);
    merged.max_length = merged.max_length.map(|length| length.min(positions + 1));
    merged.max_new_tokens = merged.max_new_tokens.map(|tokens| tokens.min(positions));
    merged.min_length = merged.min_length.or(defaults.min_length);
    merged.min_new_tokens = merged.min_new_tokens.or(defaults.min_new_tokens);
    let prefix = of_task
        .get("prefix")
        .and_then(Value::as_str)
        .map(str::to_owned);
    let prefix = match prefix {
        Some(prefix) => prefix,
        None => config.get("prefix")?.unwrap_or_default(),
    };
    Ok((
        GenerationSettings {
            defaults: merged.or(&defaults),
            ..settings
        },
        prefix,
    ))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Settings for a model with `config.json` alone.
    fn generation_of(fields: &Value) -> Result<GenerationOptions> {
        let mut config = json!({"eos_token_id": 2, "decoder_start_token_id": 2});
        config
            .as_object_mut()
            .unwrap()
            .extend(fields.as_object().cloned().unwrap());
        let config = ConfigFile::new("config.json", config.as_object().cloned().unwrap());
        let folder = tempfile::tempdir().unwrap();
        Ok(generation(&ModelFolder::new(folder.path()), &config)?.defaults)
    }

    #[test]
    fn classes_force_tokens_that_their_files_leave_out() {
        let forced = |fields: &Value| {
            let options = generation_of(fields).unwrap();
            let last = options
                .forced_eos_token_id
                .map(|ids| ids.as_slice().to_vec());
            (options.forced_bos_token_id, last.map(|ids| ids[0]))
        };
        assert_eq!(forced(&json!({"model_type": "bart"})), (None, Some(2)));
        assert_eq!(forced(&json!({"model_type": "pegasus"})), (None, Some(1)));
        assert_eq!(forced(&json!({"model_type": "marian"})), (None, Some(0)));
        assert_eq!(forced(&json!({"model_type": "m2m_100"})), (None, None));
        assert_eq!(
            forced(&json!({"model_type": "mbart", "forced_eos_token_id": null})),
            (None, None)
        );
        let old = json!({"model_type": "bart", "bos_token_id": 7, "force_bos_token_to_be_generated": true});
        assert_eq!(forced(&old), (Some(7), Some(2)));
    }

    #[test]
    fn tokens_at_the_ends_of_texts_are_special_and_known() {
        let tokens = json!([
            {"id": 2, "special": true}, {"id": 3, "special": false}, {"id": 4, "special": true},
        ]);
        let tokenizer = json!({"added_tokens": tokens});
        let check = |start: i64, end: i64, pad: i64, suppressed: i64| {
            let settings = GenerationSettings {
                decoder_start_token_id: start,
                eos_token_ids: vec![2, end],
                pad_token_id: pad,
                length_factor: None,
                defaults: GenerationOptions {
                    forced_eos_token_id: Some(TokenIds::One(2)),
                    suppress_tokens: Some(vec![suppressed]),
                    ..GenerationOptions::default()
                },
            };
            check_tokens(&settings, tokenizer.to_string().as_bytes(), 4)
        };
        check(2, 2, 2, 1).unwrap();
        let refusals = [
            check(3, 2, 2, 1),
            check(2, 0, 2, 1),
            check(2, 2, 3, 1),
            check(2, 2, 4, 1),
            check(2, 2, 2, 2),
        ];
        let refusals = refusals
            .map(|refusal| refusal.unwrap_err().to_string())
            .join("\n");
        insta::assert_snapshot!(refusals, @"
        expected a special token as `decoder_start_token_id`, but found 3, which is not among `added_tokens` with `special` true in the tokenizer
        expected a special token as `eos_token_id`, but found 0, which is not among `added_tokens` with `special` true in the tokenizer
        expected a special token as `pad_token_id`, but found 3, which is not among `added_tokens` with `special` true in the tokenizer
        expected a `pad_token_id` below 4, the model's ids, but found 4
        `suppress_tokens` has all of `forced_eos_token_id` ([2]), so that no token would be left
        ");
    }

    #[test]
    fn several_start_tokens_are_refused() {
        let refusal = generation_of(&json!({"decoder_start_token_id": [2, 3]})).unwrap_err();
        insta::assert_snapshot!(refusal, @"expected one `decoder_start_token_id`, but found 2, which `transformers` takes for the texts of a batch");
    }

    #[test]
    fn limits_of_sampling_and_lists_of_tokens_are_read() {
        let options = generation_of(&json!({
            "decoder_start_token_id": [2], "forced_eos_token_id": [2, 5], "min_p": 0.1, "typical_p": 0.9,
            "epsilon_cutoff": 0.0, "eta_cutoff": null,
        }));
        let options = options.unwrap();
        assert_eq!(
            options.forced_eos_token_id,
            Some(TokenIds::Many(vec![2, 5]))
        );
        assert_eq!(
            (options.min_p, options.typical_p, options.epsilon_cutoff),
            (Some(0.1), Some(0.9), Some(0.0))
        );
    }
}
