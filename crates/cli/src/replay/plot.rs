//! Answers to what-if questions as a drawing: one bar for each, and a line where a step is now.

use super::{page::escaped, questions::Answer};
use std::fmt::Write;

const WIDTH: f64 = 900.0;
const LABEL: f64 = 300.0;
const ROW: f64 = 26.0;

/// An SVG file.
pub fn draw(step_ms: f64, answers: &[Answer]) -> String {
    let longest = answers.iter().map(|answer| answer.step_ms).fold(step_ms, f64::max);
    let scale = (WIDTH - LABEL - 90.0) / longest.max(f64::MIN_POSITIVE);
    let height = ROW * (answers.len() + 1) as f64 + 10.0;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" font-family=\"sans-serif\" \
         font-size=\"13\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let now = Answer { what_if: "as it is".to_string(), step_ms, speed: 1.0, lumped_step_ms: None };
    for (place, answer) in std::iter::once(&now).chain(answers).enumerate() {
        let top = ROW * place as f64 + 5.0;
        let width = answer.step_ms * scale;
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text><rect x=\"{LABEL}\" y=\"{top:.0}\" width=\"{width:.1}\" \
             height=\"{:.0}\" fill=\"{}\"/><text x=\"{:.1}\" y=\"{:.0}\">{:.1} ms</text>",
            LABEL - 8.0,
            top + 15.0,
            escaped(&answer.what_if),
            ROW - 6.0,
            if place == 0 { "#999" } else { "#3b82c4" },
            LABEL + width + 6.0,
            top + 15.0,
            answer.step_ms,
        );
    }
    let x = LABEL + step_ms * scale;
    let _ = writeln!(
        svg,
        "<line x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{height:.0}\" stroke=\"#d2603a\" stroke-dasharray=\"4 3\"/>"
    );
    svg.push_str("</svg>\n");
    svg
}
