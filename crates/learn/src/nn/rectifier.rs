//! What is negative becomes zero (ReLU).

use crate::matrix::Matrix;

/// The input, without what is negative.
pub fn rectified(mut input: Matrix) -> Matrix {
    for value in input.values_mut() {
        *value = value.max(0.0);
    }
    input
}

/// Turn the gradient of the output into that of the input. The output suffices to know it.
pub fn rectified_backward(output: &Matrix, gradient: &mut Matrix) {
    for (gradient, output) in gradient.values_mut().iter_mut().zip(output.values()) {
        if *output <= 0.0 {
            *gradient = 0.0;
        }
    }
}
