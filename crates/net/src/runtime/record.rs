//! Writing a run down: every event the engine was given and every action it answered with. Fed to a
//! fresh engine, the events must give exactly these actions: the proof that real and virtual time run
//! the same rules.

use paceline_job::{Rank, Time, View};
use paceline_sync::{
    engine::Engine,
    event::{Action, Event},
};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// One event with its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// When the engine was told.
    pub now: Time,
    /// What.
    pub event: Event,
    /// What it asked for.
    pub actions: Vec<Action>,
}

/// A recorded run of one worker. It grows with the run: record short ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Whose run.
    pub rank: Rank,
    /// The view it began with.
    pub view: Arc<View>,
    /// In order.
    pub entries: Vec<Entry>,
}

impl Record {
    /// Feed the events to a fresh engine. `Err` is the first entry whose actions differ, with what the
    /// fresh engine asked for instead.
    pub fn verify(&self) -> Result<(), (usize, Vec<Action>)> {
        let mut engine = match Engine::new(self.rank, self.view.clone()) {
            Ok(engine) => engine,
            Err(_) => return Err((0, Vec::new())),
        };
        for (index, entry) in self.entries.iter().enumerate() {
            let mut actions = Vec::new();
            engine.handle(entry.now, entry.event.clone(), &mut actions);
            if actions != entry.actions {
                return Err((index, actions));
            }
        }
        Ok(())
    }
}

#[derive(Debug)]
pub(crate) struct Recorder {
    record: Record,
}

impl Recorder {
    pub(crate) fn new(rank: Rank, view: Arc<View>) -> Recorder {
        Recorder { record: Record { rank, view, entries: Vec::new() } }
    }

    pub(crate) fn note(&mut self, now: Time, event: Event, actions: &[Action]) {
        self.record.entries.push(Entry { now, event, actions: actions.to_vec() });
    }

    pub(crate) fn finish(self) -> Record {
        self.record
    }
}
