//! What `paceline run` says about the end of a job, in words. Pure text: it asks nobody and prints nothing.

use super::{
    output::LastLines,
    process::Program,
    signals::name_and_meaning,
    supervision::{Cause, Ending, Outcome, Part, Replacement},
};
use paceline_job::Rank;
use std::{io, path::Path};

/// At most so many ranks are spelled out.
const RANKS_NAMED: usize = 16;

/// What the report needs to know of each worker, by rank.
pub struct Worker {
    /// Its process number.
    pub pid: u32,
    /// The last that it wrote.
    pub last_lines: LastLines,
}

/// The job begins to end: one line, at once.
pub fn announcement(cause: Cause, pid_of: impl Fn(Rank) -> u32, living: usize) -> String {
    match cause {
        Cause::Failure(rank, ending) => {
            let failure = failure(rank, pid_of(rank), ending);
            match living {
                0 => failure,
                1 => format!("{failure}; ending the other worker"),
                _ => format!("{failure}; ending the other {living} workers"),
            }
        }
        Cause::Asked(signal) => {
            let (name, _) = name_and_meaning(signal);
            format!("{name}: passed on to {}; once more kills", workers(living))
        }
    }
}

/// A worker of an elastic job failed, or a spare, and the others go on.
pub fn borne(
    rank: Rank,
    pid: u32,
    ending: Ending,
    part: Part,
    living: usize,
    replacement: Replacement,
) -> String {
    let failure = failure(rank, pid, ending);
    let before = match part {
        Part::Taken => "",
        Part::None => " before it took part in the job (in PyTorch: pl.elastic(...))",
    };
    let replaced = match replacement {
        Replacement::Unasked => String::new(),
        Replacement::Started(count, most) => {
            format!("; another process is started ({count} of {most} restarts)")
        }
        Replacement::Exhausted(most) => format!(
            "; no other process is started: all {most} restarts are used, `paceline resize` starts what is missing"
        ),
    };
    format!("{failure}{before}; the job goes on with {}{replaced}", workers(living))
}

/// The grace period is over, or somebody asked twice.
pub fn killing(living: usize) -> String {
    format!("killing {}", workers(living))
}

/// How it ended, in a few words.
pub fn ended(outcome: &Outcome) -> String {
    match outcome.cause {
        None => "finished".to_string(),
        Some(Cause::Asked(signal)) => format!("ended by {}", name_and_meaning(signal).0),
        Some(Cause::Failure(rank, _)) => format!("failed: worker {rank}"),
    }
}

/// The whole story, when it is over; nothing if all went well.
pub fn story(outcome: &Outcome, workers: &[Worker]) -> String {
    let mut text = String::new();
    match outcome.cause {
        None => {}
        Some(Cause::Asked(signal)) => {
            text += &format!("paceline: the job was ended by {}\n", name_and_meaning(signal).0);
        }
        Some(Cause::Failure(rank, ending)) => {
            let worker = &workers[rank.index()];
            let failure = failure(rank, worker.pid, ending);
            text += &format!("paceline: the job failed: {failure}\n");
            if let Some(reason) = reason(ending) {
                text += &format!("  {reason}\n");
            }
            if worker.last_lines.is_empty() {
                text += "  It wrote nothing.\n";
            } else {
                text += "  Its last lines:\n";
            }
            for line in &worker.last_lines {
                text += &format!("    {line}\n");
            }
            for (rank, ending) in outcome.also_failed.iter().take(RANKS_NAMED) {
                let pid = workers[rank.index()].pid;
                text += &format!("  In the same moment {}.\n", self::failure(*rank, pid, *ending));
            }
        }
    }
    if !outcome.stuck.is_empty() {
        text += &format!(
            "paceline: {} did not end even when killed: the system holds it (`cat /proc/PID/stack` tells where)\n",
            ranks(&outcome.stuck)
        );
    }
    text
}

