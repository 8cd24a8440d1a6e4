//! What workers, the coordinator and peers say to each other outside the data path, as JSON. Every
//! decoder is a pure function that takes any bytes and refuses by name; lengths were bounded before
//! anything came here. This file knows nothing of sockets.

use super::{Answer, Question, Sighting};
use crate::error::{NetError, Result};
use paceline_job::{Link, Measured, Rank, View, ViewVersion, WorkerId};
use paceline_sync::{
    agreement::{Ballot, ToParticipant, ToRegistrar},
    survey::Finding,
};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::{fmt, net::SocketAddr, time::Duration};

/// The most workers in a job. It bounds the memory of the first view, which all of them are sent at
/// once.
pub const MAXIMUM_WORKERS: usize = 1024;

/// The most that a worker says at once: settings with a topology of [`MAXIMUM_WORKERS`] hosts.
pub const WORKER_MESSAGE_BYTES: usize = 1024 * 1024;

/// The most that the coordinator says at once: a view of [`MAXIMUM_WORKERS`] with the longest names.
pub const COORDINATOR_MESSAGE_BYTES: usize = 2 * 1024 * 1024;

/// The most that a peer says of itself.
pub const INTRODUCTION_BYTES: usize = 1024;

/// Of a host's name, so that a view stays below [`COORDINATOR_MESSAGE_BYTES`].
pub const HOST_NAME_BYTES: usize = 256;

/// Of a decision that is passed on.
pub(crate) const DECISION_BYTES: usize = 8 * 1024;

/// Of a reason that is passed on.
const REASON_CHARACTERS: usize = 1000;

/// Names a job for as long as it lives, so that two jobs with the same secret do not mix.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct JobId(String);

impl JobId {
    /// A name that nobody else has.
    pub fn random() -> Result<JobId> {
        let bytes: [u8; 8] = crate::secret::random_bytes()?;
        Ok(JobId(format!("{:016x}", u64::from_le_bytes(bytes))))
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

/// A worker asks to take part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Join {
    /// The rank it must have, if its launcher gave it one.
    pub rank: Option<Rank>,
    /// How many workers it was told there are.
    pub size: Option<usize>,
    /// Workers with the same host can share memory.
    pub host: String,
    /// Where it accepts connections from its peers.
    pub address: SocketAddr,
    /// Its process on that host, for whoever started it.
    #[serde(default)]
    pub process: u32,
}

/// How a worker's part in the job ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Fate {
    /// It did its work.
    Finished,
    /// It gave up and said why.
    Failed {
        /// In its own words.
        reason: String,
    },
    /// Its connection closed, and it had not said good-bye.
    Lost,
    /// Nothing was heard of it for too long, though its connection is open.
    Silent {
        /// So long.
        seconds: u64,
    },
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Finished => f.write_str("it finished"),
            // Escaped: one line, whatever a worker says.
            Fate::Failed { reason } => write!(f, "it failed: {}", reason.escape_debug()),
            Fate::Lost => f.write_str("its connection closed"),
            Fate::Silent { seconds } => write!(
                f,
                "nothing was heard of it for {seconds} s: its process is stopped, or its machine cannot be reached"
            ),
        }
    }
}

/// A worker whose connection to the coordinator broke, or whose coordinator is another one now, is back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Return {
    /// Its job.
    pub job: JobId,
    /// Who it is there.
    pub worker: WorkerId,
    /// Its process on its host.
    #[serde(default)]
    pub process: u32,
    /// What others need to know of it where it was not let in yet.
    #[serde(default)]
    pub outside: Option<Outside>,
}

/// A worker that came to a running job and waits to be let in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Outside {
    /// As in its [`Join`].
    pub host: String,
    /// As in its [`Join`].
    pub address: SocketAddr,
}

/// What a worker wants, in its first message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// To take part.
    Join(Join),
    /// To go on taking part.
    Return(Return),
    /// To take no part: it has a question.
    Ask(Question),
}

