//! Microseconds per text for an encoder with the dimensions of all-MiniLM-L6-v2 and random weights, which computes packed
//! texts on one thread: for a whole run, and for each kind of operation.
//!
//! `cargo run --release --package kivu-engine --example texts -- INSTRUCTIONS [TEXTS [TOKENS [REPETITIONS]]]` measures one
//! kernel; TOKENS is a length, or a range such as `8-24`, whose lengths take turns. By default there are 32 texts of 10
//! tokens.
//!
//! Parts are measured with a stage per operation, so their sum exceeds the time of a whole run, whose stages have
//! several. The medians and minima of many repetitions; compare two programs by alternating them.

#![expect(clippy::print_stdout, reason = "a program that prints its results")]

mod random;

use std::{env, num::NonZeroUsize, ops::RangeInclusive, time::Instant};

use kivu_engine::{
    kernel::InstructionSet,
    program::{
        Activation, Attention, AttentionWindow, DistanceBias, Index, Limits, Linear, Load, Per,
        Pooling, Program, RowOperation, RowStage, Stage, Table, Value, ValueId, View,
    },
    run::{Run, Scratch, Text, Token, Values},
};

const LAYERS: usize = 6;
const HEADS: usize = 12;
const WIDTH: usize = 384;
const INNER: usize = 4 * WIDTH;
const IDS: usize = 30_522;
const POSITIONS: usize = 512;

/// Values; each has a slot of its own, which all layers use.
const HIDDEN: ValueId = 0;
const PROJECTED: ValueId = 1;
const CONTEXTS: ValueId = 2;
const OUTPUT: ValueId = 3;
const NORMALIZED: ValueId = 4;
const ACTIVATED: ValueId = 5;
const SECOND: ValueId = 6;
const EMBEDDING: ValueId = 7;
const WIDTHS: [usize; 8] = [WIDTH, 3 * WIDTH, WIDTH, WIDTH, WIDTH, INNER, WIDTH, WIDTH];

/// What an operation is for; the order of the results.
const PARTS: [&str; 8] = [
    "embeddings",
    "queries, keys and values",
    "attention",
    "output layer, heads joined",
    "sum and normalization",
    "first layer with GELU",
    "second layer",
    "pooling",
];

/// An operation, and its place in [`PARTS`].
enum Operation {
    Row(usize, RowOperation),
    Attention(Attention),
}

/// An encoder's operations on tokens. A fitted model's layers scale their inputs.
fn operations() -> Vec<Operation> {
    let random = &mut fastrand::Rng::with_seed(1);
    let mut operations = Vec::new();
    let tables = [
        (IDS, Index::Id, HIDDEN),
        (2, Index::Type, OUTPUT),
        (POSITIONS, Index::Position, SECOND),
    ];
    for (rows, index, out) in tables {
        let table = match index {
            Index::Id => Table::Int8(
                (0..rows * WIDTH)
                    .map(|_| random.i8(..))
                    .collect::<Vec<_>>()
                    .into(),
                vec![0.01; rows].into(),
            ),
            Index::Type | Index::Position => {
                Table::Fp32(random::numbers(random, rows * WIDTH).into())
            }
        };
        operations.push(Operation::Row(
            0,
            RowOperation::Lookup { table, index, out },
        ));
    }
    let sum = RowOperation::Add {
        inputs: [HIDDEN, OUTPUT],
        out: NORMALIZED,
    };
    operations.push(Operation::Row(0, sum));
    operations.push(Operation::Row(
        0,
        normalize(random, NORMALIZED, SECOND, HIDDEN),
    ));
    for _ in 0..LAYERS {
        operations.push(Operation::Row(1, linear(random, HIDDEN, PROJECTED)));
        operations.push(Operation::Attention(attention()));
        operations.push(Operation::Row(3, linear(random, CONTEXTS, OUTPUT)));
        operations.push(Operation::Row(
            4,
            normalize(random, OUTPUT, HIDDEN, NORMALIZED),
        ));
        operations.push(Operation::Row(5, linear(random, NORMALIZED, ACTIVATED)));
        operations.push(Operation::Row(6, linear(random, ACTIVATED, SECOND)));
        operations.push(Operation::Row(
            4,
            normalize(random, SECOND, NORMALIZED, HIDDEN),
        ));
    }
    operations
}

