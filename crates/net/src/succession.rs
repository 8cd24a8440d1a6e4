//! In an elastic job, the way from one view to the next: a thread of its own connects with everybody of the view to come.
//! Where others are lost, that is in the middle of a step, and the driver gets new links and a new engine at once; what
//! was in progress is the keeper's to recover. Where all gather before a step, they are kept until everybody has come.
//! This file decides nothing about who is in the view.

use crate::{
    control::News,
    error::{NetError, Result},
    handshake::Deadline,
    join::{
        Reunion,
        mesh::{Place, connect_all},
    },
    runtime::{
        crew::LostSink,
        driver::{Relics, Rigging},
        helm::{Helm, lock},
        mesh::{self, Transport},
    },
};
use paceline_job::{View, WorkerId};
use paceline_sync::{agreement::Ballot, engine::Engine};
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

/// How long survivors try to connect with each other before those who do not answer are taken for lost too.
const CONNECT: Duration = Duration::from_secs(20);

/// The same where all gather, and stand still for it: whoever does not answer is a newcomer, who can ask again.
const CONNECT_GATHERING: Duration = Duration::from_secs(5);

/// The pause before another attempt, where somebody was not as far yet.
const PAUSE: Duration = Duration::from_millis(2);

/// See the file's first paragraph.
pub(crate) struct Succession {
    target: Arc<Target>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Succession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Succession").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Target {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// The latest view that was decided on, if it is not in force yet.
    view: Option<Arc<View>>,
    /// What all gather for, if they do.
    gathering: Option<(Ballot, Arc<View>)>,
    /// Connected for that; without links where the view is without this worker.
    rigged: Option<(Ballot, Option<Rigging>)>,
    /// This worker takes no further part, and why.
    removed: Option<String>,
    /// What is left of views before, at most one for each that was entered since the thread last looked.
    relics: Vec<Relics>,
    stop: bool,
}

/// What the thread does next.
enum Next {
    Connect(Arc<View>),
    Gather(Ballot, Arc<View>),
    Dismiss(String),
    Clear(Vec<Relics>),
    Stop,
}

/// What the thread works with.
struct Builder {
    target: Arc<Target>,
    me: WorkerId,
    helm: Arc<Helm>,
    reunion: Arc<Reunion>,
    transport: Transport,
    accuse: LostSink,
}

impl Succession {
    /// Wait for views to come, on a thread of its own.
    pub(crate) fn start(
        me: WorkerId,
        helm: Arc<Helm>,
        reunion: Arc<Reunion>,
        transport: Transport,
        accuse: LostSink,
    ) -> Result<Succession> {
        let target = Arc::<Target>::default();
        let builder = Builder { target: target.clone(), me, helm, reunion, transport, accuse };
        let thread = thread::Builder::new()
            .name("paceline-succession".to_string())
            .spawn(move || builder.run())?;
        Ok(Succession { target, thread: Some(thread) })
    }

    /// To be told of views to come.
    pub(crate) fn sink(&self) -> impl Fn(News) + Send + Sync + use<> {
        let target = self.target.clone();
        move |news| {
            let mut state = lock(&target.state);
            match news {
                News::Follow(view) => state.view = Some(view),
                News::Gather(gathering) => {
                    let ballot = gathering.as_ref().map(|(ballot, _)| *ballot);
                    state.rigged.take_if(|(rigged, _)| Some(*rigged) != ballot);
                    state.gathering = gathering;
                }
                News::Apart(reason) => state.removed = Some(reason),
            }
            target.changed.notify_all();
        }
    }

