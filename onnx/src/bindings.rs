//! The connections between an encoder and a decoder: which output becomes which input, by name.

use kivu_base::{Error, Result, error::quoted, tensor::ElementType};
use kivu_core::backend::{Signature, TensorSpec};

/// Prefix for encoder outputs with a row per source.
const CROSS: &str = "cross.";
/// Prefix for encoder outputs without rows.
const SHARED: &str = "shared.";
/// Prefix for the decoder's KV cache inputs.
const PAST: &str = "past.";
/// Prefix for the KV cache outputs, which are the next step's inputs.
const PRESENT: &str = "present.";
const LOGITS: &str = "logits";

#[derive(Debug, PartialEq, Eq)]
pub struct DecoderBindings {
    pub encoder: Vec<EncoderInput>,
    pub decoder: Vec<DecoderInput>,
    /// KV cache, in decoder input order.
    pub states: Vec<State>,
    /// Indexes of encoder outputs that have rows and are decoder inputs.
    pub encoded_rows: Vec<usize>,
    /// Decoder output index for the scores.
    pub logits: usize,
    /// Scores per row, if fixed.
    pub vocabulary: Option<usize>,
    pub takes_shortlist: bool,
}

/// An encoder input's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EncoderInput {
    Ids,
    Mask,
    Shortlist,
}

/// A decoder input's source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DecoderInput {
    Ids,
    Mask,
    /// Count of earlier steps.
    Position,
    /// Encoder output, by index.
    Encoded(usize),
    /// Next state.
    State,
}

/// A KV cache tensor.
#[derive(Debug, PartialEq, Eq)]
pub struct State {
    pub spec: TensorSpec,
    /// Output index for its next value.
    pub output: usize,
}

impl DecoderBindings {
    /// Refuses graphs that do not fit together; the error lists both graphs' names.
    pub fn new(encoder: &Signature, decoder: &Signature) -> Result<Self> {
        Self::bind(encoder, decoder).ok_or_else(|| mismatch(encoder, decoder))
    }

    fn bind(encoder: &Signature, decoder: &Signature) -> Option<Self> {
        let encoder_inputs: Vec<_> = encoder
            .inputs
            .iter()
            .map(encoder_input)
            .collect::<Option<_>>()?;
        let decoder_inputs = decoder
            .inputs
            .iter()
            .map(|input| decoder_input(input, encoder));
        let decoder_inputs: Vec<_> = decoder_inputs.collect::<Option<_>>()?;
        let states = decoder
            .inputs
            .iter()
            .filter(|input| input.name.starts_with(PAST));
        let states = states
            .map(|input| state(input, decoder))
            .collect::<Option<_>>()?;
        let logits = decoder.output(LOGITS)?;
        let scores = &decoder.outputs[logits];
        let is_complete = scores.element_type == ElementType::Fp32
            && matches!(scores.shape.len(), 2 | 3)
            && encoder_inputs.contains(&EncoderInput::Ids)
            && decoder_inputs.contains(&DecoderInput::Ids);
        let with_rows = decoder
            .inputs
            .iter()
            .filter(|input| input.name.starts_with(CROSS));
        is_complete.then(|| Self {
            takes_shortlist: encoder_inputs.contains(&EncoderInput::Shortlist),
            encoder: encoder_inputs,
            decoder: decoder_inputs,
            states,
            encoded_rows: with_rows
                .filter_map(|input| encoder.output(&input.name))
                .collect(),
            logits,
            vocabulary: scores
                .shape
                .last()
                .and_then(|length| usize::try_from(*length).ok()),
        })
    }
}

fn encoder_input(input: &TensorSpec) -> Option<EncoderInput> {
    let kind = match input.name.as_str() {
        "input_ids" => EncoderInput::Ids,
        "attention_mask" => EncoderInput::Mask,
        "shortlist" => EncoderInput::Shortlist,
        _ => return None,
    };
    (input.element_type == ElementType::Int64).then_some(kind)
}

