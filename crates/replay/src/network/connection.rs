//! One direction between two workers: an ordered stream of frames through a sender's kernel queue
//! and over the wire. It knows its own rate, but not who else wants one.
//!
//! A frame waits in the sender, is *committed* to the stream when the kernel takes its first byte,
//! is *delivered* when the kernel takes its last, leaves the wire, and arrives a latency later.
//! Until they are committed, control frames pass data frames, and urgent data frames pass others.

use super::links::Path;
use paceline_job::Random;
use paceline_sync::{
    frame::{HEADER_BYTES, Header},
    scheduler::Urgency,
    slab::Key,
};
use std::collections::VecDeque;

/// What follows a header.
#[derive(Debug)]
pub(crate) enum Body<P> {
    /// Elements; `P` is whatever stands for them.
    Data { token: Key, parcel: P },
    /// A control frame's own bytes.
    Control(Box<[u8]>),
    /// The last frame of a worker that leaves; it passes nothing, and nothing passes it.
    Goodbye,
}

/// A frame between two workers.
#[derive(Debug)]
pub(crate) struct Frame<P> {
    pub header: Header,
    pub body: Body<P>,
    urgency: Urgency,
    /// When its first byte arrives; meaningful once that byte has left.
    pub first_byte_at: u64,
    /// One past its last byte, counted from the connection's first.
    end: u64,
    /// When its last byte arrives; meaningful once that byte has left.
    arrival: u64,
}

impl<P> Frame<P> {
    pub(crate) fn new(header: Header, urgency: Urgency, body: Body<P>) -> Frame<P> {
        Frame { header, body, urgency, first_byte_at: 0, end: 0, arrival: 0 }
    }

    fn is_last(&self) -> bool {
        matches!(self.body, Body::Goodbye)
    }

    fn bytes(&self) -> u64 {
        (HEADER_BYTES + self.header.payload_bytes()) as u64
    }
}

/// See the file's first paragraph. Its queues hold what is on the way, and no more.
///
/// Laid out as written: what each frame touches comes first and fills two cache lines, because a large
/// cluster's connections do not fit into a near cache, and each is touched in turn.
#[derive(Debug)]
#[repr(C, align(64))]
pub(super) struct Connection<P> {
    /// Frames in the order they will arrive: `flying` that have left the wire, the rest of `committed`,
    /// `waiting_control`, and data frames that wait.
    frames: VecDeque<Frame<P>>,
    flying: u32,
    committed: u32,
    waiting_control: u32,
    pub from: u32,
    pub to: u32,
    /// Whether frames pass; once closed, for good.
    pub open: bool,
    /// Whether it is entered in its links. One that has them for itself stays entered when it has
    /// nothing to send, until somebody else comes.
    pub entered: bool,
    /// Whether it shares no link. Then nobody waits for its end, and no timer is set for it.
    pub alone: bool,
    /// Whether the last committed frame is delivered. While it is, no frame waits.
    tail_delivered: bool,
    committed_bytes: u64,
    /// When the earliest timer set for it goes off.
    pub armed: u64,
    /// Bytes per nanosecond.
    pub rate: f64,
    /// The stream's position at a time, from which rate tells any later one. Fractions of a nanosecond
    /// are kept, or a thousand small frames would lose half a microsecond.
    anchor_time: f64,
    anchor_position: f64,
    pub latency: u64,
    last_arrival: u64,
    pub path: Path,
}

/// What the stream does next, by itself.
enum Milestone {
    HeadLeft,
    TailDelivered,
}

/// What a connection needs of the world to go on.
pub(super) struct Surroundings<'a> {
    /// The kernel's send queue, in bytes.
    pub queue_bytes: u64,
    /// A frame takes up to this many nanoseconds longer than the latency.
    pub jitter: u64,
    /// Whether any waiting data frame may be committed next, or only the first.
    pub overtaking: bool,
    pub random: &'a mut Random,
    /// Senders, and their data frames that were delivered.
    pub delivered: &'a mut Vec<(u32, Key)>,
}

