//! Partial replay: what it takes to synchronise one tensor, by its length, played by the engines without the rest of the
//! job. Lengths are played once; what lies between them is on a line. What a whole step makes of it is not known here.

use super::{Scenario, play};
use crate::error::ReplayError;
use paceline_job::{
    Dtype,
    graph::layered::{LayerTimes, Layered},
    trace::{Layer, Tensor},
};

/// Lengths that are played, in bytes.
const FIRST: u64 = 4 << 10;
const FACTOR: u64 = 4;
/// Beyond so many chunks, each further one takes as long as the one before.
const CHUNKS: u64 = 32;

/// What tensors take by themselves, under the conditions of one scenario.
#[derive(Clone, Debug, PartialEq)]
pub struct Prices {
    /// By length, ascending; never empty.
    points: Vec<Point>,
    events: u64,
}

/// One length. Times are nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: f64,
    /// From the last worker's post to the end everywhere, with nothing else on the way.
    alone: f64,
    /// What a second tensor adds that is posted with the first: latency that pipelines hide is not in it.
    occupied: f64,
}

impl Prices {
    /// Under the conditions of a scenario, for tensors of up to `longest` bytes and, by extension, beyond. The
    /// scenario's own graph gives the workers and is not played.
    pub fn of(scenario: &Scenario, longest: u64) -> Result<Prices, ReplayError> {
        let most = longest.min(scenario.settings.partition.0.saturating_mul(CHUNKS)).max(FIRST);
        let mut prices = Prices { points: Vec::new(), events: 0 };
        let mut bytes = FIRST;
        // At most 32 turns: lengths are 64 bits and grow fourfold.
        while bytes < most {
            prices.add(scenario, bytes)?;
            bytes = bytes.saturating_mul(FACTOR);
        }
        prices.add(scenario, most)?;
        Ok(prices)
    }

    fn add(&mut self, scenario: &Scenario, bytes: u64) -> Result<(), ReplayError> {
        let mut played = |tensors: usize| -> Result<f64, ReplayError> {
            let graph = of_equal_tensors(scenario, bytes, tensors).graph();
            let played = play(&graph, &scenario.network())?;
            self.events += played.events;
            Ok(played.step_ms(0) * 1e6)
        };
        let (alone, both) = (played(1)?, played(2)?);
        let occupied = (both - alone).clamp(0.0, alone);
        self.points.push(Point { bytes: bytes as f64, alone, occupied });
        Ok(())
    }

    /// Nanoseconds that so many bytes take by themselves.
    pub fn alone(&self, bytes: f64) -> f64 {
        self.on_line(bytes, |point| point.alone)
    }

    /// Nanoseconds for which so many bytes keep others from going on.
    pub fn occupied(&self, bytes: f64) -> f64 {
        self.on_line(bytes, |point| point.occupied).min(self.alone(bytes))
    }

    /// Tensors that were played.
    pub fn tensors(&self) -> usize {
        // One by itself and two together for each length.
        3 * self.points.len()
    }

    /// Engine events that it took.
    pub fn events(&self) -> u64 {
        self.events
    }

    fn on_line(&self, bytes: f64, value: impl Fn(&Point) -> f64) -> f64 {
        let points = &self.points;
        let last = points.len() - 1;
        if last == 0 {
            return value(&points[0]) * (bytes / points[0].bytes).max(1.0);
        }
        let after = points.partition_point(|point| point.bytes < bytes).clamp(1, last);
        let (one, other) = (&points[after - 1], &points[after]);
        let slope = (value(other) - value(one)) / (other.bytes - one.bytes);
        (value(one) + slope * (bytes - one.bytes)).max(0.0)
    }
}

/// The scenario's workers with nothing to do but to synchronise tensors of one length, all at once.
pub(super) fn of_equal_tensors(scenario: &Scenario, bytes: u64, count: usize) -> Layered {
    let dtype = Dtype::F32;
    let elements = bytes / dtype.size() as u64;
    let tensor = |place| Tensor { name: format!("tensor {place}").into(), elements, dtype };
    let tensors = (0..count).map(tensor).collect();
    let layers = vec![Layer { name: "tensors".into(), tensors, activation_bytes: 0 }];
    let hosts = scenario.graph.workers.iter().map(|worker| worker.host.clone()).collect();
    let alike = Layered::alike(layers, &[LayerTimes::default()], hosts, 1);
    Layered { crosses_step: false, ..alike }
}