fn decoder_input(input: &TensorSpec, encoder: &Signature) -> Option<DecoderInput> {
    let kind = match input.name.as_str() {
        "input_ids" => DecoderInput::Ids,
        "attention_mask" => DecoderInput::Mask,
        "position" => DecoderInput::Position,
        name if name.starts_with(PAST) => return Some(DecoderInput::State),
        name if name.starts_with(CROSS) || name.starts_with(SHARED) => {
            let output = encoder.output(name)?;
            let has_same_type = encoder.outputs[output].element_type == input.element_type;
            return has_same_type.then_some(DecoderInput::Encoded(output));
        }
        _ => return None,
    };
    (input.element_type == ElementType::Int64).then_some(kind)
}

/// An input's state, or `None` without an output for its next value.
fn state(input: &TensorSpec, decoder: &Signature) -> Option<State> {
    let name = input.name.strip_prefix(PAST)?;
    let output = decoder.output(&format!("{PRESENT}{name}"))?;
    let has_same_type = decoder.outputs[output].element_type == input.element_type;
    has_same_type.then(|| State {
        spec: input.clone(),
        output,
    })
}

fn mismatch(encoder: &Signature, decoder: &Signature) -> Error {
    let names = |specs: &[TensorSpec]| {
        quoted(
            &specs
                .iter()
                .map(|spec| spec.name.as_str())
                .collect::<Vec<_>>(),
        )
    };
    Error::model(format!(
        "expected an encoder with inputs among `input_ids`, `attention_mask`, `shortlist` and outputs `{CROSS}…` and \
         `{SHARED}…`, and a decoder with inputs among `input_ids`, `attention_mask`, `position`, the outputs of the \
         encoder and `{PAST}…`, and outputs `{LOGITS}` and a `{PRESENT}…` for each `{PAST}…`, but found an encoder \
         with inputs {} and outputs {}, and a decoder with inputs {} and outputs {}",
        names(&encoder.inputs),
        names(&encoder.outputs),
        names(&decoder.inputs),
        names(&decoder.outputs)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signature(inputs: &[(&str, ElementType)], outputs: &[(&str, ElementType)]) -> Signature {
        let specs = |specs: &[(&str, ElementType)]| {
            specs
                .iter()
                .map(|(name, kind)| TensorSpec::new(*name, *kind, [-1, 7]))
                .collect()
        };
        Signature {
            inputs: specs(inputs),
            outputs: specs(outputs),
        }
    }

    #[test]
    fn tensors_are_bound_by_name() {
        use ElementType::{Fp32, Int64};
        let encoder = signature(
            &[("attention_mask", Int64), ("input_ids", Int64)],
            &[("shared.bias", Fp32), ("cross.0", Fp32), ("unused", Fp32)],
        );
        let decoder = signature(
            &[
                ("past.b", Fp32),
                ("input_ids", Int64),
                ("past.a", Fp32),
                ("cross.0", Fp32),
                ("shared.bias", Fp32),
            ],
            &[("present.a", Fp32), ("logits", Fp32), ("present.b", Fp32)],
        );
        let bindings = DecoderBindings::new(&encoder, &decoder).unwrap();
        assert_eq!(bindings.encoder, [EncoderInput::Mask, EncoderInput::Ids]);
        use DecoderInput::{Encoded, Ids, State};
        assert_eq!(
            bindings.decoder,
            [State, Ids, State, Encoded(1), Encoded(0)]
        );
        assert_eq!(
            bindings
                .states
                .iter()
                .map(|state| state.output)
                .collect::<Vec<_>>(),
            [2, 0]
        );
        assert_eq!(
            (bindings.encoded_rows, bindings.logits, bindings.vocabulary),
            (vec![1], 1, Some(7))
        );
    }

    #[test]
    fn graphs_that_do_not_fit_together_are_refused() {
        use ElementType::{Fp32, Int64};
        let encoder = signature(&[("input_ids", Int64)], &[("cross.0", Fp32)]);
        let lost = signature(
            &[("input_ids", Int64), ("past.a", Fp32)],
            &[("logits", Fp32)],
        );
        let message = DecoderBindings::new(&encoder, &lost)
            .unwrap_err()
            .to_string();
        assert!(message.ends_with(
            "but found an encoder with inputs `input_ids` and outputs `cross.0`, and a decoder with inputs \
             `input_ids`, `past.a` and outputs `logits`"
        ));
        let missing = signature(
            &[("input_ids", Int64), ("cross.1", Fp32)],
            &[("logits", Fp32)],
        );
        assert!(DecoderBindings::new(&encoder, &missing).is_err());
    }
}
