//! An encoder in any engine.

use std::{num::NonZeroUsize, path::Path, sync::Arc};

use crate::{files, source::MODEL};
use kivu::{
    backend::{
        Engine, Signature, TensorSpec,
        native::{NativeModel, TableModel, WeightFiles},
        onnx::{Runtime, Session},
    },
    error::{Error, Result},
    tensor::Tensor,
    tokenizer::Encoding,
};

/// An encoder's graph in an engine.
pub(crate) enum EncoderModel {
    Native(NativeModel),
    Table(TableModel),
    Onnx(Session),
}

impl EncoderModel {
    /// Opens the graph in `folder`.
    pub(crate) fn open(runtime: Runtime, folder: &Path, engine: Engine) -> Result<Self> {
        let path = folder.join(MODEL);
        if engine == Engine::Onnx {
            return Session::open(runtime, &path, NonZeroUsize::MIN).map(Self::Onnx);
        }
        let graph = files::read(&path)?;
        let weights = WeightFiles::names(&graph)?.into_iter().map(|name| (name.clone(), folder.join(name)));
        let weights = WeightFiles::map(weights, Arc::default())?;
        match TableModel::is_in(&graph)? {
            true => TableModel::open(&graph, weights).map(Self::Table),
            false => NativeModel::open(&graph, weights).map(Self::Native),
        }
    }

    fn signature(&self) -> &Signature {
        match self {
            Self::Native(model) => model.signature(),
            Self::Table(model) => model.signature(),
            Self::Onnx(session) => session.signature(),
        }
    }

    /// The outputs for one text.
    pub(super) fn run(&self, encoding: &Encoding) -> Result<Vec<Tensor>> {
        let inputs = inputs(self.signature(), encoding)?;
        match self {
            Self::Native(model) => model.run(&inputs),
            Self::Table(model) => model.run(&inputs),
            Self::Onnx(session) => session.run(&inputs),
        }
    }

    /// Values in the output called `name`, with the given width, among `outputs`.
    pub(super) fn values<'a>(&self, outputs: &'a [Tensor], name: &str, width: usize) -> Result<&'a [f32]> {
        let output = self.signature().output(name).and_then(|place| outputs.get(place));
        match output.and_then(|output| Some((output.as_fp32()?, *output.shape().last()?))) {
            // With non-finite numbers, comparisons would hold or fail by accident.
            Some((values, found)) if found == width => match values.iter().find(|value| !value.is_finite()) {
                None => Ok(values),
                Some(value) => Err(Error::model(format!(
                    "expected finite numbers in `{name}` for a sample text, but found {value}; check the model's weights"
                ))),
            },
            Some((_, found)) => Err(Error::model(format!(
                "expected {width} values in `{name}`, as in `config.json`, but found {found}"
            ))),
            None => Err(Error::model(format!("expected the float output `{name}`, but found none"))),
        }
    }
}

/// Graph inputs for one text.
pub fn inputs(signature: &Signature, encoding: &Encoding) -> Result<Vec<Tensor>> {
    let shape = [1, encoding.len()];
    let tensor = |input: &TensorSpec| {
        let values = match input.name.as_str() {
            "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
            "token_type_ids" | "words_mask" => encoding.type_ids.iter().map(|id| i64::from(*id)).collect(),
            "attention_mask" => {
                let attended = encoding.len() - encoding.unattended;
                (0..encoding.len()).map(|token| i64::from(token < attended)).collect()
            }
            other => {
                return Err(Error::model(format!(
                    "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, `words_mask`, but found \
                     `{other}`"
                )));
            }
        };
        Tensor::integers(input.element_type, shape, values)
    };
    signature.inputs.iter().map(tensor).collect()
}
