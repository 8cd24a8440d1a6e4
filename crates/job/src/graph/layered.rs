//! Steps of a model that is a chain of layers: forward through all, backward through all, one operation for each tensor or
//! group of tensors. This is what a job with our optimizer or with DDP does, and what a table of layers describes. Operations
//! that carry no gradients (a broadcast of buffers, the mean of a loss) are its *asides*.

use super::{Graph, Operation, OperationKind, chain::Chain};
use crate::{
    Dtype, Fusion, Rank,
    trace::{Layer, Phase, Tensor},
};
use std::{collections::HashMap, time::Duration};

/// Nanoseconds that a worker spends on a layer in one step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LayerTimes {
    /// Between what came before and where it waits for its tensors, where updates cross the step: this passes however long
    /// they take.
    pub wait_gap: u64,
    /// Between what came before the forward pass and the forward pass, waiting for other workers apart.
    pub forward_gap: u64,
    /// The forward pass.
    pub forward: u64,
    /// Between what came before the backward pass and the backward pass.
    pub backward_gap: u64,
    /// The backward pass, until all of the layer's gradients are there.
    pub backward: u64,
    /// The update of its parameters.
    pub update: u64,
}

impl LayerTimes {
    /// All of them, in the order of the step.
    pub fn each(mut self) -> [u64; 6] {
        self.each_mut().map(|time| *time)
    }

    /// The same, to change them.
    pub fn each_mut(&mut self) -> [&mut u64; 6] {
        let LayerTimes { wait_gap, forward_gap, forward, backward_gap, backward, update } = self;
        [wait_gap, update, forward_gap, forward, backward_gap, backward]
    }

    /// A pass: backward, or else forward.
    pub(super) fn of_pass(&mut self, phase: Phase) -> &mut u64 {
        if phase == Phase::Backward { &mut self.backward } else { &mut self.forward }
    }

    /// What so many times as slow a worker takes.
    pub fn slower(mut self, times: f64) -> LayerTimes {
        for time in self.each_mut() {
            *time = (*time as f64 * times) as u64;
        }
        self
    }
}

/// Nanoseconds from the last backward pass to the end of a step, waiting for other workers apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// Until the last gradients are handed over.
    pub handing: u64,
    /// From there to where the worker waits for all of them, where it does.
    pub before_wait: u64,
    /// Updates, where they cross the step and lie behind all passes; otherwise layers have theirs.
    pub update: u64,
    /// Everything else.
    pub rest: u64,
}

/// A worker's part.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LayeredWorker {
    /// Where it sits.
    pub host: String,
    /// For each step, the times of all layers in the order of the forward pass.
    pub steps: Vec<Vec<LayerTimes>>,
    /// For each step, what passes after the last backward pass and before the step is over.
    pub tails: Vec<Tail>,
    /// For each step, where it takes part in asides and waits for them, in order; steps beyond have none.
    pub marks: Vec<Vec<Mark>>,
}

/// A place in the chain of a step: before the forward or the backward pass of a layer, before the wait for all gradients, before
/// all parameters are updated, or before the end. In the order of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Slot(u32);

impl Slot {
    /// Before a layer's forward pass.
    pub const fn forward(layer: usize) -> Slot {
        Slot(layer as u32)
    }

    /// Before the backward pass of a layer, of so many.
    pub const fn backward(layer: usize, layers: usize) -> Slot {
        Slot((2 * layers - 1 - layer) as u32)
    }

    /// Behind the passes of so many layers, and before the wait for all gradients, where there is one.
    pub const fn wait(layers: usize) -> Slot {
        Slot(2 * layers as u32)
    }

    /// Behind that, and before the update of parameters.
    pub const fn update(layers: usize) -> Slot {
        Slot(2 * layers as u32 + 1)
    }

    /// Before the end of the step.
    pub const fn end(layers: usize) -> Slot {
        Slot(2 * layers as u32 + 2)
    }
}

