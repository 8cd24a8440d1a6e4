//! How newcomers get the state of virtual workers: while these stand still, after copies were made equal, or while they listen
//! to steps of the others.

use super::{Actor, Doing, Ledger, Use, contribution};
use paceline_job::{Rank, WorkerId};
use paceline_sync::collective::Collective;
use std::ops::Range;

/// What a worker has when others are about to get the state: nothing, that of some tensors, or all.
const LACKS: i64 = 0;
const FOLLOWS: i64 = 1;
const HAS: i64 = 2;

/// A step in which newcomers listen.
#[derive(Clone, Debug)]
pub(super) struct Listening {
    /// The tensors whose state travels, and that state.
    tensors: Range<usize>,
    pub(super) state: Vec<i64>,
    /// Whether this worker still lacks it.
    pub(super) lacks: bool,
    /// What a newcomer heard, to be applied when it has the state.
    pub(super) heard: Vec<(u64, usize, Vec<i64>)>,
    pub(super) asked: bool,
}

impl Actor {
    /// Who has the state is known: how the others get it.
    pub(super) fn called(&mut self, standings: &[i64], ledger: &mut Ledger) {
        let known = self.keeper.known().clone();
        let (senders, others): (Vec<_>, Vec<_>) =
            (0..).map(Rank).zip(standings).partition(|(_, standing)| **standing == HAS);
        let all_follow = others.iter().all(|(_, standing)| **standing == FOLLOWS);
        let senders: Vec<Rank> = senders.into_iter().map(|(rank, _)| rank).collect();
        let others: Vec<Rank> = others.into_iter().map(|(rank, _)| rank).collect();
        let listeners = known.workers_at(&others);
        self.doing = match self.conditions.mode {
            mode if mode.is_apart() => {
                self.keeper.listen(listeners);
                Doing::Levelling(0)
            }
            // Nobody has it: all stand still.
            _ if senders.is_empty() || self.conditions.listens == 0 => Doing::Sharing(0),
            _ if others.is_empty() => {
                self.following = None;
                Doing::Computing(0)
            }
            _ => {
                self.keeper.listen(listeners);
                let first = self.following.filter(|_| all_follow).unwrap_or(0);
                ledger.listened += usize::from(!self.has_state);
                ledger.listened_on += usize::from(!self.has_state && first > 0);
                self.listened_in = (!self.has_state).then_some(self.step);
                self.joined_at = self.joined_at.map(|_| self.step + 1);
                let tensors = first..self.end_of_portion(first);
                let (lacks, state) = (!self.has_state, self.state(tensors.clone()));
                let sender = senders[self.step as usize % senders.len()];
                let me = known.rank_of(self.id);
                if lacks || me == Some(sender) {
                    let group = std::iter::once(sender).chain(others).collect();
                    let collective = Collective::Broadcast { root: 0, len: state.len() as u64 };
                    self.post_among("piece", &state, Use::Piece, collective, Some(group));
                }
                let (heard, asked) = (Vec::new(), false);
                self.listening = Some(Listening { tensors, state, lacks, heard, asked });
                Doing::Computing(0)
            }
        };
    }

    /// Up to which tensor the state travels in this step: in the last one, up to the last.
    fn end_of_portion(&self, first: usize) -> usize {
        let all = self.conditions.tensors.len();
        match self.step + 1 < self.conditions.steps {
            true => all.min(first + self.conditions.listens),
            false => all,
        }
    }

    /// Of how many tensors this worker has the state.
    pub(super) fn has_state_of(&self) -> usize {
        match self.has_state {
            true => self.conditions.tensors.len(),
            false => self.following.unwrap_or(0),
        }
    }

    /// The state is here, and what follows from it.
    pub(super) fn arrived(&mut self, values: &[i64]) {
        if let Some(listening) = &mut self.listening
            && listening.lacks
        {
            (listening.state, listening.lacks) = (values.to_vec(), false);
        }
    }

    /// All have heard whether somebody still lacks the state.
    pub(super) fn asked(&mut self, lacking: bool, ledger: &mut Ledger) -> Result<(), String> {
        if lacking {
            ledger.sent_again += 1;
            self.doing = Doing::Sharing(0);
            return Ok(());
        }
        self.end_listening()
    }

    pub(super) fn end_listening(&mut self) -> Result<(), String> {
        if let Some(Listening { tensors, state, heard, .. }) = self.listening.take() {
            self.following = Some(tensors.end).filter(|end| *end < self.conditions.tensors.len());
            if !self.has_state {
                let end = tensors.end;
                self.take_state(tensors, &state);
                for (step, tensor, values) in heard {
                    if tensor < end {
                        self.apply(step, tensor, &values)?;
                    }
                }
            }
        }
        self.doing = match self.conditions.crosses_steps {
            true => self.next_step(),
            false => Doing::Awaiting,
        };
        Ok(())
    }

