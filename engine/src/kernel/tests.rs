//! All kernels this processor can execute return the same bits as [`Plain`].

use proptest::prelude::*;

#[cfg(target_arch = "x86_64")]
use super::Avx2;
use super::{
    Block, COLUMNS, GROUP, InstructionSet, Kernel, KernelFn, LANES, Lanes, MAX_QUAD_SUM, MAX_ROWS,
    MAX_TILE_ROWS, Panel, Plain, RowRange, Rows, RowsMut, ScaledTile, Sums, row_size,
};

/// A function's results for each kernel, the reference last.
fn results<F: KernelFn + Clone>(function: &F) -> Vec<(InstructionSet, F::Output)> {
    InstructionSet::available()
        .map(|instructions| (instructions, instructions.call(function.clone())))
        .collect()
}

/// Fails unless all results equal the reference.
fn assert_equal<F: KernelFn<Output: PartialEq + std::fmt::Debug> + Clone>(function: &F) {
    let expected = Plain.call(function.clone());
    for (instructions, found) in results(function) {
        assert_eq!(found, expected, "{instructions}");
    }
}

/// The numbers' bits, where all NaNs are equal.
fn bits(values: &[f32]) -> Vec<u32> {
    values
        .iter()
        .map(|value| {
            if value.is_nan() {
                f32::NAN.to_bits()
            } else {
                value.to_bits()
            }
        })
        .collect()
}

/// Seeded numbers: proptest takes longer to generate many values than the kernels to multiply them.
struct Numbers(fastrand::Rng);

impl Numbers {
    fn new(seed: u64) -> Self {
        Self(fastrand::Rng::with_seed(seed))
    }

    /// Random bytes, a third extreme.
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        const EXTREME: [u8; 4] = [0, 127, 128, 255];
        (0..count)
            .map(|_| {
                if self.0.u8(..) < 85 {
                    EXTREME[self.0.usize(..4)]
                } else {
                    self.0.u8(..)
                }
            })
            .collect()
    }

    /// Numbers from -10 to 10; one in `rarity` is any number or a special one.
    fn floats(&mut self, count: usize, rarity: u32) -> Vec<f32> {
        const SPECIAL: [f32; 9] = [
            0.0,
            -0.0,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
            f32::MIN,
            f32::MAX,
            f32::MIN_POSITIVE,
            1e-40,
        ];
        let float = |_| match self.0.u32(..2 * rarity) {
            0 => f32::from_bits(self.0.u32(..)),
            1 => SPECIAL[self.0.usize(..SPECIAL.len())],
            _ => self.0.f32() * 20.0 - 10.0,
        };
        (0..count).map(float).collect()
    }

    fn lanes(&mut self) -> Lanes {
        self.floats(LANES, 3).try_into().unwrap()
    }
}

#[derive(Clone, Debug)]
struct Tile {
    rows: Vec<u8>,
    row_count: usize,
    panels: [Vec<Block>; 2],
}

impl Tile {
    fn new(row_count: usize, steps: usize, activations: &[u8], weights: &[u8]) -> Self {
        let blocks: Vec<Block> = weights
            .as_chunks::<GROUP>()
            .0
            .as_chunks::<LANES>()
            .0
            .iter()
            .map(|block| block.map(|group| group.map(u8::cast_signed)))
            .collect();
        Self {
            rows: activations.to_vec(),
            row_count,
            panels: [blocks[..steps].to_vec(), blocks[steps..].to_vec()],
        }
    }

    /// Computed without packing, by definition.
    fn expected(&self) -> Vec<[Sums; 2]> {
        let depth = self.rows.len() / self.row_count;
        let product = |row: &[u8], panel: &[Block], column: usize| {
            let weight = |input: usize| i32::from(panel[input / GROUP][column][input % GROUP]);
            row.iter()
                .enumerate()
                .map(|(input, value)| i32::from(*value) * weight(input))
                .sum()
        };
        let sums =
            |row, panel: &Vec<Block>| std::array::from_fn(|column| product(row, panel, column));
        let rows = (0..self.row_count).map(|r| &self.rows[r * depth..][..depth]);
        rows.map(|row| self.panels.each_ref().map(|panel| sums(row, panel)))
            .collect()
    }
}

