//! From encodings to the tensors that a model takes, and from those that it gives to a row a text: whatever it
//! calls them, of whatever width and length.

use std::{borrow::Cow, sync::Arc};

use super::classification::ScoreFunction;
use crate::{
    backend::{Backend, Deadline, Signature, TensorSpec},
    error::{Error, Result, quoted},
    tensor::{ElementType, Elements, Tensor},
    tokenizer::Encoding,
};

/// The names by which an encoder's inputs go, by what they carry; capitals count for nothing.
const INPUT_NAMES: [(&str, Role); 3] =
    [("input_ids", Role::Ids), ("attention_mask", Role::Mask), ("token_type_ids", Role::Types)];
/// How TorchScript's inputs and outputs are called on Triton, which has no names for them: by their places.
const PLACE_MARK: &str = "__";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Ids,
    Mask,
    Types,
    Text,
}

/// Whose names a model goes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of the bundle: its output is called as the manifest says.
    Bundle,
    /// Those of whoever set up the fleet: the output that can be meant is meant.
    Fleet,
}

/// What a task wants of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct OutputSpec {
    /// The output with the values.
    pub output: String,
    /// The length of its last axis, where the task depends on it.
    pub width: Option<usize>,
    /// The labels that stand for the values, for a model that answers with labels instead, and what makes
    /// scores of values.
    pub labels: Option<(Vec<String>, ScoreFunction)>,
    /// What fills up short texts.
    pub padding_id: u32,
    /// Whether the weights tell the texts of a pair apart by their types.
    pub reads_types: bool,
}

/// Whether a graph is told the texts of a pair apart.
pub fn reads_types(signature: &Signature) -> bool {
    signature.inputs.iter().any(|input| input.name == INPUT_NAMES[2].0)
}

/// A backend whose model reads texts or encodings, and how to speak to it.
#[derive(Clone, Debug)]
pub struct Adapter {
    backend: Arc<dyn Backend>,
    inputs: Vec<(Role, TensorSpec)>,
    output: Output,
    wanted: Arc<OutputSpec>,
}

/// The outputs that make up the values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Output {
    Values(usize),
    /// Names of labels, the best first, and their scores if the model gives them.
    Labels {
        names: usize,
        scores: Option<usize>,
    },
}

/// One text's part of the model's output, padding left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The values, row-major.
    pub values: &'a [f32],
    /// The length of the last axis.
    pub width: usize,
}

/// One text as a model may read it.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Its tokens.
    pub encoding: &'a Encoding,
    /// Its words, for models that make their tokens themselves; a pair and ids have none.
    pub text: Option<&'a str>,
}

impl Adapter {
    /// Refuses a model of another kind, with both sides named.
    pub fn new(backend: Arc<dyn Backend>, wanted: Arc<OutputSpec>, names: Names) -> Result<Self> {
        let signature = backend.signature();
        let mismatch = || mismatch(signature, &wanted.output);
        let inputs = inputs(signature).ok_or_else(mismatch)?;
        let output = match names {
            Names::Bundle => signature.output(&wanted.output).map(Output::Values),
            Names::Fleet => output(signature, &wanted),
        };
        let output = output.ok_or_else(mismatch)?;
        if let Output::Values(place) = output {
            let spec = &signature.outputs[place];
            if spec.element_type != ElementType::Fp32 {
                return Err(Error::model(format!(
                    "expected the model's output `{}` to be FP32, but found {}",
                    spec.name, spec.element_type
                )));
            }
            let width = spec.shape.last().and_then(|side| usize::try_from(*side).ok());
            if let (Some(wanted), Some(found)) = (wanted.width, width)
                && wanted != found
            {
                return Err(Error::model(format!(
                    "expected `{}` with {wanted} values a text, but found {found}",
                    spec.name
                )));
            }
        }
        Ok(Self { backend, inputs, output, wanted })
    }

