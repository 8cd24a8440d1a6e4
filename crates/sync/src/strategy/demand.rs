//! What a strategy asks of the network for one chunk, as numbers that a cost model can price.
//!
//! Each strategy states its own demand in a closed formula; a test counts the same numbers from its programs.
//! It knows nothing of rates or latencies.

/// The same quantity inside hosts and between them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sides<T> {
    /// Between members of one host.
    pub memory: T,
    /// Between hosts.
    pub wire: T,
}

/// What one chunk demands.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Demand {
    /// Messages one after another on the longest way from a contribution to the last result.
    pub rounds: Sides<u32>,
    /// Bytes that pass one after another on that way.
    pub path_bytes: Sides<f64>,
    /// Bytes that the busiest member moves through memory, and the busiest host over its wire, one way.
    /// When many chunks follow each other, this is what limits them.
    pub busiest_bytes: Sides<f64>,
    /// Messages that the busiest member sends.
    pub messages: u32,
    /// How many hosts send to the same one at once.
    pub fan_in: u32,
}
