//! How the demo is shown while it runs: a view that is drawn again and again on a terminal, or lines for logs. What there is to
//! show is known elsewhere.

use super::{course::Course, screen::Screen};
use anyhow::Result;
use std::{
    io::{self, IsTerminal, Write},
    time::Instant,
};

/// Where lines go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stream {
    Output,
    Error,
}

/// One of the two ways.
pub enum Show {
    /// On a terminal.
    Screen(Box<Screen>),
    /// With the time that has passed.
    Lines { began: Instant, stream: Stream },
}

impl Show {
    /// A view where standard output is a terminal that can show one, unless lines are wanted.
    pub fn suitable(plain: bool, json: bool) -> Result<Show> {
        let dumb = std::env::var("TERM").is_ok_and(|term| term == "dumb");
        let stream = if json { Stream::Error } else { Stream::Output };
        if plain || json || dumb || !io::stdout().is_terminal() {
            return Ok(Show::Lines { began: Instant::now(), stream });
        }
        Ok(Show::Screen(Box::new(Screen::open()?)))
    }

    /// Something happened. A view shows it by itself.
    pub fn line(&mut self, text: &str) -> Result<()> {
        let Show::Lines { began, stream } = self else { return Ok(()) };
        let seconds = began.elapsed().as_secs();
        let line = format!("{}:{:02}  {text}\n", seconds / 60, seconds % 60);
        match stream {
            Stream::Output => {
                let mut output = io::stdout().lock();
                output.write_all(line.as_bytes())?;
                Ok(output.flush()?)
            }
            Stream::Error => Ok(io::stderr().lock().write_all(line.as_bytes())?),
        }
    }

    /// Draw what there is to see, if it is time to.
    pub fn refresh(&mut self, course: &Course) -> Result<()> {
        match self {
            Show::Screen(screen) => screen.refresh(course),
            Show::Lines { .. } => Ok(()),
        }
    }
}
