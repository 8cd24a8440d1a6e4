//! A search by asking and telling: it says where to measure, and is told what came out. Larger values are better. Where
//! nothing is known it begins with points far from each other.

use super::{GaussianProcess, Likely, Smoothness, Space, expected_improvement};
use crate::{LearnError, Random};

/// Measurements that a process is made of, at most: the latest. More cost more than they say.
const MOST_POINTS: usize = 200;
/// Places of a box that are looked at for one question: half anywhere, half around the best.
const PLACES: usize = 600;
/// Points among which one far from all others is chosen, as long as nothing is known.
const DRAWN: usize = 16;

/// How to search.
#[derive(Clone, Debug, PartialEq)]
pub struct SearchOptions {
    /// Points that are measured before the process is asked.
    pub first: usize,
    /// By how much of the values' deviation a point must be better to be of interest.
    pub margin: f64,
    /// How smooth values are believed to be.
    pub smoothness: Smoothness,
    /// What chance follows from.
    pub seed: u64,
}

impl Default for SearchOptions {
    fn default() -> SearchOptions {
        SearchOptions { first: 5, margin: 0.01, smoothness: Smoothness::Matern, seed: 1 }
    }
}

/// A search for the point with the largest value.
///
/// ```
/// use paceline_learn::bayes::{BayesianSearch, SearchOptions, Space};
///
/// let space = Space::Box { lower: vec![-2.0], upper: vec![3.0] };
/// let mut search = BayesianSearch::new(space, SearchOptions::default())?;
/// for _ in 0..15 {
///     let point = search.ask().expect("a box has always another point");
///     let value = -(point[0] - 1.0).powi(2);
///     search.tell(&point, value)?;
/// }
/// let (best, _) = search.best().expect("something was told");
/// assert!((best[0] - 1.0).abs() < 0.1);
/// # Ok::<(), paceline_learn::LearnError>(())
/// ```
#[derive(Clone, Debug)]
pub struct BayesianSearch {
    space: Space,
    options: SearchOptions,
    lower: Vec<f64>,
    upper: Vec<f64>,
    random: Random,
    /// Points that were told, with coordinates between 0 and 1.
    points: Vec<Vec<f64>>,
    values: Vec<f64>,
    best: Option<(Vec<f64>, f64)>,
}

impl BayesianSearch {
    /// A search that knows nothing yet.
    pub fn new(space: Space, options: SearchOptions) -> Result<BayesianSearch, LearnError> {
        space.check()?;
        let (lower, upper) = space.bounds();
        let random = Random::new(options.seed);
        let (points, values) = (Vec::new(), Vec::new());
        Ok(BayesianSearch { space, options, lower, upper, random, points, values, best: None })
    }

    /// Where to measure next. `None` where all points were measured.
    pub fn ask(&mut self) -> Option<Vec<f64>> {
        if self.points.len() < self.options.first {
            return self.far();
        }
        match self.process() {
            Some(process) => self.promising(&process),
            None => self.far(),
        }
    }

    /// What came out. Points that were not asked for teach as well.
    pub fn tell(&mut self, point: &[f64], value: f64) -> Result<(), LearnError> {
        let expected = self.space.dimensions();
        let numbers = point.iter().chain([&value]).all(|number| number.is_finite());
        if point.len() != expected || !numbers {
            return Err(LearnError::Point { expected, found: point.len() });
        }
        if self.best.as_ref().is_none_or(|(_, best)| value > *best) {
            self.best = Some((point.to_vec(), value));
        }
        self.points.push(self.scaled(point));
        self.values.push(value);
        Ok(())
    }

    /// The best that was told.
    pub fn best(&self) -> Option<(&[f64], f64)> {
        self.best.as_ref().map(|(point, value)| (point.as_slice(), *value))
    }

    /// What the process believes of a point; `None` as long as too little was told.
    pub fn likely(&self, point: &[f64]) -> Option<Likely> {
        (point.len() == self.space.dimensions()).then_some(())?;
        Some(self.process()?.at(&self.scaled(point)))
    }

