//! What a replay found, as text and as data.

use super::questions::Answer;
use crate::{
    bench::table::{self, Style},
    carrier::{Carrier, hosts},
    scenario::Loaded,
    trace::workers_there,
};
use paceline_replay::graph::{Analysis, LinkShare, Played, Share, warm_up};
use serde::Serialize;
use std::fmt::Write;

/// Lines of the critical path and causes that are printed; `--json` has all.
const PATH_LINES: usize = 8;
const LINK_LINES: usize = 4;
const CAUSES: usize = 3;
const PROBLEMS: usize = 12;

/// Everything that was found.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    workers: usize,
    /// Workers that the job had and the trace does not.
    missing_workers: usize,
    hosts: usize,
    steps: usize,
    /// Of them, those at the beginning that do not count.
    skipped: usize,
    operations: usize,
    bandwidth: Option<String>,
    /// What memory carries, where all workers are on one host.
    #[serde(skip_serializing_if = "Option::is_none")]
    memory: Option<String>,
    strategy: String,
    partition: String,
    credit: String,
    /// As recorded, the mean over the steps that count.
    measured_step_ms: Option<f64>,
    /// Played with operations as long as recorded: this checks the graph.
    recorded_step_ms: f64,
    recorded_error: Option<f64>,
    /// Whether the file says how long things take and not when they happened, as tables of layers do: nothing was measured then.
    laid_out: bool,
    /// Steps of the trace that lack events, or may: then a small error does not show that the graph has all there was.
    lossy_steps: usize,
    /// Whether operations were carried out by the engines in what follows; otherwise they take as long as recorded.
    simulated: bool,
    predicted_error: Option<f64>,
    /// Played with each operation as one transfer after another, for comparison.
    lumped_step_ms: Option<f64>,
    lumped_error: Option<f64>,
    peak_memory_bytes: Option<u64>,
    #[serde(flatten)]
    analysis: Analysis,
    what_if: Vec<Answer>,
    /// What a reader of the answers should know.
    notes: Vec<String>,
    problems: Vec<String>,
}

impl Report {
    pub fn new(
        loaded: &Loaded,
        skip: usize,
        recorded: &Played,
        lumped: Option<&Played>,
        analysis: Analysis,
        what_if: Vec<Answer>,
    ) -> Report {
        let job = &loaded.job;
        let simulated = lumped.is_some();
        let measured = loaded.measured_ms(skip);
        let error = |predicted: f64| measured.map(|measured| predicted / measured - 1.0);
        let scenario = &loaded.scenario;
        let in_memory = Carrier::of(loaded, &scenario.graph) == Carrier::Memory;
        let recorded_step_ms = recorded.step_ms(skip);
        let lumped_step_ms = lumped.map(|played| played.step_ms(skip));
        Report {
            workers: job.graph.workers.len(),
            missing_workers: loaded.trace.missing(),
            hosts: hosts(&job.graph),
            steps: job.graph.steps as usize,
            skipped: warm_up(job.graph.steps as usize, skip),
            operations: job.graph.operations.len(),
            bandwidth: (simulated && !in_memory).then(|| scenario.wire.rate.to_string()),
            memory: (simulated && in_memory).then(|| scenario.memory.rate.to_string()),
            strategy: scenario.settings.strategy.to_string(),
            partition: scenario.settings.partition.to_string(),
            credit: scenario.settings.credit.to_string(),
            measured_step_ms: measured,
            recorded_step_ms,
            recorded_error: error(recorded_step_ms),
            laid_out: loaded.is_laid_out(),
            lossy_steps: loaded.trace.lossy_steps(),
            simulated,
            predicted_error: error(analysis.step_ms).filter(|_| simulated),
            lumped_step_ms,
            lumped_error: lumped_step_ms.and_then(error),
            peak_memory_bytes: job.layered.as_ref().and_then(|layered| layered.peak_memory()),
            analysis,
            what_if,
            notes: Vec::new(),
            problems: loaded.problems.iter().map(ToString::to_string).collect(),
        }
    }

