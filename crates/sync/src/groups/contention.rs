//! When a link counts as contended, and when as free again: a state machine over how long steps take and what came from host to
//! host.
//!
//! How long steps take says whether anything is wrong, and what a mark is good for. Which link it is, its flows say beside all
//! others of the same time: what crosses a contended link is slower than usual, and everything else is faster, because less
//! shares the wires with it. A mark has to prove itself: if steps are no shorter with it, no link is the reason, and what they take
//! is usual from then on. A link with a mark says nothing of others' traffic, since groups go around it. So when steps
//! become shorter, and from time to time, the job is tried without the mark: if steps are slow again, the mark is back, and the
//! next trial twice as far away. It reads no clock and moves no bytes; whoever looks decides how often.

use crate::metrics::{Pace, median};
use paceline_job::{Contended, LinkName, Topology};
use std::{collections::VecDeque, sync::Arc};

/// Looks that make one judgement.
const LOOKS: usize = 5;

/// After so many looks under the same marks steps show nothing of the ones before any more.
const SETTLED: usize = 2 * LOOKS;

/// The flows of a contended link have this share of their usual rate beside all others, or less.
const UNUSUAL: f64 = 0.75;

/// Links whose flows have shares as low, but for this factor, may all be the reason.
const ALIKE: f64 = 1.05;

/// A mark stays if steps are shorter by this factor with it.
const WORTH: f64 = 1.07;

/// Steps under a mark that become shorter by this factor may do without it.
const SHORTER: f64 = 1.2;

/// After so many looks a mark is tried without, or after a quarter of them where steps became shorter, and after twice as
/// many each time that it comes back.
const PATIENCE: usize = 64;

/// What is usual for flows follows from about so many looks: so slowly that others who come do not become usual before steps are
/// known to be slow.
const MEMORY: f64 = 64.0;

/// What came from one host to another since the last look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flow {
    /// Sender, as the topology numbers hosts.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// How much,
    pub bytes: f64,
    /// and how long something was on its way.
    pub seconds: f64,
}

/// Other marks than before, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Adjustment {
    /// All links that count as contended now.
    pub contended: Contended,
    /// In plain words.
    pub reason: String,
}

/// Follows all links of a topology.
#[derive(Clone, Debug)]
pub struct Watch {
    topology: Arc<Topology>,
    /// Of steps without marks.
    pace: Pace,
    /// Looks in a row in which these were slow.
    slow: usize,
    /// What the flows of each link have beside all others while they are not; hosts', then racks'.
    usual: Vec<Mean>,
    /// The last ones, under the marks in force,
    looks: VecDeque<Look>,
    /// and how many there were.
    taken: usize,
    in_force: Contended,
    /// What this watch marks, and how that stands.
    marks: Option<(Contended, Standing)>,
    /// Looks until a mark is tried without.
    patience: usize,
}

#[derive(Clone, Debug)]
struct Look {
    /// Of a step.
    seconds: f64,
    /// By link: how fast its flows were beside all others; none where there were none of either.
    shares: Vec<Option<f64>>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Standing {
    /// Steps took so many seconds without it.
    New { without: f64 },
    /// It stays until there is reason to doubt it.
    Kept {
        /// Seconds of a step; none while that is to be seen.
        with: Option<f64>,
    },
    /// It is off, to see what comes of that.
    Tried,
}

#[derive(Clone, Copy, Debug, Default)]
struct Mean {
    count: f64,
    value: f64,
}

impl Mean {
    fn add(&mut self, number: f64) {
        self.count = MEMORY.min(self.count + 1.0);
        self.value += (number - self.value) / self.count;
    }
}

impl Watch {
    /// Knows nothing of the links yet, but that these were marked by one before it that is gone.
    pub fn new(topology: Arc<Topology>, inherited: &Contended) -> Watch {
        let links = topology.hosts.len() + topology.uplinks.len();
        let kept = Standing::Kept { with: None };
        Watch {
            topology,
            pace: Pace::new(Pace::SHARE, LOOKS),
            slow: 0,
            usual: vec![Mean::default(); links],
            looks: VecDeque::new(),
            taken: 0,
            in_force: Contended::default(),
            marks: (!inherited.is_empty()).then(|| (inherited.clone(), kept)),
            patience: PATIENCE,
        }
    }

    /// What counts as contended now.
    pub fn contended(&self) -> Contended {
        match &self.marks {
            Some((links, standing)) if *standing != Standing::Tried => links.clone(),
            _ => Contended::default(),
        }
    }

