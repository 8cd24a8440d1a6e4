//! `paceline status` and `paceline resize`: words with a job that `paceline run --elastic` runs on this machine, or with one
//! whose coordinator is elsewhere.

use crate::{exit::UsageError, run::door, settings::parse_size};
use anyhow::{Result, bail};
use clap::Args;
use paceline_net::{
    Secret,
    coordinator::{Answer, MemberStatus, Question, Standing, Status, ask},
    store::Etcd,
};
use std::process::ExitCode;

/// Where a job is to be found.
#[derive(Clone, Debug)]
pub enum Place {
    /// Under its name, on this machine.
    Here(String),
    /// At its coordinator's `host:port`, or wherever etcd says that it is. For whoever holds the job's secret.
    There(String),
}

impl Place {
    fn text(&self) -> &str {
        let (Place::Here(text) | Place::There(text)) = self;
        text
    }
}

fn parse_place(text: &str) -> Result<Place, String> {
    if text.starts_with(Etcd::SCHEME) {
        Etcd::parse(text)?;
        return Ok(Place::There(text.to_string()));
    }
    match text.contains(':') {
        true => Ok(Place::There(text.to_string())),
        false => door::parse_name(text).map(Place::Here),
    }
}

fn put(place: &Place, question: Question) -> Result<Answer> {
    match place {
        Place::Here(name) => door::ask(name, &question),
        Place::There(address) => {
            let variable = |name: &str| std::env::var(name).ok();
            let secret = Secret::from_variables(&variable, &mut |it| eprintln!("paceline: {it}"));
            let secret = secret.map_err(|error| UsageError::new(error.to_string()))?;
            Ok(ask(address, &secret, question)?)
        }
    }
}

/// Say how an elastic job stands: its workers, step, view and speed, who is slow, and who was heard when.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline status resnet
  PACELINE_SECRET_FILE=~/job.secret paceline status etcd://10.0.0.1:2379/resnet
  PACELINE_SECRET_FILE=~/job.secret paceline status 10.0.0.1:29400")]
pub struct StatusArgs {
    /// The job's name, as `paceline run --elastic` says it; or etcd://HOST:PORT/JOB, or the HOST:PORT of its coordinator, which need
    /// the job's PACELINE_SECRET or PACELINE_SECRET_FILE.
    #[arg(value_name = "JOB", value_parser = parse_place)]
    pub job: Place,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Give an elastic job another number of workers, while it trains.
///
/// Spares are let in first (`paceline run --spare`); more are started where `paceline run` runs, and take part when they are
/// ready. Those that are too many finish their step and end. A job that meets in etcd, or at `paceline coordinator`, has nobody
/// who starts workers: there this makes it smaller, and workers that are started as the others were make it larger.
#[derive(Clone, Debug, Args)]
#[command(after_help = "\
Examples:
  paceline resize resnet 6
  PACELINE_SECRET_FILE=~/job.secret paceline resize etcd://10.0.0.1:2379/resnet 12")]
pub struct ResizeArgs {
    /// The job's name, as `paceline run --elastic` says it; or etcd://HOST:PORT/JOB, or the HOST:PORT of its coordinator, which need
    /// the job's PACELINE_SECRET or PACELINE_SECRET_FILE.
    #[arg(value_name = "JOB", value_parser = parse_place)]
    pub job: Place,

    /// How many workers it is to have.
    #[arg(value_name = "WORKERS", value_parser = parse_size)]
    pub size: usize,
}

/// Ask and print.
pub fn status(arguments: &StatusArgs) -> Result<ExitCode> {
    match put(&arguments.job, Question::Status)? {
        Answer::Status(status) if arguments.json => println!("{}", serde_json::to_string(&status)?),
        Answer::Status(status) => print!("{}", shown(arguments.job.text(), &status)),
        Answer::Refused(reason) => bail!("{reason}"),
        Answer::Begun => bail!("the job answered another question"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ask for it; it happens soon after.
pub fn resize(arguments: &ResizeArgs) -> Result<ExitCode> {
    match put(&arguments.job, Question::Resize(arguments.size))? {
        Answer::Begun => Ok(ExitCode::SUCCESS),
        Answer::Refused(reason) => bail!("{reason}"),
        Answer::Status(_) => bail!("the job answered another question"),
    }
}

fn shown(name: &str, status: &Status) -> String {
    let working = status.members.iter().filter(|member| member.rank.is_some()).count();
    let spare = |member: &&MemberStatus| member.standing == Standing::Spare;
    let spares = match status.members.iter().filter(spare).count() {
        0 => String::new(),
        1 => ", 1 spare".to_string(),
        many => format!(", {many} spares"),
    };
    let mut text = match status.view {
        None => {
            format!("{name}: {} workers have come, and wait for the others\n", status.members.len())
        }
        Some(view) => {
            format!("{name}: {working} workers{spares}, view {view}, step {}", status.step)
        }
    };
    if status.view.is_some() {
        if let Some(rate) = status.steps_per_second {
            text += &format!(", {rate:.1} steps/s");
        }
        if let Some((least, most)) = status.limits {
            text += &format!(" ({least} to {most} workers)");
        }
        text.push('\n');
    }
    for member in &status.members {
        let rank = member.rank.map_or("-".to_string(), |rank| rank.to_string());
        let standing = format!("{:?}", member.standing).to_lowercase();
        let heard = match member.heard {
            None => String::new(),
            Some(seconds @ ..=1) => format!("  heard {seconds} s ago"),
            Some(seconds) => format!("  not heard for {seconds} s"),
        };
        text += &format!(
            "  rank {rank:>4}  {standing:<9}  step {:>8}  pid {:>7}  {}{heard}\n",
            member.step, member.process, member.host
        );
    }
    text
}
