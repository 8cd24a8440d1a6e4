//! How a job stands, for people and for whoever runs it: plain data, as the coordinator sees it.

use paceline_job::{ViewVersion, WorkerId};
use serde::{Deserialize, Serialize};

/// A job at a moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Its name.
    pub job: String,
    /// The latest view; none while the first workers gather.
    pub view: Option<ViewVersion>,
    /// The furthest step that anybody said to be in.
    pub step: u64,
    /// Steps in a second, lately: the slowest of those who said.
    pub steps_per_second: Option<f64>,
    /// The fewest and the most workers it may have, where they come and go.
    pub limits: Option<(usize, usize)>,
    /// Everybody who is connected; those of the view first, by rank.
    pub members: Vec<MemberStatus>,
}

/// One process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name in views; none before it has one.
    pub id: Option<WorkerId>,
    /// Its place in the latest view.
    pub rank: Option<u32>,
    /// Where it runs.
    pub host: String,
    /// Its process there.
    pub process: u32,
    /// What it is to the job.
    pub standing: Standing,
    /// The step that it last said to be in.
    pub step: u64,
    /// For how many seconds nothing was heard of it; none before its first word.
    #[serde(default)]
    pub heard: Option<u64>,
}

/// What a process is to a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// The first view is not out.
    Gathering,
    /// It trains.
    Working,
    /// It trains, and others wait for it.
    Slow,
    /// It trains, and was asked to leave.
    Leaving,
    /// It is not ready to be let in.
    Preparing,
    /// It waits to be let in.
    Joining,
    /// It is ready, and waits until somebody is missing.
    Spare,
    /// The job goes on without it.
    Apart,
}
