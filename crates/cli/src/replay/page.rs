//! A page that needs nothing but itself: the report, and the last step as it was measured and as it is predicted.

use super::bars::{self, Look, Row};
use crate::scenario::Loaded;
use paceline_replay::graph::Played;
use std::fmt::Write;

/// Workers that are drawn; the report speaks of all.
const MOST_WORKERS: usize = 16;

/// Pixels.
const LABEL: f64 = 190.0;
/// What a letter takes of a label; wider ones are rare, and a label that is cut off can be read by pointing at it.
const LETTER: f64 = 6.4;
const WIDTH: f64 = 1200.0;
const ROW: f64 = 18.0;

/// Bars narrower than this are left out, thousands of kernels apart from each other would not be seen.
const NARROWEST: f64 = 0.05;

/// Rows whose bars together are narrower than this are left out: they would look empty.
const EMPTY: f64 = 0.5;

/// Gaps of the critical path narrower than this are not seen either.
const JOINED: f64 = 0.5;

const STYLE: &str = "\
:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--faint:#8886;--forward:#3b82c4;--backward:#7a5cc4;\
--update:#2f9e6e;--other:#999;--wait:#d9a400;--communication:#d2603a}\
@media(prefers-color-scheme:dark){:root{--ink:#eee;--paper:#16181c}}\
body{font:14px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:2em;max-width:1440px}\
pre{white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.4 ui-monospace,monospace}\
svg{width:100%;height:auto;font:11px system-ui,sans-serif}text{fill:var(--ink)}\
.grid{stroke:var(--faint)}.critical{fill:var(--ink)}.legend span{display:inline-block;margin-right:1.2em}\
.legend i{display:inline-block;width:.9em;height:.9em;margin-right:.4em;vertical-align:-.1em}";

const LOOKS: [Look; 6] =
    [Look::Forward, Look::Backward, Look::Update, Look::Other, Look::Wait, Look::Network];

/// The page.
pub fn draw(loaded: &Loaded, played: &Played, simulated: bool, report: &str) -> String {
    let measured = bars::measured(loaded, MOST_WORKERS);
    let predicted = bars::predicted(&loaded.job.graph, played, MOST_WORKERS);
    let ends = measured.iter().chain(&predicted).flat_map(|row| &row.bars).map(|bar| bar.to);
    let longest = ends.max().unwrap_or(1).max(1);
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write!(
        page,
        "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>Replay</title><meta name=\"viewport\" \
         content=\"width=device-width\"><style>{STYLE}{}</style>\n<h1>Replay</h1>\n<p class=\"legend\">{}<span>underlined: on the critical \
         path</span></p>\n",
        LOOKS
            .map(|look| format!(".{0}{{fill:var(--{0});background:var(--{0})}}", look.name()))
            .concat(),
        LOOKS.map(|look| format!("<span><i class=\"{0}\"></i>{0}</span>", look.name())).concat(),
    );
    let laid_out = loaded.trace.workers.iter().any(|worker| worker.laid_out);
    let shown = if laid_out { "as its lengths and dependencies allow" } else { "as measured" };
    let shown = format!("The last step, {shown}");
    let played = if simulated { "As predicted" } else { "As replayed, operations as recorded" };
    for (title, rows) in [(shown.as_str(), measured), (played, predicted)] {
        let _ = write!(page, "<h2>{title}</h2>\n{}\n", timeline(&rows, longest, title));
    }
    let workers = loaded.job.graph.workers.len();
    if workers > MOST_WORKERS {
        let _ = writeln!(page, "<p>The first {MOST_WORKERS} of {workers} workers are drawn.</p>");
    }
    let _ = write!(page, "<h2>Report</h2>\n<pre>{}</pre>\n</html>\n", escaped(report));
    page
}

