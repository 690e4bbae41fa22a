//! The outputs that a task reads from an encoder, checked against what the encoder has.

use std::sync::Arc;

use super::executor::RemoteModel;
use crate::backend::{
    Deadline, RemoteBackend, Schedule, Signature, TASK_IDS, TensorSpec,
    encoder::{EncoderBackend, EncoderCall, Row, Sequence},
    model_inputs::{ModelInputs, POOLING_MASK, Role},
    tensors::TensorEncoder,
};
use crate::pipeline::classification::scores::ScoreFunction;
use kivu_base::{Error, Result, error::quoted, tensor::ElementType};

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
    /// The units that the output has vectors for.
    pub vectors: Vectors,
}

impl NamedOutput {
    /// An output with a number for each label, of which there must be one.
    pub fn of_labels(name: &str, labels: &[String], vectors: Vectors) -> Result<Self> {
        if labels.is_empty() {
            return Err(Error::model(
                "expected labels in the manifest, but found none",
            ));
        }
        Ok(Self {
            name: name.to_owned(),
            width: labels.len(),
            vectors,
        })
    }
}

/// The units that an output has vectors for.
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

    /// Error for a model without these outputs.
    fn mismatch(&self, found: &Signature) -> Error {
        Error::model(format!(
            "expected a model with the output {}, but found {}",
            self.names(),
            TensorSpec::names(&found.outputs)
        ))
    }
}

impl NamedOutput {
    /// Refuses another output of the adapter at `place` than this one.
    fn check(&self, adapter: &Adapter, place: usize) -> Result<()> {
        let found = adapter.output(place);
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
        if let Some(width) = width.filter(|width| *width != self.width) {
            return Err(Error::model(format!(
                "expected `{}` with {} values per text, but found {width}",
                found.name, self.width
            )));
        }
        let has_token_vectors = adapter.has_token_vectors(place);
        let expected = match self.vectors {
            Vectors::PerToken if !has_token_vectors => "token",
            Vectors::PerText if has_token_vectors => "text",
            _ => return Ok(()),
        };
        Err(Error::model(format!(
            "expected `{}` with a vector for each {expected}, but found {:?}",
            found.name, found.shape
        )))
    }
}

/// An encoder with the outputs that a task reads.
#[derive(Clone, Debug)]
pub struct Adapter {
    backend: Arc<dyn EncoderBackend>,
    inputs: ModelInputs,
    /// Output indexes, in specification order.
    outputs: Vec<usize>,
    /// Undoes the score function of a model that returns scores for labels.
    inverts: Option<ScoreFunction>,
    spec: Arc<OutputSpec>,
}

/// Indexes of a fleet's outputs with the values.
enum Output<'a> {
    /// In specification order.
    Values(Vec<usize>),
    /// Labels, the best first, and their scores if the model returns them; with the labels in the manifest.
    Labels(Vec<usize>, &'a (Vec<String>, ScoreFunction)),
}

impl RemoteModel for Adapter {
    type Spec = Arc<OutputSpec>;

    fn open(described: &dyn RemoteBackend, spec: &Arc<OutputSpec>) -> Result<Self> {
        let signature = described.signature();
        let output = infer_output(signature, spec).ok_or_else(|| spec.mismatch(signature))?;
        // Unused outputs are not transferred.
        let (encoder, inverts) = match output {
            Output::Values(used) => (TensorEncoder::new(described.with_outputs(&used))?, None),
            Output::Labels(used, (labels, function)) => {
                let described = described.with_outputs(&used);
                let encoder = TensorEncoder::of_labels(described, labels.clone())?;
                (encoder, Some(*function))
            }
        };
        let outputs = (0..spec.outputs.len()).collect();
        Self::new(Arc::new(encoder), spec, outputs, inverts)
    }
}

impl Adapter {
    /// An adapter for a bundle's graph, whose outputs have the names in the manifest.
    pub fn local(backend: Arc<dyn EncoderBackend>, spec: &Arc<OutputSpec>) -> Result<Self> {
        let found = spec
            .outputs
            .iter()
            .map(|output| backend.signature().output(&output.name));
        let outputs = found.collect::<Option<_>>();
        let outputs = outputs.ok_or_else(|| spec.mismatch(backend.signature()))?;
        Self::new(backend, spec, outputs, None)
    }

