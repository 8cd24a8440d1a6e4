//! A growing list with stable, reusable places. A key remembers the generation of its place, so that
//! a late event about something that is gone finds nothing instead of its successor.

/// Names a place and the tenant it had.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize,
)]
pub struct Key {
    index: u32,
    generation: u32,
}

impl Key {
    /// As a number, for those who write it down.
    pub fn bits(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    /// Its place, which another tenant may have later.
    pub(crate) fn index(self) -> usize {
        self.index as usize
    }
}

/// A free place names the next free one: finding it costs no visit to another list.
#[derive(Debug)]
enum State<T> {
    Taken(T),
    Free { next: u32 },
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    state: State<T>,
}

/// Where the list of free places ends. No list of tenants grows that long.
const NONE: u32 = u32::MAX;

/// See the file's first paragraph. It holds as many places as were ever used at once.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    first_free: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), first_free: NONE }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, tenant: T) -> Key {
        let index = self.first_free;
        match self.places.get_mut(index as usize) {
            Some(Place { generation, state: state @ State::Free { .. } }) => {
                if let State::Free { next } = std::mem::replace(state, State::Taken(tenant)) {
                    self.first_free = next;
                }
                Key { index, generation: *generation }
            }
            _ => {
                let index = self.places.len() as u32;
                self.places.push(Place { generation: 0, state: State::Taken(tenant) });
                Key { index, generation: 0 }
            }
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        match self.places.get_mut(key.index as usize)? {
            Place { generation, state: State::Taken(tenant) } if *generation == key.generation => {
                Some(tenant)
            }
            _ => None,
        }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        match self.places.get(key.index as usize)? {
            Place { generation, state: State::Taken(tenant) } if *generation == key.generation => {
                Some(tenant)
            }
            _ => None,
        }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        self.get(key)?;
        let place = &mut self.places[key.index as usize];
        place.generation = place.generation.wrapping_add(1);
        let free = State::Free { next: std::mem::replace(&mut self.first_free, key.index) };
        match std::mem::replace(&mut place.state, free) {
            State::Taken(tenant) => Some(tenant),
            State::Free { .. } => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation };
            match &place.state {
                State::Taken(tenant) => Some((key, tenant)),
                State::Free { .. } => None,
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_key_does_not_reach_the_next_tenant() {
        let mut slab = Slab::default();
        let old = slab.insert('a');
        assert_eq!(slab.remove(old), Some('a'));
        let new = slab.insert('b');
        assert_eq!(slab.get(old), None);
        assert_eq!(slab.get_mut(new), Some(&mut 'b'));
        assert_eq!((slab.remove(old), slab.iter().count()), (None, 1));
    }

    #[test]
    fn free_places_are_used_again_before_new_ones_are_made() {
        let mut slab = Slab::default();
        let keys: Vec<Key> = (0..4).map(|number| slab.insert(number)).collect();
        for key in &keys[1..3] {
            slab.remove(*key);
        }
        let again: Vec<Key> = (4..7).map(|number| slab.insert(number)).collect();
        assert_eq!(slab.places.len(), 5);
        assert!(again.iter().all(|key| !keys.contains(key)));
        let mut tenants: Vec<i32> = slab.iter().map(|(_, tenant)| *tenant).collect();
        tenants.sort();
        assert_eq!(tenants, [0, 3, 4, 5, 6]);
    }
}
