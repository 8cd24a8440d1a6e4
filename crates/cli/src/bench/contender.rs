//! What a contender is: the processes to start and what may be done to them between turns. It does not
//! know how they are driven ([`super::group`]) nor where they come from ([`super::peers`], [`super::ours`]).

use std::{any::Any, ffi::OsString, path::PathBuf};

/// A process that speaks [`super::protocol`] on its standard input and output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// What to run.
    pub program: PathBuf,
    /// Its arguments.
    pub arguments: Vec<OsString>,
    /// Variables added to the harness's environment.
    pub environment: Vec<(OsString, OsString)>,
}

/// What happens to a contender's processes while another has its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BetweenTurns {
    /// They are stopped (SIGSTOP): they may spin while they wait, and nobody misses them.
    Stopped,
    /// They go on: they sleep while they wait, and somebody expects their heartbeats.
    Sleeping,
}

/// One column of the table.
pub struct Contender {
    /// Its name in tables and options.
    pub name: String,
    /// One process per rank, or one that speaks for all ranks.
    pub processes: Vec<Process>,
    /// What happens while others are measured.
    pub between_turns: BetweenTurns,
    /// Lives as long as the processes do: a coordinator, a folder.
    pub companion: Option<Box<dyn Any>>,
}
