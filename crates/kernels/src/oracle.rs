//! What the kernels must compute, written the slow and obvious way: one element at a time, integers
//! in 128 bits, 16-bit floats by their definition in powers of two. Tests only. Shares no code with
//! what it judges.

use paceline_job::{Dtype, ReduceOp};

/// One element of `a ⊕ b`; `a`, `b` and the result are as long as an element.
pub(crate) fn combine(op: ReduceOp, dtype: Dtype, a: &[u8], b: &[u8], divisor: u32) -> Vec<u8> {
    match dtype {
        Dtype::F64 => {
            let value = combine_f64(op, f64::from_le_bytes(of(a)), f64::from_le_bytes(of(b)));
            mean_f64(op, value, divisor).to_le_bytes().to_vec()
        }
        Dtype::F32 => {
            let value = combine_f32(op, f32::from_le_bytes(of(a)), f32::from_le_bytes(of(b)));
            mean_f32(op, value, divisor).to_le_bytes().to_vec()
        }
        Dtype::F16 | Dtype::Bf16 => {
            let whole = combine_f32(op, single(dtype, a), single(dtype, b));
            let result = mean_f32(op, whole, divisor);
            nearest(dtype, result).to_le_bytes().to_vec()
        }
        Dtype::I64 | Dtype::I32 | Dtype::I8 | Dtype::U8 => {
            let (a, b) = (integer(dtype, a), integer(dtype, b));
            let result = match op {
                ReduceOp::Sum | ReduceOp::Average | ReduceOp::Mix => a + b,
                ReduceOp::Min => a.min(b),
                ReduceOp::Max => a.max(b),
                ReduceOp::Product => a * b,
            };
            let wrapped = integer(dtype, &result.to_le_bytes()[..dtype.size()]);
            let divisor = if op.divides() { i128::from(divisor.max(1)) } else { 1 };
            (wrapped / divisor).to_le_bytes()[..dtype.size()].to_vec()
        }
        Dtype::Bool => {
            let (a, b) = (a[0] != 0, b[0] != 0);
            let any = matches!(op, ReduceOp::Sum | ReduceOp::Max) || op.divides();
            vec![u8::from(if any { a || b } else { a && b })]
        }
    }
}

/// One element of what a lone contribution becomes.
pub(crate) fn finish(op: ReduceOp, dtype: Dtype, element: &[u8], divisor: u32) -> Vec<u8> {
    if !op.divides() || divisor <= 1 || dtype == Dtype::Bool {
        return element.to_vec();
    }
    match dtype {
        Dtype::F64 => mean_f64(op, f64::from_le_bytes(of(element)), divisor).to_le_bytes().to_vec(),
        Dtype::F32 => mean_f32(op, f32::from_le_bytes(of(element)), divisor).to_le_bytes().to_vec(),
        Dtype::F16 | Dtype::Bf16 => {
            let mean = mean_f32(op, single(dtype, element), divisor);
            nearest(dtype, mean).to_le_bytes().to_vec()
        }
        _ => (integer(dtype, element) / i128::from(divisor)).to_le_bytes()[..dtype.size()].to_vec(),
    }
}

/// Whether `after` is `before` in another precision. Which NaN a NaN becomes is left open, save for
/// its sign.
pub(crate) fn is_cast(from: Dtype, to: Dtype, before: &[u8], after: &[u8]) -> bool {
    if from == to {
        return before == after;
    }
    let (before, found) = (single(from, before), single(to, after));
    if before.is_nan() {
        found.is_nan() && found.is_sign_negative() == before.is_sign_negative()
    } else if to == Dtype::F32 {
        found.to_bits() == before.to_bits()
    } else {
        after == nearest(to, before).to_le_bytes()
    }
}

fn single(dtype: Dtype, element: &[u8]) -> f32 {
    match dtype {
        Dtype::F32 => f32::from_le_bytes(of(element)),
        _ => value(dtype, u16::from_le_bytes(of(element))) as f32,
    }
}

