//! Divides a model's operations into stages, and assigns memory to their values.

use std::collections::{BTreeMap, BTreeSet};

use kivu_engine::program::{Attention, Largest, Load, Per, RowOperation, RowStage, Stage, Value, ValueId};

/// An operation, and the values that it reads and writes.
pub(super) enum Operation {
    Row(Per, RowOperation),
    Attention(Attention),
    Largest(Largest),
}

/// Divides operations into stages, which end where an operation needs rows that other threads may have computed.
pub(super) fn divide(operations: Vec<Operation>, outputs: &[ValueId]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for operation in operations {
        match operation {
            Operation::Attention(attention) => stages.push(Stage::Attention(attention)),
            Operation::Largest(largest) => stages.push(Stage::Largest(largest)),
            Operation::Row(per, operation) => {
                // A text block's tokens may be in several token blocks.
                let continues = !matches!(operation, RowOperation::Pool { .. });
                match stages.last_mut() {
                    Some(Stage::Rows(stage)) if stage.per == per && continues => {
                        stage.operations.push(operation)
                    }
                    _ => stages.push(Stage::Rows(RowStage {
                        per,
                        loads: Vec::new(),
                        operations: vec![operation],
                        stores: Vec::new(),
                    })),
                }
            }
        }
    }
    let heads: BTreeMap<ValueId, usize> = stages.iter().filter_map(heads_of).collect();
    // From the last stage to the first, so that the values that later stages read are known.
    let mut read_later: BTreeSet<ValueId> = outputs.iter().copied().collect();
    for stage in stages.iter_mut().rev() {
        match stage {
            Stage::Attention(attention) => {
                let views = [attention.queries, attention.keys, attention.values];
                read_later.extend(views.map(|view| view.value));
            }
            Stage::Largest(largest) => drop(read_later.insert(largest.input)),
            Stage::Rows(stage) => {
                let computed: BTreeSet<ValueId> = stage.operations.iter().map(RowOperation::output).collect();
                stage.stores = computed.intersection(&read_later).copied().collect();
                let mut read = BTreeSet::new();
                for operation in &stage.operations {
                    match *operation {
                        // Pooling reads the value's token blocks, since a text block's tokens may be in several.
                        RowOperation::Pool { input, .. } => drop(read_later.insert(input)),
                        _ => read.extend(operation.inputs()),
                    }
                }
                let loads = read.difference(&computed).map(|value| Load {
                    value: *value,
                    is_last: !read_later.contains(value),
                    heads: heads.get(value).copied(),
                });
                stage.loads = loads.collect();
                read_later.extend(stage.loads.iter().map(|load| load.value));
            }
        }
    }
    stages
}

/// Attention output, and the head count that it is divided by.
fn heads_of(stage: &Stage) -> Option<(ValueId, usize)> {
    match stage {
        Stage::Attention(attention) => Some((attention.out, attention.heads)),
        Stage::Rows(_) | Stage::Largest(_) => None,
    }
}

/// Assigns memory slots to values: a value reuses the slot of one that no later operation reads. Returns the slot
/// count.
pub(super) fn assign_slots(values: &mut [Value], stages: &[Stage], outputs: &[ValueId]) -> usize {
    // The values that each operation reads, and the one that it writes.
    let mut operations: Vec<(Vec<ValueId>, ValueId)> = Vec::new();
    let mut is_of_attention = vec![false; values.len()];
    for stage in stages {
        match stage {
            Stage::Attention(Attention { queries, keys, values, out, .. }) => {
                is_of_attention[*out] = true;
                operations.push(([queries, keys, values].map(|view| view.value).into(), *out));
            }
            Stage::Largest(Largest { input, out, .. }) => operations.push((vec![*input], *out)),
            Stage::Rows(stage) => {
                operations.extend(stage.operations.iter().map(|it| (it.inputs(), it.output())));
            }
        }
    }
    let mut last_read = vec![0; values.len()];
    for (place, (inputs, _)) in operations.iter().enumerate() {
        inputs.iter().for_each(|input| last_read[*input] = place);
    }
    outputs.iter().for_each(|output| last_read[*output] = usize::MAX);
    let (mut slots, mut free) = (0, Vec::new());
    for (place, (inputs, out)) in operations.iter().enumerate() {
        // Attention divides its output by heads, not by row blocks.
        let shape = |value: ValueId| (values[value].per, values[value].width, is_of_attention[value]);
        let found = free.iter().position(|value| shape(*value) == shape(*out));
        let slot = match found.map(|index| free.swap_remove(index)) {
            Some(value) => values[value].slot,
            None => {
                slots += 1;
                slots - 1
            }
        };
        values[*out].slot = slot;
        let unused: BTreeSet<ValueId> =
            inputs.iter().copied().filter(|input| last_read[*input] == place).collect();
        free.extend(unused);
    }
    slots
}
