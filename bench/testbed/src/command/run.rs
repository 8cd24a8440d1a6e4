//! `paceline-testbed run`: a command on every host, changes of the network while it runs, and one exit
//! code for all. It waits for whatever comes first: a child's end, a signal, or the script's next line.

use super::NetworkFlags;
use anyhow::{Context, bail};
use clap::Args;
use paceline_testbed::{Script, ScriptEvent, Testbed};
use signal_hook::{
    consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM},
    iterator::Signals,
};
use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, Command, ExitCode, ExitStatus, Stdio},
    sync::mpsc::{self, Receiver, RecvTimeoutError, Sender},
    thread,
    time::{Duration, Instant},
};

/// A longer line of output is broken into pieces of this size.
const MAX_LINE_BYTES: u64 = 64 * 1024;
/// Children are looked at this often even if no signal says that one has ended.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// After a signal or a failure, the others have this long to end by themselves.
const GRACE: Duration = Duration::from_secs(2);
/// What children had written is waited for this long, should somebody outside hold their output open.
const LAST_OUTPUT: Duration = Duration::from_secs(2);

/// Build the network, run a command once on every host, and remove everything when it ends.
///
/// Each process sees TESTBED_HOST (from 0), TESTBED_HOSTS, TESTBED_RACK, TESTBED_ADDRESS and
/// TESTBED_ADDRESSES. The exit code is that of the first command that failed; the others are ended.
#[derive(Debug, Args)]
pub struct Run {
    #[command(flatten)]
    network: NetworkFlags,
    /// Run only on these hosts, such as 0,2
    #[arg(long, value_name = "HOSTS", value_delimiter = ',', conflicts_with = "single")]
    on: Vec<usize>,
    /// Run one controlling command on host 0, with this terminal; it reaches the other hosts by
    /// `paceline-testbed enter HOST -- COMMAND`
    #[arg(long)]
    single: bool,
    /// Changes while the commands run, one a line: SECONDS LINK WHAT, such as `2.5 host3 100mbit`,
    /// `4 rack1 50mbit`, `6 host3 cut`, `7 host3 restore`
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Run {
    /// Build, run, wait, clean up.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let spec = self.network.spec()?;
        let script = match &self.script {
            Some(path) => {
                let name = || path.display().to_string();
                let text = fs::read_to_string(path).with_context(name)?;
                Script::parse(&text, &spec).with_context(name)?
            }
            None => Script::default(),
        };
        let hosts = self.chosen_hosts(spec.hosts)?;
        // Before anything exists, so that no signal can end this process half way.
        let signals = watch_signals()?;
        let testbed = Testbed::build(&spec)?;
        let (open, closed) = mpsc::channel();
        let start = Instant::now();
        let mut running = Vec::with_capacity(hosts.len());
        for host in hosts {
            let child = self.start(&testbed, host, &open)?;
            running.push(Running { host, child, outcome: None });
        }
        drop(open);
        let mut session = Session { testbed: &testbed, running, pending: script.events, start };
        let code = session.wait(&signals);
        session.end_remaining(&signals);
        drop(session);
        // Ends what the commands left behind, and with it the last holders of their output.
        drop(testbed);
        let _ = closed.recv_timeout(LAST_OUTPUT);
        code.map(ExitCode::from)
    }

    fn chosen_hosts(&self, hosts: usize) -> anyhow::Result<BTreeSet<usize>> {
        if let Some(host) = self.on.iter().find(|host| **host >= hosts) {
            bail!("--on {host}: the hosts are 0 to {}", hosts - 1);
        }
        Ok(match (self.single, self.on.as_slice()) {
            (true, _) => BTreeSet::from([0]),
            (false, []) => (0..hosts).collect(),
            (false, chosen) => chosen.iter().copied().collect(),
        })
    }

    fn start(&self, testbed: &Testbed, host: usize, open: &Sender<()>) -> anyhow::Result<Child> {
        let [program, arguments @ ..] = self.command.as_slice() else {
            bail!("no command given");
        };
        let mut command = Command::new(program);
        command.args(arguments);
        if self.single {
            return Ok(testbed.spawn(host, command)?);
        }
        // Several readers of one terminal would steal each other's lines.
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = testbed.spawn(host, command)?;
        if let Some(output) = child.stdout.take() {
            prefix_lines(host, output, io::stdout, open.clone());
        }
        if let Some(output) = child.stderr.take() {
            prefix_lines(host, output, io::stderr, open.clone());
        }
        Ok(child)
    }
}

struct Running {
    host: usize,
    child: Child,
    outcome: Option<ExitStatus>,
}

