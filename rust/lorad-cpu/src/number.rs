//! 16-bit floats: widening and rounding, one type for each element of the pages.

/// A stored number type, widened to f32 to compute.
pub trait Number: Copy + Send + Sync + 'static {
    /// Bytes of one element.
    const SIZE: usize;
    /// Element `index` of little-endian `bytes`.
    fn get(bytes: &[u8], index: usize) -> f32;
    /// Writes element `index`, rounded to nearest, ties to even.
    fn put(bytes: &mut [u8], index: usize, value: f32);
}

/// f32 as it is.
#[derive(Clone, Copy, Debug)]
pub struct F32;
/// IEEE half.
#[derive(Clone, Copy, Debug)]
pub struct F16;
/// bfloat16.
#[derive(Clone, Copy, Debug)]
pub struct BF16;

fn half(bytes: &[u8], index: usize) -> u16 {
    u16::from_le_bytes([bytes[index * 2], bytes[index * 2 + 1]])
}

impl Number for F32 {
    const SIZE: usize = 4;
    #[inline]
    fn get(bytes: &[u8], index: usize) -> f32 {
        let at = index * 4;
        f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
    }
    #[inline]
    fn put(bytes: &mut [u8], index: usize, value: f32) {
        bytes[index * 4..index * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
}

impl Number for F16 {
    const SIZE: usize = 2;
    #[inline]
    fn get(bytes: &[u8], index: usize) -> f32 {
        f16_to_f32(half(bytes, index))
    }
    #[inline]
    fn put(bytes: &mut [u8], index: usize, value: f32) {
        bytes[index * 2..index * 2 + 2].copy_from_slice(&f32_to_f16(value).to_le_bytes());
    }
}

impl Number for BF16 {
    const SIZE: usize = 2;
    #[inline]
    fn get(bytes: &[u8], index: usize) -> f32 {
        bf16_to_f32(half(bytes, index))
    }
    #[inline]
    fn put(bytes: &mut [u8], index: usize, value: f32) {
        bytes[index * 2..index * 2 + 2].copy_from_slice(&f32_to_bf16(value).to_le_bytes());
    }
}

/// Runs `$body` with `$N` as the [`Number`] of an `Element`.
#[macro_export]
macro_rules! with_number {
    ($element:expr, $N:ident => $body:expr) => {
        match $element {
            $crate::Element::F32 => {
                type $N = $crate::number::F32;
                $body
            }
            $crate::Element::F16 => {
                type $N = $crate::number::F16;
                $body
            }
            $crate::Element::BF16 => {
                type $N = $crate::number::BF16;
                $body
            }
        }
    };
}

/// Exact.
#[inline]
pub fn bf16_to_f32(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

/// To nearest, ties to even; a NaN stays one.
#[inline]
pub fn f32_to_bf16(value: f32) -> u16 {
    let bits = value.to_bits();
    if value.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16
}

/// Exact, subnormals included.
#[inline]
pub fn f16_to_f32(bits: u16) -> f32 {
    let sign = u32::from(bits & 0x8000) << 16;
    let magnitude = u32::from(bits & 0x7fff);
    if magnitude >= 0x7c00 {
        return f32::from_bits(sign | 0x7f80_0000 | (magnitude & 0x3ff) << 13);
    }
    // Shifted into place, the number is 2^112 too small; the product is exact, also for subnormals.
    let value = f32::from_bits(magnitude << 13) * f32::from_bits((127 + 112) << 23);
    f32::from_bits(sign | value.to_bits())
}

/// To nearest, ties to even; overflow is infinite, a NaN stays one.
#[inline]
pub fn f32_to_f16(value: f32) -> u16 {
    let bits = value.to_bits();
    let sign = (bits >> 16 & 0x8000) as u16;
    let magnitude = bits & 0x7fff_ffff;
    if magnitude > 0x7f80_0000 {
        return sign | 0x7e00 | (magnitude >> 13 & 0x3ff) as u16;
    }
    if magnitude >= 0x4780_0000 {
        return sign | 0x7c00; // 65536 and more
    }
    if magnitude < 0x3880_0000 {
        // Subnormal: adding 0.5 leaves the result, rounded as the FPU rounds, in the low bits.
        let rounded = f32::from_bits(magnitude) + 0.5;
        return sign | (rounded.to_bits() - 0.5f32.to_bits()) as u16;
    }
    let rounded = magnitude - (112 << 23) + 0xfff + (magnitude >> 13 & 1);
    sign | (rounded >> 13) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_half_survives() {
        for bits in 0..=u16::MAX {
            let wide = f16_to_f32(bits);
            if wide.is_nan() {
                assert!(f16_to_f32(f32_to_f16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_f16(wide), bits);
            }
            let wide = bf16_to_f32(bits);
            if wide.is_nan() {
                assert!(bf16_to_f32(f32_to_bf16(wide)).is_nan());
            } else {
                assert_eq!(f32_to_bf16(wide), bits);
            }
        }
        assert_eq!(f16_to_f32(0x3c00), 1.0);
        assert_eq!(f16_to_f32(0x0001), 2f32.powi(-24));
        assert_eq!(f16_to_f32(0x7bff), 65504.0);
    }

    #[test]
    fn ties_go_to_even() {
        // Half-way between two neighbours, and just beside it.
        for bits in (0..0x7bffu16).step_by(37) {
            let (low, high) = (f16_to_f32(bits), f16_to_f32(bits + 1));
            let middle = (low + high) / 2.0;
            assert_eq!(f32_to_f16(middle), if bits % 2 == 0 { bits } else { bits + 1 });
            assert_eq!(f32_to_f16(f32::from_bits(middle.to_bits() + 1)), bits + 1);
            assert_eq!(f32_to_f16(-f32::from_bits(middle.to_bits() - 1)), bits | 0x8000);
        }
        assert_eq!(f32_to_f16(65519.9), 0x7bff);
        assert_eq!(f32_to_f16(65520.0), 0x7c00);
        assert_eq!(f32_to_f16(f32::INFINITY), 0x7c00);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f80_8000)), 0x3f80);
        assert_eq!(f32_to_bf16(f32::from_bits(0x3f81_8000)), 0x3f82);
        assert_eq!(f32_to_bf16(f32::MAX), 0x7f80);
    }
}
