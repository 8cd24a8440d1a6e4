//! Machines that are taken away at short notice: a worker that hears of it leaves after the step it is in, instead of being
//! killed in the middle of one. It does not know who takes machines away, only how they say so: by a signal, as Slurm,
//! Kubernetes and most clouds' agents do, or by a file that somebody writes.

use super::Arguments;
use paceline_sync::policy::{Moment, Policy, Wishes};
use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// See the file's first paragraph.
#[derive(Clone, Debug, Default)]
pub struct Spot {
    /// It is there when the machine will not be for long.
    file: Option<PathBuf>,
    /// Whether SIGTERM came.
    asked_to_end: Arc<AtomicBool>,
    has_said_so: bool,
}

impl Spot {
    /// Goes by SIGTERM, and by this file if one is given.
    pub fn new(file: Option<PathBuf>) -> Spot {
        Spot { file, ..Spot::default() }
    }

    pub(super) fn from_arguments(arguments: &mut Arguments) -> Result<Spot, String> {
        Ok(Spot::new(arguments.take("file")?))
    }

    fn notice(&self) -> Option<String> {
        if self.asked_to_end.load(Ordering::Relaxed) {
            return Some("SIGTERM says that this machine is to be given back".to_string());
        }
        let file = self.file.as_ref().filter(|file| file.exists())?;
        Some(format!("`{}` says that this machine is to be given back", file.display()))
    }
}

impl Policy for Spot {
    /// Not before: whoever only reads a command line must still end when it is told to.
    fn before_train(&mut self, _: &Moment, _: &mut Wishes) {
        // It fails for signals that cannot be caught; SIGTERM can.
        let _ =
            signal_hook::flag::register(signal_hook::consts::SIGTERM, self.asked_to_end.clone());
    }

    fn leaves(&mut self) -> Option<String> {
        let notice = self.notice().filter(|_| !self.has_said_so)?;
        self.has_said_so = true;
        Some(notice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_worker_leaves_once_after_the_notice_and_not_before() {
        let folder = std::env::temp_dir().join(format!("paceline-spot-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("revoked");
        let mut spot = Spot::new(Some(file.clone()));
        assert_eq!(spot.leaves(), None);
        std::fs::write(&file, "").unwrap();
        assert!(spot.leaves().unwrap().contains("revoked"));
        assert_eq!(spot.leaves(), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn sigterm_is_a_notice_from_the_first_step_on() {
        let mut spot = Spot::new(None);
        spot.before_train(&Moment::default(), &mut Wishes::default());
        assert_eq!(spot.leaves(), None);
        signal_hook::low_level::raise(signal_hook::consts::SIGTERM).unwrap();
        assert!(spot.leaves().unwrap().contains("SIGTERM"));
    }
}
