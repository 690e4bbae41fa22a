//! Converts between encodings and an encoder's tensors, whatever their names, element types and shapes.

use std::{borrow::Cow, sync::Arc};

use super::{
    executor::RemoteModel,
    model_inputs::{ModelInputs, POOLING_MASK, Role, Sequence},
};
use crate::backend::{Backend, Deadline, RemoteBackend, Schedule, Signature, TASK_IDS};
use crate::pipeline::classification::scores::ScoreFunction;
use kivu_base::{
    error::{Error, Result, quoted},
    tensor::{ElementType, Elements, Tensor},
};

/// Outputs that a task reads, and the bundle properties that they depend on.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// At least one.
    pub outputs: Vec<NamedOutput>,
    /// Value labels and score function, for models that return labels instead of values.
    pub labels: Option<(Vec<String>, ScoreFunction)>,
    /// Token id that pads short inputs.
    pub padding_id: u32,
    /// Whether the weights distinguish a pair's texts by token type.
    pub distinguishes_pairs: bool,
}

/// An output that a task reads.
#[derive(Clone, Debug, PartialEq)]
pub struct NamedOutput {
    /// Its name in the model's signature.
    pub name: String,
    /// Last axis length.
    pub width: usize,
    /// What it has vectors for.
    pub vectors: Vectors,
}

/// What an output has vectors for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vectors {
    /// One per token.
    PerToken,
    /// One per text.
    PerText,
    /// Either; a text may also have a matrix for each word.
    Any,
}

impl OutputSpec {
    /// Output names for error messages.
    fn names(&self) -> String {
        quoted(
            &self
                .outputs
                .iter()
                .map(|output| output.name.as_str())
                .collect::<Vec<_>>(),
        )
    }
}

/// An encoder with the mapping to its tensors.
#[derive(Clone, Debug)]
pub struct Adapter {
    backend: Arc<dyn Backend>,
    inputs: ModelInputs,
    output: Output,
    spec: Arc<OutputSpec>,
}

/// Indexes of the outputs with the values.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Output {
    /// In specification order.
    Values(Vec<usize>),
    /// Labels, the best first, and their scores if the model returns them.
    Labels { names: usize, scores: Option<usize> },
}

/// One text's output, without padding.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The values, row-major.
    pub values: &'a [f32],
    /// Length of the axis in front of the last one, in outputs with a matrix for each word; otherwise 1.
    pub columns: usize,
    /// Last axis length.
    pub width: usize,
}

impl RemoteModel for Adapter {
    type Spec = Arc<OutputSpec>;

    fn open(described: &dyn RemoteBackend, spec: &Arc<OutputSpec>) -> Result<Self> {
        let signature = described.signature();
        let output = infer_output(signature, spec);
        let output = output.ok_or_else(|| ModelInputs::mismatch(signature, &spec.names()))?;
        // Unused outputs are not transferred.
        let (used, output) = match output {
            Output::Values(values) => {
                let places = (0..values.len()).collect();
                (values, Output::Values(places))
            }
            Output::Labels { names, scores } => {
                let used = [names].into_iter().chain(scores).collect();
                (
                    used,
                    Output::Labels {
                        names: 0,
                        scores: scores.map(|_| 1),
                    },
                )
            }
        };
        Self::new(described.with_outputs(&used), Arc::clone(spec), output)
    }
}

impl Adapter {
    /// An adapter for a bundle's graph, whose outputs have the names in the manifest.
    pub fn local(backend: Arc<dyn Backend>, spec: &Arc<OutputSpec>) -> Result<Self> {
        let found = spec
            .outputs
            .iter()
            .map(|output| backend.signature().output(&output.name));
        let output = found.collect::<Option<_>>().map(Output::Values);
        let output =
            output.ok_or_else(|| ModelInputs::mismatch(backend.signature(), &spec.names()))?;
        Self::new(backend, Arc::clone(spec), output)
    }

    fn new(backend: Arc<dyn Backend>, spec: Arc<OutputSpec>, output: Output) -> Result<Self> {
        let signature = backend.signature().clone();
        let inputs = ModelInputs::recognize(&signature);
        let inputs = inputs.ok_or_else(|| ModelInputs::mismatch(&signature, &spec.names()))?;
        let adapter = Self {
            backend,
            inputs,
            output,
            spec,
        };
        if let Output::Values(places) = &adapter.output {
            for (output, place) in adapter.spec.outputs.iter().zip(places) {
                let found = &signature.outputs[*place];
                if found.element_type != ElementType::Fp32 {
                    return Err(Error::model(format!(
                        "expected the model's output `{}` to be FP32, but found {}",
                        found.name, found.element_type
                    )));
                }
                let width = found
                    .shape
                    .last()
                    .and_then(|side| usize::try_from(*side).ok());
                if let Some(width) = width.filter(|width| *width != output.width) {
                    return Err(Error::model(format!(
                        "expected `{}` with {} values per text, but found {width}",
                        found.name, output.width
                    )));
                }
                let expected = match output.vectors {
                    Vectors::PerToken if !adapter.has_token_vectors(*place) => "token",
                    Vectors::PerText if adapter.has_token_vectors(*place) => "text",
                    _ => continue,
                };
                return Err(Error::model(format!(
                    "expected `{}` with a vector for each {expected}, but found {:?}",
                    found.name, found.shape
                )));
            }
        }
        Ok(adapter)
    }

