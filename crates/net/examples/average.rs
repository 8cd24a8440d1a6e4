//! The smallest worker: averages one tensor with the others. Start it with
//! `paceline run -n 4 -- target/release/examples/average`.

use paceline_job::ReduceOp;
use paceline_net::{JoinConfig, Worker, WorkerConfig, join};

fn main() -> paceline_net::Result<()> {
    let worker = Worker::start(join(JoinConfig::from_env()?)?, WorkerConfig::default())?;
    let mut gradient = vec![worker.rank().0 as f32; 1 << 20];
    worker.all_reduce("layer 1", &mut gradient, ReduceOp::Average)?;
    println!("worker {} of {}: {}", worker.rank(), worker.size(), gradient[0]);
    Ok(())
}
