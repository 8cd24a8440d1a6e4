//! The job that is tried, and the network it runs on when nothing disturbs it. What a step takes is not known here.

use super::Weather;
use crate::Surroundings;
use paceline_job::{Link, Measured, Rate, Settings, graph::layered::Layered};
use paceline_replay::ClusterConfig;
use std::time::Duration;

/// A job and its network.
#[derive(Clone, Debug)]
pub struct Stage {
    /// One step of every worker, one worker on each host.
    pub layered: Layered,
    /// How many racks. Hosts fill them in order, as evenly as can be.
    pub racks: usize,
    /// What each host's wire carries.
    pub rate: Rate,
    /// What each rack's uplink carries; as much as its hosts together if `None`.
    pub uplink: Option<Rate>,
    /// What a message between hosts takes besides its bytes.
    pub latency: Duration,
    /// Between workers of one host.
    pub memory: Link,
    /// What workers and kernels are like. Tuners are not told.
    pub config: ClusterConfig,
    /// In force at the beginning.
    pub settings: Settings,
}

impl Stage {
    /// How many workers there are.
    pub fn workers(&self) -> usize {
        self.layered.workers.len()
    }

    /// The rack of a worker's host.
    pub fn rack_of(&self, rank: usize) -> usize {
        rank * self.racks / self.workers().max(1)
    }

    /// Conditions when nothing disturbs.
    pub fn calm(&self) -> Weather {
        let workers = self.workers();
        let uplink = |rack: usize| {
            self.uplink.unwrap_or_else(|| {
                let members = (0..workers).filter(|rank| self.rack_of(*rank) == rack).count();
                self.rate.scaled(members.max(1) as f64)
            })
        };
        let racks = if self.racks > 1 { self.racks } else { 0 };
        Weather {
            hosts: vec![self.rate; workers],
            uplinks: (0..racks).map(uplink).collect(),
            slowness: vec![1.0; workers],
        }
    }

    /// What workers measured when they met, on a calm day.
    pub(super) fn met(&self) -> Measured {
        let wire = Link { rate: self.rate, latency: self.latency };
        Measured { memory: Some(self.memory), wire: Some(wire) }
    }

    /// What a tuner knows beside the metrics.
    pub fn surroundings(&self) -> Surroundings {
        Surroundings {
            hosts: self.layered.workers.iter().map(|worker| worker.host.clone()).collect(),
            met: self.met(),
            latency: self.latency,
            memory: self.memory,
            crosses_step: self.layered.crosses_step,
        }
    }
}
