//! The job that is tried, and the network it runs on when nothing disturbs it. What a step takes is not known here.

use super::Weather;
use crate::Surroundings;
use paceline_job::{
    Link, Rate, Settings,
    graph::layered::{LayerTimes, Layered},
};
use paceline_replay::ClusterConfig;
use paceline_sync::metrics::{JobShape, LayerMetrics, TensorShape};
use std::{sync::Arc, time::Duration};

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

    /// What a tuner knows beside the metrics.
    pub fn surroundings(&self) -> Surroundings {
        Surroundings {
            hosts: self.layered.workers.iter().map(|worker| worker.host.clone()).collect(),
            latency: self.latency,
            memory: self.memory,
            crosses_step: self.layered.crosses_step,
        }
    }

    /// What the job synchronises, in the order of the forward pass.
    pub fn shape(&self) -> Arc<JobShape> {
        let tensors = self.layered.layers.iter().flat_map(|layer| &layer.tensors);
        let shape = |tensor: &paceline_job::trace::Tensor| TensorShape {
            name: tensor.name.clone(),
            bytes: tensor.bytes(),
        };
        Arc::new(JobShape { tensors: tensors.map(shape).collect() })
    }

    /// Computation of each tensor's layer on each worker when nothing disturbs. A layer of several tensors computes before
    /// the first is needed and until the last is posted; one of none computes before the one that follows it.
    pub fn computation(&self) -> Vec<Vec<LayerMetrics>> {
        self.layered.workers.iter().map(|worker| self.of_tensors(worker.steps.first())).collect()
    }

    fn of_tensors(&self, step: Option<&Vec<LayerTimes>>) -> Vec<LayerMetrics> {
        let layer_of = self.layered.layer_of_tensors();
        let mut tensors = vec![LayerMetrics::default(); layer_of.len()];
        if tensors.is_empty() {
            return tensors;
        }
        let seconds = |nanoseconds: u64| nanoseconds as f64 * 1e-9;
        for (layer, times) in step.into_iter().flatten().enumerate() {
            let at_or_after = layer_of.partition_point(|other| (*other as usize) < layer);
            let forward = at_or_after.min(tensors.len() - 1);
            let after = layer_of.partition_point(|other| (*other as usize) <= layer);
            let backward = after.saturating_sub(1);
            tensors[forward].forward += seconds(times.forward_gap + times.forward + times.update);
            tensors[backward].backward += seconds(times.backward_gap + times.backward);
        }
        tensors
    }
}