/// Where a worker takes part in an aside, or waits for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// Which of the step's asides.
    pub aside: u32,
    /// What happens.
    pub kind: MarkKind,
    /// Where.
    pub slot: Slot,
    /// Nanoseconds between what came before and this.
    pub gap: u64,
    /// Nanoseconds of the pass of the slot's layer that come before this, where it happens inside.
    pub work: u64,
}

/// What happens at a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkKind {
    /// The worker takes part.
    Posted,
    /// It does not go on before the operation is over.
    Awaited,
}

/// What is sent together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Tensors by their place among all tensors of all layers, in the order of the forward pass.
    pub tensors: Vec<u32>,
}

/// What handing operations over takes. Backward passes contain it for the operations that there were, so only a difference in their
/// number counts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Handing {
    /// Nanoseconds of a worker's thread for one operation.
    pub each: u64,
    /// How many each layer's backward pass contains.
    pub counted: Vec<u64>,
}

/// Steps of a chain of layers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Layered {
    /// In the order of the forward pass.
    pub layers: Vec<Layer>,
    /// By rank, all with the same number of steps.
    pub workers: Vec<LayeredWorker>,
    /// Whether a layer's forward pass waits for its own tensors only; otherwise a step ends when all are there.
    pub crosses_step: bool,
    /// Whether what is needed first goes first; otherwise first come, first served.
    pub scheduled: bool,
    /// Every tensor once. What has a group of its own may be left out.
    pub groups: Vec<Group>,
    /// Whether the program itself decides what is sent together, as DDP does with its buckets: then the groups are those, a
    /// plan's are not looked at, and what is in none of them is not sent.
    pub own_buckets: bool,
    /// What handing operations over takes, where that is to count.
    pub handing: Handing,
    /// For each step and each group (in the order of [`Layered::all_groups`]), nanoseconds from the last post to the end on
    /// each worker, as recorded; empty if it was not.
    pub recorded: Vec<Vec<Vec<u64>>>,
    /// For each step, the operations that carry no gradients; steps beyond have none.
    pub asides: Vec<Vec<Operation>>,
}

impl Layered {
    /// The same steps on all of `hosts`.
    pub fn alike(
        layers: Vec<Layer>,
        times: &[LayerTimes],
        hosts: Vec<String>,
        steps: usize,
    ) -> Layered {
        let worker = |host| LayeredWorker {
            host,
            steps: vec![times.to_vec(); steps],
            tails: vec![Tail::default(); steps],
            marks: Vec::new(),
        };
        let workers = hosts.into_iter().map(worker).collect();
        Layered { layers, workers, crosses_step: true, scheduled: true, ..Layered::default() }
    }

    /// The same steps again and again, until there are `count`: a table of layers has one, and what is left over from
    /// a step shows in the next.
    pub fn repeated(self, count: usize) -> Layered {
        let present = self.steps();
        if present == 0 || present >= count {
            return self;
        }
        self.with_steps((0..count).map(|step| step % present))
    }

    /// These of its steps, in this order.
    pub fn with_steps(&self, steps: impl Iterator<Item = usize> + Clone) -> Layered {
        fn of<T: Clone + Default>(all: &[T], steps: impl Iterator<Item = usize>) -> Vec<T> {
            if all.is_empty() {
                return Vec::new();
            }
            steps.map(|step| all.get(step).cloned().unwrap_or_default()).collect()
        }
        let worker = |worker: &LayeredWorker| LayeredWorker {
            host: worker.host.clone(),
            steps: of(&worker.steps, steps.clone()),
            tails: of(&worker.tails, steps.clone()),
            marks: of(&worker.marks, steps.clone()),
        };
        Layered {
            workers: self.workers.iter().map(worker).collect(),
            recorded: of(&self.recorded, steps.clone()),
            asides: of(&self.asides, steps.clone()),
            ..self.clone()
        }
    }

