//! An encoder's operations return the same bits on every processor, which no test on one processor shows.

use std::{num::NonZeroUsize, sync::Arc};

use kivu_engine::{
    kernel::{COLUMNS, InstructionSet, LANES},
    program::*,
    rotary::{Lengths, Rotary, Settings},
    run::{Scratch, Text, Token},
};

const WIDTH: usize = 32;
const HEADS: usize = 2;
const IDS: usize = 50;
/// Not a multiple of the lane count.
const OUTPUTS: usize = 27;
/// On x86-64, by the reference in plain Rust.
const RECORDED: u64 = 0x0345_5af9_678f_a245;

/// Numbers from -1 to 1.
fn numbers(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

fn lanes(values: &[f32]) -> Vec<[f32; LANES]> {
    values.as_chunks().0.to_vec()
}

fn linear(
    random: &mut fastrand::Rng,
    (outputs, block): (usize, usize),
    activation: Option<Activation>,
) -> Linear {
    let panels: Vec<[[i8; 4]; LANES]> = (0..outputs / LANES * WIDTH / 4)
        .map(|_| std::array::from_fn(|_| std::array::from_fn(|_| random.i8(..))))
        .collect();
    // Weight sum per block.
    let sum = |weights: &[[[i8; 4]; LANES]], output: usize| {
        weights
            .iter()
            .flat_map(|weights| weights[output])
            .map(i32::from)
            .sum()
    };
    let sums: Vec<[i32; LANES]> = panels
        .chunks_exact(block / 4)
        .map(|weights| std::array::from_fn(|output| sum(weights, output)))
        .collect();
    Linear {
        name: "layer".to_owned(),
        scaling: None,
        inputs: WIDTH,
        block,
        outputs,
        sums: sums.into(),
        panels: panels.into(),
        scales: vec![[0.002; LANES]; outputs / LANES * WIDTH / block].into(),
        bias: lanes(&numbers(random, outputs)).into(),
        activation,
    }
}

fn angles(amplitude: f32, lengths: Lengths) -> Settings {
    let frequencies = (0..WIDTH / HEADS / 2)
        .map(|at| 0.5_f32.powi(at as i32))
        .collect();
    Settings {
        frequencies,
        amplitude,
        lengths,
        growth: None,
    }
}

/// Embeddings, attention with rotary positions and a window, a blockwise gated layer, head normalization, residuals,
/// and the poolings: mean with an fp32 layer, first and last token, and a layer's per-output maximum.
#[expect(clippy::too_many_lines, reason = "a list of stages")]
fn program(activation: Activation) -> Program {
    use RowOperation::{
        Activation as Activate, Add, Dense as Project, Gate, Lookup, Norm as Normalize, Pool,
    };
    let random = &mut fastrand::Rng::with_seed(7);
    // Per-text values are the last five.
    let mut widths = [WIDTH; 15];
    (widths[1], widths[5], widths[11], widths[13]) = (3 * WIDTH, 2 * WIDTH, OUTPUTS, OUTPUTS);
    let per = |id| if id < 10 { Per::Token } else { Per::Text };
    let values = widths.iter().enumerate().map(|(id, width)| Value {
        per: per(id),
        width: *width,
        slot: id,
    });
    let norm = |random: &mut fastrand::Rng| {
        let mut row = || lanes(&numbers(random, WIDTH)).into();
        Norm {
            centers: true,
            scales: true,
            gain: row(),
            bias: row(),
            epsilon: 1e-5,
        }
    };
    let of_heads = |random: &mut fastrand::Rng| {
        let mut part = || lanes(&numbers(random, WIDTH / HEADS)).into();
        Norm {
            centers: false,
            scales: true,
            gain: part(),
            bias: part(),
            epsilon: 1e-6,
        }
    };
    let layer = |random: &mut fastrand::Rng, input, size, activation, out| RowOperation::Linear {
        input,
        layer: linear(random, size, activation),
        out,
    };
    let table = Table::Fp32(numbers(random, IDS * WIDTH).into());
    let all = |value| View {
        value,
        offset: 0,
        width: WIDTH,
    };
    let projected = |part| View {
        value: 1,
        offset: part * WIDTH,
        width: WIDTH,
    };
    let load = |value, heads| Load {
        value,
        is_last: true,
        heads,
    };
    let stage = |per, loads, operations, stores| {
        Stage::Rows(RowStage {
            per,
            loads,
            operations,
            stores,
        })
    };
    let first = vec![
        Lookup {
            table,
            index: Index::Id,
            out: 0,
        },
        layer(random, 0, (3 * WIDTH, WIDTH), None, 1),
    ];
    let attention = Attention {
        queries: projected(0),
        keys: projected(1),
        values: projected(2),
        heads: HEADS,
        key_heads: HEADS,
        scale: 0.25,
        cap: None,
        sinks: None,
        rotary: Some(0),
        window: AttentionWindow {
            before: 20,
            after: 20,
        },
        bias: DistanceBias::None,
        out: 2,
    };
    let second = vec![
        layer(random, 2, (WIDTH, WIDTH), Some(activation), 3),
        Normalize {
            input: all(3),
            residual: Some(0),
            norm: norm(random),
            out: 4,
        },
        layer(random, 4, (2 * WIDTH, WIDTH / 2), None, 5),
        Gate {
            function: activation,
            activates_second: false,
            input: 5,
            out: 6,
        },
        Normalize {
            input: View {
                value: 5,
                offset: WIDTH,
                width: WIDTH,
            },
            residual: Some(6),
            norm: of_heads(random),
            out: 7,
        },
        Add {
            inputs: [7, 4],
            out: 8,
        },
        Activate {
            function: activation,
            input: 8,
            out: 9,
        },
    ];
    let (weights, bias) = (numbers(random, WIDTH * OUTPUTS), numbers(random, OUTPUTS));
    let layer = Dense {
        outputs: OUTPUTS,
        panel: OUTPUTS,
        weights: weights.into(),
        bias: Some(bias.into()),
    };
    let pooled = vec![
        Pool {
            pooling: Pooling::Mean,
            input: 9,
            out: 10,
        },
        Project {
            input: 10,
            layer,
            out: 11,
        },
    ];
    let largest = Largest {
        input: 9,
        layer: Layer::Int8(linear(random, (WIDTH, WIDTH), None)),
        out: 13,
    };
    Program {
        values: values.collect(),
        rotaries: vec![Rotary::new(angles(1.0, Lengths::Alike))],
        slots: widths.len(),
        stages: vec![
            stage(Per::Token, vec![], first, vec![0, 1]),
            Stage::Attention(attention),
            stage(
                Per::Token,
                vec![load(0, None), load(2, Some(HEADS))],
                second,
                vec![9],
            ),
            stage(Per::Text, vec![], pooled, vec![11]),
            stage(
                Per::Text,
                vec![],
                vec![Pool {
                    pooling: Pooling::First,
                    input: 9,
                    out: 12,
                }],
                vec![12],
            ),
            stage(
                Per::Text,
                vec![],
                vec![Pool {
                    pooling: Pooling::Last,
                    input: 9,
                    out: 14,
                }],
                vec![14],
            ),
            Stage::Largest(largest),
        ],
        outputs: vec![11, 12, 13, 14],
        limits: Limits {
            ids: IDS,
            types: 1,
            positions: 512,
            length: 512,
        },
        padding: None,
    }
}

/// On x86-64, by the reference in plain Rust.
const RECORDED_DISTANCES: u64 = 0x55b3_398c_4f3b_6be0;

/// DeBERTa's attention, with far distances that share vectors, and its convolution.
#[expect(
    clippy::unwrap_used,
    reason = "a test that meets what it does not expect fails"
)]
fn program_with_distances() -> Program {
    use RowOperation::{Dense as Project, Lookup, Neighbours, Norm as Normalize};
    const FARTHEST: i32 = 149;
    const NEAR: i32 = 20;
    let random = &mut fastrand::Rng::with_seed(13);
    let widths = [WIDTH, 3 * WIDTH, WIDTH, 3 * WIDTH, WIDTH, WIDTH];
    let values = widths.iter().enumerate().map(|(slot, width)| Value {
        per: Per::Token,
        width: *width,
        slot,
    });
    let column = |distance: i32| match distance.abs() - NEAR {
        ..=0 => (distance + 100) as u32,
        far => (100 + distance.signum() * (NEAR + far / 7)) as u32,
    };
    let shape = [HEADS, 5, WIDTH / HEADS];
    let mut table = || Some(numbers(random, shape.iter().product::<usize>() * COLUMNS).into());
    let tables = DistanceTables {
        shape,
        keys: table(),
        queries: table(),
    };
    let vectors =
        DistanceVectors::new((-FARTHEST..=FARTHEST).map(column).collect(), tables).unwrap();
    let projected = |part| View {
        value: 1,
        offset: part * WIDTH,
        width: WIDTH,
    };
    let attention = Attention {
        queries: projected(0),
        keys: projected(1),
        values: projected(2),
        heads: HEADS,
        key_heads: HEADS,
        scale: 0.15,
        cap: None,
        sinks: None,
        rotary: None,
        window: AttentionWindow::ALL,
        bias: DistanceBias::Vectors(vectors),
        out: 2,
    };
    let table = Table::Fp32(numbers(random, IDS * WIDTH).into());
    let layer = linear(random, (3 * WIDTH, WIDTH), None);
    let first = vec![
        Lookup {
            table,
            index: Index::Id,
            out: 0,
        },
        RowOperation::Linear {
            input: 0,
            layer,
            out: 1,
        },
    ];
    let weights = numbers(random, 3 * WIDTH * WIDTH).into();
    let convolution = Dense {
        outputs: WIDTH,
        panel: WIDTH,
        weights,
        bias: None,
    };
    let mut row = || lanes(&numbers(random, WIDTH)).into();
    let norm = Norm {
        centers: true,
        scales: true,
        gain: row(),
        bias: row(),
        epsilon: 1e-7,
    };
    let input = View {
        value: 4,
        offset: 0,
        width: WIDTH,
    };
    let second = vec![
        Neighbours {
            input: 0,
            before: 1,
            out: 3,
        },
        Project {
            input: 3,
            layer: convolution,
            out: 4,
        },
        Normalize {
            input,
            residual: Some(2),
            norm,
            out: 5,
        },
    ];
    let load = Load {
        value: 2,
        is_last: true,
        heads: Some(HEADS),
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
            stage(vec![], first, vec![0, 1]),
            Stage::Attention(attention),
            stage(vec![load], second, vec![5]),
        ],
        outputs: vec![5],
        limits: Limits {
            ids: IDS,
            types: 1,
            positions: 512,
            length: 150,
        },
        padding: None,
    }
}

