//! Adapters for tasks: the product of two narrow matrices, added to a linear layer's result.

use crate::{
    kernel::{Kernel, LANES, Lanes},
    math::sum,
    program::Adapters,
};

/// Numbers that are computed together: their sums do not wait for each other.
const TOGETHER: usize = 4;

/// Adds a task's product with `input` to `out`. Tasks count from 0.
#[inline(always)]
pub fn adapt<K: Kernel>(
    kernel: K,
    adapters: &Adapters,
    task: usize,
    input: &[Lanes],
    out: &mut [Lanes],
) {
    let first = task * adapters.rank;
    for start in (0..adapters.rank).step_by(TOGETHER) {
        let count = TOGETHER.min(adapters.rank - start);
        // Places beyond the rank repeat the last one, and their numbers are 0.
        let places: [usize; TOGETHER] = std::array::from_fn(|at| first + start + at.min(count - 1));
        let mut numbers = match &adapters.down {
            None => places.map(|place| input[place / LANES][place % LANES]),
            Some(down) => {
                let rows = places.map(|place| &down[place * input.len()..][..input.len()]);
                let mut sums = [kernel.splat(0.0); TOGETHER];
                for (at, lanes) in input.iter().enumerate() {
                    let lanes = kernel.load(lanes);
                    for (sum, row) in sums.iter_mut().zip(&rows) {
                        *sum = kernel.mul_add(lanes, kernel.load(&row[at]), *sum);
                    }
                }
                let mut numbers = [0.0; TOGETHER];
                for (number, lanes) in numbers.iter_mut().zip(sums) {
                    *number = sum(kernel, lanes);
                }
                numbers
            }
        };
        numbers[count..].fill(0.0);
        let rows = places.map(|place| &adapters.up[place * out.len()..][..out.len()]);
        for (at, out) in out.iter_mut().enumerate() {
            let mut total = kernel.load(out);
            for (number, row) in numbers.iter().zip(&rows) {
                total = kernel.mul_add(kernel.splat(*number), kernel.load(&row[at]), total);
            }
            kernel.store(total, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{InstructionSet, KernelFn};

    const INPUTS: usize = 48;
    const OUTPUTS: usize = 32;
    const TASKS: usize = 3;

    struct Call<'a>(&'a Adapters, usize, &'a [Lanes], Vec<Lanes>);

    impl KernelFn for Call<'_> {
        type Output = Vec<Lanes>;

        #[inline(always)]
        fn call<K: Kernel>(self, kernel: K) -> Vec<Lanes> {
            let Self(adapters, task, input, mut out) = self;
            adapt(kernel, adapters, task, input, &mut out);
            out
        }
    }

    fn lanes(values: &[f32]) -> Vec<Lanes> {
        values.as_chunks().0.to_vec()
    }

    #[test]
    fn a_task_adds_its_own_product() {
        let mut random = fastrand::Rng::with_seed(5);
        let mut numbers = |count: usize| {
            (0..count)
                .map(|_| random.f32() * 2.0 - 1.0)
                .collect::<Vec<f32>>()
        };
        for rank in [1, 4, 6] {
            let (down, up) = (
                numbers(TASKS * rank * INPUTS),
                numbers(TASKS * rank * OUTPUTS),
            );
            let (input, base) = (numbers(INPUTS), numbers(OUTPUTS));
            for (task, has_down) in (0..TASKS).flat_map(|task| [(task, true), (task, false)]) {
                let adapters = Adapters {
                    rank,
                    down: has_down.then(|| lanes(&down).into()),
                    up: lanes(&up).into(),
                };
                let expected: Vec<f64> = (0..OUTPUTS)
                    .map(|output| {
                        let products = (task * rank..(task + 1) * rank).map(|place| {
                            let row = &down[place * INPUTS..][..INPUTS];
                            let dot = |row: &[f32]| {
                                row.iter()
                                    .zip(&input)
                                    .map(|(a, b)| f64::from(*a) * f64::from(*b))
                                    .sum()
                            };
                            let number: f64 = if has_down {
                                dot(row)
                            } else {
                                input[place].into()
                            };
                            number * f64::from(up[place * OUTPUTS + output])
                        });
                        f64::from(base[output]) + products.sum::<f64>()
                    })
                    .collect();
                let all = InstructionSet::available().map(|instructions| {
                    instructions.call(Call(&adapters, task, &lanes(&input), lanes(&base)))
                });
                let all: Vec<Vec<Lanes>> = all.collect();
                let bits = |found: &Vec<Lanes>| -> Vec<u32> {
                    found
                        .as_flattened()
                        .iter()
                        .map(|value| value.to_bits())
                        .collect()
                };
                assert!(all.iter().all(|found| bits(found) == bits(&all[0])));
                for (found, expected) in all[0].as_flattened().iter().zip(&expected) {
                    assert!(
                        (f64::from(*found) - expected).abs() < 1e-4,
                        "{rank} {task}: {found} {expected}"
                    );
                }
            }
        }
    }
}