    /// Take a look at what came since the last one, and how many seconds a step takes, while these marks are in force. Flows of
    /// hosts that the topology does not have are passed over.
    pub fn look(
        &mut self,
        flows: &[Flow],
        seconds: f64,
        in_force: &Contended,
    ) -> Option<Adjustment> {
        if self.in_force != *in_force {
            // Groups are others, and what comes from whom.
            self.in_force = in_force.clone();
            self.looks.clear();
            self.pace.begin_window();
            (self.taken, self.slow) = (0, 0);
        }
        self.taken += 1;
        let shares = self.shares(flows);
        self.looks.push_back(Look { seconds, shares });
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
        let reason = match self.marks.take() {
            None => self.search(),
            Some((links, standing)) => self.judge(links, standing),
        };
        reason.map(|reason| Adjustment { contended: self.contended(), reason })
    }

    /// Nothing is marked: learn what is usual, or find the link that is not.
    fn search(&mut self) -> Option<String> {
        let Look { seconds, shares } = self.looks.back()?;
        let is_slow = self.pace.slowed(*seconds)?;
        let usual = self.pace.usual()?;
        if !is_slow {
            self.slow = 0;
            if Pace::SHARE * seconds < usual {
                for (usual, share) in self.usual.iter_mut().zip(shares) {
                    share.iter().for_each(|share| usual.add(*share));
                }
            }
            return None;
        }
        self.slow += 1;
        let without = self.step().filter(|_| self.slow >= LOOKS)?;
        let had: Vec<(usize, f64)> =
            (0..self.usual.len()).filter_map(|link| Some((link, self.had(link)?))).collect();
        let least = had.iter().map(|(_, had)| *had).fold(f64::INFINITY, f64::min);
        if least > UNUSUAL {
            return None;
        }
        let mut links = Contended::default();
        for (link, _) in had.into_iter().filter(|(_, had)| *had <= ALIKE * least) {
            match self.topology.hosts.get(link) {
                Some(host) => drop(links.hosts.insert(host.name.clone())),
                None => drop(links.racks.insert((link - self.topology.hosts.len()) as u32)),
            }
        }
        let reason = format!(
            "{} contended: steps take {:.2} times as long as usual, and its flows have {:.0} % of their usual rate beside all others",
            named(&links),
            without / usual,
            100.0 * least
        );
        self.marks = Some((links, Standing::New { without }));
        Some(reason)
    }

    /// Something is marked: keep that, or not.
    fn judge(&mut self, links: Contended, standing: Standing) -> Option<String> {
        let seconds = self.looks.back()?.seconds;
        let is_in_force = links.hosts.is_subset(&self.in_force.hosts)
            && links.racks.is_subset(&self.in_force.racks);
        let names = named(&links);
        let step = self.step().filter(|_| self.taken >= SETTLED);
        let (standing, reason) = match (standing, step) {
            // Whether somebody follows or not: without the mark the job is as fast as ever, or it is not.
            (standing, _) if !is_in_force => match (standing, self.pace.slowed(seconds)) {
                (_, Some(false)) => {
                    self.patience = PATIENCE;
                    let reason = format!("{names} free: without a mark steps are as usual");
                    (None, (standing != Standing::Tried).then_some(reason))
                }
                (Standing::Tried, Some(true)) if self.taken >= SETTLED => {
                    self.patience = self.patience.saturating_mul(2);
                    let reason =
                        format!("{names} still contended: without the mark steps are slow");
                    (Some(Standing::Kept { with: None }), Some(reason))
                }
                _ => (Some(standing), None),
            },
            (Standing::New { without }, Some(step)) if WORTH * step > without => {
                self.pace.expect(None);
                self.usual.fill(Mean::default());
                let percent = 100.0 * step / without;
                let reason = format!(
                    "{names} not the reason: with the mark steps take {percent:.0} % of what they took"
                );
                (None, Some(reason))
            }
            (Standing::New { .. } | Standing::Kept { with: None }, Some(step)) => {
                if self.pace.usual().is_none() {
                    // Nobody has seen the job without it.
                    self.pace.expect(Some(step));
                }
                (Some(Standing::Kept { with: Some(step) }), None)
            }
            (Standing::Kept { with: Some(with) }, Some(step))
                if self.taken >= self.patience
                    || 4 * self.taken >= self.patience && SHORTER * step <= with =>
            {
                let percent = 100.0 * step / with;
                let reason = format!(
                    "{names} on trial without a mark: steps take {percent:.0} % of what they took at first"
                );
                (Some(Standing::Tried), Some(reason))
            }
            (standing, _) => (Some(standing), None),
        };
        self.marks = standing.map(|standing| (links, standing));
        reason
    }

