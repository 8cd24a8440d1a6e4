//! What the harness and a contender's processes say to each other: text lines, so that a peer in any
//! language can speak it. This file knows the words only, not who says them nor over what.
//!
//! A process first says that it is there: `{"about":"Open MPI v4.1.4","pids":[17,18]}`, naming the
//! processes that it speaks for. Then the harness writes commands and the process answers each:
//!
//! ```text
//! allreduce ITERATIONS WARMUP BYTES [BYTES ...]
//! {"bytes":1024,"cpu_seconds":0.0001,"check":true,"stamps_ns":[1432689350720,1432689365462]}
//! quit
//! ```
//!
//! For one command a process allocates one buffer of f32 for each size, all-reduces a known pattern once
//! and checks the sums (`check`), sets the buffers to zero, warms up, meets the others at a barrier, and
//! reads the monotonic clock there and after each iteration (`stamps_ns`, one more than iterations). One
//! size is reduced by the blocking call; several are all in flight at once. The end of the input means `quit`.
//!
//! The clock is the machine's, so stamps of different processes compare. Iteration *i* lasts from the moment the
//! last process was through with *i−1* to the moment the last one was through with *i*: the times of
//! a turn add up to its wall time, whatever the processes' skew.

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The most iterations one command may ask for; it bounds the length of an answer.
pub const MAX_ITERATIONS: u32 = 100_000;

/// The most tensors one command may name.
pub const MAX_TENSORS: usize = 4096;

/// What the harness asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Measure.
    AllReduce {
        /// Timed iterations.
        iterations: u32,
        /// Iterations before them.
        warmup: u32,
        /// Bytes of each tensor; multiples of four.
        sizes: Vec<u64>,
    },
    /// End.
    Quit,
}

impl fmt::Display for Command {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Command::AllReduce { iterations, warmup, sizes } => {
                write!(f, "allreduce {iterations} {warmup}")?;
                sizes.iter().try_for_each(|size| write!(f, " {size}"))
            }
            Command::Quit => f.write_str("quit"),
        }
    }
}

impl Command {
    /// Reads a line, as a contender written in Rust does.
    pub fn parse(line: &str) -> Result<Command> {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            None | Some("quit") => Ok(Command::Quit),
            Some("allreduce") => {
                let mut number = |what| -> Result<u32> {
                    let word = words.next().with_context(|| format!("no {what} in `{line}`"))?;
                    word.parse().with_context(|| format!("{what} `{word}`"))
                };
                let (iterations, warmup) = (number("iterations")?, number("warm-up")?);
                ensure!(
                    (1..=MAX_ITERATIONS).contains(&iterations) && warmup <= MAX_ITERATIONS,
                    "{iterations} iterations after {warmup} are not within 1..={MAX_ITERATIONS}"
                );
                let sizes = words
                    .map(|word| word.parse().with_context(|| format!("size `{word}`")))
                    .collect::<Result<Vec<u64>>>()?;
                ensure!(
                    (1..=MAX_TENSORS).contains(&sizes.len())
                        && sizes.iter().all(|size| *size > 0 && size.is_multiple_of(4)),
                    "`{line}` needs 1 to {MAX_TENSORS} sizes in whole f32 elements"
                );
                Ok(Command::AllReduce { iterations, warmup, sizes })
            }
            Some(other) => bail!("`{other}` is neither allreduce nor quit"),
        }
    }
}

/// The first line of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// Name and version of what is measured.
    pub about: String,
    /// The processes this one speaks for, itself included.
    pub pids: Vec<i32>,
}

/// The answer to [`Command::AllReduce`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Bytes of all tensors together.
    pub bytes: u64,
    /// Processor time, user and system, of the processes it speaks for, in the timed part.
    pub cpu_seconds: f64,
    /// Whether the sums were right.
    pub check: bool,
    /// The monotonic clock after the barrier and after each iteration.
    pub stamps_ns: Vec<u64>,
}

