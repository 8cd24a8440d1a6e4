//! A peer that joined in good order and then sends what no worker sends: whoever receives it parts with that
//! peer by name, and goes on with everybody else.

mod trouble_support;

use paceline_job::{Dtype, ReduceOp, ViewVersion};
use paceline_net::{Encryption, Joined, Transport, Worker, WorkerConfig, join};
use paceline_sync::frame::{HEADER_BYTES, Header, Kind, OpKey};
use std::{
    io::{Read, Write},
    net::{Shutdown, TcpStream},
    thread,
};
use trouble_support::*;

/// Two workers and a peer that a test plays; in the ring it sends to worker 0 and hears from worker 1. It is given its connections and the header of worker 1's
/// first message to it.
fn with_broken_peer(play: impl FnOnce(&mut TcpStream, Header) + Send) -> [Seen; 2] {
    count_panics();
    let job = &Job::new(3, settings());
    thread::scope(|scope| {
        let workers = [0, 1].map(|rank| {
            scope.spawn(move || {
                let (worker, _) = job.worker(rank, "one host");
                see(&worker)
            })
        });
        let mut joined = job.join(BROKEN, "another host");
        let message = first_message(&mut joined);
        play(&mut joined.peers[0][0].stream, message);
        let seen = workers.map(|worker| worker.join().unwrap());
        drop(joined);
        assert_no_panics();
        seen
    })
}

fn first_message(joined: &mut Joined) -> Header {
    let mut header = [0; HEADER_BYTES];
    let stream = &mut joined.peers[1][0].stream;
    loop {
        stream.read_exact(&mut header).unwrap();
        let header = Header::decode(&header).unwrap();
        if header.kind == Kind::Data {
            return header;
        }
        stream.read_exact(&mut vec![0; header.payload_bytes()]).unwrap();
    }
}

fn unknown_key() -> OpKey {
    OpKey { name: 0x5eed, uses: 0, view: ViewVersion(1) }
}

fn data(len: u32) -> Header {
    let header = Header::control(Kind::Data, unknown_key());
    Header { charged: true, dtype: Dtype::F32, len, ..header }
}

#[test]
fn bytes_that_are_no_frame_are_refused_by_name() {
    let spoiled = |at: usize, value: u8| {
        let mut bytes = data(16).encode();
        bytes[at] = value;
        bytes
    };
    let mut absurd = data(16).encode();
    absurd[32..36].fill(0xff);
    let mut talkative = Header::control(Kind::Abort, unknown_key()).encode();
    talkative[32..36].copy_from_slice(&5000_u32.to_le_bytes());
    for (bytes, words) in [
        (spoiled(0, 77), "unknown kind 77"),
        (spoiled(1, 2), "charged = 2"),
        (spoiled(2, 99), "element type = 99"),
        (spoiled(3, 99), "reduction = 99"),
        (absurd, "announces 4294967295 bytes"),
        (talkative, "announces 5000 bytes; the limit is 4096"),
        (data(0).encode(), "without data"),
    ] {
        let seen = with_broken_peer(|stream, _| stream.write_all(&bytes).unwrap());
        assert_parted(seen, &[words]);
    }
}

#[test]
fn data_that_no_instruction_waits_for_is_refused_by_name() {
    type Change = fn(&mut Header);
    let changes: [(Change, &str); 6] = [
        (|header| header.chunk = 1000, "a chunk that does not exist"),
        (|header| header.chunk = u32::MAX, "a chunk that does not exist"),
        (|header| header.slot.lane = u32::MAX, "a lane that does not exist"),
        (|header| header.slot.pc = u32::MAX, "an instruction that receives nothing"),
        (|header| header.slot.pc = 1000, "an instruction that receives nothing"),
        (|header| header.kind = Kind::StallReply, "gave an answer about a tensor that is none"),
    ];
    for (change, words) in changes {
        let seen = with_broken_peer(|stream, mut header| {
            change(&mut header);
            if header.kind != Kind::Data {
                header.len = 1;
            }
            stream.write_all(&header.encode()).unwrap();
            stream.write_all(&vec![0xff; header.len as usize]).unwrap();
        });
        assert_parted(seen, &[words]);
    }
}

