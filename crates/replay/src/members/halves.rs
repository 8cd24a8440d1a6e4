//! Networks that fall apart: workers of one half cannot reach those of the other, and one half may not reach the coordinator
//! either. It stays so, or heals, and then nobody has the connections from before. A half that reaches the coordinator goes on;
//! the other comes to a standstill.

use super::{Happening, Mode, Run, actor::Told};
use paceline_job::{Time, WorkerId};
use std::collections::BTreeMap;

/// What is cut off from the coordinator.
#[derive(Default)]
pub(super) struct Island {
    /// With the step in which each was when it happened.
    inhabitants: BTreeMap<WorkerId, u64>,
    /// When it is connected again, if ever.
    heals: Option<Time>,
}

impl Run {
    /// Workers fall into two halves, by the bits of a lot.
    pub(super) fn fall_apart(&mut self, lot: u64, cut_off: bool, lasts: Option<u64>) {
        let (mut stays, island): (Vec<WorkerId>, Vec<WorkerId>) =
            self.working().into_iter().partition(|id| lot >> id.0 & 1 == 0);
        if stays.is_empty() || island.is_empty() || !self.island.inhabitants.is_empty() {
            return;
        }
        self.ledger.halves += 1;
        if cut_off {
            // Those who are not ready yet are where the coordinator is.
            stays = self.actors.keys().copied().filter(|id| !island.contains(id)).collect();
            let step = |id: &WorkerId| (*id, self.actors[id].step());
            self.island.inhabitants = island.iter().map(step).collect();
            self.island.heals = lasts.map(|lasts| Time(self.now.0 + lasts));
            if let Some(lasts) = lasts {
                self.later(lasts, Happening::Heals);
            }
        }
        for one in &stays {
            island.iter().for_each(|other| self.part(*one, *other));
        }
        if cut_off {
            island.into_iter().for_each(|id| self.cut_line(id));
        }
    }

    /// Two workers lose sight of each other.
    pub(super) fn part(&mut self, one: WorkerId, two: WorkerId) {
        self.cut.push((one, two));
        for (id, peer) in [(one, two), (two, one)] {
            let after = self.delay();
            self.later(after, Happening::Actor(id, Told::Lost(peer)));
        }
    }

    /// Somebody is new where the coordinator is.
    pub(super) fn part_from_island(&mut self, newcomer: WorkerId) {
        for other in self.island.inhabitants.keys().copied().collect::<Vec<_>>() {
            self.part(newcomer, other);
        }
    }

    pub(super) fn heal(&mut self) -> Result<(), String> {
        self.see_standstill()?;
        self.island = Island::default();
        Ok(())
    }

    /// Whether a worker cannot reach the coordinator, and when it can again.
    pub(super) fn is_cut_off(&self, id: WorkerId) -> Option<Option<Time>> {
        self.island.inhabitants.contains_key(&id).then_some(self.island.heals)
    }

    /// Whoever is cut off has not gone on but for what was under way, unless all of the job's workers are.
    pub(super) fn see_standstill(&mut self) -> Result<(), String> {
        // What was posted may still come to its end, and then a step begins whose operations do not.
        let reach = match self.conditions.mode {
            Mode::Local(every) => every + 3,
            _ => 3,
        };
        for (id, step) in &self.island.inhabitants {
            let Some(actor) = self.actors.get(id) else { continue };
            self.ledger.stranded += 1;
            let all_there = |id| self.island.inhabitants.contains_key(&id);
            if actor.step() > step + reach && !actor.view().ids().all(all_there) {
                return Err(format!(
                    "worker {id} cannot reach the coordinator since step {step} and is in step {}",
                    actor.step()
                ));
            }
        }
        Ok(())
    }
}
