//! Numbers that are learned, and what a loss wants of them. How they are changed is the optimizer's business.

use crate::{Random, matrix::Matrix};

/// Numbers that are learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// As they are.
    pub value: Matrix,
    /// What the loss grows by, for each; summed up until somebody takes it.
    pub gradient: Matrix,
    /// Means of the gradient and of its square, which Adam keeps.
    pub(super) moments: [Matrix; 2],
    /// How often it was changed.
    pub(super) steps: u32,
}

impl Parameter {
    /// These numbers, with nothing learned yet.
    pub fn new(value: Matrix) -> Parameter {
        let zeros = Matrix::zeros(value.rows(), value.columns());
        let moments = [zeros.clone(), zeros.clone()];
        Parameter { value, gradient: zeros, moments, steps: 0 }
    }

    /// All that was learned, for whoever is to go on in its place: the numbers, what Adam keeps of them, and how often they
    /// were changed.
    pub fn state_mut(&mut self) -> ([&mut [f32]; 3], &mut u32) {
        let [means, squares] = &mut self.moments;
        ([self.value.values_mut(), means.values_mut(), squares.values_mut()], &mut self.steps)
    }

    /// Evenly distributed so that what goes through keeps its size (Glorot and Bengio).
    pub(super) fn even(rows: usize, columns: usize, random: &mut Random) -> Parameter {
        Parameter::drawn(rows, columns, (6.0 / (rows + columns) as f64).sqrt(), random)
    }

    /// Evenly distributed so that sums along rows keep their size through a rectifier (He and others).
    pub(super) fn for_rectifier(rows: usize, columns: usize, random: &mut Random) -> Parameter {
        Parameter::drawn(rows, columns, (6.0 / columns as f64).sqrt(), random)
    }

    fn drawn(rows: usize, columns: usize, most: f64, random: &mut Random) -> Parameter {
        let values = (0..rows * columns).map(|_| random.between(-most, most) as f32).collect();
        Parameter::new(Matrix::from_values(rows, columns, values))
    }

    /// A row of zeros.
    pub(super) fn zero_row(columns: usize) -> Parameter {
        Parameter::new(Matrix::zeros(1, columns))
    }
}
