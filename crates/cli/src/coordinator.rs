//! `paceline coordinator`: the coordinator alone, for a job whose workers other tools start, on several
//! machines. It says how to join, and waits.

use crate::{
    exit::UsageError,
    run::signals::Signals,
    settings::{SettingsArgs, parse_address, parse_size},
    ui::{Hands, Page, UiOptions, record::Job},
};
use anyhow::Result;
use clap::Args;
use paceline_job::Plan;
use paceline_net::{
    Coordinator, CoordinatorConfig, NetError, Secret,
    coordinator::Progress,
    store::{DiskStore, Store},
};
use paceline_sync::agreement::Limits;
use std::{
    fmt,
    io::{self, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

/// How often signals are looked at while workers come and go.
const GLANCE: Duration = Duration::from_millis(200);

/// Gather the workers of a job over several machines, until all have left.
///
/// Prints the address and the variables that workers need; whatever starts them (ssh, srun, a cluster's own
/// tool) sets those. The secret is the one in PACELINE_SECRET or PACELINE_SECRET_FILE; if neither is set, a
/// fresh one is made and printed.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline coordinator --listen 10.0.0.1:29400 --size 16
  PACELINE_SECRET_FILE=~/job.secret paceline coordinator --listen 0.0.0.0:29400 --size 16
  paceline coordinator --listen 10.0.0.1:29400 --size 16 --elastic 8:32
  paceline coordinator --listen 10.0.0.1:29400 --size 16 --ui=127.0.0.1:8080

Exit codes:
  0    all workers came and left
  1    the workers did not all come in time, or another coordinator has the job
  2    the command line is wrong, or the address cannot be used
  128 + signal if one ended it")]
pub struct CoordinatorArgs {
    /// Where to listen: an address of this machine that the workers can reach.
    #[arg(long, value_name = "ADDRESS:PORT", value_parser = parse_address)]
    pub listen: SocketAddr,

    /// How many workers the job has.
    #[arg(long, value_name = "N", value_parser = parse_size)]
    pub size: usize,

    /// Let workers come and go: with fewer than LEAST the job ends, and more than MOST are not let in.
    #[arg(long, value_name = "LEAST:MOST", value_parser = parse_limits)]
    pub elastic: Option<Limits>,

    /// A folder for what must not be forgotten [default: one for the address in $XDG_STATE_HOME/paceline, or in
    /// ~/.local/state/paceline]. If the coordinator is killed, start it again with the same command: the job has gone on without
    /// it, and goes on with it.
    #[arg(long, value_name = "FOLDER", requires = "elastic")]
    pub store: Option<PathBuf>,

    #[command(flatten)]
    pub settings: SettingsArgs,

    #[command(flatten)]
    pub page: UiOptions,

    /// How many seconds to wait for all workers. Workers are told to wait as long.
    #[arg(long, value_name = "SECONDS", default_value_t = 1800, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub join_timeout: u64,
}

fn parse_limits(text: &str) -> Result<Limits, String> {
    Limits::parse(text).ok_or_else(|| "write two numbers of workers, such as 2:8".to_string())
}

/// Where this user keeps what must not be forgotten of the job at an address; nowhere without a home.
fn usual_store(listen: SocketAddr, variable: &impl Fn(&str) -> Option<String>) -> Option<PathBuf> {
    let state = variable("XDG_STATE_HOME").filter(|folder| !folder.is_empty()).map(PathBuf::from);
    let home = || variable("HOME").map(|home| PathBuf::from(home).join(".local/state"));
    // A port that the system chooses is another one the next time.
    let is_fixed = listen.port() != 0;
    let place = listen.to_string().replace([':', '[', ']'], "_");
    state.or_else(home).filter(|_| is_fixed).map(|state| state.join("paceline").join(place))
}

/// Coordinate until the job is over.
pub fn run(arguments: CoordinatorArgs) -> Result<ExitCode> {
    let mut signals = Signals::catch(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP])?;
    let variable = |name: &str| std::env::var(name).ok();
    let warn = &mut |warning| eprintln!("paceline: {warning}");
    let (secret, fresh) = match Secret::from_variables(&variable, warn) {
        Err(NetError::SecretMissing) => (Secret::random()?, true),
        given => (given.map_err(|error| UsageError::new(error.to_string()))?, false),
    };
    let size = arguments.size;
    let Plan { settings, fusion, batch, advice: _ } = arguments.settings.plan()?;
    if arguments.elastic.is_some() {
        arguments.settings.refuse_elastic_survey()?;
    }
    let topology_out = arguments.settings.topology_out()?;
    let usage = |error: NetError| UsageError::new(error.to_string());
    let folder = match arguments.elastic {
        None => None,
        Some(_) => arguments.store.clone().or_else(|| usual_store(arguments.listen, &variable)),
    };
    let store: Option<Box<dyn Store>> = match folder {
        None => None,
        Some(folder) => {
            let store = DiskStore::open(&folder).map_err(|error| usage(error.into()))?;
            eprintln!("paceline: what must not be forgotten is kept in {}", folder.display());
            if fresh {
                eprintln!(
                    "paceline: the secret is fresh: a coordinator that is started again needs this one, in PACELINE_SECRET"
                );
            }
            Some(Box::new(store))
        }
    };
    let page = Page::open(&arguments.page, Hands::On)?;
    if let Some(page) = &page {
        page.feed.begin(Job {
            name: arguments.listen.to_string(),
            program: format!("{size} workers that others start"),
            limits: arguments.elastic.map(|limits| (limits.least, limits.most)),
            ..Job::default()
        });
    }
    let config = CoordinatorConfig {
        observer: page.as_ref().map(|page| page.feed.observer()),
        elastic: arguments.elastic,
        survey: arguments.settings.survey(),
        topology_out,
        settings,
        fusion,
        batch,
        join_timeout: Duration::from_secs(arguments.join_timeout),
        ..CoordinatorConfig::new(arguments.listen, size, secret.clone())
    };
    let coordinator = Arc::new(Coordinator::start_with(config, store).map_err(usage)?);
    if let Some(page) = &page {
        page.feed.attend(&coordinator)?;
        if let Some(link) = &page.link {
            eprintln!("paceline: page at {link}");
        }
    }

    let invitation = Invitation {
        address: coordinator.address(),
        size,
        secret: fresh.then(|| secret.to_hex()),
        join_timeout: arguments.join_timeout,
    };
    let invitation = invitation.to_string();
    // Nobody may be reading; the workers may know by other means.
    let _ = io::stdout().write_all(invitation.as_bytes()).and_then(|()| io::stdout().flush());

    let (code, text) = loop {
        match coordinator.wait(GLANCE) {
            Progress::Ended => break (ExitCode::SUCCESS, "finished"),
            // The coordinator's own log has told already.
            Progress::Deposed => break (ExitCode::FAILURE, "another coordinator has the job"),
            Progress::Failed(_) => break (ExitCode::FAILURE, "not all workers came"),
            Progress::Gathering { .. } | Progress::Running { .. } => {}
        }
        let asked = signals.pending().into_iter().find(|signal| *signal != libc::SIGCHLD);
        if let Some(signal) = asked {
            break (ExitCode::from(128 + signal as u8), "the coordinator was ended");
        }
    };
    if let Some(page) = page {
        page.finish(text);
    }
    Ok(code)
}

/// How to join, as lines for a shell.
struct Invitation {
    address: SocketAddr,
    size: usize,
    /// Unless the workers have it already.
    secret: Option<String>,
    /// In seconds. Workers that gave up before the coordinator does would end the job for all.
    join_timeout: u64,
}

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Invitation { address, size, secret, join_timeout } = self;
        writeln!(
            f,
            "Coordinator of a job of {size}, listening on {address}. Each worker needs:\n"
        )?;
        if address.ip().is_unspecified() {
            let port = address.port();
            writeln!(f, "# ADDRESS: this machine's, as workers see it")?;
            writeln!(f, "export PACELINE_COORDINATOR=ADDRESS:{port}")?;
        } else {
            writeln!(f, "export PACELINE_COORDINATOR={address}")?;
        }
        match secret {
            Some(secret) => writeln!(f, "export PACELINE_SECRET={secret}")?,
            None => writeln!(
                f,
                "# and PACELINE_SECRET or PACELINE_SECRET_FILE with the same secret as here"
            )?,
        }
        writeln!(f, "export PACELINE_JOIN_TIMEOUT={join_timeout}")?;
        writeln!(f, "export WORLD_SIZE={size}")?;
        writeln!(
            f,
            "export RANK=...   # 0 to {}, each once; without it the coordinator numbers the workers\n",
            size - 1
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn invitation(address: &str, secret: Option<&str>) -> String {
        let address = address.parse().unwrap();
        let secret = secret.map(str::to_string);
        Invitation { address, size: 4, secret, join_timeout: 90 }.to_string()
    }

    #[test]
    fn a_secret_that_workers_have_is_not_printed() {
        let fresh = invitation("10.0.0.1:29400", Some("c0ffee"));
        assert!(fresh.contains("\nexport PACELINE_SECRET=c0ffee\n"), "{fresh}");
        assert!(fresh.contains("\nexport PACELINE_COORDINATOR=10.0.0.1:29400\n"), "{fresh}");
        assert!(invitation("10.0.0.1:29400", None).contains("the same secret as here"));
    }

    #[test]
    fn an_address_that_nobody_can_reach_is_not_offered() {
        let text = invitation("0.0.0.0:29400", None);
        assert!(text.contains("\nexport PACELINE_COORDINATOR=ADDRESS:29400\n"), "{text}");
    }

    #[test]
    fn workers_are_asked_to_wait_as_long_as_the_coordinator_does() {
        let text = invitation("10.0.0.1:29400", None);
        assert!(text.contains("\nexport PACELINE_JOIN_TIMEOUT=90\n"), "{text}");
    }

    #[test]
    fn jobs_at_one_address_have_one_place_on_disk_and_those_without_a_port_have_none() {
        let place = |address: &str, name: &str| {
            let variable = |asked: &str| (asked == name).then(|| "/home/me".to_string());
            usual_store(address.parse().unwrap(), &variable)
        };
        let kept = Some(PathBuf::from("/home/me/.local/state/paceline/10.0.0.1_29400"));
        assert_eq!(place("10.0.0.1:29400", "HOME"), kept);
        let kept = Some(PathBuf::from("/home/me/paceline/___1__29400"));
        assert_eq!(place("[::1]:29400", "XDG_STATE_HOME"), kept);
        assert_eq!(place("10.0.0.1:0", "HOME"), None);
        assert_eq!(place("10.0.0.1:29400", "NOTHING"), None);
    }
}
