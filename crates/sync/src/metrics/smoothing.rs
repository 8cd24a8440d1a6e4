//! Numbers that come once in a step, without their noise. It knows nothing of what they mean.

/// What the newest number weighs. A small lasting change shows to 9/10 after eight more steps.
pub const SHARE_OF_NEWEST: f64 = 0.25;

/// Two of three numbers that are this many times more or less than before are no noise: what was before is over.
const LEAP: f64 = 1.4;

/// An exponential average of medians of three: one number that is far off changes nothing, the second in a row does.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Smoothed {
    /// The last numbers, the newest first.
    last: [f64; 3],
    count: u32,
    value: f64,
}

impl Smoothed {
    /// One more; what is no number is passed over.
    pub fn add(&mut self, number: f64) {
        if !number.is_finite() {
            return;
        }
        self.last = [number, self.last[0], self.last[1]];
        self.count = self.count.saturating_add(1);
        // Until there are three, the smallest: what disturbs a step makes it longer.
        let middle = match (self.count, self.last) {
            (1, [a, ..]) => a,
            (2, [a, b, _]) => a.min(b),
            (_, [a, b, c]) => a.min(b).max(a.max(b).min(c)),
        };
        // A plain average as long as that weighs the newest more.
        let share = SHARE_OF_NEWEST.max(f64::from(self.count).recip());
        let leap = self.value > 0.0 && (middle > LEAP * self.value || middle * LEAP < self.value);
        self.value = if leap { middle } else { self.value + share * (middle - self.value) };
    }

    /// 0 until there was one.
    pub fn value(&self) -> f64 {
        self.value
    }

    /// How many there were.
    pub fn count(&self) -> u32 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_outlier_changes_nothing() {
        let mut smoothed = Smoothed::default();
        for number in [10.0, 10.0, 10.0, 5000.0, 10.0, 10.0] {
            smoothed.add(number);
            assert_eq!(smoothed.value(), 10.0);
        }
        let mut late = Smoothed::default();
        late.add(10.0);
        late.add(5000.0);
        assert_eq!(late.value(), 10.0);
    }

    #[test]
    fn a_lasting_change_is_followed() {
        let mut smoothed = Smoothed::default();
        (0..20).for_each(|_| smoothed.add(10.0));
        (0..9).for_each(|_| smoothed.add(12.0));
        assert!((11.7..12.0).contains(&smoothed.value()), "{}", smoothed.value());
    }

    #[test]
    fn a_leap_is_followed_at_once() {
        for after in [5.0, 20.0] {
            let mut smoothed = Smoothed::default();
            (0..20).for_each(|_| smoothed.add(10.0));
            smoothed.add(after);
            assert_eq!(smoothed.value(), 10.0);
            smoothed.add(after);
            assert_eq!(smoothed.value(), after);
        }
    }

    #[test]
    fn what_is_no_number_is_passed_over() {
        let mut smoothed = Smoothed::default();
        [f64::NAN, f64::INFINITY, 3.0].into_iter().for_each(|number| smoothed.add(number));
        assert_eq!((smoothed.value(), smoothed.count()), (3.0, 1));
    }
}