    /// Seconds of a step, if there were enough looks under the marks in force.
    fn step(&self) -> Option<f64> {
        let seconds: Vec<f64> = self.looks.iter().map(|look| look.seconds).collect();
        (seconds.len() == LOOKS).then(|| median(&seconds))
    }

    /// What the flows of a link lately had of their usual rate beside all others.
    fn had(&self, link: usize) -> Option<f64> {
        let usual = self.usual[link];
        let lately: Vec<f64> = self.looks.iter().filter_map(|look| look.shares[link]).collect();
        (usual.count > 0.0 && lately.len() == self.looks.len())
            .then(|| median(&lately) / usual.value)
    }

    /// By link, how fast its flows are beside all others.
    fn shares(&self, flows: &[Flow]) -> Vec<Option<f64>> {
        let hosts = self.topology.hosts.len();
        let mut all = Sum::default();
        let mut links = vec![Sum::default(); self.usual.len()];
        let told = |flow: &&Flow| flow.from.max(flow.to) < hosts && flow.from != flow.to;
        for flow in flows.iter().filter(told) {
            all.add(flow);
            self.way(flow).for_each(|link| links[link].add(flow));
        }
        let share = |link: Sum| {
            let others = Sum { bytes: all.bytes - link.bytes, seconds: all.seconds - link.seconds };
            Some(link.rate()? / others.rate()?)
        };
        links.into_iter().map(share).collect()
    }

    /// The links of this watch that a flow crosses.
    fn way(&self, flow: &Flow) -> impl Iterator<Item = usize> {
        let hosts = self.topology.hosts.len();
        // One worker on each host, so that it is named like it.
        let [from, to] = [flow.from, flow.to].map(|host| (host as u32, host as u32));
        let way = self.topology.way(from, to);
        (0..way.links().len()).filter_map(move |at| match way.links()[at] {
            LinkName::HostOut(host) | LinkName::HostIn(host) => Some(host as usize),
            LinkName::RackUp(rack) | LinkName::RackDown(rack) => Some(hosts + rack as usize),
            LinkName::MemoryOut(_) | LinkName::MemoryIn(_) => None,
        })
    }
}

/// Of some flows.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    bytes: f64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, flow: &Flow) {
        self.bytes += flow.bytes;
        self.seconds += flow.seconds;
    }

    fn rate(self) -> Option<f64> {
        (self.bytes > 0.0 && self.seconds > 0.0).then(|| self.bytes / self.seconds)
    }
}

