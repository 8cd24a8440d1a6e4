//! Strangers and broken peers: whatever they send, nothing panics, no memory is set aside on their
//! word, nobody else waits for them, and each is refused by name.

mod joining_support;

use joining_support::{coordinator, framed, read_frame, secret, wait_for_exit};
use paceline_job::{Rank, ViewVersion};
use paceline_net::{
    Connection, JoinConfig, NetError, Secret,
    coordinator::{
        CoordinatorMessage, Introduction, IntroductionAnswer, JobId, Refusal,
        decode_coordinator_message, decode_introduction, decode_introduction_answer,
        decode_request, decode_worker_message,
    },
    handshake::{self, Hello, Privacy, Purpose, Terms, decode_hello},
    join,
};
use paceline_sync::agreement::Ballot;
use std::{
    alloc::{GlobalAlloc, Layout, System},
    io::Write,
    net::{Shutdown, TcpStream},
    panic,
    sync::{
        Once,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

/// Remembers the largest piece of memory that anybody asked for.
struct Watched;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static PANICS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// The largest buffer any connection owns (an opener's), and as much again for growth.
const LARGEST_ALLOWED: usize = 2 * paceline_net::sealed::OPENER_BYTES;

/// The coordinator greets on threads of its own, whose panics would go unseen.
fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let print = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.fetch_add(1, Ordering::Relaxed);
            print(info);
        }));
    });
}

fn assert_unharmed() {
    assert_eq!(PANICS.load(Ordering::Relaxed), 0, "something panicked; see above");
    let largest = LARGEST.load(Ordering::Relaxed);
    assert!(largest <= LARGEST_ALLOWED, "{largest} bytes were set aside at once");
}

/// A small generator, so that a failing case is the same on every run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    fn bytes(&mut self, most: usize) -> Vec<u8> {
        (0..self.below(most + 1)).map(|_| self.next() as u8).collect()
    }

    /// A good message with a few bytes changed, cut or added.
    fn spoil(&mut self, good: &[u8]) -> Vec<u8> {
        let mut bytes = good.to_vec();
        for _ in 0..1 + self.below(4) {
            match self.below(3) {
                0 if !bytes.is_empty() => {
                    let index = self.below(bytes.len());
                    bytes[index] = self.next() as u8;
                }
                1 => bytes.truncate(self.below(bytes.len() + 1)),
                _ => bytes.extend(self.bytes(8)),
            }
        }
        bytes
    }
}

fn terms(secret: &Secret, purpose: Purpose) -> Terms<'_> {
    Terms { secret, purpose, privacy: Privacy::Plain, timeout: Duration::from_secs(30) }
}

#[test]
fn random_bytes_from_strangers_harm_nobody() {
    count_panics();
    let (coordinator, _) = coordinator(1, |config| {
        config.handshake_timeout = Duration::from_millis(200);
    });
    let mut random = Random(0x5eed);
    let hello =
        Hello { purpose: Purpose::Coordinator, privacy: Privacy::Sealed, nonce: [1; 32] }.encode();
    for _ in 0..400 {
        let mut bytes = match random.below(3) {
            0 => random.bytes(200),
            1 => random.spoil(&hello),
            _ => hello.to_vec(),
        };
        bytes.extend(random.bytes(200));
        let mut stream = TcpStream::connect(coordinator.address()).unwrap();
        // It may have been refused before all is written.
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        wait_for_exit(&mut stream);
    }
    join(JoinConfig::new(coordinator.address().to_string(), secret())).unwrap();
    assert_unharmed();
}

#[test]
fn random_messages_from_holders_of_the_secret_harm_nobody() {
    count_panics();
    let (coordinator, _) = coordinator(1, |config| {
        config.handshake_timeout = Duration::from_millis(500);
    });
    let mut random = Random(0xfeed);
    let secret = secret();
    let good = br#"{"join":{"rank":7,"size":null,"host":"a","address":"127.0.0.1:9"}}"#;
    for case in 0..300 {
        let stream = TcpStream::connect(coordinator.address()).unwrap();
        let privacy = if case % 2 == 0 { Privacy::Plain } else { Privacy::Sealed };
        let terms = Terms { privacy, ..terms(&secret, Purpose::Coordinator) };
        let Connection { mut stream, seal } = handshake::initiate(stream, terms).unwrap();
        let mut bytes = match random.below(3) {
            0 => random.bytes(300),
            1 => framed(&random.spoil(good)),
            _ => random.spoil(&framed(good)),
        };
        if let Some(mut seal) = seal {
            let mut sealed = Vec::new();
            seal.seal_into(&bytes, &mut sealed);
            bytes = if random.below(2) == 0 { sealed } else { random.spoil(&sealed) };
        }
        let _ = stream.write_all(&bytes);
        let _ = stream.shutdown(Shutdown::Write);
        wait_for_exit(&mut stream);
    }
    join(JoinConfig::new(coordinator.address().to_string(), secret)).unwrap();
    assert_unharmed();
}

