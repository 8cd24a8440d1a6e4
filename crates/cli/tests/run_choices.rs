//! `paceline run` says what `auto` chose, and why, in its own voice. The workers are this very test program,
//! started again.

use paceline_job::ReduceOp;
use paceline_net::{JoinConfig, Worker, WorkerConfig, join};
use std::{
    env,
    process::{Command, Stdio},
};

const ROLE: &str = "CHOICES_ROLE";

/// The workers of these tests. Without a role it is a test that has nothing to do.
#[test]
fn worker_process() {
    if env::var(ROLE).is_err() {
        return;
    }
    let joined = join(JoinConfig::from_env().unwrap()).unwrap();
    let worker = Worker::start(joined, WorkerConfig::default()).unwrap();
    let mut sum = [1_f32; 100];
    worker.all_reduce("sum", &mut sum, ReduceOp::Sum).unwrap();
    assert_eq!(sum, [worker.size() as f32; 100]);
}

/// What a job of three writes to its standard error.
fn errors_of(options: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_paceline"))
        .args([&["run", "-n", "3"], options, &["--"]].concat())
        .arg(env::current_exe().unwrap())
        .args(["worker_process", "--exact", "--test-threads=1"])
        .env(ROLE, "sum")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    errors
}

#[test]
fn a_job_under_auto_says_once_what_was_measured_chosen_and_why() {
    let errors = errors_of(&[]);
    let said = |words: &str| errors.lines().filter(|line| line.starts_with(words)).count();
    assert_eq!(said("paceline: auto chose "), 1, "{errors}");
    assert_eq!(said("paceline: why "), 1, "{errors}");
    assert!(errors.contains("; measured ") && errors.contains(" inside a host"), "{errors}");
    assert!(errors.contains("on 3 members and 1 host take about"), "{errors}");
}

#[test]
fn a_job_that_is_quiet_or_has_a_strategy_says_nothing() {
    for options in [&["--quiet"][..], &["--strategy", "ring"]] {
        let errors = errors_of(options);
        assert!(!errors.contains("auto") && !errors.contains("why"), "{options:?}: {errors}");
    }
}
