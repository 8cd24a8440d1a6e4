//! The command `paceline`: which subcommands there are and how they end. What each does is in the module of
//! its name.

mod bench;
mod carrier;
mod coordinator;
mod demo;
mod exit;
mod handing;
mod job;
mod learn;
mod manual;
mod optimize;
mod replay;
mod run;
mod scenario;
mod settings;
mod strategies;
mod topology;
mod trace;
mod tune;
mod ui;
mod writable;

use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

/// Distributed training whose synchronisation is proven before it runs, and predicted by running it in virtual time.
#[derive(Debug, Parser)]
#[command(
    name = "paceline",
    version,
    propagate_version = true,
    arg_required_else_help = true,
    max_term_width = 100,
    after_help = "\
Examples:
  paceline demo                            see in two minutes what this does
  paceline run -n 4 -- python train.py     train on four local workers
  paceline replay trace/                   where the time goes, and what if
  paceline optimize trace/ -o plan.toml    what would make it faster
  paceline tune trace/ --script steps      how it tunes itself as the network changes
  paceline strategies                      ways to all-reduce, explained
  paceline topology net.toml               where hosts sit, as a tree
  paceline trace traces/                   what a recorded run holds
  paceline ui folder/                      a page about a finished run
  paceline bench allreduce                 ours against Gloo and Open MPI

Exit codes:
  0  ok
  1  failure
  2  wrong usage
  `paceline run` exits with the code of the worker that failed first."
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Demo(demo::DemoArgs),
    Run(Box<run::RunArgs>),
    Coordinator(coordinator::CoordinatorArgs),
    /// Learn anew what the program predicts with.
    #[command(subcommand)]
    Learn(learn::LearnCommand),
    Optimize(optimize::OptimizeArgs),
    Replay(replay::ReplayArgs),
    Resize(job::ResizeArgs),
    Status(job::StatusArgs),
    Strategies(strategies::StrategiesArgs),
    Topology(topology::TopologyArgs),
    Trace(trace::TraceArgs),
    Tune(tune::TuneArgs),
    Ui(ui::UiArgs),
    /// Measure on this machine: against peers, and predictions against what happens.
    #[command(subcommand)]
    Bench(Benchmark),
    Completions(manual::CompletionsArgs),
    Manual(manual::ManualArgs),
    /// One rank of ours in a benchmark.
    #[command(hide = true, name = bench::ours::WORKER)]
    BenchWorker(bench::WorkerArgs),
    /// One worker of the demo.
    #[command(hide = true, name = demo::worker::SUBCOMMAND)]
    DemoWorker(demo::worker::WorkerArgs),
    /// The process that cleans up after a `paceline run` that was killed.
    #[command(hide = true, name = run::guard::SUBCOMMAND)]
    Guard,
}

#[derive(Debug, Subcommand)]
enum Benchmark {
    #[command(name = "allreduce")]
    AllReduce(bench::AllReduceArgs),
    Predict(bench::predict::PredictArgs),
}

impl Command {
    /// Whether it only says something: who stops reading that ends it, as with other commands. Those that look after workers must
    /// outlive whoever reads what they write.
    fn only_reports(&self) -> bool {
        matches!(
            self,
            Command::Optimize(_)
                | Command::Replay(_)
                | Command::Status(_)
                | Command::Strategies(_)
                | Command::Trace(_)
                | Command::Tune(_)
                | Command::Completions(_)
                | Command::Manual(_)
        )
    }
}

fn main() -> ExitCode {
    let command = Cli::parse().command;
    if command.only_reports() {
        exit::with_whoever_reads();
    }
    let result = match command {
        Command::Demo(arguments) => demo::run(arguments),
        Command::Run(arguments) => run::run(*arguments),
        Command::Coordinator(arguments) => coordinator::run(arguments),
        Command::Learn(command) => learn::run(command),
        Command::Optimize(arguments) => optimize::run(arguments),
        Command::Replay(arguments) => replay::run(arguments),
        Command::Resize(arguments) => job::resize(&arguments),
        Command::Status(arguments) => job::status(&arguments),
        Command::Strategies(arguments) => strategies::run(arguments),
        Command::Topology(arguments) => topology::run(arguments),
        Command::Trace(arguments) => trace::run(arguments),
        Command::Tune(arguments) => tune::run(arguments),
        Command::Ui(arguments) => ui::run(&arguments),
        Command::Bench(Benchmark::AllReduce(arguments)) => bench::run(arguments),
        Command::Bench(Benchmark::Predict(arguments)) => bench::predict::run(arguments),
        Command::Completions(arguments) => manual::completions(&arguments, Cli::command()),
        Command::Manual(arguments) => manual::manual(&arguments, Cli::command()),
        Command::BenchWorker(arguments) => bench::run_worker(arguments),
        Command::DemoWorker(arguments) => demo::worker::run(&arguments),
        Command::Guard => run::guard::stand().map(|()| ExitCode::SUCCESS),
    };
    result.unwrap_or_else(|error| {
        eprintln!("paceline: {}", exit::said(&error));
        exit::code(&error)
    })
}
