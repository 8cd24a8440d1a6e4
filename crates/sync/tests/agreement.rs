//! Whatever workers and a coordinator say to each other, in any order and however often, neither side of the agreement
//! panics, views go forward one by one, and no step begins twice.

use paceline_job::{ByteSize, Rank, Settings, View, ViewVersion};
use paceline_sync::agreement::{
    Agreed, Ballot, Begin, Change, MAXIMUM_STEP, Objection, Participant, Registrar, ToParticipant,
    ToRegistrar,
};
use proptest::prelude::*;
use std::sync::Arc;

const WORKERS: u32 = 3;

fn step() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..20, 1 => Just(MAXIMUM_STEP), 1 => any::<u64>()]
}

fn change() -> impl Strategy<Value = Change> {
    (0u64..4).prop_map(|kib| {
        Change::Settings(Settings { partition: ByteSize::kib(kib), ..Settings::default() })
    })
}

fn to_registrar() -> impl Strategy<Value = ToRegistrar> {
    let ballot = || (0u64..6).prop_map(Ballot);
    let version = || (0u32..5).prop_map(ViewVersion);
    prop_oneof![
        (0u64..3, version(), change(), step()).prop_map(|(proposal, after, change, next)| {
            ToRegistrar::Propose { proposal, after, change, next }
        }),
        (ballot(), step()).prop_map(|(ballot, next)| ToRegistrar::Promise { ballot, next }),
        (ballot(), step()).prop_map(|(ballot, next)| ToRegistrar::Refuse { ballot, next }),
        (version(), step()).prop_map(|(version, next)| ToRegistrar::InForce { version, next }),
        step().prop_map(|next| ToRegistrar::Leave { next }),
    ]
}

fn to_participant() -> impl Strategy<Value = ToParticipant> {
    let ballot = || (0u64..6).prop_map(Ballot);
    prop_oneof![
        4 => (ballot(), step(), 0u32..5, change()).prop_map(|(ballot, step, version, change)| {
            ToParticipant::Prepare { ballot, step, version: ViewVersion(version), change }
        }),
        4 => ballot().prop_map(|ballot| ToParticipant::Commit { ballot }),
        1 => ballot().prop_map(|ballot| ToParticipant::Abort { ballot }),
        1 => (0u64..3, step()).prop_map(|(proposal, step)| {
            let outcome = Ok(Agreed { version: ViewVersion(2), step });
            ToParticipant::Decided { proposal, outcome }
        }),
        1 => (0u64..3).prop_map(|proposal| {
            ToParticipant::Decided { proposal, outcome: Err(Objection::Undecided) }
        }),
    ]
}

proptest! {
    #[test]
    fn a_registrar_takes_anything_and_goes_forward(
        said in proptest::collection::vec((0..WORKERS + 1, to_registrar(), 0u8..12), 0..80),
    ) {
        let view = View::local(WORKERS as usize, Settings::default());
        let mut registrar = Registrar::new(view, false);
        let mut out = Vec::new();
        for (rank, message, gone) in said {
            let before = registrar.view().version;
            out.clear();
            match gone {
                0 => registrar.gone(Rank(rank), &mut out),
                _ => registrar.hear(Rank(rank), message, &mut out),
            }
            let after = registrar.view().version;
            prop_assert!(after.0 == before.0 || after.0 == before.0 + 1);
            prop_assert!(out.iter().all(|summons| summons.to.0 < WORKERS));
            prop_assert!(out.iter().all(|summons| summons.message.is_sound()));
            // One attempt follows one message, with at most one decision for each worker.
            prop_assert!(out.len() <= 4 * WORKERS as usize);
        }
    }

    #[test]
    fn a_participant_takes_anything_and_begins_no_step_twice(
        heard in proptest::collection::vec((to_participant(), 0u64..20), 0..80),
    ) {
        let view = Arc::new(View::local(WORKERS as usize, Settings::default()));
        let mut participant = Participant::new(view);
        let mut out = Vec::new();
        let (mut next, mut version) = (0, ViewVersion(1));
        for (message, step) in heard {
            participant.hear(message, &mut out);
            match participant.begin(step, &mut out) {
                Begin::Same => {
                    prop_assert!(step >= next);
                    next = step + 1;
                }
                Begin::Enter(view) => {
                    prop_assert!(step >= next && view.version.0 == version.0 + 1);
                    (next, version) = (step + 1, view.version);
                }
                Begin::Past { next: first } => prop_assert!(step < first),
                Begin::Wait { .. } => {}
                Begin::Doubt { .. } => prop_assert!(false, "the registrar is there"),
            }
            prop_assert_eq!(participant.view().version, version);
            prop_assert!(out.drain(..).all(|message| message.is_sound()));
        }
    }
}
