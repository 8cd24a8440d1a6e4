//! What workers would measure of a step: as the runtime's rules make it of a replay, with noise, smoothed over several steps,
//! and nothing of the first steps under new settings.

use super::Noise;
use paceline_job::{Settings, ViewVersion};
use paceline_replay::{Random, graph::Shown};
use paceline_sync::metrics::{
    FlowMetrics, JobMetrics, JobShape, LayerMetrics, Smoothed, WorkerMetrics,
};
use std::sync::Arc;

/// Steps after a change of settings of which nothing is kept.
const WARMUP: u64 = 2;

/// What the noise of flows follows from, beside the seed.
const OF_FLOWS: u64 = 1 << 40;

/// Smoothed metrics of all workers.
pub(super) struct Meter {
    shape: Arc<JobShape>,
    workers: Vec<Gauges>,
    seconds: Smoothed,
    view: u32,
    steps_in_view: u64,
    noise: Noise,
    random: Random,
    /// Of flows, so that the rest is what it is whoever exchanges something.
    random_of_flows: Random,
}

/// Of one worker.
#[derive(Clone, Default)]
struct Gauges {
    upload: Smoothed,
    download: Smoothed,
    rest: Smoothed,
    /// Forward and backward.
    layers: Vec<[Smoothed; 2]>,
    /// As they are: of the last step.
    flows: Vec<FlowMetrics>,
}

impl Meter {
    pub fn new(noise: Noise) -> Meter {
        Meter {
            shape: Arc::default(),
            workers: Vec::new(),
            seconds: Smoothed::default(),
            view: 1,
            steps_in_view: 0,
            random: Random::new(noise.seed),
            random_of_flows: Random::new(noise.seed ^ OF_FLOWS),
            noise,
        }
    }

    /// New settings are in force.
    pub fn switch(&mut self) {
        self.view += 1;
        self.steps_in_view = 0;
        // Wires stay what they are.
        for gauges in &mut self.workers {
            let Gauges { upload, download, .. } = *gauges;
            let flows = std::mem::take(&mut gauges.flows);
            *gauges = Gauges { upload, download, flows, ..Gauges::default() };
        }
        self.seconds = Smoothed::default();
    }

    /// What a step takes with its noise.
    pub fn noisy(&mut self, seconds: f64) -> f64 {
        seconds * factor(&mut self.random, self.noise.step)
    }

    /// A step of so many seconds was taken, in which workers saw this but for the noise.
    pub fn step(&mut self, shown: &Shown, seconds: f64) {
        self.steps_in_view += 1;
        if self.steps_in_view <= WARMUP {
            return;
        }
        self.shape = shown.shape.clone();
        self.seconds.add(seconds);
        self.workers.resize(shown.workers.len(), Gauges::default());
        for (rank, worker) in shown.workers.iter().enumerate() {
            // All layers of a step are slower or faster together.
            let [upload, download] = [(); 2].map(|()| factor(&mut self.random, self.noise.wire));
            let computation = factor(&mut self.random, self.noise.step);
            self.workers[rank].add(worker, upload, download, computation);
            let mut flows = worker.flows.clone();
            for flow in &mut flows {
                flow.seconds /= factor(&mut self.random_of_flows, self.noise.wire);
            }
            self.workers[rank].flows = flows;
        }
    }

    /// What is shown after step `step`; `None` while nothing is known of these settings.
    pub fn shown(&self, step: u64, settings: &Settings) -> Option<JobMetrics> {
        if self.seconds.count() == 0 {
            return None;
        }
        let workers = self.workers.iter().map(|gauges| gauges.shown(self.seconds.value()));
        Some(JobMetrics {
            step,
            view: ViewVersion(self.view),
            settings: settings.clone(),
            shape: self.shape.clone(),
            workers: workers.collect(),
        })
    }
}

/// Around 1, with this relative deviation.
fn factor(random: &mut Random, deviation: f64) -> f64 {
    // The sum of twelve even numbers between 0 and 1 is near enough to a normal one around 6.
    let even = |random: &mut Random| random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
    let normal = (0..12).map(|_| even(random)).sum::<f64>() - 6.0;
    (deviation * normal).exp()
}

impl Gauges {
    fn add(&mut self, worker: &WorkerMetrics, upload: f64, download: f64, computation: f64) {
        // Where nothing was measured, what was measured before holds.
        let measured = |rate: &f64| *rate > 0.0;
        Some(worker.upload)
            .filter(measured)
            .into_iter()
            .for_each(|rate| self.upload.add(rate * upload));
        Some(worker.download)
            .filter(measured)
            .into_iter()
            .for_each(|rate| self.download.add(rate * download));
        self.rest.add(worker.rest * computation);
        self.layers.resize(worker.layers.len(), Default::default());
        for (gauges, layer) in self.layers.iter_mut().zip(&worker.layers) {
            gauges[0].add(layer.forward * computation);
            gauges[1].add(layer.backward * computation);
        }
    }

    fn shown(&self, seconds: f64) -> WorkerMetrics {
        let layer = |[forward, backward]: &[Smoothed; 2]| LayerMetrics {
            forward: forward.value(),
            backward: backward.value(),
        };
        WorkerMetrics {
            seconds,
            upload: self.upload.value(),
            download: self.download.value(),
            rest: self.rest.value(),
            layers: self.layers.iter().map(layer).collect(),
            flows: self.flows.clone(),
        }
    }
}
