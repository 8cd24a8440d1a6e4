//! Workers of an elastic job as real processes: they train a little, say which step they are in, and in the end what
//! their parameters are.

#![allow(dead_code)] // Each test file uses its own part.

use paceline_job::ReduceOp;
use paceline_net::{
    Handle, JoinConfig, Operation, Secret, Transport, Worker, WorkerConfig,
    coordinator::{Answer, MemberStatus, Question, Standing, ask},
    join,
};
use paceline_sync::{agreement::Limits, collective::Collective, event::Holds};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader},
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// Elements of each tensor.
const TENSORS: [usize; 5] = [100_000, 7, 300_000, 1, 50_000];
pub const STEPS: u64 = 60;

/// Join as the environment says.
fn begin() -> Worker {
    let variable = |name: &str| std::env::var(name).unwrap();
    println!("process {}", std::process::id());
    let config = match std::env::var("JOB_ADDRESS") {
        Err(_) => JoinConfig::from_env().unwrap(),
        Ok(address) => {
            let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
            let size = std::env::var("JOB_SIZE").ok().map(|size| size.parse().unwrap());
            let most = std::env::var("JOB_MOST").ok().map(|most| most.parse().unwrap());
            let limits = most.map_or(Limits::default(), |most| Limits { least: 1, most });
            JoinConfig { size, limits, ..JoinConfig::new(address, secret) }
        }
    };
    let joined = join(config).unwrap();
    let transport = match variable("JOB_TRANSPORT").as_str() {
        "tcp" => Transport::Tcp,
        _ => Transport::Auto,
    };
    let config = WorkerConfig { transport, ..WorkerConfig::default() };
    Worker::start(joined, config).unwrap()
}

/// What a process does that comes to a running job, which may have no room for it.
pub fn wait_for_room() {
    let worker = begin();
    match worker.enter() {
        Ok(entry) => {
            println!("entered with {}", entry.view.size());
            // The others go on without it.
            std::process::abort()
        }
        Err(error) => println!("failed: {error}"),
    }
}

/// Until somebody waits because there is no room.
pub fn see_somebody_wait(address: &str, secret: &Secret) {
    let began = Instant::now();
    loop {
        let waits = |it: &MemberStatus| it.standing == Standing::Spare;
        match ask(address, secret, Question::Status) {
            Ok(Answer::Status(status)) if status.members.iter().any(waits) => return,
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
        assert!(began.elapsed() < Duration::from_secs(20), "nobody waits");
    }
}

/// What a worker process does.
pub fn work() {
    let worker = begin();
    let variable = |name: &str| std::env::var(name).unwrap();
    let mut parameters: Vec<Vec<f32>> = TENSORS.iter().map(|len| vec![1.0; *len]).collect();
    let mut longest = (Duration::ZERO, 0);
    let pace = Duration::from_millis(variable("JOB_PACE").parse().unwrap());
    for step in 0..STEPS {
        std::thread::sleep(pace);
        let began = Instant::now();
        let view = told(worker.begin_step(step));
        println!("step {step} of {} with {}", worker.rank(), view.size());
        if std::env::var("JOB_ENDS_IN").is_ok_and(|at| at == step.to_string()) {
            // The others wait in this step for what it does not post.
            drop(worker);
            return println!("ended");
        }
        let seed = view.workers[worker.rank().index()].id.0 as f32 + step as f32;
        let mut gradients: Vec<Vec<f32>> = TENSORS
            .iter()
            .map(|len| (0..*len).map(|at| seed + (at % 13) as f32).collect())
            .collect();
        let handles: Vec<Handle> = gradients
            .iter_mut()
            .enumerate()
            .map(|(tensor, gradient)| {
                let collective = Collective::AllReduce { len: gradient.len() as u64 };
                let operation = Operation::new(format!("gradient {tensor}"), collective)
                    .reduce(ReduceOp::Average)
                    .holds(Holds::Step)
                    .priority(tensor as i64);
                let data = gradient.as_mut_ptr();
                // SAFETY: the gradients live until all have been waited for, below.
                unsafe { worker.start_raw(operation, data.cast_const(), data) }
            })
            .collect();
        handles.iter().for_each(|handle| told(handle.wait()));
        for (parameter, gradient) in parameters.iter_mut().flatten().zip(gradients.iter().flatten())
        {
            *parameter = 0.5 * *parameter + gradient;
        }
        longest = longest.max((began.elapsed(), step));
    }
    for account in worker.take_losses() {
        let steps: Vec<u64> =
            (0..STEPS).filter(|step| !account.is_consumed(account.gone[0], *step)).collect();
        println!("lost {:?}, from step {:?} on its samples go back", account.gone, steps.first());
    }
    let mut hasher = DefaultHasher::new();
    parameters.iter().flatten().for_each(|value| value.to_bits().hash(&mut hasher));
    println!("longest step {longest:?}");
    drop(worker);
    println!("parameters {:016x}", hasher.finish());
}

/// What came of it, or the end of this process, with what failed as its last words.
fn told<T>(outcome: Result<T, impl std::fmt::Display>) -> T {
    outcome.unwrap_or_else(|error| {
        println!("failed: {error}");
        std::process::exit(1)
    })
}

/// A process of a test, which is this very program, asked for one of its ignored tests.
pub struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    pub said: Vec<String>,
}

impl Process {
    /// A worker that calls [`work`].
    pub fn worker(address: &str, secret: &Secret, transport: &str, pace: Duration) -> Process {
        let pace = pace.as_millis().to_string();
        let transport = [("JOB_TRANSPORT", transport), ("JOB_PACE", &pace)];
        Process::start("worker_of_an_elastic_job", address, secret, &transport)
    }

    pub fn start(
        test: &str,
        address: &str,
        secret: &Secret,
        variables: &[(&str, &str)],
    ) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--ignored", "--nocapture"])
            .env("JOB_ADDRESS", address)
            .env("JOB_SECRET", secret.to_hex())
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output, said: Vec::new() }
    }

    pub fn number(&self) -> u32 {
        self.child.id()
    }

    /// Freeze it, or let it go on: `SIGSTOP`, `SIGCONT`.
    pub fn signal(&self, signal: libc::c_int) {
        // SAFETY: a signal to a child that has not been waited for.
        unsafe { libc::kill(self.child.id() as libc::pid_t, signal) };
    }

    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Read until a line begins so; nothing if the process ends before.
    pub fn read_until(&mut self, beginning: &str) -> Option<String> {
        let mut line = String::new();
        while self.output.read_line(&mut line).unwrap() > 0 {
            let said = std::mem::take(&mut line);
            self.said.push(said.trim_end().to_string());
            if let Some(at) = said.find(beginning) {
                return Some(said[at + beginning.len()..].trim().to_string());
            }
        }
        None
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Each worker's parameters when it was done, which must be all alike, and the last view's size `left`.
pub fn see_equal_ends<'a>(processes: impl Iterator<Item = &'a mut Process>, left: usize) {
    let mut ends = Vec::new();
    for process in processes {
        let parameters = process.read_until("parameters ");
        let told: Vec<_> = process.said.iter().filter(|it| !it.contains("step ")).collect();
        println!("{:?} {:?}", process.said.iter().find(|it| it.contains("longest")), told);
        ends.push(parameters.unwrap_or_else(|| panic!("it ended early: {:?}", process.said)));
        let last = format!("step {} of", STEPS - 1);
        let last = process.said.iter().find(|line| line.contains(&last)).unwrap();
        assert!(last.ends_with(&format!("with {left}")), "{last}");
    }
    assert_eq!(ends.len(), left);
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}