/// From a worker to the coordinator. The first is a [`Request`], and only the first.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum WorkerMessage {
    /// It asks to take part.
    Join(Join),
    /// It goes on taking part.
    Return(Return),
    /// It is no worker: somebody has a question.
    Ask(Question),
    /// What messages cost on the job's links. Rank 0 measures it for all, and says so once.
    Measured(Measured),
    /// The same, and where hosts sit, if workers were to find that out.
    Surveyed {
        /// What messages cost.
        measured: Measured,
        /// Where hosts sit.
        finding: Box<Finding>,
    },
    /// Its part in agreeing on the next view.
    Agreement(ToRegistrar),
    /// It came to a running job, and is ready to take part.
    Enter,
    /// Its program wants the job to have so many workers.
    Resize {
        /// So many.
        size: usize,
    },
    /// It wants to leave, after a step that all agree on: what it runs on will not be there for long.
    Retire,
    /// It lives, and how far it is; every [heartbeat](paceline_sync::liveness::HEARTBEAT), from when its line is read. It is
    /// answered.
    Alive(Pace),
    /// What it saw of its last steps, if the job is watched.
    Seen(Box<Sighting>),
    /// What a tuner or a policy at this worker decided, if the job is watched.
    Decided {
        /// For whoever watches; nobody here reads it.
        text: String,
    },
    /// It will send nothing more.
    Leave {
        /// Why.
        fate: Fate,
    },
}

/// How far a worker is, and how fast it goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pace {
    /// The step it is in.
    pub step: u64,
    /// Steps in a second, lately; zero while that is not known.
    pub rate: f64,
    /// Whether its program waits for other workers.
    pub waits: bool,
}

/// From the coordinator to a worker. The first is an answer to its [`Join`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum CoordinatorMessage {
    /// Everybody is here.
    Welcome {
        /// The job.
        job: JobId,
        /// The receiver's place in the view.
        rank: Rank,
        /// The first view.
        view: View,
    },
    /// The job runs, and has room: the receiver is invited once it says that it is [ready](WorkerMessage::Enter).
    Underway {
        /// The job.
        job: JobId,
        /// The receiver's name in views to come.
        id: WorkerId,
        /// The latest view, which is without the receiver.
        view: View,
    },
    /// The receiver may not take part; the connection closes.
    Refused(Refusal),
    /// What somebody asked who takes no part; the connection closes.
    Answer(Box<Answer>),
    /// The job does not get another number of workers, which the receiver's program [wanted](WorkerMessage::Resize).
    WishRefused {
        /// In words.
        reason: String,
    },
    /// Another worker's part in the job has ended.
    Gone {
        /// Who, in the view in force.
        rank: Rank,
        /// How.
        fate: Fate,
    },
    /// The coordinator's part in agreeing on the next view.
    Agreement(ToParticipant),
    /// The coordinator lives: the answer to a [heartbeat](WorkerMessage::Alive).
    Alive,
    /// Somebody watches the job: say what is to be [seen](WorkerMessage::Seen).
    Watch,
    /// Whether tuners rest.
    Tuning {
        /// They do.
        paused: bool,
    },
}

/// Why somebody was turned away, in a form that can be sent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
#[allow(missing_docs)] // Each is the NetError of the same name, where the fields are described.
pub enum Refusal {
    Malformed { problem: String },
    Oversized { bytes: u64, limit: usize },
    DuplicateRank { rank: Rank, holder: String },
    RankOutOfRange { rank: Rank, size: usize },
    SizeDiffers { worker: usize, job: usize },
    JobFull { size: usize },
    JobOver,
    JoinTimeout { joined: usize, size: usize, waited: Duration, missing: Vec<Rank> },
    OtherJob { ours: String, theirs: String },
    NotElastic,
    NotWritten,
    OtherView { ours: ViewVersion, theirs: ViewVersion },
    UnknownPeer { rank: Rank, index: u32 },
}

