//! What a run of membership may meet, drawn from its seed.

use super::ledger::MOST_WORKERS;
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
    /// How workers stay together.
    pub mode: Mode,
    /// Whether newcomers to a synchronous job listen to a step while the state travels to them.
    pub listens: bool,
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
}

impl Mode {
    /// Whether samples count when something holds a worker's copy.
    pub(super) fn is_apart(self) -> bool {
        matches!(self, Mode::Pairs | Mode::Local(_))
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
            mode: Mode::Synchronous,
            listens: false,
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
        }
    }

    /// The same with tensors that are mixed, and strategies that average in groups.
    pub fn mixing(self, random: &mut Random) -> Conditions {
        Conditions { mode: Mode::Groups, settings: settings(random, &MIXING), ..self }
    }

    /// The same in any mode, with newcomers that listen, or with wishes for fewer workers, by the seed.
    pub fn any_mode(self, seed: u64) -> Conditions {
        match seed % 8 {
            1 => Conditions { mode: Mode::Pairs, ..self },
            3 => Conditions { mode: Mode::Local(1 + seed / 8 % 4), ..self },
            5 => self.mixing(&mut Random::new(seed)),
            7 => Conditions { resizes: 1 + (seed / 8 % 2) as u32, leaves: 0, ..self },
            _ => Conditions { listens: seed.is_multiple_of(2), ..self },
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