    fn new(
        backend: Arc<dyn EncoderBackend>,
        spec: &Arc<OutputSpec>,
        outputs: Vec<usize>,
        inverts: Option<ScoreFunction>,
    ) -> Result<Self> {
        let adapter = Self {
            inputs: ModelInputs::recognize(backend.signature())?,
            backend,
            outputs,
            inverts,
            spec: Arc::clone(spec),
        };
        for (place, output) in adapter.spec.outputs.iter().enumerate() {
            output.check(&adapter, place)?;
        }
        Ok(adapter)
    }

    /// The graph's output for the specified one at `place`.
    fn output(&self, place: usize) -> &TensorSpec {
        &self.backend.signature().outputs[self.outputs[place]]
    }

    fn has_token_vectors(&self, place: usize) -> bool {
        self.inverts.is_none() && self.inputs.has_token_vectors(self.output(place))
    }

    /// Refuses a model whose first output has no vector for each token.
    pub fn require_token_vectors(&self) -> Result<()> {
        if self.has_token_vectors(0) {
            return Ok(());
        }
        Err(Error::invalid(format!(
            "expected a model with a vector for each token, but its output {} has one for each text",
            self.spec.names()
        )))
    }

    /// Tokens per text, if the model takes a fixed number.
    pub fn fixed_length(&self) -> Option<usize> {
        self.inputs.fixed_length()
    }

    /// Refuses an input that the model cannot read.
    pub fn check(&self, input: Sequence<'_>) -> Result<()> {
        if input.encoding.task > 0 && !self.inputs.has(Role::Task) {
            return Err(Error::invalid(format!(
                "`task` is not supported: the model on the fleet has no input `{TASK_IDS}`"
            )));
        }
        if self.inputs.has(Role::Text) && input.text.is_none() {
            return Err(Error::invalid(
                "pairs and token ids are not supported by the model on the fleet, which reads single texts",
            ));
        }
        let is_pair =
            self.spec.distinguishes_pairs && input.encoding.type_ids.iter().any(|id| *id != 0);
        if is_pair && !self.inputs.has(Role::Types) {
            return Err(Error::invalid(
                "pairs are not supported: the model on the fleet has no input `token_type_ids`",
            ));
        }
        if input.encoding.unpooled > 0 && !self.inputs.has(Role::Pooled) {
            return Err(Error::invalid(format!(
                "prompts are not supported: the model on the fleet has no input `{POOLING_MASK}`"
            )));
        }
        self.inputs.check_length(input.encoding.len())
    }

    /// The backend's schedule.
    pub fn schedule(&self) -> Schedule {
        self.backend.schedule()
    }

