//! Which worker trains on which samples, so that an epoch has every sample once whatever happens to the workers. A pure
//! function of seed, position and view: workers that agree on those need not ask each other. It holds no data and knows
//! neither files nor time.
//!
//! An epoch is a permutation of the samples ([`Order`]). A [`Position`] says which places of it are dealt: all before one
//! place, but for a few that came back because the worker that had them was lost before its step counted. A step's [`Deal`]
//! takes what came back first, and then what follows.

mod deal;
mod order;

pub use deal::Deal;
pub use order::{Order, Shuffle};

use serde::{Deserialize, Serialize};
use std::ops::Range;

/// How far an epoch is: small however many samples there are, and the same on all workers between two steps.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Position {
    /// Counted from 0.
    pub epoch: u64,
    /// Places of the epoch's order before this one were dealt.
    pub dealt: u64,
    /// Of those, the ones that came back: in order, apart from each other.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub returned: Vec<Range<u64>>,
}

/// Samples that cannot be dealt like this.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SamplerError {
    /// It is of another data set, or damaged: begin the epoch anew, or give the data set that it belongs to.
    #[error(
        "the position {position:?} is none of a data set of {samples} samples; was it saved with another one?"
    )]
    Position {
        /// What was given.
        position: Position,
        /// How many samples there are.
        samples: u64,
    },
    /// Give every worker at least one sample a step.
    #[error(
        "nobody would get a sample: a step needs workers, and each of them a batch of at least 1"
    )]
    NoBatch,
    /// Samples come back before the next epoch begins: restore the position from before the step instead.
    #[error("samples of epoch {of} cannot come back in epoch {now}")]
    Late {
        /// Where they belong.
        of: u64,
        /// Where the sampler is.
        now: u64,
    },
}

/// Deals the samples of a data set, epoch by epoch.
#[derive(Clone, Debug)]
pub struct Sampler {
    samples: u64,
    shuffle: Shuffle,
    position: Position,
}

impl Sampler {
    /// At the beginning of the first epoch.
    pub fn new(samples: u64, shuffle: Shuffle) -> Sampler {
        Sampler { samples, shuffle, position: Position::default() }
    }

    /// How far it is.
    pub fn position(&self) -> &Position {
        &self.position
    }

    /// Go on from a position, which somebody else may have written.
    pub fn restore(&mut self, position: Position) -> Result<(), SamplerError> {
        let apart = |pair: &[Range<u64>]| pair[0].end < pair[1].start;
        let sound = position.dealt <= self.samples
            && position.returned.iter().all(|range| range.start < range.end)
            && position.returned.windows(2).all(apart)
            && position.returned.last().is_none_or(|last| last.end <= position.dealt);
        if !sound {
            return Err(SamplerError::Position { position, samples: self.samples });
        }
        self.position = position;
        Ok(())
    }

    /// How many samples of this epoch are not dealt, or came back.
    pub fn left(&self) -> u64 {
        self.samples - self.position.dealt + deal::length(&self.position.returned)
    }

    /// How many steps the rest of this epoch takes, if nothing changes.
    pub fn steps(&self, batches: &[u64]) -> u64 {
        let (left, step) = (self.left(), batches.iter().sum::<u64>());
        if step == 0 {
            return 0;
        }
        let (whole, rest) = (left / step, left % step);
        whole + u64::from(rest > 0 && !(whole > 0 && rest < batches.len() as u64))
    }

    /// The samples of the next step, for workers with these batches; `None` if the epoch is over.
    ///
    /// The last step of an epoch has what is left, in proportion. Where that would be less than one for each worker, the step
    /// before has it too, so that nobody goes without; only if fewer samples than workers come back at the very end do some
    /// get none.
    pub fn deal(&mut self, batches: &[u64]) -> Result<Option<Deal>, SamplerError> {
        if batches.is_empty() || batches.contains(&0) {
            return Err(SamplerError::NoBatch);
        }
        let left = self.left();
        if left == 0 {
            return Ok(None);
        }
        let step = batches.iter().copied().fold(0, u64::saturating_add);
        let rest = left.saturating_sub(step);
        let taken = if rest < batches.len() as u64 { left } else { step };
        let order = Order::new(self.samples, self.shuffle, self.position.epoch);
        let places = self.take(taken);
        Ok(Some(Deal::new(self.position.epoch, order, places, batches)))
    }

    /// These workers were lost, and their part of a step does not count: others will get their samples.
    pub fn give_back(&mut self, deal: &Deal, lost: &[usize]) -> Result<(), SamplerError> {
        if deal.epoch() != self.position.epoch {
            return Err(SamplerError::Late { of: deal.epoch(), now: self.position.epoch });
        }
        let returned = &mut self.position.returned;
        returned.extend(lost.iter().flat_map(|worker| deal.places_of(*worker)));
        returned.sort_unstable_by_key(|range| range.start);
        // Neighbours become one, so that there are never more ranges than losses left them apart.
        let mut apart: Vec<Range<u64>> = Vec::with_capacity(returned.len());
        for range in returned.drain(..) {
            match apart.last_mut() {
                Some(last) if last.end >= range.start => last.end = last.end.max(range.end),
                _ => apart.push(range),
            }
        }
        *returned = apart;
        Ok(())
    }

    /// Begin the next epoch, whatever is left of this one.
    pub fn next_epoch(&mut self) {
        self.position = Position { epoch: self.position.epoch + 1, ..Position::default() };
    }

    /// What one of `size` workers trains on in the rest of this epoch, step by step, if nothing changes.
    pub fn batches(self, size: usize, worker: usize, batch: u64) -> Batches {
        Batches { sampler: self, batches: vec![batch; size], worker }
    }

    /// What came back first, then what follows.
    fn take(&mut self, mut wanted: u64) -> Vec<Range<u64>> {
        let mut places = Vec::new();
        while let Some(first) = self.position.returned.first_mut().filter(|_| wanted > 0) {
            let taken = wanted.min(first.end - first.start);
            places.push(first.start..first.start + taken);
            first.start += taken;
            wanted -= taken;
            if first.start == first.end {
                self.position.returned.remove(0);
            }
        }
        if wanted > 0 {
            places.push(self.position.dealt..self.position.dealt + wanted);
            self.position.dealt += wanted;
        }
        places
    }
}

/// One worker's batches of an epoch; see [`Sampler::batches`].
#[derive(Clone, Debug)]
pub struct Batches {
    sampler: Sampler,
    batches: Vec<u64>,
    worker: usize,
}

impl Batches {
    /// Where it is: the batches that were taken count as dealt, on all workers.
    pub fn into_sampler(self) -> Sampler {
        self.sampler
    }
}

impl Iterator for Batches {
    type Item = Vec<u64>;

    fn next(&mut self) -> Option<Vec<u64>> {
        // Batches of nothing end it at once.
        let deal = self.sampler.deal(&self.batches).ok()??;
        Some(deal.of(self.worker).collect())
    }
}

#[cfg(test)]
mod tests;