    /// Whether the output at an index has a vector for each token; otherwise it has one for each text.
    fn has_token_vectors(&self, index: usize) -> bool {
        let shape = &self.backend.signature().outputs[index].shape;
        match self.inputs.spec(Role::Ids) {
            // One text's tokens, without a batch axis.
            Some(ids) if ids.shape.len() == 1 => shape.len() == 2 && shape[0] != 1,
            _ => shape.len() == 3,
        }
    }

    /// Refuses a model whose first output has no vector for each token.
    pub fn require_token_vectors(&self) -> Result<()> {
        match &self.output {
            Output::Values(places)
                if places
                    .first()
                    .is_some_and(|place| self.has_token_vectors(*place)) =>
            {
                Ok(())
            }
            _ => Err(Error::invalid(format!(
                "expected a model with a vector for each token, but its output {} has one for each text",
                self.spec.names()
            ))),
        }
    }

    /// Tokens per text, if the model takes a fixed number.
    pub fn fixed_length(&self) -> Option<usize> {
        self.inputs.fixed_length()
    }

    /// Refuses an input that the model cannot read.
    pub fn check(&self, input: Sequence<'_>) -> Result<()> {
        if input.encoding.task > 0 && !self.inputs.has(Role::Task) {
            return Err(Error::invalid(format!(
                "expected texts without a task, since the model on the fleet has no input `{TASK_IDS}`, but found one"
            )));
        }
        if self.inputs.has(Role::Text) && input.text.is_none() {
            return Err(Error::invalid(
                "expected single texts, since the model on the fleet takes no pairs or token ids, but found one",
            ));
        }
        let is_pair =
            self.spec.distinguishes_pairs && input.encoding.type_ids.iter().any(|id| *id != 0);
        if is_pair && !self.inputs.has(Role::Types) {
            return Err(Error::invalid(
                "expected single texts, since the model on the fleet has no input `token_type_ids`, but found a pair",
            ));
        }
        if input.encoding.unpooled > 0 && !self.inputs.has(Role::Pooled) {
            return Err(Error::invalid(format!(
                "expected texts without prompt, since the model on the fleet has no input `{POOLING_MASK}`, but found one"
            )));
        }
        self.inputs.check_length(input.encoding.len())
    }

    /// The backend's schedule, without batches if the model has no mask and would read padding as words.
    pub fn schedule(&self) -> Schedule {
        self.inputs.schedule(self.backend.schedule())
    }

