//! Table II of the DS-Sync paper: latency and transfer delay of one synchronisation, as it is printed there.
//!
//! It is here to be compared with, not to decide by. The paper leaves L, k and P loosely defined; here L is the number of
//! links on a way, k the number of pieces that a tree pipelines, and P the number of servers. Its transfer between two
//! workers is counted there and back, twice what a full-duplex exchange takes.

use serde::Serialize;

/// The symbols of the table.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Symbols {
    /// N: workers.
    pub workers: f64,
    /// C: racks.
    pub racks: f64,
    /// G: workers of a rack.
    pub per_rack: f64,
    /// α: seconds of propagation over a link.
    pub alpha: f64,
    /// β₁: seconds for a byte inside a rack.
    pub beta_inside: f64,
    /// β₂: seconds for a byte between racks.
    pub beta_between: f64,
    /// L: links on a way.
    pub hops: f64,
    /// S: bytes of all parameters.
    pub bytes: f64,
    /// k: pieces that a tree pipelines.
    pub pieces: f64,
    /// P: servers.
    pub servers: f64,
}

/// The rows of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// All workers push to and pull from servers.
    ParameterServer,
    /// One ring of all workers.
    Ring,
    /// Two trees.
    DoubleTree,
    /// Rings inside racks, then one between them.
    Hierarchical,
    /// Pairs; the transfer is a lower bound.
    Gossip,
    /// Divide and shuffle.
    DsSync,
}

impl Method {
    /// In the table's order.
    pub const ALL: [Method; 6] = [
        Method::ParameterServer,
        Method::Ring,
        Method::DoubleTree,
        Method::Hierarchical,
        Method::Gossip,
        Method::DsSync,
    ];

    /// The strategy here that is nearest to it.
    pub fn strategy(self) -> &'static str {
        match self {
            Method::ParameterServer => "parameter_server",
            Method::Ring => "ring",
            Method::DoubleTree => "double_tree",
            Method::Hierarchical => "hierarchical:racks",
            Method::Gossip => "gossip",
            Method::DsSync => "shuffle",
        }
    }
}

/// One row: seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Delay {
    /// Propagation.
    pub latency: f64,
    /// Bytes.
    pub transfer: f64,
}

impl Delay {
    /// Both together.
    pub fn seconds(self) -> f64 {
        self.latency + self.transfer
    }
}

/// A row of the table with numbers in it. Groups of DS-Sync run side by side, so its two entries make one maximum.
pub fn delay(method: Method, symbols: &Symbols) -> Delay {
    let Symbols {
        workers: n,
        racks: c,
        per_rack: g,
        alpha,
        beta_inside: b1,
        beta_between: b2,
        hops: l,
        bytes: s,
        pieces: k,
        servers: p,
    } = *symbols;
    let step = l * alpha;
    let depth = n.log2() + k;
    let (latency, transfer) = match method {
        Method::ParameterServer => {
            (2.0 * (n - 1.0) * step, 2.0 * ((c - 1.0) * g * s * b2 + (g - 1.0) * s * b1) / p)
        }
        Method::Ring => (2.0 * (n - 1.0) * step, 2.0 * (n - 1.0) * s * b2 / n),
        Method::DoubleTree => (2.0 * depth * step, 2.0 * depth * s * b2 / k),
        Method::Hierarchical => (
            2.0 * (g + c - 2.0) * step,
            2.0 * (g - 1.0) * s * b1 / g + 2.0 * (c - 1.0) * s * b2 / c,
        ),
        Method::Gossip => (2.0 * step, 4.0 * s * b2),
        Method::DsSync => {
            let inside = if g > 1.0 { 2.0 * (g - 2.0).max(0.0) * s * b1 / (g - 1.0) } else { 0.0 };
            (2.0 * step * (g - 1.0).max(1.0), (2.0 * s * b2).max(inside))
        }
    };
    Delay { latency, transfer }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 4 racks of 8, a second for a byte between racks and a tenth inside.
    const CASE: Symbols = Symbols {
        workers: 32.0,
        racks: 4.0,
        per_rack: 8.0,
        alpha: 1.0,
        beta_inside: 0.1,
        beta_between: 1.0,
        hops: 2.0,
        bytes: 100.0,
        pieces: 5.0,
        servers: 4.0,
    };

    #[test]
    fn the_rows_are_those_of_the_paper() {
        let row = |method| {
            let Delay { latency, transfer } = delay(method, &CASE);
            (latency, (transfer * 1000.0_f64).round() / 1000.0)
        };
        assert_eq!(row(Method::ParameterServer), (124.0, 1235.0));
        assert_eq!(row(Method::Ring), (124.0, 193.75));
        assert_eq!(row(Method::DoubleTree), (40.0, 400.0));
        assert_eq!(row(Method::Hierarchical), (40.0, 167.5));
        assert_eq!(row(Method::Gossip), (4.0, 400.0));
        assert_eq!(row(Method::DsSync), (28.0, 200.0));
    }

    #[test]
    fn a_ring_of_32_takes_what_the_paper_calls_94_percent_more_than_a_pair() {
        let ring = delay(Method::Ring, &CASE).transfer;
        let exchange = CASE.bytes * CASE.beta_between;
        assert!((ring / exchange - 1.9375).abs() < 1e-12);
    }
}
