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

/// Set for workers that come to a running job: which one they are, and of how many, the job will say.
pub(crate) const NEWCOMER: &str = "PACELINE_NEWCOMER";

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

/// The same for a worker that comes to a running job: until it takes part it is alone, whichever process of its host it is.
pub fn newcomer_environment(local_rank: usize, meeting: MeetingPoint<'_>) -> Vec<(String, String)> {
    let alone = WorkerPlace { rank: Rank(0), size: 1, local_rank, local_size: 1 };
    // Nobody else meets at its program's own rendezvous, so any port will do.
    let anywhere = SocketAddr::from(([127, 0, 0, 1], 0));
    let mut variables = worker_environment(alone, MeetingPoint { master: anywhere, ..meeting });
    variables.push((NEWCOMER.to_string(), "1".to_string()));
    variables
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

    #[test]
    fn a_newcomer_is_told_that_it_is_alone_and_joins_without_a_number() {
        let secret = Secret::random().unwrap();
        let meeting = MeetingPoint {
            master: "127.0.0.1:29500".parse().unwrap(),
            coordinator: "127.0.0.1:4000".parse().unwrap(),
            secret: &secret,
        };
        let variables: HashMap<String, String> =
            newcomer_environment(5, meeting).into_iter().collect();
        let config = JoinConfig::from_variables(&|name| variables.get(name).cloned()).unwrap();
        assert_eq!((config.rank, config.size), (None, None));
        assert!(config.hosting.is_none());
        let told = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"];
        assert_eq!(told.map(|name| variables[name].as_str()), ["0", "1", "5", "1", "0"]);
    }
}