/// The program cannot be started at all.
pub fn cannot_start(program: &Program, error: &io::Error) -> String {
    let name = program.name.to_string_lossy();
    let path = Path::new(&program.name);
    let is_path = name.contains('/');
    match error.raw_os_error() {
        Some(libc::ENOENT) if is_path && path.exists() => format!(
            "`{name}` cannot be started: the interpreter that its first line (#!) names does not exist"
        ),
        Some(libc::ENOENT) if is_path => {
            format!("`{name}` was not found; check the path (workers start in this folder)")
        }
        Some(libc::ENOENT) if path.is_file() => format!(
            "`{name}` is not a command in PATH; to run the file in this folder, write `./{name}`{}",
            interpreter(path).map_or(String::new(), |it| format!(" or `{it} {name}`"))
        ),
        Some(libc::ENOENT) => format!(
            "`{name}` was not found in PATH; check its spelling, or give its path as in `./{name}`"
        ),
        Some(libc::EACCES) if path.is_dir() => format!("`{name}` is a folder, not a program"),
        Some(libc::EACCES) => format!(
            "`{name}` is not executable; make it so with `chmod +x {name}`{}",
            interpreter(path).map_or(String::new(), |it| format!(" or start it as `{it} {name}`"))
        ),
        Some(libc::ENOEXEC) => format!(
            "`{name}` is no program for this machine; if it is a script, its first line must name its \
             interpreter, as in `#!/bin/sh`"
        ),
        Some(libc::EMFILE | libc::ENFILE) => format!(
            "too many open files for so many workers (two for each); raise the limit with `ulimit -n`: {error}"
        ),
        Some(libc::EAGAIN) => {
            format!("too many processes for this user; raise the limit with `ulimit -u`: {error}")
        }
        _ => format!("`{name}` cannot be started: {error}"),
    }
}

/// What usually runs a file of this name.
fn interpreter(path: &Path) -> Option<&'static str> {
    match path.extension()?.to_str()? {
        "py" => Some("python"),
        "sh" => Some("sh"),
        _ => None,
    }
}

fn failure(rank: Rank, pid: u32, ending: Ending) -> String {
    match ending {
        Ending::Exited(code) => format!("rank {rank} (pid {pid}) exited with code {code}"),
        Ending::Killed(signal) => {
            format!("rank {rank} (pid {pid}) was ended by {}", name_and_meaning(signal).0)
        }
    }
}

fn reason(ending: Ending) -> Option<String> {
    match ending {
        Ending::Killed(signal) => Some(format!("Likely: {}.", name_and_meaning(signal).1)),
        // What shells answer, by their convention.
        Ending::Exited(126) => Some("Likely: it tried to start something not executable.".into()),
        Ending::Exited(127) => {
            Some("Likely: it tried to start something that is not there.".into())
        }
        Ending::Exited(_) => None,
    }
}

fn workers(count: usize) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}

fn ranks(ranks: &[Rank]) -> String {
    let named: Vec<String> = ranks.iter().take(RANKS_NAMED).map(Rank::to_string).collect();
    let more = match ranks.len().saturating_sub(RANKS_NAMED) {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    format!("rank{} {}{more}", if ranks.len() == 1 { "" } else { "s" }, named.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worker(pid: u32, last_lines: &[&str]) -> Worker {
        Worker { pid, last_lines: last_lines.iter().map(|line| line.to_string()).collect() }
    }

    #[test]
    fn the_story_names_rank_process_reason_and_last_words() {
        let outcome = Outcome {
            exit_code: 137,
            cause: Some(Cause::Failure(Rank(1), Ending::Killed(libc::SIGKILL))),
            also_failed: vec![(Rank(0), Ending::Exited(1))],
            stuck: vec![],
        };
        let workers = [worker(17, &[]), worker(18, &["epoch 3", "epoch 4"])];
        assert_eq!(
            story(&outcome, &workers),
            "paceline: the job failed: rank 1 (pid 18) was ended by SIGKILL\n  \
               Likely: somebody killed it: often the kernel, out of memory (`dmesg` tells).\n  \
               Its last lines:\n    \
                 epoch 3\n    \
                 epoch 4\n  \
               In the same moment rank 0 (pid 17) exited with code 1.\n"
        );
    }

    #[test]
    fn a_job_that_went_well_has_no_story() {
        let outcome = Outcome { exit_code: 0, cause: None, also_failed: vec![], stuck: vec![] };
        assert_eq!(story(&outcome, &[]), "");
    }

    #[test]
    fn what_cannot_start_is_answered_with_a_remedy() {
        let say = |name: &str, code| {
            let program = Program { name: name.into(), arguments: vec![] };
            cannot_start(&program, &io::Error::from_raw_os_error(code))
        };
        assert!(say("no-such-program", libc::ENOENT).contains("not found in PATH"));
        assert!(say("./no-such-program", libc::ENOENT).contains("check the path"));
        assert!(say("train.py", libc::EACCES).contains("`python train.py`"));
        assert!(say("/", libc::EACCES).contains("is a folder"));
        assert!(say("/bin/sh", libc::ENOENT).contains("interpreter"));
    }

    #[test]
    fn many_ranks_are_counted_rather_than_listed() {
        assert_eq!(ranks(&[Rank(3)]), "rank 3");
        let many: Vec<Rank> = (0..20).map(Rank).collect();
        assert!(ranks(&many).ends_with("15 and 4 more"));
    }
}
