//! Runs a command that installs or builds something: says so first, shows that it is alive, keeps its output for
//! the case that it fails. It does not know what is installed.

use super::super::interrupt::Interrupt;
use anyhow::{Context, Result, bail};
use indicatif::{ProgressBar, ProgressStyle};
use std::{
    ffi::OsStr,
    fs::File,
    io::IsTerminal,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// The longest installation: five gigabytes over a slow line.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs `command` with its output in a file of `folder`; the end of the file is part of the error.
pub fn run(what: &str, command: &mut Command, folder: &Path, interrupt: &Interrupt) -> Result<()> {
    let log = folder.join("installation.log");
    let output = File::create(&log).with_context(|| format!("create {}", log.display()))?;
    command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
    let spinner = spinner(what);
    let shown = shown(command);
    let mut child = command.spawn().with_context(|| format!("run `{shown}`"))?;
    let deadline = Instant::now() + LIMIT;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if interrupt.raised() || Instant::now() > deadline {
            // Fails only if it ended meanwhile.
            let _ = child.kill();
            let _ = child.wait();
            spinner.finish_and_clear();
            interrupt.check()?;
            bail!("`{shown}` did not end within an hour");
        }
        thread::sleep(Duration::from_millis(50));
        spinner.tick();
    };
    spinner.finish_and_clear();
    if !status.success() {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        let lines: Vec<&str> = said.trim().lines().collect();
        let tail = lines[lines.len().saturating_sub(8)..].join("\n  ");
        bail!("`{shown}` failed ({status}):\n  {tail}");
    }
    Ok(())
}

/// Where a program of that name is on the path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(program)).find(|file| file.is_file())
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words.map(OsStr::to_string_lossy).collect::<Vec<_>>().join(" ")
}

fn spinner(what: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        eprintln!("{what} ...");
        return ProgressBar::hidden();
    }
    // The template is a constant that indicatif accepts.
    let style = ProgressStyle::with_template("{spinner} {msg} [{elapsed}]")
        .unwrap_or_else(|_| ProgressStyle::default_spinner());
    ProgressBar::new_spinner().with_style(style).with_message(what.to_string())
}
