//! What a run of membership may meet, drawn from its seed.

use super::ledger::MOST_WORKERS;
use std::time::Duration;

use paceline_job::{ByteSize, Random, Settings, StrategyChoice, WorkerId};

/// See the file's first paragraph.
#[derive(Clone, Debug)]
pub struct Conditions {
    /// Workers at the beginning.
    pub workers: u64,
    /// Steps that the job takes.
    pub steps: u64,
    /// Elements of each tensor.
    pub tensors: Vec<usize>,
    /// Whether a tensor of the step before is awaited only where its successor is posted.
    pub crosses_steps: bool,
    /// Before which tensor of a step programs sum something of their own, and wait for it; after the last, if there is none of that
    /// number.
    pub sums_before: Option<usize>,
    /// How workers stay together.
    pub mode: Mode,
    /// Of how many tensors the state travels to newcomers of a synchronous job in a step that they listen to. With none, all stand
    /// still for it.
    pub listens: usize,
    /// In force at the beginning.
    pub settings: Settings,
    /// The longest that a tensor takes to compute, in nanoseconds, on a worker that is not slow.
    pub compute: u64,
    /// The longest that a message takes, in nanoseconds.
    pub delay: u64,
    /// Workers that die.
    pub crashes: u32,
    /// Workers that join.
    pub joins: u32,
    /// Workers that are asked to leave.
    pub leaves: u32,
    /// Pairs of workers, and workers and the coordinator, that lose sight of each other.
    pub cuts: u32,
    /// Coordinators that die, and come back.
    pub restarts: u32,
    /// Changes of settings.
    pub changes: u32,
    /// Wishes for fewer workers.
    pub resizes: u32,
    /// Workers, beginning with the first, whose programs end in the middle of one of the last steps.
    pub ends: u32,
    /// Times that a worker, the coordinator or everybody is stopped for seconds, and goes on.
    pub stops: u32,
    /// The longest stop, in seconds.
    pub longest_stop: u64,
    /// Whether another takes the place of a coordinator that is stopped, as where the job's seat is in etcd.
    pub elects: bool,
    /// Times that the network falls into two halves.
    pub halves: u32,
}

/// How workers stay together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Tensors are summed in every step, and workers are equal.
    #[default]
    Synchronous,
    /// Tensors are mixed as the strategy says, so that workers come to differ.
    Groups,
    /// Tensors are averaged two by two, with somebody else in every step.
    Pairs,
    /// Tensors are averaged by all every so many steps.
    Local(u64),
    /// Tensors are averaged by all in every step, and used a step later.
    Averaging,
}

impl Mode {
    /// Whether samples count when something holds a worker's copy.
    pub(super) fn is_apart(self) -> bool {
        matches!(self, Mode::Pairs | Mode::Local(_) | Mode::Averaging)
    }
}

/// What goes wrong, or otherwise, and when. Lots say who.
#[derive(Clone, Debug)]
pub(super) enum Trouble {
    Crash(u64),
    Cut(u64, u64),
    CutOff(u64),
    Leave(u64),
    Join,
    Settings(Settings),
    /// So many less, as far as some are left.
    Resize(u64),
    CoordinatorDies,
    Stop(Whom, Duration),
    /// Links between two halves are cut, for ever or for so long; one half may not reach the coordinator either.
    Halves {
        lot: u64,
        cut_off: bool,
        lasts: Option<u64>,
    },
}

/// Who is stopped.
#[derive(Clone, Debug)]
pub(super) enum Whom {
    Worker(u64),
    Coordinator,
    Everybody,
}

impl Conditions {
    /// Any.
    pub fn draw(random: &mut Random) -> Conditions {
        let few =
            |random: &mut Random, most: u64| (random.below(2 * most + 1)).saturating_sub(most);
        let workers = 1 + random.below(6);
        Conditions {
            workers,
            steps: 3 + random.below(8),
            tensors: (0..1 + random.below(4)).map(|_| 1 + random.below(60) as usize).collect(),
            crosses_steps: random.below(2) == 0,
            sums_before: None,
            mode: Mode::Synchronous,
            listens: 0,
            settings: settings(random, &SUMMING),
            compute: 1 + random.below(3000),
            delay: 1 + random.below(1000),
            crashes: few(random, 3) as u32,
            joins: few(random, 3).min(MOST_WORKERS - workers) as u32,
            leaves: few(random, 2) as u32,
            cuts: few(random, 2) as u32,
            restarts: few(random, 2) as u32,
            changes: few(random, 2) as u32,
            resizes: 0,
            ends: 0,
            stops: 0,
            longest_stop: 45,
            elects: false,
            halves: 0,
        }
    }

