//! `paceline demo`, shortened: that it comes to its end through every stage, says what is wrong before it starts anything, and
//! leaves no process and no changed terminal behind, wherever it is interrupted. Nothing here asks how fast anything is.

use serde_json::Value;
use std::{
    fs::{self, File},
    io::{BufRead, BufReader, Read},
    net::TcpListener,
    os::{fd::FromRawFd, unix::process::CommandExt},
    path::Path,
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};

/// How long a process may take to be gone. It only bounds a failing test.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stages as short as they can be, of small batches: what is shown is the same.
const SHORT: [&str; 5] = ["demo", "--seconds", "1", "--batch", "2"];

fn demo(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(SHORT).args(arguments).stdin(Stdio::null());
    // Whoever runs the tests in the background may ignore these signals, which would be inherited.
    // SAFETY: `signal` may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
                libc::signal(signal, libc::SIG_DFL);
            }
            Ok(())
        });
    }
    command
}

fn refused(arguments: &[&str]) -> (Option<i32>, String) {
    let Output { status, stderr, .. } = demo(arguments).output().unwrap();
    (status.code(), String::from_utf8(stderr).unwrap())
}

/// Killed if the test fails, with whatever it started.
struct Running(Child);

impl Running {
    fn start(mut command: Command) -> Running {
        Running(command.spawn().unwrap())
    }

    /// Processes that it has started and that are not gone.
    fn children(&self) -> Vec<u32> {
        let pid = self.0.id();
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
        children.split_whitespace().map(|child| child.parse().unwrap()).collect()
    }

    fn signal(&self, signal: i32) {
        // SAFETY: kill touches no memory; the process is our child and not reaped.
        assert_eq!(unsafe { libc::kill(self.0.id() as i32, signal) }, 0);
    }

