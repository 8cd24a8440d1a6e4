//! Models to learn from: tables of layers that were measured, and invented ones of the same kinds. What they run on is not
//! known here.

use paceline_job::{
    Dtype,
    graph::{
        BuildError, Clocks, Job,
        layered::{LayerTimes, Layered, Tail},
    },
    trace::{Layer, Tensor, Trace},
};
use paceline_learn::Random;

/// A chain of layers, and what each computes.
#[derive(Clone, Debug, PartialEq)]
pub struct Model {
    /// In the order of the forward pass.
    pub layers: Vec<Layer>,
    /// Of each layer.
    pub times: Vec<LayerTimes>,
}

impl Model {
    /// The model of a recorded step of one worker. `None` if the trace does not name layers.
    pub fn of(trace: &Trace) -> Result<Option<Model>, BuildError> {
        let job = Job::from_trace(trace, &Clocks::agreeing())?;
        Ok(job.layered.and_then(|layered| {
            let times = layered.workers.first()?.steps.first()?.clone();
            let layers = layered.layers;
            (!layers.is_empty() && layers.len() == times.len()).then_some(Model { layers, times })
        }))
    }

    /// A model that nobody built: its layers grow like those of convolutional networks, are all alike like those of
    /// transformers, or are dominated by a few; chance decides.
    pub fn invented(random: &mut Random) -> Model {
        let depth = 3 + random.below(38) as usize;
        let kind = random.below(4);
        let few = 1 + random.below(3);
        let heavy: Vec<usize> = (0..few).map(|_| random.place(depth)).collect();
        let steep = random.between(1.0, 5.0);
        let spread = random.between(0.1, 1.2);
        let mut bytes = Vec::with_capacity(depth);
        let mut seconds = Vec::with_capacity(depth);
        for place in 0..depth {
            let share = place as f64 / depth as f64;
            let mut noise = || (spread * random.normal()).exp();
            let (size, time) = match kind {
                0 => ((steep * share).exp() * noise(), (-0.5 * steep * share).exp() * noise()),
                1 => (0.1 * noise() + 0.9, 0.1 * noise() + 0.9),
                _ => (noise(), noise()),
            };
            let large = (kind >= 2 && heavy.contains(&place)) || (kind == 1 && place == 0);
            bytes.push(if large { size * depth as f64 * 0.7 } else { size });
            seconds.push(time);
        }
        let model = random.ratio(3e6, 5e8) / bytes.iter().sum::<f64>();
        let backward = random.between(1.5, 2.5);
        let parts = 1 + random.place(3);
        let layer = |(place, size): (usize, &f64)| {
            let elements = (size * model / 4.0).max(16.0) as u64;
            let tensor = |part: usize| Tensor {
                name: format!("{place}.{part}").into(),
                // Weights first, then what is added to them.
                elements: if part == 0 { elements } else { elements.isqrt().max(8) },
                dtype: Dtype::F32,
            };
            let tensors = (0..parts).map(tensor).collect();
            Layer { name: place.to_string().into(), tensors, activation_bytes: 0 }
        };
        let layers = bytes.iter().enumerate().map(layer).collect();
        let times = seconds.iter().map(|seconds| LayerTimes {
            forward: (1e6 * seconds) as u64,
            backward: (1e6 * backward * seconds) as u64,
            ..LayerTimes::default()
        });
        Model { layers, times: times.collect() }
    }

    /// Bytes of all gradients.
    pub fn bytes(&self) -> u64 {
        self.tensors().map(Tensor::bytes).sum()
    }

    /// All tensors, in the order of the forward pass.
    pub fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        self.layers.iter().flat_map(|layer| &layer.tensors)
    }

    /// Seconds of computation in a step.
    pub fn seconds(&self) -> f64 {
        self.times.iter().map(|times| (times.forward + times.backward) as f64 * 1e-9).sum()
    }

    /// Steps on workers that take so many times as long as this model was recorded with, and at the end of each step
    /// `rest` of their computation once more, for data and the like.
    pub fn steps(&self, hosts: &[String], slowness: &[f64], rest: f64, steps: usize) -> Layered {
        let mut layered = Layered::alike(self.layers.clone(), &self.times, hosts.to_vec(), steps);
        for (worker, slowness) in layered.workers.iter_mut().zip(slowness) {
            let rest = (1e9 * rest * slowness * self.seconds()) as u64;
            worker.tails.fill(Tail { rest, ..Tail::default() });
            for times in worker.steps.iter_mut().flatten() {
                times.forward = (times.forward as f64 * slowness) as u64;
                times.backward = (times.backward as f64 * slowness) as u64;
            }
        }
        layered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invented_models_are_of_bearable_size() {
        let mut random = Random::new(1);
        for _ in 0..200 {
            let model = Model::invented(&mut random);
            assert!((2_000_000..700_000_000).contains(&model.bytes()), "{}", model.bytes());
            assert!(model.seconds() > 0.0 && model.layers.len() == model.times.len());
        }
    }

    #[test]
    fn a_slow_worker_computes_as_much_longer() {
        let model = Model::invented(&mut Random::new(2));
        let hosts = ["a", "b"].map(String::from);
        let layered = model.steps(&hosts, &[1.0, 2.0], 0.1, 1);
        let sum = |worker: usize| -> u64 {
            layered.workers[worker].steps[0].iter().map(|times| times.forward).sum()
        };
        assert!((sum(1) as f64 / sum(0) as f64 - 2.0).abs() < 1e-3);
        assert!(
            (layered.workers[1].tails[0].rest as f64 * 1e-9 / model.seconds() - 0.2).abs() < 1e-3
        );
    }
}
