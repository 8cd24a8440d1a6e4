//! Groups for racks: each rack by itself, and one representative of each in a group between racks, in turn.
//!
//! Inside a rack members are in groups of two, whose partners change from step to step: so a wire carries a tensor once
//! each way, which is the least that an average needs, and what holds racks apart is how often somebody represents
//! them, not how many meet at home. A contended link makes its group small, too: a rack whose uplink is contended shares
//! a group of two with one other rack, a member whose own link is contended one with a neighbour, in every step. It
//! knows nothing of how contention is found.

use super::{
    partner,
    seating::{RackSeats, Seating},
};
use crate::program::Member;

/// Parts of a tensor that different members serve for at the same time. More spread the load of serving further, and make
/// messages smaller: of racks of 16, twelve members serve with 13/12 of a tensor on their wires.
const MOST_LANES: u32 = 12;

/// What becomes of those who are neither contended nor needed by somebody who is.
#[derive(Clone, Copy)]
enum Rest {
    /// One group, which agrees in one step; its members' links carry a tensor nearly twice.
    Together,
    /// Groups of two that change: their links carry a tensor once.
    InPairs,
}

/// Racks of many sizes take long until all are where they began; longer than this is not waited for.
const LONGEST_ROUND: usize = 840;

/// As many as a rack has members to serve, up to a bound.
pub(super) fn lanes(seating: &Seating) -> u32 {
    let largest = seating.racks.iter().map(|rack| servers(seating, rack).len()).max().unwrap_or(1);
    (largest as u32).clamp(1, MOST_LANES)
}

/// The groups of each step of a rotation: as long as the longest turn of anything in it, and longer where turns that
/// keep step with each other would leave some apart.
pub(super) fn divisions(seating: &Seating) -> Vec<Vec<Vec<Member>>> {
    let racks = &seating.racks;
    let between = if racks.iter().any(|rack| is_weak(seating, rack)) { racks.len() } else { 1 };
    let inside = racks.iter().map(|rack| {
        let any_contended = rack.members.iter().any(|member| seating.contended[*member as usize]);
        let partners = if any_contended { rack.members.len() } else { 1 };
        turns(seating, rack).max(partners)
    });
    let least = inside.max().unwrap_or(1).max(between);
    let largest = racks.iter().map(|rack| rack.members.len()).max().unwrap_or(0);
    let round = round(seating);
    let most = least.max(round) * (racks.len() + largest);
    let mut islands = Islands::new(seating.members());
    let mut steps = Vec::new();
    while steps.len() < least || (islands.count > 1 && steps.len() < most) {
        let groups = division(seating, round, steps.len());
        groups.iter().for_each(|group| islands.join(group));
        steps.push(groups);
    }
    steps
}

/// After so many steps the same members serve again in all racks.
fn round(seating: &Seating) -> usize {
    let divisor = |mut one: usize, mut other: usize| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let turns = seating.racks.iter().map(|rack| turns(seating, rack));
    turns.fold(1, |round, turns| (round / divisor(round, turns) * turns).min(LONGEST_ROUND))
}

/// Members that have met, directly or through others.
struct Islands {
    /// By member: another of the same island, or itself.
    parents: Vec<Member>,
    count: u32,
}

impl Islands {
    fn new(members: u32) -> Islands {
        Islands { parents: (0..members).collect(), count: members }
    }

    fn join(&mut self, group: &[Member]) {
        for member in group {
            let (one, other) = (self.root(group[0]), self.root(*member));
            if one != other {
                self.parents[other as usize] = one;
                self.count -= 1;
            }
        }
    }

    fn root(&mut self, mut member: Member) -> Member {
        while self.parents[member as usize] != member {
            let next = self.parents[member as usize];
            // Halves the way for the next who asks.
            self.parents[member as usize] = self.parents[next as usize];
            member = next;
        }
        member
    }
}

