//! Targets that a fleet writes: ids of sources go there, ids of whole targets come back, since a call a token over
//! the network would be hopeless.

use std::{
    collections::BTreeSet,
    sync::{Mutex, PoisonError},
};

use serde_json::{Map, Value};

use crate::{
    backend::{
        Backend, Deadline, Schedule, TensorSpec,
        triton::{Fleet, TritonBackend},
    },
    error::{Error, Result, quoted},
    pipeline::{
        adapter::{Role, inputs},
        generation::{Generated, GenerationConfig, GenerationSettings},
    },
    tensor::{ElementType, Elements, Tensor},
};

/// The output with the targets, the decoder's first token included; another name does where it is the only one.
pub const TARGETS: &str = "generated_indices";
/// The output with their scores, where the model has it.
pub const SCORES: &str = "sequences_scores";
/// Under this name a model's configuration lists the options of `generate` that it can be told, and under this name
/// it is told them.
pub const OPTIONS: &str = "generate_parameters";
/// The option by which a model is told the language that it writes; one that is not told may write a single one.
const LANGUAGE: &str = "forced_bos_token_id";

/// A model that writes targets, as its fleet described it.
#[derive(Clone, Debug)]
pub(super) struct RemoteGenerator {
    /// As it was described, with all of its outputs.
    described: TritonBackend,
    backend: TritonBackend,
    inputs: Vec<(Role, TensorSpec)>,
    has_scores: bool,
    /// The options that it can be told.
    told: BTreeSet<String>,
}

/// What is known of a fleet's model.
#[derive(Debug, Default)]
pub(super) struct Remote {
    known: Mutex<Known>,
}

#[derive(Debug, Default)]
struct Known {
    writer: Option<RemoteGenerator>,
    /// The first token of its targets, where it was seen to write another than was wanted.
    writes: Option<i64>,
}

/// What is wanted of a batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    pub(super) search: &'a GenerationConfig,
    /// What the model does by itself.
    pub(super) by_default: &'a GenerationConfig,
    /// The first token of the targets, where it tells their language.
    pub(super) first_token: Option<i64>,
}

impl Remote {
    /// The model as the fleet describes it now; one of another kind is refused.
    pub(super) async fn connect(&self, fleet: &Fleet, deadline: Deadline) -> Result<RemoteGenerator> {
        let described = fleet.connect(deadline).await?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(writer) = &known.writer
            && writer.described.has_same_interface(&described)
        {
            return Ok(writer.clone());
        }
        let writer = RemoteGenerator::new(described)?;
        *known = Known { writer: Some(writer.clone()), writes: None };
        Ok(writer)
    }

    /// Why the model cannot write what is asked for, as far as is known.
    pub(super) fn refusal(&self, asked: Asked<'_>) -> Option<Error> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let writer = known.writer.as_ref()?;
        let other = known.writes.filter(|writes| asked.first_token.is_some_and(|wanted| wanted != *writes));
        let other = other.filter(|_| !writer.told.contains(LANGUAGE)).map(|_| other_language());
        writer.refusal(asked).or(other)
    }

    /// Refuses targets in another language than is wanted, and remembers the one that they are in.
    pub(super) fn check_language(&self, asked: Asked<'_>, targets: &[Vec<Generated>]) -> Result<()> {
        let Some(wanted) = asked.first_token else { return Ok(()) };
        let mut first = targets.iter().flatten().map(|target| target.ids.first().copied());
        match first.find(|token| *token != Some(wanted)) {
            None => Ok(()),
            Some(found) => {
                self.known.lock().unwrap_or_else(PoisonError::into_inner).writes = found;
                Err(other_language())
            }
        }
    }
}

fn other_language() -> Error {
    Error::invalid(
        "expected `tgt_lang` to be the language that the model on the fleet is set up for, but found another",
    )
}

impl RemoteGenerator {
    /// Refuses a model of another kind, with both sides named.
    fn new(described: TritonBackend) -> Result<Self> {
        let signature = described.signature();
        let mismatch = || {
            let names =
                |specs: &[TensorSpec]| quoted(&specs.iter().map(|spec| &spec.name).collect::<Vec<_>>());
            Error::model(format!(
                "expected a model that reads `input_ids` and writes `{TARGETS}`, but found inputs {} and outputs {}",
                names(&signature.inputs),
                names(&signature.outputs)
            ))
        };
        let inputs = inputs(signature).filter(|inputs| inputs.iter().all(|(role, _)| *role != Role::Text));
        let inputs = inputs.ok_or_else(mismatch)?;
        let scores = signature.output(SCORES);
        let others: Vec<usize> = (0..signature.outputs.len())
            .filter(|place| Some(*place) != scores)
            .filter(|place| signature.outputs[*place].element_type != ElementType::Bytes)
            .collect();
        let only = if let [place] = others[..] { Some(place) } else { None };
        let targets = signature.output(TARGETS).or(only).ok_or_else(mismatch)?;
        let told = described.parameter(OPTIONS).unwrap_or_default().split(',');
        let told = told.filter(|name| !name.is_empty()).map(|name| name.trim().to_owned()).collect();
        // Outputs that nobody reads are not sent.
        let wanted: Vec<usize> = [targets].into_iter().chain(scores).collect();
        let backend = described.with_outputs(&wanted);
        Ok(Self { inputs, has_scores: scores.is_some(), told, backend, described })
    }

