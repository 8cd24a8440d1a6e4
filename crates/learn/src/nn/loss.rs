//! How wrong an output is.

use crate::matrix::Matrix;

/// The mean of squared differences, and its gradient by the output.
pub fn squared_loss(output: &Matrix, wanted: &Matrix) -> (f32, Matrix) {
    let count = output.values().len().max(1) as f32;
    let mut gradient = output.clone();
    let mut sum = 0.0;
    for (value, wanted) in gradient.values_mut().iter_mut().zip(wanted.values()) {
        let difference = *value - wanted;
        sum += difference * difference;
        *value = 2.0 * difference / count;
    }
    (sum / count, gradient)
}
