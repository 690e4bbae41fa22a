//! The kernel for x86-64 processors with 8-bit matrix products (AMX), under Linux.
//!
//! A matrix register has 16 rows with 64 bytes. A product adds those of 16 activation rows with 64 inputs and of a panel's
//! 16 columns to a register with 16 × 16 sums. Products of other numbers of inputs, and all other operations, are
//! AVX-512's.

#![expect(
    unsafe_code,
    reason = "the argument is in the documentation of the crate"
)]

use std::{
    arch::{asm, x86_64::*},
    cell::Cell,
};

use super::{
    Avx512Vnni, Block, GROUP, Kernel, KernelFn, LANES, Lanes, MAX_TILE_ROWS, Panel, Rows, RowsMut,
    ScaledTile, Sums, Totals, assert_tile, avx512, row_size,
};

/// AMX with 8-bit products, and AVX-512 with VNNI.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AmxInt8(Avx512Vnni);

/// Rows of a matrix register.
const REGISTER_ROWS: usize = 16;
/// Bytes per row of a matrix register.
const REGISTER_SIZE: usize = 64;
/// Blocks per panel that a product reads.
const STEP: usize = REGISTER_SIZE / GROUP;

impl AmxInt8 {
    /// The kernel, or `None` if this processor or its operating system lacks its features.
    pub fn new() -> Option<Self> {
        let kernel = Avx512Vnni::new()?;
        (has_amx() && is_permitted()).then_some(Self(kernel))
    }

    /// The kernel whose operations on numbers this one has.
    pub fn avx512(self) -> Avx512Vnni {
        self.0
    }
}

/// Whether the processor has the instructions, which the standard library does not detect yet.
fn has_amx() -> bool {
    const TILES_AND_INT8: u32 = 0b11 << 24;
    let (most, _) = __get_cpuid_max(0);
    most >= 7 && __cpuid_count(7, 0).edx & TILES_AND_INT8 == TILES_AND_INT8
}

/// Asks the operating system for the registers, which it saves for processes that have asked.
fn is_permitted() -> bool {
    const ARCH_PRCTL: isize = 158;
    const REQUEST_PERMISSION: isize = 0x1023;
    const TILE_DATA: isize = 18;
    let status: isize;
    // SAFETY: a system call that reads and writes no memory of this process.
    unsafe {
        asm!(
            "syscall", inlateout("rax") ARCH_PRCTL => status, in("rdi") REQUEST_PERMISSION, in("rsi") TILE_DATA,
            lateout("rcx") _, lateout("r11") _, options(nostack),
        );
    }
    status == 0
}

/// Row counts of the matrix registers, as `ldtilecfg` reads them.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    first_row: u8,
    reserved: [u8; 14],
    row_sizes: [u16; 16],
    row_counts: [u8; 16],
}

thread_local! {
    /// Rows that this thread's registers are configured for; 0 before their first use in a [`Kernel::call`].
    static CONFIGURED: Cell<usize> = const { Cell::new(0) };
}

/// Configures the registers for a tile with as many rows. Sums and activations of the last rows have what is left.
///
/// # Safety
/// The processor has the instructions, and they are permitted.
unsafe fn configure(rows: usize) {
    if CONFIGURED.get() == rows {
        return;
    }
    let last = (rows - 1) % REGISTER_ROWS + 1;
    // Sums, then activations; the other registers have weights.
    let partial: &[usize] = match rows.div_ceil(REGISTER_ROWS) {
        1 => &[0, 1, 4],
        2 => &[2, 3, 5],
        _ => &[2, 5],
    };
    let mut row_counts = [0; 16];
    row_counts[..8].fill(REGISTER_ROWS as u8);
    partial
        .iter()
        .for_each(|register| row_counts[*register] = last as u8);
    let mut row_sizes = [0; 16];
    row_sizes[..8].fill(REGISTER_SIZE as u16);
    let configuration = Configuration {
        palette: 1,
        first_row: 0,
        reserved: [0; 14],
        row_sizes,
        row_counts,
    };
    // SAFETY: the configuration is 64 bytes long and valid: at most 16 rows of 64 bytes in eight registers.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const configuration, options(nostack, readonly)) };
    CONFIGURED.set(rows);
}

/// Returns the registers to their initial state, so that the operating system need not save them.
///
/// # Safety
/// The processor has the instructions, and they are permitted.
unsafe fn release() {
    if CONFIGURED.replace(0) != 0 {
        // SAFETY: per this function's contract.
        unsafe { asm!("tilerelease", options(nomem, nostack)) };
    }
}