    /// With more to know.
    pub fn with_notes(self, notes: Vec<String>) -> Report {
        Report { notes, ..self }
    }

    /// A step as it is predicted.
    pub fn step_ms(&self) -> f64 {
        self.analysis.step_ms
    }

    /// Whether operations were carried out by the engines; otherwise they take as long as recorded.
    pub fn is_simulated(&self) -> bool {
        self.simulated
    }

    /// To what-if questions.
    pub fn answers(&self) -> &[Answer] {
        &self.what_if
    }

    /// For people.
    pub fn text(&self, loaded: &Loaded) -> String {
        let mut text = String::new();
        let step = self.analysis.step_ms;
        // Writing to a string does not fail.
        let _ = self.write(&mut text, loaded, step);
        text
    }

    fn write(&self, text: &mut String, loaded: &Loaded, step: f64) -> std::fmt::Result {
        let plural = |count: usize, what: &str| {
            format!("{count} {what}{}", if count == 1 { "" } else { "s" })
        };
        let unsaid = loaded.missing.is_some_and(|peers| peers.wanted.is_none());
        let workers = match unsaid {
            true => {
                format!("{} (of how many is not said)", workers_there(self.workers, self.workers))
            }
            false => workers_there(self.workers, self.workers + self.missing_workers),
        };
        writeln!(
            text,
            "{workers} on {}, {} ({} of them to warm up), {} a step",
            plural(self.hosts, "host"),
            plural(self.steps, "step"),
            self.skipped,
            plural(self.operations / self.steps.max(1), "operation"),
        )?;
        if let Some(bandwidth) = &self.bandwidth {
            writeln!(
                text,
                "wires of {bandwidth} ({}), strategy {}, partition {}, credit {}",
                loaded.wire, self.strategy, self.partition, self.credit
            )?;
        }
        if let Some(memory) = &self.memory {
            writeln!(
                text,
                "memory of {memory} ({}), strategy {}, partition {}, credit {}",
                loaded.memory, self.strategy, self.partition, self.credit
            )?;
        }
        writeln!(text)?;
        let error = |error: Option<f64>| {
            error.map_or(table::NOTHING.to_string(), |error| format!("{:+.1} %", 100.0 * error))
        };
        let mut rows = Vec::new();
        if let Some(measured) = self.measured_step_ms {
            rows.push(vec!["measured".to_string(), time(measured), String::new()]);
        }
        let recorded = match self.lossy_steps {
            0 if self.laid_out => "as the lengths in the file add up",
            0 => "replayed, operations as recorded",
            _ => "replayed, operations as recorded, events missing",
        };
        rows.push(vec![recorded.into(), time(self.recorded_step_ms), error(self.recorded_error)]);
        if self.simulated {
            let predicted = "predicted, operations by the engines";
            rows.push(vec![predicted.into(), time(step), error(self.predicted_error)]);
        }
        if let Some(lumped) = self.lumped_step_ms {
            let one = "for comparison, each operation one transfer";
            rows.push(vec![one.into(), time(lumped), error(self.lumped_error)]);
        }
        let header = ["", "step", "off"].map(String::from);
        text.push_str(&table::draw(&header, &rows, Style::Plain));
        let percent = |part: f64| format!("{:.0} %", 100.0 * part / step.max(f64::MIN_POSITIVE));
        writeln!(text)?;
        writeln!(text, "computation alone      {}", time(self.analysis.compute_ms))?;
        let exposed = self.analysis.exposed_comm_ms;
        writeln!(text, "exposed communication  {} ({})", time(exposed), percent(exposed))?;
        if let Some(bytes) = self.peak_memory_bytes {
            let size = paceline_job::ByteSize(bytes).rounded();
            writeln!(text, "peak memory            {size} a worker")?;
        }
        self.write_path(text)?;
        if !self.analysis.losses.is_empty() {
            writeln!(text, "\nWhat costs most, by playing the job without it:")?;
            for (place, loss) in self.analysis.losses.iter().take(CAUSES).enumerate() {
                let (saved, share) = (time(loss.milliseconds), percent(loss.milliseconds));
                writeln!(text, "  {}. {saved} ({share}): {}", place + 1, loss.text)?;
            }
        }
        if !self.what_if.is_empty() {
            writeln!(text, "\nWhat if:")?;
            let rows: Vec<Vec<String>> = self
                .what_if
                .iter()
                .map(|answer| {
                    let ratio = format!("{:.2}x", answer.speed);
                    vec![answer.what_if.clone(), time(answer.step_ms), ratio]
                })
                .collect();
            let header = ["", "step", "samples a second"].map(String::from);
            text.push_str(&table::draw(&header, &rows, Style::Plain));
        }
        if !self.notes.is_empty() {
            writeln!(text, "\nTo know:")?;
            for note in &self.notes {
                writeln!(text, "  {note}")?;
            }
        }
        if !self.problems.is_empty() {
            writeln!(text, "\nAbout the trace:")?;
            for problem in self.problems.iter().take(PROBLEMS) {
                writeln!(text, "  {problem}")?;
            }
            if self.problems.len() > PROBLEMS {
                writeln!(text, "  and {} more (--json has all)", self.problems.len() - PROBLEMS)?;
            }
        }
        Ok(())
    }

