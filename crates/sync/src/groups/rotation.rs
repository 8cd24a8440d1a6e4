//! Groups for racks and their hosts: each host by itself, one of its members out to meet other hosts of its rack, and of
//! these one in each rack out to meet other racks, in turn.
//!
//! On each of these levels members are in groups of two, whose partners change from step to step: so a wire carries a
//! tensor once each way, which is the least that an average needs, and what holds racks apart is how often somebody
//! represents them, not how many meet at home. Representatives of racks are in one group. A contended link makes its
//! group small, too: a rack whose uplink is contended shares a group of two with one other rack, a host whose own link is
//! contended one with a neighbour, in every step. It knows nothing of how contention is found.

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

/// As many as a rack has hosts to serve, and as often as they have members to take turns, up to a bound.
pub(super) fn lanes(seating: &Seating) -> u32 {
    let lanes = |rack: &RackSeats| {
        let servers = servers(seating, rack);
        let members = servers.iter().map(|host| rack.hosts[*host].len()).max().unwrap_or(1);
        let hosts = (servers.len() as u32).clamp(1, MOST_LANES);
        hosts * (members as u32).min(MOST_LANES / hosts)
    };
    seating.racks.iter().map(lanes).max().unwrap_or(1)
}

/// The groups of each step of a rotation: as long as the longest turn of anything in it, and longer where turns that
/// keep step with each other would leave some apart, or until everybody who may represent a rack has done so.
pub(super) fn divisions(seating: &Seating) -> Vec<Vec<Vec<Member>>> {
    let mut rotas: Vec<Rota> = seating.racks.iter().map(|rack| Rota::new(seating, rack)).collect();
    let between = if rotas.iter().any(|rota| rota.is_weak) { rotas.len() } else { 1 };
    let inside = rotas.iter().map(|rota| {
        let any_contended = rota.is_contended.contains(&true);
        let partners = if any_contended { rota.hosts.len() } else { 1 };
        rota.service.len().max(partners)
    });
    let least = inside.max().unwrap_or(1).max(between);
    let largest = rotas.iter().map(|rota| rota.hosts.len()).max().unwrap_or(0);
    let round = round(seating);
    let most = least.max(round) * (rotas.len() + largest);
    let (mut islands, racks_meet) = (Islands::new(seating.members()), rotas.len() > 1);
    let mut steps = Vec::new();
    while steps.len() < least
        || (steps.len() < most
            && (islands.count > 1 || racks_meet && rotas.iter().any(Rota::is_due)))
    {
        let groups = division(&mut rotas, round, steps.len());
        groups.iter().for_each(|group| islands.join(group));
        steps.push(groups);
    }
    steps
}