/// Implements methods by AVX-512's.
macro_rules! as_avx512 {
    ($(fn $name:ident($($argument:ident: $type:ty),*) $(-> $output:ty)?;)*) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $type),*) $(-> $output)? {
            self.0.$name($($argument),*)
        }
    )*};
}

impl Kernel for AmxInt8 {
    type F32x16 = __m512;

    /// With an odd number of cache lines, rows do not share few sets of the cache.
    const ROW_END_SIZE: usize = REGISTER_SIZE;
    const TILE_ROWS: usize = MAX_TILE_ROWS;

    as_avx512! {
        fn load(values: &Lanes) -> __m512;
        fn store(a: __m512, out: &mut Lanes);
        fn splat(value: f32) -> __m512;
        fn add(a: __m512, b: __m512) -> __m512;
        fn sub(a: __m512, b: __m512) -> __m512;
        fn mul(a: __m512, b: __m512) -> __m512;
        fn div(a: __m512, b: __m512) -> __m512;
        fn mul_add(a: __m512, b: __m512, c: __m512) -> __m512;
        fn min(a: __m512, b: __m512) -> __m512;
        fn max(a: __m512, b: __m512) -> __m512;
        fn load_i32(values: &Sums) -> __m512;
        fn shift_exponent(a: __m512, n: __m512) -> __m512;
        fn transpose(rows: [__m512; LANES]) -> [__m512; LANES];
        fn low_bytes(a: __m512) -> [u8; LANES];
        fn store_activations(a: __m512, out: &mut [u8]);
        fn product(depth: usize, a: Rows<'_>, b: Rows<'_>, out: &mut [[Lanes; 2]]);
    }

    fn call<F: KernelFn>(self, function: F) -> F::Output {
        // SAFETY: `self` is proof that the processor has the features.
        unsafe { call(self, function) }
    }

