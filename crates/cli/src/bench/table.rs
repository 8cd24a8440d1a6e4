//! Text tables, aligned for a terminal or as Markdown, and numbers at a width that people can read. It does not know what the
//! cells mean.

use super::statistics::Estimate;

/// What stands where nothing was measured.
pub const NOTHING: &str = "–";

/// How to draw.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// Aligned columns.
    Plain,
    /// A table to paste into a document.
    Markdown,
}

/// Draws a table; the first column is aligned to the left, the others to the right.
pub fn draw(header: &[String], rows: &[Vec<String>], style: Style) -> String {
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column)).chain(header.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..header.len()).map(width).collect();
    let line = |cells: &[String]| {
        let padded: Vec<String> = widths
            .iter()
            .enumerate()
            .map(|(column, width)| {
                let cell = cells.get(column).map_or("", String::as_str);
                if column == 0 { format!("{cell:<width$}") } else { format!("{cell:>width$}") }
            })
            .collect();
        match style {
            Style::Plain => padded.join("  ").trim_end().to_string(),
            Style::Markdown => format!("| {} |", padded.join(" | ")),
        }
    };
    let rule = match style {
        Style::Plain => {
            widths.iter().map(|width| "─".repeat(*width)).collect::<Vec<_>>().join("  ")
        }
        Style::Markdown => {
            let dashes = widths.iter().enumerate().map(|(column, width)| match column {
                0 => format!(":{}", "-".repeat(width + 1)),
                _ => format!("{}:", "-".repeat(width + 1)),
            });
            format!("|{}|", dashes.collect::<Vec<_>>().join("|"))
        }
    };
    let mut text = format!("{}\n{rule}\n", line(header));
    for row in rows {
        text.push_str(&line(row));
        text.push('\n');
    }
    text
}

/// `12.3 µs [11.9–13.0]`, all three in the unit that suits the median.
pub fn time(estimate: Option<Estimate>) -> String {
    let Some(Estimate { median, low, high }) = estimate else { return NOTHING.to_string() };
    let (unit, scale) = unit_of(median);
    format!("{} {unit} [{}–{}]", digits(median * scale), digits(low * scale), digits(high * scale))
}

/// `12.3 µs`
pub fn seconds(value: f64) -> String {
    let (unit, scale) = unit_of(value);
    format!("{} {unit}", digits(value * scale))
}

/// `2.41× [2.20–2.60]`
pub fn ratio(estimate: Option<Estimate>) -> String {
    estimate.map_or_else(
        || NOTHING.to_string(),
        |Estimate { median, low, high }| {
            format!("{}× [{}–{}]", digits(median), digits(low), digits(high))
        },
    )
}

/// `8.31 GB/s`
pub fn rate(bytes_per_second: f64) -> String {
    format!("{} GB/s", digits(bytes_per_second * 1e-9))
}

/// Three significant digits, without an exponent.
pub fn digits(value: f64) -> String {
    let decimals = match value.abs() {
        v if v >= 99.95 => 0,
        v if v >= 9.995 => 1,
        v if v >= 0.9995 || v == 0.0 => 2,
        v if v >= 0.09995 => 3,
        v if v >= 0.009995 => 4,
        _ => 5,
    };
    format!("{value:.decimals$}")
}

fn unit_of(seconds: f64) -> (&'static str, f64) {
    match seconds {
        s if s >= 0.9995 => ("s", 1.0),
        s if s >= 0.9995e-3 => ("ms", 1e3),
        _ => ("µs", 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn columns_line_up_whatever_the_alphabet() {
        let rows = [words(&["1KiB", "9.1 µs"]), words(&["256MiB", "–"])];
        let text = draw(&words(&["size", "gloo"]), &rows, Style::Plain);
        let expected = "size      gloo\n──────  ──────\n1KiB    9.1 µs\n256MiB       –\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn markdown_states_its_alignment() {
        let text = draw(&words(&["size", "a"]), &[words(&["4B", "1"])], Style::Markdown);
        assert_eq!(text, "| size | a |\n|:-----|--:|\n| 4B   | 1 |\n");
    }

    #[test]
    fn a_short_row_ends_in_empty_cells() {
        let text = draw(&words(&["a", "b"]), &[words(&["x"])], Style::Markdown);
        assert!(text.ends_with("| x |   |\n"), "{text}");
    }

    #[test]
    fn numbers_keep_three_digits_and_the_unit_of_the_median() {
        let estimate = |median, low, high| Some(Estimate { median, low, high });
        assert_eq!(time(estimate(12.34e-6, 9.999e-6, 1.5e-3)), "12.3 µs [10.0–1500]");
        assert_eq!(time(estimate(0.5, 0.4, 1.2)), "500 ms [400–1200]");
        assert_eq!(time(None), "–");
        assert_eq!(seconds(0.99999), "1.00 s");
        assert_eq!(ratio(estimate(312.4, 2.0, 400.0)), "312× [2.00–400]");
        assert_eq!(rate(8.314e9), "8.31 GB/s");
        assert_eq!(digits(0.00123), "0.00123");
        assert_eq!(digits(0.5), "0.500");
    }
}
