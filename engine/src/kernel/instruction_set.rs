//! Selects the kernel for this processor.

use std::{fmt, sync::OnceLock};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use super::AmxInt8;
#[cfg(target_feature = "simd128")]
use super::Simd128;
#[cfg(target_arch = "x86_64")]
use super::{Avx2, Avx512Vnni, AvxVnni};
use super::{Kernel, KernelFn, Plain};
#[cfg(target_arch = "aarch64")]
use super::{NeonDotProduct, NeonI8mm};
#[cfg(target_feature = "relaxed-simd")]
use super::{RelaxedDot, RelaxedMadd};

/// A kernel this processor can execute.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum InstructionSet {
    /// 8-bit matrix products and AVX-512.
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    AmxInt8(AmxInt8),
    /// AVX-512 with VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    /// VNNI with 256 bits.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX2 without VNNI.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// NEON with 8-bit matrix products.
    #[cfg(target_arch = "aarch64")]
    NeonI8mm(NeonI8mm),
    /// NEON with 8-bit dot products.
    #[cfg(target_arch = "aarch64")]
    NeonDotProduct(NeonDotProduct),
    /// 128-bit vectors in WebAssembly, with fused multiply-adds and 8-bit dot products.
    #[cfg(target_feature = "relaxed-simd")]
    RelaxedDot(RelaxedDot),
    /// 128-bit vectors in WebAssembly, with fused multiply-adds.
    #[cfg(target_feature = "relaxed-simd")]
    RelaxedMadd(RelaxedMadd),
    /// 128-bit vectors in WebAssembly.
    #[cfg(target_feature = "simd128")]
    Simd128(Simd128),
    /// Ordinary Rust.
    Plain(Plain),
}

/// The process's kernel.
static CURRENT: OnceLock<InstructionSet> = OnceLock::new();

impl InstructionSet {
    /// The process's kernel: as [chosen](Self::choose), or else [detected](Self::detected).
    pub fn current() -> Self {
        *CURRENT.get_or_init(Self::detected)
    }

    /// Chooses the process's kernel, before its first use. Returns `false` if another one is in use.
    pub fn choose(self) -> bool {
        *CURRENT.get_or_init(|| self) == self
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxInt8(_) => "amx-int8",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(_) => "neon-i8mm",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProduct(_) => "neon-dotprod",
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(_) => "relaxed-dot",
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedMadd(_) => "relaxed-madd",
            #[cfg(target_feature = "simd128")]
            Self::Simd128(_) => "simd128",
            Self::Plain(_) => "portable",
        }
    }

    /// The fastest kernel for this processor.
    pub fn detected() -> Self {
        Self::available().next().unwrap_or(Self::Plain(Plain))
    }

    /// All kernels this processor can execute, fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            AmxInt8::new().map(Self::AmxInt8),
            #[cfg(target_arch = "x86_64")]
            Avx512Vnni::new().map(Self::Avx512Vnni),
            #[cfg(target_arch = "x86_64")]
            AvxVnni::new().map(Self::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Avx2::new().map(Self::Avx2),
            #[cfg(target_arch = "aarch64")]
            NeonI8mm::new().map(Self::NeonI8mm),
            #[cfg(target_arch = "aarch64")]
            NeonDotProduct::new().map(Self::NeonDotProduct),
            #[cfg(target_feature = "relaxed-simd")]
            RelaxedDot::new().map(Self::RelaxedDot),
            #[cfg(target_feature = "relaxed-simd")]
            RelaxedMadd::new().map(Self::RelaxedMadd),
            #[cfg(target_feature = "simd128")]
            Some(Self::Simd128(Simd128::new())),
            Some(Self::Plain(Plain)),
        ];
        all.into_iter().flatten()
    }

    /// Calls a function compiled for these instructions.
    pub fn call<F: KernelFn>(self, function: F) -> F::Output {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxInt8(kernel) => kernel.call(function),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(kernel) => kernel.call(function),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(kernel) => kernel.call(function),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(kernel) => kernel.call(function),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(kernel) => kernel.call(function),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProduct(kernel) => kernel.call(function),
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(kernel) => kernel.call(function),
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedMadd(kernel) => kernel.call(function),
            #[cfg(target_feature = "simd128")]
            Self::Simd128(kernel) => kernel.call(function),
            Self::Plain(kernel) => kernel.call(function),
        }
    }
}

impl fmt::Display for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxInt8(_) => "AMX",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "AVX-512 VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "AVX-VNNI",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2",
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(_) => "NEON i8mm",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProduct(_) => "NEON dot product",
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(_) => "WebAssembly relaxed dot product",
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedMadd(_) => "WebAssembly relaxed multiply-add",
            #[cfg(target_feature = "simd128")]
            Self::Simd128(_) => "WebAssembly SIMD",
            Self::Plain(_) => "portable",
        })
    }
}

impl fmt::Debug for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}
