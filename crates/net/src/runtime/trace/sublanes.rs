//! Places for things that overlap: viewers draw what one lane does as nested, so what overlaps goes side by side,
//! as close to the first place as there is room.

/// The places of one lane that are taken.
#[derive(Debug, Default)]
pub(crate) struct Sublanes {
    taken: Vec<bool>,
}

impl Sublanes {
    /// The first free place.
    pub(crate) fn take(&mut self) -> u32 {
        let place = self.taken.iter().position(|taken| !taken).unwrap_or(self.taken.len());
        if place == self.taken.len() {
            self.taken.push(false);
        }
        self.taken[place] = true;
        place as u32
    }

    pub(crate) fn give_back(&mut self, place: u32) {
        self.taken[place as usize] = false;
    }
}
