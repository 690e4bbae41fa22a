//! Row functions in 16 lanes. Row sums have one order on every processor, so results have the same bits.

use crate::{
    kernel::{Kernel, LANES, Lanes},
    program::{Activation, LimitedGate, Norm},
};

/// Combines 16 lanes into one number: the upper half with the lower one, until one lane is left.
#[inline(always)]
pub fn fold<K: Kernel>(kernel: K, lanes: K::F32x16, combine: impl Fn(f32, f32) -> f32) -> f32 {
    let mut all = [0.0; LANES];
    kernel.store(lanes, &mut all);
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            all[lane] = combine(all[lane], all[lane + half]);
        }
        half /= 2;
    }
    all[0]
}

#[inline(always)]
pub fn sum<K: Kernel>(kernel: K, lanes: K::F32x16) -> f32 {
    fold(kernel, lanes, |a, b| a + b)
}

#[inline(always)]
pub fn smallest<K: Kernel>(kernel: K, lanes: K::F32x16) -> f32 {
    fold(kernel, lanes, |a, b| if a < b { a } else { b })
}

#[inline(always)]
pub fn largest<K: Kernel>(kernel: K, lanes: K::F32x16) -> f32 {
    fold(kernel, lanes, |a, b| if a > b { a } else { b })
}

/// Evaluates a polynomial; coefficients from the highest power down.
#[inline(always)]
fn polynomial<K: Kernel, const N: usize>(
    kernel: K,
    x: K::F32x16,
    coefficients: [f32; N],
) -> K::F32x16 {
    let mut sum = kernel.splat(coefficients[0]);
    for coefficient in &coefficients[1..] {
        sum = kernel.mul_add(sum, x, kernel.splat(*coefficient));
    }
    sum
}

/// `e^x`, with a relative error below 2e-7; `x` is limited to −87…88, where the result is a normal number.
#[inline(always)]
pub fn exp<K: Kernel>(kernel: K, x: K::F32x16) -> K::F32x16 {
    // 1.5 × 2^23: adding it rounds to an integer, which is then in the lowest bits.
    let magic = kernel.splat(12_582_912.0);
    // In this argument order, NaN passes both.
    let x = kernel.min(kernel.splat(88.0), kernel.max(kernel.splat(-87.0), x));
    let shifted = kernel.mul_add(x, kernel.splat(std::f32::consts::LOG2_E), magic);
    let n = kernel.sub(shifted, magic);
    // x − n ln 2, with ln 2 as a sum of two numbers; the first has few bits.
    let r = kernel.mul_add(n, kernel.splat(-0.693_359_4), x);
    let r = kernel.mul_add(n, kernel.splat(2.121_944_4e-4), r);
    let p = polynomial(
        kernel,
        r,
        [
            1.987_569_1e-4,
            1.398_199_9e-3,
            8.333_452e-3,
            4.166_579_6e-2,
            0.166_666_66,
            0.5,
        ],
    );
    let p = kernel.add(kernel.mul_add(p, kernel.mul(r, r), r), kernel.splat(1.0));
    // The exponent of NaN is unspecified: adding a product with zero restores NaN.
    kernel.mul_add(x, kernel.splat(0.0), kernel.shift_exponent(p, shifted))
}

/// The error function as a rational function on [−4, 4]; beyond, it is ±1 in `f32`.
#[inline(always)]
fn erf<K: Kernel>(kernel: K, x: K::F32x16) -> K::F32x16 {
    let x = kernel.max(kernel.min(x, kernel.splat(4.0)), kernel.splat(-4.0));
    let square = kernel.mul(x, x);
    let p = [
        -2.726_142_4e-10,
        2.770_681_4e-8,
        -2.101_024e-6,
        -5.692_506e-5,
        -7.349_906e-4,
        -2.954_600_2e-3,
        -1.609_603_3e-2,
    ];
    let q = [
        -1.456_607e-5,
        -2.133_740_2e-4,
        -1.682_827_1e-3,
        -7.373_329e-3,
        -1.426_472_5e-2,
    ];
    kernel.div(
        kernel.mul(x, polynomial(kernel, square, p)),
        polynomial(kernel, square, q),
    )
}

/// `1 / (1 + e^−x)`
#[inline(always)]
pub fn sigmoid<K: Kernel>(kernel: K, x: K::F32x16) -> K::F32x16 {
    let one = kernel.splat(1.0);
    let power = exp(kernel, kernel.sub(kernel.splat(0.0), x));
    kernel.div(one, kernel.add(one, power))
}