    /// So many workers like the first, each on a host of its own. Asides of some workers only are left out, because nobody knows
    /// who would take part.
    pub fn like_first(mut self, count: usize) -> Layered {
        let Some(mut first) = self.workers.first().cloned() else { return self };
        for (asides, marks) in self.asides.iter_mut().zip(&mut first.marks) {
            let of_all: Vec<bool> = asides.iter().map(|aside| aside.members.is_empty()).collect();
            let is_of_all = |aside: u32| of_all.get(aside as usize).copied().unwrap_or(false);
            let place = |aside: u32| (0..aside).filter(|other| is_of_all(*other)).count() as u32;
            marks.retain(|mark| is_of_all(mark.aside));
            marks.iter_mut().for_each(|mark| mark.aside = place(mark.aside));
            asides.retain(|aside| aside.members.is_empty());
        }
        let worker = |rank| LayeredWorker { host: format!("host{rank}"), ..first.clone() };
        self.workers = (0..count).map(worker).collect();
        self.forget_recorded();
        self
    }

    /// Forget how long operations took: what is to be played is not what was recorded.
    pub fn forget_recorded(&mut self) {
        self.recorded.clear();
        for operation in self.asides.iter_mut().flatten() {
            operation.recorded.clear();
        }
    }

    /// The asides of a step.
    pub fn asides_of(&self, step: usize) -> &[Operation] {
        self.asides.get(step).map_or(&[], Vec::as_slice)
    }

    /// The same steps, of which it is known that handing one of their operations over takes so long. Once they are sent in
    /// other groups, passes that hand over fewer take less.
    pub fn posting(mut self, post: Duration) -> Layered {
        let layers = self.layer_of_tensors();
        let mut counted = vec![0; self.layers.len()];
        for group in self.all_groups() {
            let first = group.tensors.iter().map(|tensor| layers[*tensor as usize]).min();
            counted[first.unwrap_or(0) as usize] += 1;
        }
        self.handing =
            Handing { each: u64::try_from(post.as_nanos()).unwrap_or(u64::MAX), counted };
        self
    }

    /// How many steps every worker has.
    pub fn steps(&self) -> usize {
        self.workers.iter().map(|worker| worker.steps.len()).min().unwrap_or(0)
    }

    /// The layer of each tensor.
    pub fn layer_of_tensors(&self) -> Vec<u32> {
        let layers = self.layers.iter().enumerate();
        layers.flat_map(|(place, layer)| layer.tensors.iter().map(move |_| place as u32)).collect()
    }

    /// The groups, and one more for each tensor that none of them has (unless the program decides what is sent), in the order
    /// in which the backward pass completes them: the group that is complete first, first.
    pub fn all_groups(&self) -> Vec<Group> {
        let layer_of = self.layer_of_tensors();
        let mut alone = vec![true; layer_of.len()];
        let mut groups: Vec<Group> = Vec::with_capacity(layer_of.len());
        for group in &self.groups {
            let tensors: Vec<u32> = group
                .tensors
                .iter()
                .copied()
                .filter(|tensor| alone.get_mut(*tensor as usize).is_some_and(std::mem::take))
                .collect();
            if !tensors.is_empty() {
                groups.push(Group { tensors });
            }
        }
        let left = (0..layer_of.len() as u32)
            .filter(|tensor| alone[*tensor as usize] && !self.own_buckets);
        groups.extend(left.map(|tensor| Group { tensors: vec![tensor] }));
        groups.sort_by_key(|group| {
            let first = group.tensors.iter().min().copied().unwrap_or(0);
            (std::cmp::Reverse(layer_of[first as usize]), std::cmp::Reverse(first))
        });
        groups
    }

