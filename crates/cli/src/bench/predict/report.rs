//! What a comparison of prediction and measurement found, as JSON with all raw samples and as a table for people. It
//! neither predicts, measures nor prints.

use super::super::{
    protocol::Turn,
    report::Machine,
    statistics::{Estimate, median, time_of},
    table::{self, NOTHING, Style},
};
use paceline_job::{ByteSize, Rate, Settings, StrategyChoice};
use paceline_replay::ClusterConfig;
use paceline_sync::strategy::Shuffle;
use paceline_testbed::CheckReport;
use serde::Serialize;

/// A prediction this close to the measurement is good enough to decide by.
pub const TOLERANCE: f64 = 0.05;

/// The result of `paceline bench predict`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `predict`.
    pub benchmark: &'static str,
    /// Raised when the meaning of a field changes.
    pub format: u32,
    /// Turns of every cell.
    pub rounds: u32,
    /// Where it ran.
    pub machine: Machine,
    /// What held for all cells; the strategy is that of the cell.
    pub settings: Settings,
    /// One for each number of hosts and rate.
    pub networks: Vec<NetworkReport>,
}

/// A network, and what was done on it.
#[derive(Clone, Debug, Serialize)]
pub struct NetworkReport {
    /// How many hosts.
    pub hosts: usize,
    /// What each host's wire carries.
    pub rate: Rate,
    /// How many racks they are in.
    pub racks: usize,
    /// What each rack's uplink carries; none where it is as much as its hosts together.
    pub uplink: Option<Rate>,
    /// Links that carried less than they should, with what they did.
    pub slow: Vec<String>,
    /// Links that others' traffic took so much of.
    pub background: Vec<String>,
    /// What raw TCP carried there.
    pub check: CheckReport,
    /// Whether that is enough for its measurements to mean anything.
    pub faithful: bool,
    /// What the prediction knows of the machine and its network, apart from rates.
    pub model: ClusterConfig,
    /// From the last byte sent to the last byte received, as the prediction has it.
    pub latency_seconds: f64,
    /// One for each strategy and size.
    pub cells: Vec<Cell>,
}

/// One strategy and size on one network.
#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    /// How it was all-reduced.
    pub strategy: StrategyChoice,
    /// How much.
    pub bytes: u64,
    /// The predicted seconds of one all-reduce.
    pub predicted: f64,
    /// The measured ones; none where the network is not faithful, or where measuring failed.
    pub measured: Option<Estimate>,
    /// How much longer the prediction is than the measurement, as a share of the latter.
    pub error: Option<f64>,
    /// Share of all processors' time that was not idle while it was measured.
    pub processors_busy: Option<f64>,
    /// What share of others' traffic got through meanwhile; none where there was none.
    pub background_share: Option<f64>,
    /// Why it was not measured.
    pub failure: Option<String>,
    /// How many times the tensor passes the slowest link, at best.
    pub least_share: Option<f64>,
    /// What the tensor takes once each way over the slowest link.
    pub least_seconds: f64,
    /// Raw samples, round by round.
    pub turns: Vec<Turn>,
}

impl Cell {
    /// Compares.
    pub fn conclude(
        strategy: &StrategyChoice,
        bytes: u64,
        predicted: &Turn,
        turns: Vec<Turn>,
        failure: Option<String>,
    ) -> Cell {
        // A prediction has at least one iteration.
        let predicted = median(&predicted.seconds).unwrap_or(f64::NAN);
        let measured = time_of(&turns);
        let error = measured.map(|measured| predicted / measured.median - 1.0);
        Cell {
            strategy: strategy.clone(),
            bytes,
            predicted,
            measured,
            error,
            processors_busy: None,
            background_share: None,
            failure,
            least_share: None,
            least_seconds: 0.0,
            turns,
        }
    }

    fn is_within(&self) -> Option<bool> {
        self.error.map(|error| error.abs() <= TOLERANCE)
    }
}

impl Report {
    /// Whether every cell of a faithful network was measured.
    pub fn is_complete(&self) -> bool {
        self.cells().all(|(_, cell)| cell.failure.is_none())
    }

    fn cells(&self) -> impl Iterator<Item = (&NetworkReport, &Cell)> {
        self.networks
            .iter()
            .flat_map(|network| network.cells.iter().map(move |cell| (network, cell)))
    }