fn linear(random: &mut fastrand::Rng, input: ValueId, out: ValueId) -> RowOperation {
    let [inputs, outputs] = [input, out].map(|value| WIDTHS[value]);
    let activation = (out == ACTIVATED).then_some(Activation::Gelu);
    let layer = random::linear(random, [inputs, outputs], activation);
    RowOperation::Linear {
        input,
        layer: Linear {
            scaling: Some(random::scaling(random, inputs)),
            ..layer
        },
        out,
    }
}

fn normalize(
    random: &mut fastrand::Rng,
    value: ValueId,
    residual: ValueId,
    out: ValueId,
) -> RowOperation {
    RowOperation::Norm {
        input: View {
            value,
            offset: 0,
            width: WIDTH,
        },
        residual: Some(residual),
        norm: random::norm(random, WIDTH, 1e-12),
        out,
    }
}

fn attention() -> Attention {
    let part = |part| View {
        value: PROJECTED,
        offset: part * WIDTH,
        width: WIDTH,
    };
    Attention {
        queries: part(0),
        keys: part(1),
        values: part(2),
        heads: HEADS,
        key_heads: HEADS,
        scale: 1.0 / ((WIDTH / HEADS) as f32).sqrt(),
        cap: None,
        sinks: None,
        rotary: None,
        window: AttentionWindow::ALL,
        bias: DistanceBias::None,
        out: CONTEXTS,
    }
}

/// The encoder, and each stage's place in [`PARTS`]. If `is_apart`, each operation has a stage, and all its values are
/// loaded and stored.
fn program(is_apart: bool) -> (Program, Vec<usize>) {
    let (mut stages, mut parts): (Vec<Stage>, Vec<usize>) = (Vec::new(), Vec::new());
    let load = |value: ValueId| Load {
        value,
        is_last: true,
        heads: (value == CONTEXTS).then_some(HEADS),
    };
    for operation in operations() {
        match operation {
            Operation::Attention(attention) => {
                stages.push(Stage::Attention(attention));
                parts.push(2);
            }
            Operation::Row(part, operation) => match stages.last_mut() {
                Some(Stage::Rows(stage)) if !is_apart => stage.operations.push(operation),
                _ => {
                    // Without an own stage per operation, stages begin and end next to attention.
                    let (loads, stores) = match (&operation, is_apart) {
                        (RowOperation::Linear { input, .. }, true) => (vec![*input], vec![*input]),
                        (RowOperation::Add { inputs, .. }, true) => {
                            (inputs.to_vec(), inputs.to_vec())
                        }
                        (
                            RowOperation::Norm {
                                input,
                                residual: Some(residual),
                                ..
                            },
                            true,
                        ) => (vec![input.value, *residual], vec![input.value, *residual]),
                        (RowOperation::Linear { .. }, false) => {
                            (vec![HIDDEN, CONTEXTS], vec![HIDDEN, PROJECTED])
                        }
                        (_, true) => (vec![], vec![]),
                        (_, false) => (vec![], vec![HIDDEN, PROJECTED]),
                    };
                    // Heads are joined into rows, but not divided again.
                    let kept = stores.into_iter().filter(|value| *value != CONTEXTS);
                    let out = is_apart.then(|| operation.output());
                    stages.push(Stage::Rows(RowStage {
                        per: Per::Token,
                        loads: loads.into_iter().map(load).collect(),
                        stores: kept.chain(out).collect(),
                        operations: vec![operation],
                    }));
                    parts.push(part);
                }
            },
        }
    }
    if let Some(Stage::Rows(last)) = stages.last_mut()
        && !is_apart
    {
        last.stores = vec![HIDDEN];
    }
    let pool = RowOperation::Pool {
        pooling: Pooling::Mean,
        input: HIDDEN,
        out: EMBEDDING,
    };
    stages.push(Stage::Rows(RowStage {
        per: Per::Text,
        loads: vec![],
        operations: vec![pool],
        stores: vec![EMBEDDING],
    }));
    parts.push(7);
    let per = |value| {
        if value == EMBEDDING {
            Per::Text
        } else {
            Per::Token
        }
    };
    let values = WIDTHS.iter().enumerate().map(|(slot, width)| Value {
        per: per(slot),
        width: *width,
        slot,
    });
    let program = Program {
        values: values.collect(),
        rotaries: Vec::new(),
        slots: WIDTHS.len(),
        stages,
        outputs: vec![EMBEDDING],
        limits: Limits {
            ids: IDS,
            types: 2,
            positions: POSITIONS,
            length: POSITIONS,
        },
        padding: None,
    };
    (program, parts)
}

