//! Everything a run found out, as JSON with all raw samples and as tables for people. It neither measures
//! nor prints.

use super::{
    bounds::{Medium, Rates},
    limits::Limits,
    namespace::Network,
    protocol::Turn,
    statistics::{Estimate, cpu_seconds_per_gigabyte, ratio_of, time_of},
    table::{self, NOTHING, Style},
    workload::Workload,
};
use serde::Serialize;

/// The result of `paceline bench allreduce`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Always `allreduce`.
    pub benchmark: &'static str,
    /// Raised when the meaning of a field changes.
    pub format: u32,
    /// Ranks of every contender.
    pub ranks: u32,
    /// Turns of every contender for each row.
    pub rounds: u32,
    /// Where it ran.
    pub machine: Machine,
    /// Under which rules TCP ran.
    pub network: Network,
    /// What the machine can do at best.
    pub limits: Limits,
    /// The contender that ratios refer to.
    pub reference: String,
    /// Who took part.
    pub contenders: Vec<Participant>,
    /// Who did not, or not to the end.
    pub left_out: Vec<LeftOut>,
    /// One per size or model.
    pub rows: Vec<Row>,
}

/// Where it ran.
#[derive(Clone, Debug, Serialize)]
pub struct Machine {
    /// The processor's name.
    pub processor: String,
    /// The kernel's release.
    pub kernel: String,
    /// Share of all cores that others kept busy just before.
    pub busy_before: f64,
}

/// A contender that was started.
#[derive(Clone, Debug, Serialize)]
pub struct Participant {
    /// Its name.
    pub name: String,
    /// What it says it is.
    pub about: String,
}

/// A contender that could not take part, or fell out.
#[derive(Clone, Debug, Serialize)]
pub struct LeftOut {
    /// Its name.
    pub name: String,
    /// What is missing or went wrong.
    pub why: String,
}

/// One size or model.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Its name.
    pub name: String,
    /// Bytes of all tensors together.
    pub bytes: u64,
    /// How many there are.
    pub tensors: usize,
    /// Timed iterations of each turn.
    pub iterations: u32,
    /// Iterations before them.
    pub warmup: u32,
    /// The rates that the bounds follow from.
    pub rates: Rates,
    /// The least time by each medium.
    pub bounds: Vec<Bound>,
    /// In the order of [`Report::contenders`].
    pub results: Vec<Outcome>,
}

/// The least time by one medium.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bound {
    /// Through what the values pass.
    pub medium: Medium,
    /// The least seconds.
    pub seconds: f64,
}

/// What one contender did with one row.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The contender.
    pub name: String,
    /// Seconds of one all-reduce.
    pub time: Option<Estimate>,
    /// Its time over the reference's; none for the reference itself.
    pub ratio: Option<Estimate>,
    /// Processor seconds of all ranks for 10⁹ bytes.
    pub cpu_seconds_per_gigabyte: Option<f64>,
    /// Raw samples, round by round.
    pub turns: Vec<Turn>,
}

impl Row {
    /// Draws the conclusions from the turns of each contender, given in the order of `contenders`.
    pub fn conclude(
        workload: &Workload,
        contenders: &[Participant],
        turns: Vec<Vec<Turn>>,
        reference: &str,
        rates: Rates,
        bounds: Vec<Bound>,
    ) -> Row {
        let bytes = workload.bytes();
        let at = contenders.iter().position(|contender| contender.name == reference);
        let reference_turns = at.and_then(|at| turns.get(at)).cloned().unwrap_or_default();
        let results = contenders
            .iter()
            .zip(turns)
            .map(|(contender, turns)| Outcome {
                name: contender.name.clone(),
                time: time_of(&turns),
                ratio: ratio_of(&turns, &reference_turns).filter(|_| contender.name != reference),
                cpu_seconds_per_gigabyte: cpu_seconds_per_gigabyte(&turns, bytes),
                turns,
            })
            .collect();
        Row {
            name: workload.name.clone(),
            bytes,
            tensors: workload.sizes.len(),
            iterations: workload.iterations,
            warmup: workload.warmup,
            rates,
            bounds,
            results,
        }
    }
}

impl Report {
    /// Whether every contender that was asked for was measured to the end.
    pub fn is_complete(&self) -> bool {
        self.left_out.is_empty()
    }

    /// The report for people.
    pub fn render(&self, style: Style) -> String {
        let title = match style {
            Style::Plain => "",
            Style::Markdown => "### ",
        };
        let mut sections = vec![
            self.preamble(),
            format!(
                "{title}Time of one all-reduce: median [lowest–highest round's median]\n\n{}",
                self.times(style)
            ),
        ];
        if self.contenders.len() > 1 {
            let heading = format!("{title}Time over that of {}", self.reference);
            sections.push(format!("{heading}\n\n{}", self.ratios(style)));
        }
        sections.push(format!(
            "{title}Processor seconds of all ranks per GB all-reduced\n\n{}",
            self.processor_times(style)
        ));
        sections.join("\n")
    }