    /// The places of the outputs that are read.
    pub fn outputs(&self) -> Vec<usize> {
        match self.output {
            Output::Values(place) => vec![place],
            Output::Labels { names, scores } => [names].into_iter().chain(scores).collect(),
        }
    }

    /// Whether the output has a vector for each token; otherwise it has one for each text.
    pub fn gives_tokens(&self) -> bool {
        let Output::Values(place) = self.output else { return false };
        let shape = &self.backend.signature().outputs[place].shape;
        match self.inputs.first() {
            // Tokens of one text, without an axis for texts.
            Some((Role::Ids, ids)) if ids.shape.len() == 1 => shape.len() == 2 && shape[0] != 1,
            _ => shape.len() == 3,
        }
    }

    /// The tokens that every text has, where the model takes no other number.
    pub fn length(&self) -> Option<usize> {
        let (_, spec) = self.inputs.iter().find(|(role, _)| *role == Role::Ids)?;
        spec.shape.last().and_then(|side| usize::try_from(*side).ok())
    }

    /// Whether the model makes its tokens itself.
    pub fn reads_text(&self) -> bool {
        self.inputs.iter().any(|(role, _)| *role == Role::Text)
    }

    /// Why the model cannot read a text, if it cannot.
    pub fn refusal(&self, source: Source<'_>) -> Option<Error> {
        if self.reads_text() && source.text.is_none() {
            return Some(Error::invalid(
                "expected single texts, which is all that the model on the fleet reads, but found a pair or ids",
            ));
        }
        let tells_pairs = self.wanted.reads_types && source.encoding.type_ids.iter().any(|id| *id != 0);
        if tells_pairs && !self.inputs.iter().any(|(role, _)| *role == Role::Types) {
            return Some(Error::invalid(
                "expected single texts, since the model on the fleet is not told the texts of a pair apart, \
                 but found a pair",
            ));
        }
        let most = self.length()?;
        (source.encoding.len() > most).then(|| {
            Error::too_large(format!(
                "expected at most {most} tokens, as the model on the fleet has it, but found {}",
                source.encoding.len()
            ))
        })
    }

    /// Texts in a batch, and batches at once.
    pub fn schedule(&self) -> crate::backend::Schedule {
        let mut schedule = self.backend.schedule();
        let has_mask = self.reads_text() || self.inputs.iter().any(|(role, _)| *role == Role::Mask);
        if !has_mask {
            // Without a mask the model would take padding for words.
            schedule.max_batch_size = std::num::NonZeroUsize::MIN;
        }
        schedule
    }

    /// Runs batches in one call: the values of each, a row a text.
    pub async fn infer(&self, batches: &[Vec<Source<'_>>], deadline: Deadline) -> Result<Vec<Tensor>> {
        let inputs = |batch: &Vec<Source<'_>>| {
            self.inputs.iter().map(|(role, spec)| self.input(*role, spec, batch)).collect::<Result<Vec<_>>>()
        };
        let batches = batches.iter().map(inputs).collect::<Result<_>>()?;
        let outputs = self.backend.infer_each(batches, deadline).await?;
        outputs.into_iter().map(|outputs| self.values(outputs)).collect()
    }

