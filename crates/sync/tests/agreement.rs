//! Whatever workers and a coordinator say to each other, in any order and however often, neither side of the agreement
//! panics, views go forward one by one, and no step begins twice.

use paceline_job::{ByteSize, Membership, Settings, View, ViewVersion, Worker, WorkerId};
use paceline_sync::agreement::{
    Agreed, Ballot, Begin, Change, Limits, MAXIMUM_STEP, Objection, Participant, Place, Registrar,
    Summons, ToParticipant, ToRegistrar,
};
use proptest::prelude::*;
use std::sync::Arc;

const WORKERS: u64 = 3;

fn step() -> impl Strategy<Value = u64> {
    prop_oneof![8 => 0u64..20, 1 => Just(MAXIMUM_STEP), 1 => any::<u64>()]
}

fn change() -> impl Strategy<Value = Change> {
    let settings = (0u64..4).prop_map(|kib| {
        Change::Settings(Settings { partition: ByteSize::kib(kib), ..Settings::default() })
    });
    let members = (0u64..5, 2u64..6).prop_map(|(leave, join)| {
        let join = Worker { id: WorkerId(join), host: "b".to_string(), address: String::new() };
        Change::Members { leave: vec![WorkerId(leave)], join: vec![join] }
    });
    prop_oneof![3 => settings, 1 => members]
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
        (any::<u64>(), step()).prop_map(|(posted, next)| ToRegistrar::Leave { posted, next }),
        (ballot(), step()).prop_map(|(ballot, next)| ToRegistrar::Gathered { ballot, next }),
        (worker(), version(), step()).prop_map(|(worker, version, next)| ToRegistrar::Lost {
            worker,
            version,
            next
        }),
        (place(), step()).prop_map(|(to, next)| ToRegistrar::Onward { to, next }),
        (version(), any::<Option<u64>>(), step()).prop_map(|(version, finished, next)| {
            ToRegistrar::Resume { version, finished, next }
        }),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    (step(), 0u64..3).prop_map(|(next, posted)| Place { next, posted })
}

fn worker() -> impl Strategy<Value = WorkerId> {
    (0..WORKERS + 1).prop_map(WorkerId)
}

fn membership() -> impl Strategy<Value = Membership> {
    prop_oneof![Just(Membership::Fixed), Just(Membership::Elastic)]
}

fn first_view(membership: Membership) -> View {
    View { membership, ..View::local(WORKERS as usize, Settings::default()) }
}

/// Any workers in any number, so that the receiver may be among them or not.
fn view() -> impl Strategy<Value = View> {
    (1usize..4, 0u32..5).prop_map(|(size, version)| View {
        version: ViewVersion(version),
        membership: Membership::Elastic,
        ..View::local(size, Settings::default())
    })
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
        1 => (ballot(), step(), view())
            .prop_map(|(ballot, step, view)| ToParticipant::Invite { ballot, step, view }),
        2 => ballot().prop_map(|ballot| ToParticipant::Enter { ballot }),
        2 => view().prop_map(|view| ToParticipant::Without { view }),
        1 => (view(), step()).prop_map(|(view, since)| ToParticipant::Latest { view, since }),
        1 => (worker(), place())
            .prop_map(|(worker, at)| ToParticipant::Finished { worker, at }),
    ]
}

