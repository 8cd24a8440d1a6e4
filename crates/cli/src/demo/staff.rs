//! The demo's worker processes: starting them, telling them what to do, hearing what they report, and seeing that none of them
//! outlives the demo. What they are told is decided elsewhere.

use super::{
    protocol::{Order, Report},
    worker::SUBCOMMAND,
};
use crate::{
    bench::interrupt::Interrupt,
    run::{
        process::{Program, WorkerProcess},
        signals::name_and_meaning,
        supervision::Ending,
    },
};
use anyhow::{Context, Result, bail};
use paceline_job::Rank;
use std::{
    collections::VecDeque,
    ffi::OsString,
    io::{BufRead, BufReader, Read, Write},
    path::Path,
    process::{ChildStdin, Stdio},
    sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel},
    time::{Duration, Instant},
};

/// How often a wait looks whether the user wants to leave.
const LOOK: Duration = Duration::from_millis(50);

/// How long nobody may say anything: far longer than any step, and than loading data on a busy machine.
const SILENCE: Duration = Duration::from_secs(120);

/// Lines of standard error that are kept for an error message.
const COMPLAINTS: usize = 8;

/// How long it may take to show who was ended from outside. Only a demo that has failed waits for it.
const INQUEST: Duration = Duration::from_secs(1);

/// How long processes that were told to end may take to do so.
const FAREWELL: Duration = Duration::from_secs(5);

/// All processes. Dropping it kills those that are left.
pub struct Staff {
    members: Vec<Member>,
    heard: Receiver<(usize, Heard)>,
    ears: Sender<(usize, Heard)>,
    interrupt: Interrupt,
    /// What all are started with.
    arguments: Vec<OsString>,
    complaints: VecDeque<String>,
    /// When somebody last said something.
    last_heard: Instant,
}

struct Member {
    /// `None` when it is buried.
    process: Option<WorkerProcess>,
    orders: Option<ChildStdin>,
    /// Whether its end is no surprise.
    dismissed: bool,
}

/// Something that a process said.
enum Heard {
    Report(Box<Report>),
    Complaint(String),
    Ended,
}

impl Staff {
    /// Nobody yet.
    pub fn new(interrupt: Interrupt, batch: u64, data: Option<&Path>) -> Staff {
        let (ears, heard) = channel();
        let batch = batch.to_string();
        let mut arguments = vec![SUBCOMMAND.into(), "--batch".into(), batch.into()];
        if let Some(data) = data {
            arguments.extend(["--data".into(), data.into()]);
        }
        Staff {
            members: Vec::new(),
            heard,
            ears,
            interrupt,
            arguments,
            complaints: VecDeque::new(),
            last_heard: Instant::now(),
        }
    }

    /// Start one more; its number.
    pub fn hire(&mut self) -> Result<usize> {
        let number = self.members.len();
        let named = std::env::current_exe().ok().filter(|path| path.exists());
        // Its file may have been replaced since it was started.
        let name = named.unwrap_or_else(|| "/proc/self/exe".into()).into();
        let program = Program { name, arguments: self.arguments.clone() };
        let (mut process, stdout, stderr) =
            WorkerProcess::start(Rank(number as u32), &program, &[], Stdio::piped())
                .context("cannot start a worker process")?;
        let orders = process.take_stdin();
        self.members.push(Member { process: Some(process), orders, dismissed: false });
        self.listen(number, stdout, true)?;
        self.listen(number, stderr, false)?;
        self.last_heard = Instant::now();
        Ok(number)
    }

    /// Read lines on a thread of their own: reports, or anything.
    fn listen(
        &self,
        number: usize,
        stream: impl Read + Send + 'static,
        reports: bool,
    ) -> Result<()> {
        let ears = self.ears.clone();
        let read = move || {
            for line in BufReader::new(stream).lines().map_while(Result::ok) {
                let heard = match serde_json::from_str(&line) {
                    Ok(report) if reports => Heard::Report(Box::new(report)),
                    _ => Heard::Complaint(line),
                };
                if ears.send((number, heard)).is_err() {
                    return;
                }
            }
            if reports {
                let _ = ears.send((number, Heard::Ended));
            }
        };
        std::thread::Builder::new().name(format!("ears-{number}")).spawn(read)?;
        Ok(())
    }

    /// Tell one what to do. One that is gone says so by its end.
    pub fn tell(&mut self, number: usize, order: &Order) -> Result<()> {
        let mut line = serde_json::to_string(order)?;
        line.push('\n');
        if let Some(orders) = self.members.get_mut(number).and_then(|one| one.orders.as_mut()) {
            let _ = orders.write_all(line.as_bytes());
        }
        Ok(())
    }

