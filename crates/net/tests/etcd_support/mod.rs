//! A real etcd for tests, on loopback, gone with its data when it is dropped.

#![allow(dead_code)] // Each test file uses its own part.

use paceline_net::store::Etcd;
use std::{
    net::TcpListener,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

pub struct Server {
    process: Child,
    folder: tempfile::TempDir,
    port: u16,
    peer_port: u16,
}

impl Server {
    /// None where no etcd is installed, which is said.
    pub fn start() -> Option<Server> {
        let mut server = Server {
            process: Command::new("true").spawn().ok()?,
            folder: tempfile::tempdir().unwrap(),
            port: free_port(),
            peer_port: free_port(),
        };
        server.restart().then_some(server)
    }

    /// Start it, or start it again with the data it had.
    pub fn restart(&mut self) -> bool {
        self.kill();
        let client = format!("http://127.0.0.1:{}", self.port);
        let peer = format!("http://127.0.0.1:{}", self.peer_port);
        let spawned = Command::new("etcd")
            .args(["--name", "one", "--data-dir"])
            .arg(self.folder.path())
            .args(["--listen-client-urls", &client, "--advertise-client-urls", &client])
            .args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer])
            .args(["--initial-cluster", &format!("one={peer}")])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let Ok(process) = spawned else {
            eprintln!("skipped: no etcd is installed (Debian: apt-get install etcd-server)");
            return false;
        };
        self.process = process;
        let began = Instant::now();
        while self.etcd("is-it-up").locate().is_err() {
            assert!(began.elapsed() < Duration::from_secs(30), "etcd does not answer");
            thread::sleep(Duration::from_millis(50));
        }
        true
    }

    pub fn kill(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }

    pub fn address(&self, job: &str) -> String {
        format!("{}127.0.0.1:{}/{job}", Etcd::SCHEME, self.port)
    }

    pub fn etcd(&self, job: &str) -> Etcd {
        Etcd::parse(&self.address(job)).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

pub fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
