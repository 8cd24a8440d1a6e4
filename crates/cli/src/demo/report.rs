//! What the demo says at its end: a table of what changed, how fast it was before and after, and what that means; or the same as
//! JSON. Every number was measured in the run.

use super::{
    course::{Speed, compared, gain},
    outcome::Outcome,
    prediction::Prediction,
};
use crate::strategies::text::wrapped;
use paceline_tune::{Action, Candidate, Decision};
use serde_json::{Value, json};

/// One row of the table.
struct Row {
    changed: String,
    before: String,
    after: String,
    means: String,
}

/// For people: 24 rows of 80 columns, with a prompt behind them.
pub fn table(outcome: &Outcome) -> String {
    let line = |texts: [&str; 3], end: &str| {
        let [what, before, after] = texts;
        format!("{what:<36}{before:>14}{after:>16}{end}\n")
    };
    let mut text = line(["what changed", "before", "after"], "");
    for Row { changed, before, after, means } in rows(outcome) {
        text += &line([&changed, &before, &after], "");
        text += &wrapped(&means);
    }
    text += &line(["replayed from the recorded trace", "predicted", "measured"], "      error");
    for (what, prediction) in predictions(outcome) {
        let [predicted, measured] = [prediction.predicted_ms, prediction.measured_ms]
            .map(|milliseconds| format!("{milliseconds:.0} ms/step"));
        let error = format!("{:>+9.1} %", 100.0 * prediction.error());
        text += &line([what, &predicted, &measured], &error);
    }
    // A machine that does something else meanwhile is not equally fast in all of them.
    text + "Medians over each stage's own steps: compare within a row, not between rows.\n"
}

fn predictions(outcome: &Outcome) -> Vec<(&'static str, &Prediction)> {
    let all = [
        ("    the recorded steps", Some(&outcome.recorded)),
        ("    first come, first served", Some(&outcome.predicted_first_come)),
        ("    with the slow link", Some(&outcome.predicted_slow)),
        ("    and with the tuner's answer", outcome.predicted_tuned.as_ref()),
    ];
    all.into_iter().filter_map(|(what, prediction)| Some((what, prediction?))).collect()
}

fn rows(outcome: &Outcome) -> Vec<Row> {
    let Outcome { first_come, scheduled, watched, slow, whole, without, together, .. } = outcome;
    let mut rows = vec![
        Row {
            changed: "first come → order of layers".to_string(),
            before: step(first_come),
            after: step(scheduled),
            means: format!(
                "{}. What the next forward pass needs first is sent first, in pieces: it stood still for {:.0} ms of a step, and does \
                 for {:.0} ms.",
                capital(&compared(first_come, scheduled)),
                1e3 * first_come.waited,
                1e3 * scheduled.waited
            ),
        },
        Row {
            changed: format!("one link {} → {}", outcome.rate, outcome.slow_rate),
            before: step(&watched.speed),
            after: step(&slow.speed),
            means: format!(
                "{}, under {}: all wait for the slowest.",
                capital(&compared(&watched.speed, &slow.speed)),
                slow.settings
            ),
        },
        tuned(outcome),
        Row {
            changed: "a worker is killed".to_string(),
            before: images(whole),
            after: images(without),
            means: format!(
                "The other {} finished the step it died in, and went on; their longest step took {:.2} s. All workers share {}.",
                without.workers,
                outcome.longest_seconds,
                cores()
            ),
        },
        Row {
            changed: "a worker joins".to_string(),
            before: images(without),
            after: images(together),
            means: format!(
                "It got the others' state and made its first step within {:.1} s of its start; their longest step took {:.2} s.",
                outcome.joining_seconds, outcome.longest_joining_seconds
            ),
        },
    ];
    rows.push(Row {
        changed: "accuracy, images never trained on".to_string(),
        before: String::new(),
        after: format!("{:.1} %", 100.0 * outcome.right as f64 / outcome.judged.max(1) as f64),
        means: format!(
            "{} of {} after {} steps, through all of the above.",
            outcome.right, outcome.judged, outcome.steps
        ),
    });
    rows
}

fn tuned(outcome: &Outcome) -> Row {
    let slow = &outcome.slow.speed;
    let Some(tuned) = &outcome.tuned else {
        return Row {
            changed: "the tuner's answer".to_string(),
            before: step(slow),
            after: "kept".to_string(),
            means: kept(&outcome.decisions),
        };
    };
    let promised = promised(&outcome.decisions, &tuned.settings)
        .map_or(String::new(), |gain| format!(", where it expected {:+.0} %", percent(gain)));
    Row {
        changed: format!("tuner: {}", tuned.settings),
        before: step(slow),
        after: step(&tuned.speed),
        means: format!(
            "{}{promised}. It replayed the job while it ran; all workers changed at one step.",
            capital(&compared(slow, &tuned.speed))
        ),
    }
}

