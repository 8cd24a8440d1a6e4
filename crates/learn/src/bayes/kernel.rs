//! How alike the values of two points are, by their distance.

/// How smooth the functions are that one believes in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Smoothness {
    /// Twice differentiable (Matérn 5/2): what measured times usually are.
    #[default]
    Matern,
    /// Without any corner (radial basis functions).
    Smooth,
}

/// How alike values are.
#[derive(Clone, Debug, PartialEq)]
pub struct Kernel {
    /// Of the functions.
    pub smoothness: Smoothness,
    /// For each coordinate, how far away a value still says something.
    pub scales: Vec<f64>,
    /// The variance of values.
    pub variance: f64,
}

impl Kernel {
    /// The covariance of the values at two points.
    pub fn covariance(&self, one: &[f64], other: &[f64]) -> f64 {
        let coordinates = one.iter().zip(other).zip(&self.scales);
        let square: f64 =
            coordinates.map(|((one, other), scale)| ((one - other) / scale).powi(2)).sum();
        self.variance
            * match self.smoothness {
                Smoothness::Smooth => (-0.5 * square).exp(),
                Smoothness::Matern => {
                    let distance = (5.0 * square).sqrt();
                    (1.0 + distance + distance * distance / 3.0) * (-distance).exp()
                }
            }
    }
}
