//! Numbers that look random and follow from a seed, so that whatever was drawn can be drawn again: a run that failed, a search, what
//! was learned. It has no other source of numbers, and nothing secret may come from it.

/// What the state grows by with each number.
const STRIDE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Sebastiano Vigna's splitmix64: one word of state, and good enough for delays, orders and first guesses.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// A generator whose numbers are those of every other generator with this seed.
    #[inline]
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// The same, after so many numbers.
    #[inline]
    pub fn after(seed: u64, numbers: u64) -> Random {
        Random(seed.wrapping_add(numbers.wrapping_mul(STRIDE)))
    }

    /// Any 64 bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STRIDE);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    /// At least 0, below 1.
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Between two numbers, all of them as likely.
    pub fn between(&mut self, lower: f64, upper: f64) -> f64 {
        lower + (upper - lower) * self.unit()
    }

    /// Between two positive numbers, every ratio as likely.
    pub fn ratio(&mut self, lower: f64, upper: f64) -> f64 {
        self.between(lower.ln(), upper.ln()).exp()
    }

    /// A whole number below `bound`; 0 if the bound is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A place in a list of so many; 0 if it is empty.
    pub fn place(&mut self, length: usize) -> usize {
        self.below(length as u64) as usize
    }

    /// One of the choices.
    ///
    /// # Panics
    /// If there is none.
    pub fn choose<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.place(choices.len())]
    }

    /// True so many times of one.
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// Normally distributed, with mean 0 and deviation 1 (Box and Muller).
    pub fn normal(&mut self) -> f64 {
        // Never the logarithm of 0.
        let radius = (-2.0 * (1.0 - self.unit()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }

    /// Bring a list into any order.
    pub fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            list.swap(last, self.place(last + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_to_their_bounds() {
        let mut random = Random::new(3);
        for _ in 0..1000 {
            assert!((0.0..1.0).contains(&random.unit()));
            assert!((2.0..=32.0).contains(&random.ratio(2.0, 32.0)));
            assert!(random.below(7) < 7);
        }
        assert_eq!(random.below(0), 0);
    }

    #[test]
    fn every_number_below_the_bound_is_reached() {
        let mut random = Random::new(7);
        let mut seen = [false; 5];
        for _ in 0..200 {
            seen[random.place(5)] = true;
        }
        assert_eq!(seen, [true; 5]);
    }

    #[test]
    fn numbers_are_those_of_the_published_algorithm() {
        let mut random = Random::new(1234567);
        let numbers = [(); 3].map(|()| random.bits());
        assert_eq!(numbers, [6457827717110365317, 3203168211198807973, 9817491932198370423]);
        assert_eq!(Random::after(1234567, 2).bits(), numbers[2]);
    }

    #[test]
    fn normal_numbers_have_mean_zero_and_deviation_one() {
        let mut random = Random::new(4);
        let numbers: Vec<f64> = (0..20_000).map(|_| random.normal()).collect();
        let mean = numbers.iter().sum::<f64>() / 20_000.0;
        let variance = numbers.iter().map(|number| number * number).sum::<f64>() / 20_000.0;
        assert!(mean.abs() < 0.03 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
    }
}
