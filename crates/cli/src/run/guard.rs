//! The guard: a small process that outlives `paceline run` by a moment, if that is killed, and kills the
//! process groups that it left behind. The kernel kills workers by itself when we die; it does not kill
//! what they started (data loaders, shells' children). The guard knows numbers of groups and nothing else.

use anyhow::{Context, Result};
use std::{
    collections::BTreeSet,
    io::{BufRead, BufReader, Write},
    os::unix::process::CommandExt,
    process::{Child, Command, Stdio},
};

/// The hidden subcommand that is the guard.
pub const SUBCOMMAND: &str = "guard-of-run";

/// Told to the guard when nothing is left to kill.
const DONE: &str = "done";

/// Told to the guard before the number of a group that is gone.
const GONE: &str = "gone ";

/// The side of the guard that `paceline run` holds.
#[derive(Debug)]
pub struct Guard {
    child: Child,
}

impl Guard {
    /// Start it, before any worker.
    pub fn start() -> Result<Guard> {
        let command = std::env::current_exe().context("the path of this program is unknown")?;
        let child = Command::new(command)
            .arg(SUBCOMMAND)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            // Ctrl-C is for the foreground group, and the guard must live through it.
            .process_group(0)
            .spawn()
            .context("cannot start the guard process")?;
        Ok(Guard { child })
    }

    /// One more group to kill if we are gone. If the guard itself was killed, the kernel's own care for
    /// workers is what remains: no reason to fail.
    pub fn watch(&mut self, group: u32) {
        self.tell(&group.to_string());
    }

    /// One group less: its number may soon mean somebody else's processes.
    pub fn forget(&mut self, group: u32) {
        self.tell(&format!("{GONE}{group}"));
    }

    /// Nothing is left to kill.
    pub fn dismiss(mut self) {
        self.tell(DONE);
        drop(self.child.stdin.take());
        // Its end is near: it reads a line and exits.
        let _ = self.child.wait();
    }

    fn tell(&mut self, line: &str) {
        if let Some(stdin) = &mut self.child.stdin {
            let _ = stdin.write_all(format!("{line}\n").as_bytes());
        }
    }
}

/// Be the guard: read groups until our parent dismisses us or is gone.
pub fn stand() -> Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT] {
        // SAFETY: ignoring a signal installs no handler.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    for group in groups_left(BufReader::new(std::io::stdin().lock())) {
        // SAFETY: killpg touches no memory.
        unsafe { libc::killpg(group, libc::SIGKILL) };
    }
    Ok(())
}

/// The groups to kill when the input has ended.
fn groups_left(input: impl BufRead) -> BTreeSet<libc::pid_t> {
    let mut groups = BTreeSet::new();
    for line in input.lines().map_while(Result::ok) {
        if line == DONE {
            return BTreeSet::new();
        }
        match line.strip_prefix(GONE) {
            // Groups 0 and 1 would be our own and everybody's.
            None => groups.extend(line.parse::<libc::pid_t>().ok().filter(|group| *group > 1)),
            Some(gone) => groups.retain(|group| gone.parse() != Ok(*group)),
        }
    }
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_kills_only_if_it_was_not_dismissed() {
        assert_eq!(groups_left(&b"17\n18\n"[..]), [17, 18].into());
        assert_eq!(groups_left(&b"17\n18\ngone 17\ngone x\n"[..]), [18].into());
        assert!(groups_left(&b"17\n18\ndone\n"[..]).is_empty());
        assert!(groups_left(&b"0\n1\n-3\nx\n\n"[..]).is_empty());
    }
}
