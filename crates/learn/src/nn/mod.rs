//! Layers of small networks, with the gradients worked out by hand: dense, rectifier, convolution, pooling, LSTM, and Adam.
//! They are checked against finite differences. What a network is for is not known here.
//!
//! ```
//! use paceline_learn::{Random, matrix::Matrix, nn::{Adam, Dense, rectified, squared_loss}};
//!
//! let mut random = Random::new(1);
//! let (mut first, mut second) = (Dense::new(1, 16, &mut random), Dense::new(16, 1, &mut random));
//! let input = Matrix::from_values(5, 1, vec![-1.0, -0.5, 0.0, 0.5, 1.0]);
//! let wanted = Matrix::from_values(5, 1, vec![1.0, 0.25, 0.0, 0.25, 1.0]);
//! let mut adam = Adam::new(0.01);
//! let mut last = f32::MAX;
//! for _ in 0..500 {
//!     let hidden = rectified(first.forward(&input));
//!     let (loss, gradient) = squared_loss(&second.forward(&hidden), &wanted);
//!     let mut gradient = second.backward(&hidden, &gradient);
//!     paceline_learn::nn::rectified_backward(&hidden, &mut gradient);
//!     first.backward(&input, &gradient);
//!     adam.step(first.parameters_mut().into_iter().chain(second.parameters_mut()));
//!     last = loss;
//! }
//! assert!(last < 0.01);
//! ```

mod adam;
mod classes;
mod convolution;
mod dense;
mod loss;
mod lstm;
mod network;
mod parameter;
mod pooling;
mod rectifier;

#[cfg(test)]
mod differences;

pub use adam::Adam;
pub use classes::{classification_loss, right_classes};
pub use convolution::{Convolution, ImageShape};
pub use dense::Dense;
pub use loss::squared_loss;
pub use lstm::{Lstm, LstmTrace};
pub use network::{Activations, Layer, Network};
pub use parameter::Parameter;
pub use pooling::Pooling;
pub use rectifier::{rectified, rectified_backward};
