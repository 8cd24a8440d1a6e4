//! How long a step takes with another number of workers or another batch, fitted to steps that were measured (Pollux's model).
//! A function of its samples; what is done with predictions is not known here.
//!
//! A worker computes for α + β·batch, synchronises for σ + τ·(workers − 2), and the two overlap by as much as γ says:
//! (compute^γ + sync^γ)^(1/γ) lies between their sum (γ = 1) and the longer of them (γ → ∞).

/// A step that was measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSample {
    /// How many workers there were.
    pub workers: usize,
    /// Samples of one worker.
    pub batch: f64,
    /// How long it took.
    pub seconds: f64,
}

/// A fitted model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepModel {
    /// α: seconds of computation whatever the batch.
    pub fixed: f64,
    /// β: seconds of computation for each sample.
    pub per_sample: f64,
    /// σ: seconds of synchronisation of two workers.
    pub sync: f64,
    /// τ: seconds more for each worker beyond the second.
    pub per_worker: f64,
    /// γ: 1 where nothing overlaps, up to 10.
    pub overlap: f64,
}

/// Rounds of the search: each shrinks or moves a simplex of six corners, and a few hundred settle it.
const ROUNDS: usize = 600;

/// Numbers of a model.
const UNKNOWNS: usize = 5;

type Point = [f64; UNKNOWNS];

impl StepModel {
    /// How long a step takes.
    pub fn seconds(&self, workers: usize, batch: f64) -> f64 {
        let compute = self.fixed + self.per_sample * batch;
        if workers < 2 {
            return compute;
        }
        let sync = self.sync + self.per_worker * (workers - 2) as f64;
        // Of the longer, so that no power overflows.
        let (long, short) = (compute.max(sync), compute.min(sync));
        long * (1.0 + (short / long).powf(self.overlap)).powf(self.overlap.recip())
    }

    /// The model closest to the samples, in ratios of times. What they cannot tell is taken to cost nothing: without steps of
    /// several sizes of job, synchronisation that grows; without batches of several sizes, computation that does not.
    /// `None` without samples that make sense.
    pub fn fit(samples: &[StepSample]) -> Option<StepModel> {
        let sound = |sample: &&StepSample| {
            sample.workers > 0
                && sample.batch > 0.0
                && sample.seconds > 0.0
                && sample.seconds.is_finite()
        };
        let samples: Vec<StepSample> = samples.iter().filter(sound).copied().collect();
        let fastest =
            samples.iter().map(|sample| sample.seconds / sample.batch).min_by(f64::total_cmp)?;
        let shortest = samples.iter().map(|sample| sample.seconds).min_by(f64::total_cmp)?;
        let distinct = |key: fn(&StepSample) -> f64| {
            samples.iter().any(|sample| key(sample) != key(&samples[0]))
        };
        let known = Known {
            batches: distinct(|sample| sample.batch),
            sync: samples.iter().any(|sample| sample.workers > 1),
            workers: distinct(|sample| sample.workers as f64)
                && samples.iter().any(|sample| sample.workers > 2),
        };
        let price = |point: &Point| price(&model(point, &known), &samples);
        // From several beginnings, since the price has more than one valley.
        let starts = [0.1, 0.4, 0.8].map(|share: f64| {
            let of = |seconds: f64| seconds.max(1e-12).ln();
            [
                of(share * shortest),
                of((1.0 - share) * fastest),
                of(share * shortest),
                of(0.05 * shortest),
                0.5,
            ]
        });
        let best = starts.into_iter().map(|start| descend(start, &price));
        let best = best.min_by(|one, other| price(one).total_cmp(&price(other)))?;
        Some(model(&best, &known))
    }
}

/// What the samples can tell.
struct Known {
    batches: bool,
    sync: bool,
    workers: bool,
}

/// Of numbers without bounds: logarithms, and for the overlap what is squeezed between 1 and 10.
fn model(point: &Point, known: &Known) -> StepModel {
    let if_known = |known: bool, number: f64| if known { number.exp() } else { 0.0 };
    StepModel {
        fixed: if_known(known.batches, point[0]),
        per_sample: point[1].exp(),
        sync: if_known(known.sync, point[2]),
        per_worker: if_known(known.workers, point[3]),
        overlap: 1.0 + 9.0 / (1.0 + (-point[4]).exp()),
    }
}

