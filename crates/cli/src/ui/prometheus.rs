//! `/metrics`: what is known of a job now, in the text format that Prometheus reads. The names are part of the interface: the
//! dashboard in `docs/` uses them.

use super::{
    history::{Now, waiting},
    record::{ASK, CHANGE},
};
use paceline_tune::Action;
use std::{collections::BTreeMap, fmt::Write};

/// The kind of the text.
pub const KIND: &str = "text/plain; version=0.0.4; charset=utf-8";

/// All metrics.
pub fn text(now: &Now) -> String {
    let mut page = Page(String::new());
    let strategy = now.view.as_ref().map_or("", |view| &view.strategy);
    let labels = format!(
        "job_name=\"{}\",program=\"{}\",strategy=\"{}\"",
        escaped(&now.job.name),
        escaped(&now.job.program),
        escaped(strategy)
    );
    page.family("paceline_job_info", "gauge", "The job, and the strategy in force.");
    page.sample("paceline_job_info", &labels, 1.0);
    page.single("paceline_running", "1 while the job runs.", f64::from(now.ended.is_none()));
    if let Some(view) = &now.view {
        page.single("paceline_workers", "Workers of the view in force.", view.workers.len() as f64);
        page.single("paceline_view_version", "Counts views.", f64::from(view.version));
        page.single("paceline_partition_bytes", "The largest chunk.", view.partition as f64);
        let credit = view.credit.map_or(f64::INFINITY, |credit| credit as f64);
        page.single("paceline_credit_bytes", "Bytes in flight before no chunk is started.", credit);
    }
    if let Some(point) = &now.point {
        page.single("paceline_step", "The step that worker 0 is in.", point.step as f64);
        page.single("paceline_steps_per_second", "Steps in a second, lately.", point.speed);
        page.single("paceline_waiting_ratio", "Share of steps that programs wait.", point.waiting);
        page.single("paceline_sent_bytes_per_second", "Sent by all workers.", point.sent);
        let samples = "Samples in a second of all workers, if the program says.";
        point.samples.into_iter().for_each(|it| {
            page.single("paceline_samples_per_second", samples, it);
        });
        let loss = "Mean over workers of what the program says.";
        point.loss.into_iter().for_each(|it| page.single("paceline_loss", loss, it));
    }
    page.single("paceline_tuning_paused", "1 while tuners rest.", f64::from(now.paused));
    page.family("paceline_workers_lost_total", "counter", "Workers that had not done their work.");
    page.sample("paceline_workers_lost_total", "", now.lost as f64);
    let decisions = "Decisions of tuners and policies, and what was asked for on the page.";
    page.family("paceline_decisions_total", "counter", decisions);
    // Also those that there were none of: Prometheus does not see a counter rise that begins with its first event.
    let none = Action::ALL.map(Action::word).into_iter().chain([ASK, CHANGE]).map(|word| (word, 0));
    let some = now.decisions.iter().map(|(action, count)| (&**action, *count));
    for (action, count) in none.chain(some).collect::<BTreeMap<_, _>>() {
        let label = format!("action=\"{}\"", escaped(action));
        page.sample("paceline_decisions_total", &label, count as f64);
    }
    page.workers(now);
    page.0
}

struct Page(String);

impl Page {
    fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.0, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &str, value: f64) {
        let value = match value {
            infinite if infinite.is_infinite() => "+Inf".to_string(),
            value => value.to_string(),
        };
        let _ = match labels {
            "" => writeln!(self.0, "{name} {value}"),
            labels => writeln!(self.0, "{name}{{{labels}}} {value}"),
        };
    }

    fn single(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, "gauge", help);
        self.sample(name, "", value);
    }

    /// One sample for each worker.
    fn workers(&mut self, now: &Now) {
        type Of = fn(&paceline_net::coordinator::Sighting) -> f64;
        let families: [(&str, &str, Of); 6] = [
            ("paceline_worker_step_seconds", "Seconds of its last step.", |seen| {
                let before = seen.ends.iter().rev().nth(1).copied().unwrap_or(0);
                seen.ends.last().map_or(0.0, |end| end.saturating_sub(before) as f64 / 1e6)
            }),
            ("paceline_worker_waiting_ratio", "Share of its steps that it waits.", waiting),
            ("paceline_worker_queueing_ratio", "Share with only waiting operations.", |seen| {
                Shares::of(seen).queueing
            }),
            ("paceline_worker_communicating_ratio", "Share with operations under way.", |seen| {
                Shares::of(seen).communicating
            }),
            ("paceline_worker_upload_bytes_per_second", "Sent, lately.", |seen| seen.upload),
            ("paceline_worker_download_bytes_per_second", "Received, lately.", |seen| {
                seen.download
            }),
        ];
        for (name, help, of) in families {
            self.family(name, "gauge", help);
            for (rank, seen) in &now.seen {
                self.sample(name, &format!("rank=\"{rank}\""), of(seen));
            }
        }
    }
}