    /// Tell all who are there.
    pub fn tell_all(&mut self, order: &Order) -> Result<()> {
        self.present().into_iter().try_for_each(|number| self.tell(number, order))
    }

    /// Who is there.
    pub fn present(&self) -> Vec<usize> {
        let there = |number: &usize| self.members[*number].orders.is_some();
        (0..self.members.len()).filter(there).collect()
    }

    /// The process number of one.
    pub fn pid(&self, number: usize) -> Option<u32> {
        self.members.get(number)?.process.as_ref().map(WorkerProcess::pid)
    }

    /// Kill one, as an accident would.
    pub fn kill(&mut self, number: usize) {
        if let Some(member) = self.members.get_mut(number) {
            member.dismissed = true;
            member.orders = None;
            if let Some(mut process) = member.process.take() {
                process.bury();
            }
        }
    }

    /// The next report, until this moment at most. Fails if the user wants to leave, if a worker ends that should not, or if
    /// nobody says anything for too long.
    pub fn next(&mut self, until: Instant) -> Result<Option<(usize, Report)>> {
        loop {
            self.interrupt.check()?;
            let left = until.saturating_duration_since(Instant::now());
            match self.heard.recv_timeout(left.min(LOOK)) {
                Ok((number, heard)) => {
                    self.last_heard = Instant::now();
                    if let Some(report) = self.take(number, heard)? {
                        return Ok(Some((number, report)));
                    }
                }
                Err(RecvTimeoutError::Timeout) if left <= LOOK => return Ok(None),
                Err(_) if self.last_heard.elapsed() > SILENCE => {
                    bail!("no worker has said anything for {} s", SILENCE.as_secs())
                }
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, number: usize, heard: Heard) -> Result<Option<Report>> {
        let dismissed = self.members[number].dismissed;
        match heard {
            // What a killed one said last does not count.
            _ if dismissed => Ok(None),
            Heard::Report(report) => match *report {
                Report::Failed(text) => match self.victim() {
                    Some(victim) => bail!("{victim}"),
                    None => bail!("worker {number}: {text}"),
                },
                report => Ok(Some(report)),
            },
            Heard::Complaint(line) => {
                self.complaints.push_back(format!("worker {number}: {line}"));
                if self.complaints.len() > COMPLAINTS {
                    self.complaints.pop_front();
                }
                Ok(None)
            }
            Heard::Ended => {
                let unknown = || format!("worker {number} ended before its time");
                let mut text = self.victim().unwrap_or_else(unknown);
                self.complaints.iter().for_each(|line| text += &format!("\n{line}"));
                bail!(text)
            }
        }
    }

    /// Who was ended by a signal that we did not send. The others, and its own output, tell of that a moment before it shows.
    fn victim(&self) -> Option<String> {
        let killed = |member: &Member| match member.process.as_ref()?.ending() {
            Ok(Some(Ending::Killed(signal))) => Some(name_and_meaning(signal)),
            _ => None,
        };
        let deadline = Instant::now() + INQUEST;
        loop {
            let mut members = self.members.iter().enumerate();
            let found = members.find_map(|(number, member)| Some((number, killed(member)?)));
            if let Some((number, (name, meaning))) = found {
                return Some(format!("worker {number} was ended by {name}: {meaning}"));
            }
            if Instant::now() >= deadline {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Let all end in good order.
    pub fn dismiss(&mut self) -> Result<()> {
        for number in self.present() {
            self.members[number].dismissed = true;
            self.tell(number, &Order::Quit)?;
            self.members[number].orders = None;
        }
        let deadline = Instant::now() + FAREWELL;
        let lives = |member: &Member| {
            member.process.as_ref().is_some_and(|process| matches!(process.ending(), Ok(None)))
        };
        while self.members.iter().any(lives) && Instant::now() < deadline {
            self.interrupt.check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Staff {
    fn drop(&mut self) {
        let processes: Vec<WorkerProcess> =
            self.members.iter_mut().filter_map(|member| member.process.take()).collect();
        processes.iter().for_each(|process| process.signal(libc::SIGKILL));
        // The kernel ends them in its own time; nobody is to find them after us.
        let deadline = Instant::now() + FAREWELL;
        for mut process in processes {
            while matches!(process.ending(), Ok(None)) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            process.bury();
        }
    }
}
