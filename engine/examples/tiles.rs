//! Products per cycle for each kernel that this processor can execute, with operands in its caches: of tiles, and of whole
//! linear layers by block size, quantization included. The best of many short repetitions, which hardly depends on what
//! else the machine does.
//!
//! `cargo run --release --package kivu-engine --example tiles -- INSTRUCTIONS` measures one kernel, also `portable`.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

use std::{env, hint::black_box, num::NonZeroUsize, time::Instant};

use kivu_engine::{
    kernel::{
        Block, COLUMNS, GROUP, InstructionSet, Kernel, KernelFn, LANES, MAX_ROWS, MAX_TILE_ROWS,
        Panel, Rows,
    },
    program::{
        Index, InputScaling, Limits, Linear, Per, Program, RowOperation, RowStage, Stage, Table,
        Value,
    },
    run::{Scratch, Text, Token},
};

const REPETITIONS: usize = 2000;
/// Panels per repetition, an even number.
const PANELS: usize = 8;
/// Products per repetition.
const PRODUCTS: usize = 20;

/// The least duration of a call, in nanoseconds.
fn least(mut call: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        call();
        start.elapsed().as_nanos() as f64
    };
    (0..REPETITIONS).map(time).fold(f64::INFINITY, f64::min)
}

/// Nanoseconds per cycle: dependent multiplications take three cycles each on current x86-64 and arm64 processors.
fn cycle() -> f64 {
    const COUNT: usize = 10_000;
    let factor = black_box(3_u64);
    let chain = || {
        (0..COUNT).fold(black_box(1_u64), |product, _| {
            black_box(factor).wrapping_mul(product)
        })
    };
    let nanoseconds = least(|| {
        black_box(chain());
    });
    nanoseconds / (3 * COUNT) as f64
}

/// 8-bit products per nanosecond: rows by [`PANELS`] panels.
#[derive(Clone, Copy)]
struct Tiles {
    rows: usize,
    inputs: usize,
}

impl KernelFn for Tiles {
    type Output = f64;

    fn call<K: Kernel>(self, kernel: K) -> f64 {
        let Self { rows, inputs } = self;
        let depth = inputs / GROUP;
        let blocks: Vec<Block> = (0..PANELS * depth)
            .map(|at| [[(at % 100) as i8 - 50; GROUP]; LANES])
            .collect();
        let row_size = inputs * K::ACTIVATION_SIZE + K::ROW_END_SIZE;
        let activations = vec![7; rows * row_size];
        let mut out = [[[0; LANES]; 2]; MAX_TILE_ROWS];
        let panel = |at: usize| Panel {
            blocks: &blocks[at * depth..][..depth],
            column_sums: &[0; LANES],
        };
        let nanoseconds = least(|| {
            for first in (0..PANELS).step_by(2) {
                for tile in activations.chunks(K::TILE_ROWS * row_size) {
                    kernel.tile(
                        tile,
                        [panel(first), panel(first + 1)],
                        &mut out[..tile.len() / row_size],
                    );
                }
            }
            black_box(&out);
        });
        (rows * inputs * PANELS * LANES) as f64 / nanoseconds
    }
}

/// The same with the kernel for weights with small quads.
struct SmallQuads(Tiles);

impl KernelFn for SmallQuads {
    type Output = f64;

    fn call<K: Kernel>(self, kernel: K) -> f64 {
        kernel.call_for_small_quads(self.0)
    }
}

/// `f32` products per nanosecond.
struct Products {
    rows: usize,
    depth: usize,
}

impl KernelFn for Products {
    type Output = f64;

    fn call<K: Kernel>(self, kernel: K) -> f64 {
        let Self { rows, depth } = self;
        let (a, b) = (vec![1.0; rows * depth], vec![1.0; depth * COLUMNS]);
        let mut out = [[[0.0; LANES]; 2]; MAX_ROWS];
        let nanoseconds = least(|| {
            for _ in 0..PRODUCTS {
                let (a, b) = (Rows::new(&a, depth), Rows::new(&b, COLUMNS));
                kernel.product(depth, a, b, &mut out[..rows]);
            }
            black_box(&out);
        });
        (PRODUCTS * rows * depth * COLUMNS) as f64 / nanoseconds
    }
}

/// Layers per repetition, which read the same rows.
const LAYERS: usize = 4;

