//! Whether something slow lies between workers, by what they get from each other. What their own wires carry is not known here.

use paceline_sync::metrics::WorkerMetrics;

/// A way that carries less than this share of what both its ends get and give elsewhere crosses something slow. Flows that share
/// a wire are unlike, too, but not by as much.
const FAR: f64 = 0.4;

/// Who sends less than this share of what goes between those that exchange most says nothing.
const LITTLE: f64 = 0.1;

/// What one place gets from another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Flow {
    pub from: usize,
    pub to: usize,
    /// Bytes a second.
    pub rate: f64,
    pub bytes: f64,
}

/// Places that are near each other, apart from the others.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parts {
    /// Of each place.
    pub of: Vec<u32>,
    /// What goes between each part and all others, in bytes a second, in the direction in which that is more. What shares something
    /// slow is on its way at the same time, so that together it is what that carries.
    pub between: Vec<f64>,
}

/// All flows that workers tell of, between the places where they sit.
pub(crate) fn flows(workers: &[WorkerMetrics], place: impl Fn(usize) -> usize) -> Vec<Flow> {
    let mut flows: Vec<Flow> = Vec::new();
    for (rank, worker) in workers.iter().enumerate() {
        for told in &worker.flows {
            if told.from.index() >= workers.len() {
                continue;
            }
            let (from, to) = (place(told.from.index()), place(rank));
            match flows.iter_mut().find(|flow| (flow.from, flow.to) == (from, to)) {
                Some(flow) => {
                    flow.rate += told.rate();
                    flow.bytes += told.all;
                }
                None if from != to => {
                    flows.push(Flow { from, to, rate: told.rate(), bytes: told.all });
                }
                None => {}
            }
        }
    }
    flows
}

/// The parts that slow ways divide `count` places into. `None` if there is one only, or if it is not known of all what they get or
/// give.
///
/// A place that is slow itself is slow in all it gets and gives, and so no part of its own: it is near whom it exchanges most with.
pub(crate) fn parts(count: usize, flows: &[Flow]) -> Option<Parts> {
    let most = flows.iter().map(|flow| flow.bytes).fold(0.0, f64::max);
    let flows: Vec<&Flow> = flows.iter().filter(|flow| flow.bytes >= LITTLE * most).collect();
    let mut best = vec![0.0_f64; count];
    for flow in &flows {
        for end in [flow.from, flow.to] {
            best[end] = best[end].max(flow.rate);
        }
    }
    if best.contains(&0.0) {
        return None;
    }
    // Each place is first a part of its own; whoever is near another joins its part.
    let mut of: Vec<usize> = (0..count).collect();
    for flow in &flows {
        let near = flow.rate >= FAR * best[flow.from].min(best[flow.to]);
        let (one, other) = (of[flow.from], of[flow.to]);
        if near && one != other {
            of.iter_mut().filter(|part| **part == other).for_each(|part| *part = one);
        }
    }
    let mut numbers: Vec<usize> = of.clone();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() < 2 {
        return None;
    }
    let of: Vec<usize> =
        of.iter().map(|part| numbers.partition_point(|number| number < part)).collect();
    let between = (0..numbers.len()).map(|part| {
        let crossing = flows.iter().filter(|flow| of[flow.from] != of[flow.to]);
        let [out, into] = [|flow: &Flow| flow.from, |flow: &Flow| flow.to]
            .map(|end| together(crossing.clone().filter(|flow| of[end(flow)] == part).copied()));
        out.max(into)
    });
    let between: Vec<f64> = between.collect();
    if between.contains(&0.0) {
        return None;
    }
    Some(Parts { of: of.into_iter().map(|part| part as u32).collect(), between })
}

/// The rate of flows that are on their way at the same time: all their bytes in the time of the one that takes longest.
fn together<'f>(flows: impl Iterator<Item = &'f Flow>) -> f64 {
    let (bytes, seconds) = flows.fold((0.0, 0.0_f64), |(bytes, seconds), flow| {
        (bytes + flow.bytes, seconds.max(flow.bytes / flow.rate))
    });
    if seconds > 0.0 { bytes / seconds } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WIRE: f64 = 1e9;

    /// Among 8 places, everybody gets this from those for whom there is something.
    fn all(rate: impl Fn(usize, usize) -> f64) -> Vec<Flow> {
        let pairs = (0..8).flat_map(|from| (0..8).map(move |to| (from, to)));
        let flows = pairs.map(|(from, to)| Flow { from, to, rate: rate(from, to), bytes: 1e8 });
        flows.filter(|flow| flow.from != flow.to && flow.rate > 0.0).collect()
    }

    fn racks() -> Option<Vec<u32>> {
        Some(vec![0, 0, 0, 0, 1, 1, 1, 1])
    }

    fn are_apart(from: usize, to: usize) -> bool {
        from / 4 != to / 4
    }

    #[test]
    fn a_slow_uplink_shows_in_rings_and_between_all_alike() {
        let ring = all(|from, to| match (from + 1) % 8 == to {
            true if are_apart(from, to) => WIRE / 10.0,
            true => WIRE,
            false => 0.0,
        });
        let servers = all(|from, to| match are_apart(from, to) {
            true => WIRE / 10.0 / 16.0,
            false => WIRE / 4.0,
        });
        for flows in [ring, servers] {
            let found = parts(8, &flows).unwrap();
            assert_eq!(Some(found.of), racks());
            assert!(found.between.iter().all(|rate| (rate / WIRE * 10.0 - 1.0).abs() < 1e-9));
        }
    }

    #[test]
    fn what_goes_elsewhere_in_small_pieces_changes_nothing() {
        let ring = all(|from, to| match (from + 1) % 8 == to {
            true if are_apart(from, to) => WIRE / 10.0,
            true => WIRE,
            false => WIRE / 100.0,
        });
        let size = |flow: Flow| match (flow.from + 1) % 8 == flow.to {
            true => flow,
            false => Flow { bytes: 1e4, ..flow },
        };
        let ring: Vec<Flow> = ring.into_iter().map(size).collect();
        let found = parts(8, &ring).unwrap();
        assert_eq!(Some(found.of), racks());
        assert_eq!(found.between, [WIRE / 10.0; 2]);
    }

    #[test]
    fn a_slow_host_is_no_rack() {
        let rate =
            |from, to, crowd| if from == 7 || to == 7 { WIRE / 10.0 / crowd } else { WIRE / 2.0 };
        let ring = all(|from, to| if (from + 1) % 8 == to { rate(from, to, 1.0) } else { 0.0 });
        let servers = all(|from, to| rate(from, to, 7.0));
        assert_eq!((parts(8, &ring), parts(8, &servers)), (None, None));
    }

    #[test]
    fn flows_that_share_wires_divide_nobody() {
        // A tree: inner places have four neighbours, outer ones one.
        let tree = [(0, 1), (1, 3), (2, 3), (3, 4), (4, 5), (4, 6), (6, 7)];
        let neighbours = |place| tree.iter().filter(|(a, b)| *a == place || *b == place).count();
        let joined = |from, to| tree.contains(&(from, to)) || tree.contains(&(to, from));
        let flows = all(|from, to| match joined(from, to) {
            true => WIRE / neighbours(from).max(neighbours(to)) as f64,
            false => 0.0,
        });
        assert_eq!(parts(8, &flows), None);
    }

    #[test]
    fn what_is_not_known_of_all_says_nothing() {
        let flows = all(|from, to| if to == 7 || from == 7 { 0.0 } else { WIRE });
        assert_eq!(parts(8, &flows), None);
        assert_eq!(parts(0, &[]), None);
    }
}
