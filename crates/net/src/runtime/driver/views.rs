//! How a driver comes from one view to the next: other settings under the same links, or other links and another engine.
//! Which view comes, and when, is decided elsewhere.

use super::{AsleepWord, Copies, Driver, Link};
use crate::runtime::{
    memory::{Memory, Store},
    segment::Segment,
};
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

/// What a view before was worked in. To unmap what workers shared takes tens of milliseconds: drop it where nobody waits.
pub(crate) struct Relics {
    // The links go first: nothing may be read into memory that is named no longer.
    _links: Vec<Option<Link>>,
    _copies: Copies,
    _memory: Memory,
    _departed: Vec<Arc<Segment>>,
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
    pub(crate) fn succeed(&mut self, rigging: Rigging) -> Relics {
        let view = rigging.engine.view().clone();
        let (before, relics) = self.rig(rigging);
        if let Some(crew) = &mut self.crew {
            crew.succeed(view, &before);
        }
        self.go_on();
        relics
    }

    /// In an elastic job: from this step on others are in the view, and nothing was in progress anywhere.
    pub(crate) fn replace(&mut self, rigging: Rigging, step: u64) -> Relics {
        let view = rigging.engine.view().clone();
        let (_, relics) = self.rig(rigging);
        if let Some(crew) = &mut self.crew {
            crew.replace(view, step);
        }
        self.go_on();
        relics
    }

    /// The engine before, and what it worked with.
    fn rig(&mut self, Rigging { engine, links, store }: Rigging) -> (Engine, Relics) {
        let before = std::mem::replace(&mut self.core.engine, engine);
        if let Some(counting) = &mut self.core.counting {
            counting.enter(self.core.engine.rank(), self.core.engine.view());
        }
        self.asleep = AsleepWord::of(&store.segment);
        let relics = Relics {
            _links: std::mem::replace(&mut self.links, links),
            _copies: std::mem::take(&mut self.copies),
            _memory: std::mem::replace(&mut self.core.memory, Memory::new(store)),
            _departed: std::mem::take(&mut self.departed),
        };
        self.core.actions.clear();
        self.core.receipts.clear();
        self.delivered.clear();
        self.frozen = false;
        (before, relics)
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
