//! Ctrl-C and SIGTERM as a question that long waits ask, so that every process and folder of a
//! benchmark is cleaned up by the ordinary way out.

use crate::run::signals::is_ignored;
use anyhow::{Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Whether the user wants to leave.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. A second signal while the first is being obeyed ends the process at once.
    pub fn listen() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM] {
            // Registered first, so that it looks at the flag before this very signal raises it.
            signal_hook::flag::register_conditional_shutdown(signal, 130, interrupt.0.clone())?;
            signal_hook::flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    /// Listens from now on, also for the end of the terminal; a second signal changes nothing. For those whose way out is short and
    /// has something to restore.
    pub fn listen_calmly() -> Result<Interrupt> {
        let interrupt = Interrupt::default();
        for signal in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|signal| !is_ignored(*signal)) {
            signal_hook::flag::register(signal, interrupt.0.clone())?;
        }
        Ok(interrupt)
    }

    /// An error if the user wants to leave.
    pub fn check(&self) -> Result<()> {
        if self.raised() {
            bail!("interrupted");
        }
        Ok(())
    }

    /// Whether the user wants to leave.
    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
