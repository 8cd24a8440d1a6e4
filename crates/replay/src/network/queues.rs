//! Shaped wires, segment by segment: what each connection has put into its host's queue waits there
//! for the token bucket, then in the queue of every link on its way. First come, first served; so a
//! link is not shared fairly, but in the order in which segments come. Rates stay as they were at
//! first. It knows nothing of frames.

use super::links::{MOST_HOPS, Path};
use crate::{config::Shaping, timeline::Timeline};
use paceline_job::Time;
use std::collections::VecDeque;

/// One direction of a wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Bytes of payload per nanosecond.
    rate: f64,
    /// What the bucket holds, in nanoseconds at this rate.
    bucket: f64,
    /// When the bucket is, or was, empty.
    empty_at: f64,
}

impl Wire {
    pub(super) fn new(rate: f64, bucket_bytes: f64) -> Wire {
        Wire { rate, bucket: bucket_bytes / rate, empty_at: f64::NEG_INFINITY }
    }

    /// When a segment that comes now goes on. It goes as soon as the bucket is not overdrawn, and then
    /// overdraws it if need be (as `htb` and `tbf` do, apart from one segment).
    fn pass(&mut self, now: f64, bytes: u64) -> f64 {
        let leaves = now.max(self.empty_at);
        self.empty_at = self.empty_at.max(leaves - self.bucket) + bytes as f64 / self.rate;
        leaves
    }
}

/// What a connection has on its way: at most a window of it.
#[derive(Debug, Default)]
struct Stream {
    /// For each link of the way: segments that wait for it, and when they leave it. The last also waits
    /// for the latency.
    hops: [VecDeque<(f64, u64)>; MOST_HOPS],
    in_first_queue: u64,
    on_the_way: u64,
    landed: u64,
}

#[derive(Debug)]
pub(super) struct Queues {
    shaping: Shaping,
    wires: Vec<Wire>,
    /// As connections are numbered.
    streams: Vec<Stream>,
    /// Connections that may have something to put.
    pub pending: Vec<u32>,
}

impl Queues {
    pub(super) fn new(shaping: Shaping, wires: Vec<Wire>) -> Queues {
        Queues { shaping, wires, streams: Vec::new(), pending: Vec::new() }
    }

    /// How many bytes a connection with `unsent` puts into the queue of its host, if any. A way has at
    /// least two links, out of a host and into another.
    pub(super) fn put(
        &mut self,
        now: u64,
        index: u32,
        path: &Path,
        unsent: u64,
        timeline: &mut Timeline,
    ) -> u64 {
        let at = index as usize;
        if self.streams.len() <= at {
            self.streams.resize_with(at + 1, Stream::default);
        }
        let stream = &mut self.streams[at];
        let room = self.shaping.window_bytes.saturating_sub(stream.on_the_way);
        let bytes = self.shaping.segment_bytes.min(unsent).min(room);
        let small = 2 * bytes >= stream.in_first_queue
            || self.shaping.small_queue_bytes >= stream.in_first_queue;
        if bytes == 0 || !(small || stream.on_the_way <= self.shaping.segment_bytes) {
            return 0;
        }
        stream.in_first_queue += bytes;
        stream.on_the_way += bytes;
        let leaves = self.wires[path.links()[0] as usize].pass(now as f64, bytes);
        stream.hops[0].push_back((leaves, bytes));
        timeline.push(Time(leaves.ceil() as u64), index);
        bytes
    }

