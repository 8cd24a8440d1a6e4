//! Where a job's hosts sit, in a line for people: what a survey found, and whether a topology that was given is that of the
//! job's hosts. How it is found out is not known here.

use paceline_job::{Topology, View};
use paceline_sync::survey::Finding;
use std::path::Path;

/// Names in a sentence; the others are counted.
const LISTED: usize = 8;

/// What the workers found out, and where there is more of it to see.
pub(super) fn found(finding: &Finding, saved: Option<&Path>) -> Vec<String> {
    let Finding { topology, took, doubts, .. } = finding;
    let racks = match topology.racks() {
        0 | 1 => "in one rack".to_string(),
        racks => format!("in {racks} racks"),
    };
    let wires = range(topology.hosts.iter().map(|host| host.link.rate.bytes_per_second()));
    let uplinks = match topology.uplinks.is_empty() {
        true => String::new(),
        false => {
            let rates = topology.uplinks.iter().map(|link| link.rate.bytes_per_second());
            format!(", uplinks of {}", range(rates))
        }
    };
    let more = match saved {
        Some(file) => format!("`paceline topology {}` shows them", file.display()),
        None => "--topology-out FILE saves them, --ui shows them".to_string(),
    };
    let (hosts, seconds) = (topology.hosts.len(), took.as_secs_f64());
    let mut lines = vec![format!(
        "surveyed {hosts} hosts in {seconds:.1} s: {racks}, wires of {wires}{uplinks}; {more}"
    )];
    lines.extend(doubts.iter().map(|doubt| format!("survey, in doubt: {doubt}")));
    lines
}

/// In megabytes a second.
fn range(rates: impl Iterator<Item = f64> + Clone) -> String {
    let (least, most) = rates
        .fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    let [least, most] = [least, most].map(|rate| rate / 1e6);
    match most < 1.02 * least {
        true => format!("{most:.1} MB/s"),
        false => format!("{least:.1} to {most:.1} MB/s"),
    }
}

/// What is odd about the topology that the workers of a first view were given, or about a survey that they are to make.
pub(super) fn oddity(view: &View) -> Option<String> {
    let hosts = view.host_indices().into_iter().max().map_or(0, |last| last + 1);
    let Some(topology) = &view.settings.topology else {
        return (view.survey.is_some() && hosts < 2)
            .then(|| "no survey: all workers are on one host".to_string());
    };
    let strangers = topology.strangers(view.workers.iter().map(|worker| worker.host.as_str()));
    let named = listed(&strangers);
    let known =
        || listed(&topology.hosts.iter().map(|host| host.name.as_str()).collect::<Vec<_>>());
    match strangers.len() {
        0 => None,
        all if all == hosts as usize => Some(format!(
            "the topology names none of the job's hosts, so it says nothing about them: they are called {named}, and it has \
             {}",
            known()
        )),
        some => Some(format!(
            "the topology does not name {some} of the job's {hosts} hosts; each is taken to be a rack of its own: {named}"
        )),
    }
}

fn listed(names: &[&str]) -> String {
    let more = names.len().saturating_sub(LISTED);
    let first = names[..names.len().min(LISTED)].join(", ");
    if more > 0 { format!("{first} and {more} more") } else { first }
}

/// Save it; a line for people if that fails.
pub(super) fn save(topology: &Topology, file: &Path) -> Result<(), String> {
    std::fs::write(file, topology.to_toml())
        .map_err(|error| format!("the topology cannot be saved to {}: {error}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Link, Rate, Settings};
    use std::{sync::Arc, time::Duration};

    fn topology() -> Topology {
        let link = |mega: f64| Link {
            rate: Rate::from_bytes_per_second(mega * 1e6),
            latency: Duration::from_micros(40),
        };
        Topology::racked(4, 2, link(25.0), link(20.0), link(4000.0))
    }

    #[test]
    fn a_survey_is_told_in_a_line_and_its_doubts_in_others() {
        let took = Duration::from_millis(1440);
        let doubts = vec!["nothing was read of the wire of host3".to_string()];
        let finding = Finding { topology: topology(), rounds: 11, transfers: 38, took, doubts };
        let said = found(&finding, Some(Path::new("net.toml")));
        let line = "surveyed 4 hosts in 1.4 s: in 2 racks, wires of 25.0 MB/s, uplinks of 20.0 MB/s; \
                    `paceline topology net.toml` shows them";
        assert_eq!(said[0], line);
        assert_eq!(said[1], "survey, in doubt: nothing was read of the wire of host3");
    }

    #[test]
    fn hosts_that_a_topology_does_not_name_are_named() {
        let said = |hosts: &[&str]| {
            let settings = Settings { topology: Some(Arc::new(topology())), ..Settings::default() };
            let hosts = hosts.iter().map(|host| host.to_string()).collect();
            oddity(&View::on_hosts(hosts, settings))
        };
        assert_eq!(said(&["host0", "host0", "host3"]), None);
        let none = said(&["a", "b"]).unwrap();
        assert!(none.contains("none of the job's hosts") && none.contains("a, b"), "{none}");
        assert!(none.ends_with("host0, host1, host2, host3"), "{none}");
        let some = said(&["host0", "b", "b"]).unwrap();
        assert!(some.contains("1 of the job's 2 hosts") && some.ends_with(": b"), "{some}");
    }

    #[test]
    fn a_survey_of_one_host_is_none() {
        let survey = Some(Duration::from_secs(2));
        let view = View { survey, ..View::local(4, Settings::default()) };
        assert!(oddity(&view).unwrap().contains("one host"));
        assert_eq!(oddity(&View::local(4, Settings::default())), None);
    }
}
