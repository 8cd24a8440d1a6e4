//! `paceline-testbed check`: prove by raw TCP what every link carries, and print it.

use super::NetworkFlags;
use anyhow::{Context, ensure};
use clap::Args;
use paceline_testbed::{CheckReport, Testbed};
use std::{
    io::{self, IsTerminal, Write},
    process::ExitCode,
    time::Duration,
};

/// Exit code when a link carries less than it should.
const CARRIES_LESS: u8 = 1;

/// Build the network and measure by raw TCP what every link carries.
///
/// Each host sends to the next, alone and all at once. Exit code 1 if a link carries less than it
/// should.
#[derive(Debug, Args)]
pub struct Check {
    #[command(flatten)]
    network: NetworkFlags,
    /// How long each flow is counted
    #[arg(long, default_value_t = 1.0)]
    seconds: f64,
    /// The share of its nominal rate that a flow must carry (headers alone take 4.4 %)
    #[arg(long, default_value_t = 0.9)]
    at_least: f64,
    /// Print the result as JSON
    #[arg(long)]
    json: bool,
}

impl Check {
    /// Build, measure, print.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        ensure!((0.1..=3600.0).contains(&self.seconds), "--seconds must be 0.1 to 3600");
        ensure!((0.0..=1.0).contains(&self.at_least), "--at-least must be 0 to 1");
        let testbed = Testbed::build(&self.network.spec()?)?;
        let window = Duration::from_secs_f64(self.seconds);
        let report = testbed.check(window, show_progress)?;
        drop(testbed);
        clear_progress();
        let mut output = io::stdout().lock();
        if self.json {
            serde_json::to_writer_pretty(&mut output, &report).context("writing the result")?;
            writeln!(output)?;
        } else {
            write!(output, "{}", table(&report))?;
        }
        if report.carries(self.at_least) {
            return Ok(ExitCode::SUCCESS);
        }
        let share = self.at_least * 100.0;
        eprintln!(
            "paceline-testbed: a link carries less than {share:.0} % of its rate; lower --rate, use \
             fewer hosts, or leave the machine idle"
        );
        Ok(ExitCode::from(CARRIES_LESS))
    }
}

fn table(report: &CheckReport) -> String {
    let CheckReport { hosts, racks, shaper, congestion, .. } = report;
    let mut text = format!("{hosts} hosts, racks: {racks}, shaper {shaper}, TCP {congestion}\n");
    text += &format!(
        "{:<16} {:>9} {:>9} {:>9} {:>7} {:>9}\n",
        "flow", "nominal", "alone", "together", "share", "one way"
    );
    for row in &report.flows {
        text += &format!(
            "{:<16} {:>9.1} {:>9.1} {:>9.1} {:>5.1} % {:>6.0} µs\n",
            format!("host{} > host{}", row.flow.from, row.flow.to),
            row.nominal_mbit_per_second,
            row.alone_mbit_per_second,
            row.together_mbit_per_second,
            row.share() * 100.0,
            row.latency_microseconds,
        );
    }
    text += &format!(
        "Mbit/s of payload; processors busy: {:.0} % before, {:.0} % with one flow, {:.0} % with all\n",
        report.processors_busy_before * 100.0,
        report.processors_busy_alone * 100.0,
        report.processors_busy_together * 100.0
    );
    text
}

/// On a terminal one line that is written over; elsewhere nothing but the result is wanted.
fn show_progress(what: &str) {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K{what}");
    }
}

fn clear_progress() {
    if io::stderr().is_terminal() {
        eprint!("\r\x1b[K");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_testbed::{CheckedFlow, Flow, Shaper};

    #[test]
    fn the_table_shows_the_worse_share_and_the_verdict_follows_it() {
        let report = CheckReport {
            hosts: 2,
            racks: 1,
            shaper: Shaper::Htb,
            congestion: "reno".to_string(),
            flows: vec![CheckedFlow {
                flow: Flow { from: 0, to: 1 },
                nominal_mbit_per_second: 100.0,
                alone_mbit_per_second: 95.0,
                together_mbit_per_second: 80.0,
                latency_microseconds: 42.4,
            }],
            processors_busy_before: 0.01,
            processors_busy_alone: 0.05,
            processors_busy_together: 0.5,
        };
        let text = table(&report);
        assert!(
            text.contains("host0 > host1        100.0      95.0      80.0  80.0 %     42 µs"),
            "{text}"
        );
        assert!(report.carries(0.8) && !report.carries(0.9));
    }
}
