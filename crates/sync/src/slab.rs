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

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    tenant: Option<T>,
}

/// See the file's first paragraph. It holds as many places as were ever used at once.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { places: Vec::new(), free: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub(crate) fn insert(&mut self, tenant: T) -> Key {
        match self.free.pop() {
            Some(index) => {
                let place = &mut self.places[index as usize];
                place.tenant = Some(tenant);
                Key { index, generation: place.generation }
            }
            None => {
                let index = self.places.len() as u32;
                self.places.push(Place { generation: 0, tenant: Some(tenant) });
                Key { index, generation: 0 }
            }
        }
    }

    pub(crate) fn get_mut(&mut self, key: Key) -> Option<&mut T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation == key.generation { place.tenant.as_mut() } else { None }
    }

    pub(crate) fn get(&self, key: Key) -> Option<&T> {
        let place = self.places.get(key.index as usize)?;
        if place.generation == key.generation { place.tenant.as_ref() } else { None }
    }

    pub(crate) fn remove(&mut self, key: Key) -> Option<T> {
        let place = self.places.get_mut(key.index as usize)?;
        if place.generation != key.generation {
            return None;
        }
        let tenant = place.tenant.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(key.index);
        Some(tenant)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Key, &T)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let key = Key { index: index as u32, generation: place.generation };
            place.tenant.as_ref().map(|tenant| (key, tenant))
        })
    }

    #[cfg(test)]
    fn len(&self) -> usize {
        self.places.len() - self.free.len()
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
        assert_eq!((slab.remove(old), slab.len()), (None, 1));
    }
}
