//! The demo's network, and how one worker learns with it. Gradients are handed over layer by layer as the backward pass finds
//! them, and the next forward pass waits for each layer's own tensors only, so that communication runs beside both. What
//! workers are told, and by whom, is not known here.

use super::images::{CLASSES, SHAPE};
use anyhow::{Result, bail};
use paceline_job::{
    Dtype, ReduceOp,
    trace::{Layer as TracedLayer, Tensor},
};
use paceline_learn::{
    Random,
    matrix::Matrix,
    nn::{
        Adam, Convolution, Dense, Layer, Network, Parameter, Pooling, classification_loss,
        right_classes,
    },
};
use paceline_net::{
    Activity, Buffer, Buffers, Description, Operation, Pending, Recording, Region, Worker,
    monotonic_nanoseconds,
};
use paceline_sync::{collective::Collective, event::Holds};
use std::sync::Arc;

/// Where all workers begin: equal from the first step on.
const SEED: u64 = 1;

/// How far a step of Adam goes.
const LEARNING_RATE: f32 = 1e-3;

/// Two convolutions, where most of the computing is, and two dense layers, where most of the bytes are: of such a network a
/// backward pass has the most bytes first, and the next forward pass needs the fewest first.
fn network() -> Network {
    let mut random = Random::new(SEED);
    let first = Convolution::new(SHAPE, 16, 5, &mut random);
    let first_pooling = Pooling::new(first.output());
    let second = Convolution::new(first_pooling.output(), 32, 5, &mut random);
    let second_pooling = Pooling::new(second.output());
    let flat = second_pooling.output().values();
    let hidden = Dense::new(flat, 512, &mut random);
    let last = Dense::new(512, CLASSES.into(), &mut random);
    let layers = vec![
        Layer::Convolution(first),
        Layer::Rectifier,
        Layer::Pooling(first_pooling),
        Layer::Convolution(second),
        Layer::Rectifier,
        Layer::Pooling(second_pooling),
        Layer::Dense(hidden),
        Layer::Rectifier,
        Layer::Dense(last),
    ];
    Network { layers }
}

/// Names of layers that learn, in their order.
const NAMES: [&str; 4] = ["conv1", "conv2", "dense1", "dense2"];

/// Of each layer.
const PARTS: [&str; 2] = ["weight", "bias"];

/// In which order tensors leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precedence {
    /// As they come.
    FirstCome,
    /// The layer that the next forward pass needs first goes first.
    ByLayer,
}

/// One worker's network.
pub struct Learner {
    network: Network,
    adam: Adam,
    /// Of each layer that learns, gradients on their way.
    underway: Vec<Option<[Pending<f32>; 2]>>,
    /// Names of tensors, as operations use them.
    names: Vec<[Arc<str>; 2]>,
    /// Nanoseconds for which the forward pass stood still, since somebody asked.
    waited: u64,
}

/// What a step came to.
pub struct Lesson {
    /// The mean over its images.
    pub loss: f32,
    /// How many of them were recognised.
    pub right: usize,
}

impl Learner {
    /// Nothing learned yet.
    pub fn new() -> Learner {
        let network = network();
        let names = NAMES.map(|layer| PARTS.map(|part| format!("{layer}.{part}").into())).into();
        let underway = NAMES.map(|_| None).into();
        Learner { network, adam: Adam::new(LEARNING_RATE), underway, names, waited: 0 }
    }

    /// Bytes of all gradients.
    pub fn gradient_bytes() -> usize {
        let parameters = |layer: &mut Layer| -> usize {
            let parameters = layer.parameters_mut().into_iter().flatten();
            parameters.map(|parameter| 4 * parameter.value.values().len()).sum()
        };
        network().layers.iter_mut().map(parameters).sum()
    }

    /// A forward and a backward pass that nobody hears of: for those who want to know what they take.
    pub fn rehearse(&mut self, images: Matrix, labels: &[u8]) -> Result<()> {
        let mut copy = self.network.clone();
        let activations = copy.forward(images, |_, _| anyhow::Ok(()))?;
        let (_, gradient) = classification_loss(activations.output(), labels);
        copy.backward(activations, gradient, |_, _| anyhow::Ok(()))
    }

    /// Learn from these images, with all other workers.
    pub fn step(
        &mut self,
        worker: &Worker,
        precedence: Precedence,
        images: Matrix,
        labels: &[u8],
        recording: Option<&Recording>,
    ) -> Result<Lesson> {
        let Learner { network, adam, underway, names, waited } = self;
        let mut spans = Spans { recording, since: monotonic_nanoseconds() };
        // Which of those that learn comes next.
        let mut number = 0;
        let activations = network.forward(images, |_, layer| {
            if number > 0 {
                spans.end(Activity::Forward, Some(number - 1));
            }
            *waited += settle(layer, &mut underway[number], adam, number, &mut spans)?;
            number += 1;
            anyhow::Ok(())
        })?;
        spans.end(Activity::Forward, Some(number - 1));
        let (loss, gradient) = classification_loss(activations.output(), labels);
        let right = right_classes(activations.output(), labels);
        spans.end(Activity::Other, None);
        network.backward(activations, gradient, |_, layer| {
            number -= 1;
            spans.end(Activity::Backward, Some(number));
            let priority = match precedence {
                Precedence::FirstCome => 0,
                Precedence::ByLayer => number as i64,
            };
            underway[number] = Some(post(worker, layer, &names[number], priority)?);
            spans.note(Activity::Post, Some(number), spans.since, monotonic_nanoseconds());
            anyhow::Ok(())
        })?;
        Ok(Lesson { loss, right })
    }

