//! Charts side by side with logarithmic axes, as an SVG file. What the numbers mean is not known here.

use std::fmt::Write;

const WIDTH: f64 = 460.0;
const HEIGHT: f64 = 360.0;
/// Room for labels: left, top, right, bottom.
const MARGINS: (f64, f64, f64, f64) = (64.0, 62.0, 20.0, 48.0);
const COLOURS: [&str; 3] = ["#d2603a", "#3b82c4", "#4f9d69"];

/// One curve.
pub struct Line {
    pub name: &'static str,
    /// Across and up, both above zero, ascending.
    pub points: Vec<(f64, f64)>,
}

impl Line {
    pub fn new(name: &'static str, points: Vec<(f64, f64)>) -> Line {
        Line { name, points }
    }
}

/// Some curves over one axis.
pub struct Chart {
    pub title: String,
    pub across: &'static str,
    pub lines: Vec<Line>,
}

/// All charts beside each other, with the same scale upwards.
pub fn svg(heading: &str, charts: &[Chart]) -> String {
    let values = |pick: fn(&(f64, f64)) -> f64, charts: &[Chart]| -> Vec<f64> {
        let lines = charts.iter().flat_map(|chart| &chart.lines);
        lines.flat_map(|line| line.points.iter().map(pick)).collect()
    };
    let up = Axis::of(&values(|point| point.1, charts), HEIGHT - MARGINS.1 - MARGINS.3);
    let width = WIDTH * charts.len() as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\"><rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{MIDDLE}\" y=\"22\" text-anchor=\"middle\" font-size=\"15\">{heading}</text>\n",
        MIDDLE = width / 2.0
    );
    for (place, chart) in charts.iter().enumerate() {
        let across = values(|point| point.0, std::slice::from_ref(chart));
        let across = Axis::of(&across, WIDTH - MARGINS.0 - MARGINS.2);
        let _ = writeln!(svg, "<g transform=\"translate({} 0)\">", WIDTH * place as f64);
        // Writing to a string does not fail.
        let _ = draw(&mut svg, chart, &across, &up);
        svg.push_str("</g>\n");
    }
    svg.push_str("</svg>\n");
    svg
}

/// Powers of ten from below the least value to above the greatest.
struct Axis {
    from: i32,
    to: i32,
    length: f64,
}

impl Axis {
    fn of(values: &[f64], length: f64) -> Axis {
        let least = values.iter().copied().fold(f64::INFINITY, f64::min).log10();
        let most = values.iter().copied().fold(f64::NEG_INFINITY, f64::max).log10();
        let from = least.floor() as i32;
        Axis { from, to: (most.ceil() as i32).max(from + 1), length }
    }

    fn at(&self, value: f64) -> f64 {
        self.length * (value.log10() - f64::from(self.from)) / f64::from(self.to - self.from)
    }

    fn ticks(&self) -> impl Iterator<Item = f64> {
        (self.from..=self.to).map(|exponent| 10_f64.powi(exponent))
    }
}

fn draw(svg: &mut String, chart: &Chart, across: &Axis, up: &Axis) -> std::fmt::Result {
    let (left, top, _, _) = MARGINS;
    let bottom = top + up.length;
    let x = |value: f64| left + across.at(value);
    let y = |value: f64| bottom - up.at(value);
    let grid = "stroke=\"#ddd\"";
    for tick in up.ticks() {
        let (at, right) = (y(tick), left + across.length);
        let label = if tick < 1.0 { format!("{} ms", tick * 1e3) } else { format!("{tick} s") };
        writeln!(
            svg,
            "<line x1=\"{left}\" x2=\"{right}\" y1=\"{at:.1}\" y2=\"{at:.1}\" {grid}/>\
             <text x=\"{:.0}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
            left - 6.0,
            at + 4.0
        )?;
    }
    for tick in across.ticks() {
        let at = x(tick);
        writeln!(
            svg,
            "<line x1=\"{at:.1}\" x2=\"{at:.1}\" y1=\"{top}\" y2=\"{bottom}\" {grid}/>\
             <text x=\"{at:.1}\" y=\"{:.0}\" text-anchor=\"middle\">{tick}</text>",
            bottom + 16.0
        )?;
    }
    let middle = left + across.length / 2.0;
    writeln!(
        svg,
        "<text x=\"{middle}\" y=\"{:.0}\" text-anchor=\"middle\">{} ({})</text>",
        bottom + 36.0,
        chart.across,
        chart.title
    )?;
    for (place, Line { name, points }) in chart.lines.iter().enumerate() {
        let colour = COLOURS[place % COLOURS.len()];
        let path: Vec<String> =
            points.iter().map(|point| format!("{:.1},{:.1}", x(point.0), y(point.1))).collect();
        let path = path.join(" ");
        writeln!(
            svg,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>"
        )?;
        for point in points {
            let (x, y) = (x(point.0), y(point.1));
            writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>")?;
        }
        let row = top + 16.0 + 16.0 * place as f64;
        writeln!(
            svg,
            "<rect x=\"{:.0}\" y=\"{:.0}\" width=\"12\" height=\"4\" fill=\"{colour}\"/>\
             <text x=\"{:.0}\" y=\"{row}\">{name}</text>",
            left + 10.0,
            row - 6.0,
            left + 28.0
        )?;
    }
    Ok(())
}
