//! The worker's side of the protocol for contenders written in Rust: reads commands, checks sums, keeps
//! the time. What it measures implements [`Subject`]; how that all-reduces is not known here.

use super::protocol::{Answer, Command, Ready};
use anyhow::{Context, Result};
use std::io::{BufRead, Write};

/// Whose contributions a rank's values hold after an all-reduce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sums {
    /// Those of the first so many ranks, usually all.
    OfFirst(u32),
    /// The average of its own and those of some other ranks, others in each part of the buffer.
    OfSome,
}

/// Something that all-reduces; one per rank.
pub trait Subject {
    /// Name and version, for the report.
    fn about(&self) -> String;

    /// This rank, and how many there are.
    fn place(&self) -> (u32, u32);

    /// What its all-reduce comes to.
    fn sums(&self) -> Sums {
        Sums::OfFirst(self.place().1)
    }

    /// Replaces the buffers by new ones of these lengths, in elements.
    fn allocate(&mut self, lengths: &[usize]) -> Result<()>;

    /// The buffers, in the order of their lengths.
    fn buffers(&mut self) -> Vec<&mut [f32]>;

    /// Returns when all ranks are here.
    fn barrier(&mut self) -> Result<()>;

    /// Sums every buffer over all ranks, in place. One buffer: as fast as can be. Several: all in flight, then waits for all.
    fn all_reduce(&mut self) -> Result<()>;
}

/// Greets, then obeys commands until `quit` or the end of the input.
pub fn serve(subject: &mut dyn Subject, input: impl BufRead, mut output: impl Write) -> Result<()> {
    subject.barrier().context("first barrier")?;
    let pid = std::process::id().cast_signed();
    say(&mut output, &Ready { about: subject.about(), pids: vec![pid] })?;
    for line in input.lines() {
        match Command::parse(&line?)? {
            Command::AllReduce { iterations, warmup, sizes } => {
                say(&mut output, &measure(subject, iterations, warmup, &sizes)?)?;
            }
            Command::Quit => break,
        }
    }
    Ok(())
}

fn say(output: &mut impl Write, what: &impl serde::Serialize) -> Result<()> {
    serde_json::to_writer(&mut *output, what)?;
    output.write_all(b"\n")?;
    Ok(output.flush()?)
}

fn measure(
    subject: &mut dyn Subject,
    iterations: u32,
    warmup: u32,
    sizes: &[u64],
) -> Result<Answer> {
    let lengths = sizes
        .iter()
        .map(|size| usize::try_from(size / 4).context("a size beyond this machine's memory"))
        .collect::<Result<Vec<usize>>>()?;
    subject.allocate(&lengths)?;
    let check = sums_are_right(subject)?;
    // From here on the sums are reduced in place over and over: zeros neither overflow nor become denormal.
    subject.buffers().into_iter().for_each(|buffer| buffer.fill(0.0));
    for _ in 0..warmup {
        subject.all_reduce()?;
    }

    let mut stamps_ns = Vec::with_capacity(iterations as usize + 1);
    subject.barrier()?;
    let before = cpu_seconds();
    stamps_ns.push(monotonic_ns());
    for _ in 0..iterations {
        subject.all_reduce()?;
        stamps_ns.push(monotonic_ns());
    }
    let cpu_seconds = cpu_seconds() - before;
    Ok(Answer { bytes: sizes.iter().sum(), cpu_seconds, check, stamps_ns })
}

fn sums_are_right(subject: &mut dyn Subject) -> Result<bool> {
    let (rank, ranks) = subject.place();
    for (tensor, buffer) in subject.buffers().into_iter().enumerate() {
        fill(buffer, tensor, rank + 1);
    }
    subject.all_reduce()?;
    let sums = subject.sums();
    let is_right = |share: f32| match sums {
        // In halves, which are exact.
        Sums::OfFirst(workers) => share == (workers * (workers + 1)) as f32 / 2.0,
        Sums::OfSome => is_average(share, rank + 1, ranks),
    };
    Ok(subject.buffers().into_iter().enumerate().all(|(tensor, buffer)| {
        buffer.iter().enumerate().all(|(index, sum)| is_right(*sum / pattern(tensor, index)))
    }))
}

