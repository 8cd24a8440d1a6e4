//! The running processes of one contender: start, ask, stop, continue, end. It knows the protocol and
//! signals; it does not know what is measured nor against whom.

use super::{
    contender::{BetweenTurns, Contender, Process},
    interrupt::Interrupt,
    protocol::{Answer, Command, Ready, Turn},
    shared_memory,
    workload::Workload,
};
use anyhow::{Context, Result, bail};
use std::{
    any::Any,
    fs::File,
    io::{BufRead, BufReader, Read, Write},
    os::{
        fd::{AsRawFd, FromRawFd, OwnedFd},
        unix::process::CommandExt,
    },
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, sync_channel},
    thread,
    time::{Duration, Instant},
};

/// PyTorch's first import from a cold disk takes ten seconds; this is the bound for a hopeless one.
const START_LIMIT: Duration = Duration::from_secs(180);
/// The longest turn; the slowest peer needs a few seconds for the largest size.
const TURN_LIMIT: Duration = Duration::from_secs(300);
/// How long a process may take to end after `quit` before it is killed.
const END_LIMIT: Duration = Duration::from_secs(5);
/// The longest answer: [`super::protocol::MAX_ITERATIONS`] stamps of twenty characters fit.
const MAX_LINE_BYTES: u64 = 4 << 20;
/// How often a wait looks whether the user wants to leave.
const PATIENCE: Duration = Duration::from_millis(100);

/// A contender whose processes are running.
pub struct Group {
    name: String,
    about: String,
    channels: Vec<Channel>,
    /// Every process that may use a core, as named by the contender itself.
    processes: Vec<OwnedFd>,
    between_turns: BetweenTurns,
    log: PathBuf,
    _companion: Option<Box<dyn Any>>,
}

struct Channel {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: Receiver<String>,
}

impl Group {
    /// Starts the processes and waits until each says that it is ready. What they write to standard
    /// error goes to a file in `folder`, whose end is shown if they fail.
    pub fn start(contender: Contender, folder: &Path, interrupt: &Interrupt) -> Result<Group> {
        Group::start_by(contender, folder, interrupt, |_, mut command| Ok(command.spawn()?))
    }

    /// As [`Group::start`], where `spawn` starts the process of the given number: on a host of a testbed, say.
    pub fn start_by(
        contender: Contender,
        folder: &Path,
        interrupt: &Interrupt,
        mut spawn: impl FnMut(usize, std::process::Command) -> Result<Child>,
    ) -> Result<Group> {
        let log = folder.join(format!("{}.stderr", contender.name));
        let stderr = File::create(&log).with_context(|| format!("create {}", log.display()))?;
        let mut group = Group {
            name: contender.name,
            about: String::new(),
            channels: Vec::new(),
            processes: Vec::new(),
            between_turns: contender.between_turns,
            log,
            _companion: contender.companion,
        };
        for (number, process) in contender.processes.iter().enumerate() {
            let child = spawn(number, command(process, &stderr)?)
                .with_context(|| format!("start {}", process.program.display()))?;
            group.channels.push(Channel::open(child)?);
        }
        let deadline = Instant::now() + START_LIMIT;
        for line in group.lines(deadline, interrupt)? {
            let ready: Ready =
                serde_json::from_str(&line).with_context(|| format!("not a greeting: {line}"))?;
            for pid in ready.pids {
                group.processes.push(hold(pid).with_context(|| format!("hold process {pid}"))?);
            }
            group.about = ready.about;
        }
        group.stop();
        Ok(group)
    }

    /// The contender's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What it says it is.
    pub fn about(&self) -> &str {
        &self.about
    }

    /// Gives the contender its turn: wakes it, asks, waits for every answer, stops it again.
    pub fn turn(&mut self, workload: &Workload, interrupt: &Interrupt) -> Result<Turn> {
        let command = Command::AllReduce {
            iterations: workload.iterations,
            warmup: workload.warmup,
            sizes: workload.sizes.clone(),
        };
        self.resume();
        self.tell(&command).with_context(|| self.failure("could not be asked"))?;
        let deadline = Instant::now() + TURN_LIMIT;
        let answers = self
            .lines(deadline, interrupt)?
            .iter()
            .map(|line| {
                serde_json::from_str(line).with_context(|| format!("not an answer: {line:.200}"))
            })
            .collect::<Result<Vec<Answer>>>()?;
        self.stop();
        Turn::merge(&answers, workload.bytes(), workload.iterations)
            .with_context(|| self.failure("answered wrongly"))
    }

