//! Numbers in fp32 that may be stored in 16 bits.

use crate::array::Array;

/// 2^112, between the exponents of fp16 and fp32.
const EXPONENTS: f32 = f32::from_bits((127 + 112) << 23);

/// Numbers in fp32, stored as such, or in 16 bits that hold exactly these numbers.
#[derive(Clone, Debug)]
pub enum Floats {
    /// 32 bits.
    F32(Array<f32>),
    /// The bits of finite numbers in fp16.
    F16(Array<u16>),
    /// The bits of numbers in bf16.
    Bf16(Array<u16>),
}

impl Floats {
    /// How many numbers these are.
    #[inline(always)]
    pub fn len(&self) -> usize {
        match self {
            Self::F32(values) => values.len(),
            Self::F16(bits) | Self::Bf16(bits) => bits.len(),
        }
    }

    /// Whether there is no number.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The numbers that are stored in 32 bits.
    #[inline(always)]
    pub fn in_32_bits(&self) -> &[f32] {
        match self {
            Self::F32(values) => values,
            Self::F16(_) | Self::Bf16(_) => &[],
        }
    }

    /// Copies the numbers from `start` on.
    ///
    /// # Panics
    /// Unless there are as many as `out` has.
    #[inline(always)]
    pub fn read(&self, start: usize, out: &mut [f32]) {
        let part = start..start + out.len();
        match self {
            Self::F32(values) => out.copy_from_slice(&values[part]),
            Self::F16(bits) => {
                for (out, bits) in out.iter_mut().zip(&bits[part]) {
                    let (bits, sign) = (u32::from(bits & 0x7fff), u32::from(bits & 0x8000));
                    let magnitude = f32::from_bits(bits << 13) * EXPONENTS;
                    *out = f32::from_bits(magnitude.to_bits() | sign << 16);
                }
            }
            Self::Bf16(bits) => {
                for (out, bits) in out.iter_mut().zip(&bits[part]) {
                    *out = f32::from_bits(u32::from(*bits) << 16);
                }
            }
        }
    }
}

impl From<Vec<f32>> for Floats {
    fn from(values: Vec<f32>) -> Self {
        Self::F32(values.into())
    }
}

impl From<Array<f32>> for Floats {
    fn from(values: Array<f32>) -> Self {
        Self::F32(values)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(floats: &Floats) -> Vec<u32> {
        let mut out = vec![0.0; floats.len() - 1];
        floats.read(1, &mut out);
        out.into_iter().map(f32::to_bits).collect()
    }

    #[test]
    fn every_number_in_16_bits_is_read() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        let expected: Vec<u32> = all[1..].iter().map(|bits| u32::from(*bits) << 16).collect();
        assert_eq!(read(&Floats::Bf16(all.into())), expected);
        // Infinities and NaN are not stored.
        let finite: Vec<u16> = (0..=u16::MAX)
            .filter(|bits| bits & 0x7c00 != 0x7c00)
            .collect();
        let number = |bits: u16| {
            let fraction = f64::from(bits & 0x3ff) / 1024.0;
            let magnitude = match bits >> 10 & 0x1f {
                0 => fraction * 2_f64.powi(-14),
                exponent => (1.0 + fraction) * 2_f64.powi(i32::from(exponent) - 15),
            };
            let sign = if bits >> 15 == 1 { -1.0 } else { 1.0 };
            ((sign * magnitude) as f32).to_bits()
        };
        let expected: Vec<u32> = finite[1..].iter().map(|bits| number(*bits)).collect();
        assert_eq!(read(&Floats::F16(finite.into())), expected);
    }
}