/// What one turn of a contender gave, over all its processes.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Turn {
    /// Each iteration's time.
    pub seconds: Vec<f64>,
    /// Processor time of all ranks together.
    pub cpu_seconds: f64,
}

impl Turn {
    /// Joins the answers of a contender's processes to one command.
    ///
    /// # Errors
    /// If they do not answer the same command, or a sum was wrong: such times are worth nothing.
    pub fn merge(answers: &[Answer], bytes: u64, iterations: u32) -> Result<Turn> {
        let stamps = iterations as usize + 1;
        let mut latest = vec![0_u64; stamps];
        for answer in answers {
            ensure!(
                answer.bytes == bytes && answer.stamps_ns.len() == stamps,
                "answered {} bytes and {} stamps when asked for {bytes} bytes and {stamps} stamps",
                answer.bytes,
                answer.stamps_ns.len(),
            );
            ensure!(answer.check, "the all-reduced values of {bytes} bytes are wrong");
            for (latest, stamp) in latest.iter_mut().zip(&answer.stamps_ns) {
                *latest = (*latest).max(*stamp);
            }
        }
        ensure!(latest.is_sorted(), "the clock ran backwards");
        Ok(Turn {
            seconds: latest.windows(2).map(|pair| (pair[1] - pair[0]) as f64 * 1e-9).collect(),
            cpu_seconds: answers.iter().map(|answer| answer.cpu_seconds).sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(stamps_ns: &[u64]) -> Answer {
        Answer { bytes: 8, cpu_seconds: 0.5, check: true, stamps_ns: stamps_ns.to_vec() }
    }

    #[test]
    fn a_command_reads_back_as_it_was_written() {
        let command = Command::AllReduce { iterations: 3, warmup: 0, sizes: vec![4, 1024] };
        assert_eq!(command.to_string(), "allreduce 3 0 4 1024");
        assert_eq!(Command::parse(&command.to_string()).unwrap(), command);
        assert_eq!(Command::parse("quit\n").unwrap(), Command::Quit);
        assert_eq!(Command::parse("").unwrap(), Command::Quit);
    }

    #[test]
    fn a_malformed_command_is_an_error() {
        for wrong in [
            "reduce 1 1 4",
            "allreduce",
            "allreduce 1",
            "allreduce 1 1",
            "allreduce 0 1 4",
            "allreduce 1 1 3",
            "allreduce 1 1 0",
            "allreduce -1 1 4",
            "allreduce 1000000 1 4",
        ] {
            assert!(Command::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn an_iteration_ends_when_its_last_rank_does_and_times_add_up() {
        let answers = [answer(&[1000, 2000, 5000]), answer(&[1500, 1900, 6000])];
        let turn = Turn::merge(&answers, 8, 2).unwrap();
        let nanoseconds: Vec<u64> = turn.seconds.iter().map(|s| (s * 1e9).round() as u64).collect();
        assert_eq!(nanoseconds, [500, 4000]);
        assert_eq!(turn.cpu_seconds, 1.0);
    }

    #[test]
    fn a_wrong_sum_or_a_wrong_count_spoils_the_turn() {
        let wrong_sum = Answer { check: false, ..answer(&[1, 2]) };
        assert!(Turn::merge(&[answer(&[1, 2]), wrong_sum], 8, 1).is_err());
        assert!(Turn::merge(&[answer(&[1, 2])], 8, 2).is_err());
        assert!(Turn::merge(&[answer(&[1, 2])], 16, 1).is_err());
        assert!(Turn::merge(&[answer(&[2, 1])], 8, 1).is_err());
    }

    #[test]
    fn the_first_line_of_a_peer_is_understood() {
        let ready: Ready =
            serde_json::from_str(r#"{"about":"Open MPI v4.1.4","pids":[7, 8]}"#).unwrap();
        assert_eq!(ready.pids, [7, 8]);
    }
}
