//! How fast an all-reduce can be on one machine, from rates measured on it: the formulas, and nothing
//! that measures. They count bytes that must move and leave latency out, so small sizes stay far above them.
//!
//! With *n* ranks and *B* bytes:
//!
//! - **tcp**: 2(n−1)·B / loopback + (n−1)·B / add. A ring, like every bandwidth-optimal algorithm, sends 2(n−1)·B in all
//!   and adds (n−1)·B; *loopback* keeps all cores busy already, so the additions come on top.
//! - **private**: 2n·B / memory. Each rank's contribution is read and each rank's result is written.
//! - **arena**: (n+1)·B / memory. Contributions and the one result lie where all ranks can read them.
//!
//! *memory* is twice the rate at which all cores together copy a footprint of n·B: a copied byte is read and written.

use serde::Serialize;

/// Through what the values pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Medium {
    /// Loopback TCP.
    Tcp,
    /// Memory, with each rank's values in its own.
    Private,
    /// Memory that all ranks share.
    Arena,
}

impl Medium {
    /// Its name in a table.
    pub fn name(self) -> &'static str {
        match self {
            Medium::Tcp => "tcp",
            Medium::Private => "private",
            Medium::Arena => "arena",
        }
    }
}

/// Bytes a second, all cores together.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Rates {
    /// One way through loopback.
    pub loopback: f64,
    /// Payload of `a += b` on f32 in cache.
    pub add: f64,
    /// Memory traffic (reads plus writes) for this size's footprint.
    pub memory: f64,
}

/// The least seconds that all-reducing `bytes` over `ranks` takes.
pub fn bound(medium: Medium, ranks: u32, bytes: u64, rates: &Rates) -> f64 {
    let (ranks, bytes) = (f64::from(ranks), bytes as f64);
    match medium {
        Medium::Tcp => {
            2.0 * (ranks - 1.0) * bytes / rates.loopback + (ranks - 1.0) * bytes / rates.add
        }
        Medium::Private => 2.0 * ranks * bytes / rates.memory,
        Medium::Arena => (ranks + 1.0) * bytes / rates.memory,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_ranks_over_tcp_move_six_times_the_bytes() {
        let rates = Rates { loopback: 8e9, add: 20e9, memory: 24e9 };
        let tcp = bound(Medium::Tcp, 4, 1_000_000_000, &rates);
        assert!((tcp - (6.0 / 8.0 + 3.0 / 20.0)).abs() < 1e-12);
        let arena = bound(Medium::Arena, 4, 1_000_000_000, &rates);
        assert!((arena - 5.0 / 24.0).abs() < 1e-12);
        assert!(arena < bound(Medium::Private, 4, 1_000_000_000, &rates));
    }

    #[test]
    fn a_single_rank_has_nothing_to_send() {
        let rates = Rates { loopback: 8e9, add: 20e9, memory: 24e9 };
        assert_eq!(bound(Medium::Tcp, 1, 1 << 20, &rates), 0.0);
    }
}
