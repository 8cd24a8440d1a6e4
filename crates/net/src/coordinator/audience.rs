//! People who watch a job, and what they may change of it: what the coordinator hears is passed on to an [`Observer`], and
//! other settings or a rest for tuners can be asked for. How it is shown is not known here.

use super::{Coordinator, CoordinatorMessage, Fate, Service, Sighting, elastic::Ask, tell};
use crate::error::{NetError, Result};
use paceline_job::{Rank, Settings, View, ViewVersion, WorkerId};
use paceline_sync::agreement::Change;
use std::{fmt, sync::Arc};

/// Something that the coordinator heard or decided.
#[derive(Clone, Debug, PartialEq)]
pub enum Observation {
    /// This view is in force, from this step on.
    View {
        /// Workers and settings.
        view: Box<View>,
        /// The step.
        since: u64,
    },
    /// A worker of the view is gone, or one that was to be.
    Gone {
        /// Who.
        id: WorkerId,
        /// Its place in the view, if it had one.
        rank: Option<Rank>,
        /// How.
        fate: Fate,
    },
    /// What a worker saw of its last steps.
    Seen {
        /// Who.
        id: WorkerId,
        /// What.
        sighting: Box<Sighting>,
    },
    /// What a tuner or a policy decided, in its own words.
    Decided {
        /// At which worker.
        id: WorkerId,
        /// A line of JSON, or a sentence.
        text: String,
    },
}

/// Told what happens. While a coordinator has one, workers show what they do.
#[derive(Clone)]
pub struct Observer(Arc<dyn Fn(Observation) + Send + Sync>);

impl Observer {
    /// Call this, on the coordinator's thread: it must not wait.
    pub fn new(told: impl Fn(Observation) + Send + Sync + 'static) -> Observer {
        Observer(Arc::new(told))
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}

/// What the coordinator's thread remembers for its audience.
#[derive(Debug, Default)]
pub(super) struct Audience {
    /// The view that was last told.
    told: Option<ViewVersion>,
    paused: bool,
}

impl Coordinator {
    /// The settings in force; none while the first workers gather.
    pub fn settings(&self) -> Result<Option<Settings>> {
        self.ask(Ask::Settings)
    }

    /// Ask all workers for other settings. They are in force once all have promised, which an [`Observer`] is told.
    pub fn change(&self, settings: Settings) -> Result<()> {
        self.ask(|answer| Ask::Change(settings, answer))?
    }

    /// Let tuners rest, or go on.
    pub fn pause_tuning(&self, paused: bool) -> Result<()> {
        self.ask(|answer| Ask::Pause(paused, answer))
    }
}

impl Service {
    pub(super) fn observe(&self, observation: impl FnOnce() -> Observation) {
        if let Some(Observer(told)) = &self.config.observer {
            told(observation());
        }
    }

    /// Tell of the view if it is another, and remember who takes part.
    pub(super) fn observe_view(&mut self) {
        let Some(registrar) = &self.registrar else { return };
        let version = registrar.view().version;
        if self.audience.told.replace(version) == Some(version) {
            return;
        }
        let (view, since) = (Box::new(registrar.view().clone()), registrar.since());
        self.count(&view);
        self.observe(|| Observation::View { view, since });
    }

    /// Somebody is in the job: say whether it is watched.
    pub(super) fn brief(&mut self, index: usize) {
        let channel = &mut self.members[index].channel;
        if self.config.observer.is_some() {
            tell(channel, &CoordinatorMessage::Watch);
        }
        if self.audience.paused {
            tell(channel, &CoordinatorMessage::Tuning { paused: true });
        }
    }

    pub(super) fn change(&mut self, settings: Settings) -> Result<()> {
        if self.registrar.is_none() {
            return Err(NetError::NotBegun);
        }
        let mut outcome = Ok(());
        let change = Change::Settings(settings);
        self.register(|registrar, out| outcome = registrar.propose(change, out));
        Ok(outcome?)
    }

    pub(super) fn pause(&mut self, paused: bool) {
        self.audience.paused = paused;
        for member in self.members.iter_mut().filter(|member| member.id().is_some()) {
            tell(&mut member.channel, &CoordinatorMessage::Tuning { paused });
        }
    }
}
