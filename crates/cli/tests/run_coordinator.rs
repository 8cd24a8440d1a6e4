//! `paceline coordinator` with workers that join it by the lines it prints.

use paceline_job::ReduceOp;
use paceline_net::{JoinConfig, Worker, WorkerConfig, join};
use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Lines, Read},
    process::{Child, ChildStdout, Command, Stdio},
    thread,
};

struct Coordinator {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Coordinator {
    fn start(size: &str, environment: &[(&str, &str)]) -> Coordinator {
        Coordinator::start_at("127.0.0.1:0", size, &[], environment)
    }

    fn start_at(
        address: &str,
        size: &str,
        further: &[&str],
        environment: &[(&str, &str)],
    ) -> Coordinator {
        let mut child = Command::new(env!("CARGO_BIN_EXE_paceline"))
            .args(["coordinator", "--listen", address, "--size", size, "--strategy", "ring"])
            .args(further)
            .env_remove("PACELINE_SECRET")
            .envs(environment.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Coordinator { child, lines }
    }

    /// The variables it tells workers to set.
    fn invitation(&mut self) -> HashMap<String, String> {
        let lines = self.lines.by_ref().map(Result::unwrap);
        lines
            .take_while(|line| !line.starts_with("export RANK"))
            .filter_map(|line| {
                let (name, value) = line.strip_prefix("export ")?.split_once('=')?;
                Some((name.to_string(), value.to_string()))
            })
            .collect()
    }

    fn end(mut self) -> (Option<i32>, String) {
        let mut error = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut error).unwrap();
        (self.child.wait().unwrap().code(), error)
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn workers_join_by_what_it_prints_and_it_ends_with_them() {
    let mut coordinator = Coordinator::start("2", &[]);
    let variables = coordinator.invitation();
    assert_eq!(variables["WORLD_SIZE"], "2");
    // As long as the coordinator itself waits.
    let own = JoinConfig::from_variables(&|name| variables.get(name).cloned()).unwrap();
    assert_eq!(own.timeout.as_secs(), 1800);
    let workers: Vec<_> = (0..2)
        .map(|rank: u32| {
            let mut variables = variables.clone();
            variables.insert("RANK".to_string(), rank.to_string());
            thread::spawn(move || {
                let config = JoinConfig::from_variables(&|name| variables.get(name).cloned());
                let joined = join(config.unwrap()).unwrap();
                (joined.rank.0, joined.view.settings.strategy.0.clone())
            })
        })
        .collect();
    for (rank, worker) in (0..).zip(workers) {
        assert_eq!(worker.join().unwrap(), (rank, "ring".to_string()));
    }
    assert_eq!(coordinator.end().0, Some(0));
}

#[test]
fn a_secret_that_was_given_is_not_printed_and_a_signal_ends_it() {
    let secret = "a secret that everybody has";
    let mut coordinator = Coordinator::start("2", &[("PACELINE_SECRET", secret)]);
    let variables = coordinator.invitation();
    assert!(variables.contains_key("PACELINE_COORDINATOR"));
    assert!(!variables.contains_key("PACELINE_SECRET"));
    // SAFETY: kill touches no memory; the process is our child and not reaped.
    assert_eq!(unsafe { libc::kill(coordinator.child.id() as i32, libc::SIGTERM) }, 0);
    assert_eq!(coordinator.end().0, Some(128 + libc::SIGTERM));
}

#[test]
fn a_job_of_nobody_is_wrong_usage() {
    let (code, error) = Coordinator::start("0", &[]).end();
    assert_eq!(code, Some(2));
    assert!(error.contains("at least one worker"), "{error}");
}

#[test]
fn one_that_is_killed_and_started_again_by_the_same_command_has_its_workers_again() {
    let folder = tempfile::tempdir().unwrap();
    let further = ["--elastic", "1:2", "--store", folder.path().to_str().unwrap()];
    let secret = "a secret that everybody has";
    let environment = [("PACELINE_SECRET", secret)];
    let mut first = Coordinator::start_at("127.0.0.1:0", "2", &further, &environment);
    let mut variables = first.invitation();
    variables.insert("PACELINE_SECRET".to_string(), secret.to_string());
    let address = variables["PACELINE_COORDINATOR"].clone();
    let join = |rank: u32| {
        let mut variables = variables.clone();
        variables.insert("RANK".to_string(), rank.to_string());
        thread::spawn(move || {
            let config = JoinConfig::from_variables(&|name| variables.get(name).cloned());
            Worker::start(join(config.unwrap()).unwrap(), WorkerConfig::default()).unwrap()
        })
    };
    let workers = [join(0), join(1)].map(|worker| worker.join().unwrap());
    let (code, error) = Coordinator::start_at("127.0.0.1:0", "2", &further, &environment).end();
    assert_eq!(code, Some(2));
    assert!(error.contains("another coordinator has"), "{error}");

    drop(first);
    let second = Coordinator::start_at(&address, "2", &further, &environment);
    thread::scope(|scope| {
        for worker in workers {
            scope.spawn(move || {
                let mut sum = [1.0_f32];
                worker.begin_step(1).unwrap();
                worker.all_reduce("sum", &mut sum, ReduceOp::Sum).unwrap();
                assert_eq!(sum, [2.0]);
            });
        }
    });
    assert_eq!(second.end().0, Some(0));
    let left = folder.path().join("coordinator.json");
    assert!(!left.exists(), "the job is over");
}
