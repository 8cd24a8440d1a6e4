//! A peer of the same host that offers shared memory and then fills it with nonsense, takes it away, or says
//! nothing at all: whoever reads it parts with it by name and goes on with everybody else.

mod trouble_support;

/// The ring as workers read it; the test holds its writing end.
#[path = "../src/runtime/ring.rs"]
#[allow(dead_code)]
mod ring;

use paceline_job::ViewVersion;
use paceline_net::{Joined, Transport, Worker, WorkerConfig};
use paceline_sync::frame::{Header, Kind, OpKey};
use ring::{RING_AREA_BYTES, RING_BYTES, Writer};
use std::{
    fs::File,
    io::{Read, Write},
    net::Shutdown,
    os::fd::{AsRawFd, FromRawFd},
    thread,
};
use trouble_support::*;

/// What workers expect of a segment: its size, and where its rings begin.
const SEGMENT_BYTES: u64 = 64 << 30;
const RINGS_AT: usize = 4096;

/// As much of it as the test needs.
const MAPPED_BYTES: usize = RINGS_AT + 3 * RING_AREA_BYTES as usize;

/// The broken peer's memory.
struct Segment {
    file: File,
    base: *mut u8,
}

#[derive(Clone, Copy, PartialEq)]
enum Seals {
    Set,
    Missing,
}

impl Segment {
    fn create(seals: Seals) -> Segment {
        // SAFETY: a literal name; the descriptor is new and owned by nobody else.
        let file = unsafe {
            let fd =
                libc::memfd_create(c"broken".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
            assert!(fd >= 0);
            File::from_raw_fd(fd)
        };
        file.set_len(SEGMENT_BYTES).unwrap();
        if seals == Seals::Set {
            // SAFETY: a plain system call on our descriptor.
            let code =
                unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, libc::F_SEAL_SHRINK) };
            assert_eq!(code, 0);
        }
        // SAFETY: a fresh shared mapping of the file's first bytes; the result is checked.
        let base = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            let nowhere = std::ptr::null_mut();
            libc::mmap(nowhere, MAPPED_BYTES, protection, libc::MAP_SHARED, file.as_raw_fd(), 0)
        };
        assert_ne!(base, libc::MAP_FAILED);
        Segment { file, base: base.cast() }
    }

    /// The writing end of the ring that a worker reads.
    fn writer_to(&self, rank: u32) -> Writer {
        let at = RINGS_AT + rank as usize * RING_AREA_BYTES as usize;
        // SAFETY: inside the mapping, zero, aligned; the segment outlives the writer in every test.
        unsafe { Writer::new(self.base.add(at)) }
    }

    fn fill(&self, mut word: impl FnMut() -> u64) {
        // The first page's beginning names the segment.
        for at in (RINGS_AT..MAPPED_BYTES).step_by(8) {
            // SAFETY: inside the mapping. That others read it at the same time is the point.
            unsafe { self.base.add(at).cast::<u64>().write_volatile(word()) };
        }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: our own mapping, whose users are gone.
        unsafe { libc::munmap(self.base.cast(), MAPPED_BYTES) };
    }
}

/// Magic, process, descriptor, nonce: what workers of one host tell each other first.
fn offer(joined: &mut Joined, segment: &Segment) -> bool {
    // The nonce stays zero: it only has to be the same here and in the segment.
    let mut offer = [0; 32];
    offer[..8].copy_from_slice(b"plsegmt1");
    offer[8..12].copy_from_slice(&std::process::id().to_le_bytes());
    offer[12..16].copy_from_slice(&segment.file.as_raw_fd().to_le_bytes());
    let streams = || [0, 1].into_iter();
    for peer in streams() {
        joined.peers[peer][0].stream.write_all(&offer).unwrap();
    }
    for peer in streams() {
        let stream = &mut joined.peers[peer][0].stream;
        stream.read_exact(&mut [0; 32]).unwrap();
        stream.write_all(&[1]).unwrap();
    }
    streams().all(|peer| {
        let mut taken = [0];
        joined.peers[peer][0].stream.read_exact(&mut taken).unwrap();
        taken == [1]
    })
}

/// How the broken peer goes on.
#[derive(PartialEq)]
enum Then {
    /// It closes its connections, in case nobody has noticed anything.
    Close,
    /// It stays until it has been noticed.
    Stay,
}

/// Two workers, and a peer that a test plays. When it is through, it wakes them.
fn with_broken_peer(seals: Seals, play: impl FnOnce(&Segment, bool) -> Then) -> [Seen; 2] {
    count_panics();
    let job = &Job::new(3, settings());
    thread::scope(|scope| {
        let workers = [0, 1].map(|rank| {
            scope.spawn(move || {
                let (worker, _) = job.start(rank, "one host", Transport::Auto);
                see(&worker)
            })
        });
        let segment = Segment::create(seals);
        let mut joined = job.join(BROKEN, "one host");
        let taken = offer(&mut joined, &segment);
        let then = play(&segment, taken);
        let wake = Header::control(Kind::Wake, key(0)).encode();
        for peer in [0, 1] {
            let stream = &mut joined.peers[peer][0].stream;
            // It may be closed already.
            let _ = stream.write_all(&wake);
            if then == Then::Close {
                let _ = stream.shutdown(Shutdown::Write);
            }
        }
        let seen = workers.map(|worker| worker.join().unwrap());
        assert_no_panics();
        seen
    })
}

