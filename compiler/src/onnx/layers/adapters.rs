//! Adapters for tasks (LoRA): the products of narrow matrices, which a task in the request selects.
//!
//! They stay apart from the weights, in fp32: merged into them, each task would be a whole model. A matrix pair of rank 4
//! takes under 1 % of its layer's multiplications, and texts for different tasks run in one batch.

use kivu_engine::kernel::LANES;

use super::{Layers, Projection, TaskInput};
use crate::{
    files::weights::{Weight, Weights},
    onnx::{Value, functions},
};
use kivu::Result;

/// Names for a module's adapters: a matrix to narrow rows, or these rows for each id, and a matrix from them.
pub fn adapter_names(module: &str) -> [String; 3] {
    ["down", "rows", "up"].map(|part| format!("{module}.adapters.{part}"))
}

/// Name for a token type's vector for each task.
pub fn type_adapter_name(module: &str) -> String {
    format!("{module}.adapters")
}

impl Layers<'_> {
    /// Adds the product of a task's adapters to that of linear layers with the same input.
    pub fn adapt(
        &mut self,
        product: Value,
        projections: &[Projection],
        input: &Value,
        inputs: usize,
    ) -> Result<Value> {
        let Some(TaskInput { count, rank, .. }) = self.tasks else {
            return Ok(product);
        };
        let weights = self.weights;
        let (mut pairs, mut outputs) = (Vec::new(), 0);
        for Projection {
            name, outputs: own, ..
        } in projections
        {
            let [down, _, up] = adapter_names(name);
            if has(weights, &down) {
                let rows = count * rank;
                pairs.push((
                    weights.take(&down, &[rows, inputs])?,
                    weights.take(&up, &[rows, *own])?,
                    outputs,
                ));
            }
            outputs += own;
        }
        if pairs.is_empty() {
            return Ok(product);
        }
        // Joined layers have joined adapters, each for its own outputs.
        let (mut down, mut up) = (Vec::new(), Vec::new());
        for task in 0..count {
            for (of_input, of_outputs, first) in &pairs {
                let own = of_outputs.shape[1];
                for row in task * rank..(task + 1) * rank {
                    down.extend(&of_input.values[row * inputs..][..inputs]);
                    let start = up.len();
                    up.resize(start + outputs, 0.0);
                    up[start + first..][..own]
                        .copy_from_slice(&of_outputs.values[row * own..][..own]);
                }
            }
        }
        let numbers = pairs.len() * rank;
        let [name, _, up_name] = adapter_names(&projections[0].name);
        let down = self.graph.floats(&name, &[count * numbers, inputs], &down);
        let up = self
            .graph
            .floats(&up_name, &[count * numbers, outputs], &up);
        let [ids, mask, shape] = self.task_values(numbers, count * numbers);
        let inputs = [&product, input, &ids, &up, &mask, &shape, &down];
        Ok(self.graph.function("Adapted", inputs, functions::adapted))
    }

    /// Adds the product of a task's adapters to rows of an embedding table with the given number of rows and values.
    pub fn adapt_lookup(
        &mut self,
        sum: Value,
        module: &str,
        ids: &Value,
        [rows, width]: [usize; 2],
    ) -> Result<Value> {
        let Some(TaskInput { count, rank, .. }) = self.tasks else {
            return Ok(sum);
        };
        let [_, rows_name, up_name] = adapter_names(module);
        if !has(self.weights, &rows_name) {
            return Ok(sum);
        }
        let numbers = count * rank;
        let weights = self.weights;
        let narrow = weights.take(&rows_name, &[rows, numbers])?;
        let up = weights.take(&up_name, &[numbers, width])?;
        let padded = numbers.next_multiple_of(LANES);
        let mut values = vec![0.0; rows * padded];
        for (row, own) in values
            .chunks_exact_mut(padded)
            .zip(narrow.values.chunks_exact(numbers))
        {
            row[..numbers].copy_from_slice(own);
        }
        let narrow = self.look_up(
            &rows_name,
            &Weight {
                shape: vec![rows, padded],
                values,
            },
            ids,
        );
        let mut up = up.values.clone();
        up.resize(padded * width, 0.0);
        let up = self.graph.floats(&up_name, &[padded, width], &up);
        let [ids, mask, shape] = self.task_values(rank, padded);
        let inputs = [&sum, &narrow, &ids, &up, &mask, &shape];
        Ok(self
            .graph
            .function("AdaptedRows", inputs, functions::adapted_rows))
    }

    /// Adds a task's vector to all tokens.
    pub fn adapt_type(&mut self, sum: Value, module: &str, width: usize) -> Result<Value> {
        let Some(TaskInput { count, ids, .. }) = self.tasks.clone() else {
            return Ok(sum);
        };
        let name = type_adapter_name(module);
        if !has(self.weights, &name) {
            return Ok(sum);
        }
        let mut values = vec![0.0; width];
        values.extend(&self.weights.take(&name, &[count, width])?.values);
        let table = self.graph.floats(&name, &[count + 1, width], &values);
        let vector = self.graph.gather(&table, &ids);
        Ok(self.graph.add(&sum, &vector))
    }

    /// Task ids, the mask for rows of `width` values with `numbers` per task, and their shape.
    fn task_values(&mut self, numbers: usize, width: usize) -> [Value; 3] {
        let Some(TaskInput { ids, count, .. }) = self.tasks.clone() else {
            unreachable!("callers have tasks")
        };
        let mut mask = vec![0.0; (count + 1) * width];
        for task in 0..count {
            mask[(task + 1) * width + task * numbers..][..numbers].fill(1.0);
        }
        let mask = self.graph.floats(
            &format!("task_mask_{numbers}_{width}"),
            &[count + 1, width],
            &mask,
        );
        let shape = self.graph.integers(
            &format!("task_shape_{numbers}"),
            &[count as i64, numbers as i64],
        );
        [ids, mask, shape]
    }
}

/// Whether the body has a weight with this name.
fn has(weights: &Weights, name: &str) -> bool {
    weights.has(&format!("{}{name}", weights.prefix))
}
