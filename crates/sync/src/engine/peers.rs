//! The account with each peer: eager bytes granted and owed, and sends that wait for them. A worker talks
//! to few peers, so an account is opened when it is first needed.

use super::outgoing::Blocked;
use paceline_job::Rank;
use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct Peer {
    rank: Rank,
    /// Eager bytes we may still send to it.
    pub grant_bytes: u64,
    /// Eager bytes of its that we hold or that are on the way, as we granted them.
    pub held_bytes: u64,
    /// Eager bytes it may have back and was not told yet.
    pub owed_bytes: u64,
    /// Tensors it asked about that are not posted here.
    pub asked: u32,
    /// Sends that wait for a grant or a notice, in order.
    pub blocked: VecDeque<Blocked>,
}

/// See the file's first paragraph. At most one account per rank of the view, sorted by rank.
#[derive(Debug)]
pub(super) struct Peers {
    known: Vec<Peer>,
    size: usize,
    eager_bytes: u64,
}

impl Peers {
    pub(super) fn new(size: usize, eager_bytes: u64) -> Peers {
        Peers { known: Vec::new(), size, eager_bytes }
    }

    /// The most eager bytes in any account.
    pub(super) fn eager_bytes(&self) -> u64 {
        self.eager_bytes
    }

    /// The account with a peer.
    pub(super) fn of(&mut self, rank: Rank) -> &mut Peer {
        assert!(rank.index() < self.size, "drivers tell of workers of the view only");
        let place = match self.known.binary_search_by_key(&rank, |peer| peer.rank) {
            Ok(place) => place,
            Err(place) => {
                let peer = Peer {
                    rank,
                    grant_bytes: self.eager_bytes,
                    held_bytes: 0,
                    owed_bytes: 0,
                    asked: 0,
                    blocked: VecDeque::new(),
                };
                self.known.insert(place, peer);
                place
            }
        };
        &mut self.known[place]
    }

    /// Sends to a peer that wait.
    pub(super) fn blocked(&self, rank: Rank) -> impl Iterator<Item = &Blocked> {
        let known = self.known.iter().filter(move |peer| peer.rank == rank);
        known.flat_map(|peer| &peer.blocked)
    }

    /// All accounts.
    pub(super) fn known_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.known.iter_mut()
    }
}
