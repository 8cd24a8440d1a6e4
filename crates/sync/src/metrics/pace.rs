//! Whether a worker's steps are slower than usual, as KungFu has it: the median of the last few against that of the beginning.
//! It does not know why they are, nor what is done about it.

/// The last steps of one worker, and how long they usually take.
#[derive(Clone, Debug)]
pub struct Pace {
    share: f64,
    window: usize,
    /// In seconds, at most a window of them.
    steps: Vec<f64>,
    usual: Option<f64>,
}

impl Pace {
    /// Slower than this share of the usual speed is slow.
    pub const SHARE: f64 = 0.8;

    /// Steps that make one judgement.
    pub const WINDOW: usize = 10;

    /// Judges by the median of `window` steps.
    pub fn new(share: f64, window: usize) -> Pace {
        Pace { share, window: window.max(1), steps: Vec::new(), usual: None }
    }

    /// How many steps make one judgement.
    pub fn window(&self) -> usize {
        self.window
    }

    /// One step more: whether steps are slower than usual; `None` until a window of them was seen.
    pub fn slowed(&mut self, seconds: f64) -> Option<bool> {
        if !(seconds > 0.0 && seconds.is_finite()) {
            return None;
        }
        self.steps.push(seconds);
        let extra = self.steps.len().saturating_sub(self.window);
        self.steps.drain(..extra);
        if self.steps.len() < self.window {
            return None;
        }
        let median = median(&self.steps);
        let usual = self.usual.get_or_insert(median);
        // What slowed all of them down is gone.
        if median < self.share * *usual {
            *usual = median;
        }
        Some(*usual < self.share * median)
    }

    /// How long steps usually take; `None` if that is still to be seen.
    pub fn usual(&self) -> Option<f64> {
        self.usual
    }

    /// From now on they usually take so long; `None`: as long as the next window of them does.
    pub fn expect(&mut self, usual: Option<f64>) {
        self.usual = usual.filter(|seconds| *seconds > 0.0 && seconds.is_finite());
        self.steps.clear();
    }

    /// What comes is of another kind than what was seen; what is usual stays.
    pub fn begin_window(&mut self) {
        self.steps.clear();
    }
}

impl Default for Pace {
    fn default() -> Pace {
        Pace::new(Pace::SHARE, Pace::WINDOW)
    }
}

/// The middle one, or of two the larger. There is one at least.
pub fn median(of: &[f64]) -> f64 {
    let mut sorted = of.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_slow_when_a_window_of_them_is_slower_than_at_the_beginning() {
        let mut pace = Pace::new(0.8, 3);
        assert_eq!([1.0, 1.1, 0.9].map(|step| pace.slowed(step)), [None, None, Some(false)]);
        // One slow step is none, nor are steps that are a little slower; a window of slow ones is.
        assert_eq!([5.0, 1.2, 1.2].map(|step| pace.slowed(step)), [Some(false); 3]);
        assert_eq!([2.0, 2.0, 2.0].map(|step| pace.slowed(step))[2], Some(true));
        // Faster ones are the usual ones from then on.
        assert_eq!([0.5, 0.5, 0.5].map(|step| pace.slowed(step))[2], Some(false));
        assert_eq!(
            (pace.usual(), [1.0; 3].map(|step| pace.slowed(step))[2]),
            (Some(0.5), Some(true))
        );
    }

    #[test]
    fn what_is_usual_can_be_told_and_forgotten() {
        let mut pace = Pace::new(0.8, 2);
        pace.expect(Some(1.0));
        assert_eq!([2.0, 2.0].map(|step| pace.slowed(step)), [None, Some(true)]);
        pace.expect(None);
        assert_eq!([2.0, 2.0].map(|step| pace.slowed(step)), [None, Some(false)]);
        for nonsense in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            pace.expect(Some(nonsense));
            assert_eq!((pace.usual(), pace.slowed(nonsense)), (None, None));
        }
    }
}