/// An activation function, as `transformers` defines it.
#[inline(always)]
pub fn activate<K: Kernel>(kernel: K, function: Activation, x: K::F32x16) -> K::F32x16 {
    match function {
        Activation::Gelu => {
            let half = kernel.mul(x, kernel.splat(0.5));
            let erf = erf(
                kernel,
                kernel.mul(x, kernel.splat(std::f32::consts::FRAC_1_SQRT_2)),
            );
            kernel.mul_add(half, erf, half)
        }
        // x (1 + tanh z) / 2 is x sigmoid(2 z).
        Activation::GeluTanh => {
            let cube = kernel.mul(kernel.mul(x, x), x);
            let z = kernel.mul_add(cube, kernel.splat(0.044_715), x);
            let z = kernel.mul(
                z,
                kernel.splat(std::f32::consts::FRAC_2_SQRT_PI * std::f32::consts::SQRT_2),
            );
            kernel.mul(x, sigmoid(kernel, z))
        }
        Activation::Relu => kernel.max(kernel.splat(0.0), x),
        Activation::Swish => kernel.mul(x, sigmoid(kernel, x)),
        Activation::Tanh => tanh(kernel, x),
        Activation::RoundedTanh => {
            // A sum with it has no bits below 1.
            let magic = kernel.splat(12_582_912.0);
            let shifted = kernel.mul_add(tanh(kernel, x), kernel.splat(127.0), magic);
            kernel.sub(shifted, magic)
        }
    }
}

/// `2 sigmoid(2 x) - 1`
#[inline(always)]
fn tanh<K: Kernel>(kernel: K, x: K::F32x16) -> K::F32x16 {
    let twice = kernel.splat(2.0);
    kernel.mul_add(
        twice,
        sigmoid(kernel, kernel.mul(x, twice)),
        kernel.splat(-1.0),
    )
}

/// Multiplies an activated row by another.
#[inline(always)]
pub fn gate<K: Kernel>(
    kernel: K,
    function: Activation,
    [activated, other]: [&[Lanes]; 2],
    out: &mut [Lanes],
) {
    for ((activated, other), out) in activated.iter().zip(other).zip(out) {
        let activated = activate(kernel, function, kernel.load(activated));
        kernel.store(kernel.mul(activated, kernel.load(other)), out);
    }
}

/// Multiplies a row's halves, as a [`LimitedGate`].
#[inline(always)]
pub fn gate_with_limits<K: Kernel>(
    kernel: K,
    settings: LimitedGate,
    [gates, others]: [&[Lanes]; 2],
    out: &mut [Lanes],
) {
    let LimitedGate { alpha, limit } = settings;
    let (alpha, most, one) = (kernel.splat(alpha), kernel.splat(limit), kernel.splat(1.0));
    let least = kernel.splat(-limit);
    for ((gate, other), out) in gates.iter().zip(others).zip(out) {
        // In this argument order, NaN passes.
        let gate = kernel.min(most, kernel.load(gate));
        let other = kernel.min(most, kernel.max(least, kernel.load(other)));
        let gate = kernel.mul(gate, sigmoid(kernel, kernel.mul(gate, alpha)));
        kernel.store(kernel.mul(kernel.add(other, one), gate), out);
    }
}

/// Normalizes rows as wide as the norm: to mean 0 and variance 1, or to mean square 1.
#[inline(always)]
pub fn normalize<K: Kernel>(kernel: K, rows: &mut [Lanes], norm: &Norm) {
    let width = norm.gain.len();
    if !norm.scales {
        for row in rows.chunks_exact_mut(width) {
            for ((lanes, gain), bias) in row.iter_mut().zip(&norm.gain[..]).zip(&norm.bias[..]) {
                let value = kernel.load(lanes);
                let value = kernel.mul_add(value, kernel.load(gain), kernel.load(bias));
                kernel.store(value, lanes);
            }
        }
        return;
    }
    let mut groups = rows.chunks_exact_mut(ROWS * width);
    for rows in &mut groups {
        normalize_together::<K, ROWS>(kernel, rows, norm);
    }
    for row in groups.into_remainder().chunks_exact_mut(width) {
        normalize_together::<K, 1>(kernel, row, norm);
    }
}

/// Rows that are normalized together: each sum has one order, so that its additions wait for each other.
const ROWS: usize = 4;

