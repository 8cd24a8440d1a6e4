//! The meta-network (AutoByte's figure): layers' computation times, embedded and read by two layers with memory; the
//! network's rates, the static group and what is in force; a choice; joined by two fully connected layers that give the
//! logarithm of how much longer than its reference a step takes. A job's part is worked out once, a choice's for each.

use super::{
    conditions::{Choice, Conditions},
    features::{self, CHOICE_FEATURES, Chunks, JOB_FEATURES, SLOT_FEATURES, SLOTS},
};
use crate::{
    Random,
    matrix::Matrix,
    nn::{Dense, Lstm, Parameter, rectified},
};

/// What a layer's times are embedded into.
const EMBEDDED: usize = 16;
/// What is remembered of all layers.
pub(super) const MEMORY: usize = 32;
/// Of the fully connected layers.
pub(super) const WIDTH: usize = 96;

/// Predicts how fast a job would be.
#[derive(Clone, Debug, PartialEq)]
pub struct MetaNetwork {
    pub(super) embedding: Dense,
    pub(super) memories: [Lstm; 2],
    /// The first connected layer's part that sees the job.
    pub(super) from_job: Dense,
    /// The first connected layer's part that sees the choice.
    pub(super) from_choice: Dense,
    pub(super) second: Dense,
    pub(super) output: Dense,
}

/// A job, as far as it is the same for all choices.
#[derive(Clone, Debug)]
pub struct Prepared {
    conditions: Conditions,
    /// Seconds that predictions are relative to.
    pub(super) reference: f64,
    /// What the job adds to the first connected layer.
    base: Matrix,
}

impl MetaNetwork {
    /// One that has learned nothing yet.
    pub fn new(seed: u64) -> MetaNetwork {
        let random = &mut Random::new(seed);
        MetaNetwork {
            embedding: Dense::new(SLOT_FEATURES, EMBEDDED, random),
            memories: [Lstm::new(EMBEDDED, MEMORY, random), Lstm::new(MEMORY, MEMORY, random)],
            from_job: Dense::new(MEMORY + JOB_FEATURES, WIDTH, random),
            from_choice: Dense::new(CHOICE_FEATURES, WIDTH, random),
            second: Dense::new(WIDTH, WIDTH, random),
            output: Dense::new(WIDTH, 1, random),
        }
    }

    /// Work out a job's part. `None` where nothing can be predicted: without computation, rates or tensors.
    pub fn prepare(&self, conditions: &Conditions) -> Option<Prepared> {
        let reference = conditions.reference()?;
        let slots = features::slots(conditions);
        let embedded: Vec<Matrix> = (0..SLOTS)
            .map(|slot| {
                let features = Matrix::from_values(1, SLOT_FEATURES, slots[slot].to_vec());
                rectified(self.embedding.forward(&features))
            })
            .collect();
        let read = self.memories[0].forward(&embedded);
        let read = self.memories[1].forward(&read.states);
        let mut row = read.last().values().to_vec();
        row.extend(features::job(conditions));
        let base = self.from_job.forward(&Matrix::from_values(1, row.len(), row));
        Some(Prepared { conditions: conditions.clone(), reference, base })
    }

    /// Seconds of a step under each choice.
    pub fn seconds(&self, prepared: &Prepared, choices: &[Choice]) -> Vec<f64> {
        let hidden = rectified(self.second.forward(&self.first(prepared, choices)));
        let output = self.output.forward(&hidden);
        output.values().iter().map(|value| prepared.reference * f64::from(*value).exp()).collect()
    }

    /// What the first connected layer gives for each choice.
    pub(super) fn first(&self, prepared: &Prepared, choices: &[Choice]) -> Matrix {
        let mut rows = Matrix::zeros(choices.len(), CHOICE_FEATURES);
        let mut chunks: Option<Chunks> = None;
        for (row, choice) in choices.iter().enumerate() {
            // Choices of a grid come with many credits to a partition.
            let same = chunks.filter(|chunks| chunks.partition == choice.partition);
            let cut = same.unwrap_or_else(|| Chunks::of(&prepared.conditions, choice.partition));
            chunks = Some(cut);
            let features = features::choice(&prepared.conditions, choice, &cut);
            rows.row_mut(row).copy_from_slice(&features);
        }
        let mut first = self.from_choice.forward(&rows);
        for row in 0..choices.len() {
            for (value, base) in first.row_mut(row).iter_mut().zip(prepared.base.values()) {
                *value += base;
            }
        }
        rectified(first)
    }

    /// All parameters, in an order that never changes: files rely on it.
    pub fn parameters(&self) -> Vec<&Parameter> {
        let MetaNetwork { embedding, memories, from_job, from_choice, second, output } = self;
        let mut all: Vec<&Parameter> = embedding.parameters().into();
        all.extend(memories.iter().flat_map(Lstm::parameters));
        all.extend([from_job, from_choice, second, output].into_iter().flat_map(Dense::parameters));
        all
    }

    /// In the same order.
    pub fn parameters_mut(&mut self) -> Vec<&mut Parameter> {
        let MetaNetwork { embedding, memories, from_job, from_choice, second, output } = self;
        let mut all: Vec<&mut Parameter> = embedding.parameters_mut().into();
        all.extend(memories.iter_mut().flat_map(Lstm::parameters_mut));
        let dense = [from_job, from_choice, second, output];
        all.extend(dense.into_iter().flat_map(Dense::parameters_mut));
        all
    }
}