fn texts(count: usize, tokens: RangeInclusive<usize>) -> Vec<Text> {
    let random = &mut fastrand::Rng::with_seed(2);
    let text = |length| {
        let token = |position| Token {
            id: random.u32(..IDS as u32),
            type_id: 0,
            position,
        };
        Text {
            tokens: (0..length as u32).map(token).collect(),
            attended: length,
            ..Text::default()
        }
    };
    tokens.cycle().take(count).map(text).collect()
}

/// Executes a run and returns the seconds of each part. Consecutive operations on rows pass each block, as within a stage.
fn execute(
    program: &Program,
    parts: &[usize],
    run: &Run,
    instructions: InstructionSet,
    scratch: &mut Scratch,
) -> [f64; PARTS.len()] {
    let mut seconds = [0.0; PARTS.len()];
    let per = |stage: &Stage| match stage {
        Stage::Rows(stage) => Some(stage.per),
        _ => None,
    };
    let mut first = 0;
    let mut last = Instant::now();
    for group in program
        .stages
        .chunk_by(|a, b| per(a) == per(b) && per(a).is_some())
    {
        for task in 0..run.tasks(&group[0]) {
            for (stage, part) in group.iter().zip(&parts[first..]) {
                run.execute(program, instructions, stage, task, scratch);
                let now = Instant::now();
                seconds[*part] += (now - last).as_secs_f64();
                last = now;
            }
        }
        first += group.len();
    }
    seconds
}

/// Median and minimum.
fn statistics(mut values: Vec<f64>) -> [f64; 2] {
    values.sort_by(f64::total_cmp);
    [values[values.len() / 2], values[0]]
}

fn main() {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let argument = |place: usize| arguments.get(place).map(String::as_str);
    let number =
        |text: Option<&str>, default| text.and_then(|text| text.parse().ok()).unwrap_or(default);
    let count: usize = number(argument(1), 32).max(1);
    let (shortest, longest) = match argument(2).and_then(|lengths| lengths.split_once('-')) {
        Some((shortest, longest)) => (number(Some(shortest), 1), number(Some(longest), POSITIONS)),
        None => (number(argument(2), 10), number(argument(2), 10)),
    };
    let texts = texts(count, shortest..=longest.clamp(shortest, POSITIONS));
    let repetitions: usize = number(argument(3), 50).max(1);
    let is_wanted = |it: &InstructionSet| argument(0).is_none_or(|wanted| wanted == it.name());
    for instructions in InstructionSet::available().filter(is_wanted) {
        let (mut scratch, mut bits) = (Scratch::default(), 0);
        let (mut whole, mut apart) = (Vec::new(), vec![Vec::new(); PARTS.len()]);
        for is_apart in [false, true] {
            let (program, places) = program(is_apart);
            // Runs reuse the memory of earlier ones, as in a server.
            let mut memory = Values::new();
            for _ in 0..=repetitions {
                let start = Instant::now();
                let run = program.pack(texts.iter(), NonZeroUsize::MIN, memory);
                let parts = execute(&program, &places, &run, instructions, &mut scratch);
                if is_apart {
                    apart
                        .iter_mut()
                        .zip(parts)
                        .for_each(|(all, seconds)| all.push(seconds));
                } else {
                    whole.push(start.elapsed().as_secs_f64());
                    let outputs = (0..count)
                        .flat_map(|text| run.outputs(&program, text))
                        .flatten();
                    bits = outputs.fold(0, |sum: u64, value| {
                        sum.wrapping_mul(0x100_0000_01b3) ^ u64::from(value.to_bits())
                    });
                }
                memory = run.into_values();
            }
        }
        // The first repetition allocates.
        let per_text =
            |all: &[f64]| statistics(all[1..].iter().map(|it| it * 1e6 / count as f64).collect());
        let [median, least] = per_text(&whole);
        println!(
            "{instructions}, {count} texts of {shortest} to {longest} tokens: median {median:.1} µs per text, least {least:.1} \
             µs; bits {bits:016x}"
        );
        for (name, seconds) in PARTS.iter().zip(&apart) {
            let [median, least] = per_text(seconds);
            println!("  {name}: median {median:.2} µs, least {least:.2} µs");
        }
    }
}