    fn tile(self, rows: &[u8], panels: [Panel<'_>; 2], out: &mut [[Sums; 2]]) {
        assert_tile::<Self>(rows, &panels, out.len());
        let panels_are_whole = is_whole(panels[0].blocks);
        // SAFETY: `self` is proof that the processor has the features. The row length was asserted.
        unsafe {
            if panels_are_whole {
                configure(out.len());
                multiply(rows, [panels[0].blocks, panels[1].blocks], out);
            } else {
                avx512::tile(self, rows, panels, out);
            }
        }
    }

    #[inline(always)]
    fn add_tile(
        self,
        tile: &ScaledTile<'_>,
        sums: &mut [[Sums; 2]],
        totals: &mut [[Lanes; 2]],
        out: Option<RowsMut<'_>>,
    ) {
        if is_whole(tile.panels[0].blocks) {
            self.tile(tile.rows, tile.panels, sums);
            Totals::new(self, tile, totals, out).add_all(sums);
        } else {
            // SAFETY: `self` is proof that the processor has the features.
            unsafe { avx512::add_tile(self, tile, totals, out) }
        }
    }
}

/// Whether products by matrix registers read all of a panel.
#[inline(always)]
fn is_whole(blocks: &[Block]) -> bool {
    !blocks.is_empty() && blocks.len().is_multiple_of(STEP)
}

#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma")]
fn call<F: KernelFn>(kernel: AmxInt8, function: F) -> F::Output {
    // Earlier code on this thread may have configured the tiles in another way.
    CONFIGURED.set(0);
    let output = function.call(kernel);
    // SAFETY: `kernel` is proof that the processor has the instructions.
    unsafe { release() };
    output
}

/// A product's operands; the pointers are to the first row, the first blocks and the first sums.
#[derive(Clone, Copy)]
struct Operands {
    rows: *const u8,
    /// Bytes per row.
    size: usize,
    panels: [*const Block; 2],
    /// Products per panel.
    steps: usize,
    out: *mut Sums,
}

impl Operands {
    /// The first of the rows for another register. If there are none, it is not read.
    fn register_rows(&self, register: usize) -> *const u8 {
        self.rows.wrapping_add(register * REGISTER_ROWS * self.size)
    }
}

/// Bytes between the sums of rows.
const STRIDE: usize = size_of::<[Sums; 2]>();

/// Multiplies rows by both panels.
///
/// # Safety
/// The processor has the instructions, and the registers are configured for as many rows as `out` has. `rows` has these
/// rows, each with one activation per input in the panels, which have equally many blocks and are [whole](is_whole).
unsafe fn multiply(rows: &[u8], panels: [&[Block]; 2], out: &mut [[Sums; 2]]) {
    let operands = Operands {
        rows: rows.as_ptr(),
        size: row_size::<AmxInt8>(panels[0].len() * GROUP),
        panels: [panels[0].as_ptr(), panels[1].as_ptr()],
        steps: panels[0].len() / STEP,
        out: out.as_mut_ptr().cast(),
    };
    // SAFETY: per this function's contract: registers read 64 bytes of each row and 16 blocks per step, and write their
    // rows of `out`, of which each has two times 64 bytes.
    unsafe {
        match out.len().div_ceil(REGISTER_ROWS) {
            1 => multiply_16(operands),
            2 => multiply_32(operands),
            _ => multiply_48(operands),
        }
    }
}

/// Multiplies up to 16 rows.
///
/// # Safety
/// As for [`multiply`].
unsafe fn multiply_16(operands: Operands) {
    // SAFETY: per this function's contract.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "2:",
            "tileloadd tmm4, [{row} + {size} * 1]",
            "tileloadd tmm6, [{left} + {line} * 1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {line} * 1]",
            "tdpbusd tmm1, tmm4, tmm7",
            "add {row}, 64",
            "add {left}, 1024",
            "add {right}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {stride} * 1], tmm0",
            "tilestored [{out} + {stride} * 1 + 64], tmm1",
            row = inout(reg) operands.rows => _,
            left = inout(reg) operands.panels[0] => _,
            right = inout(reg) operands.panels[1] => _,
            steps = inout(reg) operands.steps => _,
            size = in(reg) operands.size,
            line = in(reg) size_of::<Block>(),
            out = in(reg) operands.out,
            stride = in(reg) STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm4") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies 17 to 32 rows.
///
/// # Safety
/// As for [`multiply`].
unsafe fn multiply_32(operands: Operands) {
    // SAFETY: per this function's contract.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "tileloadd tmm4, [{row} + {size} * 1]",
            "tileloadd tmm6, [{left} + {line} * 1]",
            "tileloadd tmm5, [{next} + {size} * 1]",
            "tileloadd tmm7, [{right} + {line} * 1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tdpbusd tmm1, tmm4, tmm7",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {row}, 64",
            "add {next}, 64",
            "add {left}, 1024",
            "add {right}, 1024",
            "dec {steps}",
            "jnz 2b",
            "tilestored [{out} + {stride} * 1], tmm0",
            "tilestored [{out} + {stride} * 1 + 64], tmm1",
            "tilestored [{out} + {stride} * 1 + 2048], tmm2",
            "tilestored [{out} + {stride} * 1 + 2112], tmm3",
            row = inout(reg) operands.rows => _,
            next = inout(reg) operands.register_rows(1) => _,
            left = inout(reg) operands.panels[0] => _,
            right = inout(reg) operands.panels[1] => _,
            steps = inout(reg) operands.steps => _,
            size = in(reg) operands.size,
            line = in(reg) size_of::<Block>(),
            out = in(reg) operands.out,
            stride = in(reg) STRIDE,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}

/// Multiplies 33 to 48 rows by one panel after the other: six registers of sums would leave too few for activations and
/// weights.
///
/// # Safety
/// As for [`multiply`].
unsafe fn multiply_48(operands: Operands) {
    for (n, panel) in operands.panels.into_iter().enumerate() {
        // SAFETY: per this function's contract.
        unsafe {
            asm!(
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "2:",
                "tileloadd tmm6, [{panel} + {line} * 1]",
                "tileloadd tmm3, [{row} + {size} * 1]",
                "tdpbusd tmm0, tmm3, tmm6",
                "tileloadd tmm4, [{next} + {size} * 1]",
                "tdpbusd tmm1, tmm4, tmm6",
                "tileloadd tmm5, [{last} + {size} * 1]",
                "tdpbusd tmm2, tmm5, tmm6",
                "add {row}, 64",
                "add {next}, 64",
                "add {last}, 64",
                "add {panel}, 1024",
                "dec {steps}",
                "jnz 2b",
                "tilestored [{out} + {stride} * 1], tmm0",
                "tilestored [{out} + {stride} * 1 + 2048], tmm1",
                "tilestored [{out} + {stride} * 1 + 4096], tmm2",
                row = inout(reg) operands.rows => _,
                next = inout(reg) operands.register_rows(1) => _,
                last = inout(reg) operands.register_rows(2) => _,
                panel = inout(reg) panel => _,
                steps = inout(reg) operands.steps => _,
                size = in(reg) operands.size,
                line = in(reg) size_of::<Block>(),
                out = in(reg) operands.out.wrapping_add(n),
                stride = in(reg) STRIDE,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _,
                options(nostack),
            );
        }
    }
}
