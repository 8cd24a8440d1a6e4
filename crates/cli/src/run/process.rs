//! One worker's process: starting it so that it cannot outlive us, signalling it together with whatever it
//! started, and seeing how it ended. It does not know why any of this is done.
//!
//! A worker leads a process group of its own. Its process is not reaped before the group is killed: as long as the
//! dead leader keeps its number, the number of its group cannot come to mean somebody else's processes.

use super::supervision::Ending;
use paceline_job::Rank;
use std::{
    ffi::OsString,
    io,
    os::unix::process::CommandExt,
    process::{Child, ChildStderr, ChildStdin, ChildStdout, Command, Stdio},
};

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// A path, or a name to look up in `PATH`.
    pub name: OsString,
    /// Its arguments.
    pub arguments: Vec<OsString>,
}

/// A worker's process, alive or not.
#[derive(Debug)]
pub struct WorkerProcess {
    /// Which worker it is.
    pub rank: Rank,
    pid: u32,
    /// Until it is buried.
    child: Option<Child>,
}

impl WorkerProcess {
    /// Start it with these variables added to ours. Returns the reading ends of what it writes.
    ///
    /// Call it from the main thread: a worker is killed when the *thread* that started it ends.
    pub fn start(
        rank: Rank,
        program: &Program,
        environment: &[(String, String)],
        stdin: Stdio,
    ) -> io::Result<(WorkerProcess, ChildStdout, ChildStderr)> {
        let mut command = Command::new(&program.name);
        command
            .args(&program.arguments)
            .envs(environment.iter().map(|(name, value)| (name, value)))
            .stdin(stdin)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0);
        die_with_us(&mut command);
        let mut child = command.spawn()?;
        match (child.stdout.take(), child.stderr.take()) {
            (Some(stdout), Some(stderr)) => {
                Ok((WorkerProcess { rank, pid: child.id(), child: Some(child) }, stdout, stderr))
            }
            _ => unreachable!("both streams were asked for as pipes"),
        }
    }

    /// The end that it reads from, if it was started with a pipe; once.
    pub fn take_stdin(&mut self) -> Option<ChildStdin> {
        self.child.as_mut()?.stdin.take()
    }

    /// Its process number, which is also its group's until it is buried.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// Signal it and every process of its group. Nobody left to signal is no error.
    pub fn signal(&self, signal: i32) {
        if self.child.is_some() {
            // SAFETY: killpg touches no memory. The leader is not reaped yet, so the number is its group's.
            unsafe { libc::killpg(self.pid as libc::pid_t, signal) };
        }
    }

    /// How it ended, if it did; before it is buried. It stays unreaped.
    pub fn ending(&self) -> io::Result<Option<Ending>> {
        // SAFETY: an all-zero siginfo_t is a valid value; waitid fills it; the fields read are those that
        // a child's status sets.
        let (code, status) = unsafe {
            let mut information: libc::siginfo_t = std::mem::zeroed();
            let options = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            if libc::waitid(libc::P_PID, self.pid, &mut information, options) != 0 {
                return Err(io::Error::last_os_error());
            }
            if information.si_pid() == 0 {
                return Ok(None);
            }
            (information.si_code, information.si_status())
        };
        Ok(Some(match code {
            libc::CLD_EXITED => Ending::Exited(status),
            _ => Ending::Killed(status),
        }))
    }

    /// Kill what is left of its group and let go of its number. Does not wait for a process that
    /// even this cannot end.
    pub fn bury(&mut self) {
        self.signal(libc::SIGKILL);
        if let Some(mut child) = self.child.take() {
            // A failure means that there is nothing to reap.
            let _ = child.try_wait();
        }
    }
}

/// Let the kernel kill the process when we die, however we die.
fn die_with_us(command: &mut Command) {
    let parent = std::process::id() as libc::pid_t;
    let prepare = move || {
        // SAFETY: both calls are async-signal-safe, and touch no memory.
        unsafe {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(io::Error::last_os_error());
            }
            // We may have died before the line above: then nobody would tell.
            if libc::getppid() != parent {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
        }
        Ok(())
    };
    // SAFETY: the closure runs between fork and exec; it only makes system calls and allocates nothing.
    unsafe { command.pre_exec(prepare) };
}
