//! What `auto` chose for a job, in two lines for people: which strategy for which sizes by what was measured, and
//! why. The choice itself is made elsewhere, from the same view.

use paceline_job::{ByteSize, Link, StrategyChoice, View};
use paceline_sync::strategy::AutoTable;

/// The lines, once the view's links are measured; none if somebody else chose.
pub(super) fn lines(view: &View) -> Vec<String> {
    if view.settings.strategy != StrategyChoice::auto() {
        return Vec::new();
    }
    let table = AutoTable::for_view(view);
    let entries: Vec<_> = table.entries().collect();
    let sizes: Vec<String> = entries
        .iter()
        .map(|(most, strategy, _)| match *most {
            u64::MAX => strategy.name().to_string(),
            most => format!("{} up to {}", strategy.name(), ByteSize(most).rounded()),
        })
        .collect();
    let sizes = match sizes.split_last() {
        Some((largest, [])) => format!("{largest} for every size"),
        Some((largest, smaller)) => format!("{}, {largest} above", smaller.join(", ")),
        None => return Vec::new(),
    };
    let mut lines = vec![format!("auto chose {sizes}; measured {}", measured(view))];
    // What the largest tensors do decides how long a step takes.
    lines.extend(entries.last().map(|(.., reason)| format!("why {reason}")));
    lines
}

fn measured(view: &View) -> String {
    let link = |link: Option<Link>, place: &str| {
        let Link { rate, latency } = link?;
        let microseconds = latency.as_secs_f64() * 1e6;
        let megabytes = rate.bytes_per_second() / 1e6;
        Some(format!("{microseconds:.0} µs and {megabytes:.0} MB/s {place}"))
    };
    let places =
        [link(view.measured.memory, "inside a host"), link(view.measured.wire, "between hosts")];
    let known: Vec<String> = places.into_iter().flatten().collect();
    if known.is_empty() { "nothing, so the usual is taken".to_string() } else { known.join(", ") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{Host, Measured, Rate, Settings, Topology};
    use std::{sync::Arc, time::Duration};

    fn link(bytes_per_second: f64, microseconds: u64) -> Option<Link> {
        let rate = Rate::from_bytes_per_second(bytes_per_second);
        Some(Link { rate, latency: Duration::from_micros(microseconds) })
    }

    fn view(strategy: &str, measured: Measured) -> View {
        let strategy = StrategyChoice(strategy.to_string());
        let hosts = ["a", "a", "b", "b"].map(String::from).to_vec();
        View::on_hosts(hosts, Settings { strategy, ..Settings::default() })
            .with_measured(measured, None)
    }

    #[test]
    fn all_sizes_have_a_strategy_and_what_was_measured_is_said() {
        let measured = Measured { memory: link(4e9, 12), wire: link(125e6, 90) };
        let view = view("auto", measured);
        let [choice, why] = &lines(&view)[..] else { panic!("{:?}", lines(&view)) };
        let said = "measured 12 µs and 4000 MB/s inside a host, 90 µs and 125 MB/s between hosts";
        assert!(choice.ends_with(said), "{choice}");
        let table = AutoTable::for_view(&view);
        for (_, strategy, _) in table.entries() {
            assert!(choice.contains(&*strategy.name()), "{choice}");
        }
        let largest = table.for_bytes(u64::MAX).name();
        assert!(why.starts_with(&format!("why {largest}: ")), "{why}");
        assert!(why.contains("on 4 members and 2 hosts take about"), "{why}");
    }

    #[test]
    fn where_racks_are_known_it_is_said_what_is_done_there() {
        let mut view = view("auto", Measured::default());
        let link = link(1e8, 20).unwrap();
        let host = |(rack, name): (u32, &str)| Host { name: name.to_string(), rack, link };
        let slow = Link { rate: Rate::from_bytes_per_second(1e7), ..link };
        let hosts = (0..).zip(["a", "b"]).map(host).collect();
        let topology = Topology { hosts, uplinks: vec![slow; 2], memory: link };
        let flat = lines(&view);
        view.settings.topology = Some(Arc::new(topology));
        assert_ne!(lines(&view), flat);
        let largest = AutoTable::for_view(&view).for_bytes(u64::MAX).name().to_string();
        assert!(lines(&view)[1].starts_with(&format!("why {largest}: ")), "{:?}", lines(&view));
    }

    #[test]
    fn nothing_is_said_about_a_strategy_that_somebody_named() {
        assert!(lines(&view("ring", Measured::default())).is_empty());
    }

    #[test]
    fn without_a_measurement_nobody_claims_one() {
        let [choice, _] = &lines(&view("auto", Measured::default()))[..] else { panic!() };
        assert!(choice.ends_with("measured nothing, so the usual is taken"), "{choice}");
    }
}
