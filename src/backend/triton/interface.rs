//! From what a server says of a model to a signature and the rows that it takes at once.

use std::num::NonZeroUsize;

use super::{
    codec,
    transport::{Described, Description, Parameters},
};
use crate::{
    backend::{Schedule, Signature, TensorSpec},
    error::{Error, Result},
};

/// Rows in a batch where the model takes any number: enough for a GPU, few enough that little is padded.
const MOST_ROWS: usize = 32;
/// Batches of one request that are under way at once: the server runs some while others are on their way.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// What a model on a fleet takes and gives, and how it likes its work cut.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Interface {
    pub(super) signature: Signature,
    pub(super) schedule: Schedule,
    pub(super) parameters: Parameters,
}

impl Interface {
    /// Refuses a model with tensors of other types than ours, and one that answers as often as it likes.
    pub(super) fn of(model: &str, description: &Description) -> Result<Self> {
        if description.is_decoupled {
            return Err(Error::model(format!(
                "expected `{model}` on the fleet to answer once, but it is decoupled"
            )));
        }
        let signature = Signature {
            inputs: specs(model, &description.inputs)?,
            outputs: specs(model, &description.outputs)?,
        };
        let rows = rows(description, &signature);
        let rows = NonZeroUsize::new(rows).unwrap_or(NonZeroUsize::MIN);
        let schedule = Schedule { max_batch_size: rows, concurrency: CONCURRENCY, min_call_tokens: 0 };
        Ok(Self { signature, schedule, parameters: description.parameters.clone() })
    }
}

fn specs(model: &str, described: &[Described]) -> Result<Vec<TensorSpec>> {
    let spec = |tensor: &Described| {
        let element_type = codec::element_type(&tensor.datatype).ok_or_else(|| {
            Error::model(format!(
                "expected the tensors of `{model}` on the fleet to be numbers or BYTES, but found `{}` as {}",
                tensor.name, tensor.datatype
            ))
        })?;
        Ok(TensorSpec::new(tensor.name.clone(), element_type, tensor.shape.clone()))
    };
    described.iter().map(spec).collect()
}

/// The rows that the model takes at once: what its configuration says, or what its shapes leave free.
fn rows(description: &Description, signature: &Signature) -> usize {
    let first_axis = |spec: &TensorSpec| match spec.shape[..] {
        // An axis for tokens, or for texts: strings have no other.
        [side] if spec.element_type == crate::tensor::ElementType::Bytes => side,
        [] | [_] => 1,
        [rows, ..] => rows,
    };
    let fixed = signature.inputs.iter().map(first_axis).filter_map(|side| usize::try_from(side).ok()).min();
    let configured = description.max_batch_size.filter(|most| *most > 0);
    let configured = configured.and_then(|most| usize::try_from(most).ok());
    fixed.or(configured.map(|most| most.min(MOST_ROWS))).unwrap_or(MOST_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn described(name: &str, datatype: &str, shape: &[i64]) -> Described {
        Described { name: name.into(), datatype: datatype.into(), shape: shape.into() }
    }

    struct Case {
        what: &'static str,
        input: Described,
        max_batch_size: Option<i64>,
        rows: usize,
    }

    #[test]
    fn rows_follow_the_configuration_and_the_shapes() {
        let case = |what, datatype, shape: &[i64], max_batch_size, rows| Case {
            what,
            input: described("a", datatype, shape),
            max_batch_size,
            rows,
        };
        for Case { what, input, max_batch_size, rows } in [
            case("batching of one row", "INT64", &[-1, -1], Some(1), 1),
            case("batching", "INT64", &[-1, -1], Some(8), 8),
            case("batching without end", "INT64", &[-1, -1], Some(1024), 32),
            case("an axis of the model's own", "INT64", &[-1, -1], Some(0), 32),
            case("one fixed row", "INT32", &[1, 256], Some(0), 1),
            case("four fixed rows", "INT32", &[4, 256], Some(0), 4),
            case("no axis for rows", "INT64", &[-1], Some(0), 1),
            case("texts", "BYTES", &[-1], Some(0), 32),
            case("texts in batches", "BYTES", &[-1, 1], Some(4), 4),
            case("no configuration", "INT64", &[-1, -1], None, 32),
        ] {
            let description = Description {
                inputs: vec![input],
                outputs: vec![described("b", "FP16", &[-1, 3])],
                max_batch_size,
                is_decoupled: false,
                parameters: Parameters::new(),
            };
            let interface = Interface::of("m", &description).unwrap();
            assert_eq!(interface.schedule.max_batch_size.get(), rows, "{what}");
        }
    }

    #[test]
    fn models_of_another_kind_are_refused() {
        let mut description = Description {
            inputs: vec![described("a", "UINT64", &[-1])],
            outputs: Vec::new(),
            max_batch_size: None,
            is_decoupled: false,
            parameters: Parameters::new(),
        };
        let error = Interface::of("m", &description).unwrap_err();
        insta::assert_snapshot!(error, @"expected the tensors of `m` on the fleet to be numbers or BYTES, but found `a` as UINT64");
        description.is_decoupled = true;
        let error = Interface::of("m", &description).unwrap_err();
        insta::assert_snapshot!(error, @"expected `m` on the fleet to answer once, but it is decoupled");
    }
}
