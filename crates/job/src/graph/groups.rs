//! Which tensors were sent together, as the operations of a step show it, and which operation of a step is which group's. When
//! operations began and ended is passed on and not looked at.

use super::layered::{Group, Layered};
use crate::{
    CollectiveKind, Fusion, View,
    trace::{Collective, Kind, Span, Stamp, Tensor},
};
use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
};

/// The share of a bucket's bytes by which the tensors that are taken to be in it may differ from it.
const NEAR: f64 = 0.25;

/// An operation of one step on one worker.
pub(super) struct Seen<'t> {
    pub collective: &'t Collective,
    pub post: Stamp,
    pub over: Stamp,
}

/// Operations among spans, in order.
pub(super) fn seen<'t>(spans: impl Iterator<Item = &'t Span>) -> Vec<Seen<'t>> {
    let operations = spans.filter_map(|span| match &span.kind {
        Kind::Collective(collective) => {
            Some(Seen { collective, post: span.begin, over: span.end() })
        }
        _ => None,
    });
    operations.collect()
}

/// What is sent together.
#[derive(Default)]
pub(super) struct Sent {
    pub groups: Vec<Group>,
    /// Whether the program itself decides that: see [`Layered::own_buckets`].
    pub own_buckets: bool,
    /// What the operation of a group without a name has in bytes, by the group's first tensor.
    bytes: HashMap<u32, u64>,
}

/// By name where operations have the names of tensors or of a plan's groups; otherwise by lengths in the order of the backward
/// pass, as DDP fills its buckets.
pub(super) fn sent(layered: &Layered, view: Option<&View>, step: &[Seen<'_>]) -> Sent {
    let planned = planned(layered, view, step);
    if !planned.is_empty() {
        return Sent { groups: planned, ..Sent::default() };
    }
    let tensors: Vec<&Tensor> = tensors(layered).collect();
    let names: HashSet<&str> = tensors.iter().map(|tensor| &*tensor.name).collect();
    let by_name = |seen: &Seen<'_>| {
        seen.collective.tensor.as_deref().is_some_and(|name| names.contains(name))
    };
    if step.is_empty() || step.iter().any(by_name) {
        return Sent::default();
    }
    let lengths: Vec<u64> = tensors.iter().map(|tensor| tensor.bytes()).collect();
    let sums: Vec<u64> =
        step.iter().filter(|seen| is_all_reduce(seen)).map(|seen| seen.collective.bytes).collect();
    let mut sent = Sent { own_buckets: true, ..Sent::default() };
    for (tensors, bytes) in exact(&lengths, &sums).unwrap_or_else(|| near(&lengths, &sums)) {
        sent.bytes.insert(tensors.start, bytes);
        sent.groups.push(Group { tensors: tensors.collect() });
    }
    sent
}

type Bucket = (std::ops::Range<u32>, u64);

/// Sums that are those of neighbours, from the last tensor to the first; other sums are not of tensors. `None` if tensors are left.
fn exact(lengths: &[u64], sums: &[u64]) -> Option<Vec<Bucket>> {
    let mut next = lengths.len();
    let mut buckets = Vec::new();
    for &sum in sums {
        let (mut bytes, mut first) = (0, next);
        while first > 0 && bytes < sum {
            first -= 1;
            bytes += lengths[first];
        }
        if bytes == sum && first < next {
            buckets.push((first as u32..next as u32, sum));
            next = first;
        }
    }
    (next == 0 && !buckets.is_empty()).then_some(buckets)
}