    /// How many measurements were told.
    pub fn told(&self) -> usize {
        self.values.len()
    }

    fn process(&self) -> Option<GaussianProcess> {
        if self.values.len() < 2 {
            return None;
        }
        let from = self.values.len().saturating_sub(MOST_POINTS);
        let (points, values) = (&self.points[from..], &self.values[from..]);
        let seed = self.options.seed.wrapping_add(self.values.len() as u64);
        GaussianProcess::fit(points, values, self.options.smoothness, seed).ok()
    }

    fn scaled(&self, point: &[f64]) -> Vec<f64> {
        let bounds = self.lower.iter().zip(&self.upper);
        let scale = |(value, (lower, upper)): (&f64, (&f64, &f64))| {
            if upper > lower { (value - lower) / (upper - lower) } else { 0.5 }
        };
        point.iter().zip(bounds).map(scale).collect()
    }

    /// How far a scaled point is from the nearest that was told, squared.
    fn distance(&self, point: &[f64]) -> f64 {
        let to = |other: &Vec<f64>| -> f64 {
            other.iter().zip(point).map(|(one, other)| (one - other).powi(2)).sum()
        };
        self.points.iter().map(to).fold(f64::INFINITY, f64::min)
    }

    /// Points of a finite space that were not told.
    fn untold(&self) -> Option<Vec<Vec<f64>>> {
        let Space::Points(points) = &self.space else { return None };
        let new = |point: &&Vec<f64>| self.distance(&self.scaled(point)) > 0.0;
        Some(points.iter().filter(new).cloned().collect())
    }

    /// A point far from all that were told.
    fn far(&mut self) -> Option<Vec<f64>> {
        let space = match self.untold() {
            Some(untold) if untold.is_empty() => return None,
            Some(untold) => Space::Points(untold),
            None => self.space.clone(),
        };
        let drawn: Vec<Vec<f64>> = (0..DRAWN).map(|_| space.any(&mut self.random)).collect();
        drawn.into_iter().max_by(|one, other| {
            let distance = |point: &[f64]| self.distance(&self.scaled(point));
            distance(one).total_cmp(&distance(other))
        })
    }

    /// The point with the largest expected improvement.
    fn promising(&mut self, process: &GaussianProcess) -> Option<Vec<f64>> {
        let (_, best) = self.best.clone()?;
        let count = self.values.len() as f64;
        let mean = self.values.iter().sum::<f64>() / count;
        let square = self.values.iter().map(|value| (value - mean).powi(2)).sum::<f64>();
        let margin = self.options.margin * (square / count).sqrt();
        let places = match self.untold() {
            Some(untold) => untold,
            None => self.places(),
        };
        let worth = |point: &Vec<f64>| {
            let likely = process.at(&self.scaled(point));
            // Where no improvement is to be expected anywhere, the likeliest mean decides.
            (expected_improvement(likely, best, margin), likely.mean)
        };
        let rated = places.into_iter().map(|point| (worth(&point), point));
        let best = rated.max_by(|(one, _), (other, _)| {
            one.0.total_cmp(&other.0).then(one.1.total_cmp(&other.1))
        });
        best.map(|(_, point)| point)
    }

