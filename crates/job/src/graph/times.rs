//! What the layers of a worker took in one step, from its spans: passes, updates, and what passed between them, with the marks of
//! operations that carry no gradients. Waiting for other workers is not counted; what operations take is not known here.

use super::layered::{LayerTimes, Mark, MarkKind, Slot, Tail};
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
    /// What passed behind the last pass until gradients were handed over, and from there to the wait for them.
    handing: u64,
    before_wait: u64,
    /// Up to where everything is accounted for.
    cursor: Stamp,
    /// Passes that are not over, the innermost last.
    open: Vec<Pass>,
    /// Where the worker took part in asides and waited for them.
    marks: Vec<Mark>,
    /// How many of them, from the last one back, are at a place that what comes next will tell.
    placeless: usize,
    /// Whether layers wait for their own tensors, and updates may lie anywhere in a step.
    crosses_step: bool,
}

/// A pass of a layer.
struct Pass {
    end: Stamp,
    layer: usize,
    phase: Phase,
    /// Up to where its time is accounted for by marks or by passes inside.
    until: Stamp,
}

/// What a step took.
pub(super) struct Took {
    pub layers: Vec<LayerTimes>,
    pub tail: Tail,
    pub marks: Vec<Mark>,
}

impl StepTimes {
    pub fn new(layers: usize, from: Stamp, crosses_step: bool) -> StepTimes {
        let layers = vec![LayerTimes::default(); layers];
        StepTimes {
            layers,
            update: 0,
            updated: 0,
            passed: 0,
            handing: 0,
            before_wait: 0,
            cursor: from,
            open: Vec::new(),
            marks: Vec::new(),
            placeless: 0,
            crosses_step,
        }
    }

    /// False if it is work of a layer that nobody knows. A wait is over with what it was for, where that is known: `over`; what
    /// passes then until the thread goes on is its own.
    pub fn add(&mut self, span: &Span, layer: Option<usize>, over: Option<Stamp>) -> bool {
        let phase = match span.kind {
            Kind::Work(phase) => phase,
            Kind::Wait => {
                self.wait(span, layer, over);
                return true;
            }
            _ => return true,
        };
        if phase == Phase::Other {
            return true;
        }
        if layer.is_none() && phase != Phase::Update {
            // It is a part of the gap before what comes next.
            return false;
        }
        self.inside(span);
        let gap = span.begin.since(self.cursor);
        self.cursor = self.cursor.max(span.end());
        if self.crosses_step && phase == Phase::Update {
            self.updated += span.length;
            self.passed += gap;
            return true;
        }
        let count = self.layers.len();
        let Some(place) = layer else {
            self.update += gap + span.length;
            self.place_marks(Slot::update(count));
            return true;
        };
        let passed = self.passed();
        let pass = Pass { end: span.end(), layer: place, phase, until: span.begin };
        let times = &mut self.layers[place];
        match phase {
            Phase::Forward => {
                times.update += passed;
                times.forward += span.length;
                times.forward_gap += gap;
                self.open.push(pass);
                self.place_marks(Slot::forward(place));
            }
            Phase::Backward => {
                times.backward += span.length;
                times.backward_gap += passed + gap;
                self.open.push(pass);
                self.place_marks(Slot::backward(place, count));
            }
            Phase::Update => times.update += gap + span.length,
            Phase::Other => {}
        }
        true
    }

    /// What passes before a wait does so however long tensors take. Where layers wait for their own tensors, any other wait is for
    /// something that no graph has: it is time that passes.
    fn wait(&mut self, span: &Span, layer: Option<usize>, over: Option<Stamp>) {
        if self.crosses_step {
            let Some(place) = layer else { return };
            self.inside(span);
            let passed = self.passed();
            self.layers[place].wait_gap += passed + span.begin.since(self.cursor);
        } else if over.is_some() {
            self.before_wait += span.begin.since(self.cursor);
            self.place_marks(Slot::wait(self.layers.len()));
        }
        self.cursor = self.cursor.max(resumed(span, over));
    }

    /// The last gradients are handed over. Inside a pass that is taken to be at its end.
    pub fn handed(&mut self, at: Stamp) {
        self.open.retain(|pass| pass.end > at);
        if self.open.is_empty() {
            self.handing += at.since(self.cursor);
            self.cursor = self.cursor.max(at);
        }
    }

    /// What whatever comes next begins with.
    fn passed(&mut self) -> u64 {
        std::mem::take(&mut self.updated) + std::mem::take(&mut self.passed)
    }

    /// What happens inside a layer's pass is not the layer's own.
    fn inside(&mut self, span: &Span) {
        self.open.retain(|pass| pass.end > span.begin);
        if let Some(pass) = self.open.last_mut() {
            let inside = span.length.min(pass.end.since(span.begin));
            pass.until = pass.until.max(span.end());
            let time = self.layers[pass.layer].of_pass(pass.phase);
            *time = time.saturating_sub(inside);
        }
    }

    /// The worker takes part in an aside.
    pub fn posted(&mut self, aside: u32, at: Stamp) {
        self.mark(aside, MarkKind::Posted, at, at);
    }

    /// It waits for an aside, which is over at some time.
    pub fn awaited(&mut self, aside: u32, wait: &Span, over: Stamp) {
        self.mark(aside, MarkKind::Awaited, wait.begin, resumed(wait, Some(over)));
    }

