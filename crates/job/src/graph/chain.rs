//! The nodes of a chain of layers, one worker after another: passes, updates, posts and waits in the order of the step. What they
//! take is in [`Layered`]; when they happen is not known here.

use super::{
    Graph, Node, NodeId, OperationId, Role, Sequence, Worker,
    layered::{Group, Handing, LayerTimes, Layered, LayeredWorker, MarkKind, Slot, Tail},
};
use crate::{
    Rank,
    trace::{Lane, LaneKind, Phase},
};
use std::sync::Arc;

/// Writes one worker's nodes after another.
pub(super) struct Chain<'l> {
    layered: &'l Layered,
    /// For each layer, the groups that its tensors are in.
    needed: Vec<Vec<u32>>,
    /// For each layer, the groups that its backward pass completes.
    completed: Vec<Vec<u32>>,
    groups: usize,
    /// For each step, the first of its asides among all operations.
    asides: Vec<u32>,
    /// Whether any step of any worker ends with updates: then all have a node for them, because workers that are compared have
    /// the same nodes.
    updates_last: bool,
    /// What waits for no layer in particular are called.
    wait: Arc<str>,
}

impl<'l> Chain<'l> {
    /// Operations are those of groups, step by step, and behind them all asides, step by step.
    pub fn new(layered: &'l Layered, groups: &[Group]) -> Chain<'l> {
        let layer_of = layered.layer_of_tensors();
        let mut needed = vec![Vec::new(); layered.layers.len()];
        let mut completed = vec![Vec::new(); layered.layers.len()];
        for (place, group) in groups.iter().enumerate() {
            let mut layers: Vec<u32> =
                group.tensors.iter().map(|tensor| layer_of[*tensor as usize]).collect();
            layers.sort_unstable();
            layers.dedup();
            // Backward comes last to the layer that is first in the forward pass.
            completed[layers[0] as usize].push(place as u32);
            for layer in layers {
                needed[layer as usize].push(place as u32);
            }
        }
        let mut next = (groups.len() * layered.steps()) as u32;
        let mut asides = Vec::with_capacity(layered.steps());
        for step in 0..layered.steps() {
            asides.push(next);
            next += layered.asides_of(step).len() as u32;
        }
        let mut tails = layered.workers.iter().flat_map(|worker| &worker.tails);
        let updates_last = tails.any(|tail| tail.update > 0);
        Chain {
            layered,
            needed,
            completed,
            groups: groups.len(),
            asides,
            updates_last,
            wait: "wait".into(),
        }
    }

    pub fn worker(&self, graph: &mut Graph, rank: Rank, worker: &LayeredWorker) {
        let first = graph.nodes.len() as u32;
        let mut line = Line { graph, rank };
        for step in 0..self.layered.steps() {
            self.step(&mut line, worker, step);
        }
        let nodes = (first..line.graph.nodes.len() as u32).map(NodeId).collect();
        let lane = Lane { name: "training".into(), kind: LaneKind::Thread };
        let lanes = vec![Sequence { lane, nodes }];
        line.graph.workers.push(Worker { host: worker.host.clone(), lanes });
    }

    fn step(&self, line: &mut Line<'_>, worker: &LayeredWorker, step: usize) {
        let [parameters, end]: [Arc<str>; 2] = ["parameters", "end of step"].map(Into::into);
        let crosses = self.layered.crosses_step;
        let layers = self.layered.layers.len();
        let operation = |step: usize, group: u32| OperationId((step * self.groups) as u32 + group);
        let times = &worker.steps[step];
        let Tail { handing, before_wait, update: updated, rest } =
            worker.tails.get(step).copied().unwrap_or_default();
        let mut awaited = vec![!crosses || step == 0; self.groups];
        for (place, layer) in self.layered.layers.iter().enumerate() {
            self.marks(line, worker, step, Slot::forward(place), &layer.name, Phase::Forward);
            let mut needs = false;
            if times[place].wait_gap > 0 {
                line.add(&layer.name, Phase::Other, Role::Work, times[place].wait_gap, 0);
            }
            for &group in &self.needed[place] {
                if !std::mem::replace(&mut awaited[group as usize], true) {
                    needs = true;
                    let role = Role::Await(operation(step - 1, group));
                    line.add(&layer.name, Phase::Other, role, 0, 0);
                }
            }
            if crosses && step > 0 && (needs || times[place].update > 0) {
                line.add(&layer.name, Phase::Update, Role::Work, 0, times[place].update);
            }
            let LayerTimes { forward, forward_gap, .. } = times[place];
            line.add(&layer.name, Phase::Forward, Role::Work, forward_gap, forward);
        }
        let mut spared = 0;
        for (place, layer) in self.layered.layers.iter().enumerate().rev() {
            let slot = Slot::backward(place, layers);
            self.marks(line, worker, step, slot, &layer.name, Phase::Backward);
            let LayerTimes { backward, backward_gap, .. } = times[place];
            let backward = self.handing(place, backward, &mut spared);
            line.add(&layer.name, Phase::Backward, Role::Work, backward_gap, backward);
            let last = self.completed[place].last();
            for group in &self.completed[place] {
                let role = Role::Post(operation(step, *group));
                let gap = if place == 0 && Some(group) == last { handing } else { 0 };
                line.add(&layer.name, Phase::Other, role, gap, 0);
            }
        }
        self.marks(line, worker, step, Slot::wait(layers), &self.wait, Phase::Other);
        if !crosses {
            line.add(&self.wait, Phase::Other, Role::Work, before_wait, 0);
            for group in 0..self.groups as u32 {
                line.add(&self.wait, Phase::Other, Role::Await(operation(step, group)), 0, 0);
            }
        }
        self.marks(line, worker, step, Slot::update(layers), &parameters, Phase::Other);
        if !crosses {
            let update = times.iter().map(|times| times.update).sum();
            line.add(&parameters, Phase::Update, Role::Work, 0, update);
        }
        self.marks(line, worker, step, Slot::end(layers), &end, Phase::Other);
        if self.updates_last {
            line.add(&parameters, Phase::Update, Role::Work, 0, updated);
        }
        line.add(&end, Phase::Other, Role::StepEnd(step as u32), rest, 0);
    }

    /// A layer's backward pass, with as many operations to hand over as there are now. What is spared beyond the pass is spared in
    /// the next: a thread may still be handing over when that begins.
    fn handing(&self, place: usize, backward: u64, spared: &mut u64) -> u64 {
        let Handing { each, counted } = &self.layered.handing;
        let taken = |operations: u64| each.saturating_mul(operations);
        let longer = backward.saturating_add(taken(self.completed[place].len() as u64));
        let less = spared.saturating_add(taken(counted.get(place).copied().unwrap_or(0)));
        *spared = less.saturating_sub(longer);
        longer.saturating_sub(less)
    }

    /// What happens at one place of the step apart from passes, updates and gradients.
    fn marks(
        &self,
        line: &mut Line<'_>,
        worker: &LayeredWorker,
        step: usize,
        slot: Slot,
        name: &Arc<str>,
        phase: Phase,
    ) {
        let marks = worker.marks.get(step).into_iter().flatten();
        for mark in marks.filter(|mark| mark.slot == slot) {
            let operation = OperationId(self.asides[step] + mark.aside);
            match mark.kind {
                MarkKind::Posted => {
                    line.add(name, phase, Role::Post(operation), mark.gap, mark.work);
                }
                MarkKind::Awaited => {
                    // What passes before the wait does so however long the operation takes.
                    line.add(name, phase, Role::Work, mark.gap, mark.work);
                    line.add(&self.wait, Phase::Other, Role::Await(operation), 0, 0);
                }
            }
        }
    }
}

/// One worker's nodes, in order.
struct Line<'g> {
    graph: &'g mut Graph,
    rank: Rank,
}

impl Line<'_> {
    fn add(&mut self, name: &Arc<str>, phase: Phase, role: Role, gap: u64, length: u64) {
        let (name, rank) = (name.clone(), self.rank);
        self.graph.nodes.push(Node { name, rank, phase, role, length, gap, after: Vec::new() });
    }
}