impl Tile {
    /// Calls `multiply` with each of the kernel's tiles: their rows, from the first to the last row's number, and panels.
    fn each_tile<K: Kernel>(
        &self,
        kernel: K,
        mut multiply: impl FnMut(&[u8], std::ops::Range<usize>, [Panel<'_>; 2]),
    ) {
        let column_sum = |panel: &[Block], column: usize| {
            panel
                .iter()
                .flat_map(|block| block[column])
                .map(i32::from)
                .sum::<i32>()
        };
        let column_sums: [Sums; 2] = self
            .panels
            .each_ref()
            .map(|panel| std::array::from_fn(|column| column_sum(panel, column)));
        let panels = [0, 1].map(|n| Panel {
            blocks: &self.panels[n],
            column_sums: &column_sums[n],
        });
        let depth = self.rows.len() / self.row_count;
        let row_size = row_size::<K>(depth);
        let mut rows = vec![0; row_size * self.row_count + self.rows.len() % self.row_count];
        for (row, out) in self
            .rows
            .chunks_exact(depth.max(1))
            .zip(rows.chunks_exact_mut(row_size.max(1)))
        {
            for (values, out) in row
                .chunks(LANES)
                .zip(out.chunks_mut(LANES * K::ACTIVATION_SIZE))
            {
                let mut lanes = [0.0; LANES];
                for (value, lane) in values.iter().zip(&mut lanes) {
                    *lane = 8_388_608.0 + f32::from(*value);
                }
                let mut bytes = [0; 2 * LANES];
                kernel.store_activations(
                    kernel.load(&lanes),
                    &mut bytes[..LANES * K::ACTIVATION_SIZE],
                );
                let size = values.len() * K::ACTIVATION_SIZE;
                out[..size].copy_from_slice(&bytes[..size]);
            }
            kernel.finish_row(out);
        }
        // The last tile gets all remaining bytes, so that rows that do not fit are refused.
        let mut rest = &rows[..];
        for start in (0..self.row_count).step_by(K::TILE_ROWS) {
            let end = self.row_count.min(start + K::TILE_ROWS);
            let size = if end == self.row_count {
                rest.len()
            } else {
                (end - start) * row_size
            };
            let (rows, next) = rest.split_at(size);
            multiply(rows, start..end, panels);
            rest = next;
        }
    }
}

impl KernelFn for Tile {
    type Output = Vec<[Sums; 2]>;

    fn call<K: Kernel>(self, kernel: K) -> Self::Output {
        let mut out = vec![[[i32::MIN; LANES]; 2]; self.row_count];
        self.each_tile(kernel, |rows, range, panels| {
            kernel.tile(rows, panels, &mut out[range])
        });
        out
    }
}

impl Tile {
    /// Makes weights smaller in quads whose sum is too large, the later ones first.
    fn with_small_quads(mut self) -> Self {
        for [first, second] in self
            .panels
            .iter_mut()
            .flat_map(|panel| panel.as_chunks_mut().0)
        {
            for ([a, b, c, d], [e, f, g, h]) in first.iter_mut().zip(second) {
                for quad in [[a, b, e, f], [c, d, g, h]] {
                    let (mut most, mut least) = (MAX_QUAD_SUM, -MAX_QUAD_SUM);
                    for weight in quad {
                        let wide = i16::from(*weight).clamp(least, most);
                        *weight = wide as i8;
                        (most, least) = (most - wide.max(0), least - wide.min(0));
                    }
                }
            }
        }
        self
    }
}

/// A function of weights with small quads.
#[derive(Clone, Debug)]
struct SmallQuads<F>(F);

impl<F: KernelFn> KernelFn for SmallQuads<F> {
    type Output = F::Output;

    fn call<K: Kernel>(self, kernel: K) -> Self::Output {
        kernel.call_for_small_quads(self.0)
    }
}

/// A tile whose products are added to totals: first to a bias, then again to the results.
#[derive(Clone, Debug)]
struct Scaled {
    tile: Tile,
    ranges: Vec<RowRange>,
    scales: [Lanes; 2],
    bias: [Lanes; 2],
    /// Distance between rows in an output, in values, and the output's length.
    stride: usize,
    length: usize,
}

impl Scaled {
    fn new(tile: Tile, numbers: &mut Numbers) -> Self {
        let mut lanes = || [numbers.lanes(), numbers.lanes()];
        let (scales, bias) = (lanes(), lanes());
        let range = |_| RowRange {
            scale: numbers.floats(1, 20)[0],
            least: numbers.floats(1, 20)[0],
        };
        let ranges = (0..tile.row_count).map(range).collect();
        let stride = COLUMNS + numbers.bytes(1)[0] as usize % 20;
        let length = tile.row_count * stride;
        Self {
            tile,
            ranges,
            scales,
            bias,
            stride,
            length,
        }
    }
}

impl KernelFn for Scaled {
    type Output = Vec<u32>;

    fn call<K: Kernel>(self, kernel: K) -> Vec<u32> {
        let Self {
            tile,
            ranges,
            scales: [left, right],
            bias,
            stride,
            length,
        } = &self;
        let mut totals = vec![[[f32::NAN; LANES]; 2]; tile.row_count];
        let mut sums = vec![[[0; LANES]; 2]; tile.row_count];
        let mut values = vec![0.0; *length];
        let bias = Some([&bias[0], &bias[1]]);
        for (bias, is_last) in [(bias, false), (None, false), (None, true)] {
            tile.each_tile(kernel, |rows, range, panels| {
                // The last tile gets all remaining ranges, so that ranges that do not fit are refused.
                let end = if range.end == tile.row_count {
                    ranges.len()
                } else {
                    range.end
                };
                let (scales, ranges) = ([left, right], &ranges[range.start..end]);
                let tile = ScaledTile {
                    rows,
                    ranges,
                    panels,
                    prefetch_distance: 0,
                    scales,
                    bias,
                };
                let values = &mut values[range.start * stride..];
                let out = is_last.then_some(RowsMut {
                    values,
                    stride: *stride,
                });
                kernel.add_tile(&tile, &mut sums[range.clone()], &mut totals[range], out);
            });
        }
        values.extend_from_slice(totals.as_flattened().as_flattened());
        bits(&values)
    }
}

/// A tile whose block count `unit` divides.
fn tile(unit: usize) -> impl Strategy<Value = Tile> {
    // AMX multiplies 16 blocks at once, and leaves others to AVX-512.
    let steps = prop_oneof![0..50usize, (1..4usize).prop_map(|count| 16 * count)];
    (1..=MAX_TILE_ROWS, steps, any::<u64>()).prop_map(move |(row_count, steps, seed)| {
        let steps = steps.next_multiple_of(unit);
        let mut numbers = Numbers::new(seed);
        let activations = numbers.bytes(row_count * steps * GROUP);
        Tile::new(
            row_count,
            steps,
            &activations,
            &numbers.bytes(2 * steps * GROUP * LANES),
        )
    })
}

#[derive(Clone, Debug)]
struct Product {
    depth: usize,
    a: Vec<f32>,
    a_stride: usize,
    b: Vec<f32>,
    b_stride: usize,
    row_count: usize,
}

impl KernelFn for Product {
    type Output = Vec<u32>;

    fn call<K: Kernel>(self, kernel: K) -> Vec<u32> {
        let mut out = vec![[[f32::NAN; LANES]; 2]; self.row_count];
        let a = Rows::new(&self.a, self.a_stride);
        let b = Rows::new(&self.b, self.b_stride);
        kernel.product(self.depth, a, b, &mut out);
        bits(out.as_flattened().as_flattened())
    }
}

fn product() -> impl Strategy<Value = Product> {
    (1..=MAX_ROWS, 0..40usize, 0..3usize, 0..3usize, any::<u64>()).prop_map(
        |(row_count, depth, a_gap, b_gap, seed)| {
            let mut numbers = Numbers::new(seed);
            let (a_stride, b_stride) = (depth + a_gap, 2 * LANES + b_gap);
            // Nothing follows the last row.
            let a = numbers.floats((row_count - 1) * a_stride + depth, 100);
            let b_len = depth
                .checked_sub(1)
                .map_or(0, |last| last * b_stride + 2 * LANES);
            Product {
                depth,
                a,
                a_stride,
                b: numbers.floats(b_len, 100),
                b_stride,
                row_count,
            }
        },
    )
}

/// Every lane operation.
#[derive(Clone, Debug)]
struct Operations {
    values: [Lanes; 3],
    integers: Sums,
}

impl KernelFn for Operations {
    type Output = (Vec<Vec<u32>>, [u8; LANES]);

    fn call<K: Kernel>(self, kernel: K) -> Self::Output {
        let [a, b, c] = self.values.each_ref().map(|values| kernel.load(values));
        let finite = self.values[0].map(|value| if value.is_nan() { 1.0 } else { value });
        let shift = self
            .integers
            .map(|integer| 12_582_912.0 + (integer % 1000) as f32);
        let results = [
            a,
            kernel.splat(self.values[0][0]),
            kernel.add(a, b),
            kernel.sub(a, b),
            kernel.mul(a, b),
            kernel.div(a, b),
            kernel.mul_add(a, b, c),
            kernel.min(a, b),
            kernel.max(a, b),
            kernel.load_i32(&self.integers),
            kernel.shift_exponent(kernel.load(&finite), kernel.load(&shift)),
        ];
        let stored = results.map(|result| {
            let mut out = [f32::NAN; LANES];
            kernel.store(result, &mut out);
            bits(&out)
        });
        (stored.to_vec(), kernel.low_bytes(kernel.load(&finite)))
    }
}

/// Functions as in a model.
#[derive(Clone, Debug)]
struct Functions(Lanes);

impl KernelFn for Functions {
    type Output = (Vec<u32>, [u8; LANES]);

    fn call<K: Kernel>(self, kernel: K) -> Self::Output {
        let x = kernel.load(&self.0);
        let polynomial = |x, coefficients: &[f32]| {
            let first = kernel.splat(coefficients[0]);
            coefficients[1..]
                .iter()
                .fold(first, |sum, c| kernel.mul_add(sum, x, kernel.splat(*c)))
        };
        // An exponential function.
        let rounding = kernel.splat(12_582_912.0);
        let clamped = kernel.max(kernel.splat(-87.0), kernel.min(kernel.splat(87.0), x));
        let shifted = kernel.mul_add(clamped, kernel.splat(std::f32::consts::LOG2_E), rounding);
        let rest = kernel.mul_add(
            kernel.sub(shifted, rounding),
            kernel.splat(-std::f32::consts::LN_2),
            clamped,
        );
        let exp = kernel.shift_exponent(
            polynomial(rest, &[1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0]),
            shifted,
        );
        // A polynomial quotient.
        let square = kernel.mul(x, x);
        let quotient = kernel.div(
            polynomial(square, &[-0.2, 0.1, 3.0]),
            polynomial(square, &[0.3, 1.0]),
        );
        // Quantization.
        let scaled = kernel.mul_add(
            clamped,
            kernel.splat(1.4),
            kernel.splat(8_388_608.0 + 128.0),
        );
        let stored = [exp, quotient].map(|result| {
            let mut out = [f32::NAN; LANES];
            kernel.store(result, &mut out);
            bits(&out)
        });
        (stored.concat(), kernel.low_bytes(scaled))
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn tiles_are_exact(tile in tile(1)) {
        prop_assert_eq!(Plain.call(tile.clone()), tile.expected());
        assert_equal(&tile);
    }

    #[test]
    fn tiles_of_small_quads_are_exact(tile in tile(2)) {
        let tile = tile.with_small_quads();
        prop_assert_eq!(Plain.call(tile.clone()), tile.expected());
        assert_equal(&SmallQuads(tile));
    }

    #[test]
    fn added_tiles_have_the_bits_of_the_reference(tile in tile(1), seed in any::<u64>()) {
        assert_equal(&Scaled::new(tile, &mut Numbers::new(seed)));
    }

    #[test]
    fn added_tiles_of_small_quads_have_the_bits_of_the_reference(tile in tile(2), seed in any::<u64>()) {
        assert_equal(&SmallQuads(Scaled::new(tile.with_small_quads(), &mut Numbers::new(seed))));
    }

    #[test]
    fn products_have_the_bits_of_the_reference(product in product()) {
        assert_equal(&product);
    }

    #[test]
    fn operations_have_the_bits_of_the_reference(seed in any::<u64>(), integers in any::<[i32; LANES]>()) {
        let mut numbers = Numbers::new(seed);
        assert_equal(&Operations { values: [numbers.lanes(), numbers.lanes(), numbers.lanes()], integers });
    }

    #[test]
    fn functions_have_the_bits_of_the_reference(seed in any::<u64>()) {
        // NaN has unspecified bits as an integer.
        assert_equal(&Functions(Numbers::new(seed).lanes().map(|x| if x.is_nan() { 0.0 } else { x })));
    }
}

/// A square's columns.
#[derive(Clone)]
struct Square([Lanes; LANES]);

impl KernelFn for Square {
    type Output = [Lanes; LANES];

    #[inline(always)]
    fn call<K: Kernel>(self, kernel: K) -> [Lanes; LANES] {
        let (mut rows, mut columns) = ([kernel.splat(0.0); LANES], self.0);
        for (row, lanes) in rows.iter_mut().zip(&self.0) {
            *row = kernel.load(lanes);
        }
        for (column, lanes) in kernel.transpose(rows).into_iter().zip(&mut columns) {
            kernel.store(column, lanes);
        }
        columns
    }
}

#[test]
fn squares_are_transposed() {
    let number = |row, column| (row * LANES + column) as f32;
    let rows = std::array::from_fn(|row| std::array::from_fn(|column| number(row, column)));
    let expected: [Lanes; LANES] =
        std::array::from_fn(|column| std::array::from_fn(|row| number(row, column)));
    for (instructions, columns) in results(&Square(rows)) {
        assert_eq!(columns, expected, "{instructions}");
    }
}

/// Whether a function panics for each kernel.
fn assert_panics(function: &(impl KernelFn + Clone)) {
    for instructions in InstructionSet::available() {
        let function = function.clone();
        let result =
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| instructions.call(function)));
        assert!(result.is_err(), "{instructions}");
    }
}

/// A tile with one row more than the kernel's maximum.
#[derive(Clone)]
struct OneTooMany;

impl KernelFn for OneTooMany {
    type Output = ();