fn key(name: u64) -> OpKey {
    OpKey { name, uses: 0, view: ViewVersion(1) }
}

fn record(kind: u8, number: u32, header: Option<Header>, rest: &[u8]) -> Vec<u8> {
    let mut record = vec![kind, 0, 0, 0];
    record.extend(number.to_le_bytes());
    record.extend(header.iter().flat_map(Header::encode));
    record.extend(rest);
    record
}

const FRAME: u8 = 1;
const REFERENCE: u8 = 2;
const RECEIPT: u8 = 3;
const PLACED: u8 = 5;

#[test]
fn records_that_no_worker_writes_are_refused_by_name() {
    let abort = Header { len: 9, ..Header::control(Kind::Abort, key(5)) };
    let data = Header { charged: true, len: 20_000, ..Header::control(Kind::Data, key(5)) };
    let small = Header { len: 16, ..data };
    let mut unknown = record(FRAME, 0, Some(small), &[0; 16]);
    unknown[8] = 77;
    for (bytes, words) in [
        (Vec::new(), "unknown kind"),
        (record(99, 0, Some(small), &[0; 16]), "unknown kind"),
        (unknown, "unknown kind 77"),
        (vec![RECEIPT, 0, 0, 0, 1], "half a receipt"),
        (record(RECEIPT, 7, None, &[]), "receipt for nothing"),
        (record(RECEIPT, u32::MAX, None, &[]), "receipt for nothing"),
        (record(FRAME, 0, None, &[1; 47]), "half a frame"),
        (record(FRAME, 0, Some(abort), &[0; 8]), "another length"),
        (record(FRAME, 0, Some(small), &[0; 15]), "another length"),
        (record(FRAME, 0, Some(Header { len: 0, ..small }), &[]), "another length"),
        (record(REFERENCE, 0, Some(data), &[0; 7]), "half a reference"),
        (record(REFERENCE, 0, Some(data), &u64::MAX.to_le_bytes()), "outside its memory"),
        (
            record(REFERENCE, 0, Some(data), &(SEGMENT_BYTES - 1).to_le_bytes()),
            "outside its memory",
        ),
        (record(REFERENCE, 0, Some(Header { len: 0, ..data }), &[0; 8]), "outside its memory"),
        (record(PLACED, 0, Some(data), &[]), "not due"),
        (record(PLACED, 0, Some(abort), &[]), "no place"),
    ] {
        let seen = with_broken_peer(Seals::Set, |segment, taken| {
            assert!(taken);
            assert!(segment.writer_to(0).push(&[&bytes]));
            Then::Stay
        });
        assert_parted(seen, &[words]);
    }
}

#[test]
fn memory_full_of_nonsense_harms_nobody_else() {
    let interesting = [0, 1, 5, 8, 13, 16, 56, 64, RING_BYTES, RING_BYTES - 8, 1 << 40, u64::MAX];
    let mut random = 0x5eed_u64;
    let mut next = move || {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random
    };
    for round in 0..40 {
        let seen = with_broken_peer(Seals::Set, |segment, taken| {
            assert!(taken);
            // More than once: readers look while it changes.
            for _ in 0..4 {
                match round % 3 {
                    0 => segment.fill(&mut next),
                    1 => segment.fill(|| interesting[(next() >> 32) as usize % interesting.len()]),
                    _ => {
                        let word = interesting[round % interesting.len()];
                        segment.fill(|| word);
                    }
                }
            }
            Then::Close
        });
        assert_parted(seen, &[]);
    }
}

#[test]
fn memory_that_could_be_taken_away_is_not_used() {
    // A mapping of a file that its owner cut short would end the reader with a bus error.
    let seen = with_broken_peer(Seals::Missing, |segment, taken| {
        assert!(!taken);
        segment.file.set_len(0).unwrap();
        Then::Close
    });
    assert_parted(seen, &["closed"]);
}

#[test]
fn a_peer_that_says_nothing_about_its_memory_is_named() {
    let job = &Job::new(2, settings());
    let start = || Worker::start(job.join(0, "one host"), WorkerConfig::default()).map(drop);
    thread::scope(|scope| {
        let worker = scope.spawn(start);
        let joined = job.join(1, "one host");
        assert_names(worker.join().unwrap(), 1, &["silent for 10 s", "shared memory"]);
        drop(joined);
    });
    let job = &Job::new(2, settings());
    let start = || Worker::start(job.join(0, "one host"), WorkerConfig::default()).map(drop);
    thread::scope(|scope| {
        let worker = scope.spawn(start);
        drop(job.join(1, "one host"));
        assert_names(worker.join().unwrap(), 1, &["closed the connection", "shared memory"]);
    });
}
