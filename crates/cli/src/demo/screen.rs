//! The live view of the demo on a terminal: a page of text that follows the course, drawn over itself a few times a second. The
//! terminal is as it was before when the view is dropped. What the page says is a pure function of the course and its size.

use super::{
    course::{Course, Stage, Standing},
    stages::WORKERS,
};
use crate::strategies::text::broken;
use anyhow::Result;
use std::{
    fmt::Write as _,
    io::{self, Write},
    time::{Duration, Instant},
};

/// Between two drawings.
const INTERVAL: Duration = Duration::from_millis(100);

/// Another screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l\x1b[2J";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

const BOLD: &str = "\x1b[1m";
const DIM: &str = "\x1b[2m";
const GREEN: &str = "\x1b[32m";
const RED: &str = "\x1b[31m";
const PLAIN: &str = "\x1b[0m";

/// See the file's first paragraph.
pub struct Screen {
    began: Instant,
    drawn: Option<Instant>,
    colours: bool,
}

impl Screen {
    /// Take the terminal over.
    pub fn open() -> Result<Screen> {
        let screen = Screen {
            began: Instant::now(),
            drawn: None,
            colours: std::env::var_os("NO_COLOR").is_none(),
        };
        let mut output = io::stdout().lock();
        output.write_all(ENTER.as_bytes())?;
        output.flush()?;
        Ok(screen)
    }

    /// Draw, if it is time to.
    pub fn refresh(&mut self, course: &Course) -> Result<()> {
        if self.drawn.is_some_and(|drawn| drawn.elapsed() < INTERVAL) {
            return Ok(());
        }
        self.drawn = Some(Instant::now());
        let (columns, rows) = size();
        let lines = page(course, self.began.elapsed(), columns, rows);
        let mut text = String::from("\x1b[H");
        for (row, line) in lines.iter().enumerate() {
            // At the end of the last row a new line would scroll.
            text += if row == 0 { "" } else { "\r\n" };
            line.write_to(&mut text, self.colours);
            text += "\x1b[K";
        }
        text += "\x1b[J";
        let mut output = io::stdout().lock();
        output.write_all(text.as_bytes())?;
        Ok(output.flush()?)
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let mut output = io::stdout().lock();
        // Nobody is left to tell if the terminal is gone.
        let _ = output.write_all(LEAVE.as_bytes()).and_then(|()| output.flush());
    }
}

/// Columns and rows of the terminal; of a usual one if it does not say.
fn size() -> (usize, usize) {
    // SAFETY: all zeros is a valid value, and the call fills it or leaves it.
    let size: libc::winsize = unsafe {
        let mut size = std::mem::zeroed();
        libc::ioctl(libc::STDOUT_FILENO, libc::TIOCGWINSZ, &raw mut size);
        size
    };
    match (size.ws_col, size.ws_row) {
        (0, _) | (_, 0) => (80, 24),
        (columns, rows) => (columns.into(), rows.into()),
    }
}

/// A line of pieces, each in its own style, cut off where the terminal ends.
#[derive(Clone, Debug, Default, PartialEq)]
struct Line {
    pieces: Vec<(&'static str, String)>,
    left: usize,
}

impl Line {
    fn new(columns: usize) -> Line {
        Line { pieces: Vec::new(), left: columns }
    }

    fn add(mut self, style: &'static str, text: impl AsRef<str>) -> Line {
        // All characters that are used here are one column wide.
        let text: String = text.as_ref().chars().take(self.left).collect();
        self.left -= text.chars().count();
        self.pieces.push((style, text));
        self
    }