fn timeline(rows: &[Row], longest: u64, title: &str) -> String {
    let scale = (WIDTH - LABEL) / longest as f64;
    let filled = |row: &Row| row.bars.iter().map(|bar| bar.to - bar.from).sum::<u64>() as f64;
    let rows: Vec<&Row> = rows.iter().filter(|row| filled(row) * scale >= EMPTY).collect();
    if rows.is_empty() {
        return "<p>Nothing was recorded.</p>".to_string();
    }
    let height = ROW * (rows.len() + 1) as f64 + 6.0;
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" aria-label=\"{}\">",
        escaped(title)
    );
    for (place, row) in rows.iter().enumerate() {
        let top = ROW * place as f64;
        let name = format!("{}: {}", row.rank, row.name);
        let (label, name) = (escaped(&short(&name)), escaped(&name));
        let baseline = top + 13.0;
        let _ =
            write!(svg, "<text x=\"0\" y=\"{baseline:.0}\">{label}<title>{name}</title></text>");
        for bar in &row.bars {
            let width = (bar.to - bar.from) as f64 * scale;
            if width < NARROWEST {
                continue;
            }
            let milliseconds = (bar.to - bar.from) as f64 / 1e6;
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{:.2}\" y=\"{:.0}\" width=\"{:.2}\" height=\"{:.0}\"{}><title>{} {milliseconds:.3} \
                 ms</title></rect>",
                bar.look.name(),
                LABEL + bar.from as f64 * scale,
                top + 2.0,
                width.max(0.3),
                ROW - 4.0,
                if bar.look == Look::Network && !bar.critical { " opacity=\".5\"" } else { "" },
                escaped(&bar.name),
            );
        }
        for (from, to) in critical(row, scale) {
            let (x, width, y) = (LABEL + from, (to - from).max(0.3), top + ROW - 2.0);
            let _ = write!(
                svg,
                "<rect class=\"critical\" x=\"{x:.2}\" y=\"{y:.0}\" width=\"{width:.2}\" height=\"1.5\"/>"
            );
        }
    }
    let foot = ROW * rows.len() as f64;
    for tenth in 0..=10 {
        let x = LABEL + (WIDTH - LABEL) * f64::from(tenth) / 10.0;
        // The first and the last stay inside the drawing.
        let anchor = match tenth {
            0 => "start",
            10 => "end",
            _ => "middle",
        };
        let milliseconds = (x - LABEL) / scale / 1e6;
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"0\" y2=\"{foot:.0}\"/><text x=\"{x:.1}\" \
             y=\"{:.0}\" text-anchor=\"{anchor}\">{milliseconds:.1} ms</text>",
            foot + 14.0
        );
    }
    svg.push_str("</svg>");
    svg
}

/// As much of a label as there is room for.
fn short(label: &str) -> String {
    let most = (LABEL / LETTER) as usize;
    match label.char_indices().nth(most) {
        None => label.to_string(),
        Some(_) => label.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Where a row is on the critical path, in pixels; what nobody could tell apart is one.
fn critical(row: &Row, scale: f64) -> Vec<(f64, f64)> {
    let bars = row.bars.iter().filter(|bar| bar.critical);
    let mut stretches: Vec<(f64, f64)> =
        bars.map(|bar| (bar.from as f64 * scale, bar.to as f64 * scale)).collect();
    stretches.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut joined: Vec<(f64, f64)> = Vec::new();
    for (from, to) in stretches {
        match joined.last_mut() {
            Some(last) if from - last.1 < JOINED => last.1 = last.1.max(to),
            _ => joined.push((from, to)),
        }
    }
    joined
}

/// Names come from files: nothing in them is markup.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;
    use bars::Bar;
    use paceline_job::Rank;

    #[test]
    fn names_from_a_trace_cannot_become_markup() {
        let name = "<script>\"&".to_string();
        let bar =
            Bar { from: 0, to: 10, look: Look::Forward, name, critical: false, operation: None };
        let row = Row { rank: Rank(0), name: "a<b".to_string(), bars: vec![bar] };
        let svg = timeline(&[row], 10, "t");
        assert!(!svg.contains("<script>") && svg.contains("&lt;script&gt;&quot;&amp;"), "{svg}");
        assert!(svg.contains("0: a&lt;b"));
    }

    #[test]
    fn a_dense_critical_path_is_one_line_and_a_long_name_stays_in_its_place() {
        let kernel = |number: u64| Bar {
            from: 10 * number,
            to: 10 * number + 9,
            look: Look::Forward,
            name: "kernel".to_string(),
            critical: number != 500,
            operation: None,
        };
        let name = "a stream with a name that goes on and on and on".to_string();
        let row = Row { rank: Rank(0), name, bars: (0..1000).map(kernel).collect() };
        assert_eq!(critical(&row, 0.125), [(0.0, 624.875), (626.25, 1249.875)]);
        let label = short(&format!("0: {}", row.name));
        assert!(label.ends_with('…') && label.chars().count() as f64 * LETTER <= LABEL, "{label}");
    }
}
