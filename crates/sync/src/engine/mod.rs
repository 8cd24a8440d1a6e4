//! The engine: one worker's part in all collectives, as a deterministic state machine.
//!
//! Events go in, actions come out ([`crate::event`]); time is an argument. It owns no memory of
//! tensors, no socket, no clock and no thread, so that the same object runs a real worker and a
//! worker in virtual time. The rooms: `lanes` runs programs, `receive` decides where arriving bytes
//! go, `control` answers frames without any, `outgoing` decides whether departing ones may go, `departure` deals with workers that are gone, `finals` says what is final already,
//! `stall` watches for lack of progress.
//!
//! Bounds: scratch that waits for its turn is at most one message per receive instruction of the
//! chunks in progress; eager scratch is at most `eager` bytes per peer; names are kept for as long as
//! the engine lives, so a job should reuse them (the use count tells uses apart).

mod chunk;
mod control;
mod departure;
mod finals;
mod lanes;
mod outgoing;
mod peers;
mod receive;
mod scratch;
mod stall;

use crate::{
    event::{Action, Event, OpError, OpId, Post, Work, name_hash},
    frame::{Header, Kind, OpKey, TensorUse},
    program::{Member, Site, Strategy},
    resolver::Resolver,
    scheduler::Scheduler,
    slab::{Key, Slab},
    strategy::{AutoTable, UnknownStrategy},
};
use chunk::{Chunk, ChunkSlot};
use departure::{Abort, Blame};
use outgoing::Sending;
use paceline_job::{Rank, Time, View};
use peers::Peers;
use receive::{Eager, Receiving};
use rustc_hash::FxHashMap;
use scratch::Scratch;
use stall::Stall;
use std::{collections::VecDeque, sync::Arc};

/// How many operations that failed elsewhere before they were posted here are remembered, and how many
/// that failed here.
const ABORTED_KEPT: usize = 1024;

/// See the file's first paragraph.
#[derive(Debug)]
pub struct Engine {
    rank: Rank,
    view: Arc<View>,
    hosts: Arc<[u32]>,
    resolver: Resolver,
    scheduler: Scheduler,
    peers: Peers,
    /// Indexed by `OpId`. Boxed: an operation is large and most places are empty.
    ops: Vec<Option<Box<Op>>>,
    by_use: FxHashMap<TensorUse, OpId>,
    /// The entry of `by_use` that a message asked for last: messages of one tensor come in a row.
    recent: Option<(OpKey, OpId)>,
    names: FxHashMap<u64, NameUse>,
    chunks: Slab<Chunk>,
    sending: Slab<Sending>,
    receiving: Slab<Receiving>,
    bufs: Scratch,
    /// Frames that arrived before their operation was posted.
    eager: FxHashMap<TensorUse, Vec<Eager>>,
    /// Peers that wait to hear that an operation was posted.
    wanted: FxHashMap<TensorUse, Vec<Rank>>,
    /// Operations that failed elsewhere before they were posted here; the oldest are forgotten.
    aborted: VecDeque<(TensorUse, Abort)>,
    /// Operations that failed here: messages for them may be under way still. The oldest are forgotten.
    failed: VecDeque<TensorUse>,
    last_posted: Arc<str>,
    /// Lost workers in the order they were lost, and how.
    lost: Vec<(Rank, String)>,
    /// Workers that left in good order.
    left: Vec<Rank>,
    blame: Blame,
}

#[derive(Debug)]
struct NameUse {
    name: Arc<str>,
    uses: u32,
}

/// Laid out as written: what every message asks comes first, and fills two cache lines. In virtual time
/// thousands of engines take turns, and each finds its memory in a far cache.
#[derive(Debug)]
#[repr(C, align(64))]
struct Op {
    chunks: Vec<ChunkSlot>,
    key: OpKey,
    /// Elements as told to peers.
    told_elements: u64,
    last_progress: Time,
    error: Option<Arc<OpError>>,
    signature: u32,
    /// Sends, receives and local work that a driver has in hand: memory is not ours to give back before.
    in_hand: u32,
    unfinished: u32,
    /// First chunk that the scheduler has not looked at.
    next_chunk: u32,
    /// Members that said they have posted it.
    noticed: MemberSet,
    /// The scheduler's name for it; unlike its id it is never reused.
    ticket: u64,
    post: Post,
    site: Site,
    strategy: Arc<dyn Strategy>,
    partition_elements: u64,
    /// The view it was posted in.
    view: Arc<View>,
    /// Members that were asked to say that they have posted it.
    asked: MemberSet,
    stall: Stall,
}

