//! What a strategy loses at the slowest link, at best: pure, from its programs. It knows no measurement.

use paceline_job::{ByteSize, Topology, View};
use paceline_replay::TCP_OVER_ETHERNET;
use paceline_sync::{
    cost::{Roads, price},
    groups::Terrain,
    strategy::find_on,
};
use std::sync::Arc;

/// What the tensor takes once each way over the slowest link, in seconds, of which headers take their part: the least with which
/// anybody behind that link can average.
pub fn least_seconds(topology: &Topology, bytes: ByteSize) -> f64 {
    bytes.0 as f64 / (TCP_OVER_ETHERNET * topology.bottleneck().rate.bytes_per_second())
}

/// How many times the tensor a strategy takes over its busiest link, in units of what the network's slowest link takes for
/// the tensor once each way. None for `auto`, which is several strategies.
pub fn least_share(view: &View, topology: &Topology, bytes: ByteSize) -> Option<f64> {
    let settings = &view.settings;
    let strategy = find_on(&settings.strategy.0, Terrain::of_view(view)).ok()?;
    let roads = Roads::of(view, &Arc::new(topology.clone()))?;
    let cost =
        price(strategy.as_ref(), &view.host_indices().into(), &roads, bytes, settings.partition);
    let once = bytes.0 as f64 / topology.bottleneck().rate.bytes_per_second();
    Some(cost.busy.as_secs_f64() / once)
}

#[cfg(test)]
mod tests {
    use super::{
        super::grid::{Slow, topology_of, view_of},
        *,
    };
    use paceline_job::{Settings, StrategyChoice};
    use paceline_testbed::Spec;
    use std::time::Duration;

    #[test]
    fn a_ring_takes_a_slow_link_almost_twice() {
        let spec = Spec::new(4, "100mbit".parse().unwrap());
        let topology = topology_of(&spec, &Slow::new(), Duration::ZERO).unwrap();
        let of = |name: &str| {
            let settings =
                Settings { strategy: StrategyChoice(name.into()), ..Settings::default() };
            least_share(&view_of(&spec, settings), &topology, ByteSize::mib(4))
        };
        assert!((of("ring").unwrap() - 1.5).abs() < 0.01, "{:?}", of("ring"));
        assert!((of("shuffle").unwrap() - 1.0).abs() < 0.01, "{:?}", of("shuffle"));
        assert_eq!(of("auto"), None);
    }
}
