//! What the tests of joining share: a coordinator whose log can be read, and messages by hand.

#![allow(dead_code)] // Each test binary uses its part.

use paceline_net::{Coordinator, CoordinatorConfig, Log, Secret};
use std::{
    io::Read,
    net::TcpStream,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

/// How long a test waits for something that happens on another thread before it fails.
const PATIENCE: Duration = Duration::from_secs(30);

pub fn secret() -> Secret {
    Secret::from_text("a secret for these tests", "the test").unwrap()
}

/// A coordinator on loopback, and what it logs.
pub fn coordinator(
    size: usize,
    change: impl FnOnce(&mut CoordinatorConfig),
) -> (Coordinator, Recorder) {
    let recorder = Recorder::default();
    let mut config = CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), size, secret());
    config.log = recorder.log();
    config.join_timeout = PATIENCE;
    change(&mut config);
    (Coordinator::start(config).unwrap(), recorder)
}

/// Keeps lines.
#[derive(Clone, Default)]
pub struct Recorder(Arc<Mutex<Vec<String>>>);

impl Recorder {
    pub fn log(&self) -> Log {
        let lines = Arc::clone(&self.0);
        Log::to(move |line| lines.lock().unwrap().push(line.to_string()))
    }

    /// A line that contains `text` was logged, or is soon.
    pub fn expect(&self, text: &str) {
        let found = || self.0.lock().unwrap().iter().any(|line| line.contains(text));
        let deadline = Instant::now() + PATIENCE;
        while !found() {
            assert!(
                Instant::now() < deadline,
                "no line has `{text}`: {:#?}",
                self.0.lock().unwrap()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Wait for a condition.
    pub fn eventually(condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "it did not come to pass");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A message as it goes over a connection.
pub fn framed(body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32).to_le_bytes(), body].concat()
}

/// The next message of a plain connection.
pub fn read_frame(stream: &mut TcpStream) -> Vec<u8> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut body = vec![0; u32::from_le_bytes(length) as usize];
    stream.read_exact(&mut body).unwrap();
    body
}

/// Read until the other side has gone.
pub fn wait_for_exit(stream: &mut TcpStream) {
    let mut sink = [0; 1024];
    while stream.read(&mut sink).is_ok_and(|bytes| bytes > 0) {}
}
