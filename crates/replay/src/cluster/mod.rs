//! Engines in virtual time: the driver that `paceline-net` is in real time. It carries actions to the
//! modelled network and workers, and events back; it decides nothing that an engine could decide.

mod drive;
mod script;
mod waits;

use crate::{
    config::ClusterConfig,
    error::ReplayError,
    memory::{Memory, Weightless},
    network::Network,
    outcome::{Fault, Finish, Notice, Outcome, Stuck},
    timeline::Timeline,
    worker::{Prompt, Worker},
};
use drive::Arriving;
use paceline_job::{Rank, Time, Topology, View};
use paceline_sync::{
    check_strategy,
    engine::{Engine, Load},
    event::{Action, OpId, Post},
    metrics::{Came, Traffic},
};
use script::Scripted;
use std::{collections::VecDeque, sync::Arc};
pub use waits::{Over, Stretch, Waits, WayBack};

/// All workers of a view, their engines, and the network between them.
///
/// ```
/// use paceline_job::{Link, Rank, Rate, Dtype, Settings, StrategyChoice, Time, Topology, View};
/// use paceline_replay::{Cluster, ClusterConfig};
/// use paceline_sync::{collective::Collective, event::{OpId, Post}};
/// use std::{sync::Arc, time::Duration};
///
/// let settings = Settings { strategy: StrategyChoice("ring".into()), ..Settings::default() };
/// let view = View::on_hosts(vec!["a".into(), "b".into()], settings);
/// let link = Link { rate: Rate::from_bytes_per_second(1e9), latency: Duration::from_micros(20) };
/// let topology = Topology::uniform(&view, link, link);
/// let mut cluster = Cluster::new(Arc::new(view), &topology, ClusterConfig::default())?;
/// for rank in 0..2 {
///     let sum = Collective::AllReduce { len: 1_000_000 };
///     cluster.post(Time::ZERO, Rank(rank), Post::new(OpId(0), "gradient", sum, Dtype::F32))?;
/// }
/// let outcome = cluster.run();
/// assert!(outcome.stuck.is_empty());
/// println!("{} us", outcome.end.0 / 1000);
/// # Ok::<(), paceline_replay::ReplayError>(())
/// ```
#[derive(Debug)]
pub struct Cluster<M: Memory = Weightless> {
    config: ClusterConfig,
    per_frame: u64,
    now: Time,
    last_event: Time,
    engines: Vec<Engine>,
    workers: Vec<Worker<M>>,
    /// Apart from the workers, because it is asked at every event.
    alive: Vec<bool>,
    network: Network<M::Parcel>,
    memory: M,
    timeline: Timeline,
    /// What engines hear before anything else happens.
    prompts: VecDeque<(u32, Prompt)>,
    /// Where engines write; empty between events.
    actions: Vec<Action>,
    /// The data frame that an engine is being told of.
    arriving: Option<Arriving<M::Parcel>>,
    script: Vec<Option<Scripted>>,
    free_lines: Vec<u32>,
    /// Per rank and operation, what was posted and is not over.
    unfinished: Vec<Vec<Option<Arc<str>>>>,
    finished: VecDeque<Finish>,
    notices: Vec<Notice>,
    /// By rank; empty unless it is asked for.
    traffic: Vec<Traffic>,
    /// If it is asked for.
    waits: Option<Box<Waits>>,
    events: u64,
    messages: u64,
}

/// What an entry of the timeline stands for, in its upper bits. Connections have kind zero, because
/// the network sets its own timers.
const KIND_SHIFT: u32 = 29;
const THREAD: u32 = 1 << KIND_SHIFT;
const HANDS: u32 = 2 << KIND_SHIFT;
const TICK: u32 = 3 << KIND_SHIFT;
const SCRIPT: u32 = 4 << KIND_SHIFT;

impl Cluster<Weightless> {
    /// A cluster that carries lengths and no bytes.
    pub fn new(
        view: Arc<View>,
        topology: &Topology,
        config: ClusterConfig,
    ) -> Result<Cluster, ReplayError> {
        Cluster::with_memory(view, topology, config, Weightless)
    }
}

