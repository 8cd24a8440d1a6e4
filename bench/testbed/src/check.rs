//! Whether the network is what it claims to be: every host sends to the next, first alone, then all at
//! once. Together these flows load every host's wire and every uplink in both directions, so a network
//! that passes carries its rates on all of its links.

use crate::{
    error::{Error, Result},
    measure::{Flow, Throughput, processors_busy_now},
    shaping::Shaper,
    testbed::Testbed,
};
use serde::Serialize;
use std::time::Duration;

/// One neighbour to the next.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CheckedFlow {
    /// Between which hosts.
    #[serde(flatten)]
    pub flow: Flow,
    /// What the slowest link on its way is held to.
    pub nominal_mbit_per_second: f64,
    /// What arrived while nothing else was sent.
    pub alone_mbit_per_second: f64,
    /// What arrived while all neighbours sent.
    pub together_mbit_per_second: f64,
    /// Half of what one byte takes to the next host and back, on an idle network.
    pub latency_microseconds: f64,
}

impl CheckedFlow {
    /// The worse of both, as a share of nominal.
    pub fn share(&self) -> f64 {
        self.alone_mbit_per_second.min(self.together_mbit_per_second) / self.nominal_mbit_per_second
    }
}

/// What a check found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct CheckReport {
    /// How many hosts.
    pub hosts: usize,
    /// In how many racks.
    pub racks: usize,
    /// The shaper that held the rates.
    pub shaper: Shaper,
    /// TCP congestion control of the hosts, or `kernel` for the kernel's own.
    pub congestion: String,
    /// Each host to the next, the last to the first.
    pub flows: Vec<CheckedFlow>,
    /// Share of processor time that was not idle before anything was sent: what else the machine does.
    pub processors_busy_before: f64,
    /// The same while one flow ran: the highest of them.
    pub processors_busy_alone: f64,
    /// The same while all ran.
    pub processors_busy_together: f64,
}

impl CheckReport {
    /// Whether every flow, alone and together, carried at least this share of its nominal rate.
    pub fn carries(&self, share: f64) -> bool {
        self.flows.iter().all(|flow| flow.share() >= share)
    }
}

impl Testbed {
    /// Check all links, counting each flow for `window`. `progress` hears what is about to be measured.
    ///
    /// # Errors
    /// With fewer than two hosts, or where a host cannot be reached.
    pub fn check(&self, window: Duration, mut progress: impl FnMut(&str)) -> Result<CheckReport> {
        let hosts = self.spec().hosts;
        if hosts < 2 {
            return Err(Error::Spec("a check needs at least two hosts".to_string()));
        }
        let ring: Vec<Flow> =
            (0..hosts).map(|from| Flow { from, to: (from + 1) % hosts }).collect();
        let steps = hosts + 1;
        let processors_busy_before = processors_busy_now();
        let mut alone: Vec<(Duration, Throughput)> = Vec::with_capacity(hosts);
        for (step, flow) in ring.iter().enumerate() {
            let Flow { from, to } = flow;
            progress(&format!("measuring host{from} to host{to} alone ({} of {steps})", step + 1));
            let latency = self.latency(*flow)?;
            alone.push((latency, self.measure(std::slice::from_ref(flow), window)?));
        }
        progress(&format!("measuring all neighbours at once ({steps} of {steps})"));
        let together = self.measure(&ring, window)?;
        let flows =
            alone.iter().zip(&together.flows).map(|((latency, alone), together)| CheckedFlow {
                flow: together.flow,
                nominal_mbit_per_second: together.nominal_mbit_per_second,
                alone_mbit_per_second: alone.flows[0].mbit_per_second,
                together_mbit_per_second: together.mbit_per_second,
                latency_microseconds: latency.as_secs_f64() * 1e6,
            });
        Ok(CheckReport {
            hosts,
            racks: self.spec().racks,
            shaper: self.shaper(),
            congestion: self.spec().congestion.clone().unwrap_or_else(|| "kernel".to_string()),
            flows: flows.collect(),
            processors_busy_before,
            processors_busy_alone: alone
                .iter()
                .map(|(_, throughput)| throughput.processors_busy)
                .fold(0.0, f64::max),
            processors_busy_together: together.processors_busy,
        })
    }
}
