//! Operations that carry no gradients (a broadcast of buffers, the mean of a loss, statistics of a batch), as workers recorded
//! them: which are the same on all of them, and which wait was for which. Where they lie among layers is for [`times`](super::times).

use super::{Operation, OperationKind, clocks::Clocks, groups::Seen, observed::described};
use crate::{
    CollectiveKind, Rank,
    trace::{Collective, Span, Stamp},
};
use std::collections::HashMap;

/// What one worker saw of the asides of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// Aside and when this worker took part, in order.
    pub posts: Vec<(u32, Stamp)>,
    /// For the end of each wait that was for an aside, which one and when that was over.
    pub waits: HashMap<Stamp, (u32, Stamp)>,
}

/// The asides of a step.
#[derive(Clone, Debug, Default)]
pub(super) struct Found {
    pub operations: Vec<Operation>,
    /// By rank.
    pub parts: Vec<Part>,
    /// How many were left out because some member did not record them.
    pub incomplete: u64,
}

/// What a worker recorded of a step: its operations, those of them that are groups' (by place), and its waits for no layer in
/// particular.
pub(super) struct Record<'s, 't> {
    /// By which its clock is known.
    pub rank: Rank,
    pub operations: &'s [Seen<'t>],
    pub of_groups: Vec<bool>,
    pub waits: Vec<&'t Span>,
    /// Whether those waits may be for groups, too.
    pub waits_for_groups: bool,
}

/// The asides that all of their members recorded.
pub(super) fn of_step(records: &[Record<'_, '_>], clocks: &Clocks) -> Found {
    type Key<'t> = (&'t str, Option<u64>, Option<&'t str>);
    fn key(collective: &Collective) -> Key<'_> {
        (&collective.group, collective.sequence, collective.tensor.as_deref())
    }
    // In the order in which they are first seen, so that the result does not depend on hashes.
    let mut order: Vec<Key<'_>> = Vec::new();
    let mut members: HashMap<Key<'_>, Vec<(usize, &Seen<'_>)>> = HashMap::new();
    for (place, record) in records.iter().enumerate() {
        let asides = record.operations.iter().zip(&record.of_groups);
        for (seen, _) in asides.filter(|(_, of_group)| !**of_group) {
            let list = members.entry(key(seen.collective)).or_default();
            if list.is_empty() {
                order.push(key(seen.collective));
            }
            list.push((place, seen));
        }
    }
    let mut found = Found { parts: vec![Part::default(); records.len()], ..Found::default() };
    let owners: Vec<HashMap<Stamp, &Collective>> = records.iter().map(owners).collect();
    for key in order {
        let list = &members[&key];
        let wanted = match list[0].1.collective.members.len() {
            0 => records.len(),
            some => some,
        };
        let mut ranks: Vec<usize> = list.iter().map(|(place, _)| *place).collect();
        ranks.dedup();
        if ranks.len() != wanted || list.len() != wanted {
            found.incomplete += 1;
            continue;
        }
        let aside = found.operations.len() as u32;
        let mut members: Vec<Member<'_>> = Vec::with_capacity(list.len());
        for &(place, seen) in list {
            let wait =
                owners[place].iter().find(|(_, owner)| std::ptr::eq(**owner, seen.collective));
            let end = wait.map(|(end, _)| *end);
            let part = &mut found.parts[place];
            part.posts.push((aside, seen.post));
            part.waits.extend(end.map(|end| (end, (aside, seen.over))));
            let rank = records[place].rank;
            let [post, over] = [seen.post, seen.over].map(|stamp| clocks.common(rank, stamp));
            let rank = Rank(place as u32);
            members.push(Member { collective: seen.collective, rank, post, over });
        }
        found.operations.push(operation(members, records.len()));
    }
    for part in &mut found.parts {
        part.posts.sort_by_key(|(aside, at)| (*at, *aside));
    }
    found
}

/// One worker's part in an operation, by the common clock.
struct Member<'t> {
    collective: &'t Collective,
    /// Its place among the workers of the trace.
    rank: Rank,
    post: Stamp,
    over: Stamp,
}

fn operation(mut members: Vec<Member<'_>>, workers: usize) -> Operation {
    let mut operation = described(members[0].collective);
    let elements = members.iter().map(|member| described(member.collective).elements);
    operation.elements = elements.max().unwrap_or(0);
    members.sort_by_key(|member| member.rank);
    // Files do not say who gives to all: whoever took part before anybody was through, of several the first. Who sends to one
    // other is known by the word.
    let first = match operation.kind {
        OperationKind::Broadcast => {
            let earliest = members.iter().map(|member| member.over).min().unwrap_or_default();
            members.iter().position(|member| member.post <= earliest)
        }
        OperationKind::SendReceive => {
            let receives = CollectiveKind::Recv.word();
            members.iter().position(|member| &*member.collective.operation != receives)
        }
        _ => None,
    };
    let first = first.unwrap_or(0);
    members[..=first].rotate_right(1);
    let needed = |place: usize| {
        let posts = members.iter().enumerate();
        let posts = posts.filter(|(other, _)| operation.kind.needs(place, *other));
        posts.map(|(_, member)| member.post).max().unwrap_or_default()
    };
    let recorded = members.iter().enumerate();
    operation.recorded = recorded.map(|(place, member)| member.over.since(needed(place))).collect();
    let in_order = first == 0 && operation.kind != OperationKind::SendReceive;
    if members.len() < workers || !in_order {
        operation.members = members.iter().map(|member| member.rank).collect();
    }
    operation
}

/// Whether all gradients were on their way when a wait began, and all were there when it ended, the last of them meanwhile: then
/// something else may have been over even later, and the wait was not for that.
fn is_for_all_groups(record: &Record<'_, '_>, wait: &Span) -> bool {
    let operations = record.operations.iter().zip(&record.of_groups);
    let groups = || operations.clone().filter(|(_, of_group)| **of_group).map(|(seen, _)| seen);
    groups().all(|seen| seen.post <= wait.begin && seen.over <= wait.end())
        && groups().any(|seen| seen.over > wait.begin)
}

/// For the end of each wait, the aside that it was for, if it was for one: not where a group's operation was over last. Of several
/// that were over and not waited for yet, the one posted first: programs wait in that order.
fn owners<'t>(record: &Record<'_, 't>) -> HashMap<Stamp, &'t Collective> {
    let mut owners: HashMap<Stamp, &Collective> = HashMap::new();
    let mut left: Vec<(&Seen<'t>, bool)> =
        record.operations.iter().zip(record.of_groups.iter().copied()).collect();
    for wait in &record.waits {
        let over = |(seen, _): &&(&Seen<'_>, bool)| seen.over <= wait.end();
        let last = left.iter().filter(over).max_by_key(|(seen, _)| seen.over);
        let for_groups =
            last.is_none_or(|(_, of_group)| *of_group) || is_for_all_groups(record, wait);
        if record.waits_for_groups && for_groups {
            continue;
        }
        let first = left.iter().position(|one| over(&one) && !one.1);
        if let Some(place) = first {
            owners.insert(wait.end(), left.remove(place).0.collective);
        }
    }
    owners
}
