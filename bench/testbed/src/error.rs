//! What can go wrong, and what to do about it. Every text that a user sees names both.

use std::io;

/// The result of everything here that touches the kernel.
pub type Result<T> = std::result::Result<T, Error>;

/// What went wrong. The text says what the user can do.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not root: run with `sudo`, or give the container both capabilities.
    #[error(
        "not allowed to {doing}; run as root (sudo), or give the container CAP_SYS_ADMIN and CAP_NET_ADMIN"
    )]
    Privilege {
        /// What was refused.
        doing: String,
    },
    /// The kernel was built without something: load the module named, or use another machine.
    #[error("this kernel has no {what}; {remedy}")]
    Missing {
        /// The missing part.
        what: String,
        /// What the user can do.
        remedy: String,
    },
    /// The kernel refused a change for another reason: its own words say which.
    #[error("the kernel refused to {doing}: {cause}{}", explained(.explanation))]
    Refused {
        /// What was asked.
        doing: String,
        /// The kernel's explanation, or nothing.
        explanation: String,
        /// The error number.
        cause: io::Error,
    },
    /// A network that cannot be built: change the number named.
    #[error("{0}")]
    Spec(String),
    /// A line of a script that cannot be followed: mend it.
    #[error("script, line {line}: {reason}")]
    Script {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
    },
    /// A host or rack that this network does not have: name one that it has.
    #[error("{0}")]
    NoSuchTarget(String),
    /// The namespaces do not take this congestion control: choose one of those listed.
    #[error(
        "a network namespace cannot use congestion control `{wanted}` ({cause}); allowed here: {allowed}. \
         Choose one of these, or `kernel` to leave the kernel's own"
    )]
    Congestion {
        /// What was asked for.
        wanted: String,
        /// What the kernel allows.
        allowed: String,
        /// Why the kernel refused.
        cause: io::Error,
    },
    /// An operation of the system failed: the text says which and why.
    #[error("cannot {doing}: {cause}")]
    System {
        /// What was attempted.
        doing: String,
        /// Why it failed.
        cause: io::Error,
    },
}

impl Error {
    /// An [`Error::System`], or [`Error::Privilege`] where the reason is a lack of rights.
    pub(crate) fn system(doing: impl Into<String>, cause: io::Error) -> Error {
        let doing = doing.into();
        match cause.raw_os_error() {
            Some(libc::EPERM) => Error::Privilege { doing },
            _ => Error::System { doing, cause },
        }
    }

    /// For `map_err`: what was being done when the system call failed.
    pub(crate) fn doing(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Error {
        move |cause| Error::system(doing, cause)
    }
}

fn explained(explanation: &str) -> String {
    if explanation.is_empty() { String::new() } else { format!(" ({explanation})") }
}