    /// Inside a pass, what of it came before belongs to the mark; elsewhere, what passed since what came before.
    fn mark(&mut self, aside: u32, kind: MarkKind, from: Stamp, to: Stamp) {
        let count = self.layers.len();
        self.open.retain(|pass| pass.end > from);
        let Some(pass) = self.open.last_mut() else {
            let gap = from.since(self.cursor);
            self.cursor = self.cursor.max(to);
            self.placeless += 1;
            self.marks.push(Mark { aside, kind, slot: Slot::end(count), gap, work: 0 });
            return;
        };
        let slot = match pass.phase {
            Phase::Forward => Slot::forward(pass.layer),
            _ => Slot::backward(pass.layer, count),
        };
        let time = self.layers[pass.layer].of_pass(pass.phase);
        let work = from.since(pass.until).min(*time);
        *time -= work;
        *time = time.saturating_sub(to.since(from));
        pass.until = pass.until.max(to);
        self.place_marks(slot);
        self.marks.push(Mark { aside, kind, slot, gap: 0, work });
    }

    /// What has no place yet comes before this.
    fn place_marks(&mut self, slot: Slot) {
        let from = self.marks.len() - std::mem::take(&mut self.placeless);
        self.marks[from..].iter_mut().for_each(|mark| mark.slot = slot);
    }

    /// The layers' times, and what is left to the end of the step. Updates of no particular layer are shared out by the
    /// length of parameters; those that cross the step and come after the last pass are a part of what is left, told apart.
    pub fn finish(mut self, layers: &[Layer], to: Stamp) -> Took {
        let bytes =
            |layer: &Layer| layer.tensors.iter().map(|tensor| tensor.bytes()).sum::<u64>() as f64;
        let all: f64 = layers.iter().map(bytes).sum();
        if all > 0.0 {
            for (times, layer) in self.layers.iter_mut().zip(layers) {
                times.update += (self.update as f64 * bytes(layer) / all) as u64;
            }
        }
        let rest = self.passed + to.since(self.cursor);
        // Layers that are called twice have one place: whatever that does to the order of passes, marks keep theirs, because
        // workers that took part in operations in different orders would wait for each other for ever.
        let mut last = Slot::forward(0);
        for mark in &mut self.marks {
            last = last.max(mark.slot);
            mark.slot = last;
        }
        let StepTimes { handing, before_wait, updated: update, layers, marks, .. } = self;
        Took { layers, tail: Tail { handing, before_wait, update, rest }, marks }
    }
}

/// When a thread that waits has nothing more to wait for.
fn resumed(wait: &Span, over: Option<Stamp>) -> Stamp {
    over.map_or(wait.end(), |over| over.clamp(wait.begin, wait.end()))
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
            let layer = ["a", "b"].iter().position(|name| *name == &*span.name);
            let over = (span.begin == Stamp(43)).then_some(Stamp(58));
            assert!(times.add(span, layer, over));
        }
        let Took { layers, tail, .. } = times.finish(&[], Stamp(100));
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
            forward_gap: 3,
            forward: 9,
            backward_gap: 5,
            backward: 5,
        };
        assert_eq!((layers, tail), (vec![a, b], Tail { update: 4, rest: 6, ..Tail::default() }));
    }
    fn mark(aside: u32, kind: MarkKind, slot: Slot, gap: u64, work: u64) -> Mark {
        Mark { aside, kind, slot, gap, work }
    }

    #[test]
    fn an_aside_splits_the_gap_that_it_is_in() {
        let work = |phase| Kind::Work(phase);
        let mut times = StepTimes::new(1, Stamp(0), false);
        times.posted(0, Stamp(10));
        times.awaited(0, &span("wait", 12, 20, Kind::Wait), Stamp(18));
        times.add(&span("a", 25, 40, work(Phase::Forward)), Some(0), None);
        times.add(&span("a", 40, 60, work(Phase::Backward)), Some(0), None);
        times.handed(Stamp(62));
        times.add(&span("all", 65, 70, Kind::Wait), None, Some(Stamp(68)));
        times.posted(1, Stamp(71));
        times.add(&span("update", 74, 80, work(Phase::Update)), None, None);
        times.posted(2, Stamp(85));
        let Took { layers, tail, marks } = times.finish(&[], Stamp(90));
        assert_eq!((layers[0].forward_gap, layers[0].forward, layers[0].backward), (7, 15, 20));
        assert_eq!(tail, Tail { handing: 2, before_wait: 3, update: 0, rest: 5 });
        let expected = [
            mark(0, MarkKind::Posted, Slot::forward(0), 10, 0),
            mark(0, MarkKind::Awaited, Slot::forward(0), 2, 0),
            mark(1, MarkKind::Posted, Slot::update(1), 3, 0),
            mark(2, MarkKind::Posted, Slot::end(1), 5, 0),
        ];
        assert_eq!(marks, expected);
    }

    #[test]
    fn an_aside_inside_a_pass_takes_what_came_before_it_and_its_wait_is_nobodys() {
        let mut times = StepTimes::new(1, Stamp(0), false);
        times.add(&span("norm", 10, 100, Kind::Work(Phase::Forward)), Some(0), None);
        times.posted(0, Stamp(30));
        times.awaited(0, &span("wait", 35, 75, Kind::Wait), Stamp(75));
        let Took { layers, marks, .. } = times.finish(&[], Stamp(100));
        assert_eq!(layers[0].forward, 25);
        let expected = [
            mark(0, MarkKind::Posted, Slot::forward(0), 0, 20),
            mark(0, MarkKind::Awaited, Slot::forward(0), 0, 5),
        ];
        assert_eq!(marks, expected);
    }
}
