//! The two promises of the crate as properties: every instruction set computes what the oracle
//! computes, bit for bit, whatever the length, alignment and aliasing; and operands may be swapped.
//! Tests only.

use crate::cast::cast_at;
use crate::dispatch::Level;
use crate::oracle;
use crate::portable::Portable;
use crate::reduce::{Operands, combine_at, finish_at};
use paceline_job::{Dtype, ReduceOp};
use proptest::prelude::*;

/// Longer than two of the longest blocks, with every remainder.
const MOST_ELEMENTS: usize = 200;
/// Every misalignment of the widest vector.
const MOST_OFFSET: usize = 32;
/// What surrounds a destination; a kernel that writes too far changes it.
const GUARD: u8 = 0xa5;

/// Bits worth trying, for all types at once: the low bytes are used. Zeros, infinities, quiet and
/// signalling NaNs, the smallest and largest values of each float and integer.
const SPECIAL: [u64; 38] = [
    0,
    1,
    2,
    0x7f,
    0x80,
    0xff,
    0x0400,
    0x03ff,
    0x7bff,
    0x7c00,
    0x7c01,
    0x7e00,
    0x7f7f,
    0x7f80,
    0x7f81,
    0x7fc0,
    0x8000,
    0x8001,
    0xfc00,
    0xfe01,
    0xff80,
    0xffc1,
    0x3f80_0000,
    0x477f_f000,
    0x7f7f_ffff,
    0x7f80_0000,
    0x7f80_0001,
    0x7fc0_0000,
    0x7fff_ffff,
    0x8000_0000,
    0xff80_0000,
    0xffc0_1234,
    0x7ff0_0000_0000_0000,
    0x7ff0_0000_0000_0001,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0xfff8_0000_0000_4321,
];

fn levels() -> [Level; 2] {
    [Level::Portable(Portable), Level::best()]
}

fn any_dtype() -> impl Strategy<Value = Dtype> {
    prop::sample::select(&Dtype::ALL[..])
}

fn any_op() -> impl Strategy<Value = ReduceOp> {
    prop::sample::select(&ReduceOp::ALL[..])
}

fn any_divisor() -> impl Strategy<Value = u32> {
    prop_oneof![4 => 1..9_u32, 1 => prop::sample::select(vec![127, 128, 255, 256, 1 << 31, u32::MAX])]
}

/// Element bits, half of them special; cut to the size of the dtype by [`bytes_of`].
fn any_elements() -> impl Strategy<Value = Vec<(u64, u64)>> {
    let bits = || prop_oneof![prop::sample::select(&SPECIAL[..]), any::<u64>()];
    prop::collection::vec((bits(), bits()), 0..=MOST_ELEMENTS)
}

fn bytes_of(dtype: Dtype, elements: impl Iterator<Item = u64>) -> Vec<u8> {
    elements.flat_map(|bits| bits.to_le_bytes().into_iter().take(dtype.size())).collect()
}

fn split(dtype: Dtype, pairs: &[(u64, u64)]) -> (Vec<u8>, Vec<u8>) {
    let first = bytes_of(dtype, pairs.iter().map(|pair| pair.0));
    (first, bytes_of(dtype, pairs.iter().map(|pair| pair.1)))
}

/// A buffer whose content starts at a chosen misalignment, between guards.
struct Guarded {
    memory: Vec<u8>,
    start: usize,
    len: usize,
}

impl Guarded {
    fn new(content: &[u8], offset: usize) -> Guarded {
        let mut memory = vec![GUARD; MOST_OFFSET * 3 + content.len()];
        let start = memory.as_ptr().align_offset(MOST_OFFSET) + offset;
        memory[start..start + content.len()].copy_from_slice(content);
        Guarded { memory, start, len: content.len() }
    }

    fn pointer(&mut self) -> *mut u8 {
        self.memory[self.start..].as_mut_ptr()
    }

