//! All kernels that this processor can execute return what [`Plain`] returns, bit for bit.

use proptest::prelude::*;

use super::{
    Block, GROUP, InstructionSet, Kernel, KernelFn, LANES, Lanes, MAX_ROWS, Panel, Plain, Rows, Sums,
    column_sums,
};

/// The results of a function for each kernel, the reference last.
fn results<F: KernelFn + Clone>(function: F) -> Vec<(InstructionSet, F::Output)> {
    InstructionSet::available()
        .map(|instructions| (instructions, instructions.call(function.clone())))
        .collect()
}

/// Fails unless all results are those of the reference.
fn assert_equal<F: KernelFn<Output: PartialEq + std::fmt::Debug> + Clone>(function: F) {
    let expected = Plain.call(function.clone());
    for (instructions, found) in results(function) {
        assert_eq!(found, expected, "{instructions}");
    }
}

/// The bits of numbers, where all NaNs are equal.
fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| if value.is_nan() { f32::NAN.to_bits() } else { value.to_bits() }).collect()
}

/// A byte, often an extreme one.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![any::<u8>(), Just(0), Just(1), Just(127), Just(128), Just(255)]
}

/// Any number, often a special one.
fn number() -> impl Strategy<Value = f32> {
    const SPECIAL: [f32; 9] =
        [0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MIN, f32::MAX, f32::MIN_POSITIVE, 1e-40];
    prop_oneof![3 => -10.0..10.0f32, 1 => any::<f32>(), 1 => prop::sample::select(&SPECIAL[..])]
}

fn lanes() -> impl Strategy<Value = Lanes> {
    prop::collection::vec(number(), LANES).prop_map(|values| values.try_into().unwrap())
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

    /// Without packing, by the definition of a product.
    fn expected(&self) -> Vec<[Sums; 2]> {
        let depth = self.rows.len() / self.row_count;
        let product = |row: &[u8], panel: &[Block], column: usize| {
            let weight = |input: usize| i32::from(panel[input / GROUP][column][input % GROUP]);
            row.iter().enumerate().map(|(input, value)| i32::from(*value) * weight(input)).sum()
        };
        let sums = |row, panel: &Vec<Block>| std::array::from_fn(|column| product(row, panel, column));
        self.rows
            .chunks_exact(depth)
            .map(|row| self.panels.each_ref().map(|panel| sums(row, panel)))
            .collect()
    }
}

impl KernelFn for Tile {
    type Output = Vec<[Sums; 2]>;

    fn call<K: Kernel>(self, kernel: K) -> Self::Output {
        let column_sums = self.panels.each_ref().map(|panel| column_sums(panel));
        let panels = [0, 1].map(|n| Panel { blocks: &self.panels[n], column_sums: &column_sums[n] });
        let mut packed = vec![0; self.rows.len() * K::PACKED_SIZE];
        kernel.pack(&self.rows, self.row_count, &mut packed);
        let mut out = vec![[[i32::MIN; LANES]; 2]; self.row_count];
        kernel.tile(&packed, panels, &mut out);
        out
    }
}

fn tile() -> impl Strategy<Value = Tile> {
    (1..=MAX_ROWS, 1..40usize).prop_flat_map(|(row_count, steps)| {
        let activations = prop::collection::vec(byte(), row_count * steps * GROUP);
        let weights = prop::collection::vec(byte(), 2 * steps * GROUP * LANES);
        (activations, weights)
            .prop_map(move |(activations, weights)| Tile::new(row_count, steps, &activations, &weights))
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
        let a = Rows { values: &self.a, stride: self.a_stride };
        let b = Rows { values: &self.b, stride: self.b_stride };
        kernel.product(self.depth, a, b, &mut out);
        bits(out.as_flattened().as_flattened())
    }
}

fn product() -> impl Strategy<Value = Product> {
    let number = prop_oneof![20 => -10.0..10.0f32, 1 => number()];
    (1..=MAX_ROWS, 0..40usize, 0..3usize, 0..3usize, prop::collection::vec(number, 64)).prop_map(
        |(row_count, depth, a_gap, b_gap, numbers)| {
            let (a_stride, b_stride) = (depth + a_gap, 2 * LANES + b_gap);
            let values = |count: usize, seed: usize| {
                (0..count).map(|i| numbers[(i * i + seed * i + seed) % numbers.len()]).collect::<Vec<_>>()
            };
            // No values after the end of the last row.
            let a = values((row_count - 1) * a_stride + depth, 7);
            let b = values(depth.checked_sub(1).map_or(0, |last| last * b_stride + 2 * LANES), 3);
            Product { depth, a, a_stride, b, b_stride, row_count }
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
        let shift = self.integers.map(|integer| 12_582_912.0 + (integer % 1000) as f32);
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
            kernel.from_i32(&self.integers),
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn tiles_are_exact(tile in tile()) {
        assert_eq!(Plain.call(tile.clone()), tile.expected());
        assert_equal(tile);
    }

    #[test]
    fn products_have_the_bits_of_the_reference(product in product()) {
        assert_equal(product);
    }

    #[test]
    fn operations_have_the_bits_of_the_reference(
        values in [lanes(), lanes(), lanes()],
        integers in prop::array::uniform16(any::<i32>()),
    ) {
        assert_equal(Operations { values, integers });
    }
}

#[test]
fn extreme_sums_do_not_saturate() {
    for (activation, weight) in [(255, 0x80), (255, 0x7f), (0, 0x80), (128, 0x80)] {
        for row_count in 1..=MAX_ROWS {
            let steps = 384 / GROUP;
            let activations = vec![activation; row_count * steps * GROUP];
            let weights = vec![weight; 2 * steps * GROUP * LANES];
            let tile = Tile::new(row_count, steps, &activations, &weights);
            let expected = 384 * i32::from(activation) * i32::from(weight.cast_signed());
            for (instructions, found) in results(tile) {
                assert_eq!(found, vec![[[expected; LANES]; 2]; row_count], "{instructions}");
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
    for (instructions, [least, most]) in results(Extremes) {
        assert_eq!(least, bits(&[1.0, NAN, -0.0, 0.0, -0.0, -1.0]), "{instructions}");
        assert_eq!(most, bits(&[1.0, NAN, -0.0, 0.0, -0.0, 1.0]), "{instructions}");
    }
}
