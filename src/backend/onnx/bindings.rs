//! Which output of an encoder or decoder goes into which input of the next step, by their names.

use crate::{
    backend::{Signature, TensorSpec},
    error::{Error, Result, quoted},
    tensor::ElementType,
};

/// The encoder's outputs of one row a source begin so.
const BY_ROW: &str = "cross.";
/// Those that all rows have in common begin so.
const SHARED: &str = "shared.";
/// What the decoder keeps begins so where it goes in …
const PAST: &str = "past.";
/// … and so where it comes out.
const PRESENT: &str = "present.";
const LOGITS: &str = "logits";

/// What goes where between an encoder and a decoder.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct DecoderBindings {
    pub(super) encoder: Vec<EncoderInput>,
    pub(super) decoder: Vec<DecoderInput>,
    /// What the decoder keeps, in the order of its inputs.
    pub(super) states: Vec<State>,
    /// The encoder's outputs that have rows and go into the decoder.
    pub(super) by_row: Vec<usize>,
    /// The decoder's output of scores.
    pub(super) logits: usize,
    /// The length of its last axis, where it is fixed.
    pub(super) vocabulary: Option<usize>,
    pub(super) takes_shortlist: bool,
}

/// What an input of the encoder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EncoderInput {
    Ids,
    Mask,
    Shortlist,
}

/// What an input of the decoder takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecoderInput {
    Ids,
    Mask,
    /// The number of tokens before this one.
    Position,
    /// An output of the encoder.
    Encoded(usize),
    /// The next of the states.
    State,
}

/// A tensor that the decoder keeps from step to step.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct State {
    pub(super) spec: TensorSpec,
    /// The output that it comes back as.
    pub(super) output: usize,
}

impl DecoderBindings {
    /// Refuses graphs that do not fit together, with both sides named.
    pub(super) fn new(encoder: &Signature, decoder: &Signature) -> Result<Self> {
        let encoder_inputs: Option<Vec<_>> = encoder.inputs.iter().map(encoder_input).collect();
        let decoder_inputs: Option<Vec<_>> =
            decoder.inputs.iter().map(|input| decoder_input(input, encoder)).collect();
        let states = decoder.inputs.iter().filter_map(|input| state(input, decoder));
        let states: Option<Vec<_>> = states.collect();
        let logits = decoder.output(LOGITS).filter(|output| {
            let output = &decoder.outputs[*output];
            output.element_type == ElementType::Fp32 && matches!(output.shape.len(), 2 | 3)
        });
        let (Some(encoder_inputs), Some(decoder_inputs), Some(states), Some(logits)) =
            (encoder_inputs, decoder_inputs, states, logits)
        else {
            return Err(mismatch(encoder, decoder));
        };
        if !encoder_inputs.contains(&EncoderInput::Ids) || !decoder_inputs.contains(&DecoderInput::Ids) {
            return Err(mismatch(encoder, decoder));
        }
        let by_row = decoder.inputs.iter().filter(|input| input.name.starts_with(BY_ROW));
        let by_row = by_row.filter_map(|input| encoder.output(&input.name)).collect();
        let vocabulary = decoder.outputs[logits].shape.last().copied().unwrap_or(-1);
        Ok(Self {
            takes_shortlist: encoder_inputs.contains(&EncoderInput::Shortlist),
            encoder: encoder_inputs,
            decoder: decoder_inputs,
            states,
            by_row,
            logits,
            vocabulary: usize::try_from(vocabulary).ok(),
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
        name if name.starts_with(BY_ROW) || name.starts_with(SHARED) => {
            let output = encoder.output(name)?;
            let is_alike = encoder.outputs[output].element_type == input.element_type;
            return is_alike.then_some(DecoderInput::Encoded(output));
        }
        _ => return None,
    };
    (input.element_type == ElementType::Int64).then_some(kind)
}

/// The state that an input takes; nothing for other inputs, an inner nothing for a state that does not come back.
fn state(input: &TensorSpec, decoder: &Signature) -> Option<Option<State>> {
    let name = input.name.strip_prefix(PAST)?;
    let output = decoder.output(&format!("{PRESENT}{name}"));
    let output = output.filter(|output| decoder.outputs[*output].element_type == input.element_type);
    Some(output.map(|output| State { spec: input.clone(), output }))
}

fn mismatch(encoder: &Signature, decoder: &Signature) -> Error {
    let names =
        |specs: &[TensorSpec]| quoted(&specs.iter().map(|spec| spec.name.as_str()).collect::<Vec<_>>());
    Error::model(format!(
        "expected an encoder of `input_ids`, `attention_mask`, `shortlist` that gives `{BY_ROW}…` and `{SHARED}…`, \
         and a decoder of `input_ids`, `attention_mask`, `position`, of what the encoder gives and of `{PAST}…` \
         that gives `{LOGITS}` and as many `{PRESENT}…`, but found an encoder of {} that gives {}, and a decoder \
         of {} that gives {}",
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
            specs.iter().map(|(name, kind)| TensorSpec::new(*name, *kind, [-1, 7])).collect()
        };
        Signature { inputs: specs(inputs), outputs: specs(outputs) }
    }

    #[test]
    fn tensors_find_their_places_by_name() {
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
        assert_eq!(bindings.decoder, [State, Ids, State, Encoded(1), Encoded(0)]);
        assert_eq!(bindings.states.iter().map(|state| state.output).collect::<Vec<_>>(), [2, 0]);
        assert_eq!((bindings.by_row, bindings.logits, bindings.vocabulary), (vec![1], 1, Some(7)));
    }

    #[test]
    fn graphs_that_do_not_fit_together_are_refused() {
        use ElementType::{Fp32, Int64};
        let encoder = signature(&[("input_ids", Int64)], &[("cross.0", Fp32)]);
        let lost = signature(&[("input_ids", Int64), ("past.a", Fp32)], &[("logits", Fp32)]);
        let message = DecoderBindings::new(&encoder, &lost).unwrap_err().to_string();
        assert!(message.ends_with(
            "but found an encoder of `input_ids` that gives `cross.0`, and a decoder of `input_ids`, `past.a` \
             that gives `logits`"
        ));
        let missing = signature(&[("input_ids", Int64), ("cross.1", Fp32)], &[("logits", Fp32)]);
        assert!(DecoderBindings::new(&encoder, &missing).is_err());
    }
}