/// What an IEEE half is worth: 1 bit of sign, 5 of exponent, 10 of fraction.
pub(crate) fn half_value(code: u16) -> f64 {
    ieee_value(code, 10, 15)
}

/// What a bfloat16 is worth: 1 bit of sign, 8 of exponent, 7 of fraction.
pub(crate) fn brain_value(code: u16) -> f64 {
    ieee_value(code, 7, 127)
}

fn ieee_value(code: u16, fraction_bits: u32, bias: i32) -> f64 {
    let sign = if code >> 15 == 1 { -1.0 } else { 1.0 };
    let exponent = i32::from((code & 0x7fff) >> fraction_bits);
    let fraction = f64::from(code & ((1 << fraction_bits) - 1));
    let scale = (-f64::from(fraction_bits)).exp2();
    sign * match exponent {
        0 => fraction * scale * f64::from(1 - bias).exp2(),
        all_ones if all_ones == 2 * bias + 1 => {
            if fraction == 0.0 {
                f64::INFINITY
            } else {
                f64::NAN
            }
        }
        _ => (1.0 + fraction * scale) * f64::from(exponent - bias).exp2(),
    }
}

fn value(dtype: Dtype, code: u16) -> f64 {
    if dtype == Dtype::F16 { half_value(code) } else { brain_value(code) }
}

/// The code of the nearest value, the even one of two as near; found by bisection, since codes of
/// one sign are ordered as their values are.
fn nearest(dtype: Dtype, single: f32) -> u16 {
    let infinity: u16 = if dtype == Dtype::F16 { 0x7c00 } else { 0x7f80 };
    let quiet_nan = if dtype == Dtype::F16 { 0x7e00 } else { 0x7fc0 };
    if single.is_nan() {
        return quiet_nan;
    }
    let sign = if single.is_sign_negative() { 0x8000 } else { 0 };
    let magnitude = f64::from(single.abs());
    let (mut low, mut high) = (0, infinity);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if value(dtype, middle) <= magnitude { low = middle } else { high = middle }
    }
    // Beyond the largest finite value, infinity stands where the next value would be.
    let step = value(dtype, infinity - 1) - value(dtype, infinity - 2);
    let upper = if high == infinity { value(dtype, low) + step } else { value(dtype, high) };
    let (below, above) = (magnitude - value(dtype, low), upper - magnitude);
    let up = above < below || (above == below && low & 1 == 1);
    sign | if up { high } else { low }
}

macro_rules! float_oracle {
    ($float:ident, $combine:ident, $mean:ident) => {
        fn $combine(op: ReduceOp, a: $float, b: $float) -> $float {
            let result = match op {
                ReduceOp::Sum | ReduceOp::Average | ReduceOp::Mix => a + b,
                ReduceOp::Product => a * b,
                ReduceOp::Min | ReduceOp::Max if a.is_nan() || b.is_nan() => $float::NAN,
                ReduceOp::Min => std::cmp::min_by(a, b, $float::total_cmp),
                ReduceOp::Max => std::cmp::max_by(a, b, $float::total_cmp),
            };
            if result.is_nan() { $float::NAN } else { result }
        }

        fn $mean(op: ReduceOp, value: $float, divisor: u32) -> $float {
            if !op.divides() || divisor <= 1 {
                value
            } else if value.is_nan() {
                $float::NAN
            } else {
                value / divisor as $float
            }
        }
    };
}

float_oracle!(f32, combine_f32, mean_f32);
float_oracle!(f64, combine_f64, mean_f64);

fn integer(dtype: Dtype, element: &[u8]) -> i128 {
    match dtype {
        Dtype::I64 => i64::from_le_bytes(of(element)).into(),
        Dtype::I32 => i32::from_le_bytes(of(element)).into(),
        Dtype::I8 => i8::from_le_bytes(of(element)).into(),
        _ => element[0].into(),
    }
}

fn of<const SIZE: usize>(element: &[u8]) -> [u8; SIZE] {
    element.try_into().expect("the slice is one element long")
}
