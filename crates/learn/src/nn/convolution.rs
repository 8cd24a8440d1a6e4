//! A convolution of images: every place of the output is a weighted sum of a square of the input, with the same weights
//! everywhere. Each image is unfolded so that this becomes one product of matrices.

use super::Parameter;
use crate::{Random, matrix::Matrix};

/// What a row means that is an image: channel after channel, each row after row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImageShape {
    /// Values of each place.
    pub channels: usize,
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
}

impl ImageShape {
    /// How many values it has.
    pub const fn values(self) -> usize {
        self.channels * self.height * self.width
    }

    /// How many places each channel has.
    pub(super) const fn places(self) -> usize {
        self.height * self.width
    }
}

/// A convolution without padding: the output is smaller by the kernel's size less one.
#[derive(Clone, Debug, PartialEq)]
pub struct Convolution {
    /// A row for each channel of the output; in it a square for each channel of the input.
    pub weights: Parameter,
    /// One value for each channel of the output.
    pub bias: Parameter,
    input: ImageShape,
    output: ImageShape,
    /// Rows and columns of a square.
    kernel: usize,
}

impl Convolution {
    /// With random weights, for what goes through a rectifier next.
    ///
    /// # Panics
    /// If the kernel has no size, or a larger one than images have.
    pub fn new(
        input: ImageShape,
        channels: usize,
        kernel: usize,
        random: &mut Random,
    ) -> Convolution {
        assert!(kernel > 0 && kernel <= input.height.min(input.width), "a kernel of {kernel}");
        let factors = input.channels * kernel * kernel;
        let (height, width) = (input.height - kernel + 1, input.width - kernel + 1);
        Convolution {
            weights: Parameter::for_rectifier(channels, factors, random),
            bias: Parameter::zero_row(channels),
            input,
            output: ImageShape { channels, height, width },
            kernel,
        }
    }

    /// What its output is like.
    pub fn output(&self) -> ImageShape {
        self.output
    }

    /// An output image for each input image.
    pub fn forward(&self, input: &Matrix) -> Matrix {
        let ImageShape { channels, .. } = self.output;
        let places = self.output.places();
        let mut output = Matrix::zeros(input.rows(), self.output.values());
        let mut unfolded = self.unfolded_zeros();
        let mut image = Matrix::zeros(channels, places);
        for row in 0..input.rows() {
            self.unfold(input.row(row), &mut unfolded);
            for (channel, bias) in self.bias.value.values().iter().enumerate() {
                image.row_mut(channel).fill(*bias);
            }
            image.add_product(&self.weights.value, &unfolded);
            output.row_mut(row).copy_from_slice(image.values());
        }
        output
    }

    /// From the gradient of the output that of the input; those of the parameters are added up.
    pub fn backward(&mut self, input: &Matrix, gradient: &Matrix) -> Matrix {
        let mut of_input = Matrix::zeros(input.rows(), input.columns());
        let mut of_unfolded = self.unfolded_zeros();
        self.learn_and(input, gradient, |layer, row, of_image| {
            of_unfolded.fill(0.0);
            of_unfolded.add_transposed_product(&layer.weights.value, of_image);
            layer.fold(&of_unfolded, of_input.row_mut(row));
        });
        of_input
    }

    /// The same where nobody asks for the gradient of the input.
    pub fn learn(&mut self, input: &Matrix, gradient: &Matrix) {
        self.learn_and(input, gradient, |_, _, _| ());
    }

    /// Learn, and do something with each image's gradient.
    fn learn_and(
        &mut self,
        input: &Matrix,
        gradient: &Matrix,
        mut and: impl FnMut(&Convolution, usize, &Matrix),
    ) {
        let mut unfolded = self.unfolded_zeros();
        let mut of_image = Matrix::zeros(self.output.channels, self.output.places());
        for row in 0..input.rows() {
            self.unfold(input.row(row), &mut unfolded);
            of_image.values_mut().copy_from_slice(gradient.row(row));
            self.weights.gradient.add_product_transposed(&of_image, &unfolded);
            for (channel, sum) in self.bias.gradient.values_mut().iter_mut().enumerate() {
                *sum += of_image.row(channel).iter().sum::<f32>();
            }
            and(self, row, &of_image);
        }
    }