/// What a tuner expected of these settings when it last chose them. Where it went back to them, its decision tells what it had
/// expected of the others.
fn promised(decisions: &[Decision], settings: &Candidate) -> Option<f64> {
    let chosen = decisions.iter().rev().filter(|decision| {
        matches!(decision.action, Action::Switch | Action::Try)
            && decision.candidate.as_ref() == Some(settings)
    });
    chosen.into_iter().find_map(|decision| decision.predicted_gain)
}

/// Why nothing was changed in the end.
fn kept(decisions: &[Decision]) -> String {
    let mut back = decisions.iter().rev().filter(|it| it.action == Action::RollBack);
    match back.next() {
        Some(Decision { present, measured_gain: Some(gain), .. }) => {
            format!("It tried {present}, which brought {:+.0} %, and went back.", percent(*gain))
        }
        _ => "It found nothing that promises enough in the time it had.".to_string(),
    }
}

/// What all workers share: why one of them less may not be slower.
fn cores() -> String {
    match std::thread::available_parallelism().map_or(1, usize::from) {
        1 => "the one core of this machine".to_string(),
        cores => format!("the {cores} cores of this machine"),
    }
}

fn percent(gain: f64) -> f64 {
    100.0 * (gain - 1.0)
}

fn step(speed: &Speed) -> String {
    format!("{:.0} ms/step", 1e3 * speed.seconds)
}

fn images(speed: &Speed) -> String {
    format!("{:.0} images/s", speed.images_per_second())
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

/// For programs.
pub fn json(outcome: &Outcome) -> Value {
    let prediction = |of: &Prediction| json!({ "predicted_ms": of.predicted_ms, "measured_ms": of.measured_ms, "error": of.error() });
    json!({
        "link_bits_per_second": 8.0 * outcome.rate.bytes_per_second(),
        "slow_link_bits_per_second": 8.0 * outcome.slow_rate.bytes_per_second(),
        "gradient_bytes": outcome.gradient_bytes,
        "compute_seconds": outcome.compute_seconds,
        "first_come": outcome.first_come,
        "scheduled": outcome.scheduled,
        "scheduling_gain": gain(&outcome.first_come, &outcome.scheduled),
        "watched": outcome.watched,
        "slow": outcome.slow,
        "tuned": outcome.tuned,
        "tuning_gain": outcome.tuned.as_ref().map(|tuned| gain(&outcome.slow.speed, &tuned.speed)),
        "decisions": outcome.decisions,
        "killed": {
            "before": outcome.whole,
            "after": outcome.without,
            "longest_step_seconds": outcome.longest_seconds,
        },
        "joined": {
            "after": outcome.together,
            "first_step_after_seconds": outcome.joining_seconds,
            "longest_step_seconds": outcome.longest_joining_seconds,
        },
        "replay": {
            "recorded": prediction(&outcome.recorded),
            "first_come": prediction(&outcome.predicted_first_come),
            "slow": prediction(&outcome.predicted_slow),
            "tuned": outcome.predicted_tuned.as_ref().map(prediction),
        },
        "accuracy": outcome.right as f64 / outcome.judged.max(1) as f64,
        "judged": outcome.judged,
        "steps": outcome.steps,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_job::{ByteSize, StrategyChoice};
    use paceline_tune::Conditions;

    fn candidate(strategy: &str) -> Candidate {
        let strategy = StrategyChoice(strategy.to_string());
        Candidate { strategy, partition: ByteSize::kib(64), credit: ByteSize::kib(64) }
    }

    fn decision(action: Action, present: &str, other: &str, gains: [Option<f64>; 2]) -> Decision {
        Decision {
            step: 1,
            method: "replay".to_string(),
            action,
            cause: "measured".to_string(),
            conditions: Conditions::default(),
            present: candidate(present),
            candidate: Some(candidate(other)),
            predicted_gain: gains[0],
            measured_gain: gains[1],
            back_off: 0,
        }
    }

    #[test]
    fn what_was_expected_of_settings_is_not_what_was_expected_of_those_it_went_back_from() {
        let decisions = [
            decision(Action::Switch, "ring", "double_tree", [Some(1.4), None]),
            decision(Action::Confirm, "ring", "double_tree", [Some(1.4), Some(1.35)]),
            decision(Action::Switch, "double_tree", "one_shot", [Some(1.3), None]),
            decision(Action::RollBack, "one_shot", "double_tree", [Some(1.3), Some(0.6)]),
        ];
        assert_eq!(promised(&decisions, &candidate("double_tree")), Some(1.4));
        assert_eq!(promised(&decisions, &candidate("ring")), None);
    }

    #[test]
    fn settings_that_were_tried_in_vain_are_named() {
        assert!(kept(&[]).contains("nothing"));
        let back = decision(Action::RollBack, "one_shot", "ring", [Some(1.3), Some(0.6)]);
        assert_eq!(
            kept(&[back]),
            "It tried one_shot 64KiB/64KiB, which brought -40 %, and went back."
        );
    }
}