/// 8-bit products per nanosecond of linear layers on 48 rows, whose inputs have factors and offsets as in fitted layers.
fn layers(instructions: InstructionSet, [inputs, outputs, block]: [usize; 3]) -> f64 {
    let mut random = fastrand::Rng::with_seed(1);
    let mut numbers = |count: usize| {
        (0..count)
            .map(|_| random.f32() * 2.0 - 1.0)
            .collect::<Vec<f32>>()
    };
    let (columns, panels) = (inputs / LANES, outputs / LANES);
    let blocks = panels * inputs / block;
    let weights: Vec<Block> = (0..panels * inputs / GROUP)
        .map(|at| [[(at % 100) as i8 - 50; GROUP]; LANES])
        .collect();
    let scaling = InputScaling {
        factors: vec![[1.5; LANES]; columns].into(),
        offsets: vec![[0.1; LANES]; columns].into(),
    };
    let layer = || Linear {
        name: "layer".to_owned(),
        inputs,
        block,
        outputs,
        scaling: Some(InputScaling {
            factors: scaling.factors.clone(),
            offsets: scaling.offsets.clone(),
        }),
        panels: weights.clone().into(),
        scales: vec![[0.01; LANES]; blocks].into(),
        sums: vec![[7; LANES]; blocks].into(),
        bias: vec![[0.5; LANES]; panels].into(),
        activation: None,
    };
    let table = Table::Fp32(numbers(MAX_TILE_ROWS * inputs).into());
    let mut operations = vec![RowOperation::Lookup {
        table,
        index: Index::Id,
        out: 0,
    }];
    operations.extend((0..LAYERS).map(|_| RowOperation::Linear {
        input: 0,
        layer: layer(),
        out: 1,
    }));
    let stage = Stage::Rows(RowStage {
        per: Per::Token,
        loads: vec![],
        operations,
        stores: vec![],
    });
    let value = |(slot, width)| Value {
        per: Per::Token,
        width,
        slot,
    };
    let program = Program {
        values: [inputs, outputs]
            .into_iter()
            .enumerate()
            .map(value)
            .collect(),
        rotaries: vec![],
        slots: 2,
        stages: vec![stage],
        outputs: vec![],
        limits: Limits {
            ids: MAX_TILE_ROWS,
            types: 1,
            positions: MAX_TILE_ROWS,
            length: MAX_TILE_ROWS,
        },
        padding: None,
    };
    let tokens = (0..MAX_TILE_ROWS as u32).map(|id| Token {
        id,
        type_id: 0,
        position: id,
    });
    let text = Text {
        tokens: tokens.collect(),
        attended: MAX_TILE_ROWS,
        ..Text::default()
    };
    let run = program.pack([&text].into_iter(), NonZeroUsize::MIN, Vec::new());
    let mut scratch = Scratch::default();
    let nanoseconds =
        least(|| run.execute(&program, instructions, &program.stages[0], 0, &mut scratch));
    (LAYERS * MAX_TILE_ROWS * inputs * outputs) as f64 / nanoseconds
}

fn main() {
    let cycle = cycle();
    println!("{:.2} GHz", 1.0 / cycle);
    let wanted = env::args().nth(1);
    // The portable kernel is the reference of the others, a hundred times slower.
    let is_wanted = |it: &InstructionSet| match &wanted {
        Some(wanted) => wanted == it.name(),
        None => it.name() != "portable",
    };
    for instructions in InstructionSet::available().filter(is_wanted) {
        for (rows, inputs) in [
            (48, 384),
            (48, 1536),
            (24, 384),
            (12, 384),
            (1, 384),
            (48, 32),
        ] {
            let tiles = Tiles { rows, inputs };
            let rate = instructions.call(tiles) * cycle;
            println!(
                "{instructions}, 8 bits, {rows} rows, {inputs} inputs: {rate:.1} products per cycle"
            );
            let rate = instructions.call(SmallQuads(tiles)) * cycle;
            println!("  with small quads: {rate:.1} products per cycle");
        }
        for (rows, depth) in [(8, 32), (8, 256), (12, 384)] {
            let rate = instructions.call(Products { rows, depth }) * cycle;
            println!(
                "{instructions}, fp32, {rows} rows, depth {depth}: {rate:.1} products per cycle"
            );
        }
        for [inputs, outputs] in [[384, 1152], [384, 384], [1536, 384]] {
            let blocks = [inputs, inputs / 2, inputs / 4, 128, 96, 64, 48, 32];
            let rates = blocks.map(|block| {
                format!(
                    "{block}: {:.1}",
                    layers(instructions, [inputs, outputs, block]) * cycle
                )
            });
            println!(
                "{instructions}, layer of {inputs} × {outputs}, by block: {}",
                rates.join(", ")
            );
        }
    }
}
