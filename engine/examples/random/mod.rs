//! Random weights for measurements.

use kivu_engine::{
    kernel::{Block, GROUP, LANES},
    program::{Activation, InputScaling, Linear, Norm},
};

/// Numbers from -1 to 1.
pub(crate) fn numbers(random: &mut fastrand::Rng, count: usize) -> Vec<f32> {
    (0..count).map(|_| random.f32() * 2.0 - 1.0).collect()
}

pub(crate) fn lanes(random: &mut fastrand::Rng, count: usize) -> Vec<[f32; LANES]> {
    numbers(random, count).as_chunks().0.to_vec()
}

/// A layer as the compiler fits them: in blocks, with small quads.
pub(crate) fn linear(
    random: &mut fastrand::Rng,
    [inputs, outputs]: [usize; 2],
    activation: Option<Activation>,
) -> Linear {
    let panels = outputs / LANES;
    let blocks = match inputs {
        ..=512 => 2,
        513..=2048 => 4,
        _ => 8,
    };
    let group =
        |_| -> Block { std::array::from_fn(|_| std::array::from_fn(|_| random.i8(-32..=32))) };
    let weights: Vec<Block> = (0..panels * inputs / GROUP).map(group).collect();
    let sum = |weights: &[Block], lane: usize| {
        weights
            .iter()
            .flat_map(|block| block[lane])
            .map(i32::from)
            .sum()
    };
    let sums: Vec<[i32; LANES]> = weights
        .chunks_exact(inputs / blocks / GROUP)
        .map(|weights| std::array::from_fn(|lane| sum(weights, lane)))
        .collect();
    Linear {
        name: "layer".to_owned(),
        inputs,
        block: inputs / blocks,
        outputs,
        scaling: None,
        panels: weights.into(),
        scales: vec![[0.001; LANES]; panels * blocks].into(),
        sums: sums.into(),
        bias: lanes(random, outputs).into(),
        activation,
    }
}

/// Factors and offsets near 1 and 0.
#[allow(dead_code, reason = "not every program has fitted layers")]
pub(crate) fn scaling(random: &mut fastrand::Rng, inputs: usize) -> InputScaling {
    let factors: Vec<f32> = (0..inputs).map(|_| 0.5 + random.f32()).collect();
    let offsets: Vec<f32> = (0..inputs).map(|_| random.f32() / 10.0).collect();
    let lanes = |values: Vec<f32>| values.as_chunks().0.to_vec().into();
    InputScaling {
        factors: lanes(factors),
        offsets: lanes(offsets),
    }
}

pub(crate) fn norm(random: &mut fastrand::Rng, width: usize, epsilon: f32) -> Norm {
    Norm {
        centers: true,
        scales: true,
        gain: lanes(random, width).into(),
        bias: lanes(random, width).into(),
        epsilon,
    }
}
