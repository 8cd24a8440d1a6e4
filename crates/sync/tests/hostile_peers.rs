//! Engines survive whatever authenticated but broken peers send: the fuzzer's entry over its corpus and
//! over seeded mutations of it, and by hand the cases it has found.

#[path = "../../../fuzz/entry/engine.rs"]
mod engine;
#[path = "../../../fuzz/entry/trial.rs"]
mod trial;

use paceline_job::{ByteSize, Dtype, Rank, Settings, StrategyChoice, Time, View, ViewVersion};
use paceline_sync::{
    collective::Collective,
    engine::Engine,
    event::{Action, Event, OpError, OpId, Payload, Placement, Post},
    frame::{Header, Kind, OpKey},
    slab::Key,
};
use std::{collections::VecDeque, sync::Arc, time::Duration};

#[test]
fn no_script_of_posts_and_broken_frames_harms_an_engine() {
    trial::try_all("engine", engine::run, 5_000);
}

fn engine(rank: u32, size: usize) -> Engine {
    // One chunk at a time.
    let credit = ByteSize(1);
    let settings =
        Settings { strategy: StrategyChoice("ring".into()), credit, ..Settings::default() };
    Engine::new(Rank(rank), Arc::new(View::local(size, settings))).unwrap()
}

fn post(collective: Collective, group: Option<Arc<[Rank]>>) -> Event {
    Event::Post(Box::new(Post {
        group,
        in_place: false,
        ..Post::new(OpId(0), "x", collective, Dtype::F32)
    }))
}

fn feed(engine: &mut Engine, event: Event) -> Vec<Action> {
    feed_at(Time::ZERO, engine, event)
}

fn feed_at(now: Time, engine: &mut Engine, event: Event) -> Vec<Action> {
    let mut actions = Vec::new();
    engine.handle(now, event, &mut actions);
    actions
}

