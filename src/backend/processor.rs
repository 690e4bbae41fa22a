//! The instructions of this processor for products of 8-bit integers, as ONNX Runtime selects them.

use std::{fmt, sync::LazyLock};

/// The instructions for products of 8-bit integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Instructions {
    /// x86-64, AMX tiles of 8-bit integers.
    Amx,
    /// x86-64, AVX-512 with VNNI.
    Avx512Vnni,
    /// x86-64, VNNI with 256 bits.
    AvxVnni,
    /// x86-64, AVX-512 without VNNI.
    Avx512,
    /// x86-64, AVX2 without VNNI.
    Avx2,
    /// x86-64 without AVX2.
    Sse,
    /// arm64, products of 8-bit matrices.
    NeonI8mm,
    /// arm64, 8-bit dot products.
    NeonDotProduct,
    /// arm64 without either.
    Neon,
    /// Another architecture.
    Unknown,
}

static DETECTED: LazyLock<Int8Instructions> = LazyLock::new(detect);

impl Int8Instructions {
    /// The best instructions of this processor.
    pub fn detected() -> Self {
        *DETECTED
    }

    /// Whether sums of products of unsigned and signed integers saturate at 16 bits. Products of unsigned integers
    /// are exact on all processors.
    pub fn saturate(self) -> bool {
        matches!(self, Self::Avx512 | Self::Avx2 | Self::Sse)
    }
}

impl fmt::Display for Int8Instructions {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Amx => "AMX",
            Self::Avx512Vnni => "AVX-512 VNNI",
            Self::AvxVnni => "AVX-VNNI",
            Self::Avx512 => "AVX-512",
            Self::Avx2 => "AVX2",
            Self::Sse => "SSE",
            Self::NeonI8mm => "NEON i8mm",
            Self::NeonDotProduct => "NEON dot product",
            Self::Neon => "NEON",
            Self::Unknown => "unknown instructions",
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn detect() -> Int8Instructions {
    // ONNX Runtime requires all four to use AVX-512.
    let avx512 = is_x86_feature_detected!("avx512f")
        && is_x86_feature_detected!("avx512bw")
        && is_x86_feature_detected!("avx512dq")
        && is_x86_feature_detected!("avx512vl");
    match avx512 {
        true if is_x86_feature_detected!("avx512vnni") && has_amx() => Int8Instructions::Amx,
        true if is_x86_feature_detected!("avx512vnni") => Int8Instructions::Avx512Vnni,
        _ if is_x86_feature_detected!("avxvnni") => Int8Instructions::AvxVnni,
        true => Int8Instructions::Avx512,
        false if is_x86_feature_detected!("avx2") => Int8Instructions::Avx2,
        false => Int8Instructions::Sse,
    }
}

/// Whether the kernel reports AMX: the standard library does not detect it yet.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    flags.lines().find(|line| line.starts_with("flags")).is_some_and(|line| line.contains("amx_int8"))
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Int8Instructions {
    use std::arch::is_aarch64_feature_detected;
    match (is_aarch64_feature_detected!("i8mm"), is_aarch64_feature_detected!("dotprod")) {
        (true, _) => Int8Instructions::NeonI8mm,
        (false, true) => Int8Instructions::NeonDotProduct,
        (false, false) => Int8Instructions::Neon,
    }
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn detect() -> Int8Instructions {
    Int8Instructions::Unknown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_x86_without_vnni_saturates() {
        use Int8Instructions as I;
        let all = [
            I::Amx,
            I::Avx512Vnni,
            I::AvxVnni,
            I::Avx512,
            I::Avx2,
            I::Sse,
            I::NeonI8mm,
            I::NeonDotProduct,
            I::Neon,
        ];
        let saturating: Vec<String> =
            all.iter().filter(|it| it.saturate()).map(ToString::to_string).collect();
        assert_eq!(saturating, ["AVX-512", "AVX2", "SSE"]);
    }
}
