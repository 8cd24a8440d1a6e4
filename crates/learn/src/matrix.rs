//! Matrices as small networks need them: a row for each example, and the three products of a layer's forward and
//! backward pass. The inner loops run along rows, so that compilers make vectors of them.

/// A matrix, row after row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Matrix {
    rows: usize,
    columns: usize,
    values: Vec<f32>,
}

impl Matrix {
    /// All zero.
    pub fn zeros(rows: usize, columns: usize) -> Matrix {
        Matrix { rows, columns, values: vec![0.0; rows * columns] }
    }

    /// From values, row after row.
    ///
    /// # Panics
    /// If there are not `rows * columns` of them.
    pub fn from_values(rows: usize, columns: usize, values: Vec<f32>) -> Matrix {
        assert_eq!(values.len(), rows * columns, "values of a {rows}x{columns} matrix");
        Matrix { rows, columns, values }
    }

    /// How many rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// How many columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// All values, row after row.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// All values, row after row.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// All values, row after row, as they lie in memory.
    pub fn into_values(self) -> Vec<f32> {
        self.values
    }

    /// One row.
    pub fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.columns..][..self.columns]
    }

    /// One row.
    pub fn row_mut(&mut self, row: usize) -> &mut [f32] {
        &mut self.values[row * self.columns..][..self.columns]
    }

    /// Set every value.
    pub fn fill(&mut self, value: f32) {
        self.values.fill(value);
    }

    /// Add another matrix of the same shape.
    pub fn add(&mut self, other: &Matrix) {
        debug_assert_eq!((self.rows, self.columns), (other.rows, other.columns));
        for (value, other) in self.values.iter_mut().zip(&other.values) {
            *value += other;
        }
    }

    /// Add `left · right`.
    pub fn add_product(&mut self, left: &Matrix, right: &Matrix) {
        assert_eq!(left.columns, right.rows, "inner dimensions");
        assert_eq!((self.rows, self.columns), (left.rows, right.columns), "outer dimensions");
        for row in 0..left.rows {
            let sums = &mut self.values[row * right.columns..][..right.columns];
            accumulate(left.row(row), &right.values, sums);
        }
    }

    /// Add `left · rightᵀ`.
    pub fn add_product_transposed(&mut self, left: &Matrix, right: &Matrix) {
        assert_eq!(left.columns, right.columns, "inner dimensions");
        assert_eq!((self.rows, self.columns), (left.rows, right.rows), "outer dimensions");
        for row in 0..left.rows {
            let from = left.row(row);
            let to = &mut self.values[row * right.rows..][..right.rows];
            for (sum, other) in to.iter_mut().zip(right.values.chunks_exact(right.columns)) {
                *sum += dot(from, other);
            }
        }
    }

    /// Add `leftᵀ · right`.
    pub fn add_transposed_product(&mut self, left: &Matrix, right: &Matrix) {
        assert_eq!(left.rows, right.rows, "inner dimensions");
        assert_eq!((self.rows, self.columns), (left.columns, right.columns), "outer dimensions");
        for row in 0..left.rows {
            let from = right.row(row);
            let factors = left.row(row);
            for (factor, sums) in factors.iter().zip(self.values.chunks_exact_mut(right.columns)) {
                // Half of what follows a rectifier is zero.
                if *factor != 0.0 {
                    for (sum, value) in sums.iter_mut().zip(from) {
                        *sum += factor * value;
                    }
                }
            }
        }
    }
}

/// Add to `sums` the rows of a matrix, each times its factor; four rows at a time, so that sums are loaded and stored a
/// quarter as often.
fn accumulate(factors: &[f32], rows: &[f32], sums: &mut [f32]) {
    let columns = sums.len();
    let mut fours = factors.chunks_exact(4);
    let mut rest = rows;
    for four in &mut fours {
        let (rows, after) = rest.split_at(4 * columns);
        rest = after;
        let (first, others) = rows.split_at(columns);
        let (second, others) = others.split_at(columns);
        let (third, fourth) = others.split_at(columns);
        let rows = first.iter().zip(second).zip(third.iter().zip(fourth));
        for (sum, ((first, second), (third, fourth))) in sums.iter_mut().zip(rows) {
            *sum += four[0] * first + four[1] * second + four[2] * third + four[3] * fourth;
        }
    }
    for (factor, row) in fours.remainder().iter().zip(rest.chunks_exact(columns)) {
        for (sum, value) in sums.iter_mut().zip(row) {
            *sum += factor * value;
        }
    }
}

/// The sum of products, in eight sums that do not wait for each other.
fn dot(left: &[f32], right: &[f32]) -> f32 {
    let mut sums = [0.0f32; 8];
    let (lefts, rights) = (left.chunks_exact(8), right.chunks_exact(8));
    let rest = lefts.remainder().iter().zip(rights.remainder());
    let rest: f32 = rest.map(|(left, right)| left * right).sum();
    for (left, right) in lefts.zip(rights) {
        for ((sum, left), right) in sums.iter_mut().zip(left).zip(right) {
            *sum += left * right;
        }
    }
    rest + sums.iter().sum::<f32>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Random;

    fn any(rows: usize, columns: usize, random: &mut Random) -> Matrix {
        let values = (0..rows * columns).map(|_| random.normal() as f32).collect();
        Matrix::from_values(rows, columns, values)
    }

    fn transposed(matrix: &Matrix) -> Matrix {
        let mut result = Matrix::zeros(matrix.columns, matrix.rows);
        for row in 0..matrix.rows {
            for column in 0..matrix.columns {
                result.row_mut(column)[row] = matrix.row(row)[column];
            }
        }
        result
    }

    fn by_definition(left: &Matrix, right: &Matrix) -> Matrix {
        let mut result = Matrix::zeros(left.rows, right.columns);
        for row in 0..left.rows {
            for column in 0..right.columns {
                let products = (0..left.columns).map(|k| left.row(row)[k] * right.row(k)[column]);
                result.row_mut(row)[column] = products.sum();
            }
        }
        result
    }

    #[test]
    fn all_products_are_those_of_the_definition() {
        let mut random = Random::new(1);
        for (rows, inner, columns) in [(1, 1, 1), (3, 5, 2), (4, 8, 17), (7, 19, 9)] {
            let (left, right) = (any(rows, inner, &mut random), any(inner, columns, &mut random));
            let expected = by_definition(&left, &right);
            let mut products = vec![Matrix::zeros(rows, columns); 3];
            products[0].add_product(&left, &right);
            products[1].add_product_transposed(&left, &transposed(&right));
            products[2].add_transposed_product(&transposed(&left), &right);
            for product in products {
                for (value, expected) in product.values.iter().zip(&expected.values) {
                    assert!((value - expected).abs() < 1e-4, "{value} {expected}");
                }
            }
        }
    }
}