proptest! {
    #[test]
    fn a_registrar_takes_anything_and_goes_forward(
        said in proptest::collection::vec((0..WORKERS + 3, to_registrar(), 0u8..24), 0..80),
        membership in membership(),
    ) {
        let mut registrar = Registrar::new(first_view(membership), false);
        let mut out = Vec::new();
        let mut known = WORKERS;
        for (id, message, special) in said {
            let before = registrar.view().version;
            out.clear();
            match special {
                0 | 1 => registrar.gone(WorkerId(id), &mut out),
                2 if membership == Membership::Elastic && known < WORKERS + 3 => {
                    let id = registrar.admit("b".to_string(), String::new(), &mut out);
                    prop_assert_eq!(id, WorkerId(known));
                    known += 1;
                }
                3 => {
                    let limits = Limits::default();
                    registrar = Registrar::restore(registrar.minutes(), limits);
                }
                _ => registrar.hear(WorkerId(id), message, &mut out),
            }
            let after = registrar.view().version;
            prop_assert!(after.0 == before.0 || after.0 == before.0 + 1);
            prop_assert!(registrar.view().size() > 0);
            // Nobody hears anything but those who are known, and whoever asked.
            let speaker = WorkerId(id);
            prop_assert!(out.iter().all(|it| it.to.0 < known || it.to == speaker));
            prop_assert!(out.iter().all(|summons| summons.message.is_sound()));
            // One attempt follows one message, with a few words for each worker.
            prop_assert!(out.len() <= 8 * known as usize);
        }
    }

    #[test]
    fn a_participant_takes_anything_and_begins_no_step_twice(
        heard in proptest::collection::vec((to_participant(), 0u64..20), 0..80),
        membership in membership(),
    ) {
        let mut participant = Participant::new(WorkerId(0), Arc::new(first_view(membership)));
        let mut out = Vec::new();
        let (mut next, mut version) = (0, ViewVersion(1));
        for (message, step) in heard {
            participant.hear(message, &mut out);
            if let Some(view) = participant.succeed(&mut out) {
                prop_assert!(view.version > version);
                version = view.version;
            }
            match participant.begin(step, &mut out) {
                Begin::Same => {
                    prop_assert!(step >= next);
                    next = step + 1;
                }
                Begin::Enter(view) => {
                    prop_assert!(step >= next && view.version > version);
                    (next, version) = (step + 1, view.version);
                }
                Begin::Past { next: first } => prop_assert!(step < first),
                Begin::Wait { .. } => {}
                Begin::Gather(_) => participant.gathered(&mut out),
                Begin::Removed => version = participant.view().version,
                Begin::Doubt { .. } => prop_assert!(false, "the registrar is there"),
                Begin::Dissolved { .. } => prop_assert!(false, "nobody said so"),
            }
            prop_assert_eq!(participant.view().version, version);
            prop_assert!(out.drain(..).all(|message| message.is_sound()));
        }
    }
}

#[test]
fn the_last_worker_is_waited_for_once_and_then_the_job_is_over() {
    let mut registrar = Registrar::new(first_view(Membership::Elastic), false);
    let mut out = Vec::new();
    (0..WORKERS).for_each(|id| registrar.gone(WorkerId(id), &mut out));
    let last = WorkerId(WORKERS - 1);
    assert_eq!(registrar.absent(), [last]);

    out.clear();
    let resume = ToRegistrar::Resume { version: ViewVersion(1), finished: None, next: 5 };
    registrar.hear(last, resume.clone(), &mut out);
    let alone = registrar.view().clone();
    assert_eq!(alone.ids().collect::<Vec<_>>(), [last]);
    let latest = ToParticipant::Latest { view: alone, since: 0 };
    assert_eq!(out.iter().map(|it| &it.message).collect::<Vec<_>>(), [&latest]);

    registrar.gone(last, &mut out);
    registrar.gone(last, &mut out);
    out.clear();
    registrar.hear(last, resume, &mut out);
    let over = ToParticipant::Dissolved { left: 0, needed: 1 };
    assert_eq!(out.iter().map(|it| &it.message).collect::<Vec<_>>(), [&over]);
}

/// Everybody promises what was asked last, and gathers for it; who leaves by it.
fn leave_as_asked(registrar: &mut Registrar, out: &mut Vec<Summons>) -> Vec<WorkerId> {
    let asked = out.iter().rev().find_map(|summons| match &summons.message {
        ToParticipant::Prepare { ballot, .. } => Some(*ballot),
        _ => None,
    });
    let ballot = asked.expect("somebody is asked to leave");
    let ids: Vec<WorkerId> = registrar.view().ids().collect();
    for id in &ids {
        registrar.hear(*id, ToRegistrar::Promise { ballot, next: 1 }, out);
    }
    for id in ids {
        registrar.hear(id, ToRegistrar::Gathered { ballot, next: 1 }, out);
    }
    registrar.departed().to_vec()
}

fn all_in_force(registrar: &mut Registrar, out: &mut Vec<Summons>) {
    let version = registrar.view().version;
    for id in registrar.view().ids().collect::<Vec<_>>() {
        registrar.hear(id, ToRegistrar::InForce { version, next: 2 }, out);
    }
}