#[test]
fn decoders_take_any_bytes() {
    count_panics();
    let mut random = Random(0xdec0de);
    let good: [&[u8]; 4] = [
        br#"{"join":{"rank":1,"size":2,"host":"a","address":"127.0.0.1:9"}}"#,
        br#"{"gone":{"rank":1,"fate":{"failed":{"reason":"x"}}}}"#,
        br#"{"job":"0123456789abcdef","view":1,"rank":2,"index":0}"#,
        br#"{"refused":{"join_timeout":{"joined":1,"size":2,"waited":{"secs":1,"nanos":0},"missing":[1]}}}"#,
    ];
    for _ in 0..20_000 {
        let bytes = match random.below(5) {
            4 => random.bytes(100),
            index => random.spoil(good[index]),
        };
        let _ = decode_hello(&bytes);
        let _ = decode_request(&bytes);
        let _ = decode_worker_message(&bytes);
        let _ = decode_coordinator_message(&bytes);
        let _ = decode_introduction(&bytes);
        let _ = decode_introduction_answer(&bytes);
    }
    assert!(decode_request(good[0]).is_ok());
    assert!(decode_coordinator_message(good[1]).is_ok());
    assert!(decode_introduction(good[2]).is_ok());
    assert!(decode_coordinator_message(good[3]).is_ok());
    assert_unharmed();
}