/// The data frames among actions.
fn data(actions: &[Action]) -> Vec<Header> {
    let of = |action: &Action| match action {
        Action::Send { header, token: Some(_), .. } => Some(*header),
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn a_group_in_which_a_worker_would_send_to_itself_is_refused() {
    let ranks = |ranks: &[u32]| Some(ranks.iter().copied().map(Rank).collect());
    for (collective, group, reason) in [
        (Collective::AllReduce { len: 9 }, ranks(&[0, 1, 0]), "names worker 0 twice"),
        (Collective::AllReduce { len: 9 }, ranks(&[1, 0, 1]), "names worker 1 twice"),
        (Collective::Send { to: 1, len: 9 }, ranks(&[0, 0]), "names worker 0 twice"),
        (Collective::Send { to: 0, len: 9 }, ranks(&[0, 1]), "send to itself"),
        (Collective::Recv { from: 1, len: 9 }, ranks(&[1, 0]), "send to itself"),
    ] {
        let actions = feed(&mut engine(0, 2), post(collective, group));
        let [Action::Fail(OpId(0), error)] = &actions[..] else { panic!("{actions:?}") };
        let OpError::Invalid { reason: given, .. } = &**error else { panic!("{error}") };
        assert!(given.contains(reason), "{given}");
    }
}

#[test]
fn a_message_of_another_view_is_no_part_of_what_is_summed() {
    let [mut ours, mut theirs] = [engine(0, 2), engine(1, 2)];
    let all_reduce = || post(Collective::AllReduce { len: 8 }, None);
    feed(&mut ours, all_reduce());
    let mut stale = data(&feed(&mut theirs, all_reduce()))[0];
    stale.key.view = ViewVersion(stale.key.view.0 + 1);
    let heard = feed(&mut ours, Event::Incoming { from: Rank(1), header: stale });
    let discarded =
        |it: &Action| matches!(it, Action::Place { token: None, placement: Placement::Discard });
    assert!(heard.iter().any(discarded), "{heard:?}");
    // All workers hear which views they are.
    let told =
        |it: &Action| matches!(it, Action::Send { header: Header { kind: Kind::Abort, .. }, .. });
    assert!(heard.iter().any(told), "{heard:?}");
}

#[test]
fn a_message_that_comes_a_second_time_while_the_first_is_on_its_way_is_refused() {
    let [mut ours, mut theirs] = [engine(0, 2), engine(1, 2)];
    let all_reduce = || post(Collective::AllReduce { len: 8 }, None);
    let to_them = data(&feed(&mut ours, all_reduce()))[0];
    let first = data(&feed(&mut theirs, all_reduce()))[0];
    let placed = feed(&mut theirs, Event::Incoming { from: Rank(0), header: to_them });
    let [Action::Place { token: Some(token), .. }, ..] = placed[..] else { panic!("{placed:?}") };
    let second = data(&feed(&mut theirs, Event::Arrived { token }))[0];
    assert_ne!(first.slot, second.slot);

    // Their second message overtakes the first on another connection, twice.
    let incoming = |header| Event::Incoming { from: Rank(1), header };
    let held = feed(&mut ours, incoming(second));
    assert!(matches!(held[..], [Action::Place { placement: Placement::Hold(_), .. }]), "{held:?}");
    let again = feed(&mut ours, incoming(second));
    assert!(
        matches!(
            &again[..],
            [
                Action::Place { token: None, placement: Placement::Discard },
                Action::Close { peer: Rank(1), .. }
            ]
        ),
        "{again:?}"
    );
}

/// What a driver gives back when the bytes of a send have left.
fn tokens(actions: &[Action]) -> Vec<Key> {
    let of = |action: &Action| match action {
        Action::Send { token, .. } => *token,
        _ => None,
    };
    actions.iter().filter_map(of).collect()
}

#[test]
fn a_sender_whose_bytes_still_leave_has_not_stalled() {
    let mut engine = engine(0, 2);
    let timeout = engine.view().settings.timeout;
    let send = Collective::Send { to: 1, len: 1 << 20 };
    let mut actions = feed(&mut engine, post(send, Some([Rank(0), Rank(1)].into())));
    let mut now = Time::ZERO;
    let mut deliveries = 0;
    while let Some(token) = tokens(&actions).first().copied() {
        // Nearly the whole time passes between two deliveries.
        now = now.after(timeout - Duration::from_secs(1));
        actions = feed_at(now, &mut engine, Event::Tick);
        actions.extend(feed_at(now, &mut engine, Event::Delivered { token }));
        deliveries += 1;
    }
    assert!(deliveries > 2);
    assert_eq!(actions.last(), Some(&Action::Complete(OpId(0))));
}

#[test]
fn a_peer_that_stands_still_in_the_middle_of_a_message_does_not_hold_a_failed_operation_for_ever() {
    let mut engine = engine(0, 2);
    let timeout = engine.view().settings.timeout;
    let mut actions = feed(&mut engine, post(Collective::AllReduce { len: 8 }, None));
    assert_eq!(tokens(&actions).len(), 1);
    let mut now = Time::ZERO;
    let closed = loop {
        now = now.after(timeout);
        assert!(now < Time::ZERO.after(5 * timeout), "{actions:?}");
        actions = feed_at(now, &mut engine, Event::Tick);
        let closes = |action: &Action| match action {
            Action::Close { peer, reason } => Some((*peer, reason.clone())),
            _ => None,
        };
        if let Some(closed) = actions.iter().find_map(closes) {
            break closed;
        }
    };
    assert_eq!(closed.0, Rank(1));
    let (peer, reason) = closed;
    let actions = feed_at(now, &mut engine, Event::PeerLost { peer, reason });
    let Some(Action::Fail(OpId(0), error)) = actions.last() else { panic!("{actions:?}") };
    assert!(matches!(**error, OpError::Stalled { .. }), "{error}");
    assert_eq!(engine.next_tick(), None);
}

/// Carry frames between two engines until nothing is under way; what each did besides.
fn converse(engines: &mut [Engine; 2], posts: [Event; 2]) -> [Vec<Action>; 2] {
    let mut queue: VecDeque<(usize, Event)> = (0..).zip(posts).collect();
    let mut done = [Vec::new(), Vec::new()];
    while let Some((at, event)) = queue.pop_front() {
        for action in feed(&mut engines[at], event) {
            let from = Rank(at as u32);
            match action {
                Action::Send { token, header, payload, .. } => {
                    queue.extend(token.map(|token| (at, Event::Delivered { token })));
                    let event = match payload {
                        Payload::Memory(_) => Event::Incoming { from, header },
                        Payload::Inline(payload) => Event::Control { from, header, payload },
                    };
                    queue.push_back((1 - at, event));
                }
                Action::Place { token, .. } => {
                    queue.extend(token.map(|token| (at, Event::Arrived { token })));
                }
                Action::Work { token, .. } => queue.push_back((at, Event::Worked { token })),
                other => done[at].push(other),
            }
        }
    }
    done
}

#[test]
fn lengths_of_zero_and_more_under_one_name_do_not_leave_anybody_waiting() {
    let all_reduce = |len| post(Collective::AllReduce { len }, None);
    for swapped in [false, true] {
        let posts = if swapped { [9, 0] } else { [0, 9] }.map(all_reduce);
        let done = converse(&mut [engine(0, 2), engine(1, 2)], posts);
        let waiting = &done[usize::from(!swapped)];
        let [.., Action::Fail(OpId(0), error)] = &waiting[..] else { panic!("{done:?}") };
        let text = error.to_string();
        assert!(text.contains("different names"), "{text}");
    }
}

#[test]
fn roots_that_differ_are_noticed_even_where_nobody_waits_for_anything() {
    let broadcast = |root| post(Collective::Broadcast { root, len: 9 }, None);
    let reduce = |root| post(Collective::Reduce { root, len: 9 }, None);
    for posts in [[broadcast(0), broadcast(1)], [reduce(1), reduce(0)]] {
        let done = converse(&mut [engine(0, 2), engine(1, 2)], posts);
        let told = done.iter().flatten().any(|action| match action {
            Action::Close { reason, .. } => reason.contains("different names"),
            Action::Fail(_, error) => error.to_string().contains("different names"),
            _ => false,
        });
        assert!(told, "{done:?}");
    }
}

#[test]
fn what_a_peer_asks_about_is_remembered_only_up_to_a_bound() {
    let mut engine = engine(0, 2);
    let ask = |name| Event::Control {
        from: Rank(1),
        header: Header::control(Kind::Request, OpKey { name, uses: 0, view: ViewVersion(1) }),
        payload: Box::default(),
    };
    let closed = (0..1_000_000).find_map(|name| feed(&mut engine, ask(name)).pop());
    assert!(matches!(closed, Some(Action::Close { peer: Rank(1), .. })), "{closed:?}");
}

#[test]
fn a_peer_s_words_stay_on_one_line() {
    let mut engine = engine(0, 2);
    feed(&mut engine, post(Collective::Recv { from: 1, len: 1 }, Some([Rank(0), Rank(1)].into())));
    let sent = feed_at(Time::ZERO.after(Duration::from_secs(11)), &mut engine, Event::Tick);
    let [Action::Send { header, .. }] = sent[..] else { panic!("{sent:?}") };
    let payload = b"it broke\npaceline: worker 0: all is well\x1b[2J".as_slice().into();
    let header = Header { kind: Kind::Abort, ..header };
    let failed = feed(&mut engine, Event::Control { from: Rank(1), header, payload });
    let [Action::Fail(_, error)] = &failed[..] else { panic!("{failed:?}") };
    assert!(!error.to_string().contains(char::is_control), "{error:?}");
}