    /// For people.
    pub fn render(&self, style: Style) -> String {
        let mut header =
            vec!["strategy", "hosts", "rate", "size", "predicted", "measured", "error", "CPU"];
        let shared = self.cells().any(|(_, cell)| cell.background_share.is_some());
        if shared {
            header.push("others");
        }
        let row = |(network, cell)| {
            let mut row = row(network, cell);
            row.extend(shared.then(|| share(cell.background_share)));
            row
        };
        let rows: Vec<Vec<String>> = self.cells().map(row).collect();
        let header: Vec<String> = header.into_iter().map(String::from).collect();
        let mut text = table::draw(&header, &rows, style);
        text.push('\n');
        for network in self.networks.iter().filter(|network| !network.faithful) {
            text.push_str(&format!(
                "Not measured: {} hosts at {}, where raw TCP carried only {:.0}% of the rate.\n",
                network.hosts,
                network.rate,
                100.0 * worst_share(&network.check),
            ));
        }
        for (network, cell) in self.cells() {
            if let Some(failure) = &cell.failure {
                text.push_str(&format!("Not measured: {}: {failure}\n", name(network, cell)));
            }
        }
        self.networks.iter().for_each(|network| text.push_str(&network.gains()));
        text.push_str(&self.summary());
        text
    }

    fn summary(&self) -> String {
        let judged: Vec<_> = self
            .cells()
            .filter_map(|(network, cell)| Some((network, cell, cell.is_within()?)))
            .collect();
        let within = judged.iter().filter(|(_, _, within)| *within).count();
        let size = |(_, cell, _): &&(&NetworkReport, &Cell, bool)| cell.error.unwrap_or(0.0).abs();
        let worst = judged.iter().max_by(|a, b| size(a).total_cmp(&size(b)));
        let Some((network, cell, _)) = worst else {
            return "No cell was measured.\n".to_string();
        };
        format!(
            "Within {:.0}%: {within} of {} cells. Worst: {}, {}.\n",
            100.0 * TOLERANCE,
            judged.len(),
            name(network, cell),
            percent(cell.error),
        )
    }
}

impl NetworkReport {
    /// Where there are racks: how much faster `shuffle` was than the others, and how much that could be at best.
    fn gains(&self) -> String {
        let mut text = String::new();
        if self.racks < 2 {
            return text;
        }
        let seconds = |cell: &Cell| cell.measured.map(|measured| measured.median);
        let contended = !self.slow.is_empty() || !self.background.is_empty();
        for ours in self.cells.iter().filter(|cell| cell.strategy.0 == Shuffle::NAME) {
            if let (Some(mine), true) = (seconds(ours), contended) {
                let share = match ours.least_seconds <= mine {
                    true => format!("{:.0}% of what is possible", 100.0 * ours.least_seconds / mine),
                    false => "less, since buckets of shaped links let some bytes through at once; with larger --sizes they count for little".to_string(),
                };
                text += &format!(
                    "{} took {}; once over the slowest link, which is the least, is {}: {share}.\n",
                    name(self, ours),
                    table::seconds(mine),
                    table::seconds(ours.least_seconds),
                );
            }
            for other in self.cells.iter().filter(|cell| cell.bytes == ours.bytes) {
                let (Some(mine), Some(theirs)) = (seconds(ours), seconds(other)) else { continue };
                if other.strategy == ours.strategy {
                    continue;
                }
                let gain = theirs / mine;
                text += &format!(
                    "{} was {gain:.2} times as fast as {}",
                    name(self, ours),
                    other.strategy
                );
                if let (Some(least), true) = (other.least_share, contended) {
                    // One passage of the slowest link is the least.
                    text += &format!(" (at best {least:.2}: {:.0}%)", 100.0 * gain / least);
                }
                text += ".\n";
            }
        }
        text
    }
}

fn worst_share(check: &CheckReport) -> f64 {
    check.flows.iter().map(|flow| flow.share()).fold(f64::INFINITY, f64::min)
}

fn name(network: &NetworkReport, cell: &Cell) -> String {
    let NetworkReport { hosts, rate, racks, uplink, slow, background, .. } = network;
    let mut name =
        format!("{} of {} over {hosts} hosts at {rate}", cell.strategy, ByteSize(cell.bytes));
    if *racks > 1 {
        name += &format!(" in {racks} racks");
    }
    if let Some(uplink) = uplink {
        name += &format!(" with uplinks of {uplink}");
    }
    if !slow.is_empty() {
        name += &format!(", {}", slow.join(", "));
    }
    if !background.is_empty() {
        name += &format!(", others' traffic {}", background.join(", "));
    }
    name
}

fn row(network: &NetworkReport, cell: &Cell) -> Vec<String> {
    vec![
        cell.strategy.to_string(),
        network.hosts.to_string(),
        network.rate.to_string(),
        ByteSize(cell.bytes).to_string(),
        table::seconds(cell.predicted),
        table::time(cell.measured),
        percent(cell.error),
        share(cell.processors_busy),
    ]
}

