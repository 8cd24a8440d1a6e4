//! `paceline status` and `paceline resize`: words with a job that `paceline run --elastic` runs on this machine.

use crate::run::door::{Answer, Question, ask, parse_name};
use anyhow::{Result, bail};
use clap::Args;
use paceline_net::coordinator::{MemberStatus, Standing, Status};
use std::process::ExitCode;

/// Say how an elastic job stands: its workers, step, view and speed.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// The job's name, as `paceline run --elastic` says it.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    pub job: String,

    /// As JSON.
    #[arg(long)]
    pub json: bool,
}

/// Give an elastic job another number of workers, while it trains.
///
/// Spares are let in first (`paceline run --spare`); more are started where `paceline run` runs, and take part when they are
/// ready. Those that are too many finish their step and end.
#[derive(Clone, Debug, Args)]
pub struct ResizeArgs {
    /// The job's name, as `paceline run --elastic` says it.
    #[arg(value_name = "JOB", value_parser = parse_name)]
    pub job: String,

    /// How many workers it is to have.
    #[arg(value_name = "WORKERS")]
    pub size: usize,
}

/// Ask and print.
pub fn status(arguments: &StatusArgs) -> Result<ExitCode> {
    match ask(&arguments.job, &Question::Status)? {
        Answer::Status(status) if arguments.json => println!("{}", serde_json::to_string(&status)?),
        Answer::Status(status) => print!("{}", shown(&arguments.job, &status)),
        Answer::Refused(reason) => bail!("{reason}"),
        Answer::Begun => bail!("the job answered another question"),
    }
    Ok(ExitCode::SUCCESS)
}

/// Ask for it; it happens soon after.
pub fn resize(arguments: &ResizeArgs) -> Result<ExitCode> {
    match ask(&arguments.job, &Question::Resize(arguments.size))? {
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
