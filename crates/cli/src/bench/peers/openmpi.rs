//! Open MPI from the system's packages, and a worker in C compiled against it.

use super::{
    super::{contender::*, interrupt::Interrupt, shared_memory::Room},
    Install, Peer, Place, installation,
};
use anyhow::{Context, Result, bail, ensure};
use std::{
    ffi::OsString,
    fs,
    hash::{DefaultHasher, Hash, Hasher},
    path::{Path, PathBuf},
    process::Command,
};

const WORKER: &str = include_str!("../../../../../bench/peers/openmpi_worker.c");
/// What a rank's segment grows to, and a little for what lies beside it.
const SEGMENT_BYTES: u64 = 5 << 20;
const PACKAGES: [&str; 2] = ["libopenmpi-dev", "openmpi-bin"];

/// What carries its messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Its default on one machine.
    SharedMemory,
    /// Loopback, as between machines.
    Tcp,
}

/// Finds or installs Open MPI and compiles the worker; mpirun is the one process and speaks for all ranks.
pub fn prepare(transport: Transport, place: &Place, interrupt: &Interrupt) -> Result<Contender> {
    // Before anything is installed for a peer that could not run.
    if transport == Transport::SharedMemory {
        let needed = SEGMENT_BYTES * u64::from(place.ranks);
        let room = Room::of(&place.memory).context("look at shared memory")?;
        room.shortage(&place.memory, needed).map_or(Ok(()), |shortage| bail!(shortage))?;
    }
    if installation::find("mpirun").is_none() || installation::find("mpicc").is_none() {
        install(place, interrupt)?;
    }
    let mpirun = installation::find("mpirun").context("no mpirun on the path")?;
    let version = version(&mpirun)?;
    let worker = compile(&version, place, interrupt)?;

    let peer = match transport {
        Transport::SharedMemory => Peer::Openmpi,
        Transport::Tcp => Peer::OpenmpiTcp,
    };
    // Sockets go where the benchmark cleans up even after a killed rank, and so do segments.
    let own = place.temporary.join(peer.name());
    fs::create_dir_all(&own).with_context(|| format!("create {}", own.display()))?;
    Ok(Contender {
        name: peer.name().to_string(),
        processes: vec![Process {
            arguments: arguments(
                transport,
                shared_memory_layer(&version),
                place.ranks,
                &place.memory,
                &worker,
            ),
            program: mpirun,
            environment: vec![("TMPDIR".into(), own.into())],
        }],
        between_turns: BetweenTurns::Stopped,
        companion: None,
    })
}

fn arguments(
    transport: Transport,
    shared_memory: &str,
    ranks: u32,
    folder: &Path,
    worker: &Path,
) -> Vec<OsString> {
    let mut words: Vec<OsString> = vec!["-n".into(), ranks.to_string().into()];
    // More ranks than cores is the ordinary case here; nobody else's processes are pinned either.
    words.extend(["--oversubscribe", "--bind-to", "none"].map(OsString::from));
    // SAFETY: geteuid(2) has no preconditions.
    if unsafe { libc::geteuid() } == 0 {
        words.push("--allow-run-as-root".into());
    }
    let mut set = |key: &str, value: OsString| words.extend(["--mca".into(), key.into(), value]);
    set("pml", "ob1".into());
    // Ranks that wait must let the others run when there are more of them than cores.
    set("mpi_yield_when_idle", "1".into());
    set("oob_tcp_if_include", "lo".into());
    match transport {
        Transport::SharedMemory => {
            set("btl", format!("self,{shared_memory}").into());
            set(&format!("btl_{shared_memory}_backing_directory"), folder.into());
        }
        Transport::Tcp => {
            set("btl", "self,tcp".into());
            set("btl_tcp_if_include", "lo".into());
        }
    }
    words.push(worker.into());
    words
}

/// The shared-memory layer is called `vader` up to version 4 and `sm` from 5 on.
fn shared_memory_layer(version: &str) -> &'static str {
    let major = version.split(|c: char| !c.is_ascii_digit()).find(|digits| !digits.is_empty());
    match major.and_then(|digits| digits.parse::<u32>().ok()) {
        Some(major) if major >= 5 => "sm",
        _ => "vader",
    }
}

/// The first line of `mpirun --version`, which must be Open MPI's: other MPIs know none of our options.
fn version(mpirun: &Path) -> Result<String> {
    let output = Command::new(mpirun)
        .arg("--version")
        .output()
        .with_context(|| format!("run {}", mpirun.display()))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next().unwrap_or_default().to_string();
    ensure!(line.contains("Open MPI"), "{} is `{line}`, not Open MPI", mpirun.display());
    Ok(line)
}

/// Compiles once for each source and version.
fn compile(version: &str, place: &Place, interrupt: &Interrupt) -> Result<PathBuf> {
    let mut hasher = DefaultHasher::new();
    (WORKER, version).hash(&mut hasher);
    let folder = place.installed.join("openmpi");
    let worker = folder.join(format!("worker-{:016x}", hasher.finish()));
    if worker.is_file() {
        return Ok(worker);
    }
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    let source = place.temporary.join("openmpi_worker.c");
    fs::write(&source, WORKER).with_context(|| format!("write {}", source.display()))?;
    let built = folder.join(format!("worker-{}.new", std::process::id()));
    installation::run(
        "Compiling the Open MPI worker",
        Command::new("mpicc").args(["-O3", "-o"]).arg(&built).arg(&source),
        &place.temporary,
        interrupt,
    )?;
    // Two benchmarks may compile at the same time; each moves a whole file into place.
    fs::rename(&built, &worker).with_context(|| format!("create {}", worker.display()))?;
    Ok(worker)
}

fn install(place: &Place, interrupt: &Interrupt) -> Result<()> {
    let command = format!("apt-get install -y {}", PACKAGES.join(" "));
    // SAFETY: geteuid(2) has no preconditions.
    let root = unsafe { libc::geteuid() } == 0;
    let Some(apt) = installation::find("apt-get").filter(|_| root) else {
        bail!("needs Open MPI (mpirun and mpicc); on Debian or Ubuntu: sudo {command}");
    };
    ensure!(place.install == Install::Missing, "needs Open MPI: {command}");
    for (what, words) in [
        ("Reading the package lists: apt-get update".to_string(), &["update"][..]),
        (format!("Installing Open MPI: {command}"), &["install", "-y", PACKAGES[0], PACKAGES[1]]),
    ] {
        let mut apt = Command::new(&apt);
        apt.args(words).env("DEBIAN_FRONTEND", "noninteractive");
        installation::run(&what, &mut apt, &place.temporary, interrupt)
            .with_context(|| format!("needs Open MPI: {command}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shared_memory_layer_has_the_name_its_version_gives_it() {
        assert_eq!(shared_memory_layer("mpirun (Open MPI) 4.1.4"), "vader");
        assert_eq!(shared_memory_layer("mpirun (Open MPI) 5.0.3"), "sm");
        assert_eq!(shared_memory_layer("mpirun (Open MPI)"), "vader");
    }

    #[test]
    fn tcp_is_confined_to_loopback_and_never_falls_back_to_shared_memory() {
        let words = arguments(Transport::Tcp, "vader", 4, Path::new("/t"), Path::new("/w"));
        let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        assert!(line.contains("--mca btl self,tcp --mca btl_tcp_if_include lo"), "{line}");
        assert!(!line.contains("vader"), "{line}");
        assert!(line.ends_with(" /w"), "{line}");
    }
}
