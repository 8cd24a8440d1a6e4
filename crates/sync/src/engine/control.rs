//! Frames without elements: what other workers ask, grant, notice, and tell of tensors and of each other.
//! Their words reach people, and their questions are remembered, both within bounds.

use super::{Engine, departure::Abort};
use crate::{
    event::{Action, OpError},
    frame::{Header, Kind, OpKey, TensorUse},
};
use paceline_job::{Rank, Time};

/// How many tensors that are not posted here a peer may ask about. A worker in good order has as many
/// posted at most; memory must not grow on a broken one's word.
const REQUESTS_KEPT: u32 = 1 << 16;

impl Engine {
    pub(super) fn control(
        &mut self,
        now: Time,
        from: Rank,
        header: Header,
        payload: &[u8],
        out: &mut Vec<Action>,
    ) {
        let text = || one_line(payload);
        match header.kind {
            Kind::Data => {
                let reason = "a data frame came as a control frame".to_string();
                out.push(Action::Close { peer: from, reason });
            }
            Kind::Grant => self.granted(from, u64::from(header.len), out),
            Kind::Notice => self.noticed(from, header.key, out),
            Kind::Request => {
                self.pay(from, out);
                if self.posted(&header.key).is_some() || self.is_over(&header.key) {
                    self.control_frame(from, Header::control(Kind::Notice, header.key), &[], out);
                } else {
                    self.want(from, header.key, out);
                }
            }
            Kind::Abort => match self.posted(&header.key) {
                Some(id) => self.fail_aborted(id, Abort::read(from, header.chunk, text()), out),
                None if self.is_over(&header.key) => {}
                None => {
                    let abort = Abort::read(from, header.chunk, text());
                    self.remember_aborted(header.key.tensor_use(), abort);
                }
            },
            Kind::Lost | Kind::Missed => {
                let Some(cause) = self.heard(from, Rank(header.chunk), text()) else { return };
                if header.kind == Kind::Lost && !self.is_gone(cause.worker) {
                    // Not lost yet: the driver still reads and writes for it, until it has closed.
                    out.push(Action::Close { peer: cause.worker, reason: cause.how });
                }
            }
            Kind::Ended => self.contradicted(from, header.key, out),
            Kind::StallQuery => self.asked_about(from, header.key, &text(), out),
            Kind::StallReply => self.answered(now, from, header.key, payload, out),
            Kind::Wake | Kind::Goodbye => {}
        }
    }

    /// Remember to tell a worker when a tensor is posted here.
    fn want(&mut self, from: Rank, key: OpKey, out: &mut Vec<Action>) {
        let waiting = self.wanted.entry(key.tensor_use()).or_default();
        if waiting.contains(&from) {
            return;
        }
        let asked = &mut self.peers.of(from).asked;
        if *asked < REQUESTS_KEPT {
            *asked += 1;
            return waiting.push(from);
        }
        if waiting.is_empty() {
            self.wanted.remove(&key.tensor_use());
        }
        let reason =
            format!("it waits for {REQUESTS_KEPT} tensors at once that are not posted here");
        out.push(Action::Close { peer: from, reason });
    }

    /// Nobody waits to hear of a tensor any more; those who did.
    pub(super) fn unwant(&mut self, tensor_use: TensorUse) -> Vec<Rank> {
        let waiting = self.wanted.remove(&tensor_use).unwrap_or_default();
        waiting.iter().for_each(|rank| self.peers.of(*rank).asked -= 1);
        waiting
    }

    /// Data came for an operation that is over. If it failed, that is how things go. If it ended well,
    /// it had everything it needed, and the sender must have posted something else: it may wait for
    /// an answer that nobody will give.
    pub(super) fn contradict(&mut self, to: Rank, key: OpKey, out: &mut Vec<Action>) {
        if !self.failed.contains(&key.tensor_use()) {
            self.control_frame(to, Header::control(Kind::Ended, key), &[], out);
        }
    }

    /// A worker says that a tensor we sent data of has ended well there, without that data.
    fn contradicted(&mut self, from: Rank, key: OpKey, out: &mut Vec<Action>) {
        if let Some(id) = self.posted(&key) {
            let post = &self.op(id).post;
            let (name, ours) = (post.name.clone(), post.collective.to_string());
            let theirs = "something that needs nothing from this worker".to_string();
            return self.abort(id, OpError::Mismatch { name, peer: from, theirs, ours }, out);
        }
        // Here it has ended well too, with another result: nobody must build on either.
        if self.is_over(&key) && !self.failed.contains(&key.tensor_use()) {
            let name = self.names.get(&key.name).map_or("", |known| &known.name);
            let reason = format!(
                "it and this worker posted different collectives, roots or lengths as `{name}`; make them the same everywhere, or use different names"
            );
            out.push(Action::Close { peer: from, reason });
        }
    }
}

/// A peer's words, for messages and logs: whatever it sends, it cannot start a line of its own.
pub(super) fn one_line(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