/// Gradients come in an order that differs a little from that of layers, so a bucket may have one tensor for another. The largest sums
/// that together have the tensors' length are taken for them, and each has the neighbours that are nearest to it. None if
/// lengths do not add up.
fn near(lengths: &[u64], sums: &[u64]) -> Vec<Bucket> {
    let all: u64 = lengths.iter().sum();
    let mut by_length: Vec<usize> = (0..sums.len()).collect();
    by_length.sort_by_key(|place| (std::cmp::Reverse(sums[*place]), *place));
    let (mut taken, mut total) = (Vec::new(), 0);
    for place in by_length {
        if total < all {
            total += sums[place];
            taken.push(place);
        }
    }
    if total != all {
        return Vec::new();
    }
    taken.sort_unstable();
    let mut buckets: Vec<Bucket> = Vec::new();
    let (mut next, mut wanted, mut reached) = (lengths.len(), 0, 0);
    for place in taken {
        wanted += sums[place];
        let before = (next, reached);
        // One more tensor as long as that comes nearer.
        while next > 0 && (reached + lengths[next - 1]).abs_diff(wanted) <= reached.abs_diff(wanted)
        {
            next -= 1;
            reached += lengths[next];
        }
        let off = (reached - before.1).abs_diff(sums[place]) as f64;
        if next == before.0 || off > sums[place] as f64 * NEAR {
            return Vec::new();
        }
        buckets.push((next as u32..before.0 as u32, sums[place]));
    }
    buckets
}

/// The groups of the plan that was in force, if operations have their names: DDP fills buckets of its own.
fn planned(layered: &Layered, view: Option<&View>, step: &[Seen<'_>]) -> Vec<Group> {
    let Some(view) = view else { return Vec::new() };
    let mut planned = Layered { layers: layered.layers.clone(), ..Layered::default() };
    planned.fuse(&view.fusion);
    let tensors: Vec<&Tensor> = tensors(layered).collect();
    planned.groups.retain(|group| {
        let name: Arc<str> = operation_name(group, &tensors).into();
        step.iter().any(|seen| named(seen, &name))
    });
    planned.groups
}

/// Finds the operations of groups.
pub(super) struct Finder {
    /// For each group its operation's name, and its bytes where it has none.
    wanted: Vec<(Arc<str>, Option<u64>)>,
}

impl Finder {
    pub fn new(layered: &Layered, groups: &[Group], sent: &Sent) -> Finder {
        let tensors: Vec<&Tensor> = tensors(layered).collect();
        let wanted = groups.iter().map(|group| {
            let first = group.tensors.iter().min().copied().unwrap_or(0);
            (operation_name(group, &tensors).into(), sent.bytes.get(&first).copied())
        });
        Finder { wanted: wanted.collect() }
    }

    /// For each group the place of its operation among those of a step: by its name, or the next with its bytes.
    pub fn places(&self, step: &[Seen<'_>]) -> Vec<Option<usize>> {
        let mut from = 0;
        let find = |(name, bytes): &(Arc<str>, Option<u64>)| match bytes {
            None => step.iter().position(|seen| named(seen, name)),
            Some(bytes) => {
                let is_next =
                    |seen: &Seen<'_>| is_all_reduce(seen) && seen.collective.bytes == *bytes;
                let place = from + step[from..].iter().position(is_next)?;
                from = place + 1;
                Some(place)
            }
        };
        self.wanted.iter().map(find).collect()
    }
}

fn tensors(layered: &Layered) -> impl Iterator<Item = &Tensor> {
    layered.layers.iter().flat_map(|layer| &layer.tensors)
}

fn operation_name(group: &Group, tensors: &[&Tensor]) -> String {
    Fusion::operation_name(&tensors[group.tensors[0] as usize].name, group.tensors.len())
}

fn named(seen: &Seen<'_>, name: &Arc<str>) -> bool {
    seen.collective.tensor.as_ref() == Some(name)
}

fn is_all_reduce(seen: &Seen<'_>) -> bool {
    &*seen.collective.operation == CollectiveKind::AllReduce.word()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_neighbours_whose_lengths_add_up_and_other_sums_are_passed_over() {
        assert_eq!(exact(&[5, 6, 7, 8], &[1, 15, 3, 11]), Some(vec![(2..4, 15), (0..2, 11)]));
        assert_eq!(exact(&[5, 6, 7, 8], &[15, 10]), None);
        assert_eq!(exact(&[], &[4]), None);
    }

    #[test]
    fn a_bucket_that_has_one_tensor_for_another_has_its_nearest_neighbours() {
        // The first bucket has the 3 in place of the 2.
        assert_eq!(near(&[30, 31, 3, 2, 20], &[4, 23, 63]), vec![(3..5, 23), (0..3, 63)]);
        assert_eq!(near(&[30, 30, 30], &[4, 50]), Vec::new(), "not all of them");
    }
}
