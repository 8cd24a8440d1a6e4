//! A worker's operations in an elastic job: the [`Keeper`] decides what of them the engine of the view in force works on,
//! this file knows the memory behind it, keeps copies of results that others may need, and tells callers how their
//! operations ended.

use super::memory::OpMemory;
use crate::handle::{Completion, Outcome};
use paceline_job::{Rank, View, ViewVersion, WorkerId};
use paceline_sync::{
    engine::Engine,
    event::{OpId, Post},
    recovery::{Account, Keeper, Order, Source, Ticket},
};
use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{Arc, Mutex},
};

/// Told that a worker of a view cannot be reached.
pub(crate) type LostSink = Box<dyn Fn(WorkerId, ViewVersion) + Send>;

/// See the file's first paragraph.
pub(crate) struct Crew {
    keeper: Keeper,
    lent: BTreeMap<Ticket, Lent>,
    /// Bounded by the results of two steps.
    retained: BTreeMap<Ticket, Retained>,
    /// Memory of the copy given up last, for the next one: mostly of the same tensor's results.
    spare: Option<Box<[u8]>>,
    exchanges: BTreeMap<OpId, (Vec<u8>, Vec<u8>)>,
    tickets: u64,
    orders: VecDeque<Order>,
    lost: LostSink,
    accounts: Arc<Mutex<Vec<Account>>>,
    /// Whether this worker takes no further part: then nothing that is open comes to its end.
    dismissed: bool,
}

struct Lent {
    memory: OpMemory,
    element_bytes: usize,
    output_bytes: usize,
    completion: Arc<Completion>,
}

/// A result, and how wide its elements are.
struct Retained {
    bytes: Box<[u8]>,
    element_bytes: usize,
}

/// What the driver does next for the keeper.
pub(crate) enum Task {
    /// Post this to the engine, on this memory.
    Post(Post, OpMemory),
    /// This operation of the caller's is over.
    Over(Arc<Completion>, Outcome),
}

impl fmt::Debug for Crew {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Crew").field("keeper", &self.keeper).finish_non_exhaustive()
    }
}

// SAFETY: the memory of exchanges is this crew's own, and callers promise theirs for any thread.
unsafe impl Send for Crew {}

impl Crew {
    pub(crate) fn new(
        me: WorkerId,
        view: Arc<View>,
        lost: LostSink,
        accounts: Arc<Mutex<Vec<Account>>>,
    ) -> Crew {
        Crew {
            keeper: Keeper::new(me, view),
            lent: BTreeMap::new(),
            retained: BTreeMap::new(),
            spare: None,
            exchanges: BTreeMap::new(),
            tickets: 0,
            orders: VecDeque::new(),
            lost,
            accounts,
            dismissed: false,
        }
    }

    pub(crate) fn keeper(&mut self) -> &mut Keeper {
        &mut self.keeper
    }

