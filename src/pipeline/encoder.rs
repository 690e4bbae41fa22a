//! The step that every task on an encoder shares: encodings to the model's outputs, one row a text.

use std::{cmp::Reverse, sync::Arc};

use futures::{StreamExt, TryStreamExt, stream};

use crate::{
    backend::{Backend, Deadline, Signature},
    error::{Error, Result, quoted},
    tensor::{ElementType, Tensor},
    tokenizer::Encoding,
};

/// The names by which an encoder's inputs go, by what they carry.
const INPUT_NAMES: [(&str, Role); 3] =
    [("input_ids", Role::Ids), ("attention_mask", Role::Mask), ("token_type_ids", Role::Types)];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Ids,
    Mask,
    Types,
}

/// A backend whose model reads encodings.
#[derive(Clone, Debug)]
pub struct Encoder {
    backend: Arc<dyn Backend>,
    inputs: Vec<(Role, ElementType)>,
    output: usize,
    output_name: String,
}

/// One text's part of the model's output, padding left out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row<'a> {
    /// The values, row-major.
    pub values: &'a [f32],
    /// The length of the last axis.
    pub width: usize,
}

impl Encoder {
    /// Takes the output called `output` of a backend whose inputs are those of an encoder.
    ///
    /// A signature of another kind is refused here, when the model loads, with both sides named.
    pub fn new(backend: Arc<dyn Backend>, output: &str) -> Result<Self> {
        let signature = backend.signature();
        let inputs = signature.inputs.iter().map(|input| Some((role(&input.name)?, input.element_type)));
        let inputs: Option<Vec<_>> = inputs.collect();
        let inputs = inputs.filter(|inputs| inputs.iter().any(|(role, _)| *role == Role::Ids));
        let position = signature.output(output);
        match (inputs, position) {
            (Some(inputs), Some(position)) => {
                let element_type = signature.outputs[position].element_type;
                if element_type != ElementType::Fp32 {
                    return Err(Error::model(format!(
                        "expected the model's output `{output}` to be FP32, but found {element_type}"
                    )));
                }
                let output_name = output.to_owned();
                Ok(Self { backend, inputs, output: position, output_name })
            }
            _ => Err(mismatch(signature, output)),
        }
    }

    /// Whether the output has a vector for each token; otherwise it has one for each text.
    pub fn gives_tokens(&self) -> bool {
        self.backend.signature().outputs[self.output].shape.len() == 3
    }

    /// The length of the output's last axis, where it is fixed.
    pub fn width(&self) -> Option<usize> {
        let side = self.backend.signature().outputs[self.output].shape.last()?;
        usize::try_from(*side).ok()
    }

