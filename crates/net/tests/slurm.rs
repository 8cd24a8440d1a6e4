//! An elastic job started by a real Slurm: a controller and several nodes on this machine, workers that meet in a real etcd,
//! and one of them killed.

mod elastic_support;
mod etcd_support;

use etcd_support::{Server, free_port};
use paceline_net::Secret;
use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

const NODES: usize = 3;

#[test]
#[ignore = "a process of the other tests"]
fn worker_of_an_elastic_job() {
    elastic_support::work();
}

/// A controller and its nodes, gone when it is dropped.
struct Slurm {
    folder: tempfile::TempDir,
    daemons: Vec<Child>,
}

impl Slurm {
    /// None where Slurm is not installed or may not be started, which is said.
    fn start() -> Option<Slurm> {
        let name = fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_string();
        let mut slurm = Slurm { folder: tempfile::tempdir().unwrap(), daemons: Vec::new() };
        let folder = slurm.folder.path().to_path_buf();
        fs::write(folder.join("slurm.conf"), configuration(&folder, &name)).unwrap();
        fs::create_dir(folder.join("state")).unwrap();
        // SAFETY: a system call without arguments.
        let root = unsafe { libc::geteuid() } == 0;
        let mut daemon = |command: &mut Command| {
            let output = fs::File::create(folder.join(format!("{}.log", slurm.daemons.len())));
            let spawned = command
                .env("SLURM_CONF", folder.join("slurm.conf"))
                .stdout(Stdio::null())
                .stderr(output.unwrap())
                .spawn();
            spawned.map(|child| slurm.daemons.push(child)).is_ok()
        };
        let started = root
            && daemon(Command::new("slurmctld").args(["-D", "-i"]))
            && (0..NODES)
                .all(|node| daemon(Command::new("slurmd").args(["-D", "-N", &name_of(node)])));
        if !started {
            eprintln!("skipped: needs root and Slurm (Debian: apt-get install slurm-wlm)");
            return None;
        }
        let began = Instant::now();
        while !slurm.is_idle() {
            assert!(began.elapsed() < Duration::from_secs(60), "Slurm's nodes do not come up");
            thread::sleep(Duration::from_millis(200));
        }
        Some(slurm)
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(name);
        command.env("SLURM_CONF", self.folder.path().join("slurm.conf"));
        command
    }

    fn is_idle(&self) -> bool {
        let asked = self.command("sinfo").args(["-h", "-o", "%D %T"]).output();
        asked.is_ok_and(|it| String::from_utf8_lossy(&it.stdout).trim() == format!("{NODES} idle"))
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for daemon in &mut self.daemons {
            // SAFETY: a signal to a child that has not been waited for.
            unsafe { libc::kill(daemon.id() as libc::pid_t, libc::SIGTERM) };
        }
        for daemon in &mut self.daemons {
            let began = Instant::now();
            while began.elapsed() < Duration::from_secs(10) && matches!(daemon.try_wait(), Ok(None))
            {
                thread::sleep(Duration::from_millis(20));
            }
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

fn name_of(node: usize) -> String {
    format!("node{node}")
}

fn configuration(folder: &Path, host: &str) -> String {
    let nodes: String = (0..NODES)
        .map(|node| {
            let (name, port) = (name_of(node), free_port());
            format!("NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4\n")
        })
        .collect();
    let common = include_str!("slurm_support/slurm.conf")
        .replace("{host}", host)
        .replace("{folder}", &folder.display().to_string())
        .replace("{controller}", &free_port().to_string())
        .replace("{daemon}", &free_port().to_string());
    nodes + &common
}

/// Signal the process of a task.
fn kill(process: &str) {
    let killed = Command::new("kill").args(["-9", process]).status();
    assert!(killed.unwrap().success());
}

#[test]
fn workers_that_slurm_started_outlive_one_that_is_killed() {
    let Some(server) = Server::start() else { return };
    let Some(slurm) = Slurm::start() else { return };
    let mut srun = slurm
        .command("srun")
        .args(["--nodes", &NODES.to_string(), "--ntasks", &NODES.to_string(), "--label"])
        .arg("--kill-on-bad-exit=0")
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "worker_of_an_elastic_job", "--ignored", "--nocapture"])
        .env("PACELINE_COORDINATOR", server.address("training"))
        .env("PACELINE_SECRET", Secret::random().unwrap().to_hex())
        .envs([("JOB_TRANSPORT", "tcp"), ("JOB_PACE", "30")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut process, mut sizes, mut ends) = (None, Vec::new(), Vec::new());
    for line in BufReader::new(srun.stdout.take().unwrap()).lines() {
        let line = line.unwrap();
        if let Some(rest) = line.strip_prefix("1: ") {
            process = rest.strip_prefix("process ").map(str::to_string).or(process);
            if rest.starts_with("step 10 ") {
                kill(process.as_deref().expect("it says so first"));
            }
        }
        sizes.extend(
            line.contains("step 59 of").then(|| line.rsplit(' ').next().map(str::to_string)),
        );
        ends.extend(line.split_once("parameters ").map(|(_, end)| end.to_string()));
    }
    srun.wait().unwrap();
    assert_eq!(sizes, vec![Some("2".to_string()); 2]);
    assert!(ends.len() == 2 && ends[0] == ends[1], "{ends:?}");
}
