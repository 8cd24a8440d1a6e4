//! How fast records are sealed and opened on one core, beside the Noise library's own transport.
//! A measurement, not a test: `cargo test --release --test joining_seal_rate -- --ignored --nocapture`.

use paceline_net::{
    Connection, Secret,
    handshake::{self, Privacy, Purpose, Terms},
};
use std::{
    hint::black_box,
    net::{TcpListener, TcpStream},
    thread,
    time::{Duration, Instant},
};

const TOTAL_BYTES: usize = 1 << 30;
const REPEATS: usize = 5;

fn pair() -> (Connection, Connection) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let secret = Secret::random().unwrap();
    let side = |secret: Secret, stream: TcpStream, initiates: bool| {
        let terms = Terms {
            secret: &secret,
            purpose: Purpose::Peer,
            privacy: Privacy::Sealed,
            timeout: Duration::from_secs(30),
        };
        let shake = if initiates { handshake::initiate } else { handshake::respond };
        shake(stream, terms).unwrap()
    };
    let other = secret.clone();
    let initiator = thread::spawn(move || side(other, TcpStream::connect(address).unwrap(), true));
    let responder = side(secret, listener.accept().unwrap().0, false);
    (initiator.join().unwrap(), responder)
}

fn median(mut rates: Vec<f64>) -> String {
    rates.sort_by(f64::total_cmp);
    format!("{:5.2} GB/s ({:.2}-{:.2})", rates[rates.len() / 2], rates[0], rates[rates.len() - 1])
}

#[test]
#[ignore = "a measurement"]
fn seal_and_open_rates() {
    let (mut sender, mut receiver) = pair();
    let (sender, receiver) = (sender.seal.as_mut().unwrap(), receiver.seal.as_mut().unwrap());
    for chunk in [1 << 10, 16 << 10, 64 << 10, 256 << 10] {
        let plain: Vec<u8> = (0..chunk).map(|index| index as u8).collect();
        let mut sealed = Vec::new();
        let (mut seal_rates, mut open_rates) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..TOTAL_BYTES / 8 / chunk {
                sealed.clear();
                let start = Instant::now();
                sender.seal_into(black_box(&plain), &mut sealed);
                sealing += start.elapsed();

                let start = Instant::now();
                let mut bytes = &sealed[..];
                let mut opened = 0;
                while !bytes.is_empty() {
                    bytes = &bytes[receiver.receiver.feed(bytes)..];
                    while let Some(record) = receiver.receiver.next_record().unwrap() {
                        opened += black_box(record).len();
                    }
                }
                opening += start.elapsed();
                assert_eq!(opened, chunk);
            }
            let moved = (TOTAL_BYTES / 8 / chunk * chunk) as f64 / 1e9;
            seal_rates.push(moved / sealing.as_secs_f64());
            open_rates.push(moved / opening.as_secs_f64());
        }
        println!("{:>7} bytes: seal {}, open {}", chunk, median(seal_rates), median(open_rates));
    }
}

#[test]
#[ignore = "a measurement"]
fn noise_transport_rates() {
    let build = || snow::Builder::new("Noise_NN_25519_AESGCM_SHA256".parse().unwrap());
    let mut initiator = build().build_initiator().unwrap();
    let mut responder = build().build_responder().unwrap();
    let (mut message, mut payload) = (vec![0; 65_535], vec![0; 65_535]);
    let length = initiator.write_message(&[], &mut message).unwrap();
    responder.read_message(&message[..length], &mut payload).unwrap();
    let length = responder.write_message(&[], &mut message).unwrap();
    initiator.read_message(&message[..length], &mut payload).unwrap();
    let mut sender = initiator.into_transport_mode().unwrap();
    let mut receiver = responder.into_transport_mode().unwrap();
    for chunk in [1 << 10, 16 << 10, 65_519] {
        let plain = vec![7; chunk];
        let (mut seal_rates, mut open_rates) = (Vec::new(), Vec::new());
        for _ in 0..REPEATS {
            let (mut sealing, mut opening) = (Duration::ZERO, Duration::ZERO);
            for _ in 0..TOTAL_BYTES / 8 / chunk {
                let start = Instant::now();
                let length = sender.write_message(black_box(&plain), &mut message).unwrap();
                sealing += start.elapsed();
                let start = Instant::now();
                assert_eq!(receiver.read_message(&message[..length], &mut payload), Ok(chunk));
                opening += start.elapsed();
            }
            let moved = (TOTAL_BYTES / 8 / chunk * chunk) as f64 / 1e9;
            seal_rates.push(moved / sealing.as_secs_f64());
            open_rates.push(moved / opening.as_secs_f64());
        }
        println!(
            "snow {:>7} bytes: seal {}, open {}",
            chunk,
            median(seal_rates),
            median(open_rates)
        );
    }
}
