//! Shaped wires, segment by segment: what each connection has put into its host's queue waits there
//! for the token bucket, then in the queue of every link on its way. First come, first served; so a
//! link is not shared fairly, but in the order in which segments come. It knows nothing of frames.

use super::links::{MOST_HOPS, Path};
use crate::{config::Shaping, timeline::Timeline};
use paceline_job::Time;
use std::collections::VecDeque;

/// One direction of a wire.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    /// Bytes of payload per nanosecond.
    pub rate: f64,
    /// What the bucket holds, in nanoseconds at this rate.
    pub bucket: f64,
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

/// What a connection has on its way.
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
    pub wires: Vec<Wire>,
    /// As connections are numbered.
    streams: Vec<Stream>,
    /// Connections that may have something to put.
    pub pending: Vec<u32>,
}

impl Queues {
    pub(super) fn new(shaping: Shaping, wires: Vec<Wire>) -> Queues {
        Queues { shaping, wires, streams: Vec::new(), pending: Vec::new() }
    }

    /// How many bytes a connection with `unsent` puts into the queue of its host, if any.
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