    /// How the fleet likes its work cut.
    pub(super) fn schedule(&self) -> Schedule {
        let mut schedule = self.backend.schedule();
        if !self.inputs.iter().any(|(role, _)| *role == Role::Mask) {
            // Without a mask the model would take padding for words.
            schedule.max_batch_size = std::num::NonZeroUsize::MIN;
        }
        schedule
    }

    /// Why the model cannot be asked for this, if it cannot: what it is not told it does as it always does.
    ///
    /// The language is another matter: what comes back says which one it is.
    fn refusal(&self, asked: Asked<'_>) -> Option<Error> {
        let (wanted, by_default) = (named(asked.search), named(asked.by_default));
        let names: BTreeSet<&String> = wanted.keys().chain(by_default.keys()).collect();
        let name = names.into_iter().find(|name| {
            let is_free = self.told.contains(*name) || (*name == LANGUAGE && asked.first_token.is_some());
            !is_free && wanted.get(*name) != by_default.get(*name)
        })?;
        let shown = |options: &Map<String, Value>| {
            options.get(name).map_or_else(|| "unset".to_owned(), |value| format!("`{value}`"))
        };
        Some(Error::invalid(format!(
            "expected `{name}` to be {}, since the model on the fleet cannot be told otherwise, but found {}",
            shown(&by_default),
            shown(&wanted)
        )))
    }

    /// Writes the targets of `rows`: of each as many as are asked for, the best first.
    pub(super) async fn write(
        &self,
        rows: &[&[i64]],
        asked: Asked<'_>,
        settings: &GenerationSettings,
        deadline: Deadline,
    ) -> Result<Vec<Vec<Generated>>> {
        if let Some(error) = self.refusal(asked) {
            return Err(error);
        }
        let inputs = self.inputs.iter().map(|(role, spec)| input(*role, spec, rows, settings.pad_token_id));
        let inputs = inputs.collect::<Result<_>>()?;
        let mut told = named(asked.search);
        told.retain(|name, _| self.told.contains(name));
        let outputs = if told.is_empty() {
            self.backend.infer(inputs, deadline).await?
        } else {
            self.backend
                .with_parameter(OPTIONS, Value::Object(told).to_string())
                .infer(inputs, deadline)
                .await?
        };
        let mut outputs = outputs.into_iter();
        let targets = outputs.next().ok_or_else(|| wrong("nothing"))?;
        let scores = outputs.next().filter(|_| self.has_scores);
        read(&targets, scores.as_ref(), rows.len(), asked.search, settings)
    }
}

/// The options that ask for a search, by their names.
fn named(search: &GenerationConfig) -> Map<String, Value> {
    search.options()
}

/// Rows as the model takes them; those that are shorter than others filled up.
fn input(role: Role, spec: &TensorSpec, rows: &[&[i64]], pad: i64) -> Result<Tensor> {
    let fixed = |side: Option<&i64>| side.and_then(|side| usize::try_from(*side).ok());
    let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
    let columns = fixed(spec.shape.last()).unwrap_or(longest);
    if longest > columns {
        return Err(Error::too_large(format!(
            "expected at most {columns} tokens, as the model on the fleet has it, but found {longest}"
        )));
    }
    let filler = if role == Role::Ids { pad } else { 0 };
    let cells = rows.iter().flat_map(|row| {
        let value = |id: &i64| match role {
            Role::Ids => *id,
            Role::Mask => 1,
            Role::Types | Role::Text => 0,
        };
        row.iter().map(value).chain(std::iter::repeat_n(filler, columns - row.len()))
    });
    let tensor = Tensor::integers(spec.element_type, [rows.len(), columns], cells.collect())?;
    if spec.shape.len() == 1 { Tensor::new(vec![columns], tensor.elements().clone()) } else { Ok(tensor) }
}

fn wrong(found: &str) -> Error {
    let message = format!("expected token ids in `{TARGETS}` from the fleet, but found {found}");
    Error::inference(message)
}

