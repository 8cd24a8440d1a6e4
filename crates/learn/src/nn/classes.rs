//! Outputs that say which class an example belongs to: softmax with cross-entropy, and how often the largest is right.

use crate::matrix::Matrix;

/// The mean of the cross-entropy between the softmax of each output row and its label, and its gradient by the output.
///
/// # Panics
/// If a label is not a column of the output.
pub fn classification_loss(output: &Matrix, labels: &[u8]) -> (f32, Matrix) {
    let count = labels.len().max(1) as f32;
    let mut gradient = output.clone();
    let mut sum = 0.0;
    for (row, label) in labels.iter().enumerate() {
        let values = gradient.row_mut(row);
        // Without the largest the exponentials could be too large for any number.
        let largest = values.iter().copied().fold(f32::MIN, f32::max);
        values.iter_mut().for_each(|value| *value = (*value - largest).exp());
        let total: f32 = values.iter().sum();
        let wanted = values[usize::from(*label)];
        sum += total.ln() - wanted.max(f32::MIN_POSITIVE).ln();
        values.iter_mut().for_each(|value| *value /= total * count);
        values[usize::from(*label)] -= 1.0 / count;
    }
    (sum / count, gradient)
}

/// For how many rows the largest output is the label's.
pub fn right_classes(output: &Matrix, labels: &[u8]) -> usize {
    let is_right = |(row, label): &(usize, &u8)| {
        let values = output.row(*row);
        let wanted = values.get(usize::from(**label));
        wanted.is_some_and(|wanted| values.iter().all(|value| value <= wanted))
    };
    labels.iter().enumerate().filter(is_right).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Random,
        nn::differences::{any, check},
    };

    #[test]
    fn the_gradient_is_that_of_finite_differences() {
        let mut random = Random::new(8);
        let output = any(3, 4, &mut random);
        let labels = [0, 3, 1];
        let (_, gradient) = classification_loss(&output, &labels);
        let one = Matrix::from_values(1, 1, vec![1.0]);
        check(&gradient, &one, &output, |output| {
            Matrix::from_values(1, 1, vec![classification_loss(output, &labels).0])
        });
    }

    #[test]
    fn large_outputs_have_a_loss_that_is_a_number() {
        let output = Matrix::from_values(2, 2, vec![1e4, -1e4, 0.0, 0.0]);
        let (loss, gradient) = classification_loss(&output, &[1, 0]);
        assert!(loss.is_finite() && loss > 10.0, "{loss}");
        assert!(gradient.values().iter().all(|value| value.is_finite()));
    }

    #[test]
    fn rows_are_right_where_the_label_is_the_largest() {
        let output = Matrix::from_values(3, 2, vec![1.0, 2.0, 5.0, -1.0, 0.0, 1.0]);
        assert_eq!(right_classes(&output, &[1, 1, 1]), 2);
    }
}