impl<P> Connection<P> {
    pub(super) fn new(from: u32, to: u32, latency: u64, path: Path) -> Connection<P> {
        Connection {
            from,
            to,
            latency,
            path,
            open: true,
            entered: false,
            alone: false,
            rate: 0.0,
            armed: u64::MAX,
            anchor_time: 0.0,
            anchor_position: 0.0,
            frames: VecDeque::new(),
            flying: 0,
            committed: 0,
            waiting_control: 0,
            tail_delivered: true,
            committed_bytes: 0,
            last_arrival: 0,
        }
    }

    /// Whether bytes are left to send.
    pub(super) fn has_unsent(&self) -> bool {
        self.flying < self.committed
    }

    fn next_milestone(&self, queue_bytes: u64) -> Option<(f64, Milestone)> {
        if !self.has_unsent() {
            return None;
        }
        let head = self.frames[self.flying as usize].end;
        let accepted = self.committed_bytes.saturating_sub(queue_bytes);
        let (position, milestone) = if !self.tail_delivered && accepted <= head {
            (accepted, Milestone::TailDelivered)
        } else {
            (head, Milestone::HeadLeft)
        };
        Some((self.time_of(position), milestone))
    }

    /// When the stream reaches a position; never, if it stands still.
    fn time_of(&self, position: u64) -> f64 {
        let ahead = position as f64 - self.anchor_position;
        if ahead <= 0.0 {
            self.anchor_time
        } else if self.rate > 0.0 {
            self.anchor_time + ahead / self.rate
        } else {
            f64::INFINITY
        }
    }

    /// Let everything happen that happens up to `now`.
    pub(super) fn catch_up(&mut self, now: u64, around: &mut Surroundings) {
        while let Some((time, milestone)) = self.next_milestone(around.queue_bytes) {
            if time > now as f64 {
                break;
            }
            self.anchor_time = time;
            match milestone {
                Milestone::TailDelivered => {
                    let accepted = self.committed_bytes.saturating_sub(around.queue_bytes) as f64;
                    self.anchor_position = self.anchor_position.max(accepted);
                    self.tail_delivered = true;
                    let tail = &self.frames[self.committed as usize - 1];
                    if let Body::Data { token, .. } = tail.body {
                        around.delivered.push((self.from, token));
                    }
                    self.commit_waiting(self.anchor_position, around);
                }
                Milestone::HeadLeft => {
                    let head = &mut self.frames[self.flying as usize];
                    self.anchor_position = head.end as f64;
                    let late =
                        if around.jitter == 0 { 0 } else { around.random.below(around.jitter) };
                    let arrival = (time.ceil() as u64).saturating_add(self.latency + late);
                    self.last_arrival = self.last_arrival.max(arrival);
                    head.arrival = self.last_arrival;
                    self.flying += 1;
                    if self.has_unsent() {
                        let first_byte_at = time as u64 + self.latency;
                        self.frames[self.flying as usize].first_byte_at = first_byte_at;
                    }
                }
            }
        }
    }

    /// Move on at another rate from now on. The caller has caught up.
    pub(super) fn set_rate(&mut self, now: u64, rate: f64) {
        let now = now as f64;
        if now > self.anchor_time {
            self.anchor_position += self.rate * (now - self.anchor_time);
            self.anchor_time = now;
        }
        self.rate = rate;
    }

