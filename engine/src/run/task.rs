//! Executes tasks with the processor's kernel.

use super::{
    HeadTask, Run, Scratch, Work, experts::pass_expert, heads::attend, largest::largest_outputs,
    rows::rows, spans::score_spans,
};
use crate::{
    kernel::{InstructionSet, Kernel, KernelFn},
    program::{Attention, ExpertStage, Largest, Program, RowStage, SpanHead, Stage},
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
        let work = Work {
            run: self,
            program,
            task,
            scratch,
        };
        // A function per kind of stage: in WebAssembly, functions are compiled when they are first called.
        match stage {
            Stage::Rows(stage) => instructions.call(Task { stage, work }),
            Stage::Attention(stage) => instructions.call_in_fp32(Task { stage, work }),
            Stage::Largest(stage) => instructions.call(Task { stage, work }),
            Stage::Spans(stage) => instructions.call_in_fp32(Task {
                stage: &**stage,
                work,
            }),
            Stage::Experts(stage) => instructions.call(Task { stage, work }),
        }
    }
}

/// A task that [`KernelFn`] calls with a kernel.
struct Task<'a, S> {
    stage: &'a S,
    work: Work<'a>,
}

impl KernelFn for Task<'_, RowStage> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        rows(kernel, self.stage, self.work);
    }
}

impl KernelFn for Task<'_, Attention> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let attention = self.stage;
        let Work {
            run,
            program,
            task,
            scratch,
        } = self.work;
        let HeadTask { text, part, parts } = run.heads[task];
        let heads = part * attention.heads / parts..(part + 1) * attention.heads / parts;
        for head in heads {
            attend(
                kernel,
                run,
                program,
                attention,
                text,
                head,
                &mut scratch.head,
            );
        }
    }
}

impl KernelFn for Task<'_, Largest> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        largest_outputs(kernel, self.stage, self.work);
    }
}

impl KernelFn for Task<'_, SpanHead> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        score_spans(kernel, self.stage, self.work);
    }
}

impl KernelFn for Task<'_, ExpertStage> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        pass_expert(kernel, self.stage, self.work);
    }
}
