//! Text for a terminal: wrapping, indenting, printing. It knows nothing of strategies.

use anyhow::{Context, Result};
use serde::Serialize;
use std::io::{self, Write};

/// Comfortable to read, and fits the usual terminal.
const WIDTH: usize = 80;

const INDENT: &str = "    ";

/// A paragraph in indented lines.
pub fn wrapped(paragraph: &str) -> String {
    let lines = broken(paragraph, WIDTH - INDENT.len());
    lines.iter().map(|line| format!("{INDENT}{line}\n")).collect()
}

/// A paragraph in lines of so many columns, but for words that are longer.
pub fn broken(paragraph: &str, columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    let mut left = columns;
    for word in paragraph.split_whitespace() {
        let length = word.chars().count();
        match lines.last_mut() {
            Some(line) if line.is_empty() || left > length => {
                left = left.saturating_sub(length + usize::from(!line.is_empty()));
                *line += if line.is_empty() { "" } else { " " };
                *line += word;
            }
            _ => {
                left = columns.saturating_sub(length);
                lines.push(word.to_string());
            }
        }
    }
    lines
}

/// Lines moved to the right.
pub fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("{INDENT}{line}\n")).collect()
}

/// A count with its noun.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// For programs to read.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string_pretty(value).context("this cannot be written as JSON")?;
    Ok(text + "\n")
}

/// To standard output. Whoever closes it (`| head`) has seen enough.
pub fn print(text: &str) -> Result<()> {
    match io::stdout().write_all(text.as_bytes()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => Ok(result?),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_line_is_too_wide_and_no_word_is_lost() {
        let paragraph = "a few words of different lengths, many times over; ".repeat(20);
        let lines = wrapped(&paragraph);
        assert!(lines.lines().all(|line| line.starts_with(INDENT) && line.len() <= WIDTH));
        assert!(lines.split_whitespace().eq(paragraph.split_whitespace()));
    }
}
