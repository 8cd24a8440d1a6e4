//! Reads from the environment how a worker is to join: set by `paceline run`, or by torchrun, mpirun
//! or srun, whose variables are understood as they are. A pure function of the variables (but for the
//! file a secret may be in). It opens no socket.

use super::JoinConfig;
use crate::{
    coordinator::Log,
    error::{NetError, Result},
    secret::Secret,
    store::Etcd,
    survey::USUAL_SURVEY,
};
use crate::{handshake::Encryption, launch::NEWCOMER};
use paceline_job::{Plan, Rank, Topology, TopologySource};
use paceline_sync::agreement::Limits;
use std::{
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
    sync::Arc,
    time::Duration,
};

/// Gives the value of a variable.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Ports that are derived from a job's number: below the range systems give to outgoing connections.
const DERIVED_PORTS: RangeInclusive<u16> = 21_000..=30_999;

/// Connections to one peer.
const MAXIMUM_CONNECTIONS: usize = 64;

impl JoinConfig {
    /// What this process's environment says.
    pub fn from_env() -> Result<JoinConfig> {
        JoinConfig::from_variables(&|name| std::env::var(name).ok())
    }

    /// What `variables` say. An empty variable is as good as none.
    pub fn from_variables(variables: Variables<'_>) -> Result<JoinConfig> {
        let present = |name: &str| variables(name).filter(|value| !value.trim().is_empty());
        let variables: Variables<'_> = &present;
        let log = Log::default();
        let (coordinator, place, hosted) = match variables("PACELINE_COORDINATOR") {
            Some(coordinator) => (coordinator, Place::read(variables)?, false),
            None => {
                let place = Place::read(variables)?;
                (derived_coordinator(variables, &place)?, place, true)
            }
        };
        let Place { rank, size, .. } = place;
        if hosted {
            require(rank, "RANK", "the launcher gives each worker its number from 0")?;
            require(size, "WORLD_SIZE", "the launcher says how many workers there are")?;
        }
        if size == Some(0) {
            return Err(NetError::SizeZero);
        }
        if let (Some(rank), Some(size)) = (rank, size)
            && rank.index() >= size
        {
            return Err(NetError::RankOutOfRange { rank, size });
        }
        let secret = Secret::from_variables(variables, &mut |warning| log.line(&warning))?;
        let mut config = JoinConfig::new(coordinator, secret);
        config.rank = rank;
        config.size = size;
        if (hosted && rank == Some(Rank(0))) || config.coordinator.starts_with(Etcd::SCHEME) {
            let mut plan = plan(variables)?;
            match topology(variables)? {
                None => {}
                Some(TopologySource::Survey(limit)) => {
                    config.survey = Some(limit.unwrap_or(USUAL_SURVEY));
                }
                Some(TopologySource::File(file)) => {
                    plan.settings.topology = Some(Arc::new(read(&file)?));
                }
            }
            config.topology_out = variables("PACELINE_TOPOLOGY_OUT").map(PathBuf::from);
            config.hosting = Some(plan);
        }
        config.interface = variables("PACELINE_INTERFACE");
        config.port_range = port_range(variables)?;
        config.encryption = encryption(variables)?;
        config.host = variables("PACELINE_HOST");
        config.log = log;
        if let Some(connections) = number(variables, "PACELINE_CONNECTIONS")? {
            config.connections = connections;
            if !(1..=MAXIMUM_CONNECTIONS).contains(&connections) {
                let problem = format!("is not between 1 and {MAXIMUM_CONNECTIONS}");
                return Err(wrong("PACELINE_CONNECTIONS", connections.to_string(), problem));
            }
        }
        if let Some(text) = variables("PACELINE_ELASTIC") {
            config.limits = limits(&text)?;
        }
        if let Some(seconds) = number(variables, "PACELINE_JOIN_TIMEOUT")? {
            config.timeout = Duration::from_secs(seconds);
        }
        Ok(config)
    }
}

/// What a job begins with whose coordinator this process may host.
fn plan(variables: Variables<'_>) -> Result<Plan> {
    let Some(file) = variables("PACELINE_PLAN") else { return Ok(Plan::default()) };
    let text = std::fs::read_to_string(&file).map_err(|error| error.to_string());
    let plan = text.and_then(|text| Plan::parse(&text).map_err(|error| error.to_string()));
    plan.map_err(|problem| wrong("PACELINE_PLAN", file, problem))
}

/// Where it is known from where hosts sit.
fn topology(variables: Variables<'_>) -> Result<Option<TopologySource>> {
    let Some(text) = variables("PACELINE_TOPOLOGY") else { return Ok(None) };
    text.parse().map(Some).map_err(|problem| wrong("PACELINE_TOPOLOGY", text, problem))
}

