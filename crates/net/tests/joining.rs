//! Workers join over real sockets: ranks, views, the mesh, and every way a join can be refused.

mod joining_support;

use joining_support::{Recorder, coordinator, framed, read_frame, secret, wait_for_exit};
use paceline_job::{Link, Measured, Rank, Rate, Settings};
use paceline_net::{
    Connection, Coordinator, Fate, JoinConfig, Joined, NetError, Secret,
    coordinator::{CoordinatorMessage, Progress, WorkerMessage, decode_coordinator_message},
    handshake::{self, HELLO_BYTES, PROTOCOL_VERSION, Privacy, Purpose, Terms},
    join,
};
use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    thread::{self, JoinHandle},
    time::Duration,
};

/// Long enough never to pass in a test that works.
const PATIENCE: Duration = Duration::from_secs(30);

fn worker(coordinator: &Coordinator, rank: Option<u32>) -> JoinConfig {
    let mut config = JoinConfig::new(coordinator.address().to_string(), secret());
    config.rank = rank.map(Rank);
    config.timeout = PATIENCE;
    config
}

fn start(config: JoinConfig) -> JoinHandle<Result<Joined, NetError>> {
    thread::spawn(move || join(config))
}

fn finish(handles: Vec<JoinHandle<Result<Joined, NetError>>>) -> Vec<Joined> {
    let mut joined: Vec<Joined> =
        handles.into_iter().map(|handle| handle.join().unwrap().unwrap()).collect();
    joined.sort_by_key(|joined| joined.rank);
    joined
}

/// Every connection leads to whom it should, at both ends.
fn assert_mesh(joined: &mut [Joined], per_peer: usize) {
    let size = joined.len();
    for (own, worker) in joined.iter_mut().enumerate() {
        assert_eq!(worker.peers.len(), size);
        for (peer, connections) in worker.peers.iter_mut().enumerate() {
            assert_eq!(connections.len(), if peer == own { 0 } else { per_peer });
            for (index, connection) in connections.iter_mut().enumerate() {
                let mark = [own as u8, peer as u8, index as u8];
                connection.stream.write_all(&mark).unwrap();
            }
        }
    }
    for (own, worker) in joined.iter_mut().enumerate() {
        for (peer, connections) in worker.peers.iter_mut().enumerate() {
            for (index, connection) in connections.iter_mut().enumerate() {
                let mut mark = [0; 3];
                connection.stream.read_exact(&mut mark).unwrap();
                assert_eq!(mark, [peer as u8, own as u8, index as u8]);
            }
        }
    }
}

#[test]
fn four_workers_get_their_ranks_one_view_and_a_full_mesh() {
    let (coordinator, _) = coordinator(4, |_| {});
    let handles = [Some(2), None, Some(0), None]
        .map(|rank| {
            let mut config = worker(&coordinator, rank);
            config.size = Some(4);
            config.connections = 2;
            start(config)
        })
        .into_iter()
        .collect();
    let mut joined = finish(handles);
    let ranks: Vec<Rank> = joined.iter().map(|joined| joined.rank).collect();
    assert_eq!(ranks, [Rank(0), Rank(1), Rank(2), Rank(3)]);
    for other in &joined {
        assert_eq!(other.view, joined[0].view);
        assert_eq!(other.view.host_indices(), [0, 0, 0, 0]);
        assert_eq!(other.view.settings, Settings::default());
        // On loopback nothing is encrypted.
        assert!(other.peers.iter().flatten().all(|connection| connection.seal.is_none()));
    }
    assert_mesh(&mut joined, 2);
    assert_eq!(coordinator.progress(), Progress::Running { workers: 4 });
}

#[test]
fn the_coordinator_hears_from_rank_0_and_from_nobody_else_what_the_links_cost() {
    let (coordinator, log) = coordinator(2, |_| {});
    let handles = [Some(0), Some(1)].map(|rank| start(worker(&coordinator, rank)));
    let mut joined = finish(handles.into());
    let latency = Duration::from_micros(20);
    let wire = Some(Link { rate: Rate::from_bits_per_second(1e9), latency });
    let measured = Measured { memory: None, wire };
    joined[1].control.send(&WorkerMessage::Measured(measured)).unwrap();
    log.expect("worker 1 is gone: it failed: it measured what was not its to measure");
    joined[0].control.send(&WorkerMessage::Measured(measured)).unwrap();
    log.expect("measured 20 µs and 125 MB/s between hosts");
    joined[0].control.send(&WorkerMessage::Measured(measured)).unwrap();
    log.expect("worker 0 is gone: it failed: it measured what was not its to measure");
}

