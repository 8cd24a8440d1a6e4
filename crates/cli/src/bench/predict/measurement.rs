//! The measured side: one worker process on each host of a testbed, and the coordinator on the first. It knows
//! processes and namespaces; what the times mean is not known here.

use super::{
    super::{
        contender::{BetweenTurns, Contender, Process},
        group::Group,
        interrupt::Interrupt,
        ours::WORKER,
    },
    grid::host_name,
};
use anyhow::{Context, Result};
use paceline_job::{Plan, Rank, Settings};
use paceline_net::{
    Secret,
    launch::{MeetingPoint, WorkerPlace, worker_environment},
};
use paceline_testbed::Testbed;
use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::{Child, Command, Stdio},
    time::Duration,
};

/// Where the first coordinator listens. Its host has a network namespace of its own, where every port is free.
const COORDINATOR_PORT: u16 = 29400;

/// Starts the workers of one view, which rest so long between all-reduces. Of those that run at the same time, each has a
/// number of its own.
pub fn start(
    testbed: &Testbed,
    number: u16,
    settings: &Settings,
    rest: Duration,
    folder: &Path,
    interrupt: &Interrupt,
) -> Result<Group> {
    let program = std::env::current_exe().context("find this program")?;
    let secret = Secret::random()?;
    let size = testbed.spec().hosts;
    let micros = rest.as_micros().to_string();
    let address = SocketAddr::from((testbed.address(0), COORDINATOR_PORT + number));
    // Racks do not fit on a command line.
    let plan = folder.join(format!("plan{number}.toml"));
    let decided = Plan { settings: settings.clone(), ..Plan::default() };
    fs::write(&plan, decided.to_toml()).context("write the plan")?;
    let coordinator = Coordinator::start(testbed, &program, address, &plan, &secret)?;
    let processes = (0..size)
        .map(|rank| {
            let place = WorkerPlace { rank: Rank(rank as u32), size, local_rank: 0, local_size: 1 };
            let meeting = MeetingPoint { master: address, coordinator: address, secret: &secret };
            let mut environment = worker_environment(place, meeting);
            // What is predicted is the network, not a cipher.
            environment.push(("PACELINE_INSECURE".to_string(), "1".to_string()));
            environment.push(("PACELINE_HOST".to_string(), host_name(rank)));
            Process {
                program: program.clone(),
                arguments: [WORKER, "--variant", "tcp", "--aligned", &micros]
                    .map(Into::into)
                    .to_vec(),
                environment: environment.into_iter().map(|(k, v)| (k.into(), v.into())).collect(),
            }
        })
        .collect();
    let contender = Contender {
        name: settings.strategy.to_string(),
        processes,
        between_turns: BetweenTurns::Sleeping,
        companion: Some(Box::new(coordinator)),
    };
    Group::start_by(contender, folder, interrupt, |host, command| Ok(testbed.spawn(host, command)?))
}

/// A process beside the workers of host 0.
struct Coordinator(Child);

impl Coordinator {
    fn start(
        testbed: &Testbed,
        program: &Path,
        address: SocketAddr,
        plan: &Path,
        secret: &Secret,
    ) -> Result<Coordinator> {
        let mut command = Command::new(program);
        command
            .args(["coordinator", "--listen", &address.to_string()])
            .args(["--size", &testbed.spec().hosts.to_string()])
            .arg("--plan")
            .arg(plan)
            .env("PACELINE_SECRET", secret.to_hex())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        Ok(Coordinator(testbed.spawn(0, command)?))
    }
}

impl Drop for Coordinator {
    fn drop(&mut self) {
        // Its workers have left, so it has ended or is about to; either way nobody needs it.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
