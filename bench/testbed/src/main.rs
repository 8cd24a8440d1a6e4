//! The command `paceline-testbed`: reads what the user asked, hands it to one of the commands, and turns
//! errors into a line and an exit code. It knows nothing of how a network is built.

mod command;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Hosts as network namespaces joined by shaped links: real TCP at chosen rates on one machine.
///
/// Racks are bridges. Needs root; needs neither `ip` nor `tc`; leaves nothing behind, however it ends.
#[derive(Debug, Parser)]
#[command(name = "paceline-testbed", version, max_term_width = 100)]
struct CommandLine {
    #[command(subcommand)]
    command: Choice,
}

#[derive(Debug, Subcommand)]
enum Choice {
    Run(command::run::Run),
    Check(command::check::Check),
    Enter(command::enter::Enter),
}

fn main() -> ExitCode {
    let result = match CommandLine::parse().command {
        Choice::Run(run) => run.execute(),
        Choice::Check(check) => check.execute(),
        Choice::Enter(enter) => enter.execute(),
    };
    result.unwrap_or_else(|error| {
        eprintln!("paceline-testbed: {error:#}");
        ExitCode::from(command::CANNOT_RUN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_flags_do_not_contradict_each_other() {
        CommandLine::command().debug_assert();
    }
}