impl<M: Memory> Cluster<M> {
    /// A cluster whose workers have this memory.
    pub fn with_memory(
        view: Arc<View>,
        topology: &Topology,
        config: ClusterConfig,
        memory: M,
    ) -> Result<Cluster<M>, ReplayError> {
        config.validate()?;
        let size = view.size();
        if config.mirrored {
            check_symmetry(&view, topology)?;
        }
        let (mirrored, seed) = (config.mirrored, config.seed);
        let network = Network::new(&view, topology, config.network.clone(), mirrored, seed)?;
        let engines = Engine::for_all(&view)?;
        let counted = if config.traffic { size } else { 0 };
        let traffic = (0..counted as u32).map(|rank| Traffic::new(Rank(rank), &view)).collect();
        // One worker's messages stand for those of others there, which are on other links.
        let waits = (config.waits && !mirrored).then(Box::<Waits>::default);
        Ok(Cluster {
            per_frame: u64::try_from(config.worker.per_frame.as_nanos()).unwrap_or(u64::MAX),
            config,
            now: Time::ZERO,
            last_event: Time::ZERO,
            engines,
            workers: (0..size).map(|_| Worker::new()).collect(),
            alive: vec![true; size],
            network,
            memory,
            timeline: Timeline::default(),
            prompts: VecDeque::new(),
            actions: Vec::new(),
            arriving: None,
            script: Vec::new(),
            free_lines: Vec::new(),
            unfinished: vec![Vec::new(); size],
            finished: VecDeque::new(),
            notices: Vec::new(),
            traffic,
            waits,
            events: 0,
            messages: 0,
        })
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The workers' memory.
    pub fn memory(&self) -> &M {
        &self.memory
    }

    /// The workers' memory, to put tensors there before they are posted.
    pub fn memory_mut(&mut self) -> &mut M {
        &mut self.memory
    }

    /// What a worker's engine carries.
    ///
    /// # Panics
    /// If there is no such worker.
    pub fn load(&self, rank: Rank) -> Load {
        self.engines[rank.index()].load()
    }

    /// What each worker's wires carried so far, by rank, where [`ClusterConfig::traffic`] asks for it.
    pub fn traffic(&self) -> &[Traffic] {
        &self.traffic
    }

    /// What came to a worker from each other, where [`ClusterConfig::traffic`] asks for it.
    pub fn inward(&self, rank: Rank) -> impl Iterator<Item = (Rank, Came)> {
        self.traffic.get(rank.index()).into_iter().flat_map(Traffic::inward)
    }

    /// What everything waited for, where [`ClusterConfig::waits`] asks for it; it is not noted any further.
    pub fn take_waits(&mut self) -> Option<Box<Waits>> {
        self.waits.take()
    }

    /// Have a worker post an operation, now or later.
    pub fn post(&mut self, at: Time, rank: Rank, post: Post) -> Result<(), ReplayError> {
        self.known(rank)?;
        self.write_down(at, Scripted::Post(rank, Box::new(post)));
        Ok(())
    }

    /// Have something go wrong, now or later.
    pub fn inject(&mut self, at: Time, fault: Fault) -> Result<(), ReplayError> {
        match fault {
            Fault::Crash(rank) | Fault::Leave(rank) => self.known(rank)?,
            Fault::Sever(one, other) => {
                self.known(one)?;
                self.known(other)?;
            }
            Fault::Rate(link, _) | Fault::Cut(link) | Fault::Restore(link) => {
                if !self.network.has_link(link) {
                    return Err(ReplayError::UnknownLink(link));
                }
                if self.config.network.shaping.is_some() {
                    return Err(ReplayError::ShapedLink(link));
                }
            }
        }
        self.write_down(at, Scripted::Fault(fault));
        Ok(())
    }

    /// Have all workers put a view in force, now or later: what they post after it belongs to it.
    pub fn install(&mut self, at: Time, view: Arc<View>) -> Result<(), ReplayError> {
        for rank in (0..self.engines.len() as u32).map(Rank) {
            self.install_on(at, rank, view.clone())?;
        }
        Ok(())
    }

    /// Have one worker put a view in force. All have to, each between the same two operations of its own.
    pub fn install_on(&mut self, at: Time, rank: Rank, view: Arc<View>) -> Result<(), ReplayError> {
        self.known(rank)?;
        let (now, next) = (self.engines.len(), view.size());
        if now != next {
            return Err(ReplayError::Members { now, next });
        }
        check_strategy(&view.settings.strategy)?;
        self.write_down(at, Scripted::View(rank, view));
        Ok(())
    }

    /// Go on until nothing happens any more.
    pub fn run(&mut self) -> Outcome {
        let mut finishes = Vec::new();
        self.run_with(|_, finish| finishes.push(finish));
        self.outcome(finishes)
    }

    /// Go on until nothing happens any more, and hand each operation that is over to `hook`, which may
    /// post more.
    pub fn run_with(&mut self, mut hook: impl FnMut(&mut Cluster<M>, Finish)) {
        while self.step() {
            while let Some(finish) = self.finished.pop_front() {
                hook(self, finish);
            }
        }
    }

    /// Let the next thing happen, with all that follows from it at once. False if there is nothing, or
    /// the bound on events or time is reached.
    pub fn step(&mut self) -> bool {
        if self.events >= self.config.most_events {
            return false;
        }
        let next = self.timeline.next_at();
        if next.is_some_and(|at| at > self.config.until) {
            return false;
        }
        if next.is_none_or(|at| at > self.now) && !self.network.is_settled() {
            self.network.settle(self.now, &mut self.timeline);
            self.follow_prompts();
            return true;
        }
        let Some(due) = self.timeline.pop() else { return false };
        self.now = due.at;
        let index = due.what & ((1 << KIND_SHIFT) - 1);
        match due.what - index {
            THREAD => self.thread_done(index),
            HANDS => self.hands_done(index),
            TICK => self.tick(index),
            SCRIPT => self.perform(index),
            _ => self.wire_due(index),
        }
        self.follow_prompts();
        true
    }

    /// Operations that are over and were not handed to anybody, when going step by step.
    pub fn take_finished(&mut self) -> impl Iterator<Item = Finish> + '_ {
        self.finished.drain(..)
    }