fn division(seating: &Seating, round: usize, step: usize) -> Vec<Vec<Member>> {
    // From step to step partners change by one, and so they do from round to round at the same place in it: whatever keeps
    // step with those who serve, all come by in the end.
    let partners = step / round + step % round;
    let mut groups = Vec::new();
    let mut representatives = Vec::new();
    let mut weak = Vec::new();
    for rack in &seating.racks {
        let away = representative(seating, rack, step);
        let home: Vec<Member> =
            rack.members.iter().copied().filter(|member| Some(*member) != away).collect();
        let is_contended = |at: usize| seating.contended[home[at] as usize];
        groups.extend(parted(&home, is_contended, Rest::InPairs, partners));
        if let Some(member) = away {
            representatives.push(member);
            weak.push(is_weak(seating, rack));
        }
    }
    groups.extend(parted(&representatives, |at| weak[at], Rest::Together, partners));
    groups
}

/// Whoever may represent a rack: members whose own link is free, or all if none is.
fn servers(seating: &Seating, rack: &RackSeats) -> Vec<Member> {
    let free = |member: &Member| !seating.contended[*member as usize];
    let free: Vec<Member> = rack.members.iter().copied().filter(free).collect();
    if free.is_empty() { rack.members.clone() } else { free }
}

/// Each server's turn; and one in which nobody serves, if otherwise no two members of the rack would ever meet.
fn turns(seating: &Seating, rack: &RackSeats) -> usize {
    let (servers, members) = (servers(seating, rack).len(), rack.members.len());
    let never_meet = members > 1 && (servers == 1 || members == 2);
    servers + usize::from(never_meet)
}

fn representative(seating: &Seating, rack: &RackSeats, step: usize) -> Option<Member> {
    if seating.racks.len() < 2 {
        return None;
    }
    servers(seating, rack).get(step % turns(seating, rack)).copied()
}

/// Whether what a rack sends to others passes something contended whoever serves.
fn is_weak(seating: &Seating, rack: &RackSeats) -> bool {
    rack.contended || rack.members.iter().all(|member| seating.contended[*member as usize])
}

/// The weak in groups of two, with strong partners who change from step to step, and the rest of the strong as asked.
/// If most are weak, everybody is in a group of two, and over the steps of a tournament meets everybody else.
fn parted(
    list: &[Member],
    is_weak: impl Fn(usize) -> bool,
    rest: Rest,
    step: usize,
) -> Vec<Vec<Member>> {
    let (weak, mut strong): (Vec<usize>, Vec<usize>) = (0..list.len()).partition(|at| is_weak(*at));
    if weak.len() > strong.len() {
        return pairs(list, step);
    }
    if !weak.is_empty() {
        // From here on the partners of this step are the first.
        let turn = step % strong.len();
        strong.rotate_left(turn);
    }
    let partners: Vec<usize> = strong.drain(..weak.len()).collect();
    // In the order of places, so that neighbours stay neighbours in a ring.
    strong.sort_unstable();
    let mut groups: Vec<Vec<Member>> =
        weak.iter().zip(partners).map(|(one, other)| vec![list[*one], list[other]]).collect();
    let others: Vec<Member> = strong.iter().map(|at| list[*at]).collect();
    match rest {
        _ if others.is_empty() => {}
        Rest::Together => groups.push(others),
        Rest::InPairs => groups.extend(pairs(&others, step)),
    }
    groups
}

/// A round of a tournament; with an odd number one sits out. In the round r, places a and b meet whose sum is r: with
/// rounds that double, whatever somebody knows is known to twice as many after each step, with rounds one after another
/// to two more. What is added from one series of doublings to the next keeps them from standing in step with those who
/// serve; of zero to three, three left the least disagreement in racks of four and of six to nine, and about as much as the others in larger ones.
fn pairs(list: &[Member], step: usize) -> Vec<Vec<Member>> {
    let doublings = list.len().next_power_of_two().ilog2().max(1) as usize;
    let lot = (1_u64 << (step % doublings)) + 3 * (step / doublings) as u64;
    let pair = |at: usize| match partner(list.len() as u32, at as u32, lot) {
        Some(other) if (other as usize) < at => None,
        Some(other) => Some(vec![list[at], list[other as usize]]),
        None => Some(vec![list[at]]),
    };
    (0..list.len()).filter_map(pair).collect()
}
