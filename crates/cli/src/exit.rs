//! How errors become text and exit codes: 1 for what failed, 2 for what was asked wrongly. It knows no command.

use std::{fmt, process::ExitCode};

/// The command line asks for something that cannot be; its text says what to ask for instead.
#[derive(Debug)]
pub struct UsageError(String);

impl UsageError {
    /// With a text that names the remedy.
    pub fn new(text: impl Into<String>) -> UsageError {
        UsageError(text.into())
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for UsageError {}

/// From now on, writing to a pipe that nobody reads any more ends the process, without a word.
pub fn with_whoever_reads() {
    // SAFETY: the default action replaces Rust's of ignoring the signal; no handler is installed, and no other thread runs yet.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
    }
}

/// An error and its causes, each once: many say theirs in their own text.
pub fn said(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |said, cause| {
        match said.contains(&cause) {
            true => said,
            false if said.is_empty() => cause,
            false => format!("{said}: {cause}"),
        }
    })
}

/// The code for a command that did not succeed.
pub fn code(error: &anyhow::Error) -> ExitCode {
    ExitCode::from(if error.is::<UsageError>() { 2 } else { 1 })
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[test]
    fn a_cause_that_was_named_already_is_not_named_again() {
        let full = || anyhow!("no space left");
        assert_eq!(said(&full()), "no space left");
        assert_eq!(said(&full().context("cannot write a")), "cannot write a: no space left");
        let named = full().context("cannot write a: no space left; free some");
        assert_eq!(said(&named), "cannot write a: no space left; free some");
    }
}