struct Session<'a> {
    testbed: &'a Testbed,
    running: Vec<Running>,
    /// In the order of their times.
    pending: Vec<ScriptEvent>,
    start: Instant,
}

impl Session<'_> {
    /// Until all children have succeeded, one has failed, or a signal came; the exit code.
    fn wait(&mut self, signals: &Receiver<i32>) -> anyhow::Result<u8> {
        loop {
            self.apply_due_changes()?;
            if let Some(failed) = self.reap()? {
                return Ok(failed);
            }
            if self.running.iter().all(|running| running.outcome.is_some()) {
                return Ok(0);
            }
            match signals.recv_timeout(self.until_next_change()) {
                Ok(SIGCHLD) | Err(RecvTimeoutError::Timeout) => {}
                Ok(signal) => {
                    eprintln!("paceline-testbed: stopped by signal {signal}");
                    return Ok(128 + signal as u8);
                }
                Err(RecvTimeoutError::Disconnected) => bail!("the signal thread has ended"),
            }
        }
    }

    /// Ask the children that still run to end, and give them a moment. What is left then ends with the
    /// testbed.
    fn end_remaining(&mut self, signals: &Receiver<i32>) {
        for running in self.running.iter().filter(|running| running.outcome.is_none()) {
            // SAFETY: no pointers. The child was not waited for, so its number is still its own.
            unsafe { libc::kill(running.child.id() as libc::pid_t, libc::SIGTERM) };
        }
        let deadline = Instant::now() + GRACE;
        loop {
            let _ = self.reap();
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || self.running.iter().all(|running| running.outcome.is_some()) {
                return;
            }
            match signals.recv_timeout(left.min(LOOK_AGAIN)) {
                Ok(SIGCHLD) | Err(_) => {}
                Ok(_impatient) => return,
            }
        }
    }

    fn apply_due_changes(&mut self) -> anyhow::Result<()> {
        let elapsed = self.start.elapsed();
        let due = self.pending.iter().take_while(|event| event.at <= elapsed).count();
        for ScriptEvent { at, target, change } in self.pending.drain(..due) {
            self.testbed.apply(target, change)?;
            eprintln!("paceline-testbed: {:.3} s: {target} {change}", at.as_secs_f64());
        }
        Ok(())
    }

    fn until_next_change(&self) -> Duration {
        let next = self.pending.first().map(|event| event.at.saturating_sub(self.start.elapsed()));
        next.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)
    }

    /// Note which children have ended; the exit code of the first that failed.
    fn reap(&mut self) -> anyhow::Result<Option<u8>> {
        let mut failed = None;
        for running in self.running.iter_mut().filter(|running| running.outcome.is_none()) {
            let host = running.host;
            running.outcome = running.child.try_wait().with_context(|| format!("host{host}"))?;
            if let Some(status) = running.outcome.filter(|status| !status.success())
                && failed.is_none()
            {
                eprintln!("paceline-testbed: host{host}: {status}");
                failed = Some(exit_code(status));
            }
        }
        Ok(failed)
    }
}

/// As shells have it: the code, or 128 and the signal.
fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// Signals as messages, from now on.
fn watch_signals() -> anyhow::Result<Receiver<i32>> {
    let mut signals =
        Signals::new([SIGINT, SIGTERM, SIGHUP, SIGCHLD]).context("cannot watch for signals")?;
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        // Bounded by the signals that arrive; ends with the session.
        for signal in signals.forever() {
            if sender.send(signal).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Copy lines with the host's name in front, on a thread of its own; `open` is dropped at the end.
fn prefix_lines<W: Write + 'static>(
    host: usize,
    output: impl Read + Send + 'static,
    destination: fn() -> W,
    open: Sender<()>,
) {
    thread::spawn(move || {
        let mut reader = BufReader::new(output);
        let mut line = format!("[host{host}] ").into_bytes();
        let prefix = line.len();
        while let Ok(1..) = (&mut reader).take(MAX_LINE_BYTES).read_until(b'\n', &mut line) {
            if line.last() != Some(&b'\n') {
                line.push(b'\n');
            }
            // One call for the whole line, so that lines of two hosts do not mix. If nobody reads any
            // more, the command must still not be stopped by a full pipe.
            let mut destination = destination();
            let _ = destination.write_all(&line).and_then(|()| destination.flush());
            line.truncate(prefix);
        }
        drop(open);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_those_of_a_shell() {
        assert_eq!(exit_code(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(exit_code(ExitStatus::from_raw(9)), 137);
    }
}
