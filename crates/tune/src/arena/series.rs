//! Speed over time as points that can be drawn: of a run, and of one that always has the best setting.

use super::{Phase, Trial};

/// Points of a run, at most.
const POINTS: usize = 240;

/// Seconds, and steps a second then.
pub type Series = Vec<(f64, f64)>;

/// The speed of a run in equal stretches of time, in the middle of each; those in which no step began are left out.
pub fn speeds(trial: &Trial, phases: &[Phase]) -> Series {
    let width = phases.last().map_or(1.0, |phase| phase.until) / POINTS as f64;
    let mut stretches = vec![(0.0, 0_u32); POINTS];
    for sample in &trial.samples {
        let stretch = ((sample.at / width) as usize).min(POINTS - 1);
        stretches[stretch].0 += sample.seconds;
        stretches[stretch].1 += 1;
    }
    let point = |(place, (seconds, steps)): (usize, (f64, u32))| {
        (steps > 0).then(|| ((place as f64 + 0.5) * width, f64::from(steps) / seconds))
    };
    stretches.into_iter().enumerate().filter_map(point).collect()
}

/// The speed of the best setting of each phase, at its beginning and its end. `best` has the seconds of a step.
pub fn oracle(phases: &[Phase], best: &[f64]) -> Series {
    let corners = phases
        .iter()
        .zip(best)
        .flat_map(|(phase, seconds)| [phase.from, phase.until].map(|at| (at, seconds.recip())));
    corners.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arena::{Sample, Weather};

    fn phase(from: f64, until: f64) -> Phase {
        let weather = Weather { hosts: Vec::new(), uplinks: Vec::new(), slowness: Vec::new() };
        Phase { from, until, weather, line: None }
    }

    #[test]
    fn a_long_run_has_a_bounded_number_of_points_with_its_speed() {
        // Numbers that binary fractions hold, so that no step is in the stretch beside its own.
        let phases = [phase(0.0, 480.0), phase(480.0, 960.0)];
        let fast = (0..3840).map(|step| (0.125 * f64::from(step), 0.125));
        let slow = (0..960).map(|step| (480.0 + 0.5 * f64::from(step), 0.5));
        let sample = |(at, seconds)| Sample { at, seconds, best: 0.125, expected: seconds };
        let trial = Trial { samples: fast.chain(slow).map(sample).collect(), ..Trial::default() };
        let series = speeds(&trial, &phases);
        assert_eq!(series.len(), POINTS);
        for (at, speed) in series {
            assert_eq!(speed, if at < 480.0 { 8.0 } else { 2.0 }, "{at}");
        }
        let corners = [(0.0, 8.0), (480.0, 8.0), (480.0, 2.0), (960.0, 2.0)];
        assert_eq!(oracle(&phases, &[0.125, 0.5]), corners);
    }

    #[test]
    fn stretches_in_which_no_step_begins_have_no_point() {
        let sample = Sample { at: 0.0, seconds: 100.0, best: 1.0, expected: 1.0 };
        let trial = Trial { samples: vec![sample], ..Trial::default() };
        assert_eq!(speeds(&trial, &[phase(0.0, 240.0)]), [(0.5, 0.01)]);
    }
}
