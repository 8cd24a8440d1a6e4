//! Where the lines go that a coordinator or a joining worker has for its user. This file knows nothing of what
//! they say.

use std::{fmt, sync::Arc};

/// Takes lines of text, from any thread.
#[derive(Clone)]
pub struct Log(Arc<dyn Fn(&str) + Send + Sync>);

impl Log {
    /// Hand each line to `sink`.
    pub fn to(sink: impl Fn(&str) + Send + Sync + 'static) -> Log {
        Log(Arc::new(sink))
    }

    /// Print each line to standard error.
    pub fn to_standard_error() -> Log {
        Log::to(|line| eprintln!("paceline: {line}"))
    }

    /// Say nothing.
    pub fn silent() -> Log {
        Log::to(|_| {})
    }

    pub(crate) fn line(&self, line: &str) {
        (self.0)(line);
    }
}

impl Default for Log {
    fn default() -> Log {
        Log::to_standard_error()
    }
}

impl fmt::Debug for Log {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Log(..)")
    }
}