    /// Move on what is due; how far the receiver has come.
    pub(super) fn move_on(
        &mut self,
        now: u64,
        index: u32,
        path: &Path,
        latency: u64,
        timeline: &mut Timeline,
    ) -> u64 {
        let stream = &mut self.streams[index as usize];
        let links = path.links();
        for (hop, next) in (1..=links.len()).enumerate() {
            while let Some((_, bytes)) = stream.hops[hop].pop_front_if(|due| due.0 <= now as f64) {
                if hop == 0 {
                    stream.in_first_queue -= bytes;
                }
                if next == links.len() {
                    stream.on_the_way -= bytes;
                    stream.landed += bytes;
                    continue;
                }
                let mut leaves = self.wires[links[next] as usize].pass(now as f64, bytes);
                if next + 1 == links.len() {
                    leaves += latency as f64;
                }
                stream.hops[next].push_back((leaves, bytes));
                timeline.push(Time(leaves.ceil() as u64), index);
            }
        }
        stream.landed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SHAPING: Shaping = Shaping {
        burst_bytes: 0,
        segment_bytes: 1000,
        small_queue_bytes: 4000,
        window_bytes: 1 << 40,
    };

    /// Connections with something to send, driven as the network drives them.
    struct World {
        queues: Queues,
        paths: Vec<Path>,
        unsent: Vec<u64>,
        latency: u64,
        timeline: Timeline,
        /// When bytes landed, of which connection, and how many then.
        landings: Vec<(u64, u32, u64)>,
    }

    impl World {
        fn new(shaping: Shaping, wires: &[Wire], paths: &[&[u32]], unsent: &[u64]) -> World {
            World {
                queues: Queues::new(shaping, wires.to_vec()),
                paths: paths.iter().map(|links| Path::over(links)).collect(),
                unsent: unsent.to_vec(),
                latency: 0,
                timeline: Timeline::default(),
                landings: Vec::new(),
            }
        }

        fn put(&mut self, now: u64, index: u32) {
            let at = index as usize;
            loop {
                let (path, unsent) = (&self.paths[at], self.unsent[at]);
                let bytes = self.queues.put(now, index, path, unsent, &mut self.timeline);
                if bytes == 0 {
                    return;
                }
                self.unsent[at] -= bytes;
                self.check(at);
            }
        }

        /// What a connection may have under way at any time.
        fn check(&self, at: usize) {
            let Shaping { segment_bytes, small_queue_bytes, window_bytes, .. } =
                self.queues.shaping;
            let stream = &self.queues.streams[at];
            let queued = |hop: usize| stream.hops[hop].iter().map(|(_, bytes)| bytes).sum::<u64>();
            assert_eq!(stream.in_first_queue, queued(0));
            assert_eq!(stream.on_the_way, (0..MOST_HOPS).map(queued).sum::<u64>());
            assert!(stream.on_the_way <= window_bytes);
            // Two segments are always let in, and one goes on top.
            let most = small_queue_bytes.max(2 * segment_bytes) + segment_bytes;
            assert!(stream.in_first_queue <= most, "{stream:?}");
        }

        /// Until nothing is due any more.
        fn run(&mut self) {
            for index in 0..self.paths.len() as u32 {
                self.put(0, index);
            }
            while let Some(due) = self.timeline.pop() {
                let (now, index, at) = (due.at.0, due.what, due.what as usize);
                let before = self.queues.streams[at].landed;
                let (path, latency) = (&self.paths[at], self.latency);
                let landed = self.queues.move_on(now, index, path, latency, &mut self.timeline);
                self.check(at);
                assert!(landed >= before, "what has landed stays");
                if landed > before {
                    self.landings.push((now, index, landed - before));
                }
                self.put(now, index);
            }
        }

        /// Bytes of each connection that landed up to a time.
        fn landed(&self, until: u64) -> Vec<u64> {
            let mut landed = vec![0; self.paths.len()];
            for (_, index, bytes) in self.landings.iter().filter(|landing| landing.0 <= until) {
                landed[*index as usize] += bytes;
            }
            landed
        }

        fn end(&self) -> u64 {
            self.landings.last().expect("something landed").0
        }
    }

    fn wire(rate: f64) -> Wire {
        Wire::new(rate, 0.0)
    }

    #[test]
    fn a_segment_lands_after_the_latency_if_nothing_is_before_it() {
        let mut world = World::new(SHAPING, &[wire(1.0); 4], &[&[0, 1, 2, 3]], &[800]);
        world.latency = 50;
        world.run();
        assert_eq!(world.landings, [(50, 0, 800)]);
    }

    #[test]
    fn a_backlog_passes_at_the_rate_of_the_slowest_wire() {
        for rates in [[1.0, 4.0], [4.0, 1.0]] {
            let mut world = World::new(SHAPING, &rates.map(wire), &[&[0, 1]], &[100_000]);
            world.latency = 50;
            world.run();
            // The last segment goes as soon as those before it are paid for.
            assert_eq!(world.end(), 99_000 + 50);
        }
    }

    #[test]
    fn what_the_bucket_holds_passes_at_once() {
        let wires = [Wire::new(1.0, 20_000.0); 2];
        let mut world = World::new(SHAPING, &wires, &[&[0, 1]], &[100_000]);
        world.run();
        // And the segment that overdraws it.
        assert_eq!(world.landed(0), [21_000]);
        assert_eq!(world.end(), 99_000 - 20_000);
    }

    #[test]
    fn a_wire_is_shared_in_the_order_in_which_segments_come() {
        // Out of one host: alike connections take turns.
        let out = World::new(
            SHAPING,
            &[wire(1.0), wire(9.0), wire(9.0)],
            &[&[0, 1], &[0, 2]],
            &[50_000, 50_000],
        );
        // Into one host: whoever comes twice as fast gets twice as much.
        let into = World::new(
            SHAPING,
            &[wire(2.0), wire(1.0), wire(1.0)],
            &[&[0, 2], &[1, 2]],
            &[100_000, 50_000],
        );
        for (mut world, ratio) in [(out, 1), (into, 2)] {
            world.run();
            let [first, second] = world.landed(60_000)[..] else { panic!("there are two") };
            assert!(first.abs_diff(ratio * second) <= 5000, "{first} and {second} bytes");
            assert!((58_000..=64_000).contains(&(first + second)), "{first} and {second} bytes");
        }
    }

    #[test]
    fn segments_of_one_connection_do_not_wait_for_those_of_another_wire() {
        let wires = [wire(0.001), wire(1.0), wire(1.0), wire(1.0)];
        let mut world = World::new(SHAPING, &wires, &[&[0, 1], &[2, 3]], &[5000, 5000]);
        world.run();
        let last = |index| world.landings.iter().rfind(|landing| landing.1 == index).unwrap().0;
        assert_eq!((last(0), last(1)), (4_000_000, 4000));
    }

    #[test]
    fn a_full_queue_takes_more_when_a_segment_has_left_it() {
        let mut world = World::new(SHAPING, &[wire(1.0); 2], &[&[0, 1]], &[100_000]);
        let Shaping { small_queue_bytes, segment_bytes, .. } = SHAPING;
        world.put(0, 0);
        assert_eq!(world.queues.streams[0].in_first_queue, small_queue_bytes + segment_bytes);
        // The first goes at once, and each of the next when the one before is paid for.
        for now in [0, 1000, 2000] {
            let unsent = world.unsent[0];
            let path = world.paths[0];
            world.queues.move_on(now, 0, &path, 0, &mut world.timeline);
            world.put(now, 0);
            assert_eq!(unsent - world.unsent[0], segment_bytes);
        }
    }

    #[test]
    fn segments_larger_than_the_small_queue_still_keep_it_filled() {
        let shaping = Shaping { small_queue_bytes: 1, ..SHAPING };
        let mut world = World::new(shaping, &[wire(1.0); 2], &[&[0, 1]], &[100_000]);
        world.put(0, 0);
        assert_eq!(world.queues.streams[0].in_first_queue, 3 * SHAPING.segment_bytes);
    }

    #[test]
    fn a_full_window_takes_more_only_when_bytes_have_landed() {
        let shaping = Shaping { window_bytes: 2500, ..SHAPING };
        let mut world = World::new(shaping, &[wire(1.0); 2], &[&[0, 1]], &[10_000]);
        world.latency = 1_000_000;
        world.put(0, 0);
        assert_eq!(world.queues.streams[0].on_the_way, 2500);
        world.run();
        // 2500 bytes in a round trip; its way back costs nothing here.
        assert!(world.end() > 4 * world.latency, "{:?}", world.landings);
        assert_eq!(world.landed(u64::MAX), [10_000]);
    }

    #[test]
    fn a_time_when_nothing_is_due_moves_nothing() {
        let mut world = World::new(SHAPING, &[wire(1.0); 2], &[&[0, 1]], &[5000]);
        world.latency = 100;
        world.put(0, 0);
        let path = world.paths[0];
        let mut landed = |now| world.queues.move_on(now, 0, &path, 100, &mut world.timeline);
        assert_eq!([landed(0), landed(99), landed(100), landed(100)], [0, 0, 1000, 1000]);
    }

    proptest! {
        /// Whatever comes when: in any span a wire passes what its rate gives and its bucket held, apart
        /// from the segment that ends the span; and nobody is overtaken.
        #[test]
        fn a_wire_keeps_its_rate_and_its_order(
            rate in 0.01..10.0f64,
            bucket_bytes in 0.0..100_000.0f64,
            segments in proptest::collection::vec((0u64..20_000, 1u64..65_536), 1..60),
        ) {
            let mut wire = Wire::new(rate, bucket_bytes);
            let mut now = 0.0;
            let mut passed: Vec<(f64, u64)> = Vec::new();
            for (pause, bytes) in segments {
                now += pause as f64;
                let leaves = wire.pass(now, bytes);
                prop_assert!(leaves >= now);
                prop_assert!(passed.last().is_none_or(|last| last.0 <= leaves));
                let mut span_bytes = 0;
                for (before, bytes) in passed.iter().rev() {
                    span_bytes += bytes;
                    let most = rate * (leaves - before) + bucket_bytes;
                    prop_assert!(span_bytes as f64 <= most * (1.0 + 1e-9) + 1e-3);
                }
                passed.push((leaves, bytes));
            }
        }

        /// And each of its queues and windows keeps its bound, which the run checks at every turn.
        #[test]
        fn every_byte_that_is_put_lands_once(
            rates in proptest::array::uniform8(0.01..10.0f64),
            burst_bytes in 0u64..200_000,
            segment_bytes in 1u64..70_000,
            small_queue_bytes in 0u64..300_000,
            window_bytes in 1u64..500_000,
            latency in 0u64..200_000,
            amounts in proptest::collection::vec(0u64..1_000_000, 1..6),
        ) {
            // Small segments and windows make a run long, not interesting.
            let most = 200 * segment_bytes.min(window_bytes);
            let amounts: Vec<u64> = amounts.iter().map(|amount| amount % most).collect();
            // Links 0 to 2 leave hosts, 3 and 4 join racks, 5 to 7 enter hosts.
            let ways: [&[u32]; 5] = [&[0, 5], &[0, 6], &[1, 6], &[1, 3, 4, 7], &[2, 3, 4, 5]];
            let shaping = Shaping { burst_bytes, segment_bytes, small_queue_bytes, window_bytes };
            let wires = rates.map(|rate| Wire::new(rate, burst_bytes as f64));
            let mut world = World::new(shaping, &wires, &ways[..amounts.len()], &amounts);
            world.latency = latency;
            world.run();
            prop_assert_eq!(&world.unsent, &vec![0; amounts.len()]);
            prop_assert_eq!(world.landed(u64::MAX), amounts);
            prop_assert!(world.landings.iter().all(|landing| landing.0 >= latency));
        }
    }
}
