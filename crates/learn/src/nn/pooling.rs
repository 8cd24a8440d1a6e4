//! Of each square of two by two places of an image, the largest value.

use super::ImageShape;
use crate::matrix::Matrix;

/// Halves height and width of images. A last row or column that has no partner is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pooling {
    input: ImageShape,
}

impl Pooling {
    /// Of images like these.
    pub fn new(input: ImageShape) -> Pooling {
        Pooling { input }
    }

    /// What its output is like.
    pub fn output(self) -> ImageShape {
        let ImageShape { channels, height, width } = self.input;
        ImageShape { channels, height: height / 2, width: width / 2 }
    }

    /// An output image for each input image.
    pub fn forward(self, input: &Matrix) -> Matrix {
        let mut output = Matrix::zeros(input.rows(), self.output().values());
        for row in 0..input.rows() {
            let image = input.row(row);
            for (place, value) in output.row_mut(row).iter_mut().enumerate() {
                *value = image[self.largest(image, place)];
            }
        }
        output
    }

    /// From the gradient of the output that of the input: all of it belongs to the value that was the largest.
    pub fn backward(self, input: &Matrix, gradient: &Matrix) -> Matrix {
        let mut of_input = Matrix::zeros(input.rows(), input.columns());
        for row in 0..input.rows() {
            let (image, to) = (input.row(row), of_input.row_mut(row));
            for (place, value) in gradient.row(row).iter().enumerate() {
                to[self.largest(image, place)] += value;
            }
        }
        of_input
    }

    /// Where the largest value of an output's square is; the first of equal ones.
    fn largest(self, image: &[f32], place: usize) -> usize {
        let ImageShape { height, width, .. } = self.output();
        let (line, column) = (place / width, place % width);
        let (channel, row) = (line / height, line % height);
        let first = (channel * self.input.height + 2 * row) * self.input.width + 2 * column;
        let below = first + self.input.width;
        let larger =
            |best: usize, other: usize| if image[other] > image[best] { other } else { best };
        [first + 1, below, below + 1].into_iter().fold(first, larger)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Random, nn::differences::check};

    #[test]
    fn the_largest_of_each_square_stays() {
        let pooling = Pooling::new(ImageShape { channels: 1, height: 2, width: 5 });
        let image = Matrix::from_values(1, 10, vec![1., 2., -4., -3., 9., 0., 5., -1., -2., 9.]);
        assert_eq!(pooling.forward(&image).values(), [5.0, -1.0]);
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let shape = ImageShape { channels: 3, height: 5, width: 4 };
        let pooling = Pooling::new(shape);
        let mut random = Random::new(4);
        // Values that are far apart, so that the largest stays the largest when it is moved a little.
        let mut values: Vec<f32> = (0..2 * shape.values()).map(|value| value as f32).collect();
        for place in (1..values.len()).rev() {
            values.swap(place, random.below(place as u64 + 1) as usize);
        }
        let input = Matrix::from_values(2, shape.values(), values);
        let wish = crate::nn::differences::any(2, pooling.output().values(), &mut random);
        let of_input = pooling.backward(&input, &wish);
        check(&of_input, &wish, &input, |input| pooling.forward(input));
    }
}
