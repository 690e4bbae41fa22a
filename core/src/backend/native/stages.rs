//! Divides a model's operations into stages, and assigns memory to their values.

use std::collections::{BTreeMap, BTreeSet};

use kivu_engine::program::{
    Attention, ExpertStage, Largest, Load, Per, RowOperation, RowStage, SpanHead, Stage, Value,
    ValueId,
};

/// An operation, and the values that it reads and writes.
pub enum Operation {
    Row(Per, RowOperation),
    Attention(Attention),
    Largest(Largest),
    Spans(Box<SpanHead>),
    Experts(ExpertStage),
}

/// Divides operations into stages, which end where an operation needs rows that other threads may have computed.
pub fn divide(operations: Vec<Operation>, outputs: &[ValueId]) -> Vec<Stage> {
    let mut stages: Vec<Stage> = Vec::new();
    for operation in operations {
        match operation {
            Operation::Attention(attention) => stages.push(Stage::Attention(attention)),
            Operation::Largest(largest) => stages.push(Stage::Largest(largest)),
            Operation::Spans(spans) => stages.push(Stage::Spans(spans)),
            Operation::Experts(experts) => stages.push(Stage::Experts(experts)),
            Operation::Row(per, operation) => {
                let continues = !operation.reads_other_rows();
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
            Stage::Spans(spans) => drop(read_later.insert(spans.input)),
            Stage::Experts(experts) => read_later.extend([experts.input, experts.choices]),
            Stage::Rows(stage) => {
                let computed: BTreeSet<ValueId> =
                    stage.operations.iter().map(RowOperation::output).collect();
                stage.stores = computed.intersection(&read_later).copied().collect();
                let mut read = BTreeSet::new();
                for operation in &stage.operations {
                    match operation.reads_other_rows() {
                        // Read from other rows' blocks, so earlier stages have to store them.
                        true => read_later.extend(operation.inputs()),
                        false => read.extend(operation.inputs()),
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
        Stage::Rows(_) | Stage::Largest(_) | Stage::Spans(_) | Stage::Experts(_) => None,
    }
}

/// Assigns memory slots to values: a value reuses the slot of one that no later operation reads. Returns the slot
/// count.
pub fn assign_slots(values: &mut [Value], stages: &[Stage], outputs: &[ValueId]) -> usize {
    // The values that each operation reads, and the one that it writes.
    let mut operations: Vec<(Vec<ValueId>, ValueId)> = Vec::new();
    let mut is_divided = vec![false; values.len()];
    // The last operation of a stage that reads a value's other rows: until then, no block may replace them.
    let mut read_until = vec![0; values.len()];
    for stage in stages {
        match stage {
            Stage::Attention(Attention {
                queries,
                keys,
                values,
                out,
                ..
            }) => {
                is_divided[*out] = true;
                operations.push(([queries, keys, values].map(|view| view.value).into(), *out));
            }
            Stage::Largest(Largest { input, out, .. }) => operations.push((vec![*input], *out)),
            Stage::Spans(head) => operations.push((vec![head.input], head.out)),
            Stage::Experts(experts) => {
                is_divided[experts.out] = true;
                operations.push((vec![experts.input, experts.choices], experts.out));
            }
            Stage::Rows(stage) => {
                let end = operations.len() + stage.operations.len() - 1;
                let others = stage.operations.iter().filter(|it| it.reads_other_rows());
                others
                    .flat_map(RowOperation::inputs)
                    .for_each(|input| read_until[input] = end);
                operations.extend(stage.operations.iter().map(|it| (it.inputs(), it.output())));
            }
        }
    }
    let mut last_read = read_until;
    for (place, (inputs, _)) in operations.iter().enumerate() {
        inputs
            .iter()
            .for_each(|input| last_read[*input] = last_read[*input].max(place));
    }
    outputs
        .iter()
        .for_each(|output| last_read[*output] = usize::MAX);
    let mut unused_after: Vec<Vec<ValueId>> = vec![Vec::new(); operations.len()];
    let read: BTreeSet<ValueId> = operations
        .iter()
        .flat_map(|(inputs, _)| inputs)
        .copied()
        .collect();
    for value in read
        .into_iter()
        .filter(|value| last_read[*value] < operations.len())
    {
        unused_after[last_read[value]].push(value);
    }
    let (mut slots, mut free) = (0, Vec::new());
    for (place, (_, out)) in operations.iter().enumerate() {
        // Attention divides its output by heads, and experts divide theirs by experts, not by row blocks.
        let shape = |value: ValueId| (values[value].per, values[value].width, is_divided[value]);
        let found = free.iter().position(|value| shape(*value) == shape(*out));
        let slot = match found.map(|index| free.swap_remove(index)) {
            Some(value) => values[value].slot,
            None => {
                slots += 1;
                slots - 1
            }
        };
        values[*out].slot = slot;
        free.extend(unused_after[place].iter().copied());
    }
    slots
}