/// Normalizes `N` rows.
#[inline(always)]
fn normalize_together<K: Kernel, const N: usize>(kernel: K, rows: &mut [Lanes], norm: &Norm) {
    let (gain, bias) = (&norm.gain[..], &norm.bias[..]);
    let width = gain.len();
    assert_eq!(
        rows.len(),
        N * width,
        "expected {N} rows of the norm's width"
    );
    let count = (width * LANES) as f32;
    let mut means = [kernel.splat(0.0); N];
    if norm.centers {
        for at in 0..width {
            for (row, total) in means.iter_mut().enumerate() {
                *total = kernel.add(*total, kernel.load(&rows[row * width + at]));
            }
        }
    }
    for mean in &mut means {
        *mean = kernel.splat(sum(kernel, *mean) / count);
    }
    let mut squares = [kernel.splat(0.0); N];
    for at in 0..width {
        for (row, (squares, mean)) in squares.iter_mut().zip(&means).enumerate() {
            let difference = kernel.sub(kernel.load(&rows[row * width + at]), *mean);
            *squares = kernel.mul_add(difference, difference, *squares);
        }
    }
    for (row, (squares, mean)) in squares.iter().zip(&means).enumerate() {
        let deviation = (sum(kernel, *squares) / count + norm.epsilon).sqrt();
        let inverse = kernel.splat(1.0 / deviation);
        let row = &mut rows[row * width..(row + 1) * width];
        for ((lanes, gain), bias) in row.iter_mut().zip(gain).zip(bias) {
            let scaled = kernel.mul(kernel.sub(kernel.load(lanes), *mean), inverse);
            kernel.store(
                kernel.mul_add(scaled, kernel.load(gain), kernel.load(bias)),
                lanes,
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Plain;

    /// The error function by its Taylor series, in `f64`.
    fn exact_erf(x: f64) -> f64 {
        let (mut term, mut sum) = (x, x);
        for n in 1..200 {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    }

    fn sigmoid(x: f64) -> f64 {
        1.0 / (1.0 + (-x).exp())
    }

    #[test]
    fn functions_are_those_of_their_definitions() {
        let tanh_form =
            |x: f64| 2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
        type Definition<'a> = &'a dyn Fn(f64) -> f64;
        let definitions: [(Activation, Definition<'_>); 6] = [
            (Activation::Gelu, &|x| {
                x / 2.0 * (1.0 + exact_erf(x / std::f64::consts::SQRT_2))
            }),
            (Activation::GeluTanh, &|x| x * sigmoid(tanh_form(x))),
            (Activation::Relu, &|x| x.max(0.0)),
            (Activation::Swish, &|x| x * sigmoid(x)),
            (Activation::Tanh, &f64::tanh),
            (Activation::RoundedTanh, &|x| {
                (127.0 * x.tanh()).round_ties_even()
            }),
        ];
        for (function, exact) in definitions {
            for step in -400..=400 {
                let x = step as f32 / 80.0;
                let (found, expected) = (
                    activate(Plain, function, [x; LANES])[0],
                    exact(f64::from(x)),
                );
                assert!(
                    (f64::from(found) - expected).abs() < 2e-6,
                    "{function:?}({x}): {found}, not {expected}"
                );
            }
            assert!(
                activate(Plain, function, [f32::NAN; LANES])[0].is_nan()
                    || function == Activation::Relu
            );
        }
        for step in -870..=880 {
            let x = step as f32 / 10.0;
            let (found, expected) = (f64::from(exp(Plain, [x; LANES])[0]), f64::from(x).exp());
            assert!(
                (found / expected - 1.0).abs() < 2e-7 * 2.0,
                "e^{x}: {found}, not {expected}"
            );
        }
        assert!(exp(Plain, [f32::NAN; LANES])[0].is_nan());
    }

    #[test]
    fn a_normalized_row_has_mean_zero_and_variance_one_or_mean_square_one() {
        let mut row: Vec<Lanes> = (0..2)
            .map(|part| std::array::from_fn(|lane| (part * 16 + lane) as f32))
            .collect();
        let norm = |centers| {
            let (gain, bias) = (vec![[2.0; LANES]; 2].into(), vec![[0.5; LANES]; 2].into());
            Norm {
                centers,
                scales: true,
                gain,
                bias,
                epsilon: 0.0,
            }
        };
        let mut uncentered = row.clone();
        normalize(Plain, &mut uncentered, &norm(false));
        // The squares of 0…31 sum to 31 × 32 × 63 / 6.
        let root = (10_416.0_f32 / 32.0).sqrt();
        for (index, value) in uncentered.as_flattened().iter().enumerate() {
            let expected = 2.0 * index as f32 / root + 0.5;
            assert!(
                (value - expected).abs() < 1e-5,
                "{index}: {value}, not {expected}"
            );
        }
        normalize(Plain, &mut row, &norm(true));
        // 0…31: mean 15.5, variance (32² − 1) / 12.
        let deviation = (1023.0_f32 / 12.0).sqrt();
        for (index, value) in row.as_flattened().iter().enumerate() {
            let expected = 2.0 * (index as f32 - 15.5) / deviation + 0.5;
            assert!(
                (value - expected).abs() < 1e-5,
                "{index}: {value}, not {expected}"
            );
        }
    }

    #[test]
    fn rows_are_normalized_as_if_alone() {
        let count = 2 * ROWS + 1;
        let rows: Vec<Lanes> = (0..2 * count)
            .map(|part| std::array::from_fn(|lane| (part * part + lane) as f32))
            .collect();
        let (gain, bias) = (vec![[2.0; LANES]; 2].into(), vec![[0.5; LANES]; 2].into());
        let norm = Norm {
            centers: true,
            scales: true,
            gain,
            bias,
            epsilon: 1e-5,
        };
        let (mut together, mut alone) = (rows.clone(), rows);
        normalize(Plain, &mut together, &norm);
        alone
            .chunks_exact_mut(2)
            .for_each(|row| normalize(Plain, row, &norm));
        assert_eq!(together, alone);
    }
}
