//! The commands, one file each, and the flags that describe a network, which they share.

pub mod check;
pub mod enter;
pub mod run;

use anyhow::{Context, bail};
use clap::Args;
use paceline_job::Rate;
use paceline_testbed::{Shaper, Spec};
use std::collections::BTreeMap;

/// Exit code when the testbed itself could not do what was asked; other codes are the command's.
pub const CANNOT_RUN: u8 = 125;

/// What network to build.
#[derive(Debug, Args)]
pub struct NetworkFlags {
    /// Number of hosts (1 to 250); host i has address 198.51.100.(i+1)
    #[arg(long, default_value_t = 4)]
    hosts: usize,
    /// Number of racks; hosts fill them in order
    #[arg(long, default_value_t = 1)]
    racks: usize,
    /// What each host's wire carries in each direction, such as 500mbit
    #[arg(long)]
    rate: Rate,
    /// What each rack's uplink carries in each direction [default: as much as its hosts together]
    #[arg(long)]
    uplink: Option<Rate>,
    /// A host whose wire differs, such as 3=100mbit; may be repeated
    #[arg(long, value_name = "HOST=RATE", value_parser = read_host_rate)]
    host_rate: Vec<(usize, Rate)>,
    /// The kernel's shaper: htb, tbf, or auto for the first that this kernel has
    #[arg(long, default_value = "auto")]
    shaper: String,
    /// TCP congestion control of the hosts, or `kernel` to leave the kernel's default
    #[arg(long, default_value = "reno")]
    congestion: String,
}

impl NetworkFlags {
    /// The network described, proven to be possible.
    pub fn spec(&self) -> anyhow::Result<Spec> {
        let shaper = match self.shaper.as_str() {
            "auto" => None,
            name => Some(name.parse::<Shaper>().map_err(anyhow::Error::msg).context("--shaper")?),
        };
        let host_rates: BTreeMap<usize, Rate> = self.host_rate.iter().copied().collect();
        if host_rates.len() != self.host_rate.len() {
            bail!("--host-rate names a host twice");
        }
        let congestion = (self.congestion != "kernel").then(|| self.congestion.clone());
        let Self { hosts, racks, rate, uplink, .. } = *self;
        let neighbours = Vec::new();
        let spec = Spec { hosts, racks, rate, uplink, host_rates, neighbours, shaper, congestion };
        spec.validate()?;
        Ok(spec)
    }
}

fn read_host_rate(text: &str) -> Result<(usize, Rate), String> {
    let expected = || format!("`{text}` is not HOST=RATE, such as 3=100mbit");
    let (host, rate) = text.split_once('=').ok_or_else(expected)?;
    Ok((host.parse().map_err(|_| expected())?, rate.parse().map_err(|_| expected())?))
}
