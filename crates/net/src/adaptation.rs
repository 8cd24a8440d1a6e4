//! Policies in a program of Rust: called between its steps, shown what all workers agree on, followed by all at one step. What is
//! said, heard and followed, [`paceline_sync::adaptation`] knows; here workers sum it, and steps begin.

use crate::{
    control::Proposal,
    error::{NetError, Result},
    pending::{Buffers, Pending},
    worker::{Operation, Worker},
};
use paceline_job::ReduceOp;
use paceline_sync::{
    adaptation::{Adaptation, Asked, Company, EXCHANGE, Edge, Followed, URGENCY},
    agreement::Objection,
    collective::Collective,
    policy::{Policy, Proposal as Wish},
};
use std::time::Instant;

/// Policies of a worker, and what they made of its program: [`Worker::attach`].
pub struct Attached<'w> {
    worker: &'w Worker,
    adaptation: Adaptation,
    flight: Flight,
    proposals: Vec<(Proposal, Wish)>,
    refusals: Vec<String>,
    began: Instant,
}

/// What workers say of a step is there at the end of the next.
enum Flight {
    None,
    Underway(Pending<f64>),
    Over(Vec<f64>),
}

impl Flight {
    /// Wait for it; all workers do between the same two steps.
    fn land(&mut self) -> Result<Option<&[f64]>> {
        if let Flight::Underway(pending) = std::mem::replace(self, Flight::None)
            && let Buffers::InPlace(sums) = pending.wait()?
        {
            *self = Flight::Over(sums.to_vec());
        }
        Ok(match self {
            Flight::Over(sums) => Some(sums),
            _ => None,
        })
    }
}

impl Worker {
    /// Let policies adapt this program: `batch` is what it begins with as samples of one worker's step, if it has any. All workers
    /// attach the same ones between the same two steps; from then on [`Attached::next_step`] begins steps.
    pub fn attach(&self, policies: Vec<Box<dyn Policy>>, batch: Option<u64>) -> Attached<'_> {
        let mut attached = Attached {
            worker: self,
            adaptation: Adaptation::new(policies, batch),
            flight: Flight::None,
            proposals: Vec::new(),
            refusals: Vec::new(),
            began: Instant::now(),
        };
        // A newcomer is alone yet: what it wants nobody hears, but it may be told to go.
        attached.call(Edge::Training);
        if !self.is_outside() {
            attached.call(Edge::Step);
        }
        attached
    }
}

impl Attached<'_> {
    /// Samples of this worker's step, as policies have it.
    pub fn batch(&self) -> Option<u64> {
        self.adaptation.talk().batch()
    }

    /// By what the program's learning rate is multiplied.
    pub fn learning_rate(&self) -> f64 {
        self.adaptation.talk().learning_rate
    }

    /// How workers are to stay together, by the name that policies use; empty if none said so. It is the program's to follow.
    pub fn mode(&self) -> &str {
        &self.adaptation.talk().mode
    }

    /// A number of this worker's step: `loss`, or one that a policy reads. Others are passed over.
    pub fn report(&mut self, name: &str, value: f64) {
        self.adaptation.report(name, value);
    }

    /// For gradient noise: squared norms, of this worker's gradient of the step and of the average over workers.
    pub fn report_norms(&mut self, own: f64, averaged: f64) {
        self.adaptation.report_norms(own, averaged / self.worker.size() as f64);
    }

    /// The step is over, and the next begins, whose number this is: settings, batch, learning rate and mode are those of the new
    /// one. An error, such as [`NetError::Retired`], is that of [`Worker::begin_next_step`].
    pub fn next_step(&mut self) -> Result<u64> {
        if let Some(sums) = self.flight.land()? {
            self.adaptation.hear(sums);
        }
        let seconds = self.began.elapsed().as_secs_f64();
        self.began = Instant::now();
        let (worker, view) = (self.worker, self.worker.view());
        let company =
            Company { rank: worker.rank().index(), size: view.size(), settings: &view.settings };
        let numbers = self.adaptation.say(seconds, worker.metrics(), company);
        let operation =
            Operation::new(EXCHANGE, Collective::AllReduce { len: numbers.len() as u64 })
                .reduce(ReduceOp::Sum)
                .priority(URGENCY);
        let numbers = Buffers::InPlace(numbers.into());
        self.flight = Flight::Underway(worker.start_with(operation, numbers)?);
        self.call(Edge::StepOver);
        self.look_after_proposals();
        let step = worker.begin_next_step(|| ())?;
        let Followed { size, .. } = self.adaptation.follow();
        if let Some(size) = size.filter(|size| *size != worker.size() && worker.rank().0 == 0)
            && worker.propose_members(size).is_err()
        {
            self.refusals.push(format!("{size} workers: only elastic jobs change their size"));
        }
        self.call(Edge::Step);
        Ok(step)
    }

    /// An epoch begins.
    pub fn begin_epoch(&mut self, epoch: u64) {
        self.adaptation.begin_epoch(epoch);
        self.call(Edge::Epoch);
    }

    /// It is over.
    pub fn end_epoch(&mut self) {
        self.call(Edge::EpochOver);
    }

    /// There is no further step.
    pub fn end(mut self) {
        self.call(Edge::Trained);
    }

    /// What policies wanted and does not come true, and why, since this was asked last.
    pub fn take_refusals(&mut self) -> Vec<String> {
        self.refusals.extend(self.worker.take_refusal());
        std::mem::take(&mut self.refusals)
    }

    /// What a worker that comes to the job is to [go on from](Attached::resume), the same on all, between two steps.
    pub fn remember(&mut self) -> Result<String> {
        let said = self.flight.land()?;
        Ok(self.adaptation.remember(said))
    }

    /// Go on as the others do, who begin the same step as this worker.
    pub fn resume(&mut self, text: &str) -> Result<()> {
        let said = self.adaptation.resume(text, self.worker.size());
        let said = said.map_err(|error| Objection::Unusable { reason: error.to_string() })?;
        self.flight = said.map_or(Flight::None, Flight::Over);
        self.began = Instant::now();
        Ok(())
    }

    fn call(&mut self, edge: Edge) {
        let (worker, view) = (self.worker, self.worker.view());
        let rank = worker.rank().index();
        let company = Company { rank, size: view.size(), settings: &view.settings };
        let Asked { settings, leaves, reasons } = self.adaptation.call(edge, company);
        let reason = reasons.join("; ");
        if rank == 0 && !reason.is_empty() {
            worker.decisions()(reason.clone());
        }
        if let Some(settings) = settings.filter(|_| !worker.is_outside()) {
            let wish = Wish { settings, reason };
            match worker.propose(wish.settings.clone()) {
                Ok(proposal) => self.proposals.push((proposal, wish)),
                Err(error) => self.refuse(&wish, &error),
            }
        }
        if let Some(reason) = leaves
            && worker.ask_to_leave().is_err()
        {
            self.refusals.push(format!("{reason}, and workers leave elastic jobs only"));
        }
    }

    fn look_after_proposals(&mut self) {
        for (proposal, wish) in std::mem::take(&mut self.proposals) {
            match proposal.poll() {
                None => self.proposals.push((proposal, wish)),
                Some(Ok(_)) => {}
                Some(Err(error)) => self.refuse(&wish, &error),
            }
        }
    }

    fn refuse(&mut self, wish: &Wish, error: &NetError) {
        let reason = error.to_string();
        self.adaptation.refuse(wish, &reason);
        self.refusals.push(format!("settings stay as they are: {reason}"));
    }
}