    fn preamble(&self) -> String {
        let Limits { cores, loopback, copy_one_thread, copy_all_cores, add_all_cores } =
            self.limits;
        let mut lines = vec![
            format!(
                "All-reduce (sum of f32), {} ranks, {} rounds; {cores} cores of {}, Linux {}",
                self.ranks, self.rounds, self.machine.processor, self.machine.kernel
            ),
            format!(
                "TCP: {} congestion control, {} network namespace",
                self.network.congestion_control,
                if self.network.private { "private" } else { "the machine's" }
            ),
            format!(
                "Limits: loopback {}, copy {} on one core and {} on all, add {}",
                table::rate(loopback),
                table::rate(copy_one_thread),
                table::rate(copy_all_cores),
                table::rate(add_all_cores)
            ),
        ];
        lines.extend(self.network.remark.clone());
        lines.extend(self.contenders.iter().map(|c| format!("{}: {}", c.name, c.about)));
        // The rest of a long reason was shown when it happened, and is in the JSON.
        let first_line = |why: &str| why.lines().next().unwrap_or_default().to_string();
        lines.extend(
            self.left_out
                .iter()
                .map(|one| format!("{} left out: {}", one.name, first_line(&one.why))),
        );
        lines.join("\n") + "\n"
    }

    fn times(&self, style: Style) -> String {
        let mut header = vec!["size".to_string()];
        header.extend(self.contenders.iter().map(|contender| contender.name.clone()));
        let media = self.rows.first().map(|row| row.bounds.as_slice()).unwrap_or_default();
        header.extend(media.iter().map(|bound| format!("limit ({})", bound.medium.name())));
        let rows = self.rows.iter().map(|row| {
            let mut cells = vec![row.name.clone()];
            cells.extend(row.results.iter().map(|result| table::time(result.time)));
            cells.extend(row.bounds.iter().map(|bound| table::seconds(bound.seconds)));
            cells
        });
        table::draw(&header, &rows.collect::<Vec<_>>(), style)
    }

    fn ratios(&self, style: Style) -> String {
        self.per_contender(
            style,
            |name| name != self.reference,
            |result| table::ratio(result.ratio),
        )
    }

    fn processor_times(&self, style: Style) -> String {
        self.per_contender(
            style,
            |_| true,
            |result| {
                result.cpu_seconds_per_gigabyte.map_or_else(|| NOTHING.to_string(), table::digits)
            },
        )
    }

    fn per_contender(
        &self,
        style: Style,
        shown: impl Fn(&str) -> bool,
        cell: impl Fn(&Outcome) -> String,
    ) -> String {
        let mut header = vec!["size".to_string()];
        let names = self.contenders.iter().map(|contender| &contender.name);
        header.extend(names.filter(|name| shown(name)).cloned());
        let rows = self.rows.iter().map(|row| {
            let mut cells = vec![row.name.clone()];
            cells.extend(row.results.iter().filter(|result| shown(&result.name)).map(&cell));
            cells
        });
        table::draw(&header, &rows.collect::<Vec<_>>(), style)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::ByteSize;

    fn report() -> Report {
        let contender =
            |name: &str| Participant { name: name.to_string(), about: "x 1".to_string() };
        let contenders = vec![contender("ours"), contender("peer"), contender("absent")];
        let turn = |seconds| Turn { seconds: vec![seconds; 3], cpu_seconds: 3.0 * seconds };
        let rates = Rates { loopback: 8e9, add: 20e9, memory: 24e9 };
        let row = Row::conclude(
            &Workload::single(ByteSize::kib(1), Some(3)),
            &contenders,
            vec![vec![turn(1e-5), turn(2e-5)], vec![turn(4e-5), turn(4e-5)], vec![]],
            "ours",
            rates,
            vec![Bound { medium: Medium::Tcp, seconds: 1e-6 }],
        );
        Report {
            benchmark: "allreduce",
            format: 1,
            ranks: 4,
            rounds: 2,
            machine: Machine {
                processor: "P".to_string(),
                kernel: "6.1".to_string(),
                busy_before: 0.0,
            },
            network: Network {
                private: true,
                congestion_control: "reno".to_string(),
                remark: None,
            },
            limits: Limits {
                cores: 2,
                loopback: 8e9,
                copy_one_thread: 10e9,
                copy_all_cores: 16e9,
                add_all_cores: 60e9,
            },
            reference: "ours".to_string(),
            contenders,
            left_out: vec![LeftOut { name: "absent".to_string(), why: "no mpirun".to_string() }],
            rows: vec![row],
        }
    }

    #[test]
    fn a_peer_is_compared_with_ours_round_by_round() {
        let report = report();
        let results = &report.rows[0].results;
        assert_eq!(results[0].ratio, None);
        let ratio = results[1].ratio.unwrap();
        assert!((ratio.median - 3.0).abs() < 1e-9 && (ratio.high - 4.0).abs() < 1e-9);
        assert_eq!(results[2].time, None);
    }

    #[test]
    fn the_tables_name_every_contender_and_who_is_missing_and_why() {
        let report = report();
        let text = report.render(Style::Markdown);
        assert!(text.contains("| 1KiB | 15.0 µs [10.0–20.0] | 40.0 µs [40.0–40.0] |"), "{text}");
        assert!(text.contains("limit (tcp)") && text.contains("1.00 µs |"), "{text}");
        assert!(text.contains("3.00× [2.00–4.00]"), "{text}");
        assert!(text.contains("absent left out: no mpirun"), "{text}");
        assert!(!report.is_complete());
    }

    #[test]
    fn the_json_holds_every_sample() {
        let json = serde_json::to_value(report()).unwrap();
        let turns = &json["rows"][0]["results"][1]["turns"];
        assert_eq!(turns.as_array().unwrap().len(), 2);
        assert_eq!(turns[0]["seconds"].as_array().unwrap().len(), 3);
        assert_eq!(json["network"]["congestion_control"], "reno");
    }
}
