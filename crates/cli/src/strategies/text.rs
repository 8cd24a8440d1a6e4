//! Text for a terminal: wrapping, indenting, printing. It knows nothing of strategies.

use anyhow::{Context, Result};
use serde::Serialize;
use std::io::{self, Write};

/// Comfortable to read, and fits the usual terminal.
const WIDTH: usize = 80;

const INDENT: &str = "    ";

/// A paragraph in indented lines.
pub fn wrapped(paragraph: &str) -> String {
    let mut lines = String::new();
    let mut line = String::new();
    for word in paragraph.split_whitespace() {
        let length = INDENT.len() + line.chars().count() + 1 + word.chars().count();
        if !line.is_empty() && length > WIDTH {
            lines += &format!("{INDENT}{line}\n");
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    lines + &format!("{INDENT}{line}\n")
}

/// Lines moved to the right.
pub fn indented(lines: &str) -> String {
    lines.lines().map(|line| format!("{INDENT}{line}\n")).collect()
}

/// A count with its noun.
pub fn count(number: u64, noun: &str) -> String {
    format!("{number} {noun}{}", if number == 1 { "" } else { "s" })
}

/// Bytes as people say them.
pub fn bytes(bytes: u64) -> String {
    let units = [("GiB", 30), ("MiB", 20), ("KiB", 10)];
    match units.into_iter().find(|(_, shift)| bytes >> shift > 0) {
        Some((unit, shift)) => {
            let amount = bytes as f64 / (1_u64 << shift) as f64;
            if amount < 10.0 {
                format!("{amount:.1} {unit}")
            } else {
                format!("{amount:.0} {unit}")
            }
        }
        None => count(bytes, "byte"),
    }
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

    #[test]
    fn bytes_read_well() {
        for (number, text) in
            [(1, "1 byte"), (1023, "1023 bytes"), (4211, "4.1 KiB"), (64 << 20, "64 MiB")]
        {
            assert_eq!(bytes(number), text);
        }
    }
}