    fn end(&mut self) -> ExitStatus {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "it does not end");
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Its standard error, when it has ended.
    fn complaints(&mut self) -> String {
        let mut text = String::new();
        self.0.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        text
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// All of them are gone. Their numbers are not given to others so soon.
fn see_gone(children: &[u32]) {
    let deadline = Instant::now() + PATIENCE;
    for child in children {
        while Path::new(&format!("/proc/{child}")).exists() {
            assert!(Instant::now() < deadline, "process {child} is left");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

#[test]
fn the_demo_comes_to_its_end_and_has_measured_every_stage() {
    let folder = tempfile::tempdir().unwrap();
    let traces = folder.path().join("traces");
    let kept = folder.path().join("kept");
    let places = ["--trace", traces.to_str().unwrap(), "--ui-dir", kept.to_str().unwrap()];
    let output = demo(&["--json"]).args(places).output().unwrap();
    let lines = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{lines}");
    let shown: Value = serde_json::from_slice(&output.stdout).unwrap();
    let positive = |path: &str| {
        let number = shown.pointer(path).and_then(Value::as_f64);
        assert!(number.is_some_and(|number| number > 0.0), "{path} of {shown:#}");
    };
    for stage in ["first_come", "scheduled", "watched/speed", "slow/speed", "killed/after"] {
        positive(&format!("/{stage}/seconds"));
    }
    for path in ["/killed/longest_step_seconds", "/joined/first_step_after_seconds", "/accuracy"] {
        positive(path);
    }
    for prediction in ["recorded", "first_come", "slow"] {
        positive(&format!("/replay/{prediction}/predicted_ms"));
        positive(&format!("/replay/{prediction}/measured_ms"));
    }
    let workers = |path: &str| shown.pointer(path).and_then(Value::as_u64);
    assert_eq!(workers("/killed/before/workers"), Some(4));
    assert_eq!(workers("/killed/after/workers"), Some(3));
    assert_eq!(workers("/joined/after/workers"), Some(4));
    assert!(shown["slow_link_bits_per_second"].as_f64() < shown["link_bits_per_second"].as_f64());
    // The trace is one that all commands read.
    let replay = Command::new(env!("CARGO_BIN_EXE_paceline")).arg("replay").arg(&traces).output();
    assert!(replay.unwrap().status.success());
    assert!(lines.contains("killing worker 3"), "{lines}");
    // And what a page would show of it begins and ends.
    let page = fs::read_to_string(kept.join("page.jsonl")).unwrap();
    let first_and_last = [page.lines().next(), page.lines().last()]
        .map(|line| serde_json::from_str::<Value>(line.unwrap()).unwrap()["kind"].clone());
    assert_eq!(first_and_last, ["job", "end"]);
    for kind in ["seen", "point", "view", "members", "gone", "note"] {
        assert!(page.contains(&format!("\"kind\":\"{kind}\"")), "{kind}");
    }
}

#[test]
fn an_interrupt_in_any_stage_ends_every_process_with_a_word() {
    let stages = [
        ("starting 4 workers", libc::SIGINT),
        ("first come, first served", libc::SIGTERM),
        ("recording a trace", libc::SIGHUP),
        ("the tuner watches", libc::SIGINT),
        ("killing worker", libc::SIGINT),
        ("starting another worker", libc::SIGINT),
        ("judging images", libc::SIGTERM),
        ("the recorded steps", libc::SIGINT),
    ];
    for (stage, signal) in stages {
        let folder = tempfile::tempdir().unwrap();
        let mut command = demo(&["--plain"]);
        command.env("TMPDIR", folder.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut running = Running::start(command);
        let stdout = BufReader::new(running.0.stdout.take().unwrap());
        let mut lines = stdout.lines().map(Result::unwrap);
        assert!(lines.any(|line| line.contains(stage)), "{stage}: {}", running.complaints());
        let children = running.children();
        running.signal(signal);
        let status = running.end();
        assert_eq!(status.code(), Some(1), "{stage}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{stage}: files are left");
        let complaints = running.complaints();
        assert!(complaints.contains("interrupted"), "{stage}: {complaints}");
        see_gone(&children);
    }
}

#[test]
fn a_worker_that_was_ended_by_another_is_named_with_what_ended_it() {
    let mut command = demo(&["--plain"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command);
    let stdout = BufReader::new(running.0.stdout.take().unwrap());
    let mut lines = stdout.lines().map(Result::unwrap);
    assert!(lines.any(|line| line.contains("first come")), "{}", running.complaints());
    let children = running.children();
    // What the kernel does where memory is short.
    // SAFETY: kill touches no memory; nobody has waited for the process.
    assert_eq!(unsafe { libc::kill(children[1] as i32, libc::SIGKILL) }, 0);
    assert!(lines.all(|line| !line.contains("what changed")));
    assert_eq!(running.end().code(), Some(1));
    let complaints = running.complaints();
    assert!(complaints.contains("worker 1 was ended by SIGKILL"), "{complaints}");
    see_gone(&children);
}

#[test]
fn a_terminal_is_as_it_was_after_an_interrupt() {
    let (mut terminal, mut other) = (0, 0);
    let null = std::ptr::null_mut::<u8>();
    let mut size = libc::winsize { ws_row: 24, ws_col: 80, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: two places for descriptors, a size, and nothing else that is looked at.
    let opened = unsafe {
        libc::openpty(&raw mut terminal, &raw mut other, null.cast(), null.cast(), &raw mut size)
    };
    assert_eq!(opened, 0);
    // SAFETY: both descriptors are new and owned by nobody else.
    let (mut terminal, other) = unsafe { (File::from_raw_fd(terminal), File::from_raw_fd(other)) };
    let mut command = demo(&[]);
    command.env("TERM", "xterm").stdout(other).stderr(Stdio::piped());
    let mut running = Running::start(command);
    let mut drawn = String::new();
    let mut read = |drawn: &mut String| {
        let mut bytes = [0; 4096];
        // When nobody has the other end any more, reading fails.
        let count = terminal.read(&mut bytes).unwrap_or(0);
        *drawn += &String::from_utf8_lossy(&bytes[..count]);
        count > 0
    };
    while !drawn.contains("worker 3") {
        assert!(read(&mut drawn), "{drawn}");
    }
    let children = running.children();
    running.signal(libc::SIGINT);
    while read(&mut drawn) {}
    assert_eq!(running.end().code(), Some(1));
    assert!(drawn.starts_with("\x1b[?1049h"), "another screen: {drawn:?}");
    assert!(drawn.ends_with("\x1b[?25h\x1b[?1049l"), "and back: {drawn:?}");
    see_gone(&children);
}

#[test]
fn what_is_wrong_is_said_before_anything_is_started() {
    let (code, said) = refused(&["--data", "/nowhere/at/all"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/nowhere/at/all") && said.contains("no such folder"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let (code, said) = refused(&["--data", path]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("train-images-idx3-ubyte"), "{said}");

    fs::write(folder.path().join("train-images-idx3-ubyte"), b"not images").unwrap();
    fs::write(folder.path().join("train-labels-idx1-ubyte"), b"not labels").unwrap();
    let (code, said) = refused(&["--data", path]);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("IDX"), "{said}");

    let (code, said) = refused(&["--trace", path]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("empty folder"), "{said}");

    let (code, said) = refused(&["--trace", "/proc/nowhere/at/all"]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("/proc/nowhere/at/all"), "{said}");

    for wrong in
        [["--seconds", "0"], ["--rate", "fast"], ["--rate", "1kbit"], ["--batch", "100000"]]
    {
        assert_eq!(refused(&wrong).0, Some(2), "{wrong:?}");
    }
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let (code, said) = refused(&["--plain", "--port", &port]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains(&port) && said.contains("leave it out"), "{said}");
}
