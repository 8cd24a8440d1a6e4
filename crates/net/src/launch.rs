//! The environment that `paceline run` gives each worker: torchrun's variables, so that programs
//! written for it run unchanged, and where the coordinator is. A pure function; it starts nothing.

use crate::secret::Secret;
use paceline_job::Rank;
use std::net::SocketAddr;

/// One worker among those that `paceline run` starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPlace {
    /// Among all workers of the job.
    pub rank: Rank,
    /// How many workers the job has.
    pub size: usize,
    /// Among the workers of this host.
    pub local_rank: usize,
    /// How many workers run on this host.
    pub local_size: usize,
}

/// Where a worker finds the others.
#[derive(Clone, Copy, Debug)]
pub struct MeetingPoint<'a> {
    /// Where the program's own rendezvous is (PyTorch's store): a host of rank 0's and a free port.
    pub master: SocketAddr,
    /// Our coordinator.
    pub coordinator: SocketAddr,
    /// The job's secret. It goes through the environment, which only the same user can read.
    pub secret: &'a Secret,
}

/// The variables to set for one worker, besides those it inherits.
pub fn worker_environment(place: WorkerPlace, meeting: MeetingPoint<'_>) -> Vec<(String, String)> {
    [
        ("RANK", place.rank.to_string()),
        ("WORLD_SIZE", place.size.to_string()),
        ("LOCAL_RANK", place.local_rank.to_string()),
        ("LOCAL_WORLD_SIZE", place.local_size.to_string()),
        ("MASTER_ADDR", meeting.master.ip().to_string()),
        ("MASTER_PORT", meeting.master.port().to_string()),
        ("PACELINE_COORDINATOR", meeting.coordinator.to_string()),
        ("PACELINE_SECRET", meeting.secret.to_hex()),
    ]
    .map(|(name, value)| (name.to_string(), value))
    .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::JoinConfig;
    use std::collections::HashMap;

    #[test]
    fn a_worker_reads_back_what_it_was_given() {
        let secret = Secret::random().unwrap();
        let place = WorkerPlace { rank: Rank(2), size: 4, local_rank: 0, local_size: 2 };
        let meeting = MeetingPoint {
            master: "127.0.0.1:29500".parse().unwrap(),
            coordinator: "127.0.0.1:4000".parse().unwrap(),
            secret: &secret,
        };
        let variables: HashMap<String, String> =
            worker_environment(place, meeting).into_iter().collect();
        let config = JoinConfig::from_variables(&|name| variables.get(name).cloned()).unwrap();
        assert_eq!((config.rank, config.size), (Some(Rank(2)), Some(4)));
        assert_eq!(config.coordinator, "127.0.0.1:4000");
        assert!(config.secret == secret && config.hosting.is_none());
        assert_eq!(variables["LOCAL_RANK"], "0");
        assert_eq!(variables["MASTER_PORT"], "29500");
    }
}