/// Pollux's: the error of logarithms, and small charges on what data can hardly tell apart.
fn price(model: &StepModel, samples: &[StepSample]) -> f64 {
    let error = |sample: &StepSample| {
        (model.seconds(sample.workers, sample.batch) / sample.seconds).ln().powi(2)
    };
    let mean = samples.iter().map(error).sum::<f64>() / samples.len() as f64;
    let growth = if model.sync > 0.0 { model.per_worker / model.sync } else { 0.0 };
    mean.sqrt() + 1e-3 * (model.overlap - 1.0).powi(2) * 0.1 + 1e-2 * growth.powi(2)
}

/// Nelder and Mead's search.
fn descend(start: Point, price: &impl Fn(&Point) -> f64) -> Point {
    let mut corners: Vec<(Point, f64)> = (0..=UNKNOWNS)
        .map(|corner| {
            let mut point = start;
            if let Some(number) = corner.checked_sub(1) {
                point[number] += 0.7;
            }
            (point, price(&point))
        })
        .collect();
    for _ in 0..ROUNDS {
        corners.sort_by(|one, other| one.1.total_cmp(&other.1));
        let (worst, worst_price) = corners[UNKNOWNS];
        let centre: Point = std::array::from_fn(|number| {
            corners[..UNKNOWNS].iter().map(|(point, _)| point[number]).sum::<f64>()
                / UNKNOWNS as f64
        });
        let beyond = |far: f64| {
            let point: Point = std::array::from_fn(|number| {
                centre[number] + far * (centre[number] - worst[number])
            });
            (point, price(&point))
        };
        let mirrored = beyond(1.0);
        let better = if mirrored.1 < corners[0].1 {
            let farther = beyond(2.0);
            Some(if farther.1 < mirrored.1 { farther } else { mirrored })
        } else if mirrored.1 < corners[UNKNOWNS - 1].1 {
            Some(mirrored)
        } else {
            Some(beyond(if mirrored.1 < worst_price { 0.5 } else { -0.5 }))
                .filter(|nearer| nearer.1 < worst_price)
        };
        match better {
            Some(corner) => corners[UNKNOWNS] = corner,
            None => {
                let best = corners[0].0;
                for (point, cost) in &mut corners[1..] {
                    *point = std::array::from_fn(|number| 0.5 * (point[number] + best[number]));
                    *cost = price(point);
                }
            }
        }
    }
    corners.sort_by(|one, other| one.1.total_cmp(&other.1));
    corners[0].0
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRUTH: StepModel =
        StepModel { fixed: 0.02, per_sample: 0.001, sync: 0.05, per_worker: 0.004, overlap: 1.5 };

    fn sampled(workers: &[usize], batches: &[f64]) -> Vec<StepSample> {
        let pairs =
            workers.iter().flat_map(|workers| batches.iter().map(move |batch| (*workers, *batch)));
        pairs
            .map(|(workers, batch)| StepSample {
                workers,
                batch,
                seconds: TRUTH.seconds(workers, batch),
            })
            .collect()
    }

    fn off(model: &StepModel, workers: usize, batch: f64) -> f64 {
        (model.seconds(workers, batch) / TRUTH.seconds(workers, batch) - 1.0).abs()
    }

    #[test]
    fn steps_between_and_beyond_those_measured_are_predicted() {
        let model = StepModel::fit(&sampled(&[1, 2, 4, 8], &[16.0, 32.0, 128.0])).unwrap();
        for (workers, batch) in [(2, 64.0), (6, 48.0), (8, 256.0), (12, 32.0)] {
            assert!(off(&model, workers, batch) < 0.1, "{model:?} {workers} {batch}");
        }
    }

    #[test]
    fn one_number_of_workers_is_enough_for_other_batches() {
        let model = StepModel::fit(&sampled(&[4], &[16.0, 32.0, 64.0, 128.0])).unwrap();
        assert!([24.0, 96.0, 256.0].iter().all(|batch| off(&model, 4, *batch) < 0.1), "{model:?}");
    }

    #[test]
    fn what_was_not_seen_is_taken_to_cost_nothing() {
        let model = StepModel::fit(&sampled(&[1], &[32.0])).unwrap();
        assert_eq!((model.fixed, model.sync, model.per_worker), (0.0, 0.0, 0.0));
        assert!((model.seconds(1, 64.0) / TRUTH.seconds(1, 32.0) - 2.0).abs() < 1e-3);
        assert_eq!(StepModel::fit(&[]), None);
        let nonsense = StepSample { workers: 2, batch: 8.0, seconds: f64::NAN };
        assert_eq!(StepModel::fit(&[nonsense]), None);
    }
}
