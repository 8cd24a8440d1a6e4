//! Speed over time as a drawing: one line for each method, and one for the best setting of each phase.

use super::{Phase, Trial};
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 60.0;
/// Points of a line.
const POINTS: usize = 240;
const COLOURS: [&str; 6] = ["#999999", "#3b82c4", "#2f9e6e", "#7a5cc4", "#d2603a", "#d9a400"];

/// An SVG file. `best` has the seconds of a step of each phase's best setting.
pub fn draw(title: &str, phases: &[Phase], best: &[f64], trials: &[(&str, &Trial)]) -> String {
    let end = phases.last().map_or(1.0, |phase| phase.until);
    let lines: Vec<(&str, Vec<(f64, f64)>)> =
        trials.iter().map(|(name, trial)| (*name, speeds(trial, end))).collect();
    let oracle = best.iter().map(|seconds| seconds.recip());
    let drawn = lines.iter().flat_map(|(_, line)| line.iter().map(|(_, speed)| *speed));
    let fastest = drawn.chain(oracle.clone()).fold(0.0, f64::max).max(f64::MIN_POSITIVE);
    let x = |at: f64| LEFT + (WIDTH - LEFT - 20.0) * at / end;
    let y = |speed: f64| TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - speed / fastest);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{LEFT}\" y=\"18\" \
         font-size=\"14\">{}</text>\n",
        escaped(title)
    );
    let mut path = |points: &[(f64, f64)], colour: &str, more: &str| {
        let points: Vec<String> =
            points.iter().map(|(at, speed)| format!("{:.1},{:.1}", x(*at), y(*speed))).collect();
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" {more}/>",
            points.join(" ")
        );
    };
    let corners: Vec<(f64, f64)> = phases
        .iter()
        .zip(oracle)
        .flat_map(|(phase, speed)| [(phase.from, speed), (phase.until, speed)])
        .collect();
    path(&corners, "black", "stroke-dasharray=\"5 3\"");
    for (place, (_, line)) in lines.iter().enumerate() {
        path(line, COLOURS[place % COLOURS.len()], "stroke-width=\"1.6\"");
    }
    for tenth in 0..=5 {
        let speed = fastest * f64::from(tenth) / 5.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{speed:.2}</text>",
            LEFT - 6.0,
            y(speed) + 4.0
        );
        let at = end * f64::from(tenth) / 5.0;
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{at:.0} s</text>",
            x(at),
            HEIGHT - BOTTOM + 18.0
        );
    }
    let names = std::iter::once(("best of each phase", "black")).chain(
        lines.iter().enumerate().map(|(place, (name, _))| (*name, COLOURS[place % COLOURS.len()])),
    );
    for (place, (name, colour)) in names.enumerate() {
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" fill=\"{colour}\">{}</text>",
            LEFT + 130.0 * place as f64,
            HEIGHT - 14.0,
            escaped(name)
        );
    }
    svg.push_str("</svg>\n");
    svg
}

/// Steps a second in equal stretches of time, those without a step left out.
fn speeds(trial: &Trial, end: f64) -> Vec<(f64, f64)> {
    let width = end / POINTS as f64;
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
