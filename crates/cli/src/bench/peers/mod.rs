//! The programs we are measured against, and how they come to be on this machine: what is missing is
//! installed or compiled after saying so. Peers are given what they need to do well and nothing else; how
//! they are driven and judged is not known here.

mod gloo;
mod installation;
mod openmpi;

use super::{contender::Contender, interrupt::Interrupt};
use anyhow::Result;
use clap::ValueEnum;
use std::path::{Path, PathBuf};

/// Whom to measure against.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Peer {
    /// Gloo through PyTorch, over TCP loopback (it has no other transport for processors).
    Gloo,
    /// Open MPI over shared memory.
    Openmpi,
    /// Open MPI over TCP loopback.
    OpenmpiTcp,
}

impl Peer {
    /// Its name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Gloo => "gloo",
            Peer::Openmpi => "openmpi",
            Peer::OpenmpiTcp => "openmpi-tcp",
        }
    }

    /// Finds or installs what it needs.
    ///
    /// # Errors
    /// Say what is missing and which command would bring it; the benchmark goes on without that peer.
    pub fn prepare(self, place: &Place, interrupt: &Interrupt) -> Result<Contender> {
        match self {
            Peer::Gloo => gloo::prepare(place, interrupt),
            Peer::Openmpi => openmpi::prepare(openmpi::Transport::SharedMemory, place, interrupt),
            Peer::OpenmpiTcp => openmpi::prepare(openmpi::Transport::Tcp, place, interrupt),
        }
    }
}

/// Where peers live and how many of them run.
#[derive(Clone, Debug)]
pub struct Place {
    /// Kept from run to run: the virtual environment, the compiled worker.
    pub installed: PathBuf,
    /// Removed after this run.
    pub temporary: PathBuf,
    /// The same, for segments of shared memory.
    pub memory: PathBuf,
    /// Ranks of every contender.
    pub ranks: u32,
    /// Whether something may be installed.
    pub install: Install,
}

/// Whether something may be installed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Install {
    /// Whatever is missing.
    Missing,
    /// Nothing: a peer that is not there is left out.
    Nothing,
}

/// `.venv/peers` of the repository around `from`, or the user's cache outside of one.
pub fn default_folder(from: &Path) -> PathBuf {
    let repository = from.ancestors().find(|folder| folder.join("bench/peers").is_dir());
    match repository {
        Some(root) => root.join(".venv/peers"),
        None => {
            let home = || std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache"));
            let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).or_else(home);
            cache.unwrap_or_else(std::env::temp_dir).join("paceline/peers")
        }
    }
}