#[test]
fn one_worker_is_a_job() {
    let (coordinator, _) = coordinator(1, |_| {});
    let joined = join(worker(&coordinator, None)).unwrap();
    assert_eq!((joined.rank, joined.view.size()), (Rank(0), 1));
    assert!(joined.peers[0].is_empty());
}

#[test]
fn rank_0_hosts_the_coordinator_where_the_launcher_is_not_ours() {
    // A port that was free a moment ago, as a launcher would choose it.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let variables = move |rank: u32| {
        move |name: &str| match name {
            "RANK" => Some(rank.to_string()),
            "WORLD_SIZE" => Some("3".to_string()),
            "MASTER_ADDR" => Some("127.0.0.1".to_string()),
            "MASTER_PORT" => Some("29500".to_string()),
            "PACELINE_PORT" => Some(port.to_string()),
            "PACELINE_SECRET" => Some("a secret for these tests".to_string()),
            _ => None,
        }
    };
    // The others come first and wait until rank 0 is up.
    let handles =
        [2, 1, 0].map(|rank| start(JoinConfig::from_variables(&variables(rank)).unwrap()));
    let mut joined = finish(handles.into_iter().collect());
    assert_mesh(&mut joined, 1);
    let hosting: Vec<bool> = joined.iter().map(|joined| joined.coordinator.is_some()).collect();
    assert_eq!(hosting, [true, false, false]);
}

#[test]
fn workers_are_told_who_has_gone_and_how() {
    let (coordinator, log) = coordinator(4, |_| {});
    let mut joined = finish((0..4).map(|rank| start(worker(&coordinator, Some(rank)))).collect());
    let (died, failed, finished) =
        (joined.pop().unwrap(), joined.pop().unwrap(), joined.pop().unwrap());
    let mut remaining = joined.pop().unwrap();
    let mut expect = |rank, fate| {
        let message = remaining.control.receive(PATIENCE).unwrap();
        assert_eq!(message, Some(CoordinatorMessage::Gone { rank: Rank(rank), fate }));
    };
    drop(died);
    expect(3, Fate::Lost);
    let fate = Fate::Failed { reason: "out of memory".to_string() };
    failed.control.leave(fate.clone()).unwrap();
    expect(2, fate);
    finished.control.leave(Fate::Finished).unwrap();
    expect(1, Fate::Finished);
    remaining.control.leave(Fate::Finished).unwrap();
    assert_eq!(coordinator.wait(PATIENCE), Progress::Ended);
    log.expect("worker 3 is gone: its connection closed");
    log.expect("worker 2 is gone: it failed: out of memory");
}

#[test]
fn workers_see_that_the_coordinator_has_gone() {
    let (coordinator, _) = coordinator(1, |_| {});
    let mut joined = join(worker(&coordinator, None)).unwrap();
    coordinator.stop();
    assert!(matches!(joined.control.receive(PATIENCE), Err(NetError::CoordinatorGone)));
}

#[test]
fn a_wrong_secret_is_called_that_on_both_sides_and_disturbs_nobody() {
    let (coordinator, log) = coordinator(2, |_| {});
    let first = start(worker(&coordinator, Some(0)));
    let mut stranger = worker(&coordinator, Some(1));
    stranger.secret = Secret::random().unwrap();
    let error = join(stranger).unwrap_err();
    assert!(matches!(error.cause(), NetError::WrongSecret), "{error}");
    assert!(error.to_string().starts_with("coordinator at 127.0.0.1:"), "{error}");
    log.expect("wrong secret");
    finish(vec![first, start(worker(&coordinator, Some(1)))]);
}

#[test]
fn a_coordinator_without_the_secret_is_found_out() {
    let (coordinator, _) = coordinator(1, |config| config.secret = Secret::random().unwrap());
    let error = join(worker(&coordinator, None)).unwrap_err();
    assert!(matches!(error.cause(), NetError::WrongSecret), "{error}");
}