    fn call<K: Kernel>(self, kernel: K) {
        let panel = Panel {
            blocks: &[[[0; GROUP]; LANES]],
            column_sums: &[0; LANES],
        };
        let rows = vec![0; (K::TILE_ROWS + 1) * row_size::<K>(GROUP)];
        kernel.tile(
            &rows,
            [panel; 2],
            &mut vec![[[0; LANES]; 2]; K::TILE_ROWS + 1],
        );
    }
}

#[test]
fn arguments_that_do_not_fit_are_refused() {
    let tile = |row_count, steps, activations: usize| {
        Tile::new(
            row_count,
            steps,
            &vec![0; activations],
            &vec![0; 2 * steps * GROUP * LANES],
        )
    };
    assert_panics(&OneTooMany);
    assert_panics(&tile(2, 2, 15));
    assert_panics(&tile(2, 2, 20));
    let mut uneven = tile(2, 2, 16);
    uneven.panels[1].pop();
    assert_panics(&uneven);
    let scaled = Scaled::new(tile(2, 2, 16), &mut Numbers::new(1));
    assert_equal(&scaled);
    assert_panics(&Scaled {
        tile: uneven,
        ..scaled.clone()
    });
    for ranges in [vec![], scaled.ranges[..1].to_vec(), scaled.ranges.repeat(2)] {
        assert_panics(&Scaled {
            ranges,
            ..scaled.clone()
        });
    }
    let needed = scaled.stride + COLUMNS;
    assert_equal(&Scaled {
        length: needed,
        ..scaled.clone()
    });
    assert_panics(&Scaled {
        length: needed - 1,
        ..scaled.clone()
    });
    assert_panics(&Scaled {
        stride: usize::MAX,
        ..scaled
    });
    let product = Product {
        depth: 3,
        a: vec![0.0; 8],
        a_stride: 5,
        b: vec![0.0; 98],
        b_stride: 33,
        row_count: 2,
    };
    assert_equal(&product);
    assert_panics(&Product {
        depth: 4,
        ..product.clone()
    });
    assert_panics(&Product {
        row_count: 3,
        ..product.clone()
    });
    assert_panics(&Product {
        row_count: 0,
        ..product.clone()
    });
    assert_panics(&Product {
        a_stride: 6,
        ..product.clone()
    });
    assert_panics(&Product {
        b_stride: 34,
        ..product.clone()
    });
    assert_panics(&Product {
        b_stride: usize::MAX,
        ..product
    });
}

/// The kernel for AVX2 adds two blocks' products at once.
#[cfg(target_arch = "x86_64")]
#[test]
fn small_quads_need_an_even_number_of_blocks() {
    let Some(kernel) = Avx2::new() else { return };
    let tile = |steps| {
        Tile::new(
            2,
            steps,
            &[0; 2 * 6 * GROUP][..2 * steps * GROUP],
            &vec![0; 2 * steps * GROUP * LANES],
        )
    };
    let call = |tile| std::panic::catch_unwind(|| kernel.call(SmallQuads(tile)));
    assert!(call(tile(6)).is_ok());
    assert!(call(tile(5)).is_err());
}

/// With as many inputs as fit into several parts of a panel, and with so many that sums exceed an `i32`.
#[test]
fn extreme_sums_do_not_saturate() {
    for (activation, weight) in [(255, 0x80), (255, 0x7f), (0, 0x80), (128, 0x80)] {
        for (row_count, inputs) in [
            (1, 384),
            (4, 600),
            (7, 384),
            (16, 384),
            (18, 1100),
            (48, 600),
            (17, 80_000),
        ] {
            let activations = vec![activation; row_count * inputs];
            let weights = vec![weight; 2 * inputs * LANES];
            let tile = Tile::new(row_count, inputs / GROUP, &activations, &weights);
            let expected = i32::from(activation) * i32::from(weight.cast_signed());
            let expected = expected.wrapping_mul(inputs as i32);
            for (instructions, found) in results(&tile) {
                assert_eq!(
                    found,
                    vec![[[expected; LANES]; 2]; row_count],
                    "{instructions}, {inputs}"
                );
            }
        }
    }
}

#[test]
fn extreme_sums_of_small_quads_do_not_saturate() {
    for quad in [
        [32, 32, 32, 32],
        [127, 1, 0, 0],
        [0, 64, 0, 64],
        [1, 0, 127, 0],
    ] {
        for (row_count, sign) in [(1, 1), (4, -1), (11, 1)] {
            let [a, b, c, d]: [u8; 4] = quad.map(|weight: i8| (sign * weight).cast_unsigned());
            let blocks = [[a, b, 0, 0], [c, d, 0, 0]]
                .map(|group| group.repeat(LANES))
                .concat();
            let tile = Tile::new(
                row_count,
                6,
                &vec![255; row_count * 6 * GROUP],
                &blocks.repeat(6),
            );
            let expected = 3 * 255 * i32::from(sign) * i32::from(MAX_QUAD_SUM);
            for (instructions, found) in results(&SmallQuads(tile)) {
                assert_eq!(
                    found,
                    vec![[[expected; LANES]; 2]; row_count],
                    "{instructions}"
                );
            }
        }
    }
}

#[test]
fn minimum_and_maximum_are_the_second_operand_for_nan_and_zeros() {
    const NAN: f32 = f32::NAN;
    #[derive(Clone)]
    struct Extremes;
    impl KernelFn for Extremes {
        type Output = [Vec<u32>; 2];
        fn call<K: Kernel>(self, kernel: K) -> Self::Output {
            let mut a = [0.0; LANES];
            let mut b = [0.0; LANES];
            a[..6].copy_from_slice(&[NAN, 1.0, 0.0, -0.0, NAN, -1.0]);
            b[..6].copy_from_slice(&[1.0, NAN, -0.0, 0.0, -0.0, 1.0]);
            let (a, b) = (kernel.load(&a), kernel.load(&b));
            [kernel.min(a, b), kernel.max(a, b)].map(|result| {
                let mut out = [0.0; LANES];
                kernel.store(result, &mut out);
                bits(&out[..6])
            })
        }
    }
    for (instructions, [least, most]) in results(&Extremes) {
        assert_eq!(
            least,
            bits(&[1.0, NAN, -0.0, 0.0, -0.0, -1.0]),
            "{instructions}"
        );
        assert_eq!(
            most,
            bits(&[1.0, NAN, -0.0, 0.0, -0.0, 1.0]),
            "{instructions}"
        );
    }
}