fn read(file: &Path) -> Result<Topology> {
    let text = std::fs::read_to_string(file).map_err(|error| error.to_string());
    let topology = text.and_then(|text| Topology::parse(&text).map_err(|error| error.to_string()));
    topology.map_err(|problem| wrong("PACELINE_TOPOLOGY", file.display().to_string(), problem))
}

/// Which worker this is, as its launcher says.
struct Place {
    launcher: Launcher,
    rank: Option<Rank>,
    size: Option<usize>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Launcher {
    /// `paceline run`, torchrun, or anything else that sets `RANK`.
    Common,
    OpenMpi,
    Slurm,
}

impl Place {
    /// The launcher closest to the process counts: torchrun is started by srun, not srun by torchrun.
    fn read(variables: Variables<'_>) -> Result<Place> {
        if variables(NEWCOMER).is_some() {
            return Ok(Place { launcher: Launcher::Common, rank: None, size: None });
        }
        let sets = [
            (Launcher::Common, "RANK", "WORLD_SIZE"),
            (Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
            (Launcher::Slurm, "SLURM_PROCID", "SLURM_NTASKS"),
        ];
        for (launcher, rank, size) in sets {
            if let Some(rank) = number(variables, rank)? {
                let size = number(variables, size)?;
                return Ok(Place { launcher, rank: Some(Rank(rank)), size });
            }
        }
        let size = number(variables, "WORLD_SIZE")?;
        Ok(Place { launcher: Launcher::Common, rank: None, size })
    }
}

/// Where rank 0 is to host the coordinator, so that all ranks know it without asking anybody.
fn derived_coordinator(variables: Variables<'_>, place: &Place) -> Result<String> {
    let given_port: Option<u16> = number(variables, "PACELINE_PORT")?;
    if let Some(master) = variables("MASTER_ADDR") {
        let port = match given_port {
            Some(port) => port,
            None => beside_master(variables)?,
        };
        return Ok(join_host_port(&master, port));
    }
    match place.launcher {
        Launcher::OpenMpi => {
            let local: Option<usize> = number(variables, "OMPI_COMM_WORLD_LOCAL_SIZE")?;
            if local.is_none() || local != place.size {
                return Err(NetError::EnvironmentMissing {
                    missing: "MASTER_ADDR",
                    remedy: "the job spans hosts; add `-x MASTER_ADDR=<host of rank 0> -x \
                             PACELINE_PORT=<free port>` to mpirun",
                });
            }
            let port = match given_port {
                Some(port) => port,
                None => derived_port(&require(
                    variables("PMIX_NAMESPACE"),
                    "PACELINE_PORT",
                    "add `-x PACELINE_PORT=<free port>` to mpirun",
                )?),
            };
            Ok(join_host_port("127.0.0.1", port))
        }
        Launcher::Slurm => {
            // Rank 0 runs on the first node of the step; srun itself may run elsewhere.
            let first = variables("SLURM_STEP_NODELIST").and_then(|list| first_node(&list));
            let host = require(
                first.or_else(|| variables("SLURM_LAUNCH_NODE_IPADDR")),
                "SLURM_STEP_NODELIST",
                "start the program with srun, or set PACELINE_COORDINATOR=<host:port>",
            )?;
            let port = match given_port {
                Some(port) => port,
                None => {
                    let job = require(
                        variables("SLURM_JOB_ID"),
                        "SLURM_JOB_ID",
                        "start the program with srun, or set PACELINE_PORT to a free port",
                    )?;
                    let step = variables("SLURM_STEP_ID").unwrap_or_default();
                    derived_port(&format!("{job}.{step}"))
                }
            };
            Ok(join_host_port(&host, port))
        }
        Launcher::Common => Err(NetError::EnvironmentMissing {
            missing: "PACELINE_COORDINATOR",
            remedy: "start the program with `paceline run`, torchrun, mpirun or srun, or set it to \
                     the coordinator's host:port",
        }),
    }
}

/// The port after torchrun's own, which its store occupies.
fn beside_master(variables: Variables<'_>) -> Result<u16> {
    let port: Option<u16> = number(variables, "MASTER_PORT")?;
    let port = require(
        port,
        "MASTER_PORT",
        "set it beside MASTER_ADDR, or set PACELINE_PORT to a free port of that host",
    )?;
    port.checked_add(1).ok_or_else(|| {
        wrong("MASTER_PORT", port.to_string(), "leaves no port after it".to_string())
    })
}

fn limits(text: &str) -> Result<Limits> {
    let problem = || "is not LEAST:MOST, two numbers of workers such as 2:8".to_string();
    Limits::parse(text).ok_or_else(|| wrong("PACELINE_ELASTIC", text.to_string(), problem()))
}

fn require<T>(value: Option<T>, missing: &'static str, remedy: &'static str) -> Result<T> {
    value.ok_or(NetError::EnvironmentMissing { missing, remedy })
}

fn wrong(variable: &'static str, value: String, problem: String) -> NetError {
    NetError::Environment { variable, value, problem }
}

fn number<T: FromStr>(variables: Variables<'_>, name: &'static str) -> Result<Option<T>> {
    let Some(text) = variables(name) else { return Ok(None) };
    match text.trim().parse() {
        Ok(number) => Ok(Some(number)),
        Err(_) => Err(wrong(name, text, "is not a number that fits".to_string())),
    }
}

fn port_range(variables: Variables<'_>) -> Result<Option<RangeInclusive<u16>>> {
    let Some(text) = variables("PACELINE_PORT_RANGE") else { return Ok(None) };
    let ends = text.split_once('-').and_then(|(first, last)| {
        Some((first.trim().parse::<u16>().ok()?, last.trim().parse::<u16>().ok()?))
    });
    match ends {
        Some((first, last)) if 0 < first && first <= last => Ok(Some(first..=last)),
        _ => {
            let problem = "is not a range of ports such as 20000-20100".to_string();
            Err(wrong("PACELINE_PORT_RANGE", text, problem))
        }
    }
}

/// Encryption is given up only in so many words.
fn encryption(variables: Variables<'_>) -> Result<Encryption> {
    let said = |name: &'static str| match variables(name) {
        None => Ok(false),
        Some(text) => match text.trim().to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" => Ok(true),
            "0" | "false" | "no" => Ok(false),
            _ => Err(wrong(name, text, "is neither 1 nor 0".to_string())),
        },
    };
    Ok(match (said("PACELINE_ENCRYPT_ALWAYS")?, said("PACELINE_INSECURE")?) {
        (true, _) => Encryption::Always,
        (false, true) => Encryption::Never,
        (false, false) => Encryption::BetweenMachines,
    })
}