#[test]
fn the_last_ones_leave_when_fewer_are_wanted_and_nobody_in_place_of_one_that_is_lost() {
    let view = View { membership: Membership::Elastic, ..View::local(5, Settings::default()) };
    let mut registrar = Registrar::new(view, false);
    let mut out = Vec::new();
    registrar.shrink(3, &mut out).unwrap();
    assert_eq!(registrar.leaving(), [WorkerId(3), WorkerId(4)]);
    // It was dead already when they were asked.
    registrar.gone(WorkerId(0), &mut out);
    assert_eq!(registrar.leaving(), [WorkerId(4)]);
    all_in_force(&mut registrar, &mut out);
    assert_eq!(leave_as_asked(&mut registrar, &mut out), [WorkerId(4)]);
    assert_eq!(registrar.view().ids().collect::<Vec<_>>(), [1, 2, 3].map(WorkerId));

    // The wish has come true: it is nobody's any more.
    all_in_force(&mut registrar, &mut out);
    registrar.gone(WorkerId(3), &mut out);
    assert_eq!(registrar.leaving(), []);
    assert_eq!(registrar.view().size(), 2);
}

#[test]
fn of_two_wishes_the_later_counts_and_one_that_leaves_by_itself_leaves_besides() {
    let view = View { membership: Membership::Elastic, ..View::local(5, Settings::default()) };
    let mut registrar = Registrar::new(view, false).limited(Limits { least: 2, most: 8 });
    let mut out = Vec::new();
    registrar.shrink(2, &mut out).unwrap();
    // While they are asked already.
    registrar.shrink(4, &mut out).unwrap();
    assert_eq!(registrar.leaving(), [WorkerId(4)]);
    registrar.retire(WorkerId(0), &mut out).unwrap();
    assert_eq!(registrar.leaving(), [WorkerId(0), WorkerId(4)]);
    // One of the last may ask to as well, and is counted once.
    registrar.retire(WorkerId(4), &mut out).unwrap();
    assert_eq!(registrar.leaving(), [WorkerId(0), WorkerId(4)]);
    assert!(registrar.shrink(1, &mut out).is_err(), "the job needs two");
    assert_eq!(registrar.leaving(), [WorkerId(0), WorkerId(4)]);
    // What was being asked comes first.
    assert_eq!(leave_as_asked(&mut registrar, &mut out), [WorkerId(4)]);
    all_in_force(&mut registrar, &mut out);
    assert_eq!(leave_as_asked(&mut registrar, &mut out), [WorkerId(0)]);
    assert_eq!(registrar.view().ids().collect::<Vec<_>>(), [1, 2, 3].map(WorkerId));
}

#[test]
fn what_workers_of_an_older_view_say_of_each_other_counts_no_more() {
    let mut registrar = Registrar::new(first_view(Membership::Elastic), false);
    let mut out = Vec::new();
    let mut accuse = |who, version| {
        let lost =
            ToRegistrar::Lost { worker: WorkerId(who), version: ViewVersion(version), next: 1 };
        registrar.hear(WorkerId(0), lost, &mut out);
        registrar.view().ids().map(|id| id.0).collect::<Vec<_>>()
    };
    assert_eq!(accuse(2, 1), [0, 1]);
    // Connections of the first view are over.
    assert_eq!(accuse(1, 1), [0, 1]);
    assert_eq!(accuse(1, 2), [0]);
}

#[test]
fn a_job_with_fewer_workers_left_than_it_needs_goes_no_further() {
    let needed = Limits { least: 2, most: 8 };
    let mut registrar = Registrar::new(first_view(Membership::Elastic), false).limited(needed);
    let mut out = Vec::new();
    registrar.gone(WorkerId(0), &mut out);
    assert_eq!(registrar.view().size(), 2);
    out.clear();
    registrar.gone(WorkerId(1), &mut out);
    let over = ToParticipant::Dissolved { left: 1, needed: 2 };
    assert_eq!(out.iter().map(|it| &it.message).collect::<Vec<_>>(), [&over]);
}

#[test]
fn a_view_that_is_no_newer_than_that_in_force_is_not_entered() {
    let mut participant = Participant::new(WorkerId(0), Arc::new(first_view(Membership::Elastic)));
    let mut out = Vec::new();
    for (version, entered) in [(1, None), (3, Some(3)), (2, None), (3, None), (4, Some(4))] {
        let version = ViewVersion(version);
        let view = View { version, ..first_view(Membership::Elastic) };
        participant.hear(ToParticipant::Without { view }, &mut out);
        let found = participant.succeed(&mut out).map(|view| view.version.0);
        assert_eq!(found, entered, "{version:?}");
    }
}
