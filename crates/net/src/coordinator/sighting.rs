//! What a worker shows of its last steps to people who watch the job: plain data, bounded so that it fits into one message.
//! It is about this worker alone and goes to the coordinator alone, so that it may be left out or come late.

use paceline_job::{Rank, ViewVersion};
use serde::{Deserialize, Serialize};

/// The most operations of a sighting; of more, the shortest are left out.
pub const SEEN_OPERATIONS: usize = 256;

/// The most waits of a sighting; of more, the shortest are left out.
pub const SEEN_WAITS: usize = 256;

/// The most peers of a sighting; of more, those that got least are left out.
pub const SEEN_PEERS: usize = 32;

/// Characters of an operation's name.
pub const SEEN_NAME: usize = 40;

/// The most steps of a sighting.
pub const SEEN_STEPS: usize = 2;

/// One or two steps of one worker. Times are microseconds since the first of them began.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sighting {
    /// The worker's place.
    pub rank: Rank,
    /// In this view.
    pub view: ViewVersion,
    /// The first step of it.
    pub step: u64,
    /// When that began, in microseconds since 1970 by the clock of the worker's host.
    pub at: u64,
    /// Where each further step began, and where the last ended.
    pub ends: Vec<u64>,
    /// Steps in a second since the sighting before.
    pub speed: f64,
    /// When the program stood still, and for how long.
    pub waits: Vec<(u64, u64)>,
    /// What was under way.
    pub operations: Vec<SeenOperation>,
    /// Operations and waits that did not fit.
    #[serde(default)]
    pub left_out: u64,
    /// Bytes a second to each peer since the sighting before.
    pub sent: Vec<(Rank, f64)>,
    /// Bytes a second to all of them.
    pub upload: f64,
    /// Bytes a second from all of them.
    pub download: f64,
    /// What the program said of its loss, on average since the sighting before.
    #[serde(default)]
    pub loss: Option<f64>,
    /// Samples a second of this worker, if the program says how many it uses.
    #[serde(default)]
    pub samples: Option<f64>,
}

/// An operation of a [`Sighting`]. Written as a row, since there are many of them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "Row", into = "Row")]
pub struct SeenOperation {
    /// Under which it was posted.
    pub name: String,
    /// Of this worker's tensor.
    pub bytes: u64,
    /// When it was handed over; below zero if before the first step.
    pub posted: i64,
    /// When its first message left or came, if one did.
    pub started: Option<i64>,
    /// When it was over, if it was.
    pub ended: Option<i64>,
}

type Row = (String, u64, i64, Option<i64>, Option<i64>);

impl From<Row> for SeenOperation {
    fn from((name, bytes, posted, started, ended): Row) -> SeenOperation {
        SeenOperation { name, bytes, posted, started, ended }
    }
}

impl From<SeenOperation> for Row {
    fn from(one: SeenOperation) -> Row {
        (one.name, one.bytes, one.posted, one.started, one.ended)
    }
}

impl Sighting {
    /// Whether it is as long as it may be, and no number is beyond what can be drawn.
    pub fn is_sound(&self) -> bool {
        let numbers = [self.speed, self.upload, self.download];
        let known = numbers.into_iter().chain(self.loss).chain(self.samples);
        self.operations.len() <= SEEN_OPERATIONS
            && self.waits.len() <= SEEN_WAITS
            && self.sent.len() <= SEEN_PEERS
            && (1..=SEEN_STEPS).contains(&self.ends.len())
            && self.ends.is_sorted()
            && self.operations.iter().all(|one| one.name.chars().count() <= SEEN_NAME)
            && known.chain(self.sent.iter().map(|(_, rate)| *rate)).all(f64::is_finite)
    }
}
