//! Transformer input tensors: which input carries which data, and sequences padded to one length.

use std::num::NonZeroUsize;

use super::{LABEL_VECTORS, Schedule, Signature, TASK_IDS, TensorSpec, encoder::Sequence};
use kivu_base::{
    Error, Result,
    error::quoted,
    tensor::{ElementType, Elements, Tensor},
};

/// Graph input that tells which tokens are pooled, in models that pool no prompts.
pub const POOLING_MASK: &str = "pooling_mask";
/// Input names by role, case-insensitive, in their usual order. `words_mask` is the third input in models that read
/// words.
const NAMES: [(&str, Role); 7] = [
    ("input_ids", Role::Ids),
    ("attention_mask", Role::Mask),
    ("token_type_ids", Role::Types),
    ("words_mask", Role::Types),
    (POOLING_MASK, Role::Pooled),
    (LABEL_VECTORS, Role::Labels),
    (TASK_IDS, Role::Task),
];
const MAX_INPUTS: usize = 3;

/// The data that an input carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Token ids.
    Ids,
    /// 1 for tokens that others attend to.
    Mask,
    /// Per token, the index of its text in a pair, or the number of the word that begins there.
    Types,
    /// 1 for tokens that are pooled.
    Pooled,
    /// Label vectors.
    Labels,
    /// The number of the text's task.
    Task,
    /// The text itself, for models with a built-in tokenizer.
    Text,
}

/// A model's inputs with the data that each carries, in the model's order.
#[derive(Clone, Debug)]
pub struct ModelInputs(Vec<(Role, TensorSpec)>);

impl ModelInputs {
    /// Recognizes inputs by name, or by position if they are called `INPUT__0`, as TorchScript inputs on Triton are. A
    /// single BYTES input takes texts.
    ///
    /// Refuses any other signature; the error names both sides.
    pub fn recognize(signature: &Signature) -> Result<Self> {
        if let [text] = &signature.inputs[..]
            && text.element_type == ElementType::Bytes
        {
            return Ok(Self(vec![(Role::Text, text.clone())]));
        }
        let role = |spec: &TensorSpec| {
            let name = spec.name.to_ascii_lowercase();
            let by_name = || NAMES.iter().find(|(known, _)| *known == name);
            let position = name
                .strip_prefix("input__")
                .and_then(|position| position.parse::<usize>().ok());
            let (_, role) = position
                .and_then(|position| NAMES[..MAX_INPUTS].get(position))
                .or_else(by_name)?;
            Some((*role, spec.clone()))
        };
        let inputs = signature.inputs.iter().map(role).collect::<Option<_>>();
        let inputs = inputs.map(Self).filter(|inputs| inputs.has(Role::Ids));
        inputs.ok_or_else(|| {
            Error::model(format!(
                "expected a model with inputs among {}, but found {}",
                quoted(&NAMES.map(|(name, _)| name)),
                TensorSpec::names(&signature.inputs)
            ))
        })
    }

    /// Whether a graph distinguishes a pair's texts.
    pub fn distinguish_pairs(signature: &Signature) -> bool {
        signature
            .inputs
            .iter()
            .any(|input| input.name == NAMES[2].0)
    }

    /// The input that carries this data, if the model has one.
    pub fn spec(&self, role: Role) -> Option<&TensorSpec> {
        self.0
            .iter()
            .find(|(known, _)| *known == role)
            .map(|(_, spec)| spec)
    }

    /// Whether an input carries this data.
    pub fn has(&self, role: Role) -> bool {
        self.spec(role).is_some()
    }

    /// Whether an output has a vector for each token.
    pub fn has_token_vectors(&self, output: &TensorSpec) -> bool {
        match self.spec(Role::Ids) {
            // One text's tokens, without a batch axis.
            Some(ids) if ids.shape.len() == 1 => output.shape.len() == 2 && output.shape[0] != 1,
            _ => output.shape.len() == 3,
        }
    }