    pub(super) fn state(&self, tensors: Range<usize>) -> Vec<i64> {
        let applied = self.applied[tensors.clone()].iter().map(|steps| *steps as i64);
        self.parameters[tensors].iter().flatten().copied().chain(applied).collect()
    }

    fn whole_state(&self) -> Vec<i64> {
        self.state(0..self.conditions.tensors.len())
    }

    pub(super) fn adopt_state(&mut self, values: &[i64]) -> Result<(), String> {
        if let Some(listening) = &mut self.listening {
            if !listening.lacks && listening.state != values {
                return Err(format!("worker {} was given another state than it had", self.id));
            }
            listening.state = values.to_vec();
            return self.end_listening();
        }
        if self.has_state && self.whole_state() != values {
            return Err(format!("worker {} was given another state than it has", self.id));
        }
        self.following = None;
        self.take_state(0..self.conditions.tensors.len(), values);
        self.doing = Doing::Computing(0);
        Ok(())
    }

    fn take_state(&mut self, tensors: Range<usize>, values: &[i64]) {
        let (parameters, applied) = values.split_at(values.len() - tensors.len());
        let into = self.parameters[tensors.clone()].iter_mut().flatten();
        into.zip(parameters).for_each(|(to, from)| *to = *from);
        self.applied[tensors].iter_mut().zip(applied).for_each(|(to, from)| *to = *from as u64);
        if self.following.is_none() {
            self.has_state = true;
            self.keeper.train_apart(self.conditions.mode.is_apart());
            self.keeper.have_state();
        }
    }

    pub(super) fn call(&mut self) -> bool {
        // What travels next is as it is after the step before.
        let follows = self.following.is_some();
        if self.awaits(|of| matches!(of, Use::Roll) || follows && matches!(of, Use::Tensor(..))) {
            return false;
        }
        let known = self.keeper.known().clone();
        let mut standings = vec![0; known.size()];
        if let Some(rank) = known.rank_of(self.id) {
            standings[rank.index()] = match self.has_state {
                true => HAS,
                false if follows => FOLLOWS,
                false => LACKS,
            };
        }
        let collective = Collective::AllReduce { len: standings.len() as u64 };
        self.post("paceline roll", &standings, Use::Roll, collective);
        true
    }

    pub(super) fn level(&mut self, tensor: usize) -> bool {
        if let Some(len) = self.conditions.tensors.get(tensor).copied() {
            let part = if self.has_state { contribution(self.id) } else { 0 };
            let collective = Collective::AllReduce { len: len as u64 };
            let of = Use::Copy(self.step, tensor);
            self.post(&format!("tensor {tensor}"), &vec![part; len], of, collective);
            self.doing = Doing::Levelling(tensor + 1);
            return true;
        }
        let over = !self.awaits(|of| matches!(of, Use::Copy(..)));
        if over {
            self.keeper.listen([].into());
            self.doing = Doing::Sharing(0);
        }
        over
    }

    pub(super) fn finish_listening(&mut self) -> bool {
        let pieces = self.awaits(|of| matches!(of, Use::Piece));
        let Some(listening) = self.listening.as_mut().filter(|it| !pieces && !it.asked) else {
            return false;
        };
        listening.asked = true;
        let lacks = [i64::from(listening.lacks)];
        self.post("paceline lacking", &lacks, Use::Lacking, Collective::AllReduce { len: 1 });
        true
    }

    /// Everybody gets the state from the worker that is there the longest and lives.
    pub(super) fn share(&mut self, attempt: usize) -> Result<bool, String> {
        if self.uses.values().any(|of| matches!(of, Use::State)) {
            return Ok(false);
        }
        let known = self.keeper.known().clone();
        let mut roots: Vec<WorkerId> = known.ids().collect();
        roots.sort_unstable();
        let root = roots.get(attempt).copied();
        if root == Some(self.id) && !self.has_state || root.is_none() {
            // All who had it are gone, and so is the job.
            self.doing = Doing::Over;
            return Ok(false);
        }
        let root = root.and_then(|root| known.rank_of(root)).map_or(0, |rank| rank.0);
        let state =
            self.listening.as_ref().map_or_else(|| self.whole_state(), |it| it.state.clone());
        let collective = Collective::Broadcast { root, len: state.len() as u64 };
        self.post("state", &state, Use::State, collective);
        Ok(true)
    }
}
