//! Who has joined so far and which ranks they get: pure bookkeeping, without sockets or clocks.

use super::message::{Join, Refusal};
use paceline_job::{
    Batch, Fusion, Measured, Membership, Rank, Settings, View, ViewVersion, Worker, WorkerId,
};
use std::time::Duration;

/// A worker that was let in; never given twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Ticket(u64);

/// The workers of a job that is still gathering: at most `size`.
#[derive(Debug)]
pub(super) struct Roster {
    size: usize,
    next_ticket: u64,
    /// In the order they came.
    seats: Vec<(Ticket, Join)>,
}

impl Roster {
    pub(super) fn new(size: usize) -> Roster {
        Roster { size, next_ticket: 0, seats: Vec::with_capacity(size) }
    }

    pub(super) fn joined(&self) -> usize {
        self.seats.len()
    }

    pub(super) fn is_complete(&self) -> bool {
        self.seats.len() == self.size
    }

    /// Let a worker in, or say why not.
    pub(super) fn admit(&mut self, join: Join) -> Result<Ticket, Refusal> {
        if let Some(worker) = join.size
            && worker != self.size
        {
            return Err(Refusal::SizeDiffers { worker, job: self.size });
        }
        if let Some(rank) = join.rank {
            if rank.index() >= self.size {
                return Err(Refusal::RankOutOfRange { rank, size: self.size });
            }
            if let Some((_, holder)) = self.seats.iter().find(|(_, seat)| seat.rank == Some(rank)) {
                let holder = format!("the worker at {} on {}", holder.address, holder.host);
                return Err(Refusal::DuplicateRank { rank, holder });
            }
        }
        if self.is_complete() {
            return Err(Refusal::JobFull { size: self.size });
        }
        let ticket = Ticket(self.next_ticket);
        self.next_ticket += 1;
        self.seats.push((ticket, join));
        Ok(ticket)
    }

    /// A worker left before the view was out: its place is free again.
    pub(super) fn withdraw(&mut self, ticket: Ticket) {
        self.seats.retain(|(seat, _)| *seat != ticket);
    }

    /// What to tell those who came, when the others did not.
    pub(super) fn timeout(&self, waited: Duration) -> Refusal {
        let unclaimed = self.unclaimed();
        // Workers without a wish could take any of these, so it is not known who is missing.
        let known = unclaimed.len() == self.size - self.joined();
        Refusal::JoinTimeout {
            joined: self.joined(),
            size: self.size,
            waited,
            missing: if known { unclaimed } else { Vec::new() },
        }
    }

    /// The first view, and who has which rank in it. Wishes are kept; the other ranks go to the
    /// other workers host by host, so that neighbours in rank share a host.
    ///
    /// # Panics
    /// If the roster is not complete.
    pub(super) fn first_view(&self, settings: Settings, fusion: Fusion) -> (View, Vec<Ticket>) {
        assert!(self.is_complete(), "a view needs all of its workers");
        let mut hosts: Vec<&str> = Vec::new();
        for (_, join) in &self.seats {
            if !hosts.contains(&join.host.as_str()) {
                hosts.push(&join.host);
            }
        }
        let mut undecided: Vec<&(Ticket, Join)> =
            self.seats.iter().filter(|(_, join)| join.rank.is_none()).collect();
        // Stable: within a host they stay in the order they came.
        undecided.sort_by_key(|(_, join)| hosts.iter().position(|host| *host == join.host));
        let given = self.unclaimed().into_iter().zip(undecided);
        let wished = self.seats.iter().filter_map(|seat| Some((seat.1.rank?, seat)));
        let mut ranked: Vec<(Rank, &(Ticket, Join))> = given.chain(wished).collect();
        ranked.sort_by_key(|(rank, _)| *rank);

        let workers = ranked.iter().map(|(rank, (_, join))| Worker {
            id: WorkerId(u64::from(rank.0)),
            host: join.host.clone(),
            address: join.address.to_string(),
        });
        let view = View {
            version: ViewVersion(1),
            workers: workers.collect(),
            settings,
            measured: Measured::default(),
            survey: None,
            fusion,
            batch: Batch::default(),
            membership: Membership::Fixed,
        };
        (view, ranked.iter().map(|(_, (ticket, _))| *ticket).collect())
    }

    fn unclaimed(&self) -> Vec<Rank> {
        let mut claimed = vec![false; self.size];
        for rank in self.seats.iter().filter_map(|(_, join)| join.rank) {
            claimed[rank.index()] = true;
        }
        (0..self.size).filter(|rank| !claimed[*rank]).map(|rank| Rank(rank as u32)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(rank: Option<u32>, host: &str) -> Join {
        Join {
            rank: rank.map(Rank),
            size: None,
            host: host.to_string(),
            address: "127.0.0.1:4000".parse().unwrap(),
            process: 1,
        }
    }

    #[test]
    fn wishes_are_kept_and_the_rest_is_given_host_by_host() {
        let mut roster = Roster::new(5);
        let tickets: Vec<Ticket> = [
            join(None, "b"),
            join(Some(1), "a"),
            join(None, "a"),
            join(None, "b"),
            join(Some(4), "c"),
        ]
        .map(|join| roster.admit(join).unwrap())
        .to_vec();
        let (view, order) = roster.first_view(Settings::default(), Fusion::default());
        let hosts: Vec<&str> = view.workers.iter().map(|worker| worker.host.as_str()).collect();
        assert_eq!(hosts, ["b", "a", "b", "a", "c"]);
        assert_eq!(order, [0, 1, 3, 2, 4].map(|index| tickets[index]));
    }

    #[test]
    fn each_bad_wish_is_refused_by_name_and_takes_no_place() {
        let mut roster = Roster::new(2);
        roster.admit(join(Some(1), "a")).unwrap();
        assert!(matches!(
            roster.admit(join(Some(1), "b")),
            Err(Refusal::DuplicateRank { rank: Rank(1), .. })
        ));
        assert_eq!(
            roster.admit(join(Some(2), "b")),
            Err(Refusal::RankOutOfRange { rank: Rank(2), size: 2 })
        );
        let other_size = Join { size: Some(3), ..join(None, "b") };
        assert_eq!(roster.admit(other_size), Err(Refusal::SizeDiffers { worker: 3, job: 2 }));
        roster.admit(join(Some(0), "b")).unwrap();
        assert!(roster.is_complete());
        assert_eq!(roster.admit(join(None, "c")), Err(Refusal::JobFull { size: 2 }));
    }

    #[test]
    fn a_place_that_was_left_is_free_again() {
        let mut roster = Roster::new(2);
        let ticket = roster.admit(join(Some(1), "a")).unwrap();
        roster.withdraw(ticket);
        assert_eq!(roster.joined(), 0);
        assert!(roster.admit(join(Some(1), "b")).unwrap() != ticket);
    }

    #[test]
    fn missing_ranks_are_listed_where_they_are_known() {
        let missing = |roster: &Roster| match roster.timeout(Duration::from_secs(1)) {
            Refusal::JoinTimeout { missing, .. } => missing,
            other => panic!("{other:?}"),
        };
        let mut roster = Roster::new(4);
        roster.admit(join(Some(0), "a")).unwrap();
        roster.admit(join(Some(2), "a")).unwrap();
        assert_eq!(missing(&roster), [Rank(1), Rank(3)]);
        roster.admit(join(None, "a")).unwrap();
        assert_eq!(missing(&roster), []);
    }
}
