//! The words for collectives: in traces, at the border to Python, wherever one is named. What each does with its elements
//! is `paceline-sync`'s.

use std::{fmt, str::FromStr};

/// What a group does with a tensor, without the lengths. The discriminant is its place in [`CollectiveKind::ALL`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum CollectiveKind {
    /// Everybody gets the sum of all.
    AllReduce = 0,
    /// Everybody gets a part of the sum of all.
    ReduceScatter = 1,
    /// Everybody gets the parts of all.
    AllGather = 2,
    /// Everybody gets what one has.
    Broadcast = 3,
    /// One gets the sum of all.
    Reduce = 4,
    /// One gets the parts of all.
    Gather = 5,
    /// Everybody gets a part of what one has.
    Scatter = 6,
    /// Everybody gets a part of what each has.
    AllToAll = 7,
    /// One gives another something.
    Send = 8,
    /// The other end of it.
    Recv = 9,
    /// Nobody goes on before all are there.
    Barrier = 10,
}

impl CollectiveKind {
    /// Every kind, in the order of their numbers.
    pub const ALL: [CollectiveKind; 11] = [
        CollectiveKind::AllReduce,
        CollectiveKind::ReduceScatter,
        CollectiveKind::AllGather,
        CollectiveKind::Broadcast,
        CollectiveKind::Reduce,
        CollectiveKind::Gather,
        CollectiveKind::Scatter,
        CollectiveKind::AllToAll,
        CollectiveKind::Send,
        CollectiveKind::Recv,
        CollectiveKind::Barrier,
    ];

    /// Its word.
    pub const fn word(self) -> &'static str {
        match self {
            CollectiveKind::AllReduce => "all_reduce",
            CollectiveKind::ReduceScatter => "reduce_scatter",
            CollectiveKind::AllGather => "all_gather",
            CollectiveKind::Broadcast => "broadcast",
            CollectiveKind::Reduce => "reduce",
            CollectiveKind::Gather => "gather",
            CollectiveKind::Scatter => "scatter",
            CollectiveKind::AllToAll => "all_to_all",
            CollectiveKind::Send => "send",
            CollectiveKind::Recv => "recv",
            CollectiveKind::Barrier => "barrier",
        }
    }

    /// The kind with this number.
    pub fn from_number(number: u8) -> Option<CollectiveKind> {
        CollectiveKind::ALL.get(usize::from(number)).copied()
    }
}

impl fmt::Display for CollectiveKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.word())
    }
}

impl FromStr for CollectiveKind {
    type Err = String;

    fn from_str(word: &str) -> Result<CollectiveKind, String> {
        let known = CollectiveKind::ALL.into_iter().find(|kind| kind.word() == word);
        known.ok_or_else(|| format!("unknown collective `{word}`"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_found_by_its_word_and_by_its_number() {
        for (number, kind) in CollectiveKind::ALL.into_iter().enumerate() {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(
                (kind as usize, CollectiveKind::from_number(number as u8)),
                (number, Some(kind))
            );
        }
        assert_eq!(CollectiveKind::from_number(11), None);
        assert!("receive".parse::<CollectiveKind>().is_err());
    }
}
