//! The long set of runs in which workers come and go:
//! `cargo run --release -p paceline-replay --example members -- FIRST COUNT` plays seeds `FIRST..FIRST+COUNT`, says how
//! far it is, and ends with what they met, or with the first seed that failed.

use paceline_replay::{
    Random,
    members::{Conditions, Ledger, play},
};
use std::{io::IsTerminal, process::ExitCode, time::Instant};

fn main() -> ExitCode {
    let number = |place: usize, usual: u64| match std::env::args().nth(place) {
        None => Some(usual),
        Some(text) => text.parse().ok(),
    };
    let (Some(first), Some(count)) = (number(1, 0), number(2, 100_000)) else {
        eprintln!("usage: members [FIRST [COUNT]]");
        return ExitCode::from(2);
    };
    let began = Instant::now();
    let mut sum = Ledger::default();
    let watched = std::io::stderr().is_terminal();
    for seed in first..first + count {
        let conditions = Conditions::draw(&mut Random::new(seed)).anything(seed);
        match play(conditions.clone(), seed) {
            Ok(run) => sum.add(&run),
            Err(complaint) => {
                println!("seed {seed}: {complaint}\n{conditions:?}");
                return ExitCode::FAILURE;
            }
        }
        let done = seed - first + 1;
        if done.is_multiple_of(if watched { 1000 } else { 20_000 }) {
            let rate = done as f64 / began.elapsed().as_secs_f64();
            eprint!("{done} of {count}, {rate:.0} a second{}", if watched { "\r" } else { "\n" });
        }
    }
    println!("seeds {first}..{} in {:.0} s: {sum}", first + count, began.elapsed().as_secs_f64());
    ExitCode::SUCCESS
}
