//! The root of a symmetric positive matrix, and what it solves. Lower triangles are kept row after row.

use crate::LearnError;

/// A lower triangle `L` with `L · Lᵀ` the matrix it was made of.
#[derive(Clone, Debug, PartialEq)]
pub struct Cholesky {
    rows: Vec<Vec<f64>>,
}

impl Cholesky {
    /// Of the matrix whose lower triangle `entry` gives.
    pub fn of(size: usize, entry: impl Fn(usize, usize) -> f64) -> Result<Cholesky, LearnError> {
        let mut rows: Vec<Vec<f64>> = Vec::with_capacity(size);
        for row in 0..size {
            let mut values: Vec<f64> = Vec::with_capacity(row + 1);
            for column in 0..row {
                let known = products(&values, &rows[column][..column]);
                values.push((entry(row, column) - known) / rows[column][column]);
            }
            let square = entry(row, row) - products(&values, &values);
            // Also false for what is no number.
            if !(square.is_finite() && square > 0.0) {
                return Err(LearnError::NotPositive);
            }
            values.push(square.sqrt());
            rows.push(values);
        }
        Ok(Cholesky { rows })
    }

    /// `x` with `L · x = right`.
    pub fn solve_lower(&self, right: &[f64]) -> Vec<f64> {
        let mut result: Vec<f64> = Vec::with_capacity(right.len());
        for (row, right) in self.rows.iter().zip(right) {
            let known = products(&result, row);
            result.push((right - known) / row[result.len()]);
        }
        result
    }

    /// `x` with `L · Lᵀ · x = right`.
    pub fn solve(&self, right: &[f64]) -> Vec<f64> {
        let mut result = self.solve_lower(right);
        for place in (0..result.len()).rev() {
            let value = result[place] / self.rows[place][place];
            result[place] = value;
            for (before, factor) in result[..place].iter_mut().zip(&self.rows[place]) {
                *before -= factor * value;
            }
        }
        result
    }

    /// The logarithm of the matrix's determinant.
    pub fn log_determinant(&self) -> f64 {
        let diagonal = self.rows.iter().enumerate().map(|(place, row)| row[place].ln());
        2.0 * diagonal.sum::<f64>()
    }
}

/// The sum of products of as many as the shorter has.
fn products(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MATRIX: [[f64; 3]; 3] = [[4.0, 2.0, 0.6], [2.0, 5.0, 1.0], [0.6, 1.0, 3.0]];

    #[test]
    fn it_solves_what_can_be_multiplied_back() {
        let root = Cholesky::of(3, |row, column| MATRIX[row][column]).unwrap();
        let right = [1.0, -2.0, 0.5];
        let solved = root.solve(&right);
        for (row, right) in MATRIX.iter().zip(right) {
            assert!((products(row, &solved) - right).abs() < 1e-12);
        }
        let determinant: f64 = 4.0 * (15.0 - 1.0) - 2.0 * (6.0 - 0.6) + 0.6 * (2.0 - 3.0);
        assert!((root.log_determinant() - determinant.ln()).abs() < 1e-12);
    }

    #[test]
    fn what_has_no_root_is_refused() {
        assert_eq!(Cholesky::of(2, |_, _| 1.0), Err(LearnError::NotPositive));
        assert_eq!(Cholesky::of(1, |_, _| f64::NAN), Err(LearnError::NotPositive));
    }
}