/// Of a worker's steps, what share had messages under way, and what share only operations that had not begun.
struct Shares {
    queueing: f64,
    communicating: f64,
}

impl Shares {
    fn of(seen: &paceline_net::coordinator::Sighting) -> Shares {
        let whole = seen.ends.last().copied().unwrap_or(0) as i64;
        if whole == 0 {
            return Shares { queueing: 0.0, communicating: 0.0 };
        }
        let clip = |from: i64, to: i64| (from.clamp(0, whole), to.clamp(0, whole));
        let under_way = seen
            .operations
            .iter()
            .filter_map(|one| Some(clip(one.started?, one.ended.unwrap_or(whole))));
        let known = seen.operations.iter().map(|one| clip(one.posted, one.ended.unwrap_or(whole)));
        let (under_way, known) = (covered(under_way.collect()), covered(known.collect()));
        let share = |length: i64| length as f64 / whole as f64;
        Shares { queueing: share(known - under_way), communicating: share(under_way) }
    }
}

/// How much all spans together cover.
fn covered(mut spans: Vec<(i64, i64)>) -> i64 {
    spans.sort_unstable();
    let (mut sum, mut until) = (0, i64::MIN);
    for (from, to) in spans {
        sum += (to - from.max(until)).max(0);
        until = until.max(to);
    }
    sum
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ui::record::{Job, Point};
    use paceline_net::coordinator::{SeenOperation, Sighting};

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let operation = |posted, started, ended| SeenOperation {
            name: String::new(),
            bytes: 0,
            posted,
            started,
            ended,
        };
        let seen = Sighting {
            ends: vec![600_000, 1_000_000],
            waits: vec![(0, 250_000)],
            operations: vec![
                operation(-5, Some(100_000), Some(300_000)),
                operation(200_000, Some(250_000), Some(500_000)),
                operation(900_000, None, None),
            ],
            upload: 7.0,
            ..Sighting::default()
        };
        let now = Now {
            job: Job { program: "a \"b\"".to_string(), ..Job::default() },
            point: Some(Point { step: 9, speed: 2.5, loss: Some(0.5), ..Point::default() }),
            seen: [(3, seen)].into(),
            decisions: [("switch".to_string(), 2)].into(),
            ..Now::default()
        };
        let text = text(&now);
        for line in [
            "paceline_job_info{job_name=\"\",program=\"a \\\"b\\\"\",strategy=\"\"} 1",
            "paceline_step 9",
            "paceline_steps_per_second 2.5",
            "paceline_loss 0.5",
            "paceline_decisions_total{action=\"switch\"} 2",
            "paceline_decisions_total{action=\"roll_back\"} 0",
            "paceline_decisions_total{action=\"ask\"} 0",
            "paceline_worker_step_seconds{rank=\"3\"} 0.4",
            "paceline_worker_waiting_ratio{rank=\"3\"} 0.25",
            "paceline_worker_communicating_ratio{rank=\"3\"} 0.4",
            "paceline_worker_queueing_ratio{rank=\"3\"} 0.2",
            "paceline_worker_upload_bytes_per_second{rank=\"3\"} 7",
        ] {
            assert!(text.lines().any(|it| it == line), "{line} is not in\n{text}");
        }
        // Every sample follows a line that says what it is.
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let name = line.split(['{', ' ']).next().unwrap();
            assert!(text.contains(&format!("# TYPE {name} ")), "{line}");
        }
        assert!(!text.contains("NaN"));
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_there_are() {
        let dashboard = include_str!("../../../../docs/grafana.json");
        let known = include_str!("prometheus.rs");
        let parsed: serde_json::Value = serde_json::from_str(dashboard).unwrap();
        assert!(parsed["panels"].as_array().is_some_and(|panels| panels.len() >= 6));
        let mut asked = 0;
        for piece in dashboard.split("paceline_").skip(1) {
            let end = piece.find(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            let name = format!("\"paceline_{}\"", &piece[..end.unwrap_or(piece.len())]);
            assert!(known.contains(&name), "{name}");
            asked += 1;
        }
        assert!(asked >= 6);
    }
}