/// A few members of a group, sorted: mostly none, and then asking touches no memory.
#[derive(Debug, Default)]
struct MemberSet(Vec<Member>);

impl MemberSet {
    fn contains(&self, member: Member) -> bool {
        !self.0.is_empty() && self.0.binary_search(&member).is_ok()
    }

    /// Whether it was not there yet.
    fn insert(&mut self, member: Member) -> bool {
        let place = self.0.binary_search(&member);
        if let Err(place) = place {
            self.0.insert(place, member);
        }
        place.is_err()
    }
}

/// Counters for metrics and tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Operations posted and not finished.
    pub operations: usize,
    /// Bytes handed to the transport and not delivered.
    pub in_transport_bytes: u64,
    /// Scratch in use.
    pub scratch_bytes: u64,
    /// The most scratch ever in use.
    pub peak_scratch_bytes: u64,
}

impl Engine {
    /// An engine for `rank` of the view, idle. Fails if the view names a strategy nobody knows.
    pub fn new(rank: Rank, view: Arc<View>) -> Result<Engine, UnknownStrategy> {
        let (hosts, resolver) = (view.host_indices().into(), Resolver::for_view(&view)?);
        Ok(Engine::with(rank, view, hosts, resolver))
    }

    /// Engines for all ranks of the view. They share what follows from the view alone, which is most of
    /// their memory where one process plays a thousand workers.
    pub fn for_all(view: &Arc<View>) -> Result<Vec<Engine>, UnknownStrategy> {
        let hosts: Arc<[u32]> = view.host_indices().into();
        let resolver = Resolver::for_view(view)?;
        let ranks = (0..view.size() as u32).map(Rank);
        Ok(ranks
            .map(|rank| Engine::with(rank, view.clone(), hosts.clone(), resolver.fresh()))
            .collect())
    }

    fn with(rank: Rank, view: Arc<View>, hosts: Arc<[u32]>, resolver: Resolver) -> Engine {
        Engine {
            rank,
            hosts,
            resolver,
            scheduler: Scheduler::default(),
            peers: Peers::new(view.size(), view.settings.eager.0),
            view,
            ops: Vec::new(),
            by_use: FxHashMap::default(),
            recent: None,
            names: FxHashMap::default(),
            chunks: Slab::default(),
            sending: Slab::default(),
            receiving: Slab::default(),
            bufs: Scratch::default(),
            eager: FxHashMap::default(),
            wanted: FxHashMap::default(),
            aborted: VecDeque::new(),
            failed: VecDeque::new(),
            last_posted: "".into(),
            lost: Vec::new(),
            left: Vec::new(),
            blame: Blame::default(),
        }
    }

    /// The rank this engine plays.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The view that operations posted now belong to.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The key that the next operation of this name in this group will have.
    pub fn next_key(&self, name: &str, group: Option<&[Rank]>) -> OpKey {
        let name = name_hash(name, group);
        let uses = self.names.get(&name).map_or(0, |known| known.uses);
        OpKey { name, uses, view: self.view.version }
    }

    /// The operation, and the chunk of it, that local work belongs to while it is under way.
    pub fn part_of(&self, work: Work) -> Option<(OpId, u32)> {
        self.chunks.get(work.chunk).map(|chunk| (chunk.op, chunk.index))
    }

    /// Which strategy all-reduces of all workers use, by size, and why.
    pub fn choices(&self) -> AutoTable {
        self.resolver.table(&self.hosts)
    }

    /// What the engine carries right now.
    pub fn load(&self) -> Load {
        Load {
            operations: self.by_use.len(),
            in_transport_bytes: self.scheduler.in_transport_bytes(),
            scratch_bytes: self.bufs.in_use_bytes(),
            peak_scratch_bytes: self.bufs.peak_bytes(),
        }
    }

