//! Detects this processor's int8 matmul instructions, in ONNX Runtime's selection order.

use std::{fmt, sync::LazyLock};

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use kivu_engine::kernel::AmxInt8;
#[cfg(target_arch = "x86_64")]
use kivu_engine::kernel::{Avx2, Avx512Vnni, AvxVnni};
#[cfg(target_arch = "aarch64")]
use kivu_engine::kernel::{NeonDotProduct, NeonI8mm};

/// Int8 matmul instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Int8Instructions {
    /// x86-64, AMX int8 tiles.
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
    /// arm64, int8 matrix products.
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
    /// This processor's best instructions.
    pub fn detected() -> Self {
        *DETECTED
    }

    /// Whether u8 × i8 product sums saturate at 16 bits. u8 × u8 products are exact on all processors.
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
    let avx512 = || {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq")
            && is_x86_feature_detected!("avx512vl")
    };
    if Avx512Vnni::new().is_some() {
        if has_amx() {
            Int8Instructions::Amx
        } else {
            Int8Instructions::Avx512Vnni
        }
    } else if AvxVnni::new().is_some() {
        Int8Instructions::AvxVnni
    } else if avx512() {
        Int8Instructions::Avx512
    } else if Avx2::new().is_some() {
        Int8Instructions::Avx2
    } else {
        Int8Instructions::Sse
    }
}

/// Whether the processor has AMX, which ONNX Runtime uses under Linux only.
#[cfg(target_arch = "x86_64")]
fn has_amx() -> bool {
    #[cfg(target_os = "linux")]
    return AmxInt8::new().is_some();
    #[cfg(not(target_os = "linux"))]
    false
}

#[cfg(target_arch = "aarch64")]
fn detect() -> Int8Instructions {
    if NeonI8mm::new().is_some() {
        Int8Instructions::NeonI8mm
    } else if NeonDotProduct::new().is_some() {
        Int8Instructions::NeonDotProduct
    } else {
        Int8Instructions::Neon
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
        let saturating: Vec<String> = all
            .iter()
            .filter(|it| it.saturate())
            .map(ToString::to_string)
            .collect();
        assert_eq!(saturating, ["AVX-512", "AVX2", "SSE"]);
    }
}