    fn write_to(&self, text: &mut String, colours: bool) {
        for (style, piece) in &self.pieces {
            // Writing to a string does not fail.
            let _ = match colours && !style.is_empty() {
                true => write!(text, "{style}{piece}{PLAIN}"),
                false => write!(text, "{piece}"),
            };
        }
    }
}

/// What is shown.
fn page(course: &Course, elapsed: Duration, columns: usize, rows: usize) -> Vec<Line> {
    let line = || Line::new(columns);
    let seconds = elapsed.as_secs();
    let rate = course.rate.map_or(String::new(), |rate| format!(" over links of {rate}/s"));
    let mut lines = vec![
        line()
            .add(BOLD, "paceline demo")
            .add("", format!("  {WORKERS} workers learn {}{rate}", course.of)),
        line().add(DIM, course.page.as_deref().unwrap_or_default()),
    ];
    for stage in Stage::ALL {
        lines.push(stage_line(course, stage, columns));
    }
    // Numbers stand below each other, and what is drawn uses what is left.
    let width = columns.saturating_sub(34).clamp(10, 150);
    let seconds_drawn = |at: usize| course.drawn.get(at).map_or(0.0, |(seconds, _)| *seconds);
    lines.push(line());
    let label = |text: &str| format!("  {text:<12}");
    let last = course
        .drawn
        .back()
        .map_or(String::new(), |(seconds, _)| format!("{:>7.0} ms", 1e3 * seconds));
    let times: Vec<f64> = (0..course.drawn.len()).map(seconds_drawn).collect();
    lines.push(
        line()
            .add(DIM, label("step"))
            .add("", format!("{last:>10}  "))
            .add("", chart(&times, width)),
    );
    let losses: Vec<f64> = course.losses.iter().map(|loss| f64::from(*loss)).collect();
    let last = course.losses.back().map_or(String::new(), |loss| format!("{loss:.3}"));
    lines.push(
        line()
            .add(DIM, label("loss"))
            .add("", format!("{last:>10}  "))
            .add("", chart(&losses, width)),
    );
    lines.push(line());
    for (number, standing) in course.workers.iter().enumerate() {
        lines.push(worker_line(number, *standing, columns, width));
    }
    lines.push(line());
    lines.push(line().add(DIM, label("settings")).add("", course.in_force_said()));
    let tuner = course.tuner.as_deref().unwrap_or("comes in the third stage");
    lines.extend(labelled(&label("tuner"), tuner, columns, 2));
    lines.push(line().add(DIM, label("now")).add("", &course.event));
    let total = format!("{}:{:02}, {} steps", seconds / 60, seconds % 60, course.total_steps);
    let end = line().add(DIM, label(""));
    lines.push(end.add(DIM, format!("{total}; Ctrl-C ends it and all its processes")));
    lines.truncate(rows);
    lines
}

fn stage_line(course: &Course, stage: Stage, columns: usize) -> Line {
    let line = Line::new(columns);
    let title = format!("{:<34}", stage.title());
    let over = course.results.iter().find(|(over, _)| *over == stage);
    match (over, course.stage) {
        (Some((_, result)), _) => line.add(GREEN, " ✓ ").add("", title).add("", result),
        (None, Some((now, share))) if now == stage => {
            let width = columns.saturating_sub(39).clamp(5, 60);
            line.add(BOLD, " ▸ ").add(BOLD, title).add("", bar(share, width))
        }
        _ => line.add("", "   ").add(DIM, title),
    }
}

/// What share of its last step a worker computed.
fn worker_line(number: usize, standing: Standing, columns: usize, width: usize) -> Line {
    let line = Line::new(columns).add(DIM, format!("  worker {number:<5}"));
    match standing {
        Standing::Coming => line.add(DIM, "  starting"),
        Standing::Killed => line.add(RED, "    killed"),
        Standing::Training(waited) => {
            let text = format!("{:>8.0} %  ", 100.0 * (1.0 - waited));
            line.add("", text).add("", bar(1.0 - waited, width.min(40))).add(DIM, " computing")
        }
    }
}

/// As much of a bar as the share says.
fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    "█".repeat(full) + &"░".repeat(width - full)
}

/// The last values, from the least of them to the largest.
fn chart(values: &[f64], width: usize) -> String {
    const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let shown = &values[values.len().saturating_sub(width)..];
    let most = shown.iter().copied().fold(0.0, f64::max);
    let level = |value: &f64| match most > 0.0 {
        true => LEVELS[((value / most * 8.0) as usize).min(7)],
        false => LEVELS[0],
    };
    shown.iter().map(level).collect()
}

/// A text in so many lines at most, behind a label.
fn labelled(label: &str, text: &str, columns: usize, most: usize) -> Vec<Line> {
    let indent = label.chars().count();
    let lines = broken(text, columns.saturating_sub(indent)).into_iter().take(most);
    let lines = lines.enumerate().map(|(place, line)| {
        let label = if place == 0 { label.to_string() } else { " ".repeat(indent) };
        Line::new(columns).add(DIM, label).add("", line)
    });
    lines.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn busy() -> Course {
        let mut course = Course::new(32, "Fashion-MNIST");
        course.stage = Some((Stage::Killed, 0.5));
        for stage in [Stage::FirstCome, Stage::Scheduled, Stage::SlowLink] {
            course.results.push((
                stage,
                "a result that is longer than the line it is to be shown in".to_string(),
            ));
        }
        for number in 0..5 {
            course.stand(number, Standing::Training(0.3));
        }
        course.drawn.extend((0..200).map(|at| (0.1 + f64::from(at % 7), 0.2)));
        course.losses.extend((0..200).map(|at| at as f32));
        course.tuner = Some("step 17: ".to_string() + &"many words ".repeat(40));
        course
    }

    fn widest(lines: &[Line]) -> usize {
        let columns = |line: &Line| line.pieces.iter().map(|(_, text)| text.chars().count()).sum();
        lines.iter().map(columns).max().unwrap_or(0)
    }

    #[test]
    fn the_page_fits_the_terminal_whatever_its_size() {
        for (columns, rows) in [(80, 24), (200, 50), (40, 10), (1, 1), (0, 0)] {
            let lines = page(&busy(), Duration::from_secs(100), columns, rows);
            assert!(lines.len() <= rows && widest(&lines) <= columns, "{columns} by {rows}");
        }
    }

    #[test]
    fn nothing_is_cut_off_below_on_a_usual_terminal() {
        let lines = page(&busy(), Duration::from_secs(100), 80, 24);
        let last: String = lines.last().unwrap().pieces.iter().map(|(_, text)| &**text).collect();
        assert!(last.contains("Ctrl-C"), "{last}");
    }

    #[test]
    fn bars_and_charts_are_as_long_as_they_should() {
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 2), "██");
        assert_eq!(chart(&[0.0, 4.0, 8.0], 2), "▅█");
        assert_eq!(chart(&[], 9), "");
    }
}