    /// The content, after checking that nothing around it was written.
    fn content(&self) -> &[u8] {
        let end = self.start + self.len;
        let around = self.memory[..self.start].iter().chain(&self.memory[end..]);
        assert!(around.into_iter().all(|&byte| byte == GUARD), "written out of bounds");
        &self.memory[self.start..end]
    }
}

fn combine_guarded(
    level: Level,
    (op, dtype, divisor): (ReduceOp, Dtype, u32),
    (a, b): (&[u8], &[u8]),
    offsets: [usize; 3],
) -> Vec<u8> {
    let mut dst = Guarded::new(&vec![0; a.len()], offsets[0]);
    let (mut a, mut b) = (Guarded::new(a, offsets[1]), Guarded::new(b, offsets[2]));
    let elements = dst.len / dtype.size();
    let operands = Operands { dst: dst.pointer(), a: a.pointer(), b: b.pointer(), elements };
    // SAFETY: three buffers of `elements` elements each, alive and apart.
    unsafe { combine_at(level, op, dtype, operands, divisor) };
    dst.content().to_vec()
}

fn expected_combine(
    (op, dtype, divisor): (ReduceOp, Dtype, u32),
    (a, b): (&[u8], &[u8]),
) -> Vec<u8> {
    let size = dtype.size();
    let pairs = a.chunks(size).zip(b.chunks(size));
    pairs.flat_map(|(a, b)| oracle::combine(op, dtype, a, b, divisor)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn every_instruction_set_combines_as_the_oracle_does(
        what in (any_op(), any_dtype(), any_divisor()),
        pairs in any_elements(),
        offsets in [0..MOST_OFFSET, 0..MOST_OFFSET, 0..MOST_OFFSET],
    ) {
        let (a, b) = split(what.1, &pairs);
        let expected = expected_combine(what, (&a, &b));
        for level in levels() {
            let found = combine_guarded(level, what, (&a, &b), offsets);
            prop_assert_eq!(&found, &expected, "{:?} {:?}", level, what);
        }
    }

    #[test]
    fn operands_may_be_swapped(
        what in (any_op(), any_dtype(), any_divisor()),
        pairs in any_elements(),
    ) {
        let (a, b) = split(what.1, &pairs);
        for level in levels() {
            let one = combine_guarded(level, what, (&a, &b), [0; 3]);
            let two = combine_guarded(level, what, (&b, &a), [0; 3]);
            prop_assert_eq!(one, two, "{:?} {:?}", level, what);
        }
    }

    #[test]
    fn the_destination_may_be_either_operand_or_both(
        what in (any_op(), any_dtype(), any_divisor()),
        pairs in any_elements(),
        offset in 0..MOST_OFFSET,
    ) {
        let (op, dtype, divisor) = what;
        let (a, b) = split(dtype, &pairs);
        for level in levels() {
            let mut dst = Guarded::new(&a, offset);
            let mut other = Guarded::new(&b, 0);
            let (base, elements) = (dst.pointer(), pairs.len());
            let operands = Operands { dst: base, a: base, b: other.pointer(), elements };
            // SAFETY: buffers of `elements` elements; dst equals a.
            unsafe { combine_at(level, op, dtype, operands, divisor) };
            prop_assert_eq!(dst.content(), expected_combine(what, (&a, &b)), "dst is a");

            let mut dst = Guarded::new(&b, offset);
            let mut other = Guarded::new(&a, 0);
            let base = dst.pointer();
            let operands = Operands { dst: base, a: other.pointer(), b: base, elements };
            // SAFETY: buffers of `elements` elements; dst equals b.
            unsafe { combine_at(level, op, dtype, operands, divisor) };
            prop_assert_eq!(dst.content(), expected_combine(what, (&a, &b)), "dst is b");

            let mut dst = Guarded::new(&a, offset);
            let base = dst.pointer();
            let operands = Operands { dst: base, a: base, b: base, elements };
            // SAFETY: a buffer of `elements` elements; dst equals a and b.
            unsafe { combine_at(level, op, dtype, operands, divisor) };
            prop_assert_eq!(dst.content(), expected_combine(what, (&a, &a)), "dst is both");
        }
    }

    #[test]
    fn every_instruction_set_finishes_as_the_oracle_does(
        (op, dtype, divisor) in (any_op(), any_dtype(), any_divisor()),
        pairs in any_elements(),
        offsets in [0..MOST_OFFSET, 0..MOST_OFFSET],
        in_place in any::<bool>(),
    ) {
        let (source, _) = split(dtype, &pairs);
        let elements = source.chunks(dtype.size());
        let expected: Vec<u8> =
            elements.flat_map(|element| oracle::finish(op, dtype, element, divisor)).collect();
        for level in levels() {
            let mut src = Guarded::new(&source, offsets[0]);
            let mut dst = Guarded::new(&source, offsets[1]);
            let from = if in_place { dst.pointer() } else { src.pointer() };
            // SAFETY: buffers of `pairs.len()` elements, equal or apart.
            unsafe { finish_at(level, op, dtype, dst.pointer(), from, pairs.len(), divisor) };
            prop_assert_eq!(dst.content(), &expected[..], "{:?} {} {}", level, op, dtype);
        }
    }

    #[test]
    fn every_instruction_set_casts_alike(
        from in prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16]),
        to in prop::sample::select(vec![Dtype::F32, Dtype::F16, Dtype::Bf16]),
        pairs in any_elements(),
        offsets in [0..MOST_OFFSET, 0..MOST_OFFSET],
    ) {
        let (source, _) = split(from, &pairs);
        let [portable, best] = levels().map(|level| {
            let mut src = Guarded::new(&source, offsets[0]);
            let mut dst = Guarded::new(&vec![0; pairs.len() * to.size()], offsets[1]);
            // SAFETY: buffers of `pairs.len()` elements of their types, apart.
            unsafe { cast_at(level, from, to, dst.pointer(), src.pointer(), pairs.len()) }.unwrap();
            dst.content().to_vec()
        });
        prop_assert_eq!(&portable, &best, "{} to {}", from, to);
        for (before, after) in source.chunks(from.size()).zip(portable.chunks(to.size())) {
            prop_assert!(oracle::is_cast(from, to, before, after), "{:?} {:?}", before, after);
        }
    }
}