fn share(share: Option<f64>) -> String {
    share.map_or(NOTHING.to_string(), |share| format!("{:.0}%", 100.0 * share))
}

fn percent(share: Option<f64>) -> String {
    share.map_or(NOTHING.to_string(), |share| format!("{:+.1}%", 100.0 * share))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_testbed::Shaper;

    fn cell(strategy: &str, predicted: f64, measured: &[f64]) -> Cell {
        let turn = |seconds: &[f64]| Turn { seconds: seconds.to_vec(), cpu_seconds: 0.0 };
        let turns: Vec<Turn> = measured.iter().map(|seconds| turn(&[*seconds])).collect();
        let processors_busy = (!turns.is_empty()).then_some(0.25);
        let strategy = StrategyChoice(strategy.to_string());
        let cell = Cell::conclude(&strategy, 1 << 20, &turn(&[predicted]), turns, None);
        Cell { processors_busy, ..cell }
    }

    fn network(faithful: bool, cells: Vec<Cell>) -> NetworkReport {
        NetworkReport {
            hosts: 4,
            rate: "100mbit".parse().unwrap(),
            racks: 1,
            uplink: None,
            slow: Vec::new(),
            background: Vec::new(),
            check: CheckReport {
                hosts: 4,
                racks: 1,
                shaper: Shaper::Htb,
                congestion: "reno".to_string(),
                flows: Vec::new(),
                processors_busy_before: 0.0,
                processors_busy_alone: 0.0,
                processors_busy_together: 0.0,
            },
            faithful,
            model: ClusterConfig::default(),
            latency_seconds: 5e-5,
            cells,
        }
    }

    fn report(networks: Vec<NetworkReport>) -> Report {
        Report {
            benchmark: "predict",
            format: 1,
            rounds: 1,
            machine: Machine { processor: String::new(), kernel: String::new(), busy_before: 0.0 },
            settings: Settings::default(),
            networks,
        }
    }

    #[test]
    fn cells_are_judged_by_the_share_of_the_measurement_and_the_worst_is_named() {
        let cells = vec![cell("ring", 0.104, &[0.1, 0.1]), cell("gossip", 0.08, &[0.1])];
        let text = report(vec![network(true, cells)]).render(Style::Plain);
        assert!(text.contains("+4.0%") && text.contains("25%"), "{text}");
        let summary =
            "Within 5%: 1 of 2 cells. Worst: gossip of 1MiB over 4 hosts at 100mbit, -20.0%.";
        assert!(text.ends_with(&format!("{summary}\n")), "{text}");
    }

    #[test]
    fn on_racks_the_gain_of_shuffling_stands_beside_its_bound() {
        let mut cells =
            vec![cell("hierarchical:racks", 0.15, &[0.15]), cell("shuffle", 0.1, &[0.1])];
        cells[0].least_share = Some(1.5);
        cells[1].least_seconds = 0.095;
        cells[1].background_share = Some(0.99);
        let racks =
            NetworkReport { racks: 4, slow: vec!["rack1=10mbit".into()], ..network(true, cells) };
        let text = report(vec![racks]).render(Style::Plain);
        let least = "rack1=10mbit took 100 ms; once over the slowest link, which is the least, is 95.0 ms: 95% of what is";
        assert!(text.contains(least) && text.contains("others") && text.contains("99%"), "{text}");
        let line = "shuffle of 1MiB over 4 hosts at 100mbit in 4 racks, rack1=10mbit was 1.50 times as fast as \
                    hierarchical:racks (at best 1.50: 100%).";
        assert!(text.contains(line), "{text}");
    }

    #[test]
    fn a_network_that_is_not_faithful_is_predicted_and_not_judged() {
        let report = report(vec![network(false, vec![cell("ring", 0.1, &[])])]);
        let text = report.render(Style::Markdown);
        assert!(text.contains(" 100 ms |") && text.contains("Not measured: 4 hosts"), "{text}");
        assert!(text.ends_with("No cell was measured.\n"), "{text}");
        assert!(report.is_complete());
    }

    #[test]
    fn a_cell_that_failed_says_why_and_spoils_the_exit_code() {
        let failed = Cell { failure: Some("it ended".to_string()), ..cell("ring", 0.1, &[]) };
        let report = report(vec![network(true, vec![failed])]);
        assert!(report.render(Style::Plain).contains("at 100mbit: it ended"));
        assert!(!report.is_complete());
    }
}