    /// Runs batches in one call, and passes each text's rows to `each`, one per specified output. Texts are numbered
    /// through all batches.
    pub async fn run(
        &self,
        batches: Vec<Vec<Sequence<'_>>>,
        deadline: Deadline,
        each: &mut (dyn FnMut(usize, &[Row<'_>]) + Send),
    ) -> Result<()> {
        let lengths: Vec<usize> = batches
            .iter()
            .flatten()
            .map(|text| text.encoding.len())
            .collect();
        let call = EncoderCall {
            batches,
            outputs: &self.outputs,
            padding_id: self.spec.padding_id,
            deadline,
        };
        let mut check_each = |text: usize, rows: &[Row<'_>]| {
            for (place, row) in rows.iter().enumerate() {
                self.check_row(place, row, lengths[text])?;
            }
            match self.inverts {
                None => each(text, rows),
                Some(function) => {
                    let scores = rows[0].values.iter();
                    let logits: Vec<f32> = scores.map(|score| function.invert(*score)).collect();
                    let values = &logits[..];
                    each(text, &[Row { values, ..rows[0] }]);
                }
            }
            Ok(())
        };
        self.backend.run(call, &mut check_each).await
    }

    /// Refuses a row of another size than the specification's, without values, or with values that are not finite.
    fn check_row(&self, place: usize, row: &Row<'_>, tokens: usize) -> Result<()> {
        let NamedOutput { width, vectors, .. } = self.spec.outputs[place];
        let found = row.values.len();
        let has_size = match vectors {
            _ if self.has_token_vectors(place) => found == tokens * width,
            Vectors::PerText => found == width,
            Vectors::PerToken | Vectors::Any => found.is_multiple_of(width),
        };
        let found = if row.width != width {
            format!("{} values per vector in place of {width}", row.width)
        } else if found == 0 || !has_size {
            format!("{found} values for {tokens} tokens")
        } else if row.values.iter().any(|value| !value.is_finite()) {
            "a value that is not a finite number".to_owned()
        } else {
            return Ok(());
        };
        let name = &self.output(place).name;
        Err(Error::inference(format!(
            "expected values in `{name}`, but found {found}"
        )))
    }
}

/// The outputs with the names in the manifest, or `OUTPUT__0` for a single one; otherwise labels, or the only FP32
/// output.
fn infer_output<'a>(signature: &Signature, spec: &'a OutputSpec) -> Option<Output<'a>> {
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
    match of_type(ElementType::Bytes).next().zip(spec.labels.as_ref()) {
        Some((names, labels)) => {
            let used = [names].into_iter().chain(first).collect();
            Some(Output::Labels(used, labels))
        }
        None => first
            .filter(|_| floats.next().is_none())
            .map(|index| Output::Values(vec![index])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::scripted::ScriptedBackend;
    use kivu_base::tensor::{Elements, Tensor};
    use kivu_text::Encoding;

    /// Runs texts of these lengths on a model that returns a tensor of this shape, declared with any lengths.
    async fn run(lengths: &[usize], shape: &'static [usize], value: f32) -> Result<Vec<usize>> {
        let signature = Signature {
            inputs: ["input_ids", "attention_mask"]
                .map(|name| TensorSpec::new(name, ElementType::Int64, [-1, -1]))
                .into(),
            outputs: vec![TensorSpec::new(
                "vectors",
                ElementType::Fp32,
                vec![-1; shape.len()],
            )],
        };
        let backend = ScriptedBackend::new(signature, move |_| {
            let values = vec![value; shape.iter().product()];
            Ok(vec![Tensor::new(shape.to_vec(), Elements::Fp32(values))?])
        });
        let spec = Arc::new(OutputSpec {
            outputs: vec![NamedOutput {
                name: "vectors".into(),
                width: 2,
                vectors: Vectors::Any,
            }],
            labels: None,
            padding_id: 0,
            distinguishes_pairs: false,
        });
        let adapter = Adapter::local(TensorEncoder::shared(backend)?, &spec)?;
        let text = |length: &usize| Encoding {
            ids: vec![1; *length],
            type_ids: vec![0; *length],
            ..Encoding::default()
        };
        let texts: Vec<Encoding> = lengths.iter().map(text).collect();
        let batch = texts.iter().map(Sequence::from).collect();
        let mut found = Vec::new();
        let mut each = |text: usize, rows: &[Row<'_>]| {
            assert_eq!(text, found.len());
            found.push(rows[0].values.len());
        };
        adapter
            .run(vec![batch], Deadline::none(), &mut each)
            .await?;
        Ok(found)
    }

    #[tokio::test]
    async fn rows_of_other_sizes_and_values_are_refused() {
        assert_eq!(run(&[3, 1], &[2, 3, 2], 0.5).await.unwrap(), [6, 2]);
        assert_eq!(run(&[3, 1], &[2, 2], 0.5).await.unwrap(), [2, 2]);
        let refused = [
            run(&[3], &[1, 3, 4], 0.5).await,
            run(&[3], &[1, 2, 2], 0.5).await,
            run(&[3], &[2, 3, 2], 0.5).await,
            run(&[3, 0], &[2, 3, 2], 0.5).await,
            run(&[3], &[1, 2], f32::NAN).await,
        ];
        let refused = refused.map(|result| result.unwrap_err().to_string());
        insta::assert_snapshot!(refused.join("\n"), @"
        expected values in `vectors`, but found 4 values per vector in place of 2
        expected values in `vectors`, but found shape [1, 2, 2] for 3 tokens
        expected values in `vectors`, but found shape [2, 3, 2] for 1 texts
        expected values in `vectors`, but found 0 values for 0 tokens
        expected values in `vectors`, but found a value that is not a finite number
        ");
    }
}
