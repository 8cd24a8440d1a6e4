//! Hosts as network namespaces joined by shaped links, racks as bridges: real TCP at chosen rates,
//! on one machine.
//!
//! A [`Testbed`] is built from a [`Spec`], runs commands on its hosts, changes the rate of a link while
//! they run, and proves by raw TCP what its links carry. It speaks netlink itself, so it needs neither
//! `ip` nor `tc`, and it leaves nothing behind: its namespaces have no names, no interface of it is
//! ever in the machine's own namespace, and a warden process ends whatever still runs in it, even if
//! the program that built it was killed.
//!
//! ```no_run
//! use paceline_testbed::{Flow, Spec, Target, Testbed};
//! use std::{process::Command, time::Duration};
//!
//! let mut spec = Spec::new(4, "500mbit".parse()?);
//! spec.racks = 2;
//! spec.uplink = Some("250mbit".parse()?);
//! let testbed = Testbed::build(&spec)?;
//! let mut child = testbed.spawn(0, Command::new("hostname"))?;
//! testbed.set_rate(Target::Host(3), "100mbit".parse()?)?;
//! let seen = testbed.measure(&[Flow { from: 0, to: 3 }], Duration::from_secs(1))?;
//! println!("{:.0} Mbit/s", seen.flows[0].mbit_per_second);
//! child.wait()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This crate knows nothing of training: what runs on the hosts is any program.

mod background;
mod check;
mod error;
mod interface;
mod measure;
mod message;
mod namespace;
mod netlink;
mod script;
mod shaping;
mod spec;
mod testbed;
mod warden;

pub use background::Background;
pub use check::{CheckReport, CheckedFlow};
pub use error::{Error, Result};
pub use measure::{Flow, MeasuredFlow, Throughput};
pub use paceline_job::script::{LinkChange, Target};
pub use script::{Script, ScriptEvent};
pub use shaping::{Shaper, burst_bytes};
pub use spec::{Seat, Spec};
pub use testbed::{NAMESPACES_VARIABLE, Testbed, enter_host};
