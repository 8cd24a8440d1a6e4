//! How fast the kernels are on this machine: gigabytes of payload per second, for buffers that fit
//! the first cache, the second, the third, and none. Prints a table of medians, or JSON with the
//! spread. Run it with
//! `cargo run --release -p paceline-kernels --example throughput [-- --json]`.
//!
//! The rows of a round run one after another, and rounds repeat, so that a busy moment of the
//! machine touches all rows and the median drops it. Two rows are yardsticks: the C library's copy,
//! and the addition as the compiler makes it of a plain loop.

use paceline_job::{Dtype, ReduceOp};
use paceline_kernels::{accumulate, cast_slice, finish_slice};
use std::hint::black_box;
use std::time::Instant;

const KIB: usize = 1024;
const SIZES: [usize; 4] = [64 * KIB, 512 * KIB, 4096 * KIB, 65_536 * KIB];
const ROUNDS: usize = 31;
/// Bytes that one measurement moves: enough that the cost of the clock vanishes, few enough to fit
/// between two interruptions of a busy machine.
const BYTES_PER_MEASUREMENT: usize = 8 * 1024 * KIB;

/// One row: what is measured, and the payload it moves for a buffer of a given size.
enum Subject {
    Copy,
    PlainLoop,
    Combine(ReduceOp, Dtype),
    Finish(Dtype),
    Cast(Dtype, Dtype),
}

fn subjects() -> Vec<Subject> {
    let mut subjects = vec![Subject::Copy, Subject::PlainLoop];
    subjects.extend(Dtype::ALL.map(|dtype| Subject::Combine(ReduceOp::Sum, dtype)));
    for dtype in [Dtype::F32, Dtype::F16, Dtype::Bf16] {
        for op in [ReduceOp::Average, ReduceOp::Min, ReduceOp::Max, ReduceOp::Product] {
            subjects.push(Subject::Combine(op, dtype));
        }
        subjects.push(Subject::Finish(dtype));
    }
    for half in [Dtype::F16, Dtype::Bf16] {
        subjects.push(Subject::Cast(Dtype::F32, half));
        subjects.push(Subject::Cast(half, Dtype::F32));
    }
    subjects
}

impl Subject {
    fn name(&self) -> String {
        match self {
            Subject::Copy => "copy (C library)".into(),
            Subject::PlainLoop => "f32 sum (plain loop)".into(),
            Subject::Combine(op, dtype) => format!("{dtype} {op}"),
            Subject::Finish(dtype) => format!("{dtype} finish average"),
            Subject::Cast(from, to) => format!("cast {from} to {to}"),
        }
    }

    /// Once over the buffers. For a cast the wider side has the full size, and is the payload.
    fn work(&self, dst: &mut [u8], src: &[u8]) {
        match *self {
            Subject::Copy => dst.copy_from_slice(src),
            Subject::PlainLoop => plain_sum(dst, src),
            Subject::Combine(op, dtype) => {
                accumulate(op, dtype, dst, src, 4).expect("equal lengths");
            }
            Subject::Finish(dtype) => {
                finish_slice(ReduceOp::Average, dtype, dst, src, 4).expect("equal lengths");
            }
            Subject::Cast(from, to) => {
                let elements = dst.len() / from.size().max(to.size());
                let (dst, src) = (&mut dst[..elements * to.size()], &src[..elements * from.size()]);
                cast_slice(from, to, dst, src).expect("a cast that exists");
            }
        }
    }
}

#[inline(never)]
fn plain_sum(dst: &mut [u8], src: &[u8]) {
    let (dst, _) = dst.as_chunks_mut::<4>();
    let (src, _) = src.as_chunks::<4>();
    for (to, from) in dst.iter_mut().zip(src) {
        *to = (f32::from_ne_bytes(*to) + f32::from_ne_bytes(*from)).to_ne_bytes();
    }
}

/// Gigabytes of payload per second.
fn measure(subject: &Subject, dst: &mut [u8], src: &[u8]) -> f64 {
    let repeats = (BYTES_PER_MEASUREMENT / dst.len()).max(1);
    let begin = Instant::now();
    for _ in 0..repeats {
        subject.work(black_box(&mut *dst), black_box(src));
    }
    (repeats * dst.len()) as f64 / begin.elapsed().as_secs_f64() / 1e9
}

/// Lowest, median and highest of a row at one size.
struct Summary {
    low: f64,
    median: f64,
    high: f64,
}

fn summarise(mut rates: Vec<f64>) -> Summary {
    rates.sort_by(f64::total_cmp);
    Summary { low: rates[0], median: rates[rates.len() / 2], high: rates[rates.len() - 1] }
}

fn main() {
    let json = std::env::args().skip(1).any(|argument| argument == "--json");
    let subjects = subjects();
    let mut table: Vec<Vec<Summary>> = subjects.iter().map(|_| Vec::new()).collect();
    for size in SIZES {
        // Small numbers of either sign in every float format, and no denormals for long: the slow
        // path of the processor is not what is measured.
        let src: Vec<u8> = [0x80, 0x3f, 0x80, 0xbf].repeat(size / 4);
        let mut dst = src.clone();
        let mut rates: Vec<Vec<f64>> = subjects.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (subject, rates) in subjects.iter().zip(&mut rates) {
                dst.copy_from_slice(&src);
                rates.push(measure(subject, &mut dst, &src));
            }
        }
        for (row, rates) in table.iter_mut().zip(rates) {
            row.push(summarise(rates));
        }
    }
    if json { print_json(&subjects, &table) } else { print_table(&subjects, &table) }
}

fn print_table(subjects: &[Subject], table: &[Vec<Summary>]) {
    println!("GB/s of payload, median of {ROUNDS}");
    print!("{:<24}", "");
    for size in SIZES {
        print!("{:>10}", format!("{} KiB", size / KIB));
    }
    println!();
    for (subject, row) in subjects.iter().zip(table) {
        print!("{:<24}", subject.name());
        for summary in row {
            print!("{:>10.1}", summary.median);
        }
        println!();
    }
}

/// Names hold no character that JSON would escape.
fn print_json(subjects: &[Subject], table: &[Vec<Summary>]) {
    let mut lines = Vec::new();
    for (subject, row) in subjects.iter().zip(table) {
        for (size, Summary { low, median, high }) in SIZES.iter().zip(row) {
            lines.push(format!(
                r#"  {{"kernel": "{}", "bytes": {size}, "gb_per_s": {{"low": {low:.2}, "median": {median:.2}, "high": {high:.2}}}}}"#,
                subject.name()
            ));
        }
    }
    println!("[\n{}\n]", lines.join(",\n"));
}
