//! Executes tasks with the processor's kernel.

use super::{
    HeadTask, Run, Scratch, experts::pass_expert, heads::attend, largest::largest_outputs,
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
        // A function per kind of stage: in WebAssembly, functions are compiled when they are first called.
        match stage {
            Stage::Rows(stage) => instructions.call(Task {
                run: self,
                program,
                stage,
                task,
                scratch,
            }),
            Stage::Attention(stage) => instructions.call_in_fp32(Task {
                run: self,
                program,
                stage,
                task,
                scratch,
            }),
            Stage::Largest(stage) => instructions.call(Task {
                run: self,
                program,
                stage,
                task,
                scratch,
            }),
            Stage::Spans(stage) => {
                instructions.call_in_fp32(Task {
                    run: self,
                    program,
                    stage: &**stage,
                    task,
                    scratch,
                });
            }
            Stage::Experts(stage) => instructions.call(Task {
                run: self,
                program,
                stage,
                task,
                scratch,
            }),
        }
    }
}

/// A task that [`KernelFn`] calls with a kernel.
struct Task<'a, S> {
    run: &'a Run,
    program: &'a Program,
    stage: &'a S,
    task: usize,
    scratch: &'a mut Scratch,
}

impl KernelFn for Task<'_, RowStage> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        rows(
            kernel,
            self.run,
            self.program,
            self.stage,
            self.task,
            self.scratch,
        );
    }
}

impl KernelFn for Task<'_, Attention> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        let Self {
            run,
            program,
            stage: attention,
            task,
            scratch,
        } = self;
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
        largest_outputs(
            kernel,
            self.run,
            self.program,
            self.stage,
            self.task,
            self.scratch,
        );
    }
}

impl KernelFn for Task<'_, SpanHead> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        score_spans(
            kernel,
            self.run,
            self.program,
            self.stage,
            self.task,
            self.scratch,
        );
    }
}

impl KernelFn for Task<'_, ExpertStage> {
    type Output = ();

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) {
        pass_expert(
            kernel,
            self.run,
            self.program,
            self.stage,
            self.task,
            self.scratch,
        );
    }
}
