//! Our own side of the benchmark: the variants, and the processes that measure them. Their inner loop
//! is the hidden command `bench-worker`, which serves [`super::worker`]; this file only starts it.

use super::{
    bounds::Medium,
    contender::*,
    worker::{Subject, Sums},
};
use anyhow::{Context, Result};
use clap::ValueEnum;
use paceline_job::{Rank, ReduceOp, Settings, StrategyChoice};
use paceline_net::{
    Buffer, Buffers, Coordinator, CoordinatorConfig, JoinConfig, Log, Operation, Secret, Worker,
    WorkerConfig,
    launch::{MeetingPoint, WorkerPlace, worker_environment},
};
use paceline_sync::{collective::Collective, program::Semantics, strategy};
use std::{
    any::Any,
    ffi::OsString,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

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
pub fn ours(variant: Variant, ranks: u32, settings: &Settings) -> Result<Contender> {
    let program = std::env::current_exe().context("find this program")?;
    let value = variant.to_possible_value().context("a variant without a name")?;
    let arguments = vec![WORKER.into(), "--variant".into(), value.get_name().into()];
    let coordinated = coordinate(variant, ranks, settings)?;
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

fn coordinate(variant: Variant, ranks: u32, settings: &Settings) -> Result<Coordinated> {
    let secret = Secret::random()?;
    let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let size = ranks as usize;
    let coordinator = Coordinator::start(CoordinatorConfig {
        settings: settings.clone(),
        log: Log::silent(),
        ..CoordinatorConfig::new(listen, size, secret.clone())
    })?;
    let environment = |rank: u32| {
        let place =
            WorkerPlace { rank: Rank(rank), size, local_rank: rank as usize, local_size: size };
        let address = coordinator.address();
        let meeting = MeetingPoint { master: address, coordinator: address, secret: &secret };
        let mut variables = worker_environment(place, meeting);
        if variant == Variant::TcpSealed {
            variables.push(("PACELINE_ENCRYPT_ALWAYS".to_string(), "1".to_string()));
        }
        variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    };
    let environments = (0..ranks).map(environment).collect();
    Ok(Coordinated { coordinator: Box::new(coordinator), environments })
}

/// The worker's side: joins the job that the environment names.
pub fn join(variant: Variant) -> Result<Box<dyn Subject>> {
    let transport = match variant {
        Variant::Shm | Variant::Arena => paceline_net::Transport::Auto,
        Variant::Tcp | Variant::TcpSealed => paceline_net::Transport::Tcp,
    };
    let joined = paceline_net::join(JoinConfig::from_env()?)?;
    let worker = Worker::start(joined, WorkerConfig { transport, ..WorkerConfig::default() })?;
    let reduce = reduction(&worker.view().settings.strategy);
    let arena = variant == Variant::Arena;
    Ok(Box::new(Measured { worker, reduce, arena, tensors: Vec::new() }))
}

/// What is measured of a strategy: a sum, or an average where it makes averages only.
pub fn reduction(choice: &StrategyChoice) -> ReduceOp {
    if paceline_sync::mixes(choice) { ReduceOp::Mix } else { ReduceOp::Sum }
}

/// A worker with the tensors that are being measured.
struct Measured {
    worker: Worker,
    reduce: ReduceOp,
    arena: bool,
    tensors: Vec<(Arc<str>, Buffer<f32>)>,
}

impl Subject for Measured {
    fn about(&self) -> String {
        let mut about = format!("paceline {}", env!("CARGO_PKG_VERSION"));
        for (most, strategy, _) in self.worker.choices().entries() {
            match most {
                u64::MAX if about.contains(';') => {
                    about += &format!("; {} otherwise", strategy.name());
                }
                u64::MAX => about += &format!("; {}", strategy.name()),
                most => about += &format!("; {} up to {} KiB", strategy.name(), most >> 10),
            }
        }
        about
    }

    fn place(&self) -> (u32, u32) {
        (self.worker.rank().0, self.worker.size() as u32)
    }

    fn sums(&self) -> Sums {
        let ranks = self.worker.size() as u32;
        match strategy::by_name(&self.worker.view().settings.strategy.0) {
            None => Sums::OfFirst(ranks),
            Some(strategy) => match strategy.semantics() {
                Semantics::Averaging => Sums::OfSome,
                Semantics::Reduce => Sums::OfFirst(strategy.contributors(ranks)),
            },
        }
    }

    fn allocate(&mut self, lengths: &[usize]) -> Result<()> {
        self.tensors.clear();
        for (index, length) in lengths.iter().enumerate() {
            let data = if self.arena {
                self.worker.alloc(*length)?.into()
            } else {
                vec![0.0; *length].into()
            };
            self.tensors.push((format!("tensor {index}").into(), data));
        }
        Ok(())
    }

    fn buffers(&mut self) -> Vec<&mut [f32]> {
        self.tensors.iter_mut().map(|(_, data)| &mut **data).collect()
    }

    fn barrier(&mut self) -> Result<()> {
        Ok(self.worker.barrier("bench")?)
    }

    fn all_reduce(&mut self) -> Result<()> {
        let reduce = self.reduce;
        let operation = |name: &Arc<str>, data: &[f32]| {
            Operation::new(name.clone(), Collective::AllReduce { len: data.len() as u64 })
                .reduce(reduce)
        };
        if let [(name, data)] = &mut self.tensors[..] {
            let operation = operation(name, data);
            return Ok(self.worker.run_in_place(operation, data)?);
        }
        let pending = self
            .tensors
            .drain(..)
            .map(|(name, data)| {
                let operation = operation(&name, &data);
                Ok((name, self.worker.start_with(operation, Buffers::InPlace(data))?))
            })
            .collect::<Result<Vec<_>>>()?;
        for (name, pending) in pending {
            let Buffers::InPlace(data) = pending.wait()? else { unreachable!("started in place") };
            self.tensors.push((name, data));
        }
        Ok(())
    }
}