    /// Runs batches in one call. Returns a tensor per specified output for each batch.
    pub async fn infer(
        &self,
        batches: &[Vec<Sequence<'_>>],
        deadline: Deadline,
    ) -> Result<Vec<Vec<Tensor>>> {
        let tensors = batches
            .iter()
            .map(|batch| self.inputs.tensors(batch, self.spec.padding_id));
        let outputs = self
            .backend
            .infer_each(tensors.collect::<Result<_>>()?, deadline)
            .await?;
        outputs
            .into_iter()
            .map(|outputs| self.values(outputs))
            .collect()
    }

    fn values(&self, outputs: Vec<Tensor>) -> Result<Vec<Tensor>> {
        let missing = || self.unexpected(0, "no such output");
        match &self.output {
            Output::Values(places) => {
                let mut outputs: Vec<Option<Tensor>> = outputs.into_iter().map(Some).collect();
                let mut take = |place: &usize| outputs.get_mut(*place).and_then(Option::take);
                places
                    .iter()
                    .map(|place| take(place).ok_or_else(missing))
                    .collect()
            }
            Output::Labels { names, scores } => {
                let names = outputs.get(*names).ok_or_else(missing)?;
                let scores = scores
                    .map(|scores| outputs.get(scores).ok_or_else(missing))
                    .transpose()?;
                Ok(vec![self.values_of_labels(names, scores)?])
            }
        }
    }

    /// Logits for returned labels. The first label scores 1 if the model returns no scores; labels that it omits score
    /// 0.
    fn values_of_labels(&self, names: &Tensor, scores: Option<&Tensor>) -> Result<Tensor> {
        let Some((labels, function)) = &self.spec.labels else {
            return Err(self.unexpected(0, "labels"));
        };
        let returned = names
            .as_bytes()
            .ok_or_else(|| self.unexpected(0, "no labels"))?;
        let rows = names.shape().first().copied().unwrap_or(1);
        let per_row = returned.len().checked_div(rows).unwrap_or(0).max(1);
        let scores =
            match scores {
                None => (0..returned.len())
                    .map(|index| if index % per_row == 0 { 1.0 } else { 0.0 })
                    .collect(),
                Some(scores) => {
                    let scores = scores
                        .as_fp32()
                        .filter(|scores| scores.len() == returned.len());
                    Cow::Borrowed(scores.ok_or_else(|| {
                        self.unexpected(0, "different numbers of scores and labels")
                    })?)
                }
            };
        let mut probabilities = vec![0.0; rows * labels.len()];
        for (index, (name, score)) in returned.iter().zip(scores.iter()).enumerate() {
            let label = labels.iter().position(|label| label.as_bytes() == name);
            let label = label
                .ok_or_else(|| self.unexpected(0, "a label that the manifest does not name"))?;
            probabilities[index / per_row * labels.len() + label] = *score;
        }
        let logits = probabilities
            .into_iter()
            .map(|score| function.invert(score))
            .collect();
        Tensor::new(vec![rows, labels.len()], Elements::Fp32(logits))
    }

    fn unexpected(&self, place: usize, found: &str) -> Error {
        let index = match &self.output {
            Output::Values(places) => places.get(place).copied().unwrap_or_default(),
            Output::Labels { names, .. } => *names,
        };
        let name = self
            .backend
            .signature()
            .outputs
            .get(index)
            .map_or("", |spec| &spec.name);
        Error::inference(format!("expected values in `{name}`, but found {found}"))
    }

    /// Splits each output's values into rows, one per text; `lengths` counts the tokens of each.
    pub fn rows<'a>(
        &self,
        outputs: &'a [Tensor],
        lengths: &(impl ExactSizeIterator<Item = usize> + Clone),
    ) -> Result<Vec<Vec<Row<'a>>>> {
        let mut texts = vec![Vec::with_capacity(outputs.len()); lengths.len()];
        for (place, output) in outputs.iter().enumerate() {
            let rows = self.rows_of(place, output, lengths.clone())?;
            texts
                .iter_mut()
                .zip(rows)
                .for_each(|(text, row)| text.push(row));
        }
        Ok(texts)
    }

    fn rows_of<'a>(
        &self,
        place: usize,
        output: &'a Tensor,
        lengths: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Vec<Row<'a>>> {
        let (count, shape) = (lengths.len(), output.shape());
        let Some(values) = output.as_fp32() else {
            return Err(self.unexpected(
                place,
                &format!("{} of shape {shape:?}", output.element_type()),
            ));
        };
        let wrong_shape = || self.unexpected(place, &format!("shape {shape:?} for {count} texts"));
        let has_tokens = match &self.output {
            Output::Values(places) => self.has_token_vectors(places[place]),
            Output::Labels { .. } => false,
        };
        let NamedOutput {
            width: expected,
            vectors,
            ..
        } = self.spec.outputs[place];
        let has_rows = if has_tokens {
            shape.len() == 3
        } else {
            matches!(shape.len(), 2 | 4)
        };
        let (rows, width) = match *shape {
            [] => return Err(wrong_shape()),
            // One value per text, or all values of one text.
            [side] if !has_tokens && side == count => (count, 1),
            [rows, .., width] if has_rows => (rows, width),
            [.., width] => (1, width),
        };
        let has_other_vectors = vectors == Vectors::PerText && values.len() != rows * width;
        if rows != count
            || width == 0
            || width != expected
            || values.is_empty()
            || has_other_vectors
        {
            return Err(wrong_shape());
        }
        let columns = if let [_, _, columns, _] = *shape {
            columns
        } else {
            1
        };
        let row = |(row, length): (&'a [f32], usize)| {
            let kept = if has_tokens {
                row.get(..length * width)
            } else {
                Some(row)
            };
            let kept = kept.ok_or_else(|| {
                self.unexpected(place, &format!("shape {shape:?} for {length} tokens"))
            })?;
            if kept.iter().any(|value| !value.is_finite()) {
                return Err(self.unexpected(place, "a value that is not a finite number"));
            }
            Ok(Row {
                values: kept,
                columns,
                width,
            })
        };
        values
            .chunks_exact(values.len() / rows)
            .zip(lengths)
            .map(row)
            .collect()
    }
}

/// The outputs with the names in the manifest, or `OUTPUT__0` for a single one; otherwise labels, or the only FP32
/// output.
fn infer_output(signature: &Signature, spec: &OutputSpec) -> Option<Output> {
    let outputs = &signature.outputs;
    let named = |name: &str| {
        outputs
            .iter()
            .position(|output| output.name.eq_ignore_ascii_case(name))
    };
    let [only] = &spec.outputs[..] else {
        return spec
            .outputs
            .iter()
            .map(|output| named(&output.name))
            .collect::<Option<_>>()
            .map(Output::Values);
    };
    let of_type = |element_type: ElementType| {
        let indexes = outputs
            .iter()
            .enumerate()
            .filter(move |(_, output)| output.element_type == element_type);
        indexes.map(|(index, _)| index)
    };
    if let Some(index) = named(&only.name).or_else(|| named("output__0")) {
        return Some(Output::Values(vec![index]));
    }
    let mut floats = of_type(ElementType::Fp32);
    let first = floats.next();
    match of_type(ElementType::Bytes)
        .next()
        .filter(|_| spec.labels.is_some())
    {
        Some(names) => Some(Output::Labels {
            names,
            scores: first,
        }),
        None => first
            .filter(|_| floats.next().is_none())
            .map(|index| Output::Values(vec![index])),
    }
}