/// The targets in an answer for `sources` sources.
fn read(
    targets: &Tensor,
    scores: Option<&Tensor>,
    sources: usize,
    search: &GenerationConfig,
    settings: &GenerationSettings,
) -> Result<Vec<Vec<Generated>>> {
    let sequences = search.num_return_sequences();
    let (rows, columns) = match *targets.shape() {
        [columns] => (1, columns),
        [rows, columns] => (rows, columns),
        ref shape => return Err(wrong(&format!("shape {shape:?}"))),
    };
    if rows != sources * sequences || columns == 0 {
        return Err(wrong(&format!("shape {:?} for {sources} sources", targets.shape())));
    }
    let ids = whole(targets).ok_or_else(|| wrong("other numbers"))?;
    let scores = scores.and_then(Tensor::as_fp32).filter(|scores| scores.len() == rows && search.rows() > 1);
    let written = ids.chunks_exact(columns).enumerate().map(|(row, ids)| Generated {
        ids: target(ids, settings),
        score: scores.and_then(|scores| scores.get(row).copied()),
    });
    let written: Vec<Generated> = written.collect();
    Ok(written.chunks(sequences.max(1)).map(<[Generated]>::to_vec).collect())
}

/// Numbers that are ids, if all are: a configuration may call them FP32.
fn whole(tensor: &Tensor) -> Option<Vec<i64>> {
    let ids: Vec<i64> = match tensor.elements() {
        Elements::Int64(ids) => ids.clone(),
        Elements::Int32(ids) => ids.iter().map(|id| i64::from(*id)).collect(),
        Elements::Fp32(values) if values.iter().all(|value| value.fract() == 0.0) => {
            values.iter().map(|value| *value as i64).collect()
        }
        Elements::Fp32(_) | Elements::Bytes(_) => return None,
    };
    ids.iter().all(|id| (0..=i64::from(u32::MAX)).contains(id)).then_some(ids)
}

/// A row without the decoder's first token and without what stands behind its end.
fn target(row: &[i64], settings: &GenerationSettings) -> Vec<i64> {
    let row = row.strip_prefix(&[settings.decoder_start_token_id]).unwrap_or(row);
    let end = row.iter().position(|id| settings.eos_token_ids.contains(id));
    let end = end.map_or_else(
        || row.iter().rposition(|id| *id != settings.pad_token_id).map_or(0, |last| last + 1),
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

    fn search(sequences: usize) -> GenerationConfig {
        let options = GenerationOptions {
            num_beams: Some(sequences),
            num_return_sequences: Some(sequences),
            ..GenerationOptions::default()
        };
        GenerationConfig::new(&settings(), &options, Bounds { vocabulary: 100, max_length: 64 }).unwrap()
    }

    #[test]
    fn targets_end_where_they_end() {
        for (row, expected) in [
            (&[2, 9, 5, 2, 1, 1][..], &[9, 5, 2][..]),
            (&[2, 9, 5, 7], &[9, 5, 7]),
            (&[2, 9, 5, 7, 1, 1], &[9, 5, 7]),
            (&[9, 5, 2], &[9, 5, 2]),
            (&[2, 2, 1], &[2]),
            (&[2], &[]),
        ] {
            assert_eq!(target(row, &settings()), expected, "{row:?}");
        }
    }

    #[test]
    fn answers_are_read_whatever_their_numbers_are_and_refused_where_they_make_no_sense() {
        let floats = |shape: &[usize], values: &[f32]| {
            Tensor::new(shape.to_vec(), Elements::Fp32(values.to_vec())).unwrap()
        };
        let targets = floats(&[2, 3], &[2.0, 9.0, 2.0, 2.0, 8.0, 7.0]);
        let scores = floats(&[2, 1], &[-0.5, -0.75]);
        let found = read(&targets, Some(&scores), 1, &search(2), &settings()).unwrap();
        let found: Vec<_> = found[0].iter().map(|target| (target.ids.clone(), target.score)).collect();
        assert_eq!(found, [(vec![9, 2], Some(-0.5)), (vec![8, 7], Some(-0.75))]);
        for (tensor, sources) in [
            (floats(&[1, 2], &[2.0, 9.5]), 1),
            (floats(&[1, 2], &[2.0, -1.0]), 1),
            (floats(&[1, 2], &[2.0, f32::NAN]), 1),
            (floats(&[1, 2], &[2.0, 9.0]), 2),
            (floats(&[1, 1, 2], &[2.0, 9.0]), 1),
            (floats(&[1, 0], &[]), 1),
        ] {
            assert!(read(&tensor, None, sources, &search(1), &settings()).is_err(), "{tensor:?}");
        }
    }
}