/// After so many steps the same hosts serve again in all racks.
fn round(seating: &Seating) -> usize {
    let divisor = |mut one: usize, mut other: usize| {
        while other > 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let turns =
        seating.racks.iter().map(|rack| in_turn(servers(seating, rack), rack.hosts.len()).len());
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

/// Those who go out in turn, and a turn in which nobody does if otherwise no two of the whole would ever meet at home.
fn in_turn<T>(servers: Vec<T>, all: usize) -> Vec<Option<T>> {
    let never_meet = all > 1 && (servers.len() == 1 || all == 2);
    servers.into_iter().map(Some).chain(never_meet.then_some(None)).collect()
}

/// The hosts whose members may represent a rack: those whose own link is free, or all if none is.
fn servers(seating: &Seating, rack: &RackSeats) -> Vec<usize> {
    let all = 0..rack.hosts.len();
    let free = |host: &usize| !is_contended(seating, &rack.hosts[*host]);
    let free: Vec<usize> = all.clone().filter(free).collect();
    if free.is_empty() { all.collect() } else { free }
}

/// Members of a host share its link.
fn is_contended(seating: &Seating, host: &[Member]) -> bool {
    host.iter().any(|member| seating.contended[*member as usize])
}

/// Who goes out for a host.
#[derive(Clone, Copy)]
struct Envoy {
    host: usize,
    member: Member,
}

/// A rack on its way through a rotation: whose turn it is.
struct Rota<'a> {
    hosts: &'a [Vec<Member>],
    /// By host.
    is_contended: Vec<bool>,
    /// Whether what the rack sends to others passes something contended whoever serves.
    is_weak: bool,
    /// Who represents it, one after another: a member of each host, then the next of each.
    service: Vec<Option<Envoy>>,
    /// How many of these turns are over. Whoever met no other rack still has the turn.
    served: usize,
    /// By host: who meets other hosts of the rack, one after another.
    errands: Vec<Vec<Option<Member>>>,
    /// By host: how many of these turns are over.
    run: Vec<usize>,
}

impl<'a> Rota<'a> {
    fn new(seating: &Seating, rack: &'a RackSeats) -> Rota<'a> {
        let hosts = &rack.hosts;
        let is_contended: Vec<bool> =
            hosts.iter().map(|host| is_contended(seating, host)).collect();
        let envoy = |host: usize, index: usize| {
            let members = &hosts[host];
            Envoy { host, member: members[index % members.len()] }
        };
        let servers = servers(seating, rack);
        let most = servers.iter().map(|host| hosts[*host].len()).max().unwrap_or(0);
        let turns = in_turn(servers, hosts.len());
        let round = |index| turns.iter().map(move |turn| turn.map(|host| envoy(host, index)));
        Rota {
            is_weak: rack.contended || !is_contended.contains(&false),
            errands: hosts.iter().map(|host| in_turn(host.clone(), host.len())).collect(),
            run: vec![0; hosts.len()],
            service: (0..most).flat_map(round).collect(),
            served: 0,
            hosts,
            is_contended,
        }
    }

    /// Whose turn it is to represent the rack.
    fn server(&self) -> Option<Envoy> {
        self.service[self.served % self.service.len()]
    }

    /// Whether there is somebody whose turn has not come.
    fn is_due(&self) -> bool {
        self.served < self.service.len()
    }

    /// The groups of a step inside the rack, whose representative is away if it has one.
    fn at_home(&mut self, away: Option<Envoy>, partners: usize) -> Vec<Vec<Member>> {
        let (mut groups, mut out) = (Vec::new(), Vec::new());
        let has_company = self.hosts.len() - usize::from(away.is_some()) > 1;
        for (host, members) in self.hosts.iter().enumerate() {
            let mut gone = away.filter(|envoy| envoy.host == host);
            if gone.is_none() && has_company {
                let turns = &self.errands[host];
                let member = turns[self.run[host] % turns.len()];
                self.run[host] += 1;
                gone = member.map(|member| Envoy { host, member });
                out.extend(gone);
            }
            let is_home = |member: &Member| gone.is_none_or(|envoy| envoy.member != *member);
            let home: Vec<Member> = members.iter().copied().filter(is_home).collect();
            groups.extend(pairs(&home, partners));
        }
        let is_contended = |at: usize| self.is_contended[out[at].host];
        let met = parted(&out, is_contended, Rest::InPairs, partners);
        groups.extend(met.iter().map(|group| group.iter().map(|envoy| envoy.member).collect()));
        groups
    }
}

fn division(rotas: &mut [Rota], round: usize, step: usize) -> Vec<Vec<Member>> {
    // From step to step partners change by one, and so they do from round to round at the same place in it: whatever keeps
    // step with those who serve, all come by in the end.
    let partners = step / round + step % round;
    let server = |(rack, rota): (usize, &Rota)| Some((rack, rota.server()?));
    let ready: Vec<(usize, Envoy)> = (0..).zip(rotas.iter()).filter_map(server).collect();
    let mut met = parted(&ready, |at| rotas[ready[at].0].is_weak, Rest::Together, partners);
    // A rack that nobody is left for keeps everybody at home.
    met.retain(|group| group.len() > 1);
    let mut away = vec![None; rotas.len()];
    met.iter().flatten().for_each(|(rack, envoy)| away[*rack] = Some(*envoy));
    let mut groups = Vec::new();
    for (rota, away) in rotas.iter_mut().zip(away) {
        rota.served += usize::from(away.is_some() || rota.server().is_none());
        groups.extend(rota.at_home(away, partners));
    }
    groups.extend(met.iter().map(|group| group.iter().map(|(_, envoy)| envoy.member).collect()));
    groups
}

/// The weak in groups of two, with strong partners who change from step to step, and the rest of the strong as asked.
/// If most are weak, everybody is in a group of two, and over the steps of a tournament meets everybody else.
fn parted<T: Copy>(
    list: &[T],
    is_weak: impl Fn(usize) -> bool,
    rest: Rest,
    step: usize,
) -> Vec<Vec<T>> {
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
    let mut groups: Vec<Vec<T>> =
        weak.iter().zip(partners).map(|(one, other)| vec![list[*one], list[other]]).collect();
    let others: Vec<T> = strong.iter().map(|at| list[*at]).collect();
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
fn pairs<T: Copy>(list: &[T], step: usize) -> Vec<Vec<T>> {
    let doublings = list.len().next_power_of_two().ilog2().max(1) as usize;
    let lot = (1_u64 << (step % doublings)) + 3 * (step / doublings) as u64;
    let pair = |at: usize| match partner(list.len() as u32, at as u32, lot) {
        Some(other) if (other as usize) < at => None,
        Some(other) => Some(vec![list[at], list[other as usize]]),
        None => Some(vec![list[at]]),
    };
    (0..list.len()).filter_map(pair).collect()
}
