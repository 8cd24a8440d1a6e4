//! A worker that trains step by step, overlaps communication with computation, and may come to a running job or leave it:
//! what a training program does, with nothing to learn but numbers that are known. Start it with
//! `paceline run -n 4 --elastic --ui -- target/release/examples/steps 2000`.

use paceline_job::ReduceOp;
use paceline_net::{
    Buffer, Buffers, JoinConfig, NetError, Operation, Pending, Region, Worker, WorkerConfig, join,
};
use paceline_sync::{collective::Collective, event::Holds};
use std::time::{Duration, Instant};

/// Elements of each layer, and how long it computes in each direction.
const LAYERS: [(usize, Duration); 4] = [
    (20_000, Duration::from_millis(6)),
    (60_000, Duration::from_millis(5)),
    (400_000, Duration::from_millis(4)),
    (900_000, Duration::from_millis(3)),
];

/// What parameters should become.
const TARGET: f32 = 3.0;

fn main() -> paceline_net::Result<()> {
    let steps = std::env::args().nth(1).and_then(|text| text.parse().ok()).unwrap_or(1000);
    let worker = Worker::start(join(JoinConfig::from_env()?)?, WorkerConfig::default())?;
    let mut program = Program {
        parameters: LAYERS.iter().map(|(len, _)| vec![0.0; *len]).collect(),
        underway: LAYERS.iter().map(|_| None).collect(),
    };
    let mut step = 0;
    let mut entered = worker.is_outside();
    if entered {
        step = worker.enter()?.step;
        program.share(&worker, false)?;
    }
    while step < steps {
        if !std::mem::take(&mut entered) {
            match worker.begin_step(step) {
                // There were too many: the others have what this worker had.
                Err(NetError::Retired) => return Ok(()),
                begun => drop(begun?),
            }
            if worker.has_newcomers() {
                (0..LAYERS.len()).try_for_each(|layer| program.update(layer))?;
                program.share(&worker, true)?;
            }
        }
        program.learn(&worker)?;
        step += 1;
    }
    (0..LAYERS.len()).try_for_each(|layer| program.update(layer))
}

struct Program {
    parameters: Vec<Vec<f32>>,
    /// Gradients on their way, by layer.
    underway: Vec<Option<Pending<f32>>>,
}

impl Program {
    /// Forward layer by layer, each as soon as its own gradient has come; backward, handing each over at once.
    fn learn(&mut self, worker: &Worker) -> paceline_net::Result<()> {
        for (layer, (_, time)) in LAYERS.iter().enumerate() {
            self.update(layer)?;
            compute(*time);
        }
        let first = self.parameters[0][0];
        worker.tell(Some(f64::from((first - TARGET).powi(2))), Some(32));
        for (layer, (len, time)) in LAYERS.iter().enumerate().rev() {
            compute(*time);
            let gradient: Vec<f32> =
                self.parameters[layer].iter().map(|value| value - TARGET).collect();
            let operation = Operation::new(
                format!("layer {layer}"),
                Collective::AllReduce { len: *len as u64 },
            )
            .reduce(ReduceOp::Average)
            .holds(Holds::Step)
            .priority(layer as i64);
            let data = Buffers::InPlace(Buffer::from(gradient));
            self.underway[layer] = Some(worker.start_with(operation, data)?);
        }
        Ok(())
    }

    fn update(&mut self, layer: usize) -> paceline_net::Result<()> {
        let Some(pending) = self.underway[layer].take() else { return Ok(()) };
        if let Buffers::InPlace(gradient) = pending.wait()? {
            let parameters = self.parameters[layer].iter_mut();
            parameters.zip(&gradient[..]).for_each(|(value, slope)| *value -= 0.01 * slope);
        }
        Ok(())
    }

    /// Those who came get what the others have.
    fn share(&mut self, worker: &Worker, has_state: bool) -> paceline_net::Result<()> {
        let regions: Vec<Region> = self
            .parameters
            .iter_mut()
            .map(|layer| (layer.as_mut_ptr().cast(), size_of_val(&layer[..])))
            .collect();
        // SAFETY: memory of our own that nobody touches until it returns.
        unsafe { worker.share("parameters", &regions, has_state) }
    }
}

/// Keep a processor busy.
fn compute(time: Duration) {
    let begin = Instant::now();
    while begin.elapsed() < time {
        std::hint::spin_loop();
    }
}