    /// Send together what a plan says. What was sent together before is not any more, unless the program decides that itself.
    /// Names that the layers do not have are given back.
    pub fn fuse(&mut self, fusion: &Fusion) -> Vec<String> {
        if self.own_buckets {
            return Vec::new();
        }
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors);
        let places: HashMap<&str, u32> =
            tensors.zip(0..).map(|(tensor, place)| (&*tensor.name, place)).collect();
        let mut unknown = Vec::new();
        let mut groups = Vec::with_capacity(fusion.groups.len());
        for names in &fusion.groups {
            let mut tensors = Vec::with_capacity(names.len());
            for name in names {
                match places.get(name.as_str()) {
                    Some(place) => tensors.push(*place),
                    None => unknown.push(name.clone()),
                }
            }
            groups.push(Group { tensors });
        }
        groups.retain(|group| !group.tensors.is_empty());
        if groups != self.groups {
            self.forget_recorded();
        }
        self.groups = groups;
        unknown
    }

    /// Bytes that a worker needs at its fullest: parameters, gradients, two more values for each parameter as Adam keeps
    /// them, and what the forward pass keeps until the backward pass has used it. `None` if the layers do not say what
    /// they keep.
    pub fn peak_memory(&self) -> Option<u64> {
        let kept: u64 = self.layers.iter().map(|layer| layer.activation_bytes).sum();
        let tensors = self.layers.iter().flat_map(|layer| &layer.tensors);
        (kept > 0).then(|| kept + 4 * tensors.map(Tensor::bytes).sum::<u64>())
    }

    /// The graph of all steps.
    pub fn graph(&self) -> Graph {
        let mut graph = Graph { steps: self.steps() as u32, ..Graph::default() };
        let groups = self.all_groups();
        for step in 0..self.steps() {
            graph.operations.extend(groups.iter().enumerate().map(|(place, group)| {
                let recorded = self.recorded.get(step).and_then(|step| step.get(place));
                self.operation(group, recorded.cloned().unwrap_or_default())
            }));
        }
        graph.operations.extend((0..self.steps()).flat_map(|step| self.asides_of(step)).cloned());
        let chain = Chain::new(self, &groups);
        for (rank, worker) in self.workers.iter().enumerate() {
            chain.worker(&mut graph, Rank(rank as u32), worker);
        }
        graph
    }

    fn operation(&self, group: &Group, recorded: Vec<u64>) -> Operation {
        let layer_of = self.layer_of_tensors();
        let tensors: Vec<_> = self.layers.iter().flat_map(|layer| &layer.tensors).collect();
        let members = group.tensors.iter().map(|tensor| tensors[*tensor as usize]);
        let first = group.tensors.iter().min().copied().unwrap_or(0) as usize;
        Operation {
            name: tensors.get(first).map_or("".into(), |tensor| tensor.name.clone()),
            kind: OperationKind::AllReduce,
            members: Vec::new(),
            elements: members.map(|tensor| tensor.elements).sum(),
            dtype: tensors.get(first).map_or(Dtype::F32, |tensor| tensor.dtype),
            priority: if self.scheduled { i64::from(layer_of[first]) } else { 0 },
            recorded,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{OperationId, Role};

    fn layer(name: &str, elements: &[u64]) -> Layer {
        let tensor = |(place, &elements): (usize, &u64)| Tensor {
            name: format!("{name}.{place}").into(),
            elements,
            dtype: Dtype::F32,
        };
        let tensors = elements.iter().enumerate().map(tensor).collect();
        Layer { name: name.into(), tensors, activation_bytes: 0 }
    }

    fn three() -> Layered {
        let layers = vec![layer("a", &[10, 1]), layer("b", &[20]), layer("c", &[30])];
        let times = LayerTimes { forward: 1, backward: 2, ..LayerTimes::default() };
        Layered::alike(layers, &[times; 3], vec!["x".into(), "y".into()], 2)
    }

    #[test]
    fn groups_come_in_the_order_in_which_the_backward_pass_completes_them() {
        let mut layered = three();
        layered.groups = vec![Group { tensors: vec![0, 2] }, Group { tensors: vec![2, 9] }];
        let groups: Vec<Vec<u32>> =
            layered.all_groups().into_iter().map(|group| group.tensors).collect();
        assert_eq!(groups, [vec![3], vec![1], vec![0, 2]]);
    }

    #[test]
    fn a_plan_names_what_is_sent_together() {
        let mut layered = three();
        let groups = vec![vec!["b.0".to_string(), "a.1".to_string(), "x".to_string()]];
        assert_eq!(layered.fuse(&Fusion { groups }), ["x"]);
        assert_eq!(layered.groups, [Group { tensors: vec![2, 1] }]);
    }

    #[test]
    fn a_program_with_buckets_of_its_own_is_not_changed_by_plans() {
        let buckets = vec![Group { tensors: vec![0, 1, 2] }];
        let before = Layered { own_buckets: true, groups: buckets, ..three() };
        let mut layered = before.clone();
        let groups = vec![vec!["b.0".to_string(), "c.0".to_string()]];
        assert_eq!(layered.fuse(&Fusion { groups }), [""; 0]);
        assert_eq!(layered, before);
    }

    #[test]
    fn a_group_is_posted_once_a_step_and_awaited_once_where_it_is_needed_first() {
        let mut layered = three();
        layered.groups = vec![Group { tensors: vec![0, 2] }];
        let graph = layered.graph();
        assert_eq!(graph.operations.len(), 2 * 3);
        assert_eq!(graph.operations[2].elements, 30);
        for worker in 0..2 {
            let nodes = graph.nodes.iter().filter(|node| node.rank == Rank(worker));
            let roles: Vec<Role> = nodes.map(|node| node.role).collect();
            for operation in 0..6 {
                let count = |role| roles.iter().filter(|other| **other == role).count();
                assert_eq!(count(Role::Post(OperationId(operation))), 1);
                // Nobody waits for what the last step posts.
                let awaited = usize::from(operation < 3);
                assert_eq!(count(Role::Await(OperationId(operation))), awaited);
            }
        }
    }

    #[test]
    fn what_handing_over_takes_counts_once_there_are_more_or_fewer_operations() {
        let recorded = three();
        let mut layered = recorded.clone().posting(Duration::from_nanos(2));
        assert_eq!(layered.graph(), recorded.graph(), "what was recorded contains it");
        let backward = |layered: &Layered| -> Vec<u64> {
            let graph = layered.graph();
            let nodes = graph.nodes.iter().filter(|node| node.phase == Phase::Backward);
            nodes.take(3).map(|node| node.length).collect()
        };
        // Passes take 2 each, from the last layer to the first, which has two tensors.
        layered.groups = vec![Group { tensors: vec![0, 1, 2, 3] }];
        assert_eq!(backward(&layered), [0, 0, 0]);
        layered.groups = vec![Group { tensors: vec![2, 3] }];
        assert_eq!(backward(&layered), [0, 2, 2]);
        let mut layered = Layered { groups: vec![Group { tensors: vec![0, 1] }], ..recorded };
        layered = layered.posting(Duration::from_nanos(2));
        layered.groups.clear();
        assert_eq!(backward(&layered), [2, 2, 4], "one more");
    }

    #[test]
    fn updates_behind_all_passes_are_updates_on_every_worker() {
        let mut layered = three();
        layered.workers[1].tails[0] = Tail { update: 7, rest: 2, ..Tail::default() };
        let graph = layered.graph();
        let updates = graph.nodes.iter().filter(|node| &*node.name == "parameters");
        let lengths: Vec<u64> = updates.map(|node| node.length).collect();
        assert_eq!(lengths, [0, 0, 7, 0]);
    }

    #[test]
    fn a_step_that_is_not_crossed_ends_after_everything() {
        let layered = Layered { crosses_step: false, ..three() };
        let graph = layered.graph();
        let end = graph.nodes.iter().position(|node| node.role == Role::StepEnd(0)).unwrap();
        let awaits = graph.nodes[..end].iter().filter(|node| matches!(node.role, Role::Await(_)));
        assert_eq!(awaits.count(), 4);
    }
}
