//! One panel for each case, a row for each oversubscription: workers across, time over the bound upwards, a line for
//! each strategy.

use super::{CASES, GROWTH, Measured, STRATEGIES};
use std::fmt::Write;

const COLOURS: [&str; 4] = ["#999999", "#b58a3a", "#3b82c4", "#d2603a"];
const PANEL: f64 = 300.0;
const HEIGHT: f64 = 230.0;
/// From the top of one row to that of the next.
const ROW: f64 = HEIGHT + 66.0;
const MARGIN: f64 = 44.0;

/// An SVG file.
pub fn draw(all: &[Measured]) -> String {
    let width = PANEL * CASES.len() as f64 + 20.0;
    let mut rows: Vec<f64> = all.iter().map(|one| one.oversubscription).collect();
    rows.dedup();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {:.0}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n",
        ROW * rows.len() as f64 + 34.0
    );
    for (at, name) in STRATEGIES.iter().enumerate() {
        let x = MARGIN + 150.0 * at as f64;
        // Writing to a string does not fail.
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.0}\" y=\"10\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.0}\" y=\"20\">{name}</text>",
            COLOURS[at],
            x + 18.0
        );
    }
    for (row, oversubscription) in rows.iter().enumerate() {
        for (at, case) in CASES.iter().enumerate() {
            let in_panel = |one: &&Measured| {
                one.case == *case && one.oversubscription.total_cmp(oversubscription).is_eq()
            };
            let shown: Vec<&Measured> = all.iter().filter(in_panel).collect();
            let title = format!("{oversubscription}:1, {case}");
            panel(&mut svg, &shown, &title, (PANEL * at as f64, ROW * row as f64));
        }
    }
    svg + "</svg>\n"
}

fn panel(svg: &mut String, shown: &[&Measured], title: &str, (left, above): (f64, f64)) {
    let most = shown.iter().map(|one| one.workers).max().unwrap_or(1);
    let fewest = shown.iter().map(|one| one.workers).min().unwrap_or(1);
    let ratio = |one: &Measured| one.seconds / one.bound;
    let highest = shown.iter().map(|one| ratio(one)).fold(1.0, f64::max).ceil();
    let doublings = f64::from((most / fewest).ilog2().max(1));
    let x = |workers: u32| {
        let step = f64::from((workers / fewest).ilog2()) / doublings;
        left + MARGIN + step * (PANEL - MARGIN - 20.0)
    };
    let (top, bottom) = (above + 60.0, above + HEIGHT + 30.0);
    let y = |ratio: f64| bottom - ratio / highest * (bottom - top);
    let _ = writeln!(svg, "<text x=\"{:.0}\" y=\"{:.0}\">{title}</text>", left + MARGIN, top - 8.0);
    for tick in 0..=highest as u32 {
        let at = y(f64::from(tick));
        let _ = writeln!(
            svg,
            "<line x1=\"{:.0}\" x2=\"{:.0}\" y1=\"{at:.1}\" y2=\"{at:.1}\" stroke=\"#ddd\"/><text x=\"{:.0}\" \
             y=\"{:.1}\" text-anchor=\"end\">{tick}</text>",
            left + MARGIN,
            left + PANEL - 20.0,
            left + MARGIN - 6.0,
            at + 4.0
        );
    }
    for (name, colour) in STRATEGIES.iter().zip(COLOURS) {
        let line = shown.iter().filter(|one| one.strategy == *name);
        let points: Vec<String> =
            line.map(|one| format!("{:.1},{:.1}", x(one.workers), y(ratio(one)))).collect();
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            points.join(" ")
        );
    }
    let mut workers = fewest;
    while workers <= most {
        let _ = writeln!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{workers}</text>",
            x(workers),
            bottom + 18.0
        );
        workers *= GROWTH;
    }
    let _ = writeln!(
        svg,
        "<text x=\"{:.0}\" y=\"{:.0}\">workers; time over the bound</text>",
        left + MARGIN,
        bottom + 34.0
    );
}
