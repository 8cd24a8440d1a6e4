//! How workers come to a coordinator, for the first time or again, and what there is before the first step: the first view, and what
//! links cost. What workers say later is not known here.

use super::{
    CoordinatorConfig, GRACE, Member, Phase, Progress, Seat, Service,
    door::Arrival,
    elastic::Occasion,
    keep_alive,
    message::{
        CoordinatorMessage, Fate, JobId, MAXIMUM_WORKERS, Outside, Refusal, Request, Return,
    },
    notes::Kept,
    tell, tell_choices, terrain,
};
use crate::{
    calibration,
    error::NetError,
    handshake::{Deadline, MessageChannel},
};
use paceline_job::{Measured, Membership, Rank, View, Worker, WorkerId};
use paceline_sync::{agreement::Registrar, survey::Finding};
use std::{
    net::SocketAddr,
    sync::{Arc, mpsc::TryRecvError},
};

impl Service {
    pub(super) fn take_arrivals(&mut self) {
        loop {
            match self.arrivals.try_recv() {
                Ok(arrival) => self.seat(arrival),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return,
            }
        }
    }

    pub(super) fn seat(&mut self, arrival: Arrival) {
        let Arrival { mut channel, from, request } = arrival;
        let join = match request {
            // Whether there is a job to come to is still to be seen.
            Request::Join(_) if self.restored && self.early.len() < MAXIMUM_WORKERS => {
                return self.early.push(Arrival { channel, from, request });
            }
            Request::Join(join) => join,
            // Whether there is a job to wait for, too.
            Request::Return(ref back)
                if self.restored
                    && back.outside.is_some()
                    && self.early.len() < MAXIMUM_WORKERS =>
            {
                return self.early.push(Arrival { channel, from, request });
            }
            Request::Return(back) => return self.take_back(channel, from, back),
            // Answered at the door.
            Request::Ask(_) => return,
        };
        let name = match join.rank {
            Some(rank) => format!("worker {rank} at {from} on {}", join.host),
            None => format!("worker at {from} on {}", join.host),
        };
        let process = join.process;
        let admitted = match &self.phase {
            Phase::Gathering => self.roster.admit(join).map(Seat::Gathering),
            Phase::Running => self.admits().and_then(|()| self.seat_newcomer(join, &mut channel)),
            Phase::Failed(refusal) => Err(refusal.clone()),
        };
        match admitted {
            Ok(seat) => {
                keep_alive(&channel);
                let newcomer = !matches!(seat, Seat::Gathering(_));
                self.members.push(Member { channel, name, process, stride: None, seat });
                if newcomer {
                    self.brief(self.members.len() - 1);
                }
                self.tell_progress();
            }
            Err(refusal) => self.refuse(&mut channel, &name, refusal),
        }
    }

    pub(super) fn refuse(&self, channel: &mut MessageChannel, name: &str, refusal: Refusal) {
        tell(channel, &CoordinatorMessage::Refused(refusal.clone()));
        self.config.log.line(&format!("refused {name}: {}", NetError::from(refusal)));
    }

    /// A worker of the job is connected again. What that means is the registrar's to say, once the worker has told it where
    /// it stands.
    pub(super) fn take_back(
        &mut self,
        mut channel: MessageChannel,
        from: SocketAddr,
        back: Return,
    ) {
        let Return { job, worker, process, outside } = back;
        let name = format!("worker with the number {} at {from}", worker.0);
        if job != self.job {
            let (ours, theirs) = (self.job.to_string(), job.to_string());
            return self.refuse(&mut channel, &name, Refusal::OtherJob { ours, theirs });
        }
        if self.registrar.as_ref().is_none_or(|it| it.view().membership.is_fixed()) {
            return self.refuse(&mut channel, &name, Refusal::NotElastic);
        }
        // Its connection before is over, though that was not seen yet.
        let is_before = |member: &Member| match &member.seat {
            Seat::Taken(id) => *id == worker,
            Seat::Waiting(waiting) => waiting.id == worker,
            Seat::Gathering(_) => false,
        };
        if let Some(index) = self.members.iter().position(is_before) {
            self.bury(index, Fate::Lost);
        }
        let seat = match outside.filter(|_| self.rank_of(worker).is_none()) {
            None => Seat::Taken(worker),
            Some(Outside { host, address }) => match self.admits() {
                Ok(()) => Seat::Waiting(Worker { id: worker, host, address: address.to_string() }),
                Err(refusal) => return self.refuse(&mut channel, &name, refusal),
            },
        };
        keep_alive(&channel);
        self.members.push(Member { channel, name, process, stride: None, seat });
        self.brief(self.members.len() - 1);
        self.tell_progress();
        self.restored = false;
        self.seat_the_early();
    }

    fn seat_the_early(&mut self) {
        std::mem::take(&mut self.early).into_iter().for_each(|arrival| self.seat(arrival));
    }