impl From<Refusal> for NetError {
    fn from(refusal: Refusal) -> NetError {
        match refusal {
            Refusal::Malformed { problem } => NetError::Malformed { what: "message", problem },
            Refusal::Oversized { bytes, limit } => {
                NetError::Oversized { what: "message", bytes, limit }
            }
            Refusal::DuplicateRank { rank, holder } => NetError::DuplicateRank { rank, holder },
            Refusal::RankOutOfRange { rank, size } => NetError::RankOutOfRange { rank, size },
            Refusal::SizeDiffers { worker, job } => NetError::SizeDiffers { worker, job },
            Refusal::JobFull { size } => NetError::JobFull { size },
            Refusal::JobOver => NetError::JobOver,
            Refusal::JoinTimeout { joined, size, waited, missing } => {
                NetError::JoinTimeout { joined, size, waited, missing }
            }
            Refusal::OtherJob { ours, theirs } => NetError::OtherJob { ours, theirs },
            Refusal::NotElastic => NetError::NotElastic,
            Refusal::NotWritten => NetError::NotWritten,
            Refusal::OtherView { ours, theirs } => NetError::OtherView { ours, theirs },
            Refusal::UnknownPeer { rank, index } => NetError::UnknownPeer { rank, index },
        }
    }
}

impl Refusal {
    /// What to answer to a message that could not be read; nothing if nobody is there to read it.
    pub(crate) fn of_unreadable(error: &NetError) -> Option<Refusal> {
        match error {
            NetError::Malformed { problem, .. } => {
                Some(Refusal::Malformed { problem: problem.clone() })
            }
            NetError::Oversized { bytes, limit, .. } => {
                Some(Refusal::Oversized { bytes: *bytes, limit: *limit })
            }
            _ => None,
        }
    }
}

/// The first message between two workers: who connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Introduction {
    /// Its job.
    pub job: JobId,
    /// The view it knows.
    pub view: ViewVersion,
    /// The attempt to agree on that view which it gathers for; none where it needed no agreement.
    #[serde(default)]
    pub attempt: Ballot,
    /// Its rank there.
    pub rank: Rank,
    /// Which of its connections to the receiver this is.
    pub index: u32,
}

/// The answer to an [`Introduction`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum IntroductionAnswer {
    /// The connection takes its place; data may follow.
    Accepted,
    /// The connection closes.
    Refused(Refusal),
}

/// Read what a worker says.
pub fn decode_worker_message(bytes: &[u8]) -> Result<WorkerMessage> {
    let message = decode(bytes, "worker's message")?;
    match message {
        WorkerMessage::Join(join) => {
            check_host(&join.host)?;
            Ok(WorkerMessage::Join(join))
        }
        WorkerMessage::Return(back) => {
            back.outside.as_ref().map_or(Ok(()), |outside| check_host(&outside.host))?;
            Ok(WorkerMessage::Return(back))
        }
        WorkerMessage::Measured(measured) => match unbelievable(&measured) {
            None => Ok(WorkerMessage::Measured(measured)),
            Some(problem) => Err(NetError::Malformed { what: "measurement", problem }),
        },
        WorkerMessage::Surveyed { measured, finding } => {
            let topology = &finding.topology;
            let problem = match topology.hosts.len() {
                0..=MAXIMUM_WORKERS => topology.check().err().map(|problem| problem.to_string()),
                hosts => Some(format!("a topology of {hosts} hosts")),
            };
            let problem = problem.or_else(|| unbelievable(&measured));
            match problem.or_else(|| endless(topology.links())) {
                None => {
                    Ok(WorkerMessage::Surveyed { measured, finding: Box::new(short(*finding)) })
                }
                Some(problem) => Err(NetError::Malformed { what: "survey", problem }),
            }
        }
        WorkerMessage::Agreement(agreement) if agreement.is_sound() => {
            Ok(WorkerMessage::Agreement(agreement))
        }
        WorkerMessage::Agreement(agreement) => {
            Err(NetError::Malformed { what: "agreement", problem: format!("{agreement:?}") })
        }
        WorkerMessage::Leave { fate: Fate::Failed { reason } } => {
            let reason = reason.chars().take(REASON_CHARACTERS).collect();
            Ok(WorkerMessage::Leave { fate: Fate::Failed { reason } })
        }
        WorkerMessage::Resize { size } | WorkerMessage::Ask(Question::Resize(size))
            if size == 0 || size > MAXIMUM_WORKERS =>
        {
            let problem = format!("{size} workers");
            Err(NetError::Malformed { what: "wish for another size", problem })
        }
        WorkerMessage::Seen(seen) if !seen.is_sound() => {
            let problem = "it is longer than it may be, or has numbers that are none".to_string();
            Err(NetError::Malformed { what: "sighting", problem })
        }
        WorkerMessage::Decided { text } if text.len() > DECISION_BYTES => {
            Err(NetError::Oversized {
                what: "decision",
                bytes: text.len() as u64,
                limit: DECISION_BYTES,
            })
        }
        message @ (WorkerMessage::Leave { .. }
        | WorkerMessage::Seen(_)
        | WorkerMessage::Decided { .. }
        | WorkerMessage::Ask(Question::Status)
        | WorkerMessage::Enter
        | WorkerMessage::Resize { .. }
        | WorkerMessage::Ask(Question::Resize(_))
        | WorkerMessage::Retire
        | WorkerMessage::Alive(_)) => Ok(message),
    }
}

