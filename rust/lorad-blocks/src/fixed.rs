//! Logarithm and power of two in fixed point.
//!
//! The floating-point functions of the standard library may differ in their last bit between platforms. What decides a
//! trace is computed here, in whole numbers, so that a seed means the same trace everywhere. `Q32` is a number times 2³².

/// 1 in Q32.
pub const ONE: u64 = 1 << 32;
/// ln 2 in Q32.
pub const LN_2: u64 = 2_977_044_472;
/// log₂ e in Q32.
pub const LOG2_E: u64 = 6_196_328_019;
/// ln 2 in Q62.
const LN_2_Q62: u128 = 0x2c5c_85fd_f473_de6a;

/// log₂ of a whole number in Q32, exact to about 2⁻³¹. 0 counts as 1.
pub fn log2(x: u64) -> u64 {
    let x = x.max(1);
    let whole = 63 - x.leading_zeros();
    // in [2⁶³, 2⁶⁴): squaring it doubles its logarithm, and the carry is the next bit
    let mut mantissa = u128::from(x) << (63 - whole);
    let mut fraction = 0u64;
    for bit in (0..32).rev() {
        mantissa = (mantissa * mantissa) >> 63;
        if mantissa >= 1 << 64 {
            mantissa >>= 1;
            fraction |= 1 << bit;
        }
    }
    u64::from(whole) << 32 | fraction
}

/// 2^y of a Q32 number, as a Q32 number: 0 when it's too small for one, the largest when it's too large.
pub fn exp2(y: i64) -> u64 {
    let (whole, fraction) = (y >> 32, (y & 0xffff_ffff) as u128);
    // e^x for x = fraction · ln 2 < 0.7: the series' 20th term is below 2⁻⁶²
    let x = (fraction * LN_2_Q62) >> 32;
    let (mut sum, mut term) = (1u128 << 62, 1u128 << 62);
    for k in 1..=20 {
        term = ((term * x) >> 62) / k;
        sum += term;
    }
    match whole {
        32.. => u64::MAX,
        0..=31 => u64::try_from((sum << whole) >> 30).unwrap_or(u64::MAX),
        -33..=-1 => (sum >> (30 - whole)) as u64,
        _ => 0,
    }
}

/// `value` times a Q32 number, rounded down; saturates.
pub fn scale(value: u64, factor: u64) -> u64 {
    u64::try_from((u128::from(value) * u128::from(factor)) >> 32).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn float(q32: u64) -> f64 {
        q32 as f64 / ONE as f64
    }

    #[test]
    fn logarithms_are_those_of_the_standard_library() {
        for x in (1..2000).chain([1 << 20, u64::MAX / 3, u64::MAX]) {
            assert!((float(log2(x)) - (x as f64).log2()).abs() < 1e-8, "{x}");
        }
        assert_eq!((log2(0), log2(1), log2(8)), (0, 0, 3 << 32));
    }

    #[test]
    fn powers_are_those_of_the_standard_library() {
        for step in -1000..=1000i64 {
            let y = step * (ONE as i64) / 40;
            let (found, expected) = (float(exp2(y)), (y as f64 / ONE as f64).exp2());
            assert!((found - expected).abs() <= 3e-9 * expected.max(0.1), "{step}: {found} {expected}");
        }
        assert_eq!((exp2(0), exp2(3 << 32)), (ONE, 8 * ONE));
        assert_eq!((exp2(40 << 32), exp2(-(40 << 32))), (u64::MAX, 0));
    }
}