#[test]
fn more_than_was_granted_for_tensors_nobody_posted_is_refused_by_name() {
    let beyond = data(64 * 1024 + 4);
    let unasked = Header { charged: false, ..data(4) };
    for header in [beyond, unasked] {
        let seen = with_broken_peer(|stream, _| {
            stream.write_all(&header.encode()).unwrap();
            stream.write_all(&vec![0; header.len as usize]).unwrap();
        });
        assert_parted(seen, &["beyond the 65536 it was granted"]);
    }
    // Piece by piece it is no different: the window is for all of them together.
    let seen = with_broken_peer(|stream, _| {
        for name in 0..100 {
            let key = OpKey { name, ..unknown_key() };
            let header = Header { key, ..data(1024) };
            // It may have been refused before all is written.
            if stream
                .write_all(&header.encode())
                .and_then(|()| stream.write_all(&[0; 1024]))
                .is_err()
            {
                return;
            }
        }
    });
    assert_parted(seen, &["beyond the 65536 it was granted"]);
}

#[test]
fn a_frame_that_ends_in_the_middle_is_the_end_of_its_sender() {
    let goodbye = Header::control(Kind::Goodbye, unknown_key()).encode();
    let begun = [&data(1000).encode()[..], &[0; 500]].concat();
    for bytes in [
        data(1000).encode()[..20].to_vec(),
        begun.clone(),
        Header { len: 4, ..Header::control(Kind::Abort, unknown_key()) }.encode().to_vec(),
        // Whoever says goodbye in the middle of a message has not left in good order.
        [&goodbye[..], &begun].concat(),
        [&goodbye[..], &goodbye[..10]].concat(),
    ] {
        let seen = with_broken_peer(|stream, _| {
            stream.write_all(&bytes).unwrap();
            stream.shutdown(Shutdown::Both).unwrap();
        });
        assert_parted(seen, &["closed"]);
    }
}

#[test]
fn a_message_that_stays_half_when_its_sender_says_goodbye_keeps_nobody_waiting() {
    let seen = with_broken_peer(|stream, message| {
        // Worker 0 waits for this one: half of it comes.
        let goodbye = Header::control(Kind::Goodbye, unknown_key()).encode();
        stream.write_all(&goodbye).unwrap();
        stream.write_all(&message.encode()).unwrap();
        stream.write_all(&vec![0; message.len as usize / 2]).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    });
    assert_parted(seen, &["closed"]);
}

#[test]
fn whoever_leaves_in_good_order_is_named_by_those_who_need_it() {
    let seen = with_broken_peer(|stream, _| {
        stream.write_all(&Header::control(Kind::Goodbye, unknown_key()).encode()).unwrap();
        stream.shutdown(Shutdown::Both).unwrap();
    });
    assert_parted(seen, &["left the job"]);
}

#[test]
fn random_bytes_on_a_proven_connection_harm_nobody_else() {
    let mut random = 0x5eed_u64;
    for round in 0..20 {
        let mut bytes = vec![0; 3000];
        for byte in &mut bytes {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            *byte = random as u8;
        }
        // Some of them begin well.
        bytes[0] = 1 + round % 12;
        bytes[1..4].copy_from_slice(&[round & 1, round % 9, round % 5]);
        bytes[34..36].fill(0);
        let seen = with_broken_peer(|stream, _| {
            // It may have been refused before all is written.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Both);
        });
        assert_parted(seen, &[]);
    }
}

#[test]
fn plain_bytes_on_a_sealed_connection_are_called_that() {
    count_panics();
    let job = &Job::new(2, settings());
    let sealed = |rank: u32| {
        let mut config = job.join_config(rank, &format!("host {rank}"));
        config.encryption = Encryption::Always;
        join(config).unwrap()
    };
    thread::scope(|scope| {
        let worker = scope.spawn(|| {
            let config = WorkerConfig { transport: Transport::Tcp, ..WorkerConfig::default() };
            let worker = Worker::start(sealed(0), config).unwrap();
            worker.all_reduce("x", &mut [1_f32; 100], ReduceOp::Sum)
        });
        let mut joined = sealed(1);
        joined.peers[0][0].stream.write_all(&data(16).encode().repeat(10)).unwrap();
        assert_names(worker.join().unwrap(), 1, &["altered, reordered or replayed"]);
    });
    assert_no_panics();
}

#[test]
fn answers_that_nobody_reads_do_not_pile_up_for_ever() {
    let seen = with_broken_peer(|stream, message| {
        let request = Header::control(Kind::Request, message.key).encode().repeat(1000);
        // Each is answered. The answers fill the socket, then the queue, and then it is over.
        for _ in 0..100_000 {
            if stream.write_all(&request).is_err() {
                return;
            }
        }
        panic!("it may ask for ever");
    });
    assert_parted(seen, &["reads none of"]);
}
