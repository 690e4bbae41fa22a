//! Generation on a fleet, with source ids in and complete target ids out, since a network call per token
//! would be far too slow.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use serde_json::{Map, Value};

use crate::{
    backend::{
        Deadline, RemoteBackend, Schedule, TensorSpec,
        encoder::Sequence,
        model_inputs::{ModelInputs, Role},
    },
    pipeline::{
        encoder::executor::RemoteModel,
        generation::{Generated, GenerationConfig, GenerationSettings},
    },
};
use kivu_base::{
    Error, Result, locked,
    tensor::{ElementType, Elements, Tensor},
};
use kivu_text::Encoding;

/// The output with the targets, the decoder's start token included. The only output may have any name.
pub const TARGETS: &str = "generated_indices";
/// The optional output with their scores.
pub const SCORES: &str = "sequences_scores";
/// Model parameter that lists the `generate` options that a request may set, and the request parameter that sets them.
pub const OPTIONS: &str = "generate_parameters";
/// The option that selects the target language.
const LANGUAGE: &str = "forced_bos_token_id";

/// A model on a fleet that generates targets.
#[derive(Clone, Debug)]
pub struct RemoteGenerator {
    backend: Arc<dyn RemoteBackend>,
    inputs: ModelInputs,
    has_scores: bool,
    /// The options that a request may set.
    options: BTreeSet<String>,
    /// First token of a target in a language other than the requested one. A model without the option [`LANGUAGE`]
    /// always generates the same.
    observed_language: Arc<Mutex<Option<i64>>>,
}

/// Configuration for a request's targets in one language.
#[derive(Clone, Copy, Debug)]
pub struct RemoteRequest<'a> {
    /// The model's settings merged with the request's options.
    pub config: &'a GenerationConfig,
    /// The options that the model uses for a request without any.
    pub default_options: &'a Map<String, Value>,
    /// First target token, if it selects the language.
    pub first_token: Option<i64>,
}

impl RemoteModel for RemoteGenerator {
    type Spec = ();

    fn open(described: &dyn RemoteBackend, (): &()) -> Result<Self> {
        let signature = described.signature();
        let inputs = ModelInputs::recognize(signature)?;
        if inputs.has(Role::Text) {
            return Err(Error::model(format!(
                "expected a model that takes token ids, but found the input {} for texts",
                TensorSpec::names(&signature.inputs)
            )));
        }
        let scores = signature.output(SCORES);
        let others: Vec<usize> = (0..signature.outputs.len())
            .filter(|index| Some(*index) != scores)
            .filter(|index| signature.outputs[*index].element_type != ElementType::Bytes)
            .collect();
        let only = if let [index] = others[..] {
            Some(index)
        } else {
            None
        };
        let targets = signature.output(TARGETS).or(only).ok_or_else(|| {
            Error::model(format!(
                "expected a model with the output `{TARGETS}`, but found {}",
                TensorSpec::names(&signature.outputs)
            ))
        })?;
        let options = described
            .interface()
            .parameters
            .get(OPTIONS)
            .map_or("", String::as_str);
        let options = options.split(',').map(str::trim);
        let options = options
            .filter(|name| !name.is_empty())
            .map(str::to_owned)
            .collect();
        // Unused outputs are not transferred.
        let used: Vec<usize> = [targets].into_iter().chain(scores).collect();
        Ok(Self {
            backend: described.with_outputs(&used),
            inputs,
            has_scores: scores.is_some(),
            options,
            observed_language: Arc::default(),
        })
    }
}

impl RemoteGenerator {
    /// The backend's schedule, without batches if the model has no mask and would read padding as words.
    pub fn schedule(&self) -> Schedule {
        self.inputs.schedule(self.backend.schedule())
    }

    /// Refuses a source that is longer than the model's fixed length.
    pub fn check_length(&self, tokens: usize) -> Result<()> {
        self.inputs.check_length(tokens)
    }

