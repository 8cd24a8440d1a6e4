//! What happens when: a heap of sixteen-byte entries that order themselves by time, then by the order
//! in which they were made. It knows nothing of what an entry stands for.

use paceline_job::Time;

/// Children of a node. Four keep a sift's comparisons within one cache line.
const ARITY: usize = 4;

/// An entry: when, and the number of what is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Due {
    pub at: Time,
    pub what: u32,
}

/// See the file's first paragraph. It is as long as the most entries that ever waited at once.
#[derive(Debug, Default)]
pub(crate) struct Timeline {
    /// Time, then sequence number, then what: one comparison decides, and no two entries are equal.
    entries: Vec<u128>,
    /// Wraps after four thousand million entries, where ties may change order, but never between two
    /// runs of the same script.
    made: u32,
}

impl Timeline {
    pub(crate) fn push(&mut self, at: Time, what: u32) {
        let entry = u128::from(at.0) << 64 | u128::from(self.made) << 32 | u128::from(what);
        self.made = self.made.wrapping_add(1);
        let mut hole = self.entries.len();
        self.entries.push(entry);
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if self.entries[parent] <= entry {
                break;
            }
            self.entries[hole] = self.entries[parent];
            hole = parent;
        }
        self.entries[hole] = entry;
    }

    pub(crate) fn next_at(&self) -> Option<Time> {
        self.entries.first().map(|entry| Time((entry >> 64) as u64))
    }

    pub(crate) fn pop(&mut self) -> Option<Due> {
        let first = *self.entries.first()?;
        // There is a first, so there is a last.
        let last = self.entries.pop().unwrap_or(first);
        let len = self.entries.len();
        if len > 0 {
            let mut hole = 0;
            loop {
                let child = hole * ARITY + 1;
                if child >= len {
                    break;
                }
                let siblings = &self.entries[child..(child + ARITY).min(len)];
                let (mut least, mut at) = (siblings[0], 0);
                for (index, sibling) in siblings.iter().enumerate().skip(1) {
                    if *sibling < least {
                        (least, at) = (*sibling, index);
                    }
                }
                if last <= least {
                    break;
                }
                self.entries[hole] = least;
                hole = child + at;
            }
            self.entries[hole] = last;
        }
        Some(Due { at: Time((first >> 64) as u64), what: first as u32 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_leave_by_time_and_then_in_the_order_they_came(
            times in proptest::collection::vec(0u64..20, 0..200),
        ) {
            let mut timeline = Timeline::default();
            for (what, at) in times.iter().enumerate() {
                timeline.push(Time(*at), what as u32);
            }
            let mut expected: Vec<(u64, u32)> =
                times.iter().enumerate().map(|(what, at)| (*at, what as u32)).collect();
            expected.sort();
            for (at, what) in expected {
                prop_assert_eq!(timeline.next_at(), Some(Time(at)));
                prop_assert_eq!(timeline.pop(), Some(Due { at: Time(at), what }));
            }
            prop_assert_eq!(timeline.pop(), None);
        }
    }
}