    fn input(&self, role: Role, spec: &TensorSpec, batch: &[Source<'_>]) -> Result<Tensor> {
        let fixed = |side: Option<&i64>| side.and_then(|side| usize::try_from(*side).ok());
        if role == Role::Text {
            let texts = batch.iter().map(|source| source.text.unwrap_or_default().as_bytes().to_vec());
            let shape = if spec.shape.len() == 1 { vec![batch.len()] } else { vec![batch.len(), 1] };
            return Tensor::new(shape, Elements::Bytes(texts.collect()));
        }
        let longest = batch.iter().map(|source| source.encoding.len()).max().unwrap_or(0);
        let columns = fixed(spec.shape.last()).unwrap_or(longest);
        let rows = if spec.shape.len() == 1 { 1 } else { fixed(spec.shape.first()).unwrap_or(batch.len()) };
        let padding = if role == Role::Ids { i64::from(self.wanted.padding_id) } else { 0 };
        let mut values = vec![padding; rows * columns];
        // Where the model wants more rows than there are texts, texts come again: an empty one may have no answer.
        for (row, source) in values.chunks_mut(columns.max(1)).zip(batch.iter().cycle()) {
            fill(row, role, source.encoding);
        }
        let tensor = Tensor::integers(spec.element_type, [rows, columns], values)?;
        if spec.shape.len() == 1 { Tensor::new(vec![columns], tensor.elements().clone()) } else { Ok(tensor) }
    }

    /// The output with the values, or values made of labels.
    fn values(&self, mut outputs: Vec<Tensor>) -> Result<Tensor> {
        let missing = || self.wrong("no such output");
        match self.output {
            Output::Values(place) if place < outputs.len() => Ok(outputs.swap_remove(place)),
            Output::Values(_) => Err(missing()),
            Output::Labels { names, scores } => {
                let names = outputs.get(names).ok_or_else(missing)?;
                let scores = scores.map(|scores| outputs.get(scores).ok_or_else(missing)).transpose()?;
                self.values_of_labels(names, scores)
            }
        }
    }

    /// Values that the task's function makes the scores of.
    ///
    /// A label without a score is taken for certain, and labels that are not named for impossible.
    fn values_of_labels(&self, names: &Tensor, scores: Option<&Tensor>) -> Result<Tensor> {
        let Some((labels, function)) = &self.wanted.labels else { return Err(self.wrong("labels")) };
        let named = names.as_bytes().ok_or_else(|| self.wrong("no labels"))?;
        let rows = names.shape().first().copied().unwrap_or(1);
        let found = named.len().checked_div(rows).unwrap_or(0);
        let scores = scores.map(|scores| scores.as_fp32().filter(|scores| scores.len() == named.len()));
        let scores = match scores {
            Some(None) => return Err(self.wrong("another number of scores than of labels")),
            Some(Some(scores)) => Cow::Borrowed(scores),
            None => (0..named.len()).map(|place| if place % found.max(1) == 0 { 1.0 } else { 0.0 }).collect(),
        };
        let mut probabilities = vec![0.0; rows * labels.len()];
        for (place, (name, score)) in named.iter().zip(scores.iter()).enumerate() {
            let label = labels.iter().position(|label| label.as_bytes() == name);
            let label = label.ok_or_else(|| self.wrong("a label that the manifest does not name"))?;
            probabilities[place / found.max(1) * labels.len() + label] = *score;
        }
        let values = probabilities.into_iter().map(|score| function.invert(score)).collect();
        Tensor::new(vec![rows, labels.len()], Elements::Fp32(values))
    }

    fn wrong(&self, found: &str) -> Error {
        let name = match self.output {
            Output::Values(place) | Output::Labels { names: place, .. } => {
                self.backend.signature().outputs.get(place).map_or("", |spec| &spec.name)
            }
        };
        Error::inference(format!("expected values in `{name}`, but found {found}"))
    }

    /// Cuts the values into the rows of the batch's texts, and each row to the text's own length.
    pub fn rows<'a>(
        &self,
        output: &'a Tensor,
        lengths: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Vec<Row<'a>>> {
        let (count, shape) = (lengths.len(), output.shape());
        let Some(values) = output.as_fp32() else {
            return Err(self.wrong(&format!("{} of shape {shape:?}", output.element_type())));
        };
        let wrong_shape = || self.wrong(&format!("shape {shape:?} for {count} texts"));
        let has_tokens = self.gives_tokens();
        let has_rows = shape.len() == if has_tokens { 3 } else { 2 };
        let (rows, width) = match *shape {
            [] => return Err(wrong_shape()),
            // One value a text, or the values of one text.
            [side] if !has_tokens && side == count => (count, 1),
            [side] => (1, side),
            [rows, .., width] if has_rows => (rows, width),
            [.., width] => (1, width),
        };
        let is_wrong = self.wanted.width.is_some_and(|wanted| wanted != width);
        if rows < count || width == 0 || is_wrong || values.is_empty() {
            return Err(wrong_shape());
        }
        let row_size = values.len() / rows;
        values
            .chunks_exact(row_size)
            .zip(lengths)
            .map(|(row, length)| {
                let kept = if has_tokens { row.get(..length * width) } else { Some(row) };
                let kept = kept.ok_or_else(|| self.wrong(&format!("shape {shape:?} for {length} tokens")))?;
                if kept.iter().any(|value| !value.is_finite()) {
                    return Err(self.wrong("what is not a number"));
                }
                Ok(Row { values: kept, width })
            })
            .collect()
    }
}