    /// Refuses options that differ from the model's defaults and cannot be set, and a language other than the one
    /// that the model was observed to generate.
    ///
    /// The language may be requested without an option for it: the targets show whether the model generates it.
    pub fn check(&self, request: RemoteRequest<'_>) -> Result<()> {
        let (requested, defaults) = (request.config.options(), request.default_options);
        let names: BTreeSet<&String> = requested.keys().chain(defaults.keys()).collect();
        let fixed = names.into_iter().find(|name| {
            let can_be_set = self.options.contains(*name)
                || (*name == LANGUAGE && request.first_token.is_some());
            !can_be_set && requested.get(*name) != defaults.get(*name)
        });
        if let Some(name) = fixed {
            let shown = |options: &Map<String, Value>| {
                options
                    .get(name)
                    .map_or_else(|| "unset".to_owned(), |value| format!("`{value}`"))
            };
            return Err(Error::invalid(format!(
                "expected `{name}` to be {}, since it cannot be set for the model on the fleet, but found {}",
                shown(defaults),
                shown(&requested)
            )));
        }
        let observed = *locked(&self.observed_language);
        match request.first_token {
            Some(first_token)
                if !self.options.contains(LANGUAGE)
                    && observed.is_some_and(|found| found != first_token) =>
            {
                Err(wrong_language())
            }
            _ => Ok(()),
        }
    }