/// Read a worker's first message, which must say what it wants.
pub fn decode_request(bytes: &[u8]) -> Result<Request> {
    match decode_worker_message(bytes)? {
        WorkerMessage::Join(join) => Ok(Request::Join(join)),
        WorkerMessage::Return(back) => Ok(Request::Return(back)),
        WorkerMessage::Ask(question) => Ok(Request::Ask(question)),
        _ => Err(NetError::Malformed {
            what: "join",
            problem: "the first message must ask to take part".to_string(),
        }),
    }
}

/// Read what the coordinator says.
pub fn decode_coordinator_message(bytes: &[u8]) -> Result<CoordinatorMessage> {
    let message = decode(bytes, "coordinator's message")?;
    let given = match &message {
        CoordinatorMessage::Welcome { rank, view, .. } => Some((view, *rank)),
        CoordinatorMessage::Underway { view, .. } => Some((view, Rank(0))),
        _ => None,
    };
    if let Some((view, rank)) = given {
        let problem = if view.size() > MAXIMUM_WORKERS {
            Some(format!("a view of {} workers", view.size()))
        } else if rank.index() >= view.size() {
            Some(format!("rank {rank} in a view of {} workers", view.size()))
        } else {
            let settings = view.settings.validate().err().map(|error| error.to_string());
            let fusion = || view.fusion.validate().err().map(|error| error.to_string());
            settings.or_else(fusion).or_else(|| unbelievable(&view.measured))
        };
        if let Some(problem) = problem {
            return Err(NetError::Malformed { what: "coordinator's message", problem });
        }
    }
    if let CoordinatorMessage::Agreement(agreement) = &message
        && !agreement.is_sound()
    {
        return Err(NetError::Malformed { what: "agreement", problem: format!("{agreement:?}") });
    }
    Ok(message)
}

/// Read who connects.
pub fn decode_introduction(bytes: &[u8]) -> Result<Introduction> {
    decode(bytes, "introduction")
}

/// Read the answer to an introduction.
pub fn decode_introduction_answer(bytes: &[u8]) -> Result<IntroductionAnswer> {
    decode(bytes, "answer to an introduction")
}

/// The bytes of any message of this file.
pub(crate) fn encode(message: &impl Serialize) -> Vec<u8> {
    serde_json::to_vec(message).expect("messages have only string keys and finite numbers")
}

fn decode<T: DeserializeOwned>(bytes: &[u8], what: &'static str) -> Result<T> {
    serde_json::from_slice(bytes)
        .map_err(|error| NetError::Malformed { what, problem: error.to_string() })
}

