//! Real jobs for the tests of trouble: `paceline run` with this very test program as its workers, started
//! again to play a role, and the means to watch it and to see that nothing is left.

use paceline_job::{ReduceOp, Settings};
use paceline_net::{JoinConfig, NetError, Transport, Worker, WorkerConfig, join};
use std::{
    env, fs,
    io::{self, BufRead, BufReader, Read},
    os::unix::process::CommandExt,
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// How long anything here may take. It only bounds a failing test; none measures time.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The variables by which a test tells its workers what to do.
pub const ROLE: &str = "TROUBLE_ROLE";
const TRANSPORT: &str = "TROUBLE_TRANSPORT";
const FOLDER: &str = "TROUBLE_FOLDER";

/// The arguments that make this program a worker: the one test that plays the role it finds.
pub const AS_WORKER: [&str; 4] = ["worker_process", "--exact", "--nocapture", "--test-threads=1"];

/// A job's folder: its plan, and what its workers look for.
pub struct Scene {
    folder: tempfile::TempDir,
}

impl Scene {
    pub fn new(settings: &Settings) -> Scene {
        let folder = tempfile::tempdir().unwrap();
        let plan = paceline_job::Plan { settings: settings.clone(), ..Default::default() };
        fs::write(folder.path().join("plan.toml"), plan.to_toml()).unwrap();
        Scene { folder }
    }

    /// `paceline run` of workers that play `role`, in a world whose `/dev/shm` is full if we may make one.
    pub fn run(&self, size: u32, role: &str, transport: &str) -> Job {
        let mut command = Command::new("sh");
        // The last words tell what is left.
        let script =
            "\"$@\"; code=$?; ls -A /dev/shm | grep paceline | sed 's/^/left: /' >&2; exit $code";
        command.args(["-c", script, "sh", env!("CARGO_BIN_EXE_paceline"), "run"]);
        command.args(["-n", &size.to_string(), "--grace", "60", "--plan"]);
        command.arg(self.folder.path().join("plan.toml")).arg("--");
        command.arg(env::current_exe().unwrap()).args(AS_WORKER);
        self.tell(&mut command, role, transport);
        if is_root() {
            fill_shared_memory(&mut command);
        }
        Job::start(command)
    }

    pub fn tell(&self, command: &mut Command, role: &str, transport: &str) {
        command.env(ROLE, role).env(TRANSPORT, transport).env(FOLDER, self.folder.path());
    }

    /// From now on workers may end.
    pub fn finish(&self) {
        fs::write(self.folder.path().join("finish"), "").unwrap();
    }
}

fn is_root() -> bool {
    // SAFETY: a plain system call.
    unsafe { libc::geteuid() == 0 }
}

/// In a mount namespace of its own: a `/dev/shm` with room for one page, which a file takes. Where even root
/// may not make one, the test goes on without.
fn fill_shared_memory(command: &mut Command) {
    let mount = || -> io::Result<()> {
        let none = std::ptr::null();
        // SAFETY: system calls with literal arguments; nothing is allocated between fork and exec.
        unsafe {
            if libc::unshare(libc::CLONE_NEWNS) != 0 {
                return Ok(());
            }
            let private = libc::MS_REC | libc::MS_PRIVATE;
            let (tmpfs, size) = (c"tmpfs".as_ptr(), c"size=4k".as_ptr());
            if libc::mount(c"none".as_ptr(), c"/".as_ptr(), none, private, none.cast()) != 0
                || libc::mount(tmpfs, c"/dev/shm".as_ptr(), tmpfs, 0, size.cast()) != 0
            {
                return Ok(());
            }
            let flags = libc::O_CREAT | libc::O_WRONLY;
            let file = libc::open(c"/dev/shm/full".as_ptr(), flags, 0o600);
            libc::write(file, [0_u8; 4096].as_ptr().cast(), 4096);
            libc::close(file);
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls only.
    unsafe { command.pre_exec(mount) };
}

/// A running command, whose lines are kept; killed if the test fails.
pub struct Job {
    child: Child,
    lines: Arc<Mutex<Vec<String>>>,
    readers: Vec<thread::JoinHandle<()>>,
}

impl Job {
    pub fn start(mut command: Command) -> Job {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let streams: [Box<dyn Read + Send>; 2] =
            [Box::new(child.stdout.take().unwrap()), Box::new(child.stderr.take().unwrap())];
        let readers = streams.map(|stream| {
            let lines = lines.clone();
            thread::spawn(move || {
                for line in BufReader::new(stream).lines().map_while(Result::ok) {
                    lines.lock().unwrap().push(line);
                }
            })
        });
        Job { child, lines, readers: readers.into() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn text(&self) -> String {
        self.lines.lock().unwrap().join("\n")
    }

    /// Wait for a line that contains all of `words`.
    pub fn expect(&self, words: &[&str]) -> String {
        let find = || {
            let lines = self.lines.lock().unwrap();
            lines.iter().find(|line| words.iter().all(|word| line.contains(word))).cloned()
        };
        wait_until(|| find().is_some(), || format!("no line has {words:?}:\n{}", self.text()));
        find().unwrap()
    }

    /// The processes of all ranks, once each has said that it works.
    pub fn pids(&self, size: u32) -> Vec<u32> {
        let pid = |rank| self.expect(&[&format!("[{rank}] working as ")]);
        (0..size).map(|rank| pid(rank).rsplit(' ').next().unwrap().parse().unwrap()).collect()
    }

    /// Wait for its end; its exit code and everything it wrote.
    pub fn end(mut self) -> (ExitStatus, String) {
        let mut status = None;
        let deadline = Instant::now() + PATIENCE;
        while status.is_none() {
            assert!(Instant::now() < deadline, "it does not end:\n{}", self.text());
            thread::sleep(Duration::from_millis(10));
            status = self.child.try_wait().unwrap();
        }
        self.readers.drain(..).for_each(|reader| reader.join().unwrap());
        (status.unwrap(), self.text())
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn wait_until(condition: impl Fn() -> bool, otherwise: impl Fn() -> String) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "{}", otherwise());
        thread::sleep(Duration::from_millis(10));
    }
}

pub fn signal(pid: u32, signal: i32) {
    // SAFETY: kill touches no memory; the process is one of this test's.
    assert_eq!(unsafe { libc::kill(pid as i32, signal) }, 0);
}

/// Whether a process runs. A zombie does not: who reaps it is none of our business.
pub fn is_alive(pid: u32) -> bool {
    let Ok(status) = fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    !status.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['Z', 'X']))
}

/// Elements of the tensors.
const LENGTH: usize = 100_000;

/// What a worker finds in its environment.
pub struct Part {
    pub role: String,
    pub worker: Worker,
    folder: PathBuf,
}

impl Part {
    /// Join as the environment says.
    pub fn join() -> Result<Part, NetError> {
        let transport = match env::var(TRANSPORT).unwrap().as_str() {
            "tcp" => Transport::Tcp,
            _ => Transport::Auto,
        };
        let config = WorkerConfig { transport, ..WorkerConfig::default() };
        let worker = Worker::start(join(JoinConfig::from_env()?)?, config)?;
        let (role, folder) = (env::var(ROLE).unwrap(), env::var(FOLDER).unwrap().into());
        Ok(Part { role, worker, folder })
    }

    /// A few all-reduces, checked. Whether to go on is agreed on, so that all end after the same round.
    pub fn round(&self) -> Result<bool, NetError> {
        let (rank, size) = (self.worker.rank().0, self.worker.size() as u32);
        for number in 0..8 {
            let mut data = vec![(rank + number) as f32; LENGTH];
            self.worker.all_reduce(&format!("tensor {number}"), &mut data, ReduceOp::Sum)?;
            let expected: f32 = (0..size).map(|rank| (rank + number) as f32).sum();
            assert!(data.iter().all(|value| *value == expected), "a wrong sum");
        }
        let mut more = [u8::from(!self.folder.join("finish").exists())];
        self.worker.all_reduce("more", &mut more, ReduceOp::Min)?;
        Ok(more == [1])
    }
}
