//! Views agreed upon under delays of any length, workers of any speed, proposals at once, lost workers, cut lines and
//! lost coordinators: whatever happens, a step has one view, a version has one view, and nobody waits for ever.

mod scenario;

use paceline_replay::{
    Random,
    agreement::{Conditions, Ledger, play},
};
use scenario::under_seeds;
use std::cell::RefCell;

/// What many runs came to, so that a test of rare things can say that they happened.
#[derive(Debug, Default)]
struct Sum {
    changes: usize,
    refusals: usize,
    waits: usize,
    overtaken: usize,
    aborts: usize,
    doubtful: usize,
}

impl Sum {
    fn add(&mut self, run: &Ledger) {
        self.changes += run.changes;
        self.refusals += run.refusals;
        self.waits += run.waits;
        self.overtaken += run.overtaken;
        self.aborts += run.aborts;
        self.doubtful += run.doubtful();
    }
}

fn play_all(seeds: u64, shape: impl Fn(&mut Conditions)) -> Sum {
    let sum = RefCell::new(Sum::default());
    under_seeds(seeds, |seed| {
        let mut conditions = Conditions::draw(&mut Random::new(seed));
        shape(&mut conditions);
        let run = play(conditions.clone(), seed).map_err(|it| format!("{it} ({conditions:?})"))?;
        sum.borrow_mut().add(&run);
        Ok(())
    });
    sum.into_inner()
}

#[test]
fn every_step_has_one_view_whatever_is_lost() {
    let sum = play_all(4000, |_| {});
    assert!(sum.changes > 5000, "{sum:?}");
    for (what, count) in [
        ("refusals", sum.refusals),
        ("waits", sum.waits),
        ("proposals overtaken", sum.overtaken),
        ("ballots ended", sum.aborts),
        ("doubts", sum.doubtful),
    ] {
        assert!(count > 50, "too few {what}: {sum:?}");
    }
}

#[test]
fn where_nobody_is_lost_all_steps_are_taken_and_nobody_doubts() {
    let sum = play_all(1000, |conditions| {
        (conditions.partings, conditions.coordinator_dies) = (0, false);
    });
    assert_eq!((sum.doubtful, sum.aborts), (0, 0), "{sum:?}");
}

#[test]
fn where_messages_are_faster_than_steps_nobody_waits_and_every_proposal_is_decided() {
    let undecided = RefCell::new(0);
    let sum = RefCell::new(Sum::default());
    under_seeds(1000, |seed| {
        let mut conditions = Conditions::draw(&mut Random::new(seed));
        (conditions.partings, conditions.coordinator_dies) = (0, false);
        // A round trip takes a hundredth of the shortest step that matters: two may pass while a view is agreed.
        (conditions.coupled, conditions.step, conditions.delay) = (true, 100_000, 50);
        let run = play(conditions.clone(), seed).map_err(|it| format!("{it} ({conditions:?})"))?;
        *undecided.borrow_mut() += run.undecided();
        sum.borrow_mut().add(&run);
        Ok(())
    });
    let sum = sum.into_inner();
    // A step may be drawn short, and a proposal come in the last one.
    assert!(sum.changes > 2000 && sum.waits * 100 < sum.changes, "{sum:?}");
    assert!(undecided.into_inner() * 10 < sum.changes, "{sum:?}");
}
