//! `paceline demo`: a real network, trained on four worker processes of this machine, through everything that can happen to a
//! job. This file reads the command line and checks that the demo can run; `stages.rs` is what happens.

mod course;
mod direction;
mod images;
mod learner;
mod memory;
mod outcome;
mod prediction;
mod protocol;
mod rates;
mod report;
mod screen;
mod show;
mod staff;
mod stages;
pub mod worker;

use crate::{
    bench::interrupt::Interrupt,
    exit::UsageError,
    ui::{Hands, Page, UiOptions},
};
use anyhow::{Context, Result};
use clap::Args;
use direction::{Conditions, Demo};
use images::Data;
use paceline_job::{ByteSize, Rate};
use show::Show;
use stages::{USUAL_SECONDS, WORKERS};
use std::{
    io::{self, Write},
    net::{Ipv4Addr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
};

/// What a worker takes besides its images, at most: parameters, activations of a batch, buffers of links.
const WORKER_BYTES: u64 = 32 << 20;

/// The slowest link that can be asked for.
const LEAST_MEGABITS: f64 = 5.0;

/// See in two minutes what this does: a job that is scheduled, slowed down, tuned, hurt, healed and predicted.
///
/// Trains a convolutional network on Fashion-MNIST with four worker processes of this machine. They stand for machines:
/// their links are paced to a rate at which communication matters. Needs no other program, no GPU and no privileges, and keeps to the
/// loopback interface. Every number that it shows is measured in this run.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline demo
  paceline demo --plain | tee demo.log
  paceline demo --json > demo.json
  paceline demo --ui
  paceline demo --data /usr/share/datasets/fashion-mnist --rate 50mbit

Exit codes:
  0  it ran to its end
  1  something failed, or it was interrupted
  2  the command line is wrong")]
pub struct DemoArgs {
    /// A folder with the four files of Fashion-MNIST or MNIST, compressed or not [default: 7,000 images that come with the
    /// command].
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,

    /// What each worker's link carries [default: what sends gradients in the time that computing takes].
    #[arg(long, value_name = "RATE")]
    rate: Option<Rate>,

    /// What the stages take together; shorter ones show less.
    #[arg(long, value_name = "N", default_value_t = USUAL_SECONDS, value_parser = clap::value_parser!(u64).range(1..=3600))]
    seconds: u64,

    /// Images of one worker in a step: more take longer to compute, for the same bytes to send.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..=64))]
    batch: u64,

    /// The port on loopback at which workers meet [default: any].
    #[arg(long, value_name = "PORT", default_value_t = 0, hide_default_value = true)]
    port: u16,

    /// Keep the recorded trace here, for `paceline replay` and Perfetto.
    #[arg(long, value_name = "DIR")]
    trace: Option<PathBuf>,

    #[command(flatten)]
    page: UiOptions,

    /// Lines instead of a view that is drawn again and again.
    #[arg(long)]
    plain: bool,

    /// Print what was measured as JSON; lines go to standard error.
    #[arg(long)]
    json: bool,
}

/// Run the command.
pub fn run(arguments: DemoArgs) -> Result<ExitCode> {
    let interrupt = Interrupt::listen_calmly()?;
    if let Some(rate) = arguments.rate {
        check_rate(rate)?;
    }
    let data = Data::load(arguments.data.as_deref())?;
    let needed = (WORKERS as u64 + 1) * (WORKER_BYTES + data.bytes() as u64);
    let images = data.train.len();
    drop(data);
    if let Some(free) = memory::available() {
        check_memory(needed, free)?;
    }
    check_port(arguments.port)?;
    if let Some(folder) = &arguments.trace {
        make_empty(folder)?;
    }
    let kept = tempfile::tempdir().context("there is no place for the trace")?;
    let traces = arguments.trace.clone().unwrap_or_else(|| kept.path().to_path_buf());
    let folder = arguments.data.as_ref().map(|folder| folder.to_string_lossy().into_owned());
    let conditions = Conditions {
        of: folder.unwrap_or_else(|| "Fashion-MNIST".to_string()),
        rate: arguments.rate,
        seconds: arguments.seconds as f64,
        batch: arguments.batch,
        port: arguments.port,
        traces,
    };
    let page = Page::open(&arguments.page, Hands::Off)?;
    let mut show = Show::suitable(arguments.plain, arguments.json)?;
    show.line(&format!(
        "a convolutional network learns from {images} images of {}",
        conditions.of
    ))?;
    let demo = Demo::new(conditions, arguments.data.as_deref(), &mut show, interrupt);
    let played = demo.shown_on(page.as_ref())?.play();
    // The terminal is as it was before anything else is said.
    drop(show);
    if let Some(page) = page {
        page.finish(if played.is_ok() { "finished" } else { "ended early" });
    }
    let outcome = played?;
    let said = match arguments.json {
        true => serde_json::to_string_pretty(&report::json(&outcome))? + "\n",
        false => report::table(&outcome),
    };
    let written = io::stdout().write_all(said.as_bytes()).and_then(|()| io::stdout().flush());
    written.context("what was measured cannot be written")?;
    Ok(ExitCode::SUCCESS)
}

/// A step's gradients must not take longer than anybody would watch.
fn check_rate(rate: Rate) -> Result<()> {
    if rate.bytes_per_second() >= 1e6 * LEAST_MEGABITS / 8.0 {
        return Ok(());
    }
    let text = format!("--rate {rate}: give {LEAST_MEGABITS}mbit or more, or a step takes minutes");
    Err(UsageError::new(text).into())
}

/// Workers meet there a moment later: whoever has it now will have it then.
fn check_port(port: u16) -> Result<()> {
    if let Err(error) = TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
        let remedy = "give another one, or leave it out for any that is free";
        return Err(UsageError::new(format!("--port {port}: {error}; {remedy}")).into());
    }
    Ok(())
}

/// A folder for the trace. Files of another run beside ours would be taken for workers of it.
fn make_empty(folder: &Path) -> Result<()> {
    let unusable = |why: &dyn std::fmt::Display| {
        let remedy = "give an empty folder or a new one";
        UsageError::new(format!("--trace {}: {why}; {remedy}", folder.display()))
    };
    std::fs::create_dir_all(folder).map_err(|error| unusable(&error))?;
    let mut files = std::fs::read_dir(folder).map_err(|error| unusable(&error))?;
    match files.next() {
        None => Ok(()),
        Some(_) => Err(unusable(&"there is something in it").into()),
    }
}

fn check_memory(needed: u64, free: u64) -> Result<()> {
    if free >= needed {
        return Ok(());
    }
    let (needed, free) = (ByteSize(needed).rounded(), ByteSize(free).rounded());
    let text = format!(
        "the demo needs about {needed} of memory and can have {free}: end something else first, or give its container more"
    );
    Err(UsageError::new(text).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_little_memory_is_said_before_anything_is_started() {
        assert!(check_memory(1 << 30, 1 << 30).is_ok());
        let refusal = check_memory(500 << 20, 100 << 20).unwrap_err().to_string();
        assert!(refusal.contains("500 MiB") && refusal.contains("100 MiB"), "{refusal}");
    }
}