/// Hashes three texts' outputs, word by word (FNV-1a).
fn hash(program: &Program, instructions: InstructionSet, lengths: [u32; 3], hash: u64) -> u64 {
    let random = &mut fastrand::Rng::with_seed(11);
    let texts: [Text; 3] = lengths.map(|length| {
        let token = |position| Token {
            id: random.u32(..IDS as u32),
            type_id: 0,
            position,
        };
        Text {
            tokens: (0..length).map(token).collect(),
            attended: usize::MAX,
            labels: Arc::default(),
        }
    });
    let run = program.pack(texts.iter(), NonZeroUsize::MIN, Vec::new());
    let mut scratch = Scratch::default();
    for stage in &program.stages {
        (0..run.tasks(stage))
            .for_each(|task| run.execute(program, instructions, stage, task, &mut scratch));
    }
    let outputs = (0..texts.len()).flat_map(|text| run.outputs(program, text).concat());
    outputs.fold(hash, |hash, value| {
        (hash ^ u64::from(value.to_bits())).wrapping_mul(0x100_0000_01b3)
    })
}

/// FNV-1a's first value.
const START: u64 = 0xcbf2_9ce4_8422_2325;

#[test]
fn programs_have_the_bits_that_were_recorded() {
    use Activation::{Gelu, GeluTanh, Relu, Swish, Tanh};
    let programs = [Gelu, GeluTanh, Relu, Swish, Tanh].map(program);
    for instructions in InstructionSet::available() {
        let hash = |sum, program| hash(program, instructions, [1, 70, 33], sum);
        let found = programs.iter().fold(START, hash);
        assert_eq!(found, RECORDED, "{instructions}: {found:#018x}");
    }
}

