//! Whether the machine is free for a measurement: the share of its cores that others keep busy. One
//! stray spinning process makes a barrier a thousand times slower, so this is looked at before anything else.

use std::{fs, io, thread, time::Duration};

/// How long to look.
const WATCH: Duration = Duration::from_millis(500);
/// More than this share of all cores is a disturbance worth a warning.
pub const DISTURBING: f64 = 0.05;

/// Ticks of all cores since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ticks {
    idle: u64,
    total: u64,
}

/// The share of all cores' time, `0..=1`, that something used while we slept.
pub fn busy_share() -> io::Result<f64> {
    let watch = Watch::begin()?;
    thread::sleep(WATCH);
    watch.busy()
}

/// Watches the cores from a moment on.
#[derive(Clone, Copy, Debug)]
pub struct Watch(Ticks);

impl Watch {
    /// From now on.
    pub fn begin() -> io::Result<Watch> {
        Ok(Watch(parse(&fs::read_to_string("/proc/stat")?)?))
    }

    /// The share of all cores' time, `0..=1`, that was not idle since it began.
    pub fn busy(self) -> io::Result<f64> {
        Ok(share(self.0, Watch::begin()?.0))
    }
}

fn share(before: Ticks, after: Ticks) -> f64 {
    let total = after.total.saturating_sub(before.total);
    let idle = after.idle.saturating_sub(before.idle);
    if total == 0 { 0.0 } else { 1.0 - idle as f64 / total as f64 }
}

/// The first line: `cpu user nice system idle iowait irq softirq steal guest guest_nice`. Guest time is
/// already part of user time.
fn parse(stat: &str) -> io::Result<Ticks> {
    let line = stat.lines().next().unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().skip(1).take(8).map_while(|word| word.parse().ok()).collect();
    match ticks[..] {
        [_, _, _, idle, waiting, ..] => {
            Ok(Ticks { idle: idle + waiting, total: ticks.iter().sum() })
        }
        _ => Err(io::Error::other(format!("/proc/stat begins with `{line}`"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_for_a_disk_is_idle_and_stolen_time_is_not() {
        let before = parse("cpu  100 0 100 800 0 0 0 0 0 0\ncpu0 1 2 3").unwrap();
        let after = parse("cpu  100 0 100 840 10 0 0 50 0 0\n").unwrap();
        assert_eq!(share(before, after), 0.5);
        assert_eq!(share(before, before), 0.0);
    }

    #[test]
    fn another_format_is_an_error() {
        assert!(parse("").is_err());
        assert!(parse("cpu one two").is_err());
    }
}
