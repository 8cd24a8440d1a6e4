//! In which order an epoch takes the samples: a permutation that is computed place by place from a seed, so that nobody
//! keeps a list of them. It knows nothing of workers or steps.

use paceline_job::Random;

/// Rounds of the network below. Four make a good permutation of a large set; two more cost nanoseconds.
const ROUNDS: usize = 6;

/// Half of the bits of the smallest set that is permuted: over a handful of values a Feistel network reaches few of the
/// permutations there are.
const LEAST_HALF: u32 = 4;

/// How an epoch orders its samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shuffle {
    /// As the data set has them, in every epoch.
    InOrder,
    /// Another order for each epoch, the same wherever the seed is.
    Seeded(u64),
}

/// The order of one epoch: which sample has which place.
#[derive(Clone, Copy, Debug)]
pub struct Order {
    samples: u64,
    /// Bits of half a value, and the rounds' keys; none where samples stay in order.
    network: Option<(u32, [u64; ROUNDS])>,
}

impl Order {
    /// Of so many samples, in this epoch.
    pub fn new(samples: u64, shuffle: Shuffle, epoch: u64) -> Order {
        let network = match shuffle {
            Shuffle::InOrder => None,
            Shuffle::Seeded(seed) => {
                let bits = u64::BITS - samples.saturating_sub(1).leading_zeros();
                let half = bits.div_ceil(2).max(LEAST_HALF);
                let mut state = mix(seed ^ mix(epoch));
                let keys = std::array::from_fn(|_| {
                    state = mix(state);
                    state
                });
                Some((half, keys))
            }
        };
        Order { samples, network }
    }

    /// The sample at a place; both are below the number of samples.
    pub fn sample(&self, place: u64) -> u64 {
        debug_assert!(place < self.samples);
        let Some((half, keys)) = &self.network else { return place };
        // The network permutes a power of two. Walking on until a value is below the number of samples permutes those;
        // the walk ends since it is on a cycle that `place` lies on too, and has at most 4 steps on average (16 where
        // there are few samples).
        let mut value = place;
        loop {
            value = permuted(value, *half, keys);
            if value < self.samples {
                return value;
            }
        }
    }
}

/// A Feistel network: a permutation of the values of twice `half` bits, whatever the rounds mix in.
fn permuted(value: u64, half: u32, keys: &[u64; ROUNDS]) -> u64 {
    // 32 bits at most, since a value has 64.
    let mask = (1 << half) - 1;
    let (mut left, mut right) = (value >> half, value & mask);
    for key in keys {
        (left, right) = (right, left ^ (mix(right ^ key) & mask));
    }
    left << half | right
}

/// Every bit of the result depends on every bit of the argument.
fn mix(value: u64) -> u64 {
    Random::new(value).bits()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(order: &Order) -> Vec<u64> {
        (0..order.samples).map(|place| order.sample(place)).collect()
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let order = |seed, epoch| all(&Order::new(1000, Shuffle::Seeded(seed), epoch));
        assert_eq!(order(1, 0), order(1, 0));
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!(all(&Order::new(4, Shuffle::InOrder, 3)), [0, 1, 2, 3]);
    }

    #[test]
    fn every_sample_is_as_likely_at_the_first_place() {
        let mut seen = [0_u32; 10];
        for epoch in 0..10_000 {
            seen[Order::new(10, Shuffle::Seeded(7), epoch).sample(0) as usize] += 1;
        }
        // Six standard deviations of 1000.
        assert!(seen.iter().all(|count| (820..1180).contains(count)), "{seen:?}");
    }

    #[test]
    fn neighbours_do_not_stay_together() {
        let order = all(&Order::new(10_000, Shuffle::Seeded(3), 0));
        let together = order.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) == 1).count();
        // Two are expected by chance.
        assert!(together < 20, "{together}");
    }

    proptest! {
        #[test]
        fn an_order_has_every_sample_once(samples in 0_u64..3000, seed: u64, epoch: u64) {
            let mut order = all(&Order::new(samples, Shuffle::Seeded(seed), epoch));
            order.sort_unstable();
            prop_assert!(order.into_iter().eq(0..samples));
        }

        #[test]
        fn orders_of_many_samples_stay_within_them(samples in 1_u64.., place: u64, seed: u64) {
            let order = Order::new(samples, Shuffle::Seeded(seed), 0);
            prop_assert!(order.sample(place % samples) < samples);
        }
    }
}
