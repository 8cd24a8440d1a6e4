//! Collecting what is wrong with a file while it is read: the same finding is counted, not repeated. It knows no format.

use super::Problem;
use std::{borrow::Cow, collections::HashMap};

/// Different findings kept for one place. A file that is wrong in more ways is wrong as a whole.
const MOST_FINDINGS: usize = 64;

/// Findings about one place, in the order in which they were first made.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    place: String,
    found: Vec<Problem>,
    index: HashMap<String, usize>,
}

impl Problems {
    /// Of a file or a worker.
    pub fn at(place: impl Into<String>) -> Problems {
        Problems { place: place.into(), ..Problems::default() }
    }

    /// Something was found once more. The text is a sentence without its full stop.
    pub fn add<'a>(&mut self, text: impl Into<Cow<'a, str>>) {
        self.add_times(text, 1);
    }

    /// Something was found so many times; nothing is noted for none.
    pub fn add_times<'a>(&mut self, text: impl Into<Cow<'a, str>>, times: u64) {
        if times == 0 {
            return;
        }
        let text = text.into();
        let index = match self.index.get(text.as_ref()) {
            Some(index) => *index,
            None if self.found.len() < MOST_FINDINGS => {
                let text = text.into_owned();
                self.index.insert(text.clone(), self.found.len());
                self.found.push(Problem { place: self.place.clone(), text, times: 0 });
                self.found.len() - 1
            }
            None => {
                // The last place counts what does not fit.
                self.found[MOST_FINDINGS - 1].text = "more findings than are listed".into();
                MOST_FINDINGS - 1
            }
        };
        self.found[index].times += times;
    }

    /// What somebody else found at the same place.
    pub fn add_all(&mut self, found: Vec<Problem>) {
        for Problem { text, times, .. } in found {
            self.add_times(text, times);
        }
    }

    /// What was found.
    pub fn into_list(self) -> Vec<Problem> {
        self.found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_finding_is_counted_and_their_number_is_bounded() {
        let mut problems = Problems::at("here");
        for number in 0..1000 {
            problems.add("again");
            problems.add(format!("finding {number}"));
        }
        problems.add_times("never", 0);
        let list = problems.into_list();
        assert_eq!(list.len(), MOST_FINDINGS);
        assert_eq!(list[0].times, 1000);
        assert_eq!(list.iter().map(|problem| problem.times).sum::<u64>(), 2000);
        assert!(list.iter().all(|problem| problem.text != "never"));
    }
}