    /// Places of a box: anywhere, and around the best.
    fn places(&mut self) -> Vec<Vec<f64>> {
        let space = self.space.clone();
        let mut places: Vec<Vec<f64>> =
            (0..PLACES / 2).map(|_| space.any(&mut self.random)).collect();
        if let Some((best, _)) = self.best.clone() {
            for place in 0..PLACES / 2 {
                // From wide to narrow.
                let width = 0.3 * 0.01f64.powf(place as f64 / (PLACES / 2) as f64);
                let sides = best.iter().zip(self.lower.iter().zip(&self.upper));
                let near = sides.map(|(value, (lower, upper))| {
                    let moved = value + width * (upper - lower) * self.random.normal();
                    moved.clamp(*lower, *upper)
                });
                places.push(near.collect());
            }
        }
        places
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Branin's function, with its sign turned: three maxima of -0.397887.
    fn branin(point: &[f64]) -> f64 {
        use std::f64::consts::PI;
        let (x, y) = (point[0], point[1]);
        let bent = y - 5.1 / (4.0 * PI * PI) * x * x + 5.0 / PI * x - 6.0;
        -(bent * bent + 10.0 * (1.0 - 1.0 / (8.0 * PI)) * x.cos() + 10.0)
    }

    fn branin_box() -> Space {
        Space::Box { lower: vec![-5.0, 0.0], upper: vec![10.0, 15.0] }
    }

    fn run(space: Space, seed: u64, count: usize, value: impl Fn(&[f64]) -> f64) -> BayesianSearch {
        let options = SearchOptions { seed, ..SearchOptions::default() };
        let mut search = BayesianSearch::new(space, options).unwrap();
        for _ in 0..count {
            let Some(point) = search.ask() else { break };
            search.tell(&point, value(&point)).unwrap();
        }
        search
    }

    #[test]
    fn it_finds_the_top_of_a_known_function_where_chance_does_not() {
        let mut random = Random::new(1);
        let (mut wins, mut ours) = (0, Vec::new());
        for seed in 1..=5 {
            let (_, best) = run(branin_box(), seed, 30, branin).best.unwrap();
            let space = branin_box();
            let chance = (0..30).map(|_| branin(&space.any(&mut random)));
            wins += usize::from(best > chance.fold(f64::NEG_INFINITY, f64::max));
            ours.push(best);
        }
        assert!(ours.iter().all(|best| *best > -0.9), "{ours:?}");
        assert!(wins >= 4, "{wins}");
    }

    #[test]
    fn on_a_grid_it_asks_for_every_point_once_and_then_for_nothing() {
        let grid: Vec<Vec<f64>> =
            (0..12).map(|place| vec![f64::from(place % 4), f64::from(place / 4)]).collect();
        let search = run(Space::Points(grid.clone()), 3, 100, |point| point[0] - point[1]);
        assert_eq!(search.told(), 12);
        assert_eq!(search.best().unwrap().0, [3.0, 0.0]);
    }

    #[test]
    fn a_small_part_of_a_grid_suffices() {
        let grid = (0..144).map(|place| vec![f64::from(place % 12), f64::from(place / 12)]);
        let grid: Vec<Vec<f64>> = grid.collect();
        let value = |point: &[f64]| {
            100.0 / (10.0 + (point[0] - 7.3).powi(2) + 0.5 * (point[1] - 3.6).powi(2))
        };
        let top = grid.iter().map(|point| value(point)).fold(0.0, f64::max);
        for seed in 1..=4 {
            let search = run(Space::Points(grid.clone()), seed, 25, value);
            assert!(search.best().unwrap().1 > 0.98 * top);
        }
    }

    #[test]
    fn the_same_seed_asks_the_same() {
        let path = |seed| run(branin_box(), seed, 12, branin).points;
        assert_eq!(path(4), path(4));
        assert_ne!(path(4), path(5));
    }

    #[test]
    fn what_is_no_space_or_no_measurement_is_refused() {
        let new = |space| BayesianSearch::new(space, SearchOptions::default());
        let empty = Space::Points(Vec::new());
        assert_eq!(new(empty).unwrap_err(), LearnError::EmptySpace);
        let turned = Space::Box { lower: vec![1.0], upper: vec![0.0] };
        assert_eq!(new(turned).unwrap_err(), LearnError::EmptySpace);
        let mut search = new(branin_box()).unwrap();
        assert!(search.tell(&[1.0], 0.0).is_err());
        assert!(search.tell(&[1.0, 1.0], f64::NAN).is_err());
        assert_eq!(search.told(), 0);
    }
}
