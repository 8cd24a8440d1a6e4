//! `paceline-testbed enter`: run a program on another host of the testbed this one runs in, in its
//! place. It takes the role that a remote shell has between real machines.

use anyhow::{Context, anyhow};
use clap::Args;
use paceline_testbed::{NAMESPACES_VARIABLE, enter_host};
use std::{
    env,
    ffi::OsString,
    os::unix::process::CommandExt,
    process::{Command, ExitCode},
};

/// From inside a testbed, run a program on another of its hosts (what a remote shell does elsewhere)
#[derive(Debug, Args)]
pub struct Enter {
    /// The host, from 0
    host: usize,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

impl Enter {
    /// Does not return if the program starts: it takes this process's place.
    pub fn execute(self) -> anyhow::Result<ExitCode> {
        let namespaces = env::var(NAMESPACES_VARIABLE).map_err(|_| {
            anyhow!("{NAMESPACES_VARIABLE} is not set; `enter` works inside `paceline-testbed run`")
        })?;
        enter_host(&namespaces, self.host)?;
        // The variables that say where a process is would otherwise still say where it was.
        let addresses = env::var("TESTBED_ADDRESSES").unwrap_or_default();
        let address = addresses.split(',').nth(self.host).unwrap_or_default();
        let [program, arguments @ ..] = self.command.as_slice() else {
            return Err(anyhow!("no command given"));
        };
        let error = Command::new(program)
            .args(arguments)
            .env("TESTBED_HOST", self.host.to_string())
            .env("TESTBED_ADDRESS", address)
            .exec();
        Err(error).with_context(|| format!("cannot run `{}`", program.to_string_lossy()))
    }
}