    /// Wait for everything that is underway, and learn from it.
    pub fn settle(&mut self) -> Result<()> {
        let mut spans = Spans { recording: None, since: 0 };
        let learning = self.network.layers.iter_mut().filter(|layer| layer.learns());
        for (number, (layer, underway)) in learning.zip(&mut self.underway).enumerate() {
            settle(layer, underway, &mut self.adam, number, &mut spans)?;
        }
        Ok(())
    }

    /// Seconds for which forward passes stood still since this was last asked.
    pub fn take_waited(&mut self) -> f64 {
        std::mem::take(&mut self.waited) as f64 / 1e9
    }

    /// What the network makes of images.
    pub fn output(&self, images: Matrix) -> Matrix {
        self.network.output(images)
    }

    /// Everything that a worker has learned, as memory to be the same everywhere.
    pub fn regions(&mut self) -> Vec<Region> {
        let layers = self.network.layers.iter_mut().filter_map(Layer::parameters_mut);
        let states = layers.flatten().map(Parameter::state_mut);
        states
            .flat_map(|(values, steps)| {
                let steps: Region = (std::ptr::from_mut(steps).cast(), size_of::<u32>());
                values.map(region).into_iter().chain([steps])
            })
            .collect()
    }

    /// What a trace says of the layers.
    pub fn description(&mut self) -> Description {
        let learning = self.network.layers.iter_mut().filter_map(Layer::parameters_mut);
        let layers = learning.zip(&self.names).zip(NAMES).map(|((parameters, names), name)| {
            let tensors = parameters.iter().zip(names).map(|(parameter, name)| Tensor {
                name: name.clone(),
                elements: parameter.value.values().len() as u64,
                dtype: Dtype::F32,
            });
            TracedLayer { name: name.into(), tensors: tensors.collect(), activation_bytes: 0 }
        });
        Description { layers: layers.collect(), crosses_step: true, kernels: Vec::new() }
    }
}

/// Values as memory to be shared.
pub fn region<T>(values: &mut [T]) -> Region {
    (values.as_mut_ptr().cast(), size_of_val(values))
}

/// What the program does, told to a trace if there is one.
struct Spans<'a> {
    recording: Option<&'a Recording>,
    /// When the last thing ended.
    since: u64,
}

impl Spans<'_> {
    /// What began when the last thing ended has ended now.
    fn end(&mut self, activity: Activity, layer: Option<usize>) {
        let now = monotonic_nanoseconds();
        self.note(activity, layer, self.since, now);
        self.since = now;
    }

    fn note(&self, activity: Activity, layer: Option<usize>, begin: u64, end: u64) {
        if let Some(recording) = self.recording {
            recording.span(activity, layer.map(|layer| layer as u32), begin, end, None);
        }
    }
}

/// Hand a layer's gradients over.
fn post(
    worker: &Worker,
    layer: &mut Layer,
    names: &[Arc<str>; 2],
    priority: i64,
) -> Result<[Pending<f32>; 2]> {
    let Some(parameters) = layer.parameters_mut() else { bail!("a layer that learns nothing") };
    let start = |parameter: &mut Parameter, name: &Arc<str>| {
        let values = std::mem::take(&mut parameter.gradient).into_values();
        let collective = Collective::AllReduce { len: values.len() as u64 };
        let operation = Operation::new(name.clone(), collective);
        let operation = operation.reduce(ReduceOp::Average).priority(priority).holds(Holds::Step);
        worker.start_with(operation, Buffers::InPlace(values.into()))
    };
    let [weight, bias] = parameters;
    Ok([start(weight, &names[0])?, start(bias, &names[1])?])
}

/// Wait for a layer's gradients, if they are underway, and learn from them. Nanoseconds that it took to wait.
fn settle(
    layer: &mut Layer,
    underway: &mut Option<[Pending<f32>; 2]>,
    adam: &mut Adam,
    number: usize,
    spans: &mut Spans<'_>,
) -> Result<u64> {
    let (Some(pending), Some(mut parameters)) = (underway.take(), layer.parameters_mut()) else {
        return Ok(0);
    };
    let begin = monotonic_nanoseconds();
    let arrived = pending.map(Pending::wait);
    let end = monotonic_nanoseconds();
    spans.note(Activity::Wait, Some(number), begin, end);
    for (parameter, arrived) in parameters.iter_mut().zip(arrived) {
        let Buffers::InPlace(Buffer::Vec(values)) = arrived? else {
            bail!("a gradient that came back in other memory than it left in")
        };
        let (rows, columns) = (parameter.value.rows(), parameter.value.columns());
        parameter.gradient = Matrix::from_values(rows, columns, values);
    }
    spans.since = end;
    adam.step(parameters);
    spans.end(Activity::Update, Some(number));
    Ok(end - begin)
}