/// What is wrong with a measurement, if anything: prices of a link that takes longer than anybody would
/// wait leave the range of times.
fn unbelievable(measured: &Measured) -> Option<String> {
    endless([measured.memory, measured.wire].into_iter().flatten())
}

fn endless(mut links: impl Iterator<Item = Link>) -> Option<String> {
    const LONGEST: Duration = Duration::from_secs(3600);
    let slow: Link = links.find(|link| link.latency > LONGEST)?;
    Some(format!("a link with a latency of {:?}", slow.latency))
}

/// With doubts that can be printed: few lines, and none with control characters.
fn short(finding: Finding) -> Finding {
    const DOUBTS: usize = 16;
    let line = |doubt: String| {
        doubt.chars().filter(|it| !it.is_control()).take(REASON_CHARACTERS).collect()
    };
    Finding { doubts: finding.doubts.into_iter().take(DOUBTS).map(line).collect(), ..finding }
}

/// A name goes into logs and into every view: it is short, and it is one line.
fn check_host(host: &str) -> Result<()> {
    let problem = if host.is_empty() {
        "the host has no name"
    } else if host.len() > HOST_NAME_BYTES {
        "the host's name is too long"
    } else if host.chars().any(char::is_control) {
        "the host's name holds control characters"
    } else {
        return Ok(());
    };
    Err(NetError::Malformed { what: "join", problem: problem.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{SEEN_NAME, SEEN_WAITS, SeenOperation};
    use paceline_job::{ByteSize, Settings, Topology};
    use paceline_sync::agreement::{Agreed, Change, MAXIMUM_STEP, Objection};

    fn join(host: &str) -> WorkerMessage {
        WorkerMessage::Join(Join {
            rank: Some(Rank(1)),
            size: None,
            host: host.to_string(),
            address: "127.0.0.1:4000".parse().unwrap(),
            process: 1,
        })
    }

    /// So many hosts, with the longest names that can be.
    fn surveyed(hosts: u32, latency_nanos: u64) -> WorkerMessage {
        let link = measured("123.456789012345gbit", latency_nanos).wire.unwrap();
        let mut topology = Topology::racked(hosts, hosts, link, link, link);
        for host in &mut topology.hosts {
            host.name += &"\\".repeat(HOST_NAME_BYTES - host.name.len());
        }
        let took = Duration::from_secs(2);
        let doubts = vec!["nothing was read".to_string()];
        let finding = Box::new(Finding { topology, rounds: 20, transfers: 106, took, doubts });
        WorkerMessage::Surveyed { measured: Measured::default(), finding }
    }

    fn measured(rate: &str, latency_nanos: u64) -> Measured {
        let latency = Duration::from_nanos(latency_nanos);
        Measured { memory: None, wire: Some(Link { rate: rate.parse().unwrap(), latency }) }
    }

    fn propose(settings: Settings, next: u64) -> ToRegistrar {
        let change = Change::Settings(settings);
        ToRegistrar::Propose { proposal: 1, after: ViewVersion(1), change, next }
    }

    fn prepare(settings: Settings, step: u64) -> ToParticipant {
        let (ballot, version) = (Ballot(1), ViewVersion(2));
        ToParticipant::Prepare { ballot, step, version, change: Change::Settings(settings) }
    }

    fn sighting() -> Sighting {
        let started = SeenOperation {
            name: "layer".to_string(),
            bytes: 7,
            posted: -1,
            started: Some(2),
            ended: None,
        };
        Sighting {
            step: 9,
            ends: vec![5, 9],
            waits: vec![(1, 2)],
            operations: vec![started],
            sent: vec![(Rank(1), 0.5)],
            loss: Some(0.25),
            ..Sighting::default()
        }
    }

    #[test]
    fn sightings_and_decisions_have_bounds() {
        let seen = |change: &dyn Fn(&mut Sighting)| {
            let mut seen = sighting();
            change(&mut seen);
            decode_worker_message(&encode(&WorkerMessage::Seen(Box::new(seen))))
        };
        assert!(seen(&|_| ()).is_ok());
        assert!(seen(&|seen| seen.ends.clear()).is_err());
        assert!(seen(&|seen| seen.ends = vec![9, 5]).is_err());
        assert!(seen(&|seen| seen.waits = vec![(0, 0); SEEN_WAITS + 1]).is_err());
        assert!(seen(&|seen| seen.operations[0].name = "x".repeat(SEEN_NAME + 1)).is_err());
        let endless = WorkerMessage::Decided { text: "x".repeat(DECISION_BYTES + 1) };
        assert!(decode_worker_message(&encode(&endless)).is_err());
    }

    #[test]
    fn messages_survive_the_wire() {
        for message in [
            join("a"),
            WorkerMessage::Return(Return {
                job: JobId::random().unwrap(),
                worker: WorkerId(3),
                process: 7,
                outside: Some(Outside {
                    host: "a".to_string(),
                    address: "127.0.0.1:1".parse().unwrap(),
                }),
            }),
            WorkerMessage::Measured(measured("1gbit", 20_000)),
            WorkerMessage::Measured(Measured::default()),
            surveyed(1, 20_000),
            WorkerMessage::Agreement(propose(Settings::default(), 7)),
            WorkerMessage::Agreement(ToRegistrar::Promise { ballot: Ballot(1), next: 7 }),
            WorkerMessage::Agreement(ToRegistrar::Refuse { ballot: Ballot(1), next: 7 }),
            WorkerMessage::Agreement(ToRegistrar::InForce { version: ViewVersion(2), next: 7 }),
            WorkerMessage::Agreement(ToRegistrar::Leave { posted: 2, next: 7 }),
            WorkerMessage::Seen(Box::new(sighting())),
            WorkerMessage::Decided { text: "{}".to_string() },
            WorkerMessage::Leave { fate: Fate::Finished },
            WorkerMessage::Leave { fate: Fate::Failed { reason: "out of memory".to_string() } },
        ] {
            assert_eq!(decode_worker_message(&encode(&message)).unwrap(), message);
        }
        let welcome = CoordinatorMessage::Welcome {
            job: JobId::random().unwrap(),
            rank: Rank(1),
            view: View::local(2, Settings::default()),
        };
        let refused = CoordinatorMessage::Refused(Refusal::JoinTimeout {
            joined: 1,
            size: 2,
            waited: Duration::from_millis(1500),
            missing: vec![Rank(1)],
        });
        let agreed = Ok(Agreed { version: ViewVersion(2), step: 9 });
        let overtaken = Objection::Overtaken { made_for: ViewVersion(1), by: ViewVersion(2) };
        for message in [
            welcome,
            refused,
            CoordinatorMessage::Gone { rank: Rank(0), fate: Fate::Lost },
            CoordinatorMessage::Watch,
            CoordinatorMessage::Tuning { paused: true },
            CoordinatorMessage::Agreement(prepare(Settings::default(), 9)),
            CoordinatorMessage::Agreement(ToParticipant::Commit { ballot: Ballot(3) }),
            CoordinatorMessage::Agreement(ToParticipant::Abort { ballot: Ballot(3) }),
            CoordinatorMessage::Agreement(ToParticipant::Decided { proposal: 1, outcome: agreed }),
            CoordinatorMessage::Agreement(ToParticipant::Decided {
                proposal: 1,
                outcome: Err(overtaken),
            }),
        ] {
            assert_eq!(decode_coordinator_message(&encode(&message)).unwrap(), message);
        }
    }

    #[test]
    fn the_largest_view_fits_its_bound() {
        let mut view = View::local(MAXIMUM_WORKERS, Settings::default());
        for worker in &mut view.workers {
            worker.host = "\\".repeat(HOST_NAME_BYTES);
            worker.address = "[ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff]:65535".to_string();
        }
        // As many names as a plan may have, each as long in JSON as can be.
        let name = |number: u32| format!("{}{number:06}", "\\".repeat(54));
        view.fusion.groups = (0..8192).map(|number| vec![name(number)]).collect();
        view.fusion.validate().unwrap();
        let welcome =
            CoordinatorMessage::Welcome { job: JobId::random().unwrap(), rank: Rank(0), view };
        assert!(encode(&welcome).len() <= COORDINATOR_MESSAGE_BYTES);
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        for host in ["", "two\nlines", &"x".repeat(HOST_NAME_BYTES + 1)] {
            assert!(matches!(
                decode_request(&encode(&join(host))),
                Err(NetError::Malformed { what: "join", .. })
            ));
        }
        let leave = encode(&WorkerMessage::Leave { fate: Fate::Finished });
        let early = encode(&WorkerMessage::Measured(Measured::default()));
        for first in [leave, early] {
            assert!(matches!(decode_request(&first), Err(NetError::Malformed { .. })));
        }
        let endless = encode(&WorkerMessage::Measured(measured("1gbit", u64::MAX)));
        assert!(matches!(
            decode_worker_message(&endless),
            Err(NetError::Malformed { what: "measurement", .. })
        ));
        assert!(decode_worker_message(&encode(&surveyed(2, u64::MAX))).is_err());
        let largest = encode(&surveyed(MAXIMUM_WORKERS as u32, 20_000));
        assert!(largest.len() <= WORKER_MESSAGE_BYTES, "{}", largest.len());
        assert!(decode_worker_message(&largest).is_ok());
        assert!(decode_worker_message(&encode(&surveyed(MAXIMUM_WORKERS as u32 + 1, 1))).is_err());
        let endless = CoordinatorMessage::Welcome {
            job: JobId::random().unwrap(),
            rank: Rank(0),
            view: View::local(2, Settings::default())
                .with_measured(measured("1gbit", u64::MAX), None),
        };
        assert!(decode_coordinator_message(&encode(&endless)).is_err());
        let outside = CoordinatorMessage::Welcome {
            job: JobId::random().unwrap(),
            rank: Rank(2),
            view: View::local(2, Settings::default()),
        };
        assert!(decode_coordinator_message(&encode(&outside)).is_err());
        assert!(decode_worker_message(&[b'['; 60_000]).is_err());
    }

    #[test]
    fn changes_that_cannot_be_and_steps_that_nobody_reaches_are_refused() {
        let no_credit = || Settings { credit: ByteSize(0), ..Settings::default() };
        let beyond = MAXIMUM_STEP + 1;
        for message in [
            propose(no_credit(), 0),
            propose(Settings::default(), beyond),
            ToRegistrar::Promise { ballot: Ballot(1), next: beyond },
            ToRegistrar::Refuse { ballot: Ballot(1), next: u64::MAX },
            ToRegistrar::InForce { version: ViewVersion(2), next: u64::MAX },
            ToRegistrar::Leave { posted: 2, next: u64::MAX },
        ] {
            let bytes = encode(&WorkerMessage::Agreement(message));
            let refused = decode_worker_message(&bytes);
            assert!(matches!(refused, Err(NetError::Malformed { what: "agreement", .. })));
            assert!(decode_request(&bytes).is_err());
        }
        let never = Ok(Agreed { version: ViewVersion(2), step: u64::MAX });
        for message in [
            prepare(no_credit(), 0),
            prepare(Settings::default(), beyond),
            ToParticipant::Decided { proposal: 1, outcome: never },
        ] {
            let bytes = encode(&CoordinatorMessage::Agreement(message));
            assert!(decode_coordinator_message(&bytes).is_err());
        }
    }

    #[test]
    fn a_reason_is_one_line_of_bounded_length() {
        let fate = Fate::Failed { reason: "a\nb".repeat(30_000) };
        let message = decode_worker_message(&encode(&WorkerMessage::Leave { fate })).unwrap();
        let WorkerMessage::Leave { fate: fate @ Fate::Failed { .. } } = message else { panic!() };
        let text = fate.to_string();
        assert!(text.len() < 3000 && !text.contains('\n'));
    }
}