/// Whether some of the numbers from 1 to `ranks`, `mine` among them, have this average.
fn is_average(average: f32, mine: u32, ranks: u32) -> bool {
    (1..=ranks).any(|members| {
        let sum = average * members as f32;
        let (others, rounding) = (members - 1, 1e-3 * members as f32);
        let least = mine + others * members / 2;
        let most = mine + others * (2 * ranks - others + 1) / 2;
        (sum - sum.round()).abs() < rounding
            && (least as f32 - rounding..=most as f32 + rounding).contains(&sum)
    })
}

fn fill(buffer: &mut [f32], tensor: usize, factor: u32) {
    for (index, value) in buffer.iter_mut().enumerate() {
        *value = pattern(tensor, index) * factor as f32;
    }
}

/// Small integers: multiplied by a rank's factor, their sum is exact in f32, in any order.
fn pattern(tensor: usize, index: usize) -> f32 {
    ((index + tensor) % 7 + 1) as f32
}

/// The machine's monotonic clock, which all processes share.
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a timespec of ours. The call cannot fail for this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut now) };
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// User and system time of all threads of this process.
fn cpu_seconds() -> f64 {
    // SAFETY: rusage is plain data, for which all zeros is a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a rusage of ours. The call cannot fail for RUSAGE_SELF.
    unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) };
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 * 1e-6;
    seconds(usage.ru_utime) + seconds(usage.ru_stime)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One rank alone: the sum of its values is its values, unless it is broken.
    struct Alone {
        buffers: Vec<Vec<f32>>,
        error: f32,
    }

    impl Subject for Alone {
        fn about(&self) -> String {
            "alone".to_string()
        }

        fn place(&self) -> (u32, u32) {
            (0, 1)
        }

        fn allocate(&mut self, lengths: &[usize]) -> Result<()> {
            self.buffers = lengths.iter().map(|length| vec![7.0; *length]).collect();
            Ok(())
        }

        fn buffers(&mut self) -> Vec<&mut [f32]> {
            self.buffers.iter_mut().map(Vec::as_mut_slice).collect()
        }

        fn barrier(&mut self) -> Result<()> {
            Ok(())
        }

        fn all_reduce(&mut self) -> Result<()> {
            if let Some(last) = self.buffers.last_mut().and_then(|buffer| buffer.last_mut()) {
                *last += self.error;
            }
            Ok(())
        }
    }

    fn answers(error: f32, commands: &str) -> Vec<String> {
        let mut output = Vec::new();
        let mut subject = Alone { buffers: Vec::new(), error };
        serve(&mut subject, commands.as_bytes(), &mut output).unwrap();
        String::from_utf8(output).unwrap().lines().map(str::to_string).collect()
    }

    #[test]
    fn a_worker_greets_answers_each_command_and_ends_with_its_input() {
        let lines = answers(0.0, "allreduce 3 1 8 400\nallreduce 1 0 4\n");
        assert_eq!(lines.len(), 3);
        let ready: Ready = serde_json::from_str(&lines[0]).unwrap();
        assert_eq!(ready.about, "alone");
        let answer: Answer = serde_json::from_str(&lines[1]).unwrap();
        assert!(answer.check);
        assert_eq!((answer.bytes, answer.stamps_ns.len()), (408, 4));
        assert!(answer.stamps_ns.is_sorted());
    }

    #[test]
    fn averages_are_those_of_a_group_with_this_rank() {
        for right in [5.0, 3.0, (1.0 + 5.0 + 6.0) / 3.0, 3.5] {
            assert!(is_average(right, 5, 6), "{right}");
        }
        for wrong in [0.0, 1.0, 6.0, 2.9, 21.0, f32::NAN] {
            assert!(!is_average(wrong, 5, 6), "{wrong}");
        }
    }

    #[test]
    fn one_wrong_element_fails_the_check() {
        let lines = answers(1.0, "allreduce 1 0 8 400\nquit\nallreduce 1 0 4\n");
        assert_eq!(lines.len(), 2, "nothing is obeyed after quit");
        let answer: Answer = serde_json::from_str(&lines[1]).unwrap();
        assert!(!answer.check);
    }
}
