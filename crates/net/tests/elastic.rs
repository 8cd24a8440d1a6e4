//! Workers of an elastic job as real processes, killed in the middle of what they do: the others go on, in the same step,
//! and end with equal parameters.

mod elastic_support;

use elastic_support::{Process, see_equal_ends};
use paceline_job::{ByteSize, Settings, StrategyChoice};
use paceline_net::{
    Log, Secret,
    coordinator::{Coordinator, CoordinatorConfig},
};
use paceline_sync::agreement::Limits;
use std::time::Duration;

#[test]
#[ignore = "a process of the other tests"]
fn worker_of_an_elastic_job() {
    elastic_support::work();
}

fn begin(workers: usize, strategy: &str) -> (Coordinator, Secret) {
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
    });
    (coordinator.unwrap(), secret)
}

/// Start so many workers, kill some when the first comes to a step, and see that the others end alike.
fn kill_at(workers: usize, strategy: &str, transport: &str, kills: &[(u64, usize)]) {
    let (coordinator, secret) = begin(workers, strategy);
    let address = coordinator.address().to_string();
    let mut processes: Vec<Option<Process>> = (0..workers)
        .map(|_| Some(Process::worker(&address, &secret, transport, Duration::ZERO)))
        .collect();
    for (step, victim) in kills {
        let first = processes.iter_mut().flatten().next().unwrap();
        first.read_until(&format!("step {step} ")).unwrap();
        let victim = processes[*victim].take().unwrap();
        drop(victim);
    }
    see_equal_ends(processes.iter_mut().flatten(), workers - kills.len());
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

#[test]
fn workers_go_on_without_one_whose_program_ends_in_a_step_that_they_take() {
    let (coordinator, secret) = begin(3, "ring");
    let address = coordinator.address().to_string();
    let start = |variables: &[(&str, &str)]| {
        let usual = [("JOB_TRANSPORT", "auto"), ("JOB_PACE", "0")];
        let variables: Vec<_> = usual.into_iter().chain(variables.iter().copied()).collect();
        Process::start("worker_of_an_elastic_job", &address, &secret, &variables)
    };
    let mut others = [start(&[]), start(&[])];
    let mut ends = start(&[("JOB_ENDS_IN", "7")]);
    assert!(ends.read_until("ended").is_some(), "{:?}", ends.said);
    see_equal_ends(others.iter_mut(), 2);
}
