//! Milliseconds for the stages of a layer with DeBERTa's dimensions and random weights, on one thread: projections,
//! attention with distances, and the rest. The best of many repetitions, which hardly depends on what else the machine
//! does; the weights stay in the caches.
//!
//! `cargo run --package kivu-engine --example layer -- INSTRUCTIONS [TOKENS [REPETITIONS [HEADS]]]` measures one kernel;
//! DeBERTa-base has 12 heads, DeBERTa-large 16.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

mod random;

use std::{env, num::NonZeroUsize, time::Instant};

use kivu_engine::{
    kernel::{COLUMNS, InstructionSet},
    program::{
        Activation, Attention, AttentionWindow, DistanceBias, DistanceTables, DistanceVectors,
        Index, Limits, Load, Per, Program, RowOperation, RowStage, Stage, Table, Value, View,
    },
    run::{Run, Scratch, Text, Token},
};

/// Numbers per head.
const SIZE: usize = 64;
/// Distances on each side with columns of their own, as in 256 buckets; farther ones share them.
const NEAR: i32 = 128;
const FARTHEST: i32 = 511;

fn vectors(random: &mut fastrand::Rng, heads: usize) -> DistanceVectors {
    let column = |distance: i32| match distance.abs() - NEAR {
        ..=0 => (distance + 2 * NEAR) as u32,
        far => (2 * NEAR + distance.signum() * (NEAR + far / 4)) as u32,
    };
    let columns = (-FARTHEST..=FARTHEST).map(column).collect();
    let shape = [heads, (4 * NEAR as usize).div_ceil(COLUMNS), SIZE];
    let mut table =
        || Some(random::numbers(random, shape.iter().product::<usize>() * COLUMNS).into());
    let tables = DistanceTables {
        shape,
        keys: table(),
        queries: table(),
    };
    let Some(vectors) = DistanceVectors::new(columns, tables) else {
        unreachable!("tables that fit")
    };
    vectors
}

fn program(tokens: usize, heads: usize) -> Program {
    let random = &mut fastrand::Rng::with_seed(1);
    let width = SIZE * heads;
    let inner = 4 * width;
    let widths = [width, 3 * width, width, width, width, inner, width, width];
    let values = widths.iter().enumerate().map(|(slot, width)| Value {
        per: Per::Token,
        width: *width,
        slot,
    });
    let table = Table::Fp32(random::numbers(random, tokens * width).into());
    let mut layer = |input, sizes: [usize; 2], out| {
        let activation = (sizes[1] == 4 * sizes[0]).then_some(Activation::Gelu);
        RowOperation::Linear {
            input,
            layer: random::linear(random, sizes, activation),
            out,
        }
    };
    let projections = vec![
        RowOperation::Lookup {
            table,
            index: Index::Id,
            out: 0,
        },
        layer(0, [width, 3 * width], 1),
    ];
    let [output, first, second] = [
        layer(2, [width, width], 3),
        layer(4, [width, inner], 5),
        layer(5, [inner, width], 6),
    ];
    let mut norm = |value, residual, out| RowOperation::Norm {
        input: View {
            value,
            offset: 0,
            width,
        },
        residual: Some(residual),
        norm: random::norm(random, width, 1e-7),
        out,
    };
    let rest = vec![output, norm(3, 0, 4), first, second, norm(6, 4, 7)];
    let projected = |part| View {
        value: 1,
        offset: part * width,
        width,
    };
    let attention = Attention {
        queries: projected(0),
        keys: projected(1),
        values: projected(2),
        heads,
        key_heads: heads,
        scale: 0.07,
        cap: None,
        sinks: None,
        rotary: None,
        window: AttentionWindow::ALL,
        bias: DistanceBias::Vectors(vectors(random, heads)),
        out: 2,
    };
    let load = |value, joined| Load {
        value,
        is_last: false,
        heads: joined,
    };
    let stage = |loads, operations, stores| {
        Stage::Rows(RowStage {
            per: Per::Token,
            loads,
            operations,
            stores,
        })
    };
    Program {
        values: values.collect(),
        rotaries: Vec::new(),
        slots: widths.len(),
        stages: vec![
            stage(vec![], projections, vec![0, 1]),
            Stage::Attention(attention),
            stage(vec![load(0, None), load(2, Some(heads))], rest, vec![7]),
        ],
        outputs: vec![7],
        limits: Limits {
            ids: tokens,
            types: 1,
            positions: tokens,
            length: tokens,
        },
        padding: None,
    }
}

/// The least durations of the stages, in milliseconds.
fn measure(
    program: &Program,
    run: &Run,
    instructions: InstructionSet,
    repetitions: usize,
) -> [f64; 3] {
    let (mut least, mut scratch) = ([f64::INFINITY; 3], Scratch::default());
    for _ in 0..repetitions {
        for (stage, least) in program.stages.iter().zip(&mut least) {
            let start = Instant::now();
            (0..run.tasks(stage))
                .for_each(|task| run.execute(program, instructions, stage, task, &mut scratch));
            *least = least.min(start.elapsed().as_secs_f64() * 1e3);
        }
    }
    least
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let number = |place: usize, default| match arguments.get(place) {
        Some(text) => text.parse().unwrap_or(default),
        None => default,
    };
    let (tokens, repetitions) = (number(1, 128), number(2, 300));
    let program = program(tokens, number(3, 12));
    let token = |id| Token {
        id,
        type_id: 0,
        position: 0,
    };
    let text = Text {
        tokens: (0..tokens as u32).map(token).collect(),
        attended: tokens,
        ..Text::default()
    };
    let is_wanted =
        |it: &InstructionSet| arguments.first().is_none_or(|wanted| wanted == it.name());
    for instructions in InstructionSet::available().filter(is_wanted) {
        let run = program.pack([&text].into_iter(), NonZeroUsize::MIN, Vec::new());
        let [projections, attention, rest] = measure(&program, &run, instructions, repetitions);
        let bits = run
            .outputs(&program, 0)
            .concat()
            .iter()
            .fold(0_u64, |sum, value| {
                sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(value.to_bits())
            });
        println!(
            "{instructions}, {tokens} tokens: projections {projections:.3} ms, attention {attention:.3} ms, \
             rest {rest:.3} ms; bits {bits:016x}"
        );
    }
}
