//! How newcomers get the state of virtual workers: while these stand still, after copies were made equal, or while they listen
//! to a step of the others.

use super::{Actor, Doing, Ledger, Use, contribution};
use paceline_job::{Rank, WorkerId};
use paceline_sync::collective::Collective;

/// A step in which newcomers listen.
#[derive(Clone, Debug)]
pub(super) struct Listening {
    /// What travels.
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
            (0..).map(Rank).zip(standings).partition(|(_, has_it)| **has_it != 0);
        let senders: Vec<Rank> = senders.into_iter().map(|(rank, _)| rank).collect();
        let others: Vec<Rank> = others.into_iter().map(|(rank, _)| rank).collect();
        let listeners = known.workers_at(&others);
        self.doing = match self.conditions.mode {
            mode if mode.is_apart() => {
                self.keeper.listen(listeners);
                Doing::Levelling(0)
            }
            // Nobody has it, or somebody was lost just now: all stand still.
            _ if senders.is_empty() || !self.conditions.listens => Doing::Sharing(0),
            _ => {
                self.keeper.listen(listeners);
                ledger.listened += usize::from(!self.has_state);
                self.listened_in = (!self.has_state).then_some(self.step);
                self.joined_at = self.joined_at.map(|_| self.step + 1);
                let (lacks, state) = (!self.has_state, self.state());
                let sender = senders[self.step as usize % senders.len()];
                let me = known.rank_of(self.id);
                if lacks || me == Some(sender) {
                    let group = std::iter::once(sender).chain(others).collect();
                    let collective = Collective::Broadcast { root: 0, len: state.len() as u64 };
                    self.post_among("piece", &state, Use::Piece, collective, Some(group));
                }
                self.listening = Some(Listening { state, lacks, heard: Vec::new(), asked: false });
                Doing::Computing(0)
            }
        };
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
        if let Some(listening) = self.listening.take()
            && !self.has_state
        {
            self.take_state(&listening.state);
            for (step, tensor, values) in listening.heard {
                self.apply(step, tensor, &values)?;
            }
        }
        self.doing = match self.conditions.crosses_steps {
            true => self.next_step(),
            false => Doing::Awaiting,
        };
        Ok(())
    }

    pub(super) fn state(&self) -> Vec<i64> {
        let applied = self.applied.iter().map(|steps| *steps as i64);
        self.parameters.iter().flatten().copied().chain(applied).collect()
    }

    pub(super) fn adopt_state(&mut self, values: &[i64]) -> Result<(), String> {
        if let Some(listening) = &mut self.listening {
            if !listening.lacks && listening.state != values {
                return Err(format!("worker {} was given another state than it had", self.id));
            }
            listening.state = values.to_vec();
            return self.end_listening();
        }
        if self.has_state && self.state() != values {
            return Err(format!("worker {} was given another state than it has", self.id));
        }
        self.take_state(values);
        self.doing = Doing::Computing(0);
        Ok(())
    }

    pub(super) fn take_state(&mut self, values: &[i64]) {
        let mut values = values.iter().copied();
        self.parameters.iter_mut().flatten().zip(&mut values).for_each(|(to, from)| *to = from);
        self.applied.iter_mut().zip(values).for_each(|(to, from)| *to = from as u64);
        self.has_state = true;
        self.keeper.train_apart(self.conditions.mode.is_apart());
        self.keeper.have_state();
    }

    pub(super) fn call(&mut self) -> bool {
        if self.awaits(|of| matches!(of, Use::Roll)) {
            return false;
        }
        let known = self.keeper.known().clone();
        let mut standings = vec![0; known.size()];
        if let Some(rank) = known.rank_of(self.id) {
            standings[rank.index()] = i64::from(self.has_state);
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
        let state = self.listening.as_ref().map_or_else(|| self.state(), |it| it.state.clone());
        let collective = Collective::Broadcast { root, len: state.len() as u64 };
        self.post("state", &state, Use::State, collective);
        Ok(true)
    }
}