    /// Runs all encodings and gives what `finish` makes of each one's row, in the same order.
    ///
    /// Each row is finished as soon as it is there, so that the outputs of a large request, which are
    /// hundreds of times its answer, never stand in memory together. Batches are made of neighbours in length,
    /// longest first, so that little is padded and no long text is left for the end; only twice as many are
    /// under way as the backend runs at once.
    pub async fn run<T: Send>(
        &self,
        encodings: &[Encoding],
        deadline: Deadline,
        finish: impl Fn(Row<'_>) -> T + Send + Sync,
    ) -> Result<Vec<T>> {
        let finish = &finish;
        let schedule = self.backend.schedule();
        let mut order: Vec<usize> = (0..encodings.len()).collect();
        order.sort_by_key(|text| Reverse(encodings[*text].len()));
        let batches = order.chunks(schedule.rows.get()).map(|batch| async move {
            let outputs = self.infer(encodings, batch, deadline).await?;
            let rows = self.rows(&outputs, batch.iter().map(|text| encodings[*text].len()))?;
            Ok::<_, Error>(batch.iter().copied().zip(rows.into_iter().map(finish)).collect::<Vec<_>>())
        });
        // One more a lane than it runs, so that it finds the next batch waiting when it is done with one.
        let under_way = 2 * schedule.lanes.get();
        // Collected first: a borrowed iterator inside the stream would not be `Send` to the executor.
        let batches: Vec<_> = batches.collect();
        let done: Vec<Vec<(usize, T)>> =
            stream::iter(batches).buffer_unordered(under_way).try_collect().await?;
        let mut finished: Vec<(usize, T)> = done.into_iter().flatten().collect();
        finished.sort_by_key(|(text, _)| *text);
        Ok(finished.into_iter().map(|(_, row)| row).collect())
    }

    async fn infer(
        &self,
        encodings: &[Encoding],
        batch: &[usize],
        deadline: Deadline,
    ) -> Result<Vec<Tensor>> {
        let longest = batch.iter().map(|text| encodings[*text].len()).max().unwrap_or(0);
        let shape = [batch.len(), longest];
        let inputs = self
            .inputs
            .iter()
            .map(|(role, element_type)| {
                let mut values = vec![0_i64; batch.len() * longest];
                for (row, text) in values.chunks_mut(longest.max(1)).zip(batch) {
                    fill(row, *role, &encodings[*text]);
                }
                Tensor::integers(*element_type, shape, values)
            })
            .collect::<Result<_>>()?;
        self.backend.infer(inputs, deadline).await
    }

    /// Cuts the output into the rows of its texts, and each row to the text's own length.
    fn rows<'a>(
        &self,
        outputs: &'a [Tensor],
        lengths: impl ExactSizeIterator<Item = usize>,
    ) -> Result<Vec<Row<'a>>> {
        let wrong = |found: String| Error::Inference {
            message: format!("expected `{}` of {} rows, but found {found}", self.output_name, lengths.len()),
            source: None,
        };
        let Some(output) = outputs.get(self.output) else { return Err(wrong("no such output".into())) };
        let shape = output.shape();
        let (Some(values), Some(width)) = (output.as_fp32(), shape.last().copied()) else {
            return Err(wrong(format!("{} of shape {shape:?}", output.element_type())));
        };
        if shape[0] != lengths.len() || width == 0 {
            return Err(wrong(format!("shape {shape:?}")));
        }
        let row_size = values.len() / shape[0];
        let has_tokens = shape.len() == 3;
        values
            .chunks_exact(row_size.max(1))
            .zip(lengths)
            .map(|(row, length)| {
                let kept = if has_tokens { row.get(..length * width) } else { Some(row) };
                let kept = kept.ok_or_else(|| Error::Inference {
                    message: format!(
                        "expected `{}` of {length} tokens, but found shape {shape:?}",
                        self.output_name
                    ),
                    source: None,
                })?;
                if kept.iter().any(|value| !value.is_finite()) {
                    return Err(Error::Inference {
                        message: format!("the model's output `{}` is not a number", self.output_name),
                        source: None,
                    });
                }
                Ok(Row { values: kept, width })
            })
            .collect()
    }
}

fn role(name: &str) -> Option<Role> {
    INPUT_NAMES.iter().find(|(known, _)| *known == name).map(|(_, role)| *role)
}

fn fill(row: &mut [i64], role: Role, encoding: &Encoding) {
    let values: &mut dyn Iterator<Item = i64> = match role {
        Role::Ids => &mut encoding.ids.iter().map(|id| i64::from(*id)),
        Role::Types => &mut encoding.type_ids.iter().map(|id| i64::from(*id)),
        Role::Mask => &mut std::iter::repeat_n(1, encoding.len()),
    };
    for (cell, value) in row.iter_mut().zip(values) {
        *cell = value;
    }
}

fn mismatch(signature: &Signature, output: &str) -> Error {
    let names = |specs: &[crate::backend::TensorSpec]| {
        quoted(&specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>())
    };
    Error::model(format!(
        "expected a model with inputs among {} and the output `{output}`, but found inputs {} and outputs {}",
        quoted(&INPUT_NAMES.map(|(name, _)| name)),
        names(&signature.inputs),
        names(&signature.outputs)
    ))
}
