//! A program that policies adapt: workers estimate the mean of noisy samples by gradient descent, with batches and learning rates
//! as policies have them. Start it with
//! `paceline run -n 4 --policy noise_scale:most=64,rule=sqrt -- target/release/examples/adapted`.

use paceline_job::{Random, ReduceOp};
use paceline_net::{JoinConfig, Operation, Worker, WorkerConfig, join};
use paceline_sync::collective::Collective;
use paceline_tune::policies;
use std::error::Error;

/// What samples are on average, in each of so many dimensions, and how far they are off at most.
const MEAN: f64 = 1.0;
const DIMENSIONS: usize = 64;
const NOISE: f64 = 8.0;
const STEPS: u64 = 400;

fn main() -> Result<(), Box<dyn Error>> {
    let read = |path: &str| std::fs::read_to_string(path).map_err(|error| error.to_string());
    let named = std::env::var(policies::VARIABLE).unwrap_or_default();
    let policies = policies::parse_all(&named, read)?;
    let worker = Worker::start(join(JoinConfig::from_env()?)?, WorkerConfig::default())?;
    let mut random = Random::new(u64::from(worker.rank().0));
    let mut adapted = worker.attach(policies, Some(4));
    let mut estimate = [0.0; DIMENSIONS];
    let mut before = None;
    for step in 0..STEPS {
        let batch = adapted.batch().unwrap_or(1);
        let mut gradient = estimate.map(|at| {
            let off = || NOISE * (random.below(2001) as f64 / 1000.0 - 1.0);
            let sum: f64 = std::iter::repeat_with(off).take(batch as usize).sum();
            at - MEAN - sum / batch as f64
        });
        let own = squared(&gradient);
        let len = DIMENSIONS as u64;
        let average = Operation::new("gradient", Collective::AllReduce { len });
        worker.run_in_place(average.reduce(ReduceOp::Average), &mut gradient)?;
        let rate = 0.02 * adapted.learning_rate();
        estimate.iter_mut().zip(gradient).for_each(|(at, slope)| *at -= rate * slope);
        let loss = squared(&estimate.map(|at| at - MEAN)) / DIMENSIONS as f64;
        adapted.report("loss", loss);
        adapted.report_norms(own, squared(&gradient));
        let now = (batch, adapted.learning_rate());
        if worker.rank().0 == 0 && before.replace(now).is_none_or(|last| last.0 != now.0) {
            println!(
                "step {step}: batch {batch}, learning rate times {:.2}, loss {loss:.4}",
                now.1
            );
        }
        adapted.next_step()?;
    }
    let loss = squared(&estimate.map(|at| at - MEAN)) / DIMENSIONS as f64;
    println!("worker {}: loss {loss:.6}", worker.rank());
    adapted.take_refusals().iter().for_each(|refusal| println!("{refusal}"));
    adapted.end();
    Ok(())
}

fn squared(values: &[f64]) -> f64 {
    values.iter().map(|value| value * value).sum()
}
