//! What workers find in their environment, and the coordinator it leads them to. It does not know how
//! they are started.

use super::{OFF, RunArgs, output::Notes};
use crate::{
    exit::UsageError,
    ui::{Page, record::Job},
};
use anyhow::{Context, Result};
use paceline_job::{Plan, Rank};
use paceline_net::{
    Coordinator, CoordinatorConfig, JoinConfig, Log, NetError, Secret,
    coordinator::{MAXIMUM_WORKERS, Occasion, Progress, Resizer},
    launch::{MeetingPoint, WorkerPlace, newcomer_environment, worker_environment},
    store::Etcd,
};
use paceline_sync::agreement::Limits;
use paceline_tune::Method;
use std::{
    fmt, fs,
    io::{Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
    os::unix::net::UnixStream,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::available_parallelism,
    time::Duration,
};
use tempfile::TempDir;

/// How long workers may take until the last one joins, unless the user said otherwise. A worker that dies ends the
/// job at once, so this bounds only those that prepare their data first; PyTorch waits as long by default.
const JOIN_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// Of a program's line on a page.
const PROGRAM_CHARACTERS: usize = 300;

/// What --watch-links says where it has no effect.
const WATCHES_NOTHING: &str = "--watch-links needs to know where hosts sit: add --topology FILE or --topology survey; \
                               nothing is watched";

/// What the coordinator has to say to whoever starts workers; it can be waited for.
pub struct Wishes {
    asked: Arc<AtomicBool>,
    bell: UnixStream,
    /// The other end, kept here too: without it the bell would be at its end, which looks like ringing for ever.
    _ringer: Arc<UnixStream>,
}

impl Wishes {
    fn new() -> Result<(Wishes, Resizer)> {
        let (bell, ringer) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ringer.set_nonblocking(true)?;
        let (asked, ringer) = (Arc::<AtomicBool>::default(), Arc::new(ringer));
        let (told, rung) = (asked.clone(), ringer.clone());
        let resizer = Resizer::new(move |occasion| {
            if occasion == Occasion::Wanted {
                told.store(true, Ordering::Relaxed);
            }
            // A full bell rings already.
            let _ = (&*rung).write(&[0]);
        });
        Ok((Wishes { asked, bell, _ringer: ringer }, resizer))
    }

    /// Whether there is anything, once.
    pub fn are_there(&self) -> bool {
        (&self.bell).read(&mut [0; 64]).is_ok_and(|rung| rung > 0)
    }

    /// Whether somebody asked for another number of workers, once.
    pub fn take(&self) -> bool {
        self.asked.swap(false, Ordering::Relaxed)
    }

    /// Readable when there is one.
    pub fn bell(&self) -> &UnixStream {
        &self.bell
    }
}

/// Where workers meet.
enum Meeting {
    /// At a coordinator of this process.
    Here(Arc<Coordinator>),
    /// At whichever worker's coordinator etcd names.
    Etcd {
        /// The job's address.
        url: String,
        /// With how many workers it begins.
        world: usize,
        /// How many it may have.
        limits: Limits,
        /// The folder of the plan that it begins with.
        plan: TempDir,
    },
}

/// A plan in the folder that [`Meeting::Etcd`] keeps.
const PLAN: &str = "plan.toml";

/// All that must be there before the first worker starts.
pub struct Launch {
    size: usize,
    secret: Secret,
    meeting: Meeting,
    /// The fewest workers of an elastic job.
    least: Option<usize>,
    wishes: Wishes,
    /// Where PyTorch's own store may be.
    master: SocketAddr,
    /// The same for all ranks, and not a matter of where they meet.
    variables: Vec<(String, String)>,
}

impl Launch {
    /// Start the coordinator.
    pub fn prepare(arguments: &RunArgs, notes: &Notes, page: Option<&Page>) -> Result<Launch> {
        let plan = arguments.settings.plan()?;
        if arguments.elastic {
            arguments.settings.refuse_elastic_survey()?;
        }
        let topology_out = arguments.settings.topology_out()?;
        let known = plan.settings.topology.is_some() || arguments.settings.survey().is_some();
        if arguments.watch_links && !known {
            notes.say(WATCHES_NOTHING);
        }
        let variable = |name: &str| std::env::var(name).ok();
        let secret = match Secret::from_variables(&variable, &mut |warning| notes.say(&warning)) {
            // Other machines would not know it.
            Err(NetError::SecretMissing) if arguments.rendezvous.is_none() => Secret::random()?,
            given => given.map_err(usage)?,
        };
        let trace =
            arguments.trace.as_deref().map(|folder| usable_folder("trace", folder)).transpose()?;
        let mut variables = shared_variables(arguments, &variable);
        if !known {
            variables.retain(|(name, _)| name != "PACELINE_WATCH_LINKS");
        }
        variables.extend(trace.map(|folder| ("PACELINE_TRACE".to_string(), folder)));
        let saved = arguments.checkpoint.as_deref();
        let saved = saved.map(|folder| usable_folder("checkpoint", folder)).transpose()?;
        variables.extend(saved.map(|folder| ("PACELINE_CHECKPOINT".to_string(), folder)));
        let log = arguments.tune_log.as_deref().map(tuning_log).transpose()?;
        variables.extend(log.map(|file| ("PACELINE_TUNE_LOG".to_string(), file)));
        let weights = arguments.tune_weights.as_deref();
        let weights = weights.map(|file| tuning_weights(&arguments.tune, file)).transpose()?;
        variables.extend(weights.map(|file| ("PACELINE_TUNE_WEIGHTS".to_string(), file)));
        let join_timeout = check(&variables, &secret, &variable)?;

        let limits = arguments.elastic.then(|| Limits {
            least: arguments.min.unwrap_or(1),
            most: arguments.max.unwrap_or(MAXIMUM_WORKERS),
        });
        if let Some(page) = page {
            page.feed.begin(described(arguments, limits));
        }
        let (wishes, resizer) = Wishes::new()?;
        let meeting = match (&arguments.rendezvous, limits) {
            (Some(url), Some(limits)) => Meeting::through_etcd(url, arguments, limits, &plan)?,
            _ => {
                let Plan { settings, fusion, batch, advice: _ } = plan;
                let log = notes.clone();
                let coordinator = Coordinator::start(CoordinatorConfig {
                    settings,
                    fusion,
                    batch,
                    join_timeout,
                    log: Log::to(move |line| log.say(line)),
                    quiet: arguments.quiet,
                    survey: arguments.settings.survey(),
                    topology_out,
                    elastic: limits,
                    resizer: Some(resizer),
                    spares: true,
                    observer: page.map(|page| page.feed.observer()),
                    ..CoordinatorConfig::new(arguments.listen, arguments.size, secret.clone())
                });
                Meeting::Here(Arc::new(coordinator.map_err(usage)?))
            }
        };
        let master = free_address()?;
        let least = limits.map(|limits| limits.least);
        Ok(Launch { size: arguments.size, secret, meeting, least, wishes, master, variables })
    }

    /// What this worker gets in addition to our own environment.
    pub fn environment(&self, rank: Rank) -> Vec<(String, String)> {
        let place =
            WorkerPlace { rank, size: self.size, local_rank: rank.index(), local_size: self.size };
        let address = match &self.meeting {
            Meeting::Here(coordinator) => from_here(coordinator.address()),
            Meeting::Etcd { .. } => self.master,
        };
        let point =
            MeetingPoint { master: self.master, coordinator: address, secret: &self.secret };
        let mut environment = if rank.index() < self.size {
            worker_environment(place, point)
        } else {
            newcomer_environment(rank.index(), point)
        };
        if let Meeting::Etcd { url, world, limits, plan } = &self.meeting {
            // Whoever coordinates numbers workers of all machines.
            let of_one_machine = ["RANK", "WORLD_SIZE", "PACELINE_COORDINATOR"];
            environment.retain(|(name, _)| !of_one_machine.contains(&name.as_str()));
            environment.extend([
                ("WORLD_SIZE".to_string(), world.to_string()),
                ("PACELINE_COORDINATOR".to_string(), url.clone()),
                ("PACELINE_ELASTIC".to_string(), format!("{}:{}", limits.least, limits.most)),
                ("PACELINE_PLAN".to_string(), plan.path().join(PLAN).display().to_string()),
            ]);
        }
        environment.extend_from_slice(&self.variables);
        environment
    }

    /// The job's coordinator, if it is in this process.
    pub fn coordinator(&self) -> Option<&Arc<Coordinator>> {
        match &self.meeting {
            Meeting::Here(coordinator) => Some(coordinator),
            Meeting::Etcd { .. } => None,
        }
    }

    /// The fewest workers that the job goes on with; none if each that fails ends it, as while the first ones gather.
    pub fn needed(&self) -> Option<usize> {
        match &self.meeting {
            Meeting::Here(coordinator) => {
                let gathering = matches!(coordinator.progress(), Progress::Gathering { .. });
                self.least.filter(|_| !gathering)
            }
            // How many there are elsewhere is not known here.
            Meeting::Etcd { .. } => Some(1),
        }
    }

    /// Other numbers of workers that the job is to have.
    pub fn wishes(&self) -> &Wishes {
        &self.wishes
    }
}

impl Meeting {
    fn through_etcd(
        url: &str,
        arguments: &RunArgs,
        limits: Limits,
        plan: &Plan,
    ) -> Result<Meeting> {
        Etcd::parse(url)
            .map_err(|problem| UsageError::new(format!("--rendezvous {url}: {problem}")))?;
        let world = arguments.world.unwrap_or(arguments.size);
        if world < arguments.size || world < limits.least || world > limits.most {
            let (size, Limits { least, most }) = (arguments.size, limits);
            let text = format!(
                "--world {world}: the job begins with at least the {size} workers of this machine and \
                 --min {least}, and with --max {most} at most"
            );
            return Err(UsageError::new(text).into());
        }
        let folder = tempfile::tempdir().context("there is no place for the plan")?;
        let text = plan.to_toml();
        fs::write(folder.path().join(PLAN), text).context("the plan cannot be written")?;
        Ok(Meeting::Etcd { url: url.to_string(), world, limits, plan: folder })
    }
}

/// What is known of the job before it runs.
fn described(arguments: &RunArgs, limits: Option<Limits>) -> Job {
    let words = arguments.program.iter().map(|word| word.to_string_lossy());
    let program = words.collect::<Vec<_>>().join(" ");
    Job {
        name: arguments.name.clone().unwrap_or_else(|| std::process::id().to_string()),
        program: program.chars().take(PROGRAM_CHARACTERS).collect(),
        limits: limits.map(|limits| (limits.least, limits.most)),
        tuning: (arguments.tune != OFF).then(|| arguments.tune.clone()),
        ..Job::default()
    }
}

fn usage(error: NetError) -> UsageError {
    UsageError::new(error.to_string())
}

/// What the arguments say to every worker, and what several processes of a training program on one machine
/// want unless the user said otherwise.
fn shared_variables(
    arguments: &RunArgs,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Vec<(String, String)> {
    let cores = available_parallelism().map_or(1, usize::from);
    let said = [
        ("PACELINE_INTERFACE", arguments.interface.clone()),
        ("PACELINE_PORT_RANGE", arguments.port_range.clone()),
        ("PACELINE_INSECURE", arguments.insecure.then(|| "1".to_string())),
        ("PACELINE_TUNE", (arguments.tune != OFF).then(|| arguments.tune.clone())),
        ("PACELINE_TUNE_AVERAGES", arguments.tune_averages.then(|| "1".to_string())),
        ("PACELINE_WATCH_LINKS", arguments.watch_links.then(|| "1".to_string())),
        ("PACELINE_CHECKPOINT_EVERY", arguments.every.map(|steps| steps.to_string())),
        ("PACELINE_POLICY", (!arguments.policy.is_empty()).then(|| arguments.policy.join(";"))),
        ("PACELINE_TRACE_STEPS", arguments.trace_steps.map(|steps| steps.to_string())),
    ];
    let wanted = [
        ("PACELINE_JOIN_TIMEOUT", JOIN_TIMEOUT.as_secs().to_string()),
        ("OMP_NUM_THREADS", (cores / arguments.size).max(1).to_string()),
        ("PYTHONUNBUFFERED", "1".to_string()),
    ];
    let said = said.into_iter().filter_map(|(name, value)| Some((name, value?)));
    let wanted = wanted.into_iter().filter(|(name, _)| variable(name).is_none());
    said.chain(wanted).map(|(name, value)| (name.to_string(), value)).collect()
}

/// The folder for traces or checkpoints, made and seen to take files, so that what is wrong is said once and at the beginning. Whole,
/// since workers may change to another folder.
fn usable_folder(what: &str, folder: &Path) -> Result<String, UsageError> {
    let unusable = |problem: &dyn fmt::Display| {
        let folder = folder.display();
        UsageError::new(format!("--{what} {folder}: no {what} can be written there: {problem}"))
    };
    fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
    tempfile::tempfile_in(folder).map_err(|error| unusable(&error))?;
    let whole = folder.canonicalize().map_err(|error| unusable(&error))?;
    whole.into_os_string().into_string().map_err(|_| unusable(&"its name is not text"))
}

/// The file for a tuner's decisions, made, so that what is wrong is said once and at the beginning. Whole, since workers may
/// change to another folder.
fn tuning_log(file: &Path) -> Result<String, UsageError> {
    let unusable = |problem: &dyn fmt::Display| {
        UsageError::new(format!("--tune-log {}: cannot be written: {problem}", file.display()))
    };
    fs::File::create(file).map_err(|error| unusable(&error))?;
    let whole = file.canonicalize().map_err(|error| unusable(&error))?;
    whole.into_os_string().into_string().map_err(|_| unusable(&"its name is not text"))
}

/// The file of weights for a tuner of this name, read, so that what is wrong is said once and at the beginning. Whole, since
/// workers may change to another folder.
fn tuning_weights(tune: &str, file: &Path) -> Result<String, UsageError> {
    let unusable = |problem: &dyn fmt::Display| {
        UsageError::new(format!("--tune-weights {}: {problem}", file.display()))
    };
    // Without a tuner nobody reads them either.
    let methods: Vec<Method> = tune.parse().into_iter().collect();
    Method::weights(&methods, file)
        .map_err(|error| UsageError::new(format!("--tune-weights: {error}")))?;
    let whole = file.canonicalize().map_err(|error| unusable(&error))?;
    whole.into_os_string().into_string().map_err(|_| unusable(&"its name is not text"))
}

/// Read the variables as a worker will, so that what is wrong is said once and here; the time a worker takes
/// to join at most.
fn check(
    variables: &[(String, String)],
    secret: &Secret,
    inherited: &dyn Fn(&str) -> Option<String>,
) -> Result<Duration, UsageError> {
    let place = WorkerPlace { rank: Rank(0), size: 1, local_rank: 0, local_size: 1 };
    let nowhere = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    let mut environment =
        worker_environment(place, MeetingPoint { master: nowhere, coordinator: nowhere, secret });
    environment.extend_from_slice(variables);
    let config = JoinConfig::from_variables(&|name| {
        let given = environment.iter().find(|(key, _)| key == name);
        given.map(|(_, value)| value.clone()).or_else(|| inherited(name))
    });
    config.map(|config| config.timeout).map_err(usage)
}

/// An address of all interfaces is one to listen on; from here loopback leads to it.
fn from_here(address: SocketAddr) -> SocketAddr {
    match address.ip() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => (Ipv4Addr::LOCALHOST, address.port()).into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => (Ipv6Addr::LOCALHOST, address.port()).into(),
        _ => address,
    }
}

/// A port that PyTorch's own store on rank 0 can bind. Nobody holds it until then; among ten thousands of
/// free ports somebody else is not likely to be given the same one.
fn free_address() -> Result<SocketAddr> {
    let listener =
        TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("no free port on 127.0.0.1")?;
    Ok(listener.local_addr()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use paceline_learn::metanet::MetaNetwork;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn variables(line: &[&str], set: &[&str]) -> Vec<(String, String)> {
        let line = [&["run", "-n", "2"], line, &["--", "true"]].concat();
        let arguments = Line::try_parse_from(line).unwrap().run;
        shared_variables(&arguments, &|name| set.contains(&name).then(|| "7".to_string()))
    }

    #[test]
    fn arguments_become_variables_and_what_the_user_set_is_left_alone() {
        let set = ["OMP_NUM_THREADS", "PYTHONUNBUFFERED", "PACELINE_JOIN_TIMEOUT"];
        assert_eq!(variables(&[], &set), []);
        assert_eq!(variables(&["--insecure"], &set), [("PACELINE_INSECURE".into(), "1".into())]);
        let names: Vec<String> = variables(&[], &[]).into_iter().map(|(name, _)| name).collect();
        assert_eq!(names, ["PACELINE_JOIN_TIMEOUT", "OMP_NUM_THREADS", "PYTHONUNBUFFERED"]);
    }

    #[test]
    fn the_bell_is_silent_where_nobody_is_there_to_ring_it() {
        let (wishes, resizer) = Wishes::new().unwrap();
        drop(resizer);
        let read = wishes.bell().read(&mut [0; 1]);
        assert_eq!(read.unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
    }

    #[test]
    fn a_folder_for_traces_is_made_and_one_that_takes_no_files_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let made = usable_folder("trace", &folder.path().join("a/b")).unwrap();
        assert!(Path::new(&made).is_absolute() && Path::new(&made).is_dir());
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = usable_folder("trace", &file).unwrap_err().to_string();
        assert!(error.contains("no trace can be written"), "{error}");
        let steps = variables(&["--trace", "t", "--trace-steps", "7"], &[]);
        assert!(steps.contains(&("PACELINE_TRACE_STEPS".into(), "7".into())));
        let saved = variables(&["--checkpoint", "c", "--every", "9"], &[]);
        assert!(saved.contains(&("PACELINE_CHECKPOINT_EVERY".into(), "9".into())));
    }

    #[test]
    fn a_way_to_tune_is_told_to_workers_and_an_unknown_one_is_refused() {
        assert!(
            !variables(&["--tune", "off"], &[]).iter().any(|(name, _)| name == "PACELINE_TUNE")
        );
        let replay = ("PACELINE_TUNE".to_string(), "replay".to_string());
        assert!(variables(&["--tune", "replay"], &[]).contains(&replay));
        let averages = ("PACELINE_TUNE_AVERAGES".to_string(), "1".to_string());
        assert!(!variables(&["--tune", "replay"], &[]).contains(&averages));
        assert!(variables(&["--tune", "replay", "--tune-averages"], &[]).contains(&averages));
        let links = ("PACELINE_WATCH_LINKS".to_string(), "1".to_string());
        assert!(!variables(&[], &[]).contains(&links));
        assert!(variables(&["--watch-links"], &[]).contains(&links));
        let alone = Line::try_parse_from(["run", "-n", "2", "--tune-averages", "--", "true"]);
        assert!(alone.err().unwrap().to_string().contains("--tune <METHOD>"));
        let error = Line::try_parse_from(["run", "-n", "2", "--tune", "luck", "--", "true"]);
        assert!(error.err().unwrap().to_string().contains("known: default"));
        let folder = tempfile::tempdir().unwrap();
        assert!(Path::new(&tuning_log(&folder.path().join("log")).unwrap()).is_absolute());
        assert!(tuning_log(&folder.path().join("no/log")).is_err());
    }

    #[test]
    fn weights_are_told_to_workers_whole_and_those_nobody_could_read_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("metanet.bin");
        fs::write(&file, MetaNetwork::shipped().to_bytes()).unwrap();
        assert!(Path::new(&tuning_weights("autobyte", &file).unwrap()).is_absolute());
        for tune in [OFF, "replay"] {
            let error = tuning_weights(tune, &file).unwrap_err().to_string();
            assert!(error.contains("method `autobyte`"), "{error}");
        }
        fs::write(&file, "damaged").unwrap();
        for file in [file, folder.path().join("none.bin")] {
            let error = tuning_weights("autobyte", &file).unwrap_err().to_string();
            assert!(error.contains(file.to_str().unwrap()), "{error}");
            assert!(error.contains("paceline learn metanet"), "{error}");
        }
    }

    #[test]
    fn policies_are_told_to_workers_and_those_that_cannot_be_made_are_refused() {
        let told = variables(&["--policy", "interference", "--policy", "mine:Own"], &[]);
        assert!(told.contains(&("PACELINE_POLICY".into(), "interference;mine:Own".into())));
        for (policy, word) in [
            ("luck", "known: noise_scale"),
            ("noise_scale", "most"),
            ("schedule:/no/such", "/no/such"),
            ("a:B;c:D", "once for each"),
        ] {
            let line = ["run", "-n", "2", "--policy", policy, "--", "true"];
            let error = Line::try_parse_from(line).err().unwrap().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[test]
    fn what_a_worker_could_not_read_is_refused_before_any_is_started() {
        let secret = Secret::random().unwrap();
        let wrong = variables(&["--port-range", "9-1"], &[]);
        let error = check(&wrong, &secret, &|_| None).unwrap_err().to_string();
        assert!(error.contains("PACELINE_PORT_RANGE=9-1"), "{error}");
        assert_eq!(check(&variables(&[], &[]), &secret, &|_| None).unwrap(), JOIN_TIMEOUT);
        let own = |name: &str| (name == "PACELINE_JOIN_TIMEOUT").then(|| "7".to_string());
        let timeout = check(&variables(&[], &["PACELINE_JOIN_TIMEOUT"]), &secret, &own).unwrap();
        assert_eq!(timeout, Duration::from_secs(7));
    }

    #[test]
    fn workers_reach_a_coordinator_that_listens_everywhere_over_loopback() {
        let here = |text: &str| from_here(text.parse().unwrap()).to_string();
        assert_eq!(here("0.0.0.0:7"), "127.0.0.1:7");
        assert_eq!(here("[::]:7"), "[::1]:7");
        assert_eq!(here("10.0.0.1:7"), "10.0.0.1:7");
    }
}
