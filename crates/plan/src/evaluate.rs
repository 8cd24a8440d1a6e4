//! What a candidate takes: partial replays sort out, short replays of an average step estimate, long ones of recorded
//! steps confirm. It counts them and stops where the limit is. What is tried is not decided here.

use crate::{
    candidate::Candidate,
    error::PlanError,
    outcome::PartialUse,
    task::{Limits, Task},
};
use paceline_job::graph::{
    Graph,
    layered::{LayerTimes, Layered, LayeredWorker, Tail},
};
use paceline_replay::graph::{Network, Played, Prices, Scenario, play};
use std::{collections::HashMap, ops::ControlFlow, sync::Arc};

/// Steps of a short replay where tensors cross the step: the second finds what the first left.
const SHORT: usize = 2;
/// Steps of the replay whose critical path is followed.
pub(crate) const FOLLOWED: usize = 3;
/// Steps of a long replay, at least.
const LONG: usize = 4;

/// How far partial replay may be off when it compares two candidates of one search.
const PARTIAL_ERROR: f64 = 0.01;

/// How far a search is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Progress {
    /// Short replays so far.
    pub replays: usize,
    /// Short replays at most.
    pub most: usize,
    /// The best step so far, as estimated.
    pub best_ms: f64,
}

/// Milliseconds of a step of the job as it is.
pub(crate) fn as_it_is(task: &Task) -> Result<f64, PlanError> {
    let mut scenario = task.scenario.clone();
    if let Some(layered) = &task.layered {
        scenario.graph = long(layered).graph();
    }
    let skip = scenario.graph.warm_up();
    Ok(scenario.play()?.step_ms(skip))
}

/// Replays candidates of one task.
pub(crate) struct Evaluator<'t> {
    task: &'t Task,
    /// An average step, without recorded times of operations.
    short: Option<Layered>,
    long: Option<Layered>,
    known: HashMap<Candidate, f64>,
    prices: HashMap<Candidate, Arc<Prices>>,
    partial: PartialUse,
    sorts_out: bool,
    replays: usize,
    allowed: usize,
    limit: usize,
    rounds: usize,
    events: u64,
    best: f64,
    stopped: bool,
    progress: &'t mut dyn FnMut(&Progress) -> ControlFlow<()>,
}