    fn tell(&mut self, command: &Command) -> Result<()> {
        for channel in &mut self.channels {
            if let Some(stdin) = &mut channel.stdin {
                writeln!(stdin, "{command}")?;
                stdin.flush()?;
            }
        }
        Ok(())
    }

    /// One line of each process.
    fn lines(&self, deadline: Instant, interrupt: &Interrupt) -> Result<Vec<String>> {
        self.channels.iter().map(|channel| self.line(channel, deadline, interrupt)).collect()
    }

    fn line(&self, channel: &Channel, deadline: Instant, interrupt: &Interrupt) -> Result<String> {
        loop {
            interrupt.check()?;
            match channel.lines.recv_timeout(PATIENCE) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Disconnected) => bail!(self.failure("ended")),
                Err(RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!(self.failure("gave no answer in time"))
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    fn failure(&self, what: &str) -> String {
        let said = std::fs::read_to_string(&self.log).unwrap_or_default();
        let from = said.char_indices().rev().nth(1500).map_or(0, |(at, _)| at);
        let failure = match said[from..].trim() {
            "" => format!("{} {what}", self.name),
            tail => format!("{} {what}; the end of what it wrote:\n{tail}", self.name),
        };
        match shared_memory::hint(&said[from..]) {
            Some(hint) => format!("{failure}\n{hint}"),
            None => failure,
        }
    }

    fn stop(&self) {
        if self.between_turns == BetweenTurns::Stopped {
            self.signal(libc::SIGSTOP);
        }
    }

    fn resume(&self) {
        self.signal(libc::SIGCONT);
    }

    fn signal(&self, signal: libc::c_int) {
        for process in &self.processes {
            // A process that has ended needs no signal, so the result does not matter.
            // SAFETY: the descriptor is open; no signal information is passed.
            unsafe {
                libc::syscall(
                    libc::SYS_pidfd_send_signal,
                    process.as_raw_fd(),
                    signal,
                    std::ptr::null::<libc::siginfo_t>(),
                    0,
                )
            };
        }
    }

    /// Waits for the children to end; whether they all did.
    fn ended_within(&mut self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        self.channels.iter_mut().all(|channel| {
            loop {
                match channel.child.try_wait() {
                    Ok(None) if Instant::now() < deadline => {
                        thread::sleep(Duration::from_millis(5));
                    }
                    Ok(None) => return false,
                    Ok(Some(_)) | Err(_) => return true,
                }
            }
        })
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.resume();
        // A process that is gone cannot be told; that is what is wanted.
        let _ = self.tell(&Command::Quit);
        for channel in &mut self.channels {
            channel.stdin = None;
        }
        if self.ended_within(END_LIMIT) {
            return;
        }
        // A launcher ends its ranks when asked politely, so that is tried first.
        for channel in &self.channels {
            // SAFETY: kill(2) touches no memory of ours; the child has not been waited for.
            unsafe { libc::kill(channel.child.id().cast_signed(), libc::SIGTERM) };
        }
        if self.ended_within(END_LIMIT) {
            return;
        }
        for channel in &mut self.channels {
            // Fails only if it ended meanwhile.
            let _ = channel.child.kill();
            let _ = channel.child.wait();
        }
    }
}

impl Channel {
    fn open(mut child: Child) -> Result<Channel> {
        let stdin = child.stdin.take();
        let stdout = child.stdout.take().context("a child without standard output")?;
        Ok(Channel { child, stdin, lines: read_lines(stdout) })
    }
}

/// What starts a process that can be talked with, and that dies with the harness.
fn command(process: &Process, stderr: &File) -> Result<std::process::Command> {
    let mut command = std::process::Command::new(&process.program);
    command
        .args(&process.arguments)
        .envs(process.environment.iter().map(|(key, value)| (key, value)))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(stderr.try_clone()?)
        // The terminal's Ctrl-C goes to the harness alone, which then ends the processes in order.
        .process_group(0);
    let harness = std::process::id();
    // SAFETY: between fork and exec only prctl, getppid and _exit are called; all are async-signal-safe.
    unsafe {
        command.pre_exec(move || {
            // Even a stopped process dies with the harness.
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(std::io::Error::last_os_error());
            }
            // It died before the line above: nobody would ever tell us.
            if libc::getppid().cast_unsigned() != harness {
                libc::_exit(1);
            }
            Ok(())
        });
    }
    Ok(command)
}

/// Takes hold of a process, so that a signal never reaches another one that was given its number later.
fn hold(pid: i32) -> std::io::Result<OwnedFd> {
    // SAFETY: pidfd_open(2) takes a number and flags, and returns a descriptor or fails.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    if descriptor < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the kernel just gave us this descriptor, which is an int, and nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(descriptor as i32) })
}

/// Lines as they come, on a thread that ends with the process. One answer belongs to one question, so two
/// waiting lines already mean a peer that talks out of turn.
fn read_lines(stdout: ChildStdout) -> Receiver<String> {
    let (sender, receiver) = sync_channel(2);
    thread::spawn(move || {
        let mut reader = BufReader::new(stdout);
        loop {
            let mut line = String::new();
            match reader.by_ref().take(MAX_LINE_BYTES).read_line(&mut line) {
                Ok(length) if length > 0 && line.ends_with('\n') => {
                    if sender.send(line).is_err() {
                        return;
                    }
                }
                // The end, a line that is too long, or bytes that are no text: the channel closes.
                Ok(_) | Err(_) => return,
            }
        }
    });
    receiver
}

#[cfg(test)]
mod tests {
    use super::super::peers::{Install, Peer, Place};
    use super::*;
    use paceline_job::ByteSize;

