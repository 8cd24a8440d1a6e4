//! The samples of one step, and who works on which: stretches of places in the epoch's order, cut among the workers. It
//! knows what was dealt, not what becomes of it.

use super::order::Order;
use std::ops::Range;

/// What the workers of a view work on in one step.
#[derive(Clone, Debug)]
pub struct Deal {
    epoch: u64,
    order: Order,
    /// In the order in which they are dealt; of any two, neither touches the other.
    places: Vec<Range<u64>>,
    /// How many samples the workers up to and including each one have.
    bounds: Vec<u64>,
}

impl Deal {
    /// Cut these places in proportion to the batches. Each has its batch if there is enough for all.
    pub(super) fn new(epoch: u64, order: Order, places: Vec<Range<u64>>, batches: &[u64]) -> Deal {
        let dealt = u128::from(length(&places));
        let total: u128 = batches.iter().copied().map(u128::from).sum();
        let mut before = 0;
        let bounds = batches.iter().map(|batch| {
            before += u128::from(*batch);
            // At most `dealt`, which was a u64.
            (dealt * before / total) as u64
        });
        Deal { epoch, order, places, bounds: bounds.collect() }
    }

    /// Of which epoch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// How many workers it was dealt to.
    pub fn workers(&self) -> usize {
        self.bounds.len()
    }

    /// How many samples all have together.
    pub fn samples(&self) -> u64 {
        self.bounds.last().copied().unwrap_or(0)
    }

    /// How many samples one worker has; none where there is no such worker.
    pub fn share(&self, worker: usize) -> u64 {
        let bounds = self.bounds_of(worker);
        bounds.end - bounds.start
    }

    /// By what a worker's average over its share is multiplied so that the plain average over all workers is that over all
    /// samples of the step: 1 where all have as many.
    pub fn weight(&self, worker: usize) -> f64 {
        (self.share(worker) as f64 * self.workers() as f64) / self.samples().max(1) as f64
    }

    /// The samples of one worker, in its order.
    pub fn of(&self, worker: usize) -> impl Iterator<Item = u64> {
        let order = self.order;
        self.places_of(worker).into_iter().flatten().map(move |place| order.sample(place))
    }

    /// Where the samples of one worker are in the epoch's order.
    pub(super) fn places_of(&self, worker: usize) -> Vec<Range<u64>> {
        let wanted = self.bounds_of(worker);
        let mut begin = 0;
        let mut found = Vec::new();
        for places in &self.places {
            let end = begin + (places.end - places.start);
            let (from, to) = (wanted.start.max(begin), wanted.end.min(end));
            if from < to {
                found.push(places.start + (from - begin)..places.start + (to - begin));
            }
            begin = end;
        }
        found
    }

    fn bounds_of(&self, worker: usize) -> Range<u64> {
        let Some(end) = self.bounds.get(worker) else { return 0..0 };
        let start = worker.checked_sub(1).map_or(0, |before| self.bounds[before]);
        start..*end
    }
}

/// How many places these are.
pub(super) fn length(places: &[Range<u64>]) -> u64 {
    places.iter().map(|range| range.end - range.start).sum()
}