    /// Wait until this worker is connected for a ballot. False if that came to nothing, or time is up.
    pub(crate) fn is_rigged(&self, ballot: Ballot, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        let mut state = lock(&self.target.state);
        loop {
            let current = state.gathering.as_ref().is_some_and(|(current, _)| *current == ballot);
            let left = deadline.saturating_duration_since(Instant::now());
            if !current || state.removed.is_some() || left.is_zero() {
                return false;
            }
            if state.rigged.as_ref().is_some_and(|(rigged, _)| *rigged == ballot) {
                return true;
            }
            let waited = self.target.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// The links of the view that all gathered for and enter now.
    pub(crate) fn take_rigging(&self, view: &View) -> Option<Rigging> {
        let mut state = lock(&self.target.state);
        state.gathering = None;
        let (_, rigging) = state.rigged.take()?;
        rigging.filter(|rigging| **rigging.engine.view() == *view)
    }

    /// The view before is left: clear away what it was worked in, when nothing else is to be done.
    pub(crate) fn leave_behind(&self, relics: Relics) {
        lock(&self.target.state).relics.push(relics);
        self.target.changed.notify_all();
    }

    pub(crate) fn stop(&mut self) {
        lock(&self.target.state).stop = true;
        self.target.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // If it panicked, that has been printed.
            let _ = thread.join();
        }
    }
}

impl Target {
    fn next(&self) -> Next {
        let mut state = lock(&self.state);
        loop {
            if state.stop {
                return Next::Stop;
            }
            if let Some(reason) = state.removed.take() {
                return Next::Dismiss(reason);
            }
            if let Some(view) = &state.view {
                return Next::Connect(view.clone());
            }
            match &state.gathering {
                Some((ballot, view)) if state.rigged.is_none() => {
                    return Next::Gather(*ballot, view.clone());
                }
                _ => {}
            }
            if !state.relics.is_empty() {
                return Next::Clear(std::mem::take(&mut state.relics));
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Whether a view is what comes next: by a ballot, or without one.
    fn is_wanted(&self, view: &View, ballot: Ballot) -> bool {
        let state = lock(&self.state);
        let wanted = match &state.view {
            Some(latest) => ballot == UNASKED && latest.version == view.version,
            None => state.gathering.as_ref().is_some_and(|(current, _)| *current == ballot),
        };
        !state.stop && state.removed.is_none() && wanted
    }
}

/// No ballot: nobody was asked.
const UNASKED: Ballot = Ballot(0);

impl Builder {
    fn run(&self) {
        // Each turn is bounded by the time to connect, and puts a view in force, finds another, or accuses somebody.
        loop {
            let (view, ballot) = match self.target.next() {
                Next::Stop => return,
                Next::Connect(view) => (view, UNASKED),
                Next::Gather(ballot, view) => (view, ballot),
                Next::Clear(relics) => {
                    drop(relics);
                    continue;
                }
                Next::Dismiss(reason) => {
                    self.helm.with(|driver| driver.dismiss(&reason));
                    self.helm.stir();
                    continue;
                }
            };
            match self.connect(&view, ballot) {
                Ok(rigging) => self.put_in_place(&view, ballot, rigging),
                Err(NetError::PeersMissing { missing, .. })
                    if self.target.is_wanted(&view, ballot) =>
                {
                    for rank in missing {
                        (self.accuse)(view.workers[rank.index()].id, view.version);
                    }
                }
                // Somebody is not as far, or further: see what is wanted now.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn put_in_place(&self, view: &View, ballot: Ballot, rigging: Option<Rigging>) {
        if ballot != UNASKED {
            let mut state = lock(&self.target.state);
            if state.gathering.as_ref().is_some_and(|(current, _)| *current == ballot) {
                state.rigged = Some((ballot, rigging));
                self.target.changed.notify_all();
            }
            return;
        }
        if let Some(rigging) = rigging {
            let relics = self.helm.with(|driver| driver.succeed(rigging));
            self.helm.stir();
            drop(relics);
        }
        let mut state = lock(&self.target.state);
        state.view.take_if(|latest| latest.version == view.version);
    }

    /// Links and an engine of a view; none where it is without this worker.
    fn connect(&self, view: &Arc<View>, ballot: Ballot) -> Result<Option<Rigging>> {
        let Some(rank) = view.rank_of(self.me) else { return Ok(None) };
        let Reunion { job, listener, config } = &*self.reunion;
        let place = Place { job: job.clone(), rank, view: (**view).clone(), attempt: ballot };
        let watch =
            |_: &dyn Fn(paceline_job::Rank) -> bool| match self.target.is_wanted(view, ballot) {
                true => Ok(()),
                false => Err(NetError::CoordinatorGone),
            };
        let limit = if ballot == UNASKED { CONNECT } else { CONNECT_GATHERING };
        let deadline = Deadline::after(limit);
        let peers = connect_all(&place, listener.try_clone()?, config, watch, deadline)?;
        let store = mesh::create_store(view, rank)?;
        let links = mesh::link(view, rank, self.transport, peers, &store)?;
        let engine = Engine::new(rank, view.clone())?;
        Ok(Some(Rigging { engine, links, store }))
    }
}