    /// The same with tensors that are mixed, and strategies that average in groups.
    pub fn mixing(self, random: &mut Random) -> Conditions {
        Conditions { mode: Mode::Groups, settings: settings(random, &MIXING), ..self }
    }

    /// The same where workers average in every step.
    pub fn averaging(self) -> Conditions {
        Conditions { mode: Mode::Averaging, crosses_steps: true, ..self }
    }

    /// The same in any mode, with newcomers that listen, with wishes for fewer workers, with sums of the program's own, and with
    /// whatever else may happen, by the seed.
    pub fn anything(self, seed: u64) -> Conditions {
        let conditions = match seed % 8 {
            1 => Conditions { mode: Mode::Pairs, ..self },
            2 => self.averaging(),
            3 => Conditions { mode: Mode::Local(1 + seed / 8 % 4), ..self },
            5 => self.mixing(&mut Random::new(seed)),
            6 => self,
            7 => Conditions { resizes: 1 + (seed / 8 % 2) as u32, leaves: 0, ..self },
            _ => Conditions { listens: 1 + (seed / 8 % 4) as usize, ..self },
        };
        let places = conditions.tensors.len() as u64 + 1;
        let sums_before = (seed / 512 % 2 == 1).then(|| (seed / 1024 % places) as usize);
        let conditions = Conditions { sums_before, ..conditions };
        let (few, elects) = (1 + (seed / 128 % 2) as u32, (seed / 256).is_multiple_of(2));
        match seed / 8 % 8 {
            1 => Conditions { stops: few, elects, ..conditions },
            3 => Conditions { halves: few, ..conditions },
            5 => Conditions { ends: 1 + few, ..conditions },
            7 => Conditions { stops: few, halves: 1, ends: 1, elects, ..conditions },
            _ => conditions,
        }
    }

    /// Where a worker's program ends, if it is not after all steps: in which step, and before which tensor.
    pub(super) fn end_of(&self, id: WorkerId) -> Option<(u64, usize)> {
        let lot = self.compute.rotate_left(id.0 as u32) ^ self.delay;
        let tensor = lot as usize % (self.tensors.len() + 1);
        (id.0 < u64::from(self.ends)).then(|| (self.steps - 1 - lot / 8 % 3, tensor))
    }

    /// What happens, and when.
    pub(super) fn troubles(&self, random: &mut Random) -> Vec<(u64, Trouble)> {
        let transfer = 8 * self.delay;
        let length = self.steps * (self.compute * self.tensors.len() as u64 + transfer);
        let mut troubles = Vec::new();
        let mut several =
            |random: &mut Random, count: u32, draw: &dyn Fn(&mut Random) -> Trouble| {
                for _ in 0..count {
                    troubles.push((random.below(length), draw(random)));
                }
            };
        several(random, self.crashes, &|random| Trouble::Crash(random.bits()));
        several(random, self.joins, &|_| Trouble::Join);
        several(random, self.leaves, &|random| Trouble::Leave(random.bits()));
        several(random, self.cuts, &|random| match random.below(2) {
            0 => Trouble::Cut(random.bits(), random.bits()),
            _ => Trouble::CutOff(random.bits()),
        });
        several(random, self.restarts, &|_| Trouble::CoordinatorDies);
        let strategies: &[&str] = if self.mode == Mode::Groups { &MIXING } else { &SUMMING };
        several(random, self.changes, &|random| Trouble::Settings(settings(random, strategies)));
        several(random, self.resizes, &|random| Trouble::Resize(1 + random.below(2)));
        let longest = 1_000 * self.longest_stop;
        several(random, self.stops, &|random| {
            let whom = match random.below(4) {
                0 => Whom::Coordinator,
                1 => Whom::Everybody,
                _ => Whom::Worker(random.bits()),
            };
            Trouble::Stop(whom, Duration::from_millis(1 + random.below(longest)))
        });
        several(random, self.halves, &|random| Trouble::Halves {
            lot: random.bits(),
            cut_off: random.below(3) > 0,
            lasts: (random.below(2) == 0).then(|| random.below(length)),
        });
        troubles
    }
}

const SUMMING: [&str; 5] = ["auto", "ring", "double_tree", "recursive_doubling", "one_shot"];
const MIXING: [&str; 4] = ["shuffle", "shuffle:3", "gossip", "ring"];

fn settings(random: &mut Random, strategies: &[&str]) -> Settings {
    Settings {
        strategy: StrategyChoice((*random.choose(strategies)).to_string()),
        partition: ByteSize(64 + random.below(200)),
        credit: ByteSize(1 + random.below(1000)),
        ..Settings::default()
    }
}
