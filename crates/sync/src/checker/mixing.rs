//! Mixing matrices: what an averaging strategy does to the members' values, and how fast they come
//! together.

use crate::program::Member;

/// A square matrix; row `i` says how member `i`'s new value is made of the old ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Matrix {
    size: usize,
    /// Row by row.
    cells: Vec<f64>,
}

impl Matrix {
    /// All zero.
    pub fn zero(members: u32) -> Matrix {
        let size = members as usize;
        Matrix { size, cells: vec![0.0; size * size] }
    }

    /// Nothing changes.
    pub fn identity(members: u32) -> Matrix {
        let mut identity = Matrix::zero(members);
        for member in 0..members {
            identity.set(member, member, 1.0);
        }
        identity
    }

    /// Number of members.
    pub fn members(&self) -> u32 {
        self.size as u32
    }

    /// The weight of `from`'s old value in `to`'s new one.
    pub fn weight(&self, to: Member, from: Member) -> f64 {
        self.cells[to as usize * self.size + from as usize]
    }

    /// Change a weight.
    pub fn set(&mut self, to: Member, from: Member, weight: f64) {
        self.cells[to as usize * self.size + from as usize] = weight;
    }

    /// The weight of `from`'s old value in all new ones together.
    pub fn influence(&self, from: Member) -> f64 {
        (0..self.members()).map(|to| self.weight(to, from)).sum()
    }

    /// First `earlier`, then this.
    ///
    /// # Panics
    /// If the sizes differ.
    pub fn after(&self, earlier: &Matrix) -> Matrix {
        assert_eq!(self.size, earlier.size, "mixings of different groups cannot follow each other");
        let mut product = Matrix::zero(self.members());
        for row in 0..self.size {
            for inner in 0..self.size {
                let weight = self.cells[row * self.size + inner];
                if weight != 0.0 {
                    for column in 0..self.size {
                        product.cells[row * self.size + column] +=
                            weight * earlier.cells[inner * self.size + column];
                    }
                }
            }
        }
        product
    }
}

/// By how much the members' disagreement shrinks at worst over a period, the first step first: the
/// second largest singular value of the product. 0 is full agreement, 1 is none.
///
/// The largest singular value of a doubly stochastic matrix is 1 and belongs to the vector of ones,
/// so the second is the largest once the mean is taken out.
pub fn contraction(period: &[Matrix]) -> f64 {
    let Some((first, rest)) = period.split_first() else { return 1.0 };
    let mut product = rest.iter().fold(first.clone(), |before, step| step.after(&before));
    let mean = 1.0 / product.size.max(1) as f64;
    product.cells.iter_mut().for_each(|cell| *cell -= mean);
    largest_singular_value(product)
}

/// One-sided Jacobi rotations (Hestenes, 1958): rows are turned against each other until they are
/// orthogonal; their lengths are then the singular values.
fn largest_singular_value(mut matrix: Matrix) -> f64 {
    /// Convergence is quadratic; ten sweeps are usual.
    const SWEEPS: usize = 60;
    let size = matrix.size;
    for _ in 0..SWEEPS {
        let mut turned = false;
        for p in 0..size {
            for q in p + 1..size {
                let (before, from_q) = matrix.cells.split_at_mut(q * size);
                let row_p = &mut before[p * size..(p + 1) * size];
                let row_q = &mut from_q[..size];
                let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f64>();
                let (alpha, beta) = (dot(row_p, row_p), dot(row_q, row_q));
                let gamma = dot(row_p, row_q);
                if gamma.abs() <= 1e-15 * (alpha * beta).sqrt() || gamma.abs() < 1e-300 {
                    continue;
                }
                turned = true;
                let zeta = (beta - alpha) / (2.0 * gamma);
                let tangent = zeta.signum() / (zeta.abs() + (1.0 + zeta * zeta).sqrt());
                let cosine = 1.0 / (1.0 + tangent * tangent).sqrt();
                let sine = cosine * tangent;
                for (x, y) in row_p.iter_mut().zip(row_q) {
                    (*x, *y) = (cosine * *x - sine * *y, sine * *x + cosine * *y);
                }
            }
        }
        if !turned {
            break;
        }
    }
    let rows = matrix.cells.chunks(size.max(1));
    rows.map(|row| row.iter().map(|x| x * x).sum::<f64>().sqrt()).fold(0.0, f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(members: u32, a: Member, b: Member) -> Matrix {
        let mut mixing = Matrix::identity(members);
        for (to, from) in [(a, a), (a, b), (b, a), (b, b)] {
            mixing.set(to, from, 0.5);
        }
        mixing
    }

    #[test]
    fn what_is_averaged_agrees_and_what_is_not_does_not() {
        assert!(contraction(&[pair(2, 0, 1)]) < 1e-12);
        assert!((contraction(&[Matrix::identity(4)]) - 1.0).abs() < 1e-12);
        assert!((contraction(&[pair(3, 0, 1)]) - 1.0).abs() < 1e-12);
        assert!((contraction(&[]) - 1.0).abs() < 1e-12);
        let cube = [pair(4, 0, 1), pair(4, 2, 3), pair(4, 0, 2), pair(4, 1, 3)];
        assert!(contraction(&cube) < 1e-12);
    }

    #[test]
    fn a_known_singular_value_is_found() {
        // Lazy ring of four: eigenvalues 1, 1/2, 1/2, 0; symmetric, so they are the singular
        // values.
        let mut ring = Matrix::zero(4);
        for member in 0..4 {
            ring.set(member, member, 0.5);
            ring.set(member, (member + 1) % 4, 0.25);
            ring.set(member, (member + 3) % 4, 0.25);
        }
        assert!((contraction(std::slice::from_ref(&ring)) - 0.5).abs() < 1e-12);
        assert!((contraction(&[ring.clone(), ring]) - 0.25).abs() < 1e-12);
    }
}