    /// Generates `num_return_sequences` targets for each row in `rows`, the best first. Refuses targets in a language
    /// other than the requested one.
    pub async fn generate(
        &self,
        rows: &[&[i64]],
        request: RemoteRequest<'_>,
        settings: &GenerationSettings,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Generated>>> {
        let id =
            |id: &i64| u32::try_from(*id).map_err(|_| Error::invalid("expected token ids from 0"));
        let encoding = |row: &&[i64]| {
            let ids = row.iter().map(id).collect::<Result<Vec<u32>>>()?;
            Ok(Encoding {
                type_ids: vec![0; ids.len()],
                ids,
                ..Encoding::default()
            })
        };
        let encodings = rows.iter().map(encoding).collect::<Result<Vec<_>>>()?;
        let batch: Vec<_> = encodings.iter().map(Sequence::from).collect();
        let padding_id = u32::try_from(settings.pad_token_id).unwrap_or(0);
        let inputs = self.inputs.tensors(&batch, padding_id)?;
        let mut options = request.config.options();
        options.retain(|name, _| self.options.contains(name));
        let mut backend = Arc::clone(&self.backend);
        if !options.is_empty() {
            backend = backend.with_parameter(OPTIONS, Value::Object(options).to_string());
        }
        let mut outputs = backend.infer(inputs, deadline).await?.into_iter();
        let targets = outputs.next().ok_or_else(|| unexpected("nothing"))?;
        let scores = outputs.next().filter(|_| self.has_scores);
        let targets = read(
            &targets,
            scores.as_ref(),
            rows.len(),
            request.config,
            settings,
        )?;
        self.check_language(request.first_token, &targets)?;
        Ok(targets)
    }

    fn check_language(&self, requested: Option<i64>, targets: &[Vec<Generated>]) -> Result<()> {
        let Some(requested) = requested else {
            return Ok(());
        };
        let mut first = targets
            .iter()
            .flatten()
            .map(|target| target.ids.first().copied());
        match first.find(|token| *token != Some(requested)) {
            None => Ok(()),
            Some(found) => {
                *locked(&self.observed_language) = found;
                Err(wrong_language())
            }
        }
    }
}

fn wrong_language() -> Error {
    Error::invalid("`tgt_lang` is not the language of the model on the fleet")
}

fn unexpected(found: &str) -> Error {
    let message = format!("expected token ids in `{TARGETS}` from the fleet, but found {found}");
    Error::inference(message)
}

/// The targets in a response for `sources` sources.
fn read(
    targets: &Tensor,
    scores: Option<&Tensor>,
    sources: usize,
    config: &GenerationConfig,
    settings: &GenerationSettings,
) -> Result<Vec<Vec<Generated>>> {
    let per_source = config.num_return_sequences();
    let (rows, columns) = match *targets.shape() {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        ref shape => return Err(unexpected(&format!("shape {shape:?}"))),
    };
    if rows != sources * per_source || columns == 0 {
        return Err(unexpected(&format!(
            "shape {:?} for {sources} sources",
            targets.shape()
        )));
    }
    let ids = token_ids(targets).ok_or_else(|| unexpected("other numbers"))?;
    let scores = scores
        .and_then(Tensor::as_fp32)
        .filter(|scores| scores.len() == rows && config.rows() > 1);
    let targets = ids
        .chunks_exact(columns)
        .enumerate()
        .map(|(row, ids)| Generated {
            ids: target(ids, config.start(), settings),
            score: scores.and_then(|scores| scores.get(row).copied()),
        });
    let targets: Vec<Generated> = targets.collect();
    Ok(targets
        .chunks(per_source.max(1))
        .map(<[Generated]>::to_vec)
        .collect())
}

/// The elements as token ids, if they all are: configurations exist that declare them as FP32.
fn token_ids(tensor: &Tensor) -> Option<Vec<i64>> {
    let ids: Vec<i64> = match tensor.elements() {
        Elements::Int64(ids) => ids.clone(),
        Elements::Int32(ids) => ids.iter().map(|id| i64::from(*id)).collect(),
        Elements::Fp32(values) if values.iter().all(|value| value.fract() == 0.0) => {
            values.iter().map(|value| *value as i64).collect()
        }
        Elements::Fp32(_) | Elements::Bytes(_) => return None,
    };
    ids.iter()
        .all(|id| (0..=i64::from(u32::MAX)).contains(id))
        .then_some(ids)
}

/// A row without the decoder's start token, and without the padding after its end.
fn target(row: &[i64], start: i64, settings: &GenerationSettings) -> Vec<i64> {
    let row = row.strip_prefix(&[start]).unwrap_or(row);
    let end = row
        .iter()
        .position(|id| settings.eos_token_ids.contains(id));
    let end = end.map_or_else(
        || {
            row.iter()
                .rposition(|id| *id != settings.pad_token_id)
                .map_or(0, |last| last + 1)
        },
        |end| end + 1,
    );
    row[..end].to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::generation::{Bounds, GenerationOptions};

    fn settings() -> GenerationSettings {
        GenerationSettings {
            decoder_start_token_id: 2,
            eos_token_ids: vec![2],
            pad_token_id: 1,
            length_factor: None,
            defaults: GenerationOptions::default(),
        }
    }

    fn config(sequences: usize) -> GenerationConfig {
        let options = GenerationOptions {
            num_beams: Some(sequences),
            num_return_sequences: Some(sequences),
            ..GenerationOptions::default()
        };
        GenerationConfig::new(
            &settings(),
            &options,
            Bounds {
                vocabulary: 100,
                max_length: 64,
            },
        )
        .unwrap()
    }

    #[test]
    fn targets_end_at_the_end_of_sequence_or_before_padding() {
        for (row, expected) in [
            (&[2, 9, 5, 2, 1, 1][..], &[9, 5, 2][..]),
            (&[2, 9, 5, 7], &[9, 5, 7]),
            (&[2, 9, 5, 7, 1, 1], &[9, 5, 7]),
            (&[9, 5, 2], &[9, 5, 2]),
            (&[2, 2, 1], &[2]),
            (&[2], &[]),
        ] {
            assert_eq!(target(row, 2, &settings()), expected, "{row:?}");
        }
    }

    #[test]
    fn responses_of_any_number_type_are_read_and_invalid_ones_refused() {
        let floats = |shape: &[usize], values: &[f32]| {
            Tensor::new(shape.to_vec(), Elements::Fp32(values.to_vec())).unwrap()
        };
        let targets = floats(&[2, 3], &[2.0, 9.0, 2.0, 2.0, 8.0, 7.0]);
        let scores = floats(&[2, 1], &[-0.5, -0.75]);
        let found = read(&targets, Some(&scores), 1, &config(2), &settings()).unwrap();
        let found: Vec<_> = found[0]
            .iter()
            .map(|target| (target.ids.clone(), target.score))
            .collect();
        assert_eq!(found, [(vec![9, 2], Some(-0.5)), (vec![8, 7], Some(-0.75))]);
        for (tensor, sources) in [
            (floats(&[1, 2], &[2.0, 9.5]), 1),
            (floats(&[1, 2], &[2.0, -1.0]), 1),
            (floats(&[1, 2], &[2.0, f32::NAN]), 1),
            (floats(&[1, 2], &[2.0, 9.0]), 2),
            (floats(&[1, 1, 2], &[2.0, 9.0]), 1),
            (floats(&[1, 0], &[]), 1),
        ] {
            assert!(
                read(&tensor, None, sources, &config(1), &settings()).is_err(),
                "{tensor:?}"
            );
        }
    }
}