    /// Two ranks of Open MPI, or nothing where it is not installed.
    fn open_mpi(folder: &Path) -> Option<Group> {
        let place = Place {
            installed: folder.join("installed"),
            temporary: folder.to_path_buf(),
            memory: folder.to_path_buf(),
            ranks: 2,
            install: Install::Nothing,
        };
        let interrupt = Interrupt::default();
        match Peer::Openmpi.prepare(&place, &interrupt) {
            Ok(contender) => Some(Group::start(contender, folder, &interrupt).unwrap()),
            Err(why) => {
                eprintln!("skipped: {why:#}");
                None
            }
        }
    }

    #[test]
    fn open_mpi_answers_every_turn_and_is_gone_afterwards() {
        let folder = tempfile::tempdir().unwrap();
        let Some(mut group) = open_mpi(folder.path()) else { return };
        let interrupt = Interrupt::default();
        for workload in [
            Workload::single(ByteSize::kib(4), Some(3)),
            Workload { sizes: vec![4, 40, 400], ..Workload::single(ByteSize(4), Some(2)) },
        ] {
            let turn = group.turn(&workload, &interrupt).unwrap();
            assert_eq!(turn.seconds.len(), workload.iterations as usize);
        }
        assert!(group.about().starts_with("Open MPI"), "{}", group.about());
        let launcher = group.channels[0].child.id();
        drop(group);
        assert!(!Path::new(&format!("/proc/{launcher}")).exists());
    }

    #[test]
    fn a_contender_that_ends_is_an_error_and_not_a_wait() {
        let folder = tempfile::tempdir().unwrap();
        let contender = Contender {
            name: "brief".to_string(),
            processes: vec![Process {
                program: "/bin/sh".into(),
                arguments: vec!["-c".into(), "echo gone >&2".into()],
                environment: Vec::new(),
            }],
            between_turns: BetweenTurns::Stopped,
            companion: None,
        };
        let error = Group::start(contender, folder.path(), &Interrupt::default()).err().unwrap();
        assert!(error.to_string().contains("brief ended") && error.to_string().contains("gone"));
    }
}
