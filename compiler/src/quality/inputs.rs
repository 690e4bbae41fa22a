//! Graph inputs outside a pipeline.

use kivu::{
    backend::{Signature, TASK_IDS, TensorSpec},
    error::{Error, Result},
    pipeline::POOLING_MASK,
    tensor::Tensor,
    tokenizer::Encoding,
};

/// Graph inputs for one text.
pub fn inputs(signature: &Signature, encoding: &Encoding) -> Result<Vec<Tensor>> {
    let shape = [1, encoding.len()];
    let tensor = |input: &TensorSpec| {
        let values = match input.name.as_str() {
            "input_ids" => encoding.ids.iter().map(|id| i64::from(*id)).collect(),
            "token_type_ids" | "words_mask" => {
                encoding.type_ids.iter().map(|id| i64::from(*id)).collect()
            }
            "attention_mask" => encoding.mask().collect(),
            POOLING_MASK => encoding.pooling_mask().collect(),
            TASK_IDS => vec![i64::from(encoding.task); encoding.len()],
            other => {
                return Err(Error::model(format!(
                    "expected inputs among `input_ids`, `attention_mask`, `token_type_ids`, `words_mask`, \
                     `{POOLING_MASK}`, `{TASK_IDS}`, but found `{other}`"
                )));
            }
        };
        Tensor::integers(input.element_type, shape, values)
    };
    signature.inputs.iter().map(tensor).collect()
}