    /// Take a frame to send. The caller has caught up, and enters the connection in its links after it.
    pub(super) fn enqueue(&mut self, now: u64, mut frame: Frame<P>, around: &mut Surroundings) {
        if !self.has_unsent() {
            self.anchor_time = self.anchor_time.max(now as f64);
            self.anchor_position = self.committed_bytes as f64;
            frame.first_byte_at = now + self.latency;
        }
        let data = (self.committed + self.waiting_control) as usize;
        if matches!(frame.body, Body::Control(_)) {
            self.waiting_control += 1;
            self.frames.insert(data, frame);
        } else {
            let at = |place: usize| self.frames[place].urgency;
            let place = frame.urgency.place(data, self.frames.len(), at);
            self.frames.insert(place, frame);
        }
        let moved = self.rate * (now as f64 - self.anchor_time).max(0.0);
        self.commit_waiting(self.anchor_position + moved, around);
    }

    /// Commit what the kernel takes when the stream has come to `position`.
    fn commit_waiting(&mut self, position: f64, around: &mut Surroundings) {
        while self.tail_delivered && (self.committed as usize) < self.frames.len() {
            let next = self.committed as usize;
            if self.waiting_control > 0 {
                self.waiting_control -= 1;
            } else if around.overtaking {
                let last = self.frames.back().is_some_and(Frame::is_last);
                let movable = self.frames.len() - next - usize::from(last);
                self.frames.swap(next, next + around.random.place(movable));
            }
            let frame = &mut self.frames[next];
            self.committed += 1;
            self.committed_bytes += frame.bytes();
            frame.end = self.committed_bytes;
            let ahead = self.committed_bytes as f64 - position;
            self.tail_delivered = ahead <= around.queue_bytes as f64;
            if let Body::Data { token, .. } = frame.body
                && self.tail_delivered
            {
                around.delivered.push((self.from, token));
            }
        }
    }

    /// The next frame that has arrived by `now`.
    pub(super) fn arrived(&mut self, now: u64) -> Option<Frame<P>> {
        if self.flying == 0 || self.frames.front()?.arrival > now {
            return None;
        }
        self.flying -= 1;
        self.committed -= 1;
        self.frames.pop_front()
    }

    /// When it has to be looked at again. Frames that leave the wire between need no look.
    pub(super) fn due(&self, queue_bytes: u64) -> u64 {
        // Rounded up, so that what is due has happened; a float beyond the range becomes the end of time.
        let up = |time: f64| time.ceil() as u64;
        let mut due = u64::MAX;
        if let Some(first) = self.frames.front() {
            due = if self.flying > 0 {
                first.arrival
            } else {
                up(self.time_of(first.end)).saturating_add(self.latency)
            };
        }
        if self.has_unsent() {
            if !self.tail_delivered {
                due = due.min(up(self.time_of(self.committed_bytes.saturating_sub(queue_bytes))));
            } else if !self.alone {
                due = due.min(up(self.time_of(self.committed_bytes)));
            }
        }
        due
    }

    /// Bytes that the kernel has taken and not put on the wire yet.
    pub(super) fn unsent(&self) -> u64 {
        self.committed_bytes - self.anchor_position as u64
    }

    /// Put `bytes` more on the wire; for wires that are followed segment by segment.
    pub(super) fn put(&mut self, bytes: u64, around: &mut Surroundings) {
        self.anchor_position += bytes as f64;
        if !self.tail_delivered && self.unsent() <= around.queue_bytes {
            self.tail_delivered = true;
            if let Body::Data { token, .. } = self.frames[self.committed as usize - 1].body {
                around.delivered.push((self.from, token));
            }
            self.commit_waiting(self.anchor_position, around);
        }
    }

    /// Everything up to `position` has arrived.
    pub(super) fn land(&mut self, now: u64, position: u64) {
        while self.has_unsent() {
            let frame = &mut self.frames[self.flying as usize];
            if frame.first_byte_at == 0 {
                frame.first_byte_at = now;
            }
            if frame.end > position {
                return;
            }
            frame.arrival = now;
            self.flying += 1;
        }
    }

    /// Forget every frame.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.frames = VecDeque::new();
        self.flying = 0;
        self.committed = 0;
        self.waiting_control = 0;
        self.tail_delivered = true;
    }
}
