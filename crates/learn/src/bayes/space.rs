//! Where one may measure: a box, or certain points only. Inside, coordinates are brought between 0 and 1.

use crate::{LearnError, Random};

/// Where one may measure.
#[derive(Clone, Debug, PartialEq)]
pub enum Space {
    /// Anywhere between bounds.
    Box {
        /// The least of each coordinate.
        lower: Vec<f64>,
        /// The most of each coordinate.
        upper: Vec<f64>,
    },
    /// At these points only, all with as many coordinates.
    Points(Vec<Vec<f64>>),
}

impl Space {
    /// Refuse what has no point, or points that do not belong together.
    pub(super) fn check(&self) -> Result<(), LearnError> {
        let expected = self.dimensions();
        let odd = match self {
            Space::Box { lower, upper } => {
                // A side of no length, and one that is no number, are empty alike.
                let side = |(lower, upper): (&f64, &f64)| upper > lower && upper.is_finite();
                if expected == 0 || !lower.iter().zip(upper).all(side) {
                    return Err(LearnError::EmptySpace);
                }
                (upper.len() != expected).then_some(upper)
            }
            Space::Points(points) if points.is_empty() || expected == 0 => {
                return Err(LearnError::EmptySpace);
            }
            Space::Points(points) => points.iter().find(|point| {
                point.len() != expected || point.iter().any(|coordinate| !coordinate.is_finite())
            }),
        };
        match odd {
            Some(point) => Err(LearnError::Point { expected, found: point.len() }),
            None => Ok(()),
        }
    }

    /// How many coordinates points have.
    pub fn dimensions(&self) -> usize {
        match self {
            Space::Box { lower, .. } => lower.len(),
            Space::Points(points) => points.first().map_or(0, Vec::len),
        }
    }

    /// The least and the most of every coordinate.
    pub(super) fn bounds(&self) -> (Vec<f64>, Vec<f64>) {
        match self {
            Space::Box { lower, upper } => (lower.clone(), upper.clone()),
            Space::Points(points) => {
                let along = |place: usize| points.iter().map(move |point| point[place]);
                let fold = |start: f64, pick: fn(f64, f64) -> f64| -> Vec<f64> {
                    (0..self.dimensions()).map(|place| along(place).fold(start, pick)).collect()
                };
                (fold(f64::INFINITY, f64::min), fold(f64::NEG_INFINITY, f64::max))
            }
        }
    }

    /// Any of its points.
    pub(super) fn any(&self, random: &mut Random) -> Vec<f64> {
        match self {
            Space::Box { lower, upper } => {
                let sides = lower.iter().zip(upper);
                sides.map(|(lower, upper)| random.between(*lower, *upper)).collect()
            }
            Space::Points(points) => random.choose(points).clone(),
        }
    }
}
