//! Watching for lack of progress: ask who has not posted a tensor, report what they say, and fail it
//! when the settings' time is up. Slowness alone removes nobody.

use super::{Engine, control::one_line};
use crate::{
    event::{Action, OpError, OpId, RankState, Report, Standing, standings},
    frame::{Header, Kind, OpKey},
};
use paceline_job::{Rank, Time};
use std::time::Duration;

/// How long answers to a question are waited for before the report goes out without them.
const ANSWER_TIME: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
pub(super) struct Stall {
    /// When everybody was last asked.
    asked: Option<Time>,
    /// How often a report went out; each waits twice as long as the one before.
    reports: u32,
    reported: bool,
    answers: Vec<RankState>,
    /// When it was first seen to have failed while a driver still had some of its memory.
    failed: Option<Time>,
}

impl Engine {
    /// When the next [`crate::event::Event::Tick`] could change anything, if ever.
    pub fn next_tick(&self) -> Option<Time> {
        self.ops
            .iter()
            .flatten()
            .map(|op| {
                let settings = &op.view.settings;
                if op.error.is_some() {
                    return op
                        .stall
                        .failed
                        .map_or(Time::ZERO, |failed| failed.after(settings.timeout));
                }
                let fails = op.last_progress.after(settings.timeout);
                let wait = settings.stall_report.saturating_mul(1 << op.stall.reports.min(16));
                let asks = match op.stall.asked {
                    Some(asked) if !op.stall.reported => asked.after(ANSWER_TIME),
                    _ => op.last_progress.after(wait),
                };
                fails.min(asks)
            })
            .min()
    }

    pub(super) fn tick(&mut self, now: Time, out: &mut Vec<Action>) {
        let present = (0..self.ops.len()).filter(|at| self.ops[*at].is_some());
        for id in present.map(|at| OpId(at as u32)).collect::<Vec<_>>() {
            if self.op(id).error.is_none() {
                self.look_at(now, id, out);
            } else {
                self.look_at_failed(now, id, out);
            }
        }
    }

    /// A failed operation ends when no driver holds its memory any more. A peer that neither takes nor
    /// sends the rest of a message must not hold it, and whoever waits, for ever.
    fn look_at_failed(&mut self, now: Time, id: OpId, out: &mut Vec<Action>) {
        let op = self.op(id);
        let timeout = op.view.settings.timeout;
        let failed = *op.stall.failed.get_or_insert(now);
        if now.since(failed) < timeout {
            return;
        }
        op.stall.failed = Some(now);
        let name = op.post.name.clone();
        let mut peers = self.peers_in_hand(id);
        peers.sort();
        peers.dedup();
        for peer in peers {
            let seconds = timeout.as_secs();
            let reason =
                format!("a message of `{name}`, which failed, has been under way for {seconds} s");
            out.push(Action::Close { peer, reason });
        }
    }

    fn look_at(&mut self, now: Time, id: OpId, out: &mut Vec<Action>) {
        let rank = self.rank;
        let members: Vec<Rank> = self.members(id).collect();
        let op = self.op(id);
        let settings = &op.view.settings;
        let quiet = now.since(op.last_progress);
        let stall = &mut op.stall;
        if stall.asked.is_some_and(|asked| op.last_progress > asked) {
            *stall = Stall::default();
        }
        if quiet >= settings.timeout {
            let report = standings(&stall.answers);
            let name = op.post.name.clone();
            let error = OpError::Stalled { name, seconds: quiet.as_secs(), report };
            return self.abort(id, error, out);
        }
        let wait = settings.stall_report.saturating_mul(1 << stall.reports.min(16));
        if stall.asked.is_none_or(|_| stall.reported) && quiet >= wait {
            stall.asked = Some(now);
            stall.reported = false;
            stall.answers =
                members.iter().map(|rank| RankState { rank: *rank, answer: None }).collect();
            let (key, name) = (op.key, op.post.name.clone());
            let last = self.last_posted.to_string();
            for member in members {
                if member == rank {
                    self.note_answer(now, id, rank, (Standing::Posted, last.clone()), out);
                } else {
                    let header = Header::control(Kind::StallQuery, key);
                    self.control_frame(member, header, name.as_bytes(), out);
                }
            }
        } else if stall.asked.is_some_and(|asked| now.since(asked) >= ANSWER_TIME) {
            self.report(now, id, out);
        }
    }

    fn report(&mut self, now: Time, id: OpId, out: &mut Vec<Action>) {
        let op = self.op(id);
        if std::mem::replace(&mut op.stall.reported, true) {
            return;
        }
        op.stall.reports += 1;
        let seconds = now.since(op.last_progress).as_secs();
        let ranks = op.stall.answers.clone();
        out.push(Action::Report(Report::Stall { name: op.post.name.clone(), seconds, ranks }));
    }

    fn note_answer(
        &mut self,
        now: Time,
        id: OpId,
        from: Rank,
        answer: (Standing, String),
        out: &mut Vec<Action>,
    ) {
        let answers = &mut self.op(id).stall.answers;
        if let Some(state) = answers.iter_mut().find(|state| state.rank == from) {
            state.answer = Some(answer);
        }
        if answers.iter().all(|state| state.answer.is_some()) && !answers.is_empty() {
            self.report(now, id, out);
        }
    }

    /// Another worker asks where a tensor stands here.
    pub(super) fn asked_about(
        &mut self,
        from: Rank,
        key: OpKey,
        name: &str,
        out: &mut Vec<Action>,
    ) {
        let posted = self.posted(&key);
        let standing = if posted.is_some() {
            Standing::Posted
        } else if self.names.get(&key.name).is_some_and(|known| key.uses < known.uses) {
            Standing::Finished
        } else {
            let (name, last) = (name.to_string(), self.last_posted.clone());
            out.push(Action::Report(Report::WaitedFor { name, by: from, last }));
            Standing::Absent
        };
        let mut answer = vec![standing as u8];
        answer.extend_from_slice(self.last_posted.as_bytes());
        self.control_frame(from, Header::control(Kind::StallReply, key), &answer, out);
        // Two that wait for each other in different views never send each other anything.
        if let Some(id) = posted {
            let op = self.op(id);
            let (name, theirs, ours) = (op.post.name.clone(), key.view, op.key.view);
            if theirs != ours {
                self.abort(id, OpError::Views { name, peer: from, theirs, ours }, out);
            }
        }
    }

    pub(super) fn answered(
        &mut self,
        now: Time,
        from: Rank,
        key: OpKey,
        payload: &[u8],
        out: &mut Vec<Action>,
    ) {
        // Nonsense is nonsense, whether or not somebody waits for it.
        let standing = match payload.first() {
            Some(0) => Standing::Absent,
            Some(1) => Standing::Posted,
            Some(2) => Standing::Finished,
            _ => {
                let reason = "it gave an answer about a tensor that is none".to_string();
                return out.push(Action::Close { peer: from, reason });
            }
        };
        let Some(id) = self.posted(&key) else { return };
        let last = one_line(&payload[1..]);
        self.note_answer(now, id, from, (standing, last), out);
    }
}