    /// Tokens per sequence, if the model takes a fixed number.
    pub fn fixed_length(&self) -> Option<usize> {
        fixed(self.spec(Role::Ids)?.shape.last())
    }

    /// Refuses a sequence that is longer than the fixed length.
    pub fn check_length(&self, found: usize) -> Result<()> {
        match self.fixed_length() {
            Some(max) if found > max => Err(Error::too_large(format!(
                "expected at most {max} tokens, the fleet model's length, but found {found}"
            ))),
            _ => Ok(()),
        }
    }

    /// The backend's schedule, without batches if the model has no mask and would read padding as words.
    pub fn schedule(&self, schedule: Schedule) -> Schedule {
        if self.has(Role::Mask) || self.has(Role::Text) {
            return schedule;
        }
        Schedule {
            max_batch_size: NonZeroUsize::MIN,
            ..schedule
        }
    }

    /// A batch's tensors, in the model's order; short sequences are padded with `padding_id`.
    pub fn tensors(&self, batch: &[Sequence<'_>], padding_id: u32) -> Result<Vec<Tensor>> {
        self.0
            .iter()
            .map(|(role, spec)| tensor(*role, spec, batch, padding_id))
            .collect()
    }
}

fn tensor(
    role: Role,
    spec: &TensorSpec,
    batch: &[Sequence<'_>],
    padding_id: u32,
) -> Result<Tensor> {
    let has_rows = spec.shape.len() > 1;
    if role == Role::Text {
        let texts = batch
            .iter()
            .map(|sequence| sequence.text.unwrap_or_default().as_bytes().to_vec());
        let shape = if has_rows {
            vec![batch.len(), 1]
        } else {
            vec![batch.len()]
        };
        return Tensor::new(shape, Elements::Bytes(texts.collect()));
    }
    if role == Role::Labels {
        let width = fixed(spec.shape.last()).unwrap_or(1).max(1);
        let rows = fixed(spec.shape.first()).unwrap_or(batch.len());
        let labels = batch
            .first()
            .and_then(|sequence| sequence.labels)
            .map_or(&[][..], |labels| labels);
        return Tensor::new(
            vec![rows, labels.len() / width, width],
            Elements::Fp32(labels.repeat(rows)),
        );
    }
    let longest = batch
        .iter()
        .map(|sequence| sequence.encoding.len())
        .max()
        .unwrap_or(0);
    let columns = fixed(spec.shape.last()).unwrap_or(longest);
    let rows = if has_rows {
        fixed(spec.shape.first()).unwrap_or(batch.len())
    } else {
        1
    };
    let padding = if role == Role::Ids {
        i64::from(padding_id)
    } else {
        0
    };
    let mut values = Vec::with_capacity(rows * columns);
    // A fixed number of rows is reached by repeating the batch, since a model may fail on an empty row.
    for (row, Sequence { encoding, .. }) in batch.iter().cycle().take(rows).enumerate() {
        match role {
            Role::Ids => values.extend(encoding.ids.iter().map(|id| i64::from(*id))),
            Role::Types => values.extend(encoding.type_ids.iter().map(|id| i64::from(*id))),
            Role::Mask => values.extend(encoding.mask()),
            Role::Pooled => values.extend(encoding.pooling_mask()),
            Role::Task => values.extend(std::iter::repeat_n(
                i64::from(encoding.task),
                encoding.len(),
            )),
            // Handled above.
            Role::Text | Role::Labels => {}
        }
        values.resize((row + 1) * columns, padding);
    }
    let shape = if has_rows {
        vec![rows, columns]
    } else {
        vec![columns]
    };
    Tensor::integers(spec.element_type, shape, values)
}

/// An axis length, if it is fixed.
fn fixed(side: Option<&i64>) -> Option<usize> {
    side.and_then(|side| usize::try_from(*side).ok())
}
