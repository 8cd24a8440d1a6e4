//! A fully connected layer: every output is a weighted sum of all inputs.

use super::Parameter;
use crate::{Random, matrix::Matrix};

/// A fully connected layer.
#[derive(Clone, Debug, PartialEq)]
pub struct Dense {
    /// A row for each input.
    pub weights: Parameter,
    /// One row.
    pub bias: Parameter,
}

impl Dense {
    /// With random weights.
    pub fn new(inputs: usize, outputs: usize, random: &mut Random) -> Dense {
        let weights = Parameter::even(inputs, outputs, random);
        Dense { weights, bias: Parameter::zero_row(outputs) }
    }

    /// An output row for each input row.
    pub fn forward(&self, input: &Matrix) -> Matrix {
        let outputs = self.bias.value.columns();
        let mut output = Matrix::zeros(input.rows(), outputs);
        for row in 0..input.rows() {
            output.row_mut(row).copy_from_slice(self.bias.value.row(0));
        }
        output.add_product(input, &self.weights.value);
        output
    }

    /// From the gradient of the output that of the input; those of the parameters are added up.
    pub fn backward(&mut self, input: &Matrix, gradient: &Matrix) -> Matrix {
        self.learn(input, gradient);
        let mut of_input = Matrix::zeros(input.rows(), input.columns());
        of_input.add_product_transposed(gradient, &self.weights.value);
        of_input
    }

    /// The same where nobody asks for the gradient of the input.
    pub fn learn(&mut self, input: &Matrix, gradient: &Matrix) {
        self.weights.gradient.add_transposed_product(input, gradient);
        let sums = self.bias.gradient.values_mut();
        for row in 0..gradient.rows() {
            for (sum, value) in sums.iter_mut().zip(gradient.row(row)) {
                *sum += value;
            }
        }
    }

    /// In an order that never changes: files rely on it.
    pub fn parameters(&self) -> [&Parameter; 2] {
        [&self.weights, &self.bias]
    }

    /// In the same order.
    pub fn parameters_mut(&mut self) -> [&mut Parameter; 2] {
        [&mut self.weights, &mut self.bias]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::differences::{any, check};

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut random = Random::new(2);
        let mut dense = Dense::new(5, 3, &mut random);
        let input = any(4, 5, &mut random);
        let wish = any(4, 3, &mut random);
        let of_input = dense.backward(&input, &wish);
        let loss = |dense: &Dense, input: &Matrix| dense.forward(input);
        check(&of_input, &wish, &input, |input| loss(&dense, input));
        for place in 0..2 {
            let parameter = dense.parameters()[place];
            check(&parameter.gradient, &wish, &parameter.value, |value| {
                let mut changed = dense.clone();
                changed.parameters_mut()[place].value = value.clone();
                loss(&changed, &input)
            });
        }
    }
}
