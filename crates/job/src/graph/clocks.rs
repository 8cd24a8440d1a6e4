//! Clocks of different hosts on one axis.

use crate::{Rank, trace::Stamp};

/// What is added to a worker's clock to get the common one.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Clocks {
    /// Nanoseconds, by rank; none for ranks beyond.
    pub offsets: Vec<i64>,
}

impl Clocks {
    /// All clocks agree.
    pub fn agreeing() -> Clocks {
        Clocks::default()
    }

    /// A worker's stamp on the common axis.
    pub fn common(&self, rank: Rank, stamp: Stamp) -> Stamp {
        let offset = self.offsets.get(rank.index()).copied().unwrap_or(0);
        Stamp(stamp.0.saturating_add(offset))
    }
}
