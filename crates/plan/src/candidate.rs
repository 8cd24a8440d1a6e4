//! A possible plan: settings, and where the chain of tensors is cut into groups. It knows nothing of what that takes.

use crate::task::Task;
use paceline_job::{
    ByteSize, Fusion, Settings, StrategyChoice,
    graph::layered::{Group, Layered},
    trace::Tensor,
};

/// A possible plan.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Candidate {
    pub strategy: StrategyChoice,
    pub partition: ByteSize,
    pub credit: ByteSize,
    /// For each tensor but the last, in the order of the forward pass, whether the next one belongs to another group.
    pub cuts: Vec<bool>,
}

impl Candidate {
    /// What the job does now, as far as its groups are neighbours.
    pub fn of(task: &Task, layered: Option<&Layered>) -> Candidate {
        let settings = &task.scenario.settings;
        Candidate {
            strategy: settings.strategy.clone(),
            partition: settings.partition,
            credit: settings.credit,
            cuts: layered.map(present_cuts).unwrap_or_default(),
        }
    }

    /// The settings of a plan that is otherwise like `base`.
    pub fn settings(&self, base: &Settings) -> Settings {
        Settings {
            strategy: self.strategy.clone(),
            partition: self.partition,
            credit: self.credit,
            ..base.clone()
        }
    }

    /// Ranges of tensors that are sent together, in the order of the forward pass.
    pub fn ranges(&self) -> Vec<std::ops::Range<usize>> {
        let mut ranges = Vec::new();
        let mut begin = 0;
        for (place, cut) in self.cuts.iter().enumerate() {
            if *cut {
                ranges.push(begin..place + 1);
                begin = place + 1;
            }
        }
        ranges.push(begin..self.cuts.len() + 1);
        ranges
    }

    /// The groups of more than one tensor.
    pub fn groups(&self) -> Vec<Group> {
        let ranges = self.ranges().into_iter().filter(|range| range.len() > 1);
        ranges.map(|range| Group { tensors: range.map(|tensor| tensor as u32).collect() }).collect()
    }

    /// What is sent together in a job of these layers, single tensors among it: a program with buckets of its own sends nothing
    /// else. Nothing, if it sends none of these tensors as they are.
    pub fn groups_for(&self, layered: &Layered) -> Vec<Group> {
        if layered.own_buckets && layered.groups.is_empty() {
            return Vec::new();
        }
        let ranges = self.ranges().into_iter();
        ranges.map(|range| Group { tensors: range.map(|tensor| tensor as u32).collect() }).collect()
    }

    /// The groups by name.
    pub fn fusion(&self, layered: Option<&Layered>) -> Fusion {
        let Some(layered) = layered.filter(|layered| plans_groups(Some(layered))) else {
            return Fusion::default();
        };
        let tensors = tensors(layered);
        let names = |group: Group| -> Vec<String> {
            group.tensors.iter().map(|tensor| tensors[*tensor as usize].name.to_string()).collect()
        };
        Fusion { groups: self.groups().into_iter().map(names).collect() }
    }

    /// The same with other cuts.
    pub fn cut(&self, cuts: Vec<bool>) -> Candidate {
        Candidate { cuts, ..self.clone() }
    }
}

/// All tensors in the order of the forward pass.
pub(crate) fn tensors(layered: &Layered) -> Vec<&Tensor> {
    layered.layers.iter().flat_map(|layer| &layer.tensors).collect()
}

/// Cuts that no plan can do without: elements of two types are not summed in one operation.
pub(crate) fn needed_cuts(layered: &Layered) -> Vec<bool> {
    tensors(layered).windows(2).map(|pair| pair[0].dtype != pair[1].dtype).collect()
}

/// Whether a plan decides what is sent together, and not the program.
pub(crate) fn plans_groups(layered: Option<&Layered>) -> bool {
    layered.is_some_and(|layered| !layered.own_buckets)
}

/// Cuts between layers, and those that are needed: the coarse view.
pub(crate) fn layer_cuts(layered: &Layered) -> Vec<bool> {
    let layers = layered.layer_of_tensors();
    let needed = needed_cuts(layered);
    layers.windows(2).zip(needed).map(|(pair, needed)| needed || pair[0] != pair[1]).collect()
}

/// Groups as full as they come to be by adding tensors in the order of the backward pass until they have so many bytes:
/// how frameworks fill their buckets.
pub(crate) fn bucket_cuts(layered: &Layered, bytes: u64) -> Vec<bool> {
    let tensors = tensors(layered);
    let mut cuts = needed_cuts(layered);
    let mut filled = tensors.last().map_or(0, |tensor| tensor.bytes());
    for place in (0..cuts.len()).rev() {
        cuts[place] |= filled >= bytes;
        filled = if cuts[place] { 0 } else { filled } + tensors[place].bytes();
    }
    cuts
}

fn present_cuts(layered: &Layered) -> Vec<bool> {
    let mut cuts = vec![true; needed_cuts(layered).len()];
    let mut group_of = vec![None; cuts.len() + 1];
    for (number, group) in layered.groups.iter().enumerate() {
        for tensor in &group.tensors {
            if let Some(group) = group_of.get_mut(*tensor as usize) {
                *group = Some(number);
            }
        }
    }
    for (cut, pair) in cuts.iter_mut().zip(group_of.windows(2)) {
        *cut = pair[0].is_none() || pair[0] != pair[1];
    }
    cuts
}
