//! Adam (Kingma and Ba, 2015), with a bound on the gradient's length: one odd example must not undo what was learned.

use super::Parameter;

/// How fast means of gradients and of their squares forget.
const FORGET: [f32; 2] = [0.9, 0.999];
/// Against division by nothing.
const LEAST: f32 = 1e-8;

/// Changes parameters by their gradients.
#[derive(Clone, Debug, PartialEq)]
pub struct Adam {
    /// How far a step goes. May be changed between steps.
    pub rate: f32,
    /// Longer gradients, over all parameters, are shortened to this.
    pub longest: f32,
    /// By what share of the rate parameters shrink in each step, whatever their gradients (Loshchilov and Hutter):
    /// against learning examples by heart.
    pub decay: f32,
}

impl Adam {
    /// With usual settings but for the rate.
    pub fn new(rate: f32) -> Adam {
        Adam { rate, longest: 1.0, decay: 0.0 }
    }

    /// Change parameters, and forget their gradients.
    pub fn step<'p>(&mut self, parameters: impl IntoIterator<Item = &'p mut Parameter>) {
        let parameters: Vec<&mut Parameter> = parameters.into_iter().collect();
        let squares = parameters.iter().flat_map(|parameter| parameter.gradient.values());
        let length = squares.map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt() as f32;
        // What is no number teaches nothing.
        let scale = match length.is_finite() {
            true if length > self.longest => self.longest / length,
            true => 1.0,
            false => 0.0,
        };
        for parameter in parameters {
            if scale > 0.0 {
                self.change(parameter, scale);
            }
            parameter.gradient.fill(0.0);
        }
    }

    fn change(&self, parameter: &mut Parameter, scale: f32) {
        parameter.steps = parameter.steps.saturating_add(1);
        let [unbias, unbias_squares] =
            FORGET.map(|forget| 1.0 / (1.0 - forget.powi(parameter.steps.min(100_000) as i32)));
        let [means, squares] = &mut parameter.moments;
        let moments = means.values_mut().iter_mut().zip(squares.values_mut());
        let values = parameter.value.values_mut().iter_mut().zip(parameter.gradient.values());
        for ((value, gradient), (mean, square)) in values.zip(moments) {
            let gradient = scale * gradient;
            *mean = FORGET[0] * *mean + (1.0 - FORGET[0]) * gradient;
            *square = FORGET[1] * *square + (1.0 - FORGET[1]) * gradient * gradient;
            *value *= 1.0 - self.rate * self.decay;
            *value -= self.rate * *mean * unbias / ((*square * unbias_squares).sqrt() + LEAST);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::Matrix;

    #[test]
    fn the_first_step_is_as_long_as_the_rate() {
        let mut parameter = Parameter::new(Matrix::from_values(1, 2, vec![1.0, 1.0]));
        parameter.gradient = Matrix::from_values(1, 2, vec![0.01, -0.5]);
        Adam::new(0.1).step([&mut parameter]);
        for (value, expected) in parameter.value.values().iter().zip([0.9, 1.1]) {
            assert!((value - expected).abs() < 1e-4, "{value}");
        }
        assert_eq!(parameter.gradient.values(), [0.0, 0.0]);
    }

    #[test]
    fn what_is_no_number_changes_nothing() {
        let mut parameter = Parameter::new(Matrix::from_values(1, 1, vec![1.0]));
        parameter.gradient = Matrix::from_values(1, 1, vec![f32::NAN]);
        Adam::new(0.1).step([&mut parameter]);
        assert_eq!(parameter.value.values(), [1.0]);
    }
}