    /// Nobody of a job that was begun before has come back: those who are there begin another, if anybody is.
    fn begin_anew(&mut self) {
        self.restored = false;
        let begins = |it: &Arrival| matches!(it.request, Request::Join(_));
        let (early, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.early).into_iter().partition(begins);
        self.early = early;
        for Arrival { mut channel, from, .. } in waiting {
            self.refuse(&mut channel, &format!("worker at {from}"), Refusal::JobOver);
        }
        let job = match JobId::random() {
            Ok(job) if !self.early.is_empty() => job,
            _ => return self.end(),
        };
        self.config.log.line("none of the workers of the job before came back: a new one begins");
        self.notes.begin_anew(job.clone());
        (self.job, self.registrar, self.phase) = (job, None, Phase::Gathering);
        self.deadline = Deadline::after(self.config.join_timeout);
        self.seat_the_early();
    }

    /// Whoever has not come back in time is lost.
    pub(super) fn call_the_roll(&mut self) {
        let absent = self.registrar.as_ref().map_or_else(Vec::new, Registrar::absent);
        if absent.is_empty() {
            self.grace = None;
        } else if self.vigil.silence(*self.grace.get_or_insert(self.vigil.pulse())) > GRACE {
            for worker in &absent {
                let number = worker.0;
                let text = format!("worker with the number {number} did not come back");
                self.config.log.event(&text);
            }
            self.register(|registrar, out| {
                absent.iter().for_each(|worker| registrar.gone(*worker, out));
            });
            self.grace = None;
            if self.restored {
                return self.begin_anew();
            }
            self.turn_away_if_over();
            if self.members.is_empty() {
                self.end();
            }
        }
    }

    pub(super) fn give_view(&mut self) {
        let (view, order) =
            self.roster.first_view(self.config.settings.clone(), self.config.fusion.clone());
        let membership = match self.config.elastic {
            Some(_) => Membership::Elastic,
            None => Membership::Fixed,
        };
        let survey = self.config.survey.filter(|_| membership.is_fixed());
        let view = View { batch: self.config.batch, membership, survey, ..view };
        if let Some(oddity) = terrain::oddity(&view) {
            self.config.log.line(&oddity);
        }
        let measuring = calibration::is_due(&view);
        let limits = self.config.elastic.unwrap_or_default();
        let registrar = Registrar::new(view.clone(), measuring).limited(limits);
        // Nobody hears of a view that could be forgotten: until it is written, workers wait as for each other. One that
        // is about to be measured is written then.
        if !measuring && !matches!(self.notes.keep(&registrar, Vec::new()), Kept::Safe(_)) {
            return;
        }
        for member in &mut self.members {
            let Seat::Gathering(ticket) = &member.seat else { continue };
            // Members and seats come and go together.
            let position = order.iter().position(|seat| seat == ticket);
            let rank = Rank(position.expect("every member has a seat") as u32);
            member.seat = Seat::Taken(view.workers[rank.index()].id);
            let view = view.clone();
            let job = self.job.clone();
            tell(&mut member.channel, &CoordinatorMessage::Welcome { job, rank, view });
        }
        self.registrar = Some(registrar);
        self.phase = Phase::Running;
        (0..self.members.len()).for_each(|index| self.brief(index));
        self.observe_view();
        if self.config.elastic.is_some() {
            self.want(Occasion::Wanted, self.census.wanted);
        }
        self.tell_progress();
    }

    pub(super) fn give_up(&mut self) {
        let refusal = self.roster.timeout(self.config.join_timeout);
        for member in &mut self.members {
            tell(&mut member.channel, &CoordinatorMessage::Refused(refusal.clone()));
        }
        self.members.clear();
        let text = NetError::from(refusal.clone()).to_string();
        self.config.log.line(&text);
        self.phase = Phase::Failed(refusal);
        self.shared.set_progress(Progress::Failed(text));
    }

    /// The workers' links are measured, says this one; false if that was not its to say.
    pub(super) fn measured(
        &mut self,
        id: WorkerId,
        measured: Measured,
        finding: Option<Finding>,
    ) -> bool {
        let view = self.registrar.as_ref().map(Registrar::view);
        let asked = view.is_some_and(|view| calibration::is_surveyed(view) == finding.is_some());
        let first = view.and_then(|view| view.rank_of(id));
        let topology = finding.as_ref().map(|finding| Arc::new(finding.topology.clone()));
        let mut due = false;
        if asked && first == Some(Rank(0)) {
            self.register(|registrar, out| due = registrar.measured(measured, topology, out));
        }
        if due {
            if let Some(finding) = finding {
                self.tell_survey(&finding);
            }
            if let Some(registrar) = &self.registrar {
                tell_choices(&self.config, registrar.view());
            }
        }
        due
    }

    pub(super) fn tell_survey(&self, finding: &Finding) {
        let CoordinatorConfig { log, topology_out, quiet, .. } = &self.config;
        let saved = topology_out.as_ref().map(|file| terrain::save(&finding.topology, file));
        if let Some(Err(problem)) = &saved {
            log.line(problem);
        }
        let file = topology_out.as_deref().filter(|_| saved.is_some_and(|saved| saved.is_ok()));
        if !quiet {
            terrain::found(finding, file).iter().for_each(|line| log.line(line));
        }
    }
}