/// What each input carries: by its name, or by the place that its name tells; or one of texts.
pub(super) fn inputs(signature: &Signature) -> Option<Vec<(Role, TensorSpec)>> {
    let role = |spec: &TensorSpec| {
        let name = spec.name.to_ascii_lowercase();
        let by_name = INPUT_NAMES.iter().find(|(known, _)| *known == name);
        let by_place = || place_in(&name).and_then(|place| INPUT_NAMES.get(place));
        let (_, role) = by_name.or_else(by_place)?;
        Some((*role, spec.clone()))
    };
    match &signature.inputs[..] {
        [text] if text.element_type == ElementType::Bytes => Some(vec![(Role::Text, text.clone())]),
        inputs => {
            let inputs: Option<Vec<_>> = inputs.iter().map(role).collect();
            inputs.filter(|inputs| inputs.iter().any(|(role, _)| *role == Role::Ids))
        }
    }
}

/// The place in a name like `INPUT__1`.
fn place_in(name: &str) -> Option<usize> {
    let (before, place) = name.rsplit_once(PLACE_MARK)?;
    if before == "input" || before == "output" { place.parse().ok() } else { None }
}

/// The output of that name; or the only one that can be meant; or labels.
fn output(signature: &Signature, wanted: &OutputSpec) -> Option<Output> {
    let places = |element_type: ElementType| {
        let outputs = signature.outputs.iter().enumerate();
        outputs.filter(move |(_, spec)| spec.element_type == element_type).map(|(place, _)| place)
    };
    let only = |places: Vec<usize>| if let [place] = places[..] { Some(place) } else { None };
    let named = |name: &str| {
        let name = name.to_ascii_lowercase();
        signature.outputs.iter().position(|spec| spec.name.to_ascii_lowercase() == name)
    };
    let texts = places(ElementType::Bytes).next();
    match named(&wanted.output).or_else(|| named("output__0")) {
        Some(place) => Some(Output::Values(place)),
        None => match texts.filter(|_| wanted.labels.is_some()) {
            Some(names) => Some(Output::Labels { names, scores: places(ElementType::Fp32).next() }),
            None => only(places(ElementType::Fp32).collect()).map(Output::Values),
        },
    }
}

fn fill(row: &mut [i64], role: Role, encoding: &Encoding) {
    let values: &mut dyn Iterator<Item = i64> = match role {
        Role::Ids => &mut encoding.ids.iter().map(|id| i64::from(*id)),
        Role::Types => &mut encoding.type_ids.iter().map(|id| i64::from(*id)),
        Role::Mask | Role::Text => &mut std::iter::repeat_n(1, encoding.len()),
    };
    for (cell, value) in row.iter_mut().zip(values) {
        *cell = value;
    }
}

fn mismatch(signature: &Signature, output: &str) -> Error {
    let names =
        |specs: &[TensorSpec]| quoted(&specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>());
    Error::model(format!(
        "expected a model with inputs among {} and the output `{output}`, but found inputs {} and outputs {}",
        quoted(&INPUT_NAMES.map(|(name, _)| name)),
        names(&signature.inputs),
        names(&signature.outputs)
    ))
}