#[test]
fn programs_with_distances_have_the_bits_that_were_recorded() {
    let program = program_with_distances();
    for instructions in InstructionSet::available() {
        let found = hash(&program, instructions, [1, 150, 33], START);
        assert_eq!(found, RECORDED_DISTANCES, "{instructions}: {found:#018x}");
    }
}

/// On x86-64, by the reference in plain Rust.
const RECORDED_SCALING: u64 = 0x5be2_ab4a_c9d4_08c2;

/// Layers with a factor and an offset per input column.
#[test]
fn programs_with_scaled_inputs_have_the_bits_that_were_recorded() {
    let random = &mut fastrand::Rng::with_seed(17);
    let mut program = program(Activation::Gelu);
    for stage in &mut program.stages {
        let Stage::Rows(stage) = stage else { continue };
        for operation in &mut stage.operations {
            if let RowOperation::Linear { layer, .. } = operation {
                let mut columns = || lanes(&numbers(random, WIDTH)).into();
                layer.scaling = Some(InputScaling {
                    factors: columns(),
                    offsets: columns(),
                });
            }
        }
    }
    for instructions in InstructionSet::available() {
        let found = hash(&program, instructions, [1, 70, 33], START);
        assert_eq!(found, RECORDED_SCALING, "{instructions}: {found:#018x}");
    }
}

/// On x86-64, by the reference in plain Rust.
const RECORDED_LIMITS: u64 = 0xde46_7343_0865_70f9;

/// Limited scores, and angles that depend on a text's length.
#[test]
fn programs_with_limits_have_the_bits_that_were_recorded() {
    let frequencies = angles(1.0, Lengths::Alike)
        .frequencies
        .iter()
        .map(|frequency| frequency / 3.0)
        .collect();
    let lengths = [
        Lengths::Other {
            frequencies,
            positions: 40,
        },
        Lengths::Growing {
            factor: 4.0,
            positions: 40,
        },
    ];
    let programs = lengths.map(|lengths| {
        let mut program = program(Activation::Swish);
        program.rotaries = vec![Rotary::new(angles(1.25, lengths))];
        for stage in &mut program.stages {
            if let Stage::Attention(attention) = stage {
                attention.cap = Some(2.0);
            }
        }
        program
    });
    let hashes = InstructionSet::available().map(|instructions| {
        let hash = |sum, program| hash(program, instructions, [1, 70, 33], sum);
        (instructions, programs.iter().fold(START, hash))
    });
    let hashes: Vec<_> = hashes.collect();
    let [.., (_, portable)] = hashes[..] else {
        panic!("expected a portable kernel")
    };
    for (instructions, found) in hashes {
        assert_eq!(found, portable, "{instructions}");
    }
    assert_eq!(portable, RECORDED_LIMITS, "{portable:#018x}");
}