    /// What engines reported since this was last asked.
    pub fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Sum up a run whose finished operations the caller collected.
    pub fn outcome(&mut self, finishes: Vec<Finish>) -> Outcome {
        let mut stuck = Vec::new();
        for (rank, ops) in self.unfinished.iter().enumerate() {
            for (op, name) in ops.iter().enumerate() {
                let (rank, op) = (Rank(rank as u32), OpId(op as u32));
                stuck.extend(name.iter().map(|name| Stuck { rank, op, name: name.clone() }));
            }
        }
        Outcome {
            finishes,
            notices: self.take_notices(),
            stuck,
            cut_short: self.events >= self.config.most_events,
            events: self.events,
            messages: self.messages,
            end: self.last_event,
        }
    }

    /// Engine events handled so far.
    pub fn events(&self) -> u64 {
        self.events
    }

    /// Data frames that arrived so far.
    pub fn messages(&self) -> u64 {
        self.messages
    }

    fn known(&self, rank: Rank) -> Result<(), ReplayError> {
        if rank.index() < self.engines.len() {
            Ok(())
        } else {
            Err(ReplayError::UnknownWorker(rank))
        }
    }
}

/// Only a job that looks the same from every worker can be played by one of them.
fn check_symmetry(view: &View, topology: &Topology) -> Result<(), ReplayError> {
    let ring = view.settings.strategy.0 == "ring";
    let alone = view.host_indices().iter().enumerate().all(|(rank, host)| rank == *host as usize);
    let alike = topology.hosts.windows(2).all(|pair| pair[0].link == pair[1].link);
    if ring && alone && alike && topology.uplinks.is_empty() {
        Ok(())
    } else {
        Err(ReplayError::NotSymmetric)
    }
}
