//! How long it takes until a set of flows that begin together is through, where links are shared fairly: all flows grow
//! alike until a link is full, its flows stop growing, the rest go on (max-min fairness). It knows nothing of programs.

use super::{Roads, roads::Route};

/// Bytes on a way.
pub(super) struct Flow {
    pub(super) route: Route,
    pub(super) bytes: f64,
}

/// Seconds until the last byte is through.
pub(super) fn drain(mut flows: Vec<Flow>, roads: &Roads) -> f64 {
    /// What rounding leaves of a flow that is through.
    const THROUGH: f64 = 1e-6;
    let mut seconds = 0.0;
    flows.retain(|flow| flow.bytes > 0.0);
    // In each round at least one flow ends.
    while !flows.is_empty() {
        let rates = shares(&flows, roads);
        let left = |(flow, rate): (&Flow, &f64)| flow.bytes / rate;
        let span = flows.iter().zip(&rates).map(left).fold(f64::INFINITY, f64::min);
        seconds += span;
        for (flow, rate) in flows.iter_mut().zip(&rates) {
            flow.bytes -= rate * span;
            if flow.bytes <= THROUGH * rate * seconds {
                flow.bytes = 0.0;
            }
        }
        flows.retain(|flow| flow.bytes > 0.0);
    }
    seconds
}

/// What each flow gets, in bytes a second.
fn shares(flows: &[Flow], roads: &Roads) -> Vec<f64> {
    let mut free: Vec<f64> = (0..roads.len()).map(|link| roads.byte(link).recip()).collect();
    let mut open = vec![0_u32; roads.len()];
    for flow in flows {
        flow.route.links().iter().for_each(|link| open[*link] += 1);
    }
    let mut rates = vec![0.0; flows.len()];
    let mut growing: Vec<usize> = (0..flows.len()).collect();
    // In each round at least one link is full, and its flows stop.
    while !growing.is_empty() {
        let level = |link: usize| free[link] / f64::from(open[link]);
        let used = (0..roads.len()).filter(|link| open[*link] > 0);
        let least = used.map(level).fold(f64::INFINITY, f64::min);
        // Rounding must not part links that are full together.
        let full: Vec<bool> = (0..roads.len())
            .map(|link| open[link] > 0 && level(link) <= least * (1.0 + 1e-9))
            .collect();
        let (stopped, rest): (Vec<usize>, Vec<usize>) = growing
            .iter()
            .partition(|flow| flows[**flow].route.links().iter().any(|link| full[*link]));
        for flow in &stopped {
            rates[*flow] = least;
            for link in flows[*flow].route.links() {
                free[*link] = (free[*link] - least).max(0.0);
                open[*link] -= 1;
            }
        }
        growing = rest;
    }
    rates
}
