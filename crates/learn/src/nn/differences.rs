//! For tests: whether a gradient is what the loss does when a number is moved a little.

use crate::{Random, matrix::Matrix};

/// Numbers of no meaning.
pub fn any(rows: usize, columns: usize, random: &mut Random) -> Matrix {
    let values = (0..rows * columns).map(|_| random.normal() as f32).collect();
    Matrix::from_values(rows, columns, values)
}

/// The loss is the sum of outputs, each times its wish. Compare its gradient by `at` with central differences.
pub fn check(gradient: &Matrix, wish: &Matrix, at: &Matrix, output: impl Fn(&Matrix) -> Matrix) {
    let loss = |at: &Matrix| -> f64 {
        let output = output(at);
        assert_eq!((output.rows(), output.columns()), (wish.rows(), wish.columns()));
        let products = output.values().iter().zip(wish.values());
        products.map(|(output, wish)| f64::from(*output) * f64::from(*wish)).sum()
    };
    // Wide enough for single precision, narrow enough for curvature.
    let width = 4e-3f32;
    for place in 0..at.values().len() {
        let moved = |by: f32| {
            let mut moved = at.clone();
            moved.values_mut()[place] += by;
            loss(&moved)
        };
        let expected = (moved(width) - moved(-width)) / f64::from(2.0 * width);
        let found = f64::from(gradient.values()[place]);
        let error = (found - expected).abs();
        assert!(error < 3e-3 * (1.0 + expected.abs()), "place {place}: {found}, not {expected}");
    }
}
