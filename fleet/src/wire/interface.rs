//! A fleet model's signature, batch size and parameters, from the server's description.

use std::num::NonZeroUsize;

use super::{codec, messages::TensorMetadata, protocol::Description};
use kivu_base::{Error, Result, tensor::ElementType};
use kivu_core::backend::{Interface, Schedule, Signature, TensorSpec};

/// Rows per batch if the model sets no limit: enough for a GPU, with little padding.
const MAX_BATCH_SIZE: usize = 32;
/// Concurrent batches per request: some run while others are in transit.
const CONCURRENCY: NonZeroUsize = NonZeroUsize::new(4).unwrap();

/// A model's interface. Refuses decoupled models, and tensors with unsupported types.
pub fn interface(model: &str, description: Description) -> Result<Interface> {
    let Description { metadata, config } = description;
    if config
        .transaction_policy
        .is_some_and(|policy| policy.decoupled)
    {
        return Err(Error::model(format!(
            "`{model}` on the fleet is decoupled, but has to send one response per request"
        )));
    }
    let signature = Signature {
        inputs: specs(model, &metadata.inputs)?,
        outputs: specs(model, &metadata.outputs)?,
    };
    let max_batch_size = max_batch_size(&signature, config.max_batch_size);
    let schedule = Schedule {
        max_batch_size,
        concurrency: CONCURRENCY,
        min_call_tokens: 0,
    };
    let parameters = config.parameters.into_iter();
    let parameters = parameters
        .map(|(name, parameter)| (name, parameter.string_value))
        .collect();
    Ok(Interface {
        signature,
        schedule,
        parameters,
    })
}

fn specs(model: &str, tensors: &[TensorMetadata]) -> Result<Vec<TensorSpec>> {
    let spec = |tensor: &TensorMetadata| {
        let element_type = codec::element_type(&tensor.datatype).ok_or_else(|| {
            Error::model(format!(
                "expected the tensors of `{model}` on the fleet to be numbers or BYTES, but found `{}` as {}",
                tensor.name, tensor.datatype
            ))
        })?;
        Ok(TensorSpec::new(
            tensor.name.clone(),
            element_type,
            tensor.shape.clone(),
        ))
    };
    tensors.iter().map(spec).collect()
}

/// The batch size that the shapes fix, or the `configured` one, which is 0 if the server sets none.
fn max_batch_size(signature: &Signature, configured: i32) -> NonZeroUsize {
    let batch_axis = |spec: &TensorSpec| match spec.shape[..] {
        // A one-axis tensor has tokens if it contains numbers, but batch rows if it contains strings.
        [side] if spec.element_type == ElementType::Bytes => side,
        [] | [_] => 1,
        [rows, ..] => rows,
    };
    let fixed = signature
        .inputs
        .iter()
        .map(batch_axis)
        .filter_map(|side| usize::try_from(side).ok())
        .min();
    let configured = usize::try_from(configured)
        .ok()
        .filter(|rows| *rows > 0)
        .unwrap_or(MAX_BATCH_SIZE);
    NonZeroUsize::new(fixed.unwrap_or(configured.min(MAX_BATCH_SIZE))).unwrap_or(NonZeroUsize::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::messages::{ModelConfig, ModelMetadata, TransactionPolicy};

    fn tensor(name: &str, datatype: &str, shape: &[i64]) -> TensorMetadata {
        TensorMetadata {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.into(),
        }
    }

    struct Case {
        what: &'static str,
        input: TensorMetadata,
        configured: i32,
        expected: usize,
    }

    #[test]
    fn the_batch_size_follows_the_configuration_and_the_shapes() {
        let case = |what, datatype, shape: &[i64], configured, expected| Case {
            what,
            input: tensor("a", datatype, shape),
            configured,
            expected,
        };
        for Case {
            what,
            input,
            configured,
            expected,
        } in [
            case("a limit of one row", "INT64", &[-1, -1], 1, 1),
            case("a limit of eight rows", "INT64", &[-1, -1], 8, 8),
            case("a large limit", "INT64", &[-1, -1], 1024, 32),
            case("no limit, or no configuration", "INT64", &[-1, -1], 0, 32),
            case("one fixed row", "INT32", &[1, 256], 0, 1),
            case("four fixed rows", "INT32", &[4, 256], 0, 4),
            case("no batch axis", "INT64", &[-1], 0, 1),
            case("texts", "BYTES", &[-1], 0, 32),
            case("texts in batches", "BYTES", &[-1, 1], 4, 4),
        ] {
            let outputs = vec![tensor("b", "FP16", &[-1, 3])];
            let config = ModelConfig {
                max_batch_size: configured,
                ..ModelConfig::default()
            };
            let metadata = ModelMetadata {
                inputs: vec![input],
                outputs,
            };
            let interface = interface("m", Description { metadata, config }).unwrap();
            assert_eq!(interface.schedule.max_batch_size.get(), expected, "{what}");
        }
    }

    #[test]
    fn unsupported_models_are_refused() {
        let metadata = ModelMetadata {
            inputs: vec![tensor("a", "UINT64", &[-1])],
            outputs: Vec::new(),
        };
        let description = Description {
            metadata,
            config: ModelConfig::default(),
        };
        let error = interface("m", description.clone()).unwrap_err();
        insta::assert_snapshot!(error, @"expected the tensors of `m` on the fleet to be numbers or BYTES, but found `a` as UINT64");
        let transaction_policy = Some(TransactionPolicy { decoupled: true });
        let config = ModelConfig {
            transaction_policy,
            ..ModelConfig::default()
        };
        let error = interface(
            "m",
            Description {
                config,
                ..description
            },
        )
        .unwrap_err();
        insta::assert_snapshot!(error, @"`m` on the fleet is decoupled, but has to send one response per request");
    }
}
