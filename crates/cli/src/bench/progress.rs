//! Shows that a long measurement is alive: a bar on a terminal, a line for each workload otherwise. Always on
//! standard error, because standard output is for results.

use indicatif::{ProgressBar, ProgressStyle};
use std::{cell::RefCell, io::IsTerminal};

/// Where a measurement stands.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// The workload that was named last.
    announced: RefCell<String>,
}

impl Progress {
    /// Begins with `turns` ahead.
    pub fn begin(turns: u64) -> Progress {
        let bar = std::io::stderr().is_terminal().then(|| {
            // The template is a constant that indicatif accepts.
            let style = ProgressStyle::with_template(
                "{bar:30} {pos}/{len} turns  {msg}  [{elapsed}, {eta} left]",
            )
            .unwrap_or_else(|_| ProgressStyle::default_bar());
            ProgressBar::new(turns).with_style(style)
        });
        Progress { bar, announced: RefCell::default() }
    }

    /// Says whose turn it is.
    pub fn turn(&self, workload: &str, contender: &str) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("{workload}: {contender}")),
            None if *self.announced.borrow() != workload => {
                eprintln!("Measuring {workload} ...");
                *self.announced.borrow_mut() = workload.to_string();
            }
            None => {}
        }
    }

    /// One turn is over.
    pub fn advance(&self) {
        if let Some(bar) = &self.bar {
            bar.inc(1);
        }
    }

    /// Says something without breaking the bar.
    pub fn note(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| eprintln!("{text}")),
            None => eprintln!("{text}"),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
