//! A layer with long short-term memory (Hochreiter and Schmidhuber; gates as PyTorch has them): reads a sequence and gives
//! a state after each element.

use super::Parameter;
use crate::{Random, matrix::Matrix};

/// Gates in the order of their columns: what enters, what is kept, what is new, what is shown.
const GATES: usize = 4;

/// Reads a sequence.
#[derive(Clone, Debug, PartialEq)]
pub struct Lstm {
    /// From the sequence's elements to all gates.
    pub input_weights: Parameter,
    /// From the state before to all gates.
    pub state_weights: Parameter,
    /// Of all gates.
    pub bias: Parameter,
    width: usize,
}

/// What a forward pass leaves for the backward pass.
#[derive(Clone, Debug)]
pub struct LstmTrace {
    /// After each element, a row for each example.
    pub states: Vec<Matrix>,
    cells: Vec<Matrix>,
    /// After their sigmoid or tangent.
    gates: Vec<Matrix>,
}

impl LstmTrace {
    /// The state after the whole sequence.
    ///
    /// # Panics
    /// If the sequence was empty.
    pub fn last(&self) -> &Matrix {
        self.states.last().expect("a sequence of at least one element")
    }
}

impl Lstm {
    /// With random weights. What was seen is kept at first: the gate that keeps begins open.
    pub fn new(inputs: usize, width: usize, random: &mut Random) -> Lstm {
        let mut bias = Parameter::zero_row(GATES * width);
        bias.value.values_mut()[width..2 * width].fill(1.0);
        Lstm {
            input_weights: Parameter::even(inputs, GATES * width, random),
            state_weights: Parameter::even(width, GATES * width, random),
            bias,
            width,
        }
    }

    /// Read a sequence: each element has a row for each example.
    pub fn forward(&self, sequence: &[Matrix]) -> LstmTrace {
        let mut trace = LstmTrace { states: Vec::new(), cells: Vec::new(), gates: Vec::new() };
        let width = self.width;
        for element in sequence {
            let rows = element.rows();
            let mut gates = Matrix::zeros(rows, GATES * width);
            for row in 0..rows {
                gates.row_mut(row).copy_from_slice(self.bias.value.row(0));
            }
            gates.add_product(element, &self.input_weights.value);
            if let Some(state) = trace.states.last() {
                gates.add_product(state, &self.state_weights.value);
            }
            let (mut cell, mut state) = (Matrix::zeros(rows, width), Matrix::zeros(rows, width));
            for row in 0..rows {
                let gates = gates.row_mut(row);
                for (place, gate) in gates.iter_mut().enumerate() {
                    let new = place / width == 2;
                    *gate = if new { gate.tanh() } else { 1.0 / (1.0 + (-*gate).exp()) };
                }
                for place in 0..width {
                    let before = trace.cells.last().map_or(0.0, |cell| cell.row(row)[place]);
                    let [enters, keeps, new, shows] =
                        [0, 1, 2, 3].map(|gate| gates[gate * width + place]);
                    let kept = keeps * before + enters * new;
                    cell.row_mut(row)[place] = kept;
                    state.row_mut(row)[place] = shows * kept.tanh();
                }
            }
            trace.states.push(state);
            trace.cells.push(cell);
            trace.gates.push(gates);
        }
        trace
    }

