//! What a page is told of a job, one line of JSON for each thing that happened. The same lines feed a live page, are kept in a
//! folder, and are shown again by `paceline ui`. Data only.

use paceline_job::{ByteSize, Settings, View};
use paceline_net::coordinator::{MemberStatus, Sighting};
use serde::{Deserialize, Serialize};

/// The form of these lines. A folder of another one is refused.
pub const FORMAT: u32 = 1;

/// Something that happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Milliseconds since 1970.
    pub t: u64,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum What {
    /// A job begins. What was said of one before is over.
    Job(Job),
    /// A view is in force.
    View(SeenView),
    /// Who is connected, and what each is to the job.
    Members {
        /// Those of the view first, by rank.
        members: Vec<MemberStatus>,
    },
    /// A worker is gone.
    Gone {
        /// Its name in views.
        id: u64,
        /// Its place, if it had one.
        rank: Option<u32>,
        /// Whether it had done its work.
        finished: bool,
        /// How, in words.
        text: String,
    },
    /// How fast the job was.
    Point(Point),
    /// In which groups a step's tensors were mixed.
    Groups(SeenGroups),
    /// What one worker saw of its last steps.
    Seen {
        /// Its name in views.
        id: u64,
        /// What.
        #[serde(flatten)]
        sighting: Box<Sighting>,
    },
    /// A tuner, a policy or a person decided something.
    Decision(SeenDecision),
    /// Tuners rest, or go on.
    Tuning {
        /// They rest.
        paused: bool,
    },
    /// Words for people.
    Note {
        /// One line.
        text: String,
    },
    /// The job is over.
    End {
        /// How, in words.
        text: String,
    },
}

/// What is known of a job before it runs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// [`FORMAT`].
    pub format: u32,
    /// What people call it.
    pub name: String,
    /// What its workers run.
    pub program: String,
    /// The fewest and the most workers, where they come and go.
    pub limits: Option<(usize, usize)>,
    /// How it tunes itself, if it does.
    pub tuning: Option<String>,
}

/// A view, as far as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenView {
    /// Its version.
    pub version: u32,
    /// In force from this step on.
    pub since: u64,
    /// How all-reduces are programmed.
    pub strategy: String,
    /// Bytes of the largest chunk.
    pub partition: u64,
    /// Bytes in flight; none if any number.
    pub credit: Option<u64>,
    /// By rank.
    pub workers: Vec<SeenWorker>,
    /// What hosts' wires carry, where a topology says so.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<SeenLink>,
    /// What racks' uplinks carry, by rack, where there are several.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub uplinks: Vec<SeenUplink>,
}

/// A worker of a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenWorker {
    /// Its name.
    pub id: u64,
    /// Where it is.
    pub host: String,
    /// The rack of that, if it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rack: Option<u32>,
}

/// What a host's wire carries, where that is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenLink {
    /// The host.
    pub host: String,
    /// Its rack.
    #[serde(default)]
    pub rack: u32,
    /// Bytes a second.
    pub rate: f64,
    /// Of one byte, in seconds.
    #[serde(default)]
    pub latency: f64,
    /// Whether others' traffic slows it down.
    #[serde(default, skip_serializing_if = "is_false")]
    pub contended: bool,
}

/// What a rack's uplink carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SeenUplink {
    /// Bytes a second.
    pub rate: f64,
    /// Of one byte, in seconds.
    pub latency: f64,
    /// Whether others' traffic slows it down.
    #[serde(default, skip_serializing_if = "is_false")]
    pub contended: bool,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// The job at a moment, as worker 0 and the last words of the others say.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The step that begins.
    pub step: u64,
    /// Steps in a second.
    pub speed: f64,
    /// Samples in a second of all workers, if the program says how many it uses.
    pub samples: Option<f64>,
    /// The mean over workers, if the program says.
    pub loss: Option<f64>,
    /// The share of steps in which programs stood still, the mean over workers.
    pub waiting: f64,
    /// Bytes a second that all workers sent.
    pub sent: f64,
    /// How many workers there are.
    pub workers: usize,
}

/// Who averages with whom, where the strategy divides workers into groups.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenGroups {
    /// In this step, for tensors that are mixed once in each.
    pub step: u64,
    /// Ranks; of the first part where tensors are cut into several.
    pub groups: Vec<Vec<u32>>,
    /// Into how many parts tensors are cut, each with groups of its own.
    pub parts: u32,
}

/// What people asked for on the page, beside the words of a decision log.
pub const ASK: &str = "ask";

/// What a policy changed.
pub const CHANGE: &str = "change";

/// A decision, as far as it is shown.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SeenDecision {
    /// Who.
    pub by: String,
    /// What was done: the word of a decision log, [`ASK`] or [`CHANGE`].
    pub action: String,
    /// In which step, if it said.
    pub step: Option<u64>,
    /// The whole of it in words.
    pub text: String,
    /// Expected gain; 1 is none.
    pub predicted: Option<f64>,
    /// What came of it; 1 is none.
    pub measured: Option<f64>,
}

impl From<&View> for SeenView {
    fn from(view: &View) -> SeenView {
        let Settings { strategy, partition, credit, topology, contended, .. } = &view.settings;
        let place = |host: &str| {
            let hosts = topology.iter().flat_map(|topology| &topology.hosts);
            hosts.into_iter().find(|known| known.name == host)
        };
        let workers = view.workers.iter().map(|worker| SeenWorker {
            id: worker.id.0,
            host: worker.host.clone(),
            rack: place(&worker.host).map(|host| host.rack),
        });
        let links = topology.iter().flat_map(|topology| &topology.hosts).map(|host| SeenLink {
            host: host.name.clone(),
            rack: host.rack,
            rate: host.link.rate.bytes_per_second(),
            latency: host.link.latency.as_secs_f64(),
            contended: contended.hosts.contains(&host.name),
        });
        let uplinks = topology.iter().flat_map(|topology| (0..).zip(&topology.uplinks));
        let uplinks = uplinks.map(|(rack, link)| SeenUplink {
            rate: link.rate.bytes_per_second(),
            latency: link.latency.as_secs_f64(),
            contended: contended.racks.contains(&rack),
        });
        SeenView {
            version: view.version.0,
            since: 0,
            strategy: strategy.to_string(),
            partition: partition.0,
            credit: (*credit < ByteSize::UNLIMITED).then_some(credit.0),
            workers: workers.collect(),
            links: links.collect(),
            uplinks: uplinks.collect(),
        }
    }
}
