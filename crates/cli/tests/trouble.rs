//! Workers that are killed, stopped, leave early or lack what they need, as real processes under
//! `paceline run`: everybody concerned ends in time with an error that names the worker, or goes on, and
//! nothing is left behind. A full `/dev/shm` makes no difference to any of it.

mod trouble_support;

use paceline_job::{ByteSize, Settings, StrategyChoice};
use std::{env, process::Command, time::Duration};
use trouble_support::*;

/// The workers of these tests. Without a role it is a test that has nothing to do.
#[test]
fn worker_process() {
    if env::var(ROLE).is_err() {
        return;
    }
    match env::var(FILES) {
        Ok(files) if env::var("RANK").as_deref() == Ok("1") => limit_files(files.parse().unwrap()),
        Ok(_) => {}
        // Whoever loses a peer shall tell it in its own words before `paceline run` ends it.
        // SAFETY: ignoring a signal runs no code of ours.
        Err(_) => drop(unsafe { libc::signal(libc::SIGTERM, libc::SIG_IGN) }),
    }
    let code = match Part::join().and_then(play) {
        Ok(()) => 0,
        Err(error) => {
            eprintln!("\nfailed: {error}");
            1
        }
    };
    std::process::exit(code);
}

/// How many files worker 1 may open.
const FILES: &str = "TROUBLE_FILES";

fn limit_files(files: u64) {
    let limit = libc::rlimit { rlim_cur: files, rlim_max: files };
    // SAFETY: a valid structure.
    assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) }, 0);
}

fn play(part: Part) -> paceline_net::Result<()> {
    let rank = part.worker.rank().0;
    let mut more = part.round()?;
    // On a line of its own, whatever the harness has begun to write.
    println!("\nworking as {}", std::process::id());
    match (part.role.as_str(), rank) {
        ("one leaves early", 1) => return Ok(()),
        ("one exits early", 1) => std::process::exit(0),
        _ => {}
    }
    while more {
        more = part.round()?;
    }
    println!("\nsums were right");
    Ok(())
}

fn settings() -> Settings {
    Settings {
        strategy: StrategyChoice("ring".to_string()),
        partition: ByteSize::kib(64),
        ..Settings::default()
    }
}

const TRANSPORTS: [&str; 2] = ["shm", "tcp"];

fn assert_nothing_left(pids: &[u32], text: &str) {
    wait_until(|| !pids.iter().any(|pid| is_alive(*pid)), || "a worker is left".to_string());
    assert!(!text.contains("left: "), "{text}");
    assert!(!text.contains("panicked"), "{text}");
}

/// Kill worker 2 of four in the middle of a stream; the exit code and all that was written, when every
/// other worker has named it and nothing is left, though they leave one after the other because of it. And
/// the victim's process number.
fn kill_one(transport: &str) -> (Option<i32>, String, u32) {
    let scene = Scene::new(&settings());
    let job = scene.run(4, "all work", transport);
    let pids = job.pids(4);
    signal(pids[2], libc::SIGKILL);
    for rank in [0, 1, 3] {
        let named = "`: worker 2 is gone (its connection";
        job.expect(&[&format!("[{rank}] failed:"), named, "restart it or go on"]);
    }
    let (status, text) = job.end();
    assert_nothing_left(&pids, &text);
    (status.code(), text, pids[2])
}

#[test]
fn a_worker_that_is_killed_is_named_by_all_others_and_leaves_nothing() {
    for transport in TRANSPORTS {
        let (code, text, _) = kill_one(transport);
        assert_ne!(code, Some(0), "{text}");
        assert!(text.contains("the job failed: "), "{text}");
    }
}

#[test]
fn the_report_names_the_worker_that_was_killed_and_the_signal() {
    for transport in TRANSPORTS {
        let (code, text, pid) = kill_one(transport);
        assert_eq!(code, Some(128 + libc::SIGKILL), "{text}");
        let report = format!("the job failed: rank 2 (pid {pid}) was ended by SIGKILL");
        assert!(text.contains(&report), "{text}");
    }
}

