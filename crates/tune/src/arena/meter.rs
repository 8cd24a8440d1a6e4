//! What workers would measure of a step: noisy, smoothed over several steps, and nothing of the first steps under new
//! settings, as the runtime's own metrics.

use super::{Noise, Stage, Weather};
use paceline_job::{Settings, ViewVersion};
use paceline_replay::Random;
use paceline_sync::metrics::{JobMetrics, JobShape, LayerMetrics, Smoothed, WorkerMetrics};
use std::sync::Arc;

/// Steps after a change of settings of which nothing is kept.
const WARMUP: u64 = 2;

/// Smoothed metrics of all workers.
pub(super) struct Meter {
    shape: Arc<JobShape>,
    computation: Vec<Vec<LayerMetrics>>,
    workers: Vec<Gauges>,
    seconds: Smoothed,
    view: u32,
    steps_in_view: u64,
    noise: Noise,
    random: Random,
}

/// Of one worker. Its layers get slower and faster together.
#[derive(Clone, Default)]
struct Gauges {
    upload: Smoothed,
    download: Smoothed,
    slowness: Smoothed,
}

impl Meter {
    pub fn new(stage: &Stage, noise: Noise) -> Meter {
        Meter {
            shape: stage.shape(),
            computation: stage.computation(),
            workers: vec![Gauges::default(); stage.workers()],
            seconds: Smoothed::default(),
            view: 1,
            steps_in_view: 0,
            random: Random::new(noise.seed),
            noise,
        }
    }

    /// New settings are in force.
    pub fn switch(&mut self) {
        self.view += 1;
        self.steps_in_view = 0;
        self.workers.fill_with(Gauges::default);
        self.seconds = Smoothed::default();
    }

    /// What a step takes with its noise.
    pub fn noisy(&mut self, seconds: f64) -> f64 {
        let noise = self.noise.step;
        seconds * self.factor(noise)
    }

    /// A step of so many seconds was taken.
    pub fn step(&mut self, stage: &Stage, weather: &Weather, seconds: f64) {
        self.steps_in_view += 1;
        if self.steps_in_view <= WARMUP {
            return;
        }
        self.seconds.add(seconds);
        for rank in 0..self.workers.len() {
            let (upload, download) = rates(stage, weather, rank);
            let upload = upload * self.factor(self.noise.wire);
            let download = download * self.factor(self.noise.wire);
            let slowness = weather.slowness[rank] * self.factor(self.noise.step);
            let gauges = &mut self.workers[rank];
            gauges.upload.add(upload);
            gauges.download.add(download);
            gauges.slowness.add(slowness);
        }
    }

    /// What is shown after step `step`; `None` while nothing is known of these settings.
    pub fn shown(&self, step: u64, settings: &Settings) -> Option<JobMetrics> {
        if self.seconds.count() == 0 {
            return None;
        }
        let worker = |(gauges, layers): (&Gauges, &Vec<LayerMetrics>)| WorkerMetrics {
            seconds: self.seconds.value(),
            upload: gauges.upload.value(),
            download: gauges.download.value(),
            layers: layers
                .iter()
                .map(|layer| LayerMetrics {
                    forward: layer.forward * gauges.slowness.value(),
                    backward: layer.backward * gauges.slowness.value(),
                })
                .collect(),
            ..WorkerMetrics::default()
        };
        Some(JobMetrics {
            step,
            view: ViewVersion(self.view),
            settings: settings.clone(),
            shape: self.shape.clone(),
            workers: self.workers.iter().zip(&self.computation).map(worker).collect(),
        })
    }

    /// Around 1, with this relative deviation.
    fn factor(&mut self, deviation: f64) -> f64 {
        // The sum of twelve even numbers between 0 and 1 is near enough to a normal one around 6.
        let even = |random: &mut Random| random.below(1 << 32) as f64 / (1_u64 << 32) as f64;
        let normal = (0..12).map(|_| even(&mut self.random)).sum::<f64>() - 6.0;
        (deviation * normal).exp()
    }
}

/// What a worker sees its wire carry each way: what lies between it and its neighbours, with whom it exchanges most.
fn rates(stage: &Stage, weather: &Weather, rank: usize) -> (f64, f64) {
    let workers = stage.workers();
    let between = |one: usize, other: usize| {
        let mut rate = weather.hosts[one].bytes_per_second();
        rate = rate.min(weather.hosts[other].bytes_per_second());
        let racks = [stage.rack_of(one), stage.rack_of(other)];
        if racks[0] != racks[1] {
            let uplinks = racks.iter().filter_map(|rack| weather.uplinks.get(*rack));
            rate = uplinks.map(|uplink| uplink.bytes_per_second()).fold(rate, f64::min);
        }
        rate
    };
    (between(rank, (rank + 1) % workers), between((rank + workers - 1) % workers, rank))
}
