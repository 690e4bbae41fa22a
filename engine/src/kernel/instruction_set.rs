//! Selects the kernel for this processor.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__cpuid_count, __get_cpuid_max, CpuidResult};
use std::{
    fmt,
    sync::{PoisonError, RwLock},
};

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

/// A processor's answer to an unknown question.
#[cfg(target_arch = "x86_64")]
const UNKNOWN: CpuidResult = CpuidResult {
    eax: 0,
    ebx: 0,
    ecx: 0,
    edx: 0,
};

/// The process's kernel.
static CURRENT: RwLock<Option<InstructionSet>> = RwLock::new(None);

impl InstructionSet {
    /// The process's kernel: as [chosen](Self::choose), or else [detected](Self::detected).
    pub fn current() -> Self {
        let current = *CURRENT.read().unwrap_or_else(PoisonError::into_inner);
        current.unwrap_or_else(|| Self::detected().set())
    }

    /// Chooses the process's kernel, before its first use. Returns `false` if another one is in use.
    pub fn choose(self) -> bool {
        self.set() == self
    }

    /// Sets the process's kernel unless it has one, and returns it.
    fn set(self) -> Self {
        let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
        *current.get_or_insert(self)
    }

    /// Asks the processor again, in a process that may have moved to another one: a kernel that it cannot execute is replaced by
    /// the fastest one that it can. Returns the replaced kernel.
    ///
    /// The features that the standard library detects are those of the first processor.
    pub fn check_again() -> Option<Self> {
        let mut current = CURRENT.write().unwrap_or_else(PoisonError::into_inner);
        let lost = (*current).filter(|kernel| !kernel.runs_here())?;
        *current = Self::available().find(|kernel| kernel.runs_here());
        Some(lost)
    }

    #[cfg(target_arch = "x86_64")]
    fn runs_here(self) -> bool {
        // Asks the operating system for the registers again, which may be another one, too.
        #[cfg(target_os = "linux")]
        if matches!(self, Self::AmxInt8(_)) && AmxInt8::new().is_none() {
            return false;
        }
        let (most, _) = __get_cpuid_max(0);
        self.runs_on(|leaf, part| match leaf <= most {
            true => __cpuid_count(leaf, part),
            false => UNKNOWN,
        })
    }

    /// Other processors do not describe themselves to programs.
    #[cfg(not(target_arch = "x86_64"))]
    fn runs_here(self) -> bool {
        true
    }

    /// Whether a processor with these answers to `cpuid`, by leaf and part, has the kernel's features.
    #[cfg(target_arch = "x86_64")]
    fn runs_on(self, cpuid: impl Fn(u32, u32) -> CpuidResult) -> bool {
        const FMA: u32 = 1 << 12;
        const AVX2: u32 = 1 << 5;
        /// F, DQ, BW and VL.
        const AVX512: u32 = 1 << 16 | 1 << 17 | 1 << 30 | 1 << 31;
        const AVX512_VNNI: u32 = 1 << 11;
        const AVX_VNNI: u32 = 1 << 4;
        #[cfg(target_os = "linux")]
        const AMX: u32 = 1 << 24 | 1 << 25;
        let has = |found: u32, features: u32| found & features == features;
        let features = cpuid(7, 0);
        let has_avx2 = has(cpuid(1, 0).ecx, FMA) && has(features.ebx, AVX2);
        let has_avx512 = has_avx2 && has(features.ebx, AVX512) && has(features.ecx, AVX512_VNNI);
        match self {
            #[cfg(target_os = "linux")]
            Self::AmxInt8(_) => has_avx512 && has(features.edx, AMX),
            Self::Avx512Vnni(_) => has_avx512,
            Self::AvxVnni(_) => has_avx2 && has(cpuid(7, 1).eax, AVX_VNNI),
            Self::Avx2(_) => has_avx2,
            Self::Plain(_) => true,
        }
    }

    /// The name in configurations, and the one to show.
    fn names(self) -> [&'static str; 2] {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxInt8(_) => ["amx-int8", "AMX"],
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => ["avx512-vnni", "AVX-512 VNNI"],
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => ["avx-vnni", "AVX-VNNI"],
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => ["avx2", "AVX2"],
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(_) => ["neon-i8mm", "NEON i8mm"],
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProduct(_) => ["neon-dotprod", "NEON dot product"],
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(_) => ["relaxed-dot", "WebAssembly relaxed dot product"],
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedMadd(_) => ["relaxed-madd", "WebAssembly relaxed multiply-add"],
            #[cfg(target_feature = "simd128")]
            Self::Simd128(_) => ["simd128", "WebAssembly SIMD"],
            Self::Plain(_) => ["portable"; 2],
        }
    }

    /// The name in configurations.
    pub fn name(self) -> &'static str {
        let [name, _] = self.names();
        name
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
            Self::AvxVnni(kernel) => kernel.call(function),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(kernel) => kernel.call(function),
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(kernel) => kernel.call(function),
            other => other.call_in_fp32(function),
        }
    }

    /// Calls a function without 8-bit products. It is compiled once for kernels that differ in these alone.
    pub fn call_in_fp32<F: KernelFn>(self, function: F) -> F::Output {
        match self {
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Self::AmxInt8(kernel) => kernel.avx512().call(function),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(kernel) => kernel.call(function),
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(kernel) => kernel.avx2().call(function),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(kernel) => kernel.call(function),
            #[cfg(target_arch = "aarch64")]
            Self::NeonI8mm(kernel) => kernel.dot_product().call(function),
            #[cfg(target_arch = "aarch64")]
            Self::NeonDotProduct(kernel) => kernel.call(function),
            #[cfg(target_feature = "relaxed-simd")]
            Self::RelaxedDot(kernel) => kernel.madd().call(function),
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
        let [_, shown] = self.names();
        formatter.write_str(shown)
    }
}

impl fmt::Debug for InstructionSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use super::*;

    #[test]
    fn kernels_are_dropped_with_their_features() {
        let all: Vec<_> = InstructionSet::available().collect();
        assert!(all.iter().all(|kernel| kernel.runs_here()));
        let older = |leaf, part| match (leaf, part) {
            // AVX2 and FMA, without what came later.
            (1, 0) => CpuidResult {
                ecx: 1 << 12,
                ..UNKNOWN
            },
            (7, 0) => CpuidResult {
                ebx: 1 << 5,
                ..UNKNOWN
            },
            _ => UNKNOWN,
        };
        let kept = |cpuid: fn(u32, u32) -> CpuidResult| {
            let kept = all.iter().filter(|kernel| kernel.runs_on(cpuid));
            kept.map(|kernel| kernel.name()).collect::<Vec<_>>()
        };
        let plain = ["portable"];
        assert!(
            kept(older)
                .iter()
                .all(|name| ["avx2", plain[0]].contains(name))
        );
        assert_eq!(kept(|_, _| UNKNOWN), plain);
        let chosen = InstructionSet::current();
        assert_eq!(InstructionSet::check_again(), None);
        assert_eq!(InstructionSet::current(), chosen);
    }
}