    /// Whether nothing is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.dismissed || self.keeper.is_idle()
    }

    /// Whether a step may begin, as far as operations are concerned.
    pub(crate) fn may_begin(&self, step: u64) -> bool {
        self.dismissed || self.keeper.may_begin(step)
    }

    /// Whether this view or a later one is in force here.
    pub(crate) fn is_in(&self, version: ViewVersion) -> bool {
        self.dismissed || self.keeper.view().version >= version
    }

    pub(crate) fn tell_lost(&self, view: &View, peer: Rank) {
        if let Some(worker) = view.workers.get(peer.index()) {
            (self.lost)(worker.id, view.version);
        }
    }

    pub(crate) fn post(
        &mut self,
        post: Post,
        me: Rank,
        memory: OpMemory,
        completion: Arc<Completion>,
    ) {
        let ticket = Ticket(self.tickets);
        self.tickets += 1;
        let element_bytes = post.dtype.size();
        let output_bytes = post.collective.output_len(me.0) as usize * element_bytes;
        self.lent.insert(ticket, Lent { memory, element_bytes, output_bytes, completion });
        self.keep(|keeper, out| keeper.post(ticket, post, out));
    }

    /// An engine's operation is over.
    pub(crate) fn over(&mut self, op: OpId, outcome: Outcome) {
        match (outcome, self.exchanges.remove(&op)) {
            (Ok(()), None) => self.keep(|keeper, out| keeper.completed(op, out)),
            (Ok(()), Some((_, brought))) => {
                // A report that cannot be read is a broken peer's; without it nothing is recovered before that is gone.
                let read = self.keep(|keeper, out| keeper.exchanged(op, &brought, out));
                debug_assert!(read.is_ok(), "workers of one version write reports alike");
            }
            (Err(error), _) => self.keep(|keeper, out| keeper.failed(op, error, out)),
        }
    }

    /// Other workers are in force; the engine is the one before.
    pub(crate) fn succeed(&mut self, view: Arc<View>, engine: &Engine) {
        self.exchanges.clear();
        self.keep(|keeper, out| keeper.succeed(view, |op| engine.finals(op), out));
    }

    /// Others are in the view from this step on, and nothing is in progress.
    pub(crate) fn replace(&mut self, view: Arc<View>, step: u64) {
        self.exchanges.clear();
        self.keep(|keeper, out| keeper.replace(view, step, out));
    }

    /// This worker takes no further part: everything fails.
    pub(crate) fn dismiss(&mut self, error: impl Fn() -> Outcome) -> Vec<Task> {
        self.dismissed = true;
        self.retained.clear();
        let lent = std::mem::take(&mut self.lent);
        lent.into_values().map(|lent| Task::Over(lent.completion, error())).collect()
    }

    fn keep<R>(&mut self, act: impl FnOnce(&mut Keeper, &mut Vec<Order>) -> R) -> R {
        let mut orders = Vec::new();
        let result = act(&mut self.keeper, &mut orders);
        self.orders.extend(orders);
        result
    }

    /// The next thing to do. What needs nobody else is done here.
    pub(crate) fn next(&mut self) -> Option<Task> {
        loop {
            let Some(order) = self.orders.pop_front() else {
                self.spare = None;
                return None;
            };
            match order {
                Order::Post(post, source) => {
                    let memory = self.memory(source);
                    return Some(Task::Post(post, memory));
                }
                Order::Exchange { post, input, output_bytes } => {
                    let mut buffers = (input, vec![0; output_bytes]);
                    let memory = OpMemory {
                        input: buffers.0.as_ptr(),
                        output: buffers.1.as_mut_ptr(),
                        bytes: output_bytes as u64,
                    };
                    let op = post.op;
                    // Moving a vector does not move what it holds.
                    self.exchanges.insert(op, buffers);
                    return Some(Task::Post(post, memory));
                }
                Order::Retain(ticket) => {
                    if let Some(lent) = self.lent.get(&ticket) {
                        let (output, bytes) = (lent.memory.output, lent.output_bytes);
                        // SAFETY: the caller lent so many bytes, all of them final and nobody's to write.
                        let result = unsafe { std::slice::from_raw_parts(output, bytes) };
                        let copy = match self.spare.take() {
                            Some(mut spare) if spare.len() == bytes => {
                                spare.copy_from_slice(result);
                                spare
                            }
                            _ => result.into(),
                        };
                        let kept = Retained { bytes: copy, element_bytes: lent.element_bytes };
                        self.retained.insert(ticket, kept);
                    }
                }
                Order::Release(ticket) => {
                    self.spare = self.retained.remove(&ticket).map(|kept| kept.bytes);
                }
                Order::Done(ticket) => {
                    if let Some(lent) = self.lent.remove(&ticket) {
                        return Some(Task::Over(lent.completion, Ok(())));
                    }
                }
                Order::Fail(ticket, error) => {
                    if let Some(lent) = self.lent.remove(&ticket) {
                        return Some(Task::Over(lent.completion, Err(error)));
                    }
                }
                Order::Recovered(account) => super::helm::lock(&self.accounts).push(account),
            }
        }
    }

    fn memory(&mut self, source: Source) -> OpMemory {
        match source {
            Source::Retained(ticket, at) => {
                let retained = self.retained.get_mut(&ticket).expect("kept until it is released");
                let bytes = retained.bytes.len() as u64;
                let offset = bytes_before(at, retained.element_bytes);
                let place = retained.bytes.as_mut_ptr().wrapping_add(offset);
                OpMemory { input: place, output: place, bytes }
            }
            Source::Caller(ticket, at) | Source::Output(ticket, at) => {
                let lent = self.lent.get(&ticket).expect("lent until it is over");
                let offset = bytes_before(at, lent.element_bytes);
                let output = lent.memory.output.wrapping_add(offset);
                let input = match source {
                    Source::Caller(..) => lent.memory.input.wrapping_add(offset),
                    _ => output.cast_const(),
                };
                OpMemory { input, output, bytes: lent.memory.bytes }
            }
        }
    }
}

fn bytes_before(elements: u64, element_bytes: usize) -> usize {
    elements as usize * element_bytes
}