/// The beginning of a sentence about links.
fn named(links: &Contended) -> String {
    let hosts = links.hosts.iter().map(|host| format!("the link of {host}"));
    let racks = links.racks.iter().map(|rack| format!("the uplink of rack {rack}"));
    let names: Vec<String> = hosts.chain(racks).collect();
    let verb = if names.len() == 1 { "is" } else { "are" };
    format!("{} {verb}", names.join(" and "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Host, Link, Random, Rate};
    use std::time::Duration;

    /// Racks × hosts.
    fn topology(racks: u32, hosts: u32) -> Arc<Topology> {
        let link = Link { rate: Rate::from_bits_per_second(1e9), latency: Duration::ZERO };
        let host = |index: u32| Host { name: format!("host{index}"), rack: index / hosts, link };
        let hosts = (0..racks * hosts).map(host).collect();
        Arc::new(Topology { hosts, uplinks: vec![link; racks as usize], memory: link })
    }

    /// Racks of three.
    fn rack(host: usize) -> usize {
        host / 3
    }

    /// Every host to its neighbour, round all; so much of the usual rate for the flows that `slow` names.
    fn round(hosts: usize, share: f64, slow: impl Fn(usize, usize) -> bool) -> Vec<Flow> {
        let flow = |from: usize| {
            let to = (from + 1) % hosts;
            let share = if slow(from, to) { share } else { 1.0 };
            Flow { from, to, bytes: 1e8, seconds: share.recip() }
        };
        (0..hosts).map(flow).collect()
    }

    /// A job on twelve hosts in four racks, and what others do there.
    struct Job {
        watch: Watch,
        /// What others leave of the uplink of rack 1, if any are there.
        left: Option<f64>,
        /// How long steps take under the mark.
        marked: f64,
        /// How much longer they take at first when marks have changed; it is forgotten by and by.
        wake: f64,
        /// Looks since then.
        settled: i32,
        changes: Vec<Adjustment>,
    }

    impl Job {
        fn new(inherited: &Contended) -> Job {
            let watch = Watch::new(topology(4, 3), inherited);
            Job { watch, left: None, marked: 0.7, wake: 0.0, settled: 0, changes: Vec::new() }
        }

        /// So many looks, with the watch's own marks in force.
        fn run(&mut self, looks: usize) {
            for _ in 0..looks {
                let marks = self.watch.contended();
                let is_marked = marks.racks.contains(&1);
                let crosses =
                    |from, to| rack(from) != rack(to) && (rack(from) == 1 || rack(to) == 1);
                let (flows, alone) = match (self.left, is_marked) {
                    // Fewer share the link, and groups of two are faster than rings anyway.
                    (left, true) => {
                        (round(12, 0.5 + 0.5 * left.unwrap_or(1.0), crosses), self.marked)
                    }
                    (left, false) => (round(12, left.unwrap_or(1.0), crosses), 1.0),
                };
                let seconds = 0.5 * alone + 0.5 * alone / self.left.unwrap_or(1.0);
                let wake = 1.0 + self.wake * 0.75_f64.powi(self.settled);
                let change = self.watch.look(&flows, wake * seconds, &marks);
                self.settled = if change.is_some() { 0 } else { self.settled + 1 };
                self.changes.extend(change);
            }
        }

        fn others_come(&mut self) {
            self.run(20);
            assert_eq!(self.changes, []);
            self.left = Some(0.4);
            self.run(10);
        }

        fn marks(&self) -> Vec<u32> {
            let Contended { hosts, racks } = self.watch.contended();
            assert!(hosts.is_empty(), "{hosts:?}");
            racks.into_iter().collect()
        }
    }

    #[test]
    fn an_uplink_is_marked_by_its_flows_and_free_again_when_steps_become_shorter() {
        let mut job = Job::new(&Contended::default());
        job.others_come();
        assert_eq!(job.marks(), [1]);
        let reason = &job.changes[0].reason;
        assert!(
            reason.starts_with("the uplink of rack 1 is contended: steps take 1.75"),
            "{reason}"
        );
        job.run(50);
        assert_eq!((job.marks(), job.changes.len()), (vec![1], 1));
        job.left = None;
        job.run(10);
        assert!(job.marks().is_empty());
        job.run(500);
        assert_eq!(job.changes.len(), 2, "{:?}", job.changes);
    }

    #[test]
    fn long_steps_just_after_a_change_neither_free_a_link_nor_keep_its_mark() {
        let mut job = Job::new(&Contended::default());
        job.run(20);
        job.wake = 0.8;
        job.others_come();
        job.run(50);
        assert_eq!((job.marks(), job.changes.len()), (vec![1], 1), "{:?}", job.changes);
        job.left = None;
        job.run(50);
        assert_eq!((job.marks(), job.changes.len()), (vec![], 2), "{:?}", job.changes);
    }

    #[test]
    fn a_mark_is_back_after_a_trial_as_long_as_others_are_there_and_trials_become_rare() {
        let mut job = Job::new(&Contended::default());
        job.others_come();
        let mut without = Vec::new();
        for look in 0..900 {
            job.run(1);
            if job.marks().is_empty() {
                without.push(look);
            }
        }
        let trials = job.changes.iter().filter(|change| change.reason.contains("on trial")).count();
        assert_eq!((trials, without.len()), (3, 3 * SETTLED));
        // Then steps do not become shorter when they go: the next trial shows it.
        (job.left, job.marked) = (None, 0.7 * 1.75);
        job.run(600);
        assert!(job.marks().is_empty());
    }

    #[test]
    fn a_mark_that_makes_steps_no_shorter_comes_off_and_they_are_usual_then() {
        let mut job = Job::new(&Contended::default());
        job.marked = 0.97;
        job.others_come();
        job.run(SETTLED);
        assert_eq!((job.marks(), job.changes.len()), (vec![], 2));
        assert!(job.changes[1].reason.contains("is not the reason"), "{:?}", job.changes);
        job.run(500);
        assert_eq!(job.changes.len(), 2, "{:?}", job.changes);
    }

    #[test]
    fn an_inherited_mark_stays_as_long_as_others_are_there() {
        let inherited = Contended { racks: [1].into(), ..Contended::default() };
        let mut job = Job::new(&inherited);
        job.left = Some(0.4);
        job.run(200);
        assert_eq!(job.marks(), [1]);
        let trials = job.changes.iter().filter(|change| change.contended.is_empty()).count();
        assert_eq!(trials, 1, "{:?}", job.changes);
        job.left = None;
        job.run(20);
        assert!(job.marks().is_empty());
    }

    #[test]
    fn a_mark_that_nobody_follows_stays_until_steps_are_as_usual() {
        let mut watch = Watch::new(topology(2, 3), &Contended::default());
        let mut looks = |count: usize, share: f64, seconds: f64| {
            let flows = round(6, share, |from, to| from == 2 || to == 2);
            let look = |_| watch.look(&flows, seconds, &Contended::default());
            (0..count).filter_map(look).collect::<Vec<_>>()
        };
        assert_eq!(looks(20, 1.0, 1.0), []);
        assert_eq!(looks(500, 0.2, 2.0).len(), 1);
        assert!(looks(10, 1.0, 1.0)[0].contended.is_empty());
    }

    /// What is marked after others have come to a job on so many racks of three.
    fn marked(racks: u32, seconds: f64, before: &[Flow], flows: &[Flow]) -> Contended {
        let mut watch = Watch::new(topology(racks, 3), &Contended::default());
        let none = Contended::default();
        assert!((0..20).all(|_| watch.look(before, 1.0, &none).is_none()));
        (0..10).for_each(|_| drop(watch.look(flows, seconds, &none)));
        watch.contended()
    }

    #[test]
    fn a_slow_host_is_marked_and_its_rack_is_not() {
        let before = round(6, 1.0, |_, _| false);
        let marks = marked(2, 2.0, &before, &round(6, 0.2, |from, to| from == 2 || to == 2));
        assert_eq!(marks.hosts.iter().collect::<Vec<_>>(), ["host2"]);
        assert!(marks.racks.is_empty(), "{marks:?}");
    }

    #[test]
    fn of_links_that_one_of_them_slows_down_the_slowest_is_marked() {
        // As a real run had it: a ring round all racks over which everything is slow that is next to rack 3, as it waits for it, and
        // everything else is faster than before.
        let ring = |slow: f64, fast: f64| {
            let between = (0..4).flat_map(move |from: usize| {
                let to = (from + 1) % 4;
                let share = if [from, to].contains(&3) { slow } else { fast };
                let flow = move |host: usize| Flow {
                    from: 3 * from + host,
                    to: 3 * to + host,
                    bytes: 1e8,
                    seconds: f64::recip(share),
                };
                (0..3).map(flow)
            });
            let inside = (0..12).map(move |from| Flow {
                from,
                to: 3 * rack(from) + (from + 1) % 3,
                bytes: 1e8,
                seconds: fast.recip(),
            });
            between.chain(inside).collect::<Vec<Flow>>()
        };
        let marks = marked(4, 1.6, &ring(1.0, 1.0), &ring(0.6, 1.2));
        assert_eq!(marks, Contended { racks: [3].into(), ..Contended::default() });
    }

    #[test]
    fn slow_steps_without_slow_flows_and_slow_flows_without_slow_steps_mark_nothing() {
        let before = round(6, 1.0, |_, _| false);
        assert!(marked(2, 2.0, &before, &before).is_empty());
        assert!(marked(2, 2.0, &before, &round(6, 0.2, |_, _| true)).is_empty());
        let slow = round(6, 0.2, |from, to| from == 2 || to == 2);
        assert!(marked(2, 1.2, &before, &slow).is_empty());
    }

    #[test]
    fn others_who_come_slowly_do_not_become_usual() {
        let mut watch = Watch::new(topology(4, 3), &Contended::default());
        let none = Contended::default();
        for look in 0..60 {
            let there = f64::from(look - 40).clamp(0.0, 10.0) / 10.0;
            let slow = round(12, 1.0 - 0.6 * there, |from, to| from == 7 || to == 7);
            drop(watch.look(&slow, 1.0 + 0.6 * there, &none));
        }
        assert_eq!(watch.contended().hosts.into_iter().collect::<Vec<_>>(), ["host7"]);
    }

    #[test]
    fn noise_changes_nothing() {
        for seed in 0..50 {
            let mut watch = Watch::new(topology(4, 3), &Contended::default());
            let mut random = Random::new(seed);
            for _ in 0..500 {
                let seconds = 0.8 + 0.4 * random.unit();
                let noisy =
                    |flow: Flow| Flow { seconds: (0.66 + 0.34 * random.unit()).recip(), ..flow };
                let flows: Vec<Flow> =
                    round(12, 1.0, |_, _| false).into_iter().map(noisy).collect();
                let marks = watch.contended();
                assert_eq!(watch.look(&flows, seconds, &marks), None, "seed {seed}");
            }
        }
    }

    #[test]
    fn flows_that_name_no_host_are_passed_over() {
        let nobody = Flow { from: 0, to: 9, bytes: 1.0, seconds: 1.0 };
        let before = round(6, 1.0, |_, _| false);
        let after = [before.clone(), vec![nobody]].concat();
        assert!(marked(2, 2.0, &before, &after).is_empty());
    }
}