    /// From the gradients of all states those of the sequence; those of the parameters are added up. Where a state has no
    /// gradient, nothing was asked of it.
    pub fn backward(
        &mut self,
        sequence: &[Matrix],
        trace: &LstmTrace,
        gradients: &[Option<&Matrix>],
    ) -> Vec<Matrix> {
        let width = self.width;
        let rows = sequence.first().map_or(0, Matrix::rows);
        let mut of_sequence = Vec::with_capacity(sequence.len());
        let mut of_state = Matrix::zeros(rows, width);
        let mut of_cell = Matrix::zeros(rows, width);
        for (time, element) in sequence.iter().enumerate().rev() {
            if let Some(gradient) = gradients.get(time).copied().flatten() {
                of_state.add(gradient);
            }
            let mut of_gates = Matrix::zeros(rows, GATES * width);
            for row in 0..rows {
                let gates = trace.gates[time].row(row);
                for place in 0..width {
                    let kept = trace.cells[time].row(row)[place];
                    let before =
                        time.checked_sub(1).map_or(0.0, |t| trace.cells[t].row(row)[place]);
                    let [enters, keeps, new, shows] =
                        [0, 1, 2, 3].map(|gate| gates[gate * width + place]);
                    let shown = kept.tanh();
                    let state = of_state.row(row)[place];
                    let cell = of_cell.row(row)[place] + state * shows * (1.0 - shown * shown);
                    of_cell.row_mut(row)[place] = cell * keeps;
                    let of_gates = of_gates.row_mut(row);
                    of_gates[place] = cell * new * enters * (1.0 - enters);
                    of_gates[width + place] = cell * before * keeps * (1.0 - keeps);
                    of_gates[2 * width + place] = cell * enters * (1.0 - new * new);
                    of_gates[3 * width + place] = state * shown * shows * (1.0 - shows);
                }
            }
            self.input_weights.gradient.add_transposed_product(element, &of_gates);
            let sums = self.bias.gradient.values_mut();
            for row in 0..rows {
                for (sum, value) in sums.iter_mut().zip(of_gates.row(row)) {
                    *sum += value;
                }
            }
            of_state.fill(0.0);
            if let Some(before) = time.checked_sub(1) {
                self.state_weights
                    .gradient
                    .add_transposed_product(&trace.states[before], &of_gates);
                of_state.add_product_transposed(&of_gates, &self.state_weights.value);
            }
            let mut of_element = Matrix::zeros(rows, element.columns());
            of_element.add_product_transposed(&of_gates, &self.input_weights.value);
            of_sequence.push(of_element);
        }
        of_sequence.reverse();
        of_sequence
    }

    /// In an order that never changes: files rely on it.
    pub fn parameters(&self) -> [&Parameter; 3] {
        [&self.input_weights, &self.state_weights, &self.bias]
    }

    /// In the same order.
    pub fn parameters_mut(&mut self) -> [&mut Parameter; 3] {
        [&mut self.input_weights, &mut self.state_weights, &mut self.bias]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::differences::{any, check};

    #[test]
    fn gradients_through_two_layers_and_time_are_those_of_finite_differences() {
        let mut random = Random::new(5);
        let (mut first, mut second) = (Lstm::new(3, 4, &mut random), Lstm::new(4, 3, &mut random));
        let sequence: Vec<Matrix> = (0..5).map(|_| any(2, 3, &mut random)).collect();
        let wish = any(2, 3, &mut random);
        let run = |first: &Lstm, second: &Lstm, sequence: &[Matrix]| {
            second.forward(&first.forward(sequence).states).last().clone()
        };
        let (below, above) = {
            let below = first.forward(&sequence);
            let above = second.forward(&below.states);
            (below, above)
        };
        let mut gradients = vec![None; 5];
        gradients[4] = Some(&wish);
        let between = second.backward(&below.states, &above, &gradients);
        let between: Vec<_> = between.iter().map(Some).collect();
        let of_sequence = first.backward(&sequence, &below, &between);
        for time in 0..5 {
            check(&of_sequence[time], &wish, &sequence[time], |element| {
                let mut changed = sequence.clone();
                changed[time] = element.clone();
                run(&first, &second, &changed)
            });
        }
        for place in 0..3 {
            let parameter = first.parameters()[place];
            check(&parameter.gradient, &wish, &parameter.value, |value| {
                let mut changed = first.clone();
                changed.parameters_mut()[place].value = value.clone();
                run(&changed, &second, &sequence)
            });
            let parameter = second.parameters()[place];
            check(&parameter.gradient, &wish, &parameter.value, |value| {
                let mut changed = second.clone();
                changed.parameters_mut()[place].value = value.clone();
                run(&first, &changed, &sequence)
            });
        }
    }

    #[test]
    fn every_states_gradient_is_heard() {
        let mut random = Random::new(6);
        let mut lstm = Lstm::new(2, 3, &mut random);
        let sequence: Vec<Matrix> = (0..3).map(|_| any(1, 2, &mut random)).collect();
        let trace = lstm.forward(&sequence);
        let wish = any(1, 3, &mut random);
        // What comes later cannot change an earlier state.
        let of_sequence = lstm.backward(&sequence, &trace, &[Some(&wish), None, None]);
        check(&of_sequence[0], &wish, &sequence[0], |element| {
            lstm.forward(std::slice::from_ref(element)).states[0].clone()
        });
        assert!(of_sequence[1].values().iter().all(|value| *value == 0.0));
    }
}