    fn write_path(&self, text: &mut String) -> std::fmt::Result {
        let path = &self.analysis.critical_path;
        if path.is_empty() {
            return Ok(());
        }
        writeln!(text, "\nCritical path of a step:")?;
        let row = |share: &Share| {
            let percent = format!("{:.0} %", 100.0 * share.share);
            vec![
                short(&format!("{} {}", share.spent, share.name)),
                time(share.milliseconds),
                percent,
            ]
        };
        let mut rows: Vec<Vec<String>> = path.iter().take(PATH_LINES).map(row).collect();
        if path.len() > PATH_LINES {
            let rest = &path[PATH_LINES..];
            let milliseconds: f64 = rest.iter().map(|share| share.milliseconds).sum();
            let share: f64 = rest.iter().map(|share| share.share).sum();
            let name = format!("{} others", rest.len());
            rows.push(vec![name, time(milliseconds), format!("{:.0} %", 100.0 * share)]);
        }
        let header = ["", "time", "share"].map(String::from);
        text.push_str(&table::draw(&header, &rows, Style::Plain));
        self.write_links(text)
    }

    fn write_links(&self, text: &mut String) -> std::fmt::Result {
        let links = &self.analysis.links;
        if links.is_empty() {
            return Ok(());
        }
        writeln!(text, "\nLinks of the critical path:")?;
        let row = |name: String, links: &[LinkShare]| {
            let sum = |of: fn(&LinkShare) -> f64| links.iter().map(of).sum::<f64>();
            let share = format!("{:.0} %", 100.0 * sum(|link| link.share));
            let waiting = time(sum(|link| link.waiting_ms));
            vec![name, time(sum(|link| link.milliseconds)), share, waiting]
        };
        let name = |link: &LinkShare| {
            let (from, to) = (&link.from, &link.to);
            if from == to { format!("inside {from}") } else { format!("{from} to {to}") }
        };
        let (first, rest) = links.split_at(links.len().min(LINK_LINES));
        let mut rows: Vec<Vec<String>> =
            first.iter().map(|link| row(name(link), std::slice::from_ref(link))).collect();
        if !rest.is_empty() {
            rows.push(row(format!("{} others", rest.len()), rest));
        }
        let header = ["", "time", "share", "of it behind others"].map(String::from);
        text.push_str(&table::draw(&header, &rows, Style::Plain));
        Ok(())
    }
}

/// Names of kernels go on and on.
fn short(name: &str) -> String {
    const MOST: usize = 64;
    match name.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_string(),
    }
}

/// Three digits or so.
fn time(milliseconds: f64) -> String {
    match milliseconds.abs() {
        large if large >= 999.5 => format!("{:.2} s", milliseconds / 1e3),
        large if large >= 99.95 => format!("{milliseconds:.0} ms"),
        middle if middle >= 0.9995 => format!("{milliseconds:.1} ms"),
        _ => format!("{:.0} µs", milliseconds * 1e3),
    }
}