#[test]
fn a_worker_that_is_stopped_is_reported_and_not_given_up() {
    for transport in TRANSPORTS {
        let stall_report = Duration::from_millis(300);
        let scene = Scene::new(&Settings { stall_report, ..settings() });
        let job = scene.run(3, "all work", transport);
        let pids = job.pids(3);
        signal(pids[1], libc::SIGSTOP);
        for rank in [0, 2] {
            let worker = format!("[{rank}] paceline: worker {rank}: ");
            job.expect(&[&worker, "No answer from worker 1"]);
        }
        scene.finish();
        signal(pids[1], libc::SIGCONT);
        let (status, text) = job.end();
        assert_eq!(status.code(), Some(0), "{text}");
        assert_eq!(text.matches("sums were right").count(), 3, "{text}");
        assert_nothing_left(&pids, &text);
    }
}

#[test]
fn whoever_ends_early_is_named_by_those_who_still_need_it() {
    for transport in TRANSPORTS {
        for (role, words) in
            [("one leaves early", "it left the job"), ("one exits early", "its connection")]
        {
            let scene = Scene::new(&settings());
            let job = scene.run(3, role, transport);
            let pids = job.pids(3);
            for rank in [0, 2] {
                let named = format!("`: worker 1 is gone ({words}");
                job.expect(&[&format!("[{rank}] failed:"), &named]);
            }
            let (status, text) = job.end();
            assert_eq!(status.code(), Some(1), "{text}");
            assert!(!text.contains("rank 1 (pid"), "it did nothing wrong: {text}");
            assert_nothing_left(&pids, &text);
        }
    }
}

#[test]
fn a_coordinator_of_its_own_ends_when_one_worker_is_killed_and_the_other_gives_up() {
    let secret = "a secret for these tests";
    let scene = Scene::new(&settings());
    let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
    command.args(["coordinator", "--listen", "127.0.0.1:0", "--size", "2", "--strategy", "ring"]);
    let coordinator = Job::start({
        command.env("PACELINE_SECRET", secret);
        command
    });
    let line = coordinator.expect(&["export PACELINE_COORDINATOR="]);
    let address = line.split_once('=').unwrap().1;
    let workers = ["0", "1"].map(|rank| {
        let mut command = Command::new(env::current_exe().unwrap());
        command.args(AS_WORKER).env("RANK", rank).env("WORLD_SIZE", "2");
        command.env("PACELINE_COORDINATOR", address).env("PACELINE_SECRET", secret);
        scene.tell(&mut command, "all work", "shm");
        Job::start(command)
    });
    workers.iter().for_each(|worker| drop(worker.expect(&["working as"])));
    let [survivor, victim] = workers;
    signal(victim.id(), libc::SIGKILL);
    let (status, text) = survivor.end();
    assert_eq!(status.code(), Some(1), "{text}");
    assert!(text.contains("worker 1 is gone"), "{text}");
    let (status, text) = coordinator.end();
    assert_eq!(status.code(), Some(0), "{text}");
    assert!(text.contains("worker 1 is gone: its connection closed"), "{text}");
}

#[test]
fn a_worker_without_file_descriptors_says_so_and_ends() {
    let scene = Scene::new(&settings());
    scene.finish();
    let mut joined = 0;
    // From too few to start with to enough.
    for limit in (4..40).step_by(3) {
        let mut command = Command::new(env!("CARGO_BIN_EXE_paceline"));
        command.args(["run", "-n", "2", "--grace", "60", "--strategy", "ring", "--"]);
        command.arg(env::current_exe().unwrap()).args(AS_WORKER);
        scene.tell(&mut command, "all work", "shm");
        command.env("PACELINE_JOIN_TIMEOUT", "20").env(FILES, limit.to_string());
        let (status, text) = Job::start(command).end();
        assert!(!text.contains("panicked"), "{limit}: {text}");
        if status.code() == Some(0) {
            joined += 1;
        } else {
            assert_eq!(status.code(), Some(1), "{limit}: {text}");
            assert!(text.contains("open files"), "{limit}: {text}");
            assert!(text.contains("ulimit -n"), "{limit}: {text}");
        }
    }
    assert!(joined > 0, "the highest limit is too low for this test");
}
