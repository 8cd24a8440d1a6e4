//! Layers one after the other, and the two passes through them. Before a layer is used and as soon as its gradient is
//! known the caller is told, so that it can wait for parameters and hand gradients over layer by layer. What happens
//! there is not known here.

use super::{Convolution, Dense, Parameter, Pooling, rectified, rectified_backward};
use crate::matrix::Matrix;

/// One layer.
#[derive(Clone, Debug, PartialEq)]
pub enum Layer {
    /// Of images.
    Convolution(Convolution),
    /// Of images.
    Pooling(Pooling),
    /// Of anything.
    Rectifier,
    /// Of anything.
    Dense(Dense),
}

impl Layer {
    /// What it learns, in an order that never changes; some layers learn nothing.
    pub fn parameters_mut(&mut self) -> Option<[&mut Parameter; 2]> {
        match self {
            Layer::Convolution(layer) => Some(layer.parameters_mut()),
            Layer::Dense(layer) => Some(layer.parameters_mut()),
            Layer::Pooling(_) | Layer::Rectifier => None,
        }
    }

    /// Whether it learns anything.
    pub fn learns(&self) -> bool {
        matches!(self, Layer::Convolution(_) | Layer::Dense(_))
    }

    fn forward(&self, input: &Matrix) -> Matrix {
        match self {
            Layer::Convolution(layer) => layer.forward(input),
            Layer::Pooling(layer) => layer.forward(input),
            Layer::Rectifier => rectified(input.clone()),
            Layer::Dense(layer) => layer.forward(input),
        }
    }

    fn backward(&mut self, input: &Matrix, mut gradient: Matrix) -> Matrix {
        match self {
            Layer::Convolution(layer) => layer.backward(input, &gradient),
            Layer::Pooling(layer) => layer.backward(input, &gradient),
            Layer::Rectifier => {
                // What is positive goes through as it is: the input tells as well as the output.
                rectified_backward(input, &mut gradient);
                gradient
            }
            Layer::Dense(layer) => layer.backward(input, &gradient),
        }
    }

    /// Where nobody asks for the gradient of the input.
    fn learn(&mut self, input: &Matrix, gradient: &Matrix) {
        match self {
            Layer::Convolution(layer) => layer.learn(input, gradient),
            Layer::Dense(layer) => layer.learn(input, gradient),
            Layer::Pooling(_) | Layer::Rectifier => {}
        }
    }
}

/// What each layer was given in a forward pass, and what came out of the last.
#[derive(Clone, Debug)]
pub struct Activations {
    inputs: Vec<Matrix>,
    output: Matrix,
}

impl Activations {
    /// What came out of the last layer.
    pub fn output(&self) -> &Matrix {
        &self.output
    }
}

/// Layers one after the other.
#[derive(Clone, Debug, PartialEq)]
pub struct Network {
    /// The first one first.
    pub layers: Vec<Layer>,
}

impl Network {
    /// What comes out, for those who only want to know that.
    pub fn output(&self, input: Matrix) -> Matrix {
        self.layers.iter().fold(input, |values, layer| layer.forward(&values))
    }

    /// A forward pass. `before` is called with every layer that learns, right before it is used; what it fails with ends
    /// the pass.
    pub fn forward<E>(
        &mut self,
        input: Matrix,
        mut before: impl FnMut(usize, &mut Layer) -> Result<(), E>,
    ) -> Result<Activations, E> {
        let mut inputs = Vec::with_capacity(self.layers.len());
        let mut values = input;
        for (place, layer) in self.layers.iter_mut().enumerate() {
            if layer.learns() {
                before(place, layer)?;
            }
            let output = layer.forward(&values);
            inputs.push(std::mem::replace(&mut values, output));
        }
        Ok(Activations { inputs, output: values })
    }