    /// Take one event and append what has to be done.
    pub fn handle(&mut self, now: Time, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Post(post) => self.post(now, *post, out),
            Event::Incoming { from, header } => self.incoming(now, from, header, out),
            Event::Arrived { token } => self.arrived(now, token, out),
            Event::Control { from, header, payload } => {
                self.control(now, from, header, &payload, out)
            }
            Event::Delivered { token } => self.delivered(now, token, out),
            Event::Worked { token } => self.worked(now, token, out),
            Event::PeerLost { peer, reason } => self.peer_lost(peer, reason, out),
            Event::PeerLeft { peer } => self.peer_left(now, peer, out),
            Event::View(view) => self.install(view),
            Event::Tick => self.tick(now, out),
        }
        self.start_chunks(out);
    }

    /// Operations in progress keep the view they were posted in. The eager bytes stay those of the first
    /// view: they are an account between two workers, who install a view at different times.
    fn install(&mut self, view: Arc<View>) {
        assert!(view.version > self.view.version, "views go forward");
        assert_eq!(view.size(), self.view.size(), "a change of members needs new connections");
        self.hosts = view.host_indices().into();
        self.resolver =
            Resolver::for_view(&view).expect("a view is checked before it is agreed upon");
        self.view = view;
    }

    fn post(&mut self, now: Time, post: Post, out: &mut Vec<Action>) {
        let id = post.op;
        let invalid = |reason: String| {
            let name = post.name.clone();
            Action::Fail(id, Arc::new(OpError::Invalid { name, reason }))
        };
        let place = id.0 as usize;
        if self.ops.len() <= place {
            self.ops.resize_with(place + 1, || None);
        }
        assert!(self.ops[place].is_none(), "an OpId is reused only after Complete or Fail");

        let group = post.group.as_deref();
        let me = match group {
            None => Some(self.rank.0),
            Some(ranks) => ranks.iter().position(|rank| *rank == self.rank).map(|at| at as u32),
        };
        let Some(me) = me else {
            return out.push(invalid("this worker is not in the operation's group".into()));
        };
        let outside = |rank: &&Rank| rank.index() >= self.view.size();
        if let Some(rank) = group.and_then(|ranks| ranks.iter().find(outside)) {
            return out
                .push(invalid(format!("its group names worker {rank}, which does not exist")));
        }
        if let Some(rank) = group.and_then(|ranks| named_twice(ranks, self.view.size())) {
            return out.push(invalid(format!("its group names worker {rank} twice")));
        }
        let hosts = match group {
            None => self.hosts.clone(),
            Some(ranks) => ranks.iter().map(|rank| self.hosts[rank.index()]).collect(),
        };
        if let Err(reason) = post.collective.validate_for(me, hosts.len() as u32) {
            return out.push(invalid(reason));
        }

        let hash = name_hash(&post.name, group);
        let known =
            self.names.entry(hash).or_insert_with(|| NameUse { name: post.name.clone(), uses: 0 });
        if known.name != post.name {
            let reason = format!("its name collides with `{}`; rename one of them", known.name);
            return out.push(invalid(reason));
        }
        let key = OpKey { name: hash, uses: known.uses, view: self.view.version };
        known.uses += 1;
        self.last_posted = post.name.clone();

        let site = Site { hosts, me, step: u64::from(key.uses), seed: hash };
        let element_bytes = post.dtype.size() as u64;
        let partition_elements = (self.view.settings.partition.0 / element_bytes).max(1);
        let bytes = post.collective.elements() * element_bytes;
        let strategy = self.resolver.strategy(bytes, &site, group.is_some(), post.reduce);
        let chunks = post.collective.chunks(&site, partition_elements);
        let op = Op {
            key,
            ticket: self.scheduler.post(post.priority, id, self.view.settings.credit.0),
            view: self.view.clone(),
            strategy,
            partition_elements,
            signature: fold(post.collective.signature()),
            told_elements: post.collective.agreed_elements(),
            chunks: vec![ChunkSlot::Waiting; chunks as usize],
            next_chunk: 0,
            unfinished: chunks,
            in_hand: 0,
            noticed: MemberSet::default(),
            asked: MemberSet::default(),
            last_progress: now,
            stall: Stall::default(),
            error: None,
            site,
            post,
        };
        self.ops[place] = Some(Box::new(op));
        let tensor_use = key.tensor_use();
        self.by_use.insert(tensor_use, id);
        for rank in self.unwant(tensor_use) {
            self.control_frame(rank, Header::control(Kind::Notice, key), &[], out);
        }
        // Before the messages that wait for it: they could finish it, or fail it a second time. If it
        // fails here, they are dropped.
        if let Some(at) = self.aborted.iter().position(|(aborted, ..)| *aborted == tensor_use)
            && let Some((_, abort)) = self.aborted.remove(at)
        {
            self.fail_aborted(id, abort, out);
        } else if chunks == 0 {
            self.finish(id, out);
        }
        self.fail_without_gone(id, out);
        self.take_eager(now, id, tensor_use, out);
    }

    fn remember_aborted(&mut self, tensor_use: TensorUse, abort: Abort) {
        if self.aborted.len() == ABORTED_KEPT {
            self.aborted.pop_front();
        }
        self.aborted.push_back((tensor_use, abort));
    }

    /// Start what the scheduler allows. Bounded by the chunks that are posted.
    fn start_chunks(&mut self, out: &mut Vec<Action>) {
        while let Some((ticket, id)) = self.scheduler.next() {
            let op = match &mut self.ops[id.0 as usize] {
                Some(op) if op.ticket == ticket && op.error.is_none() => op,
                _ => {
                    self.scheduler.exhausted();
                    continue;
                }
            };
            let index = op.next_chunk;
            op.next_chunk += 1;
            if op.next_chunk as usize == op.chunks.len() {
                self.scheduler.exhausted();
            }
            if matches!(op.chunks[index as usize], ChunkSlot::Waiting) {
                self.start_chunk(id, index, out);
            }
        }
    }

    /// The operation in progress that a key names, in this view or another.
    fn posted(&self, key: &OpKey) -> Option<OpId> {
        self.by_use.get(&key.tensor_use()).copied()
    }

    fn op(&mut self, id: OpId) -> &mut Op {
        self.ops[id.0 as usize].as_mut().expect("chunks and tokens name live operations")
    }

    /// Give a finished operation back, or a failed one once no driver holds its memory.
    fn finish(&mut self, id: OpId, out: &mut Vec<Action>) {
        let op = self.op(id);
        if op.in_hand > 0 {
            return;
        }
        if op.error.is_none() && op.unfinished > 0 {
            return;
        }
        let (key, error) = (op.key, op.error.take());
        self.ops[id.0 as usize] = None;
        self.by_use.remove(&key.tensor_use());
        self.recent = self.recent.filter(|(_, recent)| *recent != id);
        out.push(match error {
            None => Action::Complete(id),
            Some(error) => Action::Fail(id, error),
        });
    }

    /// Stop an operation. Its memory goes back when the driver no longer holds any of it.
    fn fail(&mut self, id: OpId, error: OpError, out: &mut Vec<Action>) {
        let op = self.op(id);
        if op.error.is_some() {
            return;
        }
        op.error = Some(Arc::new(error));
        let tensor_use = op.key.tensor_use();
        if self.failed.len() == ABORTED_KEPT {
            self.failed.pop_front();
        }
        self.failed.push_back(tensor_use);
        let op = self.op(id);
        let running: Vec<Key> = op
            .chunks
            .iter()
            .filter_map(|slot| match slot {
                ChunkSlot::Running(chunk) => Some(*chunk),
                _ => None,
            })
            .collect();
        op.chunks.iter_mut().for_each(|slot| *slot = ChunkSlot::Done);
        for chunk in running {
            self.drop_chunk(chunk, out);
        }
        self.drop_blocked(id, out);
        self.unwant(tensor_use);
        self.finish(id, out);
    }

    /// Fail an operation and tell its other members, so that nobody waits for it.
    fn abort(&mut self, id: OpId, error: OpError, out: &mut Vec<Action>) {
        let op = self.op(id);
        if op.error.is_some() {
            return;
        }
        let header = Header::control(Kind::Abort, op.key);
        let text = error.to_string();
        self.tell_members(id, header, &text, out);
        self.fail(id, error, out);
    }

    fn tell_members(&self, id: OpId, header: Header, text: &str, out: &mut Vec<Action>) {
        for rank in self.members(id).filter(|rank| *rank != self.rank) {
            self.control_frame(rank, header, text.as_bytes(), out);
        }
    }

    /// The ranks of an operation's group.
    fn members(&self, id: OpId) -> std::vec::IntoIter<Rank> {
        let op = self.ops[id.0 as usize].as_ref().expect("asked about live operations only");
        let ranks: Vec<Rank> = match &op.post.group {
            None => (0..op.site.members()).map(Rank).collect(),
            Some(ranks) => ranks.to_vec(),
        };
        ranks.into_iter()
    }
}

/// The first rank of a group that comes again; all are below `size`.
fn named_twice(ranks: &[Rank], size: usize) -> Option<Rank> {
    let mut seen = vec![false; size];
    ranks.iter().copied().find(|rank| std::mem::replace(&mut seen[rank.index()], true))
}

/// A 64-bit signature as a header carries it.
fn fold(signature: u64) -> u32 {
    (signature ^ (signature >> 32)) as u32
}