#[test]
fn those_who_say_nothing_delay_nobody_and_are_dropped_by_name() {
    let (coordinator, log) = coordinator(2, |config| {
        config.handshake_timeout = Duration::from_secs(2);
    });
    // More than are greeted at once: the rest is turned away, and real workers try again.
    let silent: Vec<TcpStream> =
        (0..300).map(|_| TcpStream::connect(coordinator.address()).unwrap()).collect();
    let slow = thread::spawn({
        let mut stream = TcpStream::connect(coordinator.address()).unwrap();
        // A byte now and then is no better than silence.
        move || {
            while stream.write_all(b"P").is_ok() {
                thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let handles = [0, 1].map(|rank| {
        let mut config = JoinConfig::new(coordinator.address().to_string(), secret());
        config.rank = Some(Rank(rank));
        thread::spawn(move || join(config).unwrap())
    });
    for handle in handles {
        handle.join().unwrap();
    }
    log.expect("was silent for 2 s while we waited for a hello");
    slow.join().unwrap();
    drop(silent);
}

#[test]
fn a_peer_is_refused_by_name_unless_it_is_the_one_expected() {
    let (coordinator, _) = coordinator(3, |_| {});
    let workers = [0, 1].map(|rank| {
        let mut config = JoinConfig::new(coordinator.address().to_string(), secret());
        config.rank = Some(Rank(rank));
        thread::spawn(move || join(config))
    });

    // This test is rank 2.
    let secret = secret();
    let stream = TcpStream::connect(coordinator.address()).unwrap();
    let mut control = handshake::initiate(stream, terms(&secret, Purpose::Coordinator)).unwrap();
    let ask = br#"{"join":{"rank":2,"size":3,"host":"a","address":"127.0.0.1:9"}}"#;
    control.stream.write_all(&framed(ask)).unwrap();
    let answer = decode_coordinator_message(&read_frame(&mut control.stream)).unwrap();
    let CoordinatorMessage::Welcome { job, view, .. } = answer else { panic!("{answer:?}") };

    let visit = |target: usize, job: &JobId, version: u32, rank: u32| {
        let stream = TcpStream::connect(&view.workers[target].address).unwrap();
        let mut connection = handshake::initiate(stream, terms(&secret, Purpose::Peer)).unwrap();
        let introduction = Introduction {
            job: job.clone(),
            view: ViewVersion(version),
            attempt: Ballot::default(),
            rank: Rank(rank),
            index: 0,
        };
        let body = serde_json::to_vec(&introduction).unwrap();
        connection.stream.write_all(&framed(&body)).unwrap();
        let answer = decode_introduction_answer(&read_frame(&mut connection.stream)).unwrap();
        (answer, connection)
    };
    let refused = |target: usize, job: &JobId, version: u32, rank: u32| match visit(
        target, job, version, rank,
    )
    .0
    {
        IntroductionAnswer::Refused(refusal) => refusal,
        IntroductionAnswer::Accepted => panic!("rank {rank} was accepted"),
    };
    let stream = TcpStream::connect(&view.workers[0].address).unwrap();
    let other_secret = Secret::random().unwrap();
    let stranger = handshake::initiate(stream, terms(&other_secret, Purpose::Peer));
    assert!(matches!(stranger, Err(NetError::WrongSecret)));
    let other_job: JobId = serde_json::from_str("\"another job\"").unwrap();
    assert!(matches!(refused(0, &other_job, 1, 2), Refusal::OtherJob { .. }));
    assert!(matches!(refused(0, &job, 2, 2), Refusal::OtherView { .. }));
    for rank in [0, 3, u32::MAX] {
        assert!(matches!(refused(0, &job, 1, rank), Refusal::UnknownPeer { .. }));
    }
    let (answer, _to_rank_0) = visit(0, &job, 1, 2);
    assert_eq!(answer, IntroductionAnswer::Accepted);
    // Rank 1 has not heard of us yet, so rank 1's mesh is still open.
    let (answer, _to_rank_1) = visit(1, &job, 1, 2);
    assert_eq!(answer, IntroductionAnswer::Accepted);
    for worker in workers {
        assert_eq!(worker.join().unwrap().unwrap().peers.len(), 3);
    }
}

#[test]
fn a_second_peer_with_the_same_rank_is_refused() {
    let (coordinator, _) = coordinator(3, |_| {});
    let worker = thread::spawn({
        let mut config = JoinConfig::new(coordinator.address().to_string(), secret());
        config.rank = Some(Rank(0));
        config.timeout = Duration::from_secs(30);
        move || join(config)
    });
    // This test is ranks 1 and 2; rank 2 never connects, so that rank 0 stays open.
    let secret = secret();
    let asks = [1, 2].map(|rank| {
        let stream = TcpStream::connect(coordinator.address()).unwrap();
        let mut control =
            handshake::initiate(stream, terms(&secret, Purpose::Coordinator)).unwrap();
        let ask =
            format!(r#"{{"join":{{"rank":{rank},"size":3,"host":"a","address":"127.0.0.1:9"}}}}"#);
        control.stream.write_all(&framed(ask.as_bytes())).unwrap();
        control
    });
    let [mut first, second] = asks;
    let answer = decode_coordinator_message(&read_frame(&mut first.stream)).unwrap();
    let CoordinatorMessage::Welcome { job, view, .. } = answer else { panic!("{answer:?}") };
    let mut kept = Vec::new();
    let answers = [0, 1].map(|_| {
        let stream = TcpStream::connect(&view.workers[0].address).unwrap();
        let mut connection = handshake::initiate(stream, terms(&secret, Purpose::Peer)).unwrap();
        let introduction = Introduction {
            job: job.clone(),
            view: view.version,
            attempt: Ballot::default(),
            rank: Rank(1),
            index: 0,
        };
        let body = serde_json::to_vec(&introduction).unwrap();
        connection.stream.write_all(&framed(&body)).unwrap();
        let answer = decode_introduction_answer(&read_frame(&mut connection.stream)).unwrap();
        kept.push(connection);
        answer
    });
    assert_eq!(answers[0], IntroductionAnswer::Accepted);
    assert!(matches!(
        &answers[1],
        IntroductionAnswer::Refused(Refusal::DuplicateRank { rank: Rank(1), .. })
    ));
    // When rank 2 dies, rank 0 is told and need not wait for its deadline.
    drop(second);
    let error = worker.join().unwrap().unwrap_err();
    assert!(matches!(error, NetError::WorkerGone { rank: Rank(2), .. }), "{error}");
}
