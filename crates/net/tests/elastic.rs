//! Workers of an elastic job as real processes, killed in the middle of what they do: the others go on, in the same step,
//! and end with equal parameters. The processes are this very program, asked for its one ignored test.

use paceline_job::{ByteSize, ReduceOp, Settings, StrategyChoice};
use paceline_net::{
    Handle, JoinConfig, Log, Operation, Secret, Transport, Worker, WorkerConfig,
    coordinator::{Coordinator, CoordinatorConfig},
    join,
};
use paceline_sync::{agreement::Limits, collective::Collective};
use std::{
    hash::{DefaultHasher, Hash, Hasher},
    io::{BufRead, BufReader},
    net::SocketAddr,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

/// Elements of each tensor.
const TENSORS: [usize; 5] = [100_000, 7, 300_000, 1, 50_000];
const STEPS: u64 = 60;

/// What a worker process does; run by the tests below.
#[test]
#[ignore = "a process of the other tests"]
fn worker_of_an_elastic_job() {
    let variable = |name: &str| std::env::var(name).unwrap();
    let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
    let joined = join(JoinConfig::new(variable("JOB_ADDRESS"), secret)).unwrap();
    let transport = match variable("JOB_TRANSPORT").as_str() {
        "tcp" => Transport::Tcp,
        _ => Transport::Auto,
    };
    let config = WorkerConfig { transport, ..WorkerConfig::default() };
    let worker = Worker::start(joined, config).unwrap();
    let mut parameters: Vec<Vec<f32>> = TENSORS.iter().map(|len| vec![1.0; *len]).collect();
    let mut longest = (Duration::ZERO, 0);
    for step in 0..STEPS {
        let began = Instant::now();
        let view = worker.begin_step(step).unwrap();
        println!("step {step} of {} with {}", worker.rank(), view.size());
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
                    .priority(tensor as i64);
                let data = gradient.as_mut_ptr();
                // SAFETY: the gradients live until all have been waited for, below.
                unsafe { worker.start_raw(operation, data.cast_const(), data) }
            })
            .collect();
        handles.iter().for_each(|handle| handle.wait().unwrap());
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

struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
    said: Vec<String>,
}

impl Process {
    fn start(address: SocketAddr, secret: &Secret, transport: &str) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "worker_of_an_elastic_job", "--ignored", "--nocapture"])
            .env("JOB_ADDRESS", address.to_string())
            .env("JOB_SECRET", secret.to_hex())
            .env("JOB_TRANSPORT", transport)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output, said: Vec::new() }
    }

    /// Read until a line begins so; nothing if the process ends before.
    fn read_until(&mut self, beginning: &str) -> Option<String> {
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

/// Start so many workers, kill some when the first comes to a step, and see that the others end alike.
fn kill_at(workers: usize, strategy: &str, transport: &str, kills: &[(u64, usize)]) {
    let secret = Secret::random().unwrap();
    let settings = Settings {
        strategy: StrategyChoice(strategy.to_string()),
        partition: ByteSize::kib(64),
        ..Settings::default()
    };
    let coordinator = Coordinator::start(CoordinatorConfig {
        settings,
        elastic: Some(Limits::default()),
        log: Log::silent(),
        ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), workers, secret.clone())
    })
    .unwrap();
    let mut processes: Vec<Option<Process>> = (0..workers)
        .map(|_| Some(Process::start(coordinator.address(), &secret, transport)))
        .collect();
    for (step, victim) in kills {
        let first = processes.iter_mut().flatten().next().unwrap();
        first.read_until(&format!("step {step} ")).unwrap();
        let victim = processes[*victim].take().unwrap();
        drop(victim);
    }
    let mut ends = Vec::new();
    for process in processes.iter_mut().flatten() {
        let parameters = process.read_until("parameters ");
        let told: Vec<_> = process.said.iter().filter(|it| !it.contains("step ")).collect();
        println!("{:?} {:?}", process.said.iter().find(|it| it.contains("longest")), told);
        ends.push(parameters.unwrap_or_else(|| panic!("it ended early: {:?}", process.said)));
        let left = workers - kills.len();
        let last = format!("step {} of", STEPS - 1);
        let last = process.said.iter().find(|line| line.contains(&last)).unwrap();
        assert!(last.ends_with(&format!("with {left}")), "{last}");
    }
    assert_eq!(ends.len(), workers - kills.len());
    assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
}

#[test]
fn workers_go_on_without_one_that_is_killed_in_shared_memory() {
    kill_at(4, "ring", "auto", &[(20, 2)]);
}

#[test]
fn workers_go_on_without_one_that_is_killed_over_tcp() {
    kill_at(3, "auto", "tcp", &[(20, 1)]);
}

#[test]
fn workers_go_on_without_one_after_the_other() {
    kill_at(4, "double_tree", "tcp", &[(10, 3), (11, 1), (30, 2)]);
}