#[test]
fn every_instruction_set_widens_every_16_bit_float_alike() {
    let codes: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_le_bytes).collect();
    for from in [Dtype::F16, Dtype::Bf16] {
        let [portable, best] = levels().map(|level| cast_all(level, from, Dtype::F32, &codes));
        assert!(portable == best, "{from}");
    }
}

#[test]
fn every_instruction_set_narrows_a_spread_of_singles_alike() {
    // An odd stride visits every exponent and, over the run, every low bit.
    assert_narrowed_alike((0..=u32::MAX).step_by(1009));
}

#[test]
#[ignore = "all four billion singles: a minute in a release build"]
fn every_instruction_set_narrows_every_single_alike() {
    for start in (0..=u32::MAX).step_by(1 << 24) {
        assert_narrowed_alike(start..=start + ((1 << 24) - 1));
    }
}

fn assert_narrowed_alike(bits: impl Iterator<Item = u32>) {
    let singles: Vec<u8> = bits.flat_map(u32::to_le_bytes).collect();
    for to in [Dtype::F16, Dtype::Bf16] {
        let [portable, best] = levels().map(|level| cast_all(level, Dtype::F32, to, &singles));
        assert!(portable == best, "{to}");
    }
}

fn cast_all(level: Level, from: Dtype, to: Dtype, source: &[u8]) -> Vec<u8> {
    let elements = source.len() / from.size();
    let mut result = vec![0; elements * to.size()];
    // SAFETY: buffers of `elements` elements of their types, apart.
    unsafe { cast_at(level, from, to, result.as_mut_ptr(), source.as_ptr(), elements) }.unwrap();
    result
}