#[test]
fn another_version_is_named_on_both_sides() {
    let (coordinator, log) = coordinator(1, |_| {});
    let mut stream = TcpStream::connect(coordinator.address()).unwrap();
    let mut hello = *b"PACELINE\x63\0\0\0 of whatever length it has in version 99";
    stream.write_all(&hello).unwrap();
    let mut theirs = [0; HELLO_BYTES];
    stream.read_exact(&mut theirs).unwrap();
    assert_eq!(theirs[8..12], PROTOCOL_VERSION.to_le_bytes());
    log.expect(&format!(
        "this side speaks version {PROTOCOL_VERSION} of the protocol, the other side version 99"
    ));

    // And the other way round: a coordinator of version 99.
    hello[8] = 99;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(&hello).unwrap();
        wait_for_exit(&mut stream);
    });
    let error = join(JoinConfig::new(address.to_string(), secret())).unwrap_err();
    let expected = NetError::OtherVersion { ours: PROTOCOL_VERSION, theirs: 99 };
    assert_eq!(error.cause().to_string(), expected.to_string());
    other.join().unwrap();
}

#[test]
fn something_else_at_the_address_is_called_that() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let other = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n").unwrap();
        wait_for_exit(&mut stream);
    });
    let error = join(JoinConfig::new(address.to_string(), secret())).unwrap_err();
    assert!(matches!(error.cause(), NetError::NotPaceline), "{error}");
    other.join().unwrap();

    let (coordinator, _) = coordinator(1, |_| {});
    let stream = TcpStream::connect(coordinator.address()).unwrap();
    let secret = secret();
    let terms = Terms {
        secret: &secret,
        purpose: Purpose::Peer,
        privacy: Privacy::Plain,
        timeout: PATIENCE,
    };
    let error = handshake::initiate(stream, terms).unwrap_err();
    assert!(matches!(error, NetError::OtherPurpose { .. }), "{error}");
}

#[test]
fn each_bad_wish_is_refused_by_name_while_the_job_goes_on() {
    let (coordinator, log) = coordinator(2, |_| {});
    let first = start(worker(&coordinator, Some(1)));
    coordinator_has(&coordinator, 1);

    let refused = |change: &dyn Fn(&mut JoinConfig)| {
        let mut config = worker(&coordinator, None);
        change(&mut config);
        join(config).unwrap_err()
    };
    let duplicate = refused(&|config| config.rank = Some(Rank(1)));
    assert!(matches!(duplicate.cause(), NetError::DuplicateRank { rank: Rank(1), .. }));
    let outside = refused(&|config| config.rank = Some(Rank(2)));
    assert!(matches!(outside.cause(), NetError::RankOutOfRange { rank: Rank(2), size: 2 }));
    let other_size = refused(&|config| config.size = Some(5));
    assert!(matches!(other_size.cause(), NetError::SizeDiffers { worker: 5, job: 2 }));
    let no_name = refused(&|config| config.host = Some(String::new()));
    assert!(matches!(no_name.cause(), NetError::Malformed { .. }), "{no_name}");

    let joined = finish(vec![first, start(worker(&coordinator, Some(0)))]);
    let late = refused(&|_| {});
    assert!(matches!(late.cause(), NetError::JobFull { size: 2 }), "{late}");
    drop(joined);
    for line in [
        "rank 1 is already taken by the worker at 127.0.0.1:",
        "rank 2 is out of range: the job has 2 workers",
        "started for a job of 5 workers, the coordinator for 2",
        "the host has no name",
        "the job already has its 2 workers",
    ] {
        log.expect(line);
    }
}

#[test]
fn who_does_not_come_in_time_is_named_to_those_who_did() {
    let (coordinator, log) =
        coordinator(4, |config| config.join_timeout = Duration::from_millis(1000));
    let waiting = [0, 2].map(|rank| start(worker(&coordinator, Some(rank))));
    for handle in waiting {
        let error = handle.join().unwrap().unwrap_err();
        let NetError::JoinTimeout { joined: 2, size: 4, missing, .. } = error.cause() else {
            panic!("{error}");
        };
        assert_eq!(*missing, [Rank(1), Rank(3)]);
    }
    log.expect("2 of 4 workers joined within 1 s; missing ranks 1, 3");
    assert!(matches!(coordinator.progress(), Progress::Failed(_)));
    // Whoever comes later is told the same.
    let late = join(worker(&coordinator, Some(1))).unwrap_err();
    assert!(matches!(late.cause(), NetError::JoinTimeout { .. }), "{late}");
}

#[test]
fn a_worker_that_leaves_early_frees_its_place() {
    let (coordinator, log) = coordinator(2, |_| {});
    let mut early = by_hand(&coordinator, Privacy::Plain);
    early.stream.write_all(&framed(JOIN_AS_RANK_1)).unwrap();
    coordinator_has(&coordinator, 1);
    drop(early);
    coordinator_has(&coordinator, 0);
    log.expect("worker 1 at 127.0.0.1:");
    log.expect("left before it took part");
    finish([0, 1].map(|rank| start(worker(&coordinator, Some(rank)))).into_iter().collect());
}

