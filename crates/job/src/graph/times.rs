//! What the layers of a worker took in one step, from its spans: passes, updates, and what passed between them. Waiting for other
//! workers is not counted; what operations take is not known here.

use super::layered::{LayerTimes, Tail};
use crate::trace::{Kind, Layer, Phase, Span, Stamp};

/// The times of one step, as spans come in.
pub(super) struct StepTimes {
    layers: Vec<LayerTimes>,
    /// Updates of no particular layer, where all are made at the end.
    update: u64,
    /// Updates, where they cross the step: they belong to whatever comes next.
    updated: u64,
    /// And what passed before them.
    passed: u64,
    /// Up to where everything is accounted for.
    cursor: Stamp,
    /// Layers and phases that are not over: end, layer, phase.
    open: Vec<(Stamp, usize, Phase)>,
    /// Whether layers wait for their own tensors, and updates may lie anywhere in a step.
    crosses_step: bool,
}

impl StepTimes {
    pub fn new(layers: usize, from: Stamp, crosses_step: bool) -> StepTimes {
        let layers = vec![LayerTimes::default(); layers];
        StepTimes {
            layers,
            update: 0,
            updated: 0,
            passed: 0,
            cursor: from,
            open: Vec::new(),
            crosses_step,
        }
    }

    /// False if it is work of a layer that nobody knows.
    pub fn add(&mut self, span: &Span, layer: Option<usize>) -> bool {
        let phase = match span.kind {
            Kind::Work(phase) => phase,
            Kind::Wait => {
                self.wait(span, layer);
                return true;
            }
            _ => return true,
        };
        if phase == Phase::Other {
            return true;
        }
        self.inside(span);
        let gap = span.begin.since(self.cursor);
        self.cursor = self.cursor.max(span.end());
        if self.crosses_step && phase == Phase::Update {
            self.updated += span.length;
            self.passed += gap;
            return true;
        }
        let Some(place) = layer else {
            self.update += if phase == Phase::Update { gap + span.length } else { 0 };
            return phase == Phase::Update;
        };
        let passed = self.passed();
        let times = &mut self.layers[place];
        match phase {
            Phase::Forward => {
                times.update += passed;
                times.forward += span.length;
                times.forward_gap += gap;
                self.open.push((span.end(), place, phase));
            }
            Phase::Backward => {
                times.backward += span.length;
                times.backward_gap += passed + gap;
                self.open.push((span.end(), place, phase));
            }
            Phase::Update => times.update += gap + span.length,
            Phase::Other => {}
        }
        true
    }

    /// Where layers wait for their own tensors, what passes before it does so however long they take, and any other wait is for
    /// something that no graph has: it is time that passes.
    fn wait(&mut self, span: &Span, layer: Option<usize>) {
        if self.crosses_step {
            let Some(place) = layer else { return };
            self.inside(span);
            let passed = self.passed();
            self.layers[place].wait_gap += passed + span.begin.since(self.cursor);
        }
        self.cursor = self.cursor.max(span.end());
    }

    /// What whatever comes next begins with.
    fn passed(&mut self) -> u64 {
        std::mem::take(&mut self.updated) + std::mem::take(&mut self.passed)
    }

    /// What happens inside a layer's pass is not the layer's own.
    fn inside(&mut self, span: &Span) {
        self.open.retain(|(end, ..)| *end > span.begin);
        if let Some(&(end, outer, phase)) = self.open.last() {
            let inside = span.length.min(end.since(span.begin));
            let times = &mut self.layers[outer];
            match phase {
                Phase::Forward => times.forward = times.forward.saturating_sub(inside),
                _ => times.backward = times.backward.saturating_sub(inside),
            }
        }
    }

    /// The layers' times, and what is left to the end of the step. Updates of no particular layer are shared out by the
    /// length of parameters; those that cross the step and come after the last pass are a part of what is left, told apart.
    pub fn finish(mut self, layers: &[Layer], to: Stamp) -> (Vec<LayerTimes>, Tail) {
        let bytes =
            |layer: &Layer| layer.tensors.iter().map(|tensor| tensor.bytes()).sum::<u64>() as f64;
        let all: f64 = layers.iter().map(bytes).sum();
        if all > 0.0 {
            for (times, layer) in self.layers.iter_mut().zip(layers) {
                times.update += (self.update as f64 * bytes(layer) / all) as u64;
            }
        }
        let rest = self.passed + to.since(self.cursor);
        (self.layers, Tail { update: self.updated, rest })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::LaneId;

    fn span(name: &str, begin: i64, end: i64, kind: Kind) -> Span {
        let length = (end - begin) as u64;
        let (name, begin) = (name.into(), Stamp(begin));
        Span { name, lane: LaneId(0), begin, length, kind, after: Vec::new() }
    }

    #[test]
    fn an_update_that_crosses_the_step_is_the_next_layers_or_the_tails() {
        let work = |phase| Kind::Work(phase);
        let spans = [
            span("a", 5, 20, Kind::Wait),
            span("update", 21, 30, work(Phase::Update)),
            span("a", 32, 40, work(Phase::Forward)),
            span("b", 43, 60, Kind::Wait),
            span("b", 61, 70, work(Phase::Forward)),
            span("b", 75, 80, work(Phase::Backward)),
            span("a", 80, 90, work(Phase::Backward)),
            span("all", 91, 94, Kind::Wait),
            span("update", 95, 99, work(Phase::Update)),
        ];
        let mut times = StepTimes::new(2, Stamp(0), true);
        for span in &spans {
            assert!(times.add(span, ["a", "b"].iter().position(|name| *name == &*span.name)));
        }
        let (layers, tail) = times.finish(&[], Stamp(100));
        let a = LayerTimes {
            wait_gap: 5,
            update: 10,
            forward_gap: 2,
            forward: 8,
            backward_gap: 0,
            backward: 10,
        };
        let b = LayerTimes {
            wait_gap: 3,
            update: 0,
            forward_gap: 1,
            forward: 9,
            backward_gap: 5,
            backward: 5,
        };
        assert_eq!((layers, tail), (vec![a, b], Tail { update: 4, rest: 6 }));
    }
}