    /// In an order that never changes.
    pub fn parameters_mut(&mut self) -> [&mut Parameter; 2] {
        [&mut self.weights, &mut self.bias]
    }

    /// Room for an image with a row for each weight of a channel, and a column for each place of the output.
    fn unfolded_zeros(&self) -> Matrix {
        Matrix::zeros(self.weights.value.columns(), self.output.places())
    }

    fn unfold(&self, image: &[f32], unfolded: &mut Matrix) {
        self.runs(|weight, at_output, at_input| {
            let run = &image[at_input..][..self.output.width];
            unfolded.row_mut(weight)[at_output..][..self.output.width].copy_from_slice(run);
        });
    }

    /// Add up in each place of an image what all squares have for it.
    fn fold(&self, unfolded: &Matrix, image: &mut [f32]) {
        self.runs(|weight, at_output, at_input| {
            let run = &unfolded.row(weight)[at_output..][..self.output.width];
            let sums = &mut image[at_input..][..self.output.width];
            sums.iter_mut().zip(run).for_each(|(sum, value)| *sum += value);
        });
    }

    /// For every weight of a channel and every row of the output: the weight, where the row begins in the output's channel,
    /// and where what the weight sees of it begins in the input.
    fn runs(&self, mut run: impl FnMut(usize, usize, usize)) {
        let ImageShape { channels, height, width } = self.input;
        for weight in 0..channels * self.kernel * self.kernel {
            let (channel, square) =
                (weight / (self.kernel * self.kernel), weight % (self.kernel * self.kernel));
            let (down, right) = (square / self.kernel, square % self.kernel);
            for row in 0..self.output.height {
                let at_input = (channel * height + row + down) * width + right;
                run(weight, row * self.output.width, at_input);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::differences::{any, check};

    const SHAPE: ImageShape = ImageShape { channels: 2, height: 5, width: 4 };

    #[test]
    fn outputs_are_those_of_the_definition() {
        let mut random = Random::new(1);
        let convolution = Convolution::new(SHAPE, 3, 2, &mut random);
        let input = any(2, SHAPE.values(), &mut random);
        let output = convolution.forward(&input);
        let to = convolution.output();
        assert_eq!(to, ImageShape { channels: 3, height: 4, width: 3 });
        for (image, channel) in [(0, 0), (1, 2)] {
            for (row, column) in [(0, 0), (3, 2), (1, 1)] {
                let mut expected = convolution.bias.value.values()[channel];
                for from in 0..2 {
                    for (down, right) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
                        let at = (from * 5 + row + down) * 4 + column + right;
                        let weight = from * 4 + down * 2 + right;
                        let weight = convolution.weights.value.row(channel)[weight];
                        expected += weight * input.row(image)[at];
                    }
                }
                let found = output.row(image)[(channel * 4 + row) * 3 + column];
                assert!((found - expected).abs() < 1e-5, "{found} {expected}");
            }
        }
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut random = Random::new(2);
        let mut convolution = Convolution::new(SHAPE, 3, 2, &mut random);
        let input = any(2, SHAPE.values(), &mut random);
        let wish = any(2, convolution.output().values(), &mut random);
        let of_input = convolution.backward(&input, &wish);
        check(&of_input, &wish, &input, |input| convolution.forward(input));
        for place in 0..2 {
            let mut copy = convolution.clone();
            let [weights, bias] = copy.parameters_mut();
            let parameter = if place == 0 { weights } else { bias };
            check(&parameter.gradient, &wish, &parameter.value, |value| {
                let mut changed = convolution.clone();
                changed.parameters_mut()[place].value = value.clone();
                changed.forward(&input)
            });
        }
    }

    #[test]
    fn learning_alone_gives_the_same_gradients() {
        let mut random = Random::new(3);
        let mut convolution = Convolution::new(SHAPE, 2, 3, &mut random);
        let input = any(3, SHAPE.values(), &mut random);
        let gradient = any(3, convolution.output().values(), &mut random);
        let mut other = convolution.clone();
        convolution.backward(&input, &gradient);
        other.learn(&input, &gradient);
        assert_eq!(convolution, other);
    }
}
