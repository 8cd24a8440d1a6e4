//! Gloo, through PyTorch in a virtual environment of the benchmark's own.

use super::{super::contender::*, super::interrupt::Interrupt, Install, Peer, Place, installation};
use anyhow::{Context, Result, ensure};
use std::{fs, path::Path, process::Command};

const WORKER: &str = include_str!("../../../../../bench/peers/gloo_worker.py");
const TORCH: &str = "torch==2.13.0";

/// Finds or installs PyTorch; one process per rank.
pub fn prepare(place: &Place, interrupt: &Interrupt) -> Result<Contender> {
    let python = place.installed.join("bin/python");
    if let Err(why) = import(&python) {
        install(place, interrupt).with_context(|| why.clone())?;
        import(&python).map_err(anyhow::Error::msg)?;
    }
    let worker = place.temporary.join("gloo_worker.py");
    fs::write(&worker, WORKER).with_context(|| format!("write {}", worker.display()))?;
    let store = place.temporary.join("gloo.store");
    let processes = (0..place.ranks)
        .map(|rank| Process {
            program: python.clone(),
            arguments: vec![worker.clone().into()],
            environment: vec![
                ("RANK".into(), rank.to_string().into()),
                ("WORLD_SIZE".into(), place.ranks.to_string().into()),
                ("PACELINE_BENCH_STORE".into(), store.clone().into()),
                // The host's name need not resolve in a namespace that has loopback only.
                ("GLOO_SOCKET_IFNAME".into(), "lo".into()),
            ],
        })
        .collect();
    Ok(Contender {
        name: Peer::Gloo.name().to_string(),
        processes,
        between_turns: BetweenTurns::Stopped,
        companion: None,
    })
}

/// Tries to import what the worker needs; the error tells a missing interpreter from one that may not be
/// run or a broken installation.
fn import(python: &Path) -> Result<(), String> {
    let shown = python.display();
    let output = Command::new(python)
        .args(["-c", "import torch.distributed, numpy"])
        .output()
        .map_err(|error| format!("cannot run {shown} ({error})"))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = said.trim().lines().last().unwrap_or("no reason given").to_string();
    Err(format!("{shown} cannot import PyTorch ({reason})"))
}

fn install(place: &Place, interrupt: &Interrupt) -> Result<()> {
    let folder = &place.installed;
    let missing = format!(
        "needs PyTorch: python3 -m venv {0} && {0}/bin/pip install {TORCH} numpy",
        folder.display()
    );
    ensure!(place.install == Install::Missing, missing);
    let python = installation::find("python3").with_context(|| missing.clone())?;
    installation::run(
        &format!("Making a virtual environment for Gloo in {}", folder.display()),
        Command::new(python).args(["-m", "venv"]).arg(folder),
        &place.temporary,
        interrupt,
    )
    .with_context(|| missing.clone())?;
    installation::run(
        &format!("Installing PyTorch for Gloo ({TORCH}; about two minutes and 4.7 GB, once)"),
        Command::new(folder.join("bin/pip"))
            .args(["install", "--disable-pip-version-check", "--no-input"])
            .args([TORCH, "numpy"]),
        &place.temporary,
        interrupt,
    )
    .context(missing)
}
