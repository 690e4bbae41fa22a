//! An encoder that a backend runs on named tensors: converts tokens to tensors, and tensors to rows, whatever their names,
//! element types and shapes.

use std::{borrow::Cow, sync::Arc};

use async_trait::async_trait;

use super::{
    Backend, Schedule, Signature, TensorSpec,
    encoder::{EachText, EncoderBackend, EncoderCall, Row},
    model_inputs::ModelInputs,
};
use kivu_base::{
    Error, Result,
    tensor::{ElementType, Elements, Tensor},
};

/// An encoder on named tensors.
#[derive(Clone, Debug)]
pub struct TensorEncoder {
    backend: Arc<dyn Backend>,
    signature: Signature,
    inputs: ModelInputs,
    /// The labels of a model that returns labels instead of values.
    labels: Option<Vec<String>>,
}

impl TensorEncoder {
    /// An encoder with the backend's outputs. Refuses inputs whose meaning is not known.
    pub fn new(backend: Arc<dyn Backend>) -> Result<Self> {
        let signature = backend.signature().clone();
        Ok(Self {
            inputs: ModelInputs::recognize(&signature)?,
            backend,
            signature,
            labels: None,
        })
    }

    /// The same, to be shared.
    pub fn shared(backend: impl Backend + 'static) -> Result<Arc<dyn EncoderBackend>> {
        Ok(Arc::new(Self::new(Arc::new(backend))?))
    }

    /// An encoder whose backend returns labels, the best first, and then their scores if there is a second output. Its
    /// only output has a score for each of `labels`. The first label scores 1 if the model returns no scores; labels that
    /// it omits score 0.
    pub fn of_labels(backend: Arc<dyn Backend>, labels: Vec<String>) -> Result<Self> {
        let mut encoder = Self::new(backend)?;
        let name = encoder.output_name(0).to_owned();
        encoder.signature.outputs = vec![TensorSpec::new(
            name,
            ElementType::Fp32,
            [-1, labels.len() as i64],
        )];
        Ok(Self {
            labels: Some(labels),
            ..encoder
        })
    }

    fn output_name(&self, output: usize) -> &str {
        let output = self.signature.outputs.get(output);
        output.map_or("", |output| &output.name)
    }

    fn unexpected(&self, output: usize, found: &str) -> Error {
        let name = self.output_name(output);
        Error::inference(format!("expected values in `{name}`, but found {found}"))
    }

    /// Scores for returned labels.
    fn scores_of_labels(&self, labels: &[String], outputs: &[Tensor]) -> Result<Tensor> {
        let names = outputs
            .first()
            .ok_or_else(|| self.unexpected(0, "no such output"))?;
        let returned = names
            .as_bytes()
            .ok_or_else(|| self.unexpected(0, "no labels"))?;
        let rows = names.shape().first().copied().unwrap_or(1);
        let per_row = returned.len().checked_div(rows).unwrap_or(0).max(1);
        let scores =
            match outputs.get(1) {
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
        let mut values = vec![0.0; rows * labels.len()];
        for (index, (name, score)) in returned.iter().zip(scores.iter()).enumerate() {
            let label = labels.iter().position(|label| label.as_bytes() == name);
            let label = label
                .ok_or_else(|| self.unexpected(0, "a label that the manifest does not name"))?;
            values[index / per_row * labels.len() + label] = *score;
        }
        Tensor::new(vec![rows, labels.len()], Elements::Fp32(values))
    }

    /// Splits an output's values into rows, one per text; `lengths` counts the tokens of each.
    fn rows<'a>(
        &self,
        output: usize,
        tensor: &'a Tensor,
        lengths: &[usize],
    ) -> Result<Vec<Row<'a>>> {
        let (count, shape) = (lengths.len(), tensor.shape());
        let Some(values) = tensor.as_fp32() else {
            return Err(self.unexpected(
                output,
                &format!("{} of shape {shape:?}", tensor.element_type()),
            ));
        };
        let wrong_shape = || self.unexpected(output, &format!("shape {shape:?} for {count} texts"));
        let declared = &self.signature.outputs[output];
        let has_tokens = self.labels.is_none() && self.inputs.has_token_vectors(declared);
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
        if rows != count || width == 0 || values.is_empty() {
            return Err(wrong_shape());
        }
        let columns = if let [_, _, columns, _] = *shape {
            columns
        } else {
            1
        };
        let row = |(row, length): (&'a [f32], &usize)| {
            let values = if has_tokens {
                row.get(..length * width)
            } else {
                Some(row)
            };
            let values = values.ok_or_else(|| {
                self.unexpected(output, &format!("shape {shape:?} for {length} tokens"))
            })?;
            Ok(Row {
                values,
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

#[async_trait]
impl EncoderBackend for TensorEncoder {
    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// The backend's, without batches if the model has no mask and would read padding as words.
    fn schedule(&self) -> Schedule {
        self.inputs.schedule(self.backend.schedule())
    }

    async fn run(&self, call: EncoderCall<'_>, each: &mut EachText<'_>) -> Result<()> {
        let batches = call.batches.iter();
        let tensors = batches.map(|batch| self.inputs.tensors(batch, call.padding_id));
        let tensors = tensors.collect::<Result<_>>()?;
        let results = self.backend.infer_each(tensors, call.deadline).await?;
        let mut first = 0;
        for (batch, mut tensors) in call.batches.iter().zip(results) {
            if let Some(labels) = &self.labels {
                tensors = vec![self.scores_of_labels(labels, &tensors)?];
            }
            let lengths: Vec<usize> = batch.iter().map(|text| text.encoding.len()).collect();
            let mut texts = vec![Vec::with_capacity(call.outputs.len()); batch.len()];
            for output in call.outputs {
                let tensor = tensors
                    .get(*output)
                    .ok_or_else(|| self.unexpected(*output, "no such output"))?;
                let rows = self.rows(*output, tensor, &lengths)?;
                texts
                    .iter_mut()
                    .zip(rows)
                    .for_each(|(text, row)| text.push(row));
            }
            for (text, rows) in texts.iter().enumerate() {
                each(first + text, rows)?;
            }
            first += batch.len();
        }
        Ok(())
    }
}
