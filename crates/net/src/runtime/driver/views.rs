//! How a driver comes from one view to the next: other settings under the same links, or other links and another engine.
//! Which view comes, and when, is decided elsewhere.

use super::{AsleepWord, Copies, Driver, Link};
use crate::runtime::memory::{Memory, Store};
use paceline_job::View;
use paceline_sync::{
    engine::Engine,
    event::{Event, OpError},
};
use std::{fmt, sync::Arc};

/// What it takes to work in a view: an engine that has begun nothing, links to everybody in it, and memory they share.
pub(crate) struct Rigging {
    pub(crate) engine: Engine,
    pub(crate) links: Vec<Option<Link>>,
    pub(crate) store: Arc<Store>,
}

impl fmt::Debug for Rigging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rigging").field("view", &self.engine.view().version).finish_non_exhaustive()
    }
}

impl Driver {
    /// Other settings are in force from this step on, for the same workers. A view that others have overtaken is left out.
    pub(crate) fn install(&mut self, view: Arc<View>, step: u64) {
        if let Some(crew) = &mut self.crew {
            if view.version <= crew.keeper().view().version {
                return;
            }
            crew.keeper().adopt(view.clone(), step);
        }
        self.core.look_at_clock();
        self.core.feed(Event::View(view));
        self.perform();
    }

    /// In an elastic job: others are lost, and what was in progress is recovered with those who are left.
    pub(crate) fn succeed(&mut self, rigging: Rigging) {
        let view = rigging.engine.view().clone();
        let before = self.rig(rigging);
        if let Some(crew) = &mut self.crew {
            crew.succeed(view, &before);
        }
        self.go_on();
    }

    /// In an elastic job: from this step on others are in the view, and nothing was in progress anywhere.
    pub(crate) fn replace(&mut self, rigging: Rigging, step: u64) {
        let view = rigging.engine.view().clone();
        self.rig(rigging);
        if let Some(crew) = &mut self.crew {
            crew.replace(view, step);
        }
        self.go_on();
    }

    /// The engine before.
    fn rig(&mut self, Rigging { engine, links, store }: Rigging) -> Engine {
        let before = std::mem::replace(&mut self.core.engine, engine);
        if let Some(counting) = &mut self.core.counting {
            counting.enter(self.core.engine.rank(), self.core.engine.view());
        }
        self.asleep = AsleepWord::of(&store.segment);
        // The links go first: nothing may be read into memory that is named no longer.
        self.links = links;
        self.core.memory = Memory::new(store);
        self.core.actions.clear();
        self.core.receipts.clear();
        self.copies = Copies::default();
        self.departed.clear();
        self.delivered.clear();
        self.frozen = false;
        before
    }

    fn go_on(&mut self) {
        self.core.look_at_clock();
        self.perform();
        self.flush();
    }

    /// In an elastic job: this worker takes no further part.
    pub(crate) fn dismiss(&mut self, reason: &str) {
        self.frozen = true;
        self.links.iter_mut().for_each(|link| drop(link.take()));
        let peer = self.core.engine.rank();
        let failed = || {
            let (name, reason) = ("all".into(), reason.to_string());
            Err(Arc::new(OpError::PeerLost { name, peer, reason }))
        };
        for task in self.crew.as_mut().map_or(Vec::new(), |crew| crew.dismiss(failed)) {
            self.obey(task);
        }
    }
}