#[test]
fn messages_that_are_too_long_or_no_messages_are_refused_by_name() {
    let (coordinator, log) = coordinator(1, |_| {});
    for (bytes, expected) in [
        (&(u32::MAX).to_le_bytes()[..], "of 4294967295 bytes; at most 1048576 are allowed"),
        (&framed(b"{\"join\": 7}")[..], "malformed worker's message"),
        (&framed(b"")[..], "malformed worker's message"),
        (&framed(b"{\"leave\":{\"fate\":\"finished\"}}")[..], "must ask to take part"),
    ] {
        let mut connection = by_hand(&coordinator, Privacy::Plain);
        connection.stream.write_all(bytes).unwrap();
        let answer = decode_coordinator_message(&read_frame(&mut connection.stream)).unwrap();
        assert!(matches!(answer, CoordinatorMessage::Refused(_)), "{answer:?}");
        log.expect(expected);
    }
    join(worker(&coordinator, None)).unwrap();
}

#[test]
fn a_sealed_control_channel_is_used_where_one_side_asks_for_it() {
    let (coordinator, _) = coordinator(1, |_| {});
    let mut connection = by_hand(&coordinator, Privacy::Sealed);
    let seal = connection.seal.as_mut().expect("sealed, because we asked for it");
    let mut sealed = Vec::new();
    let join = JOIN_AS_RANK_1.replace(|byte| byte == b'1', b'0');
    seal.seal_into(&framed(&join), &mut sealed);
    connection.stream.write_all(&sealed).unwrap();
    let answer = loop {
        assert_ne!(seal.receiver.read_from(&mut connection.stream).unwrap(), 0);
        if let Some(plain) = seal.receiver.next_record().unwrap() {
            break plain.to_vec();
        }
    };
    let welcome = decode_coordinator_message(&answer[4..]).unwrap();
    assert!(matches!(welcome, CoordinatorMessage::Welcome { rank: Rank(0), .. }));
}

#[test]
fn a_job_that_cannot_be_is_refused_before_it_starts() {
    let listen = "127.0.0.1:0".parse().unwrap();
    let start = |size: usize, change: &dyn Fn(&mut Settings)| {
        let mut config = paceline_net::CoordinatorConfig::new(listen, size, secret());
        change(&mut config.settings);
        Coordinator::start(config).unwrap_err()
    };
    assert!(matches!(start(0, &|_| {}), NetError::SizeZero));
    assert!(matches!(start(100_000, &|_| {}), NetError::TooManyWorkers { .. }));
    let no_credit = start(1, &|settings| settings.credit = paceline_job::ByteSize(0));
    assert!(matches!(no_credit, NetError::Settings(_)));

    let (coordinator, _) = coordinator(1, |_| {});
    let config = paceline_net::CoordinatorConfig::new(coordinator.address(), 1, secret());
    let error = Coordinator::start(config).unwrap_err();
    assert!(matches!(error, NetError::PortInUse { .. }), "{error}");
}

#[test]
fn a_coordinator_that_is_not_there_is_named_with_its_address() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let mut config = JoinConfig::new(address.to_string(), secret());
    config.timeout = Duration::from_millis(300);
    let error = join(config).unwrap_err();
    assert!(matches!(error.cause(), NetError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains(&address.to_string()), "{error}");
}

const JOIN_AS_RANK_1: &[u8] = br#"{"join":{"rank":1,"size":null,"host":"a","address":"[::]:9"}}"#;

trait ReplaceBytes {
    fn replace(&self, which: impl Fn(u8) -> bool, with: u8) -> Vec<u8>;
}

impl ReplaceBytes for [u8] {
    fn replace(&self, which: impl Fn(u8) -> bool, with: u8) -> Vec<u8> {
        self.iter().map(|byte| if which(*byte) { with } else { *byte }).collect()
    }
}

/// A worker that this test plays itself, up to the end of its handshake.
fn by_hand(coordinator: &Coordinator, privacy: Privacy) -> Connection {
    let stream = TcpStream::connect(coordinator.address()).unwrap();
    let secret = secret();
    let terms =
        Terms { secret: &secret, purpose: Purpose::Coordinator, privacy, timeout: PATIENCE };
    handshake::initiate(stream, terms).unwrap()
}

fn coordinator_has(coordinator: &Coordinator, expected: usize) {
    Recorder::eventually(|| coordinator.progress() == Progress::Gathering { joined: expected });
}
