//! Our own side of the benchmark: the variants, and the processes that measure them. Their inner loop
//! is the hidden command `bench-worker`, which serves [`super::worker`]; this file only starts it.

use super::{bounds::Medium, contender::*, worker::Subject};
use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use std::{any::Any, ffi::OsString};

/// The hidden command of one rank.
pub const WORKER: &str = "bench-worker";

/// What carries the bytes of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Transport {
    /// Memory that the ranks of a host share.
    Shm,
    /// TCP over loopback, as between hosts.
    Tcp,
}

impl Transport {
    /// What is measured over it; the first is the one that ratios refer to.
    pub fn variants(self) -> &'static [Variant] {
        match self {
            Transport::Shm => &[Variant::Shm, Variant::Arena],
            Transport::Tcp => &[Variant::Tcp, Variant::TcpSealed],
        }
    }

    /// Whose limits belong into the table.
    pub fn media(self) -> &'static [Medium] {
        match self {
            Transport::Shm => &[Medium::Private, Medium::Arena],
            Transport::Tcp => &[Medium::Tcp],
        }
    }
}

/// One way to use ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Variant {
    /// Shared memory between hosts' ranks, the caller's buffers in private memory.
    Shm,
    /// The caller's buffers in the shared arena.
    Arena,
    /// Plain TCP.
    Tcp,
    /// Encrypted TCP.
    TcpSealed,
}

impl Variant {
    /// Its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Variant::Shm => "paceline-shm",
            Variant::Arena => "paceline-arena",
            Variant::Tcp => "paceline-tcp",
            Variant::TcpSealed => "paceline-tcp-sealed",
        }
    }
}

/// The processes of ours for one variant: `bench-worker` of this very program, once per rank, with the
/// coordinator as their companion. They sleep between turns, because the coordinator would take a
/// stopped worker for a dead one.
///
/// To be called inside the network that the workers shall use.
pub fn ours(variant: Variant, ranks: u32) -> Result<Contender> {
    let program = std::env::current_exe().context("find this program")?;
    let value = variant.to_possible_value().context("a variant without a name")?;
    let arguments = vec![WORKER.into(), "--variant".into(), value.get_name().into()];
    let coordinated = coordinate(variant, ranks)?;
    let processes = coordinated
        .environments
        .into_iter()
        .map(|environment| Process {
            program: program.clone(),
            arguments: arguments.clone(),
            environment,
        })
        .collect();
    Ok(Contender {
        name: variant.name().to_string(),
        processes,
        between_turns: BetweenTurns::Sleeping,
        companion: Some(coordinated.coordinator),
    })
}

/// A coordinator, and what each rank must have in its environment to find it.
struct Coordinated {
    coordinator: Box<dyn Any>,
    environments: Vec<Vec<(OsString, OsString)>>,
}

fn coordinate(_variant: Variant, _ranks: u32) -> Result<Coordinated> {
    bail!("this build has no worker of ours yet; --only-peers measures the others");
}

/// The worker's side: joins the job that the environment names.
pub fn join(variant: Variant) -> Result<Box<dyn Subject>> {
    bail!("this build cannot join as {}", variant.name());
}
