//! Who shares a host with whom: the order in which strategies line members up.
//!
//! Members of one host stand next to each other in this order, so that a ring crosses each wire
//! once per direction however the job was launched. It knows nothing of programs.

use crate::program::Member;
use std::sync::{Arc, Mutex, PoisonError};

/// Members grouped by host: hosts in order of first appearance, members of a host in their own
/// order.
#[derive(Debug, PartialEq, Eq)]
pub struct Layout {
    order: Vec<Member>,
    places: Vec<Place>,
    /// Position of each host's first member, and the number of members at the end.
    starts: Vec<u32>,
    smallest: u32,
    largest: u32,
}

/// Where a member sits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Index of its host.
    pub host: u32,
    /// Its index among the members of that host.
    pub index: u32,
}

impl Layout {
    /// Group members by the number of their host.
    pub fn new(hosts: &[u32]) -> Layout {
        let mut numbers: Vec<u32> = Vec::new();
        let mut sizes: Vec<u32> = Vec::new();
        let mut places: Vec<Place> = Vec::with_capacity(hosts.len());
        for number in hosts {
            // Neighbours usually share a host, so the last one is tried first.
            let last = places.last().map(|place| place.host as usize);
            let host = match last.filter(|host| numbers[*host] == *number) {
                Some(host) => host,
                None => numbers.iter().position(|known| known == number).unwrap_or_else(|| {
                    numbers.push(*number);
                    sizes.push(0);
                    numbers.len() - 1
                }),
            };
            places.push(Place { host: host as u32, index: sizes[host] });
            sizes[host] += 1;
        }
        let mut starts = vec![0];
        for size in &sizes {
            starts.push(starts[starts.len() - 1] + size);
        }
        let mut order = vec![0; hosts.len()];
        for (member, place) in places.iter().enumerate() {
            order[(starts[place.host as usize] + place.index) as usize] = member as Member;
        }
        let smallest = sizes.iter().copied().min().unwrap_or(0);
        let largest = sizes.iter().copied().max().unwrap_or(0);
        Layout { order, places, starts, smallest, largest }
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.order.len() as u32
    }

    /// Number of hosts.
    pub fn hosts(&self) -> u32 {
        self.starts.len() as u32 - 1
    }

    /// Members on the host that has fewest.
    pub fn smallest_host(&self) -> u32 {
        self.smallest
    }

    /// Members on the host that has most.
    pub fn largest_host(&self) -> u32 {
        self.largest
    }

    /// Members on a host.
    pub fn host_size(&self, host: u32) -> u32 {
        self.starts[host as usize + 1] - self.starts[host as usize]
    }

    /// The member with this index on a host.
    pub fn member(&self, host: u32, index: u32) -> Member {
        self.order[(self.starts[host as usize] + index) as usize]
    }

    /// Where a member sits.
    pub fn place(&self, member: Member) -> Place {
        self.places[member as usize]
    }

    /// A member's position in the line.
    pub fn position(&self, member: Member) -> u32 {
        let place = self.place(member);
        self.starts[place.host as usize] + place.index
    }

    /// The member at a position of the line.
    pub fn at(&self, position: u32) -> Member {
        self.order[position as usize]
    }
}

/// What followed from the hosts of the last few groups asked for: it is derived once per group, not once per chunk.
///
/// What is remembered follows from the key alone, so strategies stay pure functions.
#[derive(Debug)]
pub(crate) struct Derived<T> {
    known: Mutex<Vec<Known<T>>>,
}

/// The hosts of a group, and what follows from them.
type Known<T> = (Arc<[u32]>, Arc<T>);

/// Groups' layouts.
#[derive(Debug, Default)]
pub(crate) struct Layouts(Derived<Layout>);

impl Layouts {
    /// The layout of a group, derived now if it is not remembered.
    pub(crate) fn of(&self, hosts: &Arc<[u32]>) -> Arc<Layout> {
        self.0.of(hosts, Layout::new)
    }
}

impl<T> Default for Derived<T> {
    fn default() -> Derived<T> {
        Derived { known: Mutex::default() }
    }
}

impl<T> Derived<T> {
    /// How many groups are remembered; the oldest is forgotten first.
    const BOUND: usize = 8;

    /// What follows from these hosts, derived now if it is not remembered.
    pub(crate) fn of(&self, hosts: &Arc<[u32]>, derive: impl FnOnce(&[u32]) -> T) -> Arc<T> {
        // A poisoned lock is harmless: an entry is pushed whole or not at all.
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let found = known.iter().rfind(|(key, _)| Arc::ptr_eq(key, hosts) || key == hosts);
        if let Some((_, value)) = found {
            return Arc::clone(value);
        }
        let value = Arc::new(derive(hosts));
        if known.len() == Self::BOUND {
            known.remove(0);
        }
        known.push((Arc::clone(hosts), Arc::clone(&value)));
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_of_a_host_stand_together() {
        let layout = Layout::new(&[4, 1, 4, 4, 1]);
        assert_eq!(layout.order, [0, 2, 3, 1, 4]);
        assert_eq!((layout.hosts(), layout.smallest_host(), layout.largest_host()), (2, 2, 3));
        for member in 0..5 {
            let place = layout.place(member);
            assert_eq!(layout.member(place.host, place.index), member);
            assert_eq!(layout.at(layout.position(member)), member);
        }
    }

    #[test]
    fn a_group_is_laid_out_once_and_memory_is_bounded() {
        let layouts = Layouts::default();
        let hosts: Arc<[u32]> = vec![0, 1, 0].into();
        let first = layouts.of(&hosts);
        let same_numbers: Arc<[u32]> = vec![0, 1, 0].into();
        assert!(Arc::ptr_eq(&first, &layouts.of(&same_numbers)));
        for size in 0..100 {
            layouts.of(&vec![0; size].into());
        }
        assert_eq!(layouts.0.known.lock().unwrap().len(), Derived::<Layout>::BOUND);
    }
}
