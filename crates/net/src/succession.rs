//! In an elastic job, from one view to the next in the middle of a step: a thread of its own connects with everybody of
//! the view that the coordinator decided on, and gives the driver new links and a new engine. What was in progress is the
//! keeper's to recover. This file decides nothing about who is in the view.

use crate::{
    error::{NetError, Result},
    handshake::Deadline,
    join::{
        Reunion,
        mesh::{Place, connect_all},
    },
    runtime::{
        crew::LostSink,
        helm::{Helm, lock},
        mesh::{self, Transport},
    },
};
use paceline_job::{View, WorkerId};
use paceline_sync::engine::Engine;
use std::{
    fmt,
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

/// How long survivors try to connect with each other before those who do not answer are taken for lost too.
const CONNECT: Duration = Duration::from_secs(20);

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
    /// This worker takes no further part, and why.
    removed: Option<String>,
    stop: bool,
}

/// What the thread does next.
enum Next {
    Connect(Arc<View>),
    Dismiss(String),
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

    /// To be told of views that come in force, or why there is none for this worker.
    pub(crate) fn sink(&self) -> impl Fn(Result<Arc<View>, String>) + Send + Sync + use<> {
        let target = self.target.clone();
        move |news| {
            let mut state = lock(&target.state);
            match news {
                Ok(view) => state.view = Some(view),
                Err(reason) => state.removed = Some(reason),
            }
            target.changed.notify_all();
        }
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
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn is_wanted(&self, view: &View) -> bool {
        let state = lock(&self.state);
        !state.stop
            && state.removed.is_none()
            && state.view.as_ref().is_some_and(|latest| latest.version == view.version)
    }
}

impl Builder {
    fn run(&self) {
        // Each turn is bounded by the time to connect, and puts a view in force, finds another, or accuses somebody.
        loop {
            let view = match self.target.next() {
                Next::Stop => return,
                Next::Connect(view) => view,
                Next::Dismiss(reason) => {
                    self.helm.with(|driver| driver.dismiss(&reason));
                    self.helm.stir();
                    continue;
                }
            };
            match self.connect(&view) {
                Ok(()) => {
                    let mut state = lock(&self.target.state);
                    state.view.take_if(|latest| latest.version == view.version);
                }
                Err(NetError::PeersMissing { missing, .. }) if self.target.is_wanted(&view) => {
                    for rank in missing {
                        (self.accuse)(view.workers[rank.index()].id, view.version);
                    }
                }
                // Somebody is not as far, or further: see what is wanted now.
                Err(_) => thread::sleep(PAUSE),
            }
        }
    }

    fn connect(&self, view: &Arc<View>) -> Result<()> {
        let Some(rank) = view.rank_of(self.me) else { return Ok(()) };
        let Reunion { job, listener, config } = &*self.reunion;
        let place = Place { job: job.clone(), rank, view: (**view).clone() };
        let watch = |_: &dyn Fn(paceline_job::Rank) -> bool| match self.target.is_wanted(view) {
            true => Ok(()),
            false => Err(NetError::CoordinatorGone),
        };
        let deadline = Deadline::after(CONNECT);
        let peers = connect_all(&place, listener.try_clone()?, config, watch, deadline)?;
        let store = mesh::create_store(view, rank)?;
        let links = mesh::link(view, rank, self.transport, peers, &store)?;
        let engine = Engine::new(rank, view.clone())?;
        self.helm.with(|driver| driver.succeed(engine, links, store));
        self.helm.stir();
        Ok(())
    }
}
