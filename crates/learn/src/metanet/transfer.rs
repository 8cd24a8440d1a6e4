//! Transfer to the running job: the last layers learn from what the job itself shows, the others stay as they were
//! trained. Memory and work are bounded, and what is far from the trained weights costs, so that a few odd measurements
//! do not undo what many thousands taught.

use super::{
    conditions::{Choice, Conditions, Seen},
    network::{MetaNetwork, Prepared, WIDTH},
};
use crate::{
    matrix::Matrix,
    nn::{Adam, Parameter, rectified, rectified_backward, squared_loss},
};
use std::collections::VecDeque;

/// Measurements that are kept.
const KEPT: usize = 48;
/// Steps after each measurement.
const STEPS: usize = 25;
/// How far a step goes.
const RATE: f32 = 1e-3;
/// How strongly weights are drawn to where they were.
const PULL: f32 = 2e-2;

/// A network that goes on learning.
#[derive(Clone, Debug)]
pub struct Transfer {
    network: MetaNetwork,
    /// The last layers as they were trained.
    trained: [Matrix; 4],
    kept: VecDeque<Experience>,
    adam: Adam,
}

/// A measurement.
#[derive(Clone, Debug)]
struct Experience {
    /// What the first connected layer makes of it, which does not learn any more.
    first: Vec<f32>,
    /// What the network should have said.
    wanted: f32,
}

impl Transfer {
    /// From a trained network.
    pub fn new(network: MetaNetwork) -> Transfer {
        let trained = last(&network).map(|parameter| parameter.value.clone());
        Transfer { network, trained, kept: VecDeque::with_capacity(KEPT), adam: Adam::new(RATE) }
    }

    /// As it is now.
    pub fn network(&self) -> &MetaNetwork {
        &self.network
    }

    /// How many measurements it remembers.
    pub fn remembered(&self) -> usize {
        self.kept.len()
    }

    /// Work out a job's part; see [`MetaNetwork::prepare`].
    pub fn prepare(&self, conditions: &Conditions) -> Option<Prepared> {
        self.network.prepare(conditions)
    }

    /// Seconds of a step under each choice.
    pub fn seconds(&self, prepared: &Prepared, choices: &[Choice]) -> Vec<f64> {
        self.network.seconds(prepared, choices)
    }

    /// Under these conditions a choice was tried, and this came of it. The oldest measurement is forgotten if there are
    /// too many. What cannot be predicted, or is no time, is not remembered.
    pub fn remember(&mut self, conditions: &Conditions, seen: Seen) {
        let Some(prepared) = self.network.prepare(conditions) else { return };
        let wanted = (seen.seconds / prepared.reference).ln() as f32;
        if !wanted.is_finite() {
            return;
        }
        let first = self.network.first(&prepared, &[seen.choice]).values().to_vec();
        if self.kept.len() == KEPT {
            self.kept.pop_front();
        }
        self.kept.push_back(Experience { first, wanted });
    }

    /// Learn from what is remembered, in a bounded number of steps.
    pub fn refine(&mut self) {
        if !self.kept.is_empty() {
            (0..STEPS).for_each(|_| self.step());
        }
    }

    /// Remember and learn.
    pub fn learn(&mut self, conditions: &Conditions, seen: Seen) {
        self.remember(conditions, seen);
        self.refine();
    }

    /// What the job showed before does not hold any more; what was learned from it stays.
    pub fn forget(&mut self) {
        self.kept.clear();
    }

    fn step(&mut self) {
        let rows = self.kept.len();
        let first: Vec<f32> = self.kept.iter().flat_map(|kept| kept.first.clone()).collect();
        let first = Matrix::from_values(rows, WIDTH, first);
        let wanted: Vec<f32> = self.kept.iter().map(|kept| kept.wanted).collect();
        let second = rectified(self.network.second.forward(&first));
        let output = self.network.output.forward(&second);
        let (_, gradient) = squared_loss(&output, &Matrix::from_values(rows, 1, wanted));
        let mut gradient = self.network.output.backward(&second, &gradient);
        rectified_backward(&second, &mut gradient);
        self.network.second.learn(&first, &gradient);
        let last = last_mut(&mut self.network);
        for (parameter, trained) in last.into_iter().zip(&self.trained) {
            let places = parameter.gradient.values_mut().iter_mut();
            let apart = parameter.value.values().iter().zip(trained.values());
            for (gradient, (value, trained)) in places.zip(apart) {
                *gradient += PULL * (value - trained);
            }
        }
        self.adam.step(last_mut(&mut self.network));
    }
}

fn last(network: &MetaNetwork) -> [&Parameter; 4] {
    let ([weights, bias], [read, offset]) =
        (network.second.parameters(), network.output.parameters());
    [weights, bias, read, offset]
}

fn last_mut(network: &mut MetaNetwork) -> [&mut Parameter; 4] {
    let ([weights, bias], [read, offset]) =
        (network.second.parameters_mut(), network.output.parameters_mut());
    [weights, bias, read, offset]
}
