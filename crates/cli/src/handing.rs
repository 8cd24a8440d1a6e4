//! What handing an operation over takes the program's thread, and how that is known. What follows from it is the graph's.

use paceline_job::{WrittenDuration, graph::Job};
use serde::Serialize;
use std::{fmt, time::Duration};

/// What handing over one operation takes the program's thread, and how that is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum Handing {
    /// The command line says so.
    Given(Duration),
    /// The trace shows it.
    Recorded(Duration),
    /// It is not: that fewer operations take less is not counted.
    Unknown,
}

impl Handing {
    /// What was given, or else what the job's trace shows.
    pub fn of(given: Option<WrittenDuration>, job: &Job) -> Handing {
        match (given, job.post) {
            (Some(WrittenDuration(post)), _) => Handing::Given(post),
            (None, Some(post)) => Handing::Recorded(post),
            (None, None) => Handing::Unknown,
        }
    }

    /// As far as it is known.
    pub fn time(self) -> Duration {
        match self {
            Handing::Given(post) | Handing::Recorded(post) => post,
            Handing::Unknown => Duration::ZERO,
        }
    }
}

impl fmt::Display for Handing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let microseconds = self.time().as_secs_f64() * 1e6;
        let how = match self {
            Handing::Given(_) => "as given",
            Handing::Recorded(_) => "as recorded",
            Handing::Unknown => {
                return f.write_str(
                    "What handing an operation over takes is not in the trace and counts as nothing; --post gives it.",
                );
            }
        };
        write!(f, "Handing an operation over takes {microseconds:.0} µs ({how}).")
    }
}

impl From<Handing> for &'static str {
    fn from(handing: Handing) -> &'static str {
        match handing {
            Handing::Given(_) => "given",
            Handing::Recorded(_) => "recorded",
            Handing::Unknown => "unknown",
        }
    }
}