fn join_host_port(host: &str, port: u16) -> String {
    if host.contains(':') && !host.starts_with('[') {
        format!("[{host}]:{port}")
    } else {
        format!("{host}:{port}")
    }
}

/// The first of a list as Slurm writes it: `node[03-07,9],login` is `node03`.
fn first_node(list: &str) -> Option<String> {
    let Some(bracket) = list.find('[') else {
        return list.split(',').next().map(|node| node.trim().to_string());
    };
    if let Some(comma) = list.find(',')
        && comma < bracket
    {
        return Some(list[..comma].trim().to_string());
    }
    let inside = list[bracket + 1..].split(']').next()?;
    let first = inside.split([',', '-']).next()?;
    let after = list[bracket..].split_once(']').map_or("", |(_, rest)| rest);
    let suffix = after.split(',').next().unwrap_or_default();
    Some(format!("{}{first}{suffix}", list[..bracket].trim()))
}

/// The same port for the same job on every host. Two jobs of one machine seldom meet; if they do,
/// the second is told that the port is in use.
fn derived_port(job: &str) -> u16 {
    // FNV-1a: the same on every host and in every version, which std's hasher does not promise.
    let hash = job
        .bytes()
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    let ports = u32::from(DERIVED_PORTS.end() - DERIVED_PORTS.start()) + 1;
    DERIVED_PORTS.start() + (hash % ports) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECRET: (&str, &str) = ("PACELINE_SECRET", "a secret for these tests");

    fn read(entries: &[(&str, &str)]) -> Result<JoinConfig> {
        JoinConfig::from_variables(&|name| {
            let found = entries.iter().chain([&SECRET]).find(|(key, _)| *key == name);
            found.map(|(_, value)| value.to_string())
        })
    }

    fn problem(entries: &[(&str, &str)]) -> String {
        read(entries).expect_err("these variables cannot work").to_string()
    }

    #[test]
    fn paceline_run_is_understood() {
        let config = read(&[
            ("PACELINE_COORDINATOR", "127.0.0.1:4000"),
            ("RANK", "3"),
            ("WORLD_SIZE", "4"),
            ("PACELINE_INTERFACE", "eth1"),
            ("PACELINE_PORT_RANGE", "20000-20100"),
            ("PACELINE_INSECURE", "1"),
            ("PACELINE_CONNECTIONS", "2"),
            ("PACELINE_JOIN_TIMEOUT", "7"),
            ("MASTER_ADDR", "elsewhere"),
        ])
        .unwrap();
        assert_eq!(config.coordinator, "127.0.0.1:4000");
        assert_eq!((config.rank, config.size), (Some(Rank(3)), Some(4)));
        assert_eq!(config.interface.as_deref(), Some("eth1"));
        assert_eq!(config.port_range, Some(20_000..=20_100));
        assert_eq!(config.encryption, Encryption::Never);
        assert_eq!((config.connections, config.timeout), (2, Duration::from_secs(7)));
        assert!(config.hosting.is_none());
        let without_rank = read(&[("PACELINE_COORDINATOR", "head:4000"), ("RANK", "")]).unwrap();
        assert_eq!((without_rank.rank, without_rank.size), (None, None));
    }

    #[test]
    fn torchrun_is_understood_and_rank_0_hosts() {
        let torchrun = |rank| {
            let entries = [
                ("RANK", rank),
                ("WORLD_SIZE", "2"),
                ("MASTER_ADDR", "::1"),
                ("MASTER_PORT", "29500"),
            ];
            read(&entries).unwrap()
        };
        assert_eq!(torchrun("0").coordinator, "[::1]:29501");
        assert!(torchrun("0").hosting.is_some());
        assert!(torchrun("1").hosting.is_none());
        let own_port = read(&[
            ("RANK", "0"),
            ("WORLD_SIZE", "2"),
            ("MASTER_ADDR", "head"),
            ("PACELINE_PORT", "4001"),
        ]);
        assert_eq!(own_port.unwrap().coordinator, "head:4001");
    }

    #[test]
    fn mpirun_is_understood_on_one_host_and_asks_for_more_on_several() {
        let one = [
            ("OMPI_COMM_WORLD_RANK", "1"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "3711107073"),
        ];
        let config = read(&one).unwrap();
        assert_eq!((config.rank, config.size), (Some(Rank(1)), Some(4)));
        assert!(config.coordinator.starts_with("127.0.0.1:2"), "{}", config.coordinator);
        let mut several = one;
        several[2].1 = "2";
        assert!(problem(&several).contains("-x MASTER_ADDR"), "{}", problem(&several));
        assert!(problem(&one[..3]).contains("-x PACELINE_PORT"));
    }

    #[test]
    fn srun_is_understood() {
        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_STEP_NODELIST", "gpu[07-09,12]"),
            ("SLURM_JOB_ID", "4711"),
            ("SLURM_LAUNCH_NODE_IPADDR", "10.0.0.1"),
        ];
        let config = read(&slurm).unwrap();
        assert!(config.coordinator.starts_with("gpu07:2"), "{}", config.coordinator);
        assert!(config.hosting.is_some());
        let mut without_list = slurm;
        without_list[2].1 = "";
        assert!(read(&without_list).unwrap().coordinator.starts_with("10.0.0.1:2"));
    }

    #[test]
    fn the_first_node_of_a_list_is_found() {
        for (list, first) in [
            ("a", "a"),
            ("a,b", "a"),
            ("n[1-4]", "n1"),
            ("n[01-04,9],m", "n01"),
            ("head,n[1-4]", "head"),
            ("n[3,5]-ib", "n3-ib"),
        ] {
            assert_eq!(first_node(list).as_deref(), Some(first), "{list}");
        }
    }

    #[test]
    fn what_is_missing_is_named_with_its_remedy() {
        assert!(problem(&[]).contains("paceline run"), "{}", problem(&[]));
        let torchrun = [("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "head")];
        assert!(problem(&torchrun).starts_with("MASTER_PORT is not set"));
        let no_size = [("RANK", "0"), ("MASTER_ADDR", "head"), ("MASTER_PORT", "1")];
        assert!(problem(&no_size).starts_with("WORLD_SIZE is not set"));
        let no_secret = JoinConfig::from_variables(&|name| {
            (name == "PACELINE_COORDINATOR").then(|| "head:1".to_string())
        });
        assert!(matches!(no_secret, Err(NetError::SecretMissing)));
    }

    #[test]
    fn what_is_wrong_is_named_with_its_value() {
        let with = |name, value| [("PACELINE_COORDINATOR", "head:1"), (name, value)];
        for (name, value) in [
            ("RANK", "-1"),
            ("WORLD_SIZE", "many"),
            ("PACELINE_PORT_RANGE", "200-100"),
            ("PACELINE_PORT_RANGE", "80"),
            ("PACELINE_INSECURE", "maybe"),
            ("PACELINE_CONNECTIONS", "0"),
        ] {
            let problem = problem(&with(name, value));
            assert!(problem.starts_with(&format!("{name}={value}")), "{problem}");
        }
        assert!(matches!(read(&with("WORLD_SIZE", "0")), Err(NetError::SizeZero)));
        let outside = read(&[("PACELINE_COORDINATOR", "h:1"), ("RANK", "2"), ("WORLD_SIZE", "2")]);
        assert!(matches!(outside, Err(NetError::RankOutOfRange { .. })));
    }
}