impl<'t> Evaluator<'t> {
    pub fn new(
        task: &'t Task,
        layered: &Option<Layered>,
        limits: &Limits,
        progress: &'t mut dyn FnMut(&Progress) -> ControlFlow<()>,
    ) -> Evaluator<'t> {
        Evaluator {
            task,
            short: layered.as_ref().map(average),
            long: layered.as_ref().map(long),
            known: HashMap::new(),
            prices: HashMap::new(),
            partial: PartialUse::default(),
            sorts_out: limits.partial,
            replays: 0,
            allowed: limits.replays,
            limit: limits.replays,
            rounds: limits.rounds,
            events: 0,
            best: f64::INFINITY,
            stopped: false,
            progress,
        }
    }

    /// An average step, for those who look at layers.
    pub fn layered(&self) -> Option<&Layered> {
        self.short.as_ref()
    }

    pub fn task(&self) -> &Task {
        self.task
    }

    pub fn rounds(&self) -> usize {
        self.rounds
    }

    pub fn replays(&self) -> usize {
        self.replays
    }

    pub fn events(&self) -> u64 {
        self.events
    }

    /// As many replays again, for another engine.
    pub fn refill(&mut self) {
        self.allowed = self.replays + self.limit;
    }

    /// Whether nothing more may be tried.
    pub fn is_spent(&self) -> bool {
        self.stopped || self.replays >= self.allowed
    }

    /// Milliseconds of a step by a short replay; infinite if none is left, or if the candidate cannot be played.
    pub fn estimate(&mut self, candidate: &Candidate) -> f64 {
        if let Some(known) = self.known.get(candidate) {
            return *known;
        }
        if self.is_spent() {
            return f64::INFINITY;
        }
        let value = self.estimate_anew(candidate);
        let progress = Progress { replays: self.replays, most: self.allowed, best_ms: self.best };
        self.stopped |= (self.progress)(&progress).is_break();
        value
    }

    /// The same to say why something was chosen, which happens after the search and takes no more than a few replays: the
    /// limit does not keep it from being said. `None` if the candidate cannot be played.
    pub fn explain(&mut self, candidate: &Candidate) -> Option<f64> {
        let known = self.known.get(candidate).copied();
        Some(known.unwrap_or_else(|| self.estimate_anew(candidate)))
            .filter(|value| value.is_finite())
    }

    fn estimate_anew(&mut self, candidate: &Candidate) -> f64 {
        let value = match &self.short {
            Some(layered) => self.estimate_of(layered.clone(), candidate),
            None => self.play(candidate, self.task.scenario.graph.clone(), 1),
        };
        let value = value.unwrap_or(f64::INFINITY);
        self.best = self.best.min(value);
        self.known.insert(candidate.clone(), value);
        value
    }

    /// The same for layers that are not quite the task's.
    pub fn estimate_of(
        &mut self,
        layered: Layered,
        candidate: &Candidate,
    ) -> Result<f64, PlanError> {
        self.play(candidate, short_graph(layered, candidate), 0)
    }

    /// Milliseconds of a step by a long replay.
    pub fn confirm(&mut self, candidate: &Candidate) -> Result<f64, PlanError> {
        let graph = match &self.long {
            Some(layered) => {
                Layered { groups: candidate.groups_for(layered), ..layered.clone() }.graph()
            }
            None => self.task.scenario.graph.clone(),
        };
        let skip = graph.warm_up();
        self.play(candidate, graph, skip)
    }

    /// A few steps, to look at what happens when. `None` without layers.
    pub fn follow(&mut self, candidate: &Candidate) -> Result<Option<(Graph, Played)>, PlanError> {
        let Some(layered) = &self.short else { return Ok(None) };
        let groups = candidate.groups_for(layered);
        let layered = Layered { groups, ..repeated(layered, FOLLOWED) };
        let scenario = self.scenario(candidate, layered.graph());
        let played = scenario.play()?;
        self.count(&played);
        Ok(Some((scenario.graph, played)))
    }

    /// What synchronising one tensor takes by itself, under the candidate's settings.
    pub fn prices(&mut self, candidate: &Candidate) -> Result<Arc<Prices>, PlanError> {
        let settings = candidate.cut(Vec::new());
        if let Some(known) = self.prices.get(&settings) {
            return Ok(known.clone());
        }
        let scenario = self.scenario(candidate, self.task.scenario.graph.clone());
        let prices = Arc::new(Prices::of(&scenario, self.task.bytes())?);
        self.partial.tensors += prices.tensors();
        self.events += prices.events();
        self.prices.insert(settings, prices.clone());
        Ok(prices)
    }

    /// Milliseconds of a step by partial replay: only tensors of lengths and settings that were not seen before are played,
    /// each by itself. `None` where that is not wanted, without layers, or if a tensor cannot be played.
    fn partial(&mut self, candidate: &Candidate) -> Option<f64> {
        let layered = self.short.clone().filter(|_| self.sorts_out)?;
        let prices = self.prices(candidate).ok()?;
        let graph = short_graph(layered, candidate);
        let played = play(&graph, &Network::Served(prices)).ok()?;
        self.partial.estimates += 1;
        Some(played.step_ms(0))
    }

    /// The candidates that are worth a whole replay: the best `most` by partial replay, best first. All of them, as they
    /// are, where there is no partial replay.
    pub fn promising(&mut self, candidates: Vec<Candidate>, most: usize) -> Vec<Candidate> {
        let mut ranked = Vec::with_capacity(candidates.len());
        for candidate in &candidates {
            match self.partial(candidate) {
                Some(value) => ranked.push((value, candidate)),
                None => return candidates,
            }
        }
        ranked.sort_by(|one, other| one.0.total_cmp(&other.0));
        self.partial.spared += ranked.len().saturating_sub(most);
        ranked.into_iter().take(most).map(|(_, candidate)| candidate.clone()).collect()
    }

    /// Whether partial replay says that a candidate takes longer than another by more than it may be wrong by; the whole
    /// replay is spared then.
    pub fn is_hopeless(&mut self, candidate: &Candidate, against: &Candidate) -> bool {
        let values = self.partial(candidate).zip(self.partial(against));
        let hopeless = values.is_some_and(|(value, other)| value > other * (1.0 + PARTIAL_ERROR));
        self.partial.spared += usize::from(hopeless);
        hopeless
    }

    /// What partial replay did.
    pub fn partial_use(&self) -> PartialUse {
        self.partial
    }

    fn play(&mut self, candidate: &Candidate, graph: Graph, skip: usize) -> Result<f64, PlanError> {
        let played = self.scenario(candidate, graph).play()?;
        self.count(&played);
        Ok(played.step_ms(skip))
    }

    fn scenario(&self, candidate: &Candidate, graph: Graph) -> Scenario {
        self.task.scenario(graph, candidate.settings(&self.task.scenario.settings))
    }

    fn count(&mut self, played: &Played) {
        self.replays += 1;
        self.events += played.events;
    }
}

/// The steps of a short replay.
fn short_graph(mut layered: Layered, candidate: &Candidate) -> Graph {
    layered.groups = candidate.groups_for(&layered);
    let steps = if layered.crosses_step { SHORT } else { 1 };
    repeated(&layered, steps).graph()
}

/// One step whose times are the means of all.
fn average(layered: &Layered) -> Layered {
    let mean = |worker: &LayeredWorker| {
        let steps = worker.steps.len().max(1) as u64;
        let mut sums = vec![LayerTimes::default(); layered.layers.len()];
        for step in &worker.steps {
            for (sum, times) in sums.iter_mut().zip(step) {
                for (sum, time) in sum.each_mut().into_iter().zip(times.each()) {
                    *sum += time;
                }
            }
        }
        for sum in sums.iter_mut().flat_map(LayerTimes::each_mut) {
            *sum /= steps;
        }
        let tail = |of: fn(&Tail) -> u64| worker.tails.iter().map(of).sum::<u64>() / steps;
        let tail = Tail {
            handing: tail(|tail| tail.handing),
            before_wait: tail(|tail| tail.before_wait),
            update: tail(|tail| tail.update),
            rest: tail(|tail| tail.rest),
        };
        let marks = worker.marks.last().cloned().into_iter().collect();
        LayeredWorker { host: worker.host.clone(), steps: vec![sums], tails: vec![tail], marks }
    };
    let workers = layered.workers.iter().map(mean).collect();
    // What is no gradient is where the last step had it.
    let asides = layered.asides.last().cloned().into_iter().collect();
    let mut average = Layered { workers, asides, ..layered.clone() };
    average.forget_recorded();
    average
}

/// All recorded steps, which is what a replay of the job plays; few of them again and again.
fn long(layered: &Layered) -> Layered {
    repeated(layered, layered.steps().max(LONG))
}

/// So many steps, the first after the last.
fn repeated(layered: &Layered, count: usize) -> Layered {
    let mut repeated = layered.with_steps((0..count).map(|step| step % layered.steps().max(1)));
    repeated.forget_recorded();
    repeated
}