    /// A backward pass, from the gradient of the output. `after` is called with every layer that learns, the last one
    /// first, as soon as its gradient is known; what it fails with ends the pass.
    pub fn backward<E>(
        &mut self,
        activations: Activations,
        gradient: Matrix,
        mut after: impl FnMut(usize, &mut Layer) -> Result<(), E>,
    ) -> Result<(), E> {
        // Below the first layer that learns nobody needs a gradient.
        let first = self.layers.iter().position(Layer::learns).unwrap_or(self.layers.len());
        let mut gradient = gradient;
        let passes = self.layers.iter_mut().zip(activations.inputs).enumerate().skip(first);
        for (place, (layer, input)) in passes.rev() {
            if place == first {
                layer.learn(&input, &gradient);
            } else {
                gradient = layer.backward(&input, gradient);
            }
            if layer.learns() {
                after(place, layer)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Random,
        nn::{
            Adam, ImageShape,
            classes::classification_loss,
            differences::{any, check},
        },
    };
    use std::convert::Infallible;

    const SHAPE: ImageShape = ImageShape { channels: 1, height: 6, width: 6 };

    fn small(random: &mut Random) -> Network {
        let convolution = Convolution::new(SHAPE, 2, 3, random);
        let pooling = Pooling::new(convolution.output());
        let dense = Dense::new(pooling.output().values(), 3, random);
        let layers = vec![
            Layer::Convolution(convolution),
            Layer::Rectifier,
            Layer::Pooling(pooling),
            Layer::Dense(dense),
        ];
        Network { layers }
    }

    fn passes(network: &mut Network, input: &Matrix, wish: &Matrix) -> (Vec<usize>, Vec<usize>) {
        let (mut waited, mut known) = (Vec::new(), Vec::new());
        let note = |list: &mut Vec<usize>, place| {
            list.push(place);
            Ok::<(), Infallible>(())
        };
        let Ok(activations) = network.forward(input.clone(), |place, _| note(&mut waited, place));
        let Ok(()) =
            network.backward(activations, wish.clone(), |place, _| note(&mut known, place));
        (waited, known)
    }

    #[test]
    fn layers_are_asked_for_in_order_and_gradients_come_from_the_last() {
        let mut random = Random::new(5);
        let mut network = small(&mut random);
        let (input, wish) = (any(1, 36, &mut random), any(1, 3, &mut random));
        assert_eq!(passes(&mut network, &input, &wish), (vec![0, 3], vec![3, 0]));
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        let mut random = Random::new(6);
        let mut network = small(&mut random);
        let (input, wish) = (any(2, 36, &mut random), any(2, 3, &mut random));
        let before = network.clone();
        passes(&mut network, &input, &wish);
        for place in [0, 3] {
            for which in 0..2 {
                let parameter = |network: &mut Network| {
                    let parameters = network.layers[place].parameters_mut();
                    parameters.map(|parameters| parameters[which].clone())
                };
                let Some(learned) = parameter(&mut network) else { panic!("layer {place} learns") };
                check(&learned.gradient, &wish, &learned.value, |value| {
                    let mut changed = before.clone();
                    if let Some(parameters) = changed.layers[place].parameters_mut() {
                        parameters[which].value = value.clone();
                    }
                    changed.output(input.clone())
                });
            }
        }
    }

    #[test]
    fn a_convolutional_network_learns_where_the_bright_spot_is() {
        let mut random = Random::new(7);
        let mut network = small(&mut random);
        let mut adam = Adam::new(0.02);
        let mut last = f32::MAX;
        for _ in 0..150 {
            let mut images = any(12, 36, &mut random);
            let labels: Vec<u8> = (0..12).map(|row| row as u8 % 3).collect();
            for (row, label) in labels.iter().enumerate() {
                images.row_mut(row)[12 * usize::from(*label) + 8] += 6.0;
            }
            let Ok(activations) = network.forward(images, |_, _| Ok::<(), Infallible>(()));
            let (loss, gradient) = classification_loss(activations.output(), &labels);
            let Ok(()) = network.backward(activations, gradient, |_, layer| {
                adam.step(layer.parameters_mut().into_iter().flatten());
                Ok::<(), Infallible>(())
            });
            last = loss;
        }
        assert!(last < 0.3, "{last}");
    }
}
