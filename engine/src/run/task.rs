//! Executes tasks with the processor's kernel.

use super::{
    HeadTask, Run, Scratch, heads::attend, largest::largest_outputs, rows::rows, spans::score_spans,
};
use crate::{
    kernel::{InstructionSet, Kernel, KernelFn},
    program::{Program, Stage},
};

impl Run {
    /// Executes one task in a stage, after all tasks in earlier stages.
    pub fn execute(
        &self,
        program: &Program,
        instructions: InstructionSet,
        stage: &Stage,
        task: usize,
        scratch: &mut Scratch,
    ) {
        instructions.call(Task { run: self, program, stage, task, scratch });
    }
}

/// A task that [`KernelFn`] calls with a kernel.
struct Task<'a> {
    run: &'a Run,
    program: &'a Program,
    stage: &'a Stage,
    task: usize,
    scratch: &'a mut Scratch,
}

impl KernelFn for Task<'_> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self { run, program, stage, task, scratch } = self;
        match stage {
            Stage::Rows(stage) => rows(kernel, run, program, stage, task, scratch),
            Stage::Attention(attention) => {
                let HeadTask { text, part, parts } = run.heads[task];
                let heads = part * attention.heads / parts..(part + 1) * attention.heads / parts;
                for head in heads {
                    attend(kernel, run, program, attention, (text, head), &mut scratch.head);
                }
            }
            Stage::Largest(largest) => largest_outputs(kernel, run, program, (largest, task), scratch),
            Stage::Spans(head) => score_spans(kernel, run, program, (head, task), scratch),
        }
    }
}
