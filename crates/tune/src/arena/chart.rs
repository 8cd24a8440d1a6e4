//! Speed over time as a drawing: one line for each method, and one for the best setting of each phase. What is drawn is made in
//! `series`.

use super::Series;
use std::fmt::Write;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 60.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 60.0;
const COLOURS: [&str; 6] = ["#999999", "#3b82c4", "#2f9e6e", "#7a5cc4", "#d2603a", "#d9a400"];

/// An SVG file of these lines and their names, as long as the oracle's.
pub fn draw(title: &str, oracle: &Series, lines: &[(&str, &Series)]) -> String {
    let end = oracle.last().map_or(1.0, |(at, _)| *at);
    let drawn = lines.iter().flat_map(|(_, line)| line.iter());
    let speeds = drawn.chain(oracle).map(|(_, speed)| *speed);
    let fastest = speeds.fold(0.0, f64::max).max(f64::MIN_POSITIVE);
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
    path(oracle, "black", "stroke-dasharray=\"5 3\"");
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

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
