//! What the training program does, from what it posts and waits for: nobody tells when a layer begins or ends.
//!
//! In the backward pass a layer's time is what passes between two posts, handing over apart. In the forward pass it is what
//! passes between the end of the wait for one tensor and the beginning of the wait for the next; layers without a wait of
//! their own share what passes, as their backward passes are to each other. Between the last wait and the first post lie
//! the rest of the forward pass and the first of the backward pass; they are divided as forward and backward are where
//! both were seen.
//!
//! A thread that has a device compute goes on meanwhile, and what it waits for says little about the device. What it posts is
//! posted when the device has computed it, so backward passes are seen all the same; forward passes are guessed from them.

use super::{JobShape, LayerMetrics, TensorShape};
use crate::scheduler::Priority;
use paceline_job::Time;
use std::{ops::Range, sync::Arc};

/// Forward over backward, where neither could be told from the other: a layer's backward pass computes two products, its
/// forward pass one.
const FORWARD_OF_BACKWARD: f64 = 0.5;

/// Layers whose forward pass was seen must have this share of the backward pass, or the rule above is better.
const ENOUGH_SEEN: f64 = 0.2;

/// A step with more tensors, or waits, is looked at as far as this. Models have a few hundred.
const MOST: usize = 1 << 14;

/// One step, as far as it can be told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Step {
    pub seconds: f64,
    pub rest: f64,
    /// In the order of the forward pass; empty while it is not known what steps have in common.
    pub layers: Vec<LayerMetrics>,
}

/// A tensor that a step posts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Handed {
    /// Under which it is posted.
    pub name: Arc<str>,
    /// Its size.
    pub bytes: u64,
    /// Smaller goes first.
    pub priority: Priority,
    /// What computed it.
    pub computed: Computed,
}

/// Where tensors are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Computed {
    /// By the thread that waits for tensors.
    #[default]
    Here,
    /// By a device, which that thread runs ahead of.
    Elsewhere,
}

/// A tensor that was posted, in the order of posting.
#[derive(Clone, Debug)]
struct Posted {
    tensor: Handed,
    /// Computation before it.
    nanoseconds: u64,
}

impl Posted {
    fn is_like(&self, other: &Posted) -> bool {
        (self.tensor.bytes, self.tensor.priority) == (other.tensor.bytes, other.tensor.priority)
    }
}

/// See the file's first paragraph.
#[derive(Clone, Debug, Default)]
pub(super) struct Program {
    began: Option<Time>,
    /// Until when the step in progress is accounted for, and computation before that which belongs to what comes next.
    until: Time,
    carried: u64,
    /// Whether a wait came last, and no post.
    waited_last: bool,
    posts: Vec<Posted>,
    /// What a device computed for one step: the thread that begins steps is ahead of it, and says nothing of where one ends.
    completed: Vec<Posted>,
    /// Waits before the first post: which tensor (its place among the last step's posts), and the computation before it.
    waits: Vec<(u32, u64)>,
    /// What the step before posted.
    last: Vec<Posted>,
    shape: Option<Shape>,
}

/// What steps have in common.
#[derive(Clone, Debug)]
struct Shape {
    job: Arc<JobShape>,
    /// In the order of posting.
    posts: Vec<Posted>,
    /// For each of them, its place in the forward pass.
    places: Vec<usize>,
}

impl Program {
    /// What steps have in common, once two of them had something.
    pub fn shape(&self) -> Option<&Arc<JobShape>> {
        self.shape.as_ref().map(|shape| &shape.job)
    }

    /// A tensor was posted, and handing it over took from `begin` until `end`. Its number is for [`Program::waited`].
    pub fn posted(&mut self, tensor: Handed, begin: Time, end: Time) -> u32 {
        let nanoseconds = self.computed(begin, end);
        self.waited_last = false;
        let again = self.posts.len() > 1 && self.posts[0].tensor.name == tensor.name;
        if again && tensor.computed == Computed::Elsewhere {
            self.completed = std::mem::take(&mut self.posts);
        }
        let room = self.posts.len() < MOST;
        match self.posts.last_mut() {
            // A large one may come in pieces.
            Some(last) if last.tensor.name == tensor.name => {
                last.tensor.bytes += tensor.bytes;
                last.nanoseconds += nanoseconds;
            }
            _ if room => self.posts.push(Posted { tensor, nanoseconds }),
            _ => {}
        }
        self.posts.len().saturating_sub(1) as u32
    }

    /// The training thread stood still from `begin` until `end`, for a tensor if it was for one.
    pub fn waited(&mut self, tensor: Option<u32>, begin: Time, end: Time) {
        let nanoseconds = self.computed(begin, end);
        self.waited_last = true;
        match tensor {
            Some(tensor) if self.posts.is_empty() && self.waits.len() < MOST => {
                self.waits.push((tensor, nanoseconds));
            }
            _ => self.carried = nanoseconds,
        }
    }

    /// All that was posted is over since then. Where nobody was seen to wait for it after the last post, somebody was that is
    /// not seen: PyTorch's DDP waits by itself before the step ends.
    pub fn settled(&mut self, since: Time) {
        if !self.posts.is_empty() && !self.waited_last && since > self.until {
            self.waited(None, self.until, since);
        }
    }

    /// A step begins: what the one before it was like, if there was one.
    pub fn begin_step(&mut self, at: Time) -> Option<Step> {
        let tail = self.computed(at, at);
        let elsewhere = is_elsewhere(&self.posts) || is_elsewhere(&self.completed);
        let posts = std::mem::take(if elsewhere { &mut self.completed } else { &mut self.posts });
        let step = self.began.replace(at).map(|began| {
            self.learn(&posts);
            let shape = self.shape.as_ref().filter(|shape| are_alike(&shape.posts, &posts));
            let (layers, before) = match shape {
                Some(shape) => layers(&posts, &self.waits, &shape.places),
                None => Default::default(),
            };
            let whole = at.0.saturating_sub(began.0);
            Step { seconds: seconds(whole), rest: seconds(tail + before), layers }
        });
        self.waits.clear();
        if !(elsewhere && posts.is_empty()) {
            self.last = posts;
        }
        step
    }

    /// What passed before `begin` and is not accounted for; what passes until `end` is something else.
    fn computed(&mut self, begin: Time, end: Time) -> u64 {
        let nanoseconds = begin.0.saturating_sub(self.until.0) + std::mem::take(&mut self.carried);
        self.until = self.until.max(end);
        nanoseconds
    }

    /// Two steps in a row that post the same say what all do. One that differs, to validate say, changes nothing.
    fn learn(&mut self, posts: &[Posted]) {
        let known = self.shape.as_ref().is_some_and(|shape| are_alike(&shape.posts, posts));
        if known || posts.is_empty() || !are_alike(&self.last, posts) {
            return;
        }
        // A program that numbers what it posts gives other names each time.
        let named = posts.iter().zip(&self.last).all(|(a, b)| a.tensor.name == b.tensor.name);
        // The most urgent is needed first; among equals, what the backward pass reaches last.
        let mut order: Vec<usize> = (0..posts.len()).rev().collect();
        order.sort_by_key(|&post| posts[post].tensor.priority);
        let mut places = vec![0; posts.len()];
        let mut tensors = Vec::with_capacity(posts.len());
        for (place, &post) in order.iter().enumerate() {
            places[post] = place;
            let Handed { name, bytes, .. } = posts[post].tensor.clone();
            let name = if named { name } else { format!("tensor {place}").into() };
            tensors.push(TensorShape { name, bytes });
        }
        let scheduled = posts.iter().any(|post| post.tensor.priority != 0);
        let job = Arc::new(JobShape { tensors, scheduled });
        self.shape = Some(Shape { job, posts: posts.to_vec(), places });
    }
}

fn is_elsewhere(posts: &[Posted]) -> bool {
    posts.iter().any(|post| post.tensor.computed == Computed::Elsewhere)
}

fn are_alike(one: &[Posted], other: &[Posted]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| a.is_like(b))
}

/// Times of all layers, and the nanoseconds before the first of them.
fn layers(posts: &[Posted], waits: &[(u32, u64)], places: &[usize]) -> (Vec<LayerMetrics>, u64) {
    let mut layers = vec![LayerMetrics::default(); places.len()];
    let Some((first, others)) = posts.split_first() else { return (layers, 0) };
    for (post, &place) in others.iter().zip(&places[1..]) {
        layers[place].backward = seconds(post.nanoseconds);
    }
    if is_elsewhere(posts) {
        // Of what is posted first nothing is known but that the device computed it: it is taken for one of the others.
        let known: f64 = layers.iter().map(|layer| layer.backward).sum();
        layers[places[0]].backward = known / (others.len().max(1)) as f64;
        layers.iter_mut().for_each(|layer| layer.forward = FORWARD_OF_BACKWARD * layer.backward);
        return (layers, 0);
    }
    // Spans of the forward pass, and the layers that they belong to.
    let mut spans: Vec<(Range<usize>, f64)> = Vec::with_capacity(waits.len());
    let (mut current, mut before) = (None, 0);
    for &(tensor, nanoseconds) in waits {
        let Some(&place) = places.get(tensor as usize) else { continue };
        match current {
            None if place == 0 => before = nanoseconds,
            None => spans.push((0..place, seconds(nanoseconds))),
            Some(since) => spans.push((since..place.max(since + 1), seconds(nanoseconds))),
        }
        current = Some(place.max(current.unwrap_or(0)));
    }
    let backward_of = |layers: &[LayerMetrics], range: Range<usize>| -> f64 {
        layers[range].iter().map(|layer| layer.backward).sum()
    };
    // The first span may have more in it than layers.
    let seen = spans.iter().filter(|(range, _)| range.start > 0 || before > 0);
    let (forward, backward) = seen.fold((0.0, 0.0), |(forward, backward), (range, seconds)| {
        (forward + seconds, backward + backward_of(&layers, range.clone()))
    });
    let enough = backward > 0.0 && backward >= ENOUGH_SEEN * backward_of(&layers, 0..layers.len());
    let ratio = if enough { forward / backward } else { FORWARD_OF_BACKWARD };
    // The first post ends a stretch that began with the last layers' forward pass.
    let rest = current.unwrap_or(0)..layers.len();
    let stretch = seconds(first.nanoseconds);
    let known = backward_of(&layers, rest.clone());
    let backward = ((stretch - ratio * known) / (1.0 + ratio)).clamp(0.0, stretch);
    layers[places[0]].backward = backward;
    spans.push((rest, stretch - backward));
    for (range, seconds) in spans {
        let whole = backward_of(&layers, range.clone());
        let even = (range.len() as f64).recip();
        for layer in &mut layers[range] {
            let share = if whole > 0.0 { layer.backward / whole } else { even };
            layer.forward += share * seconds;
        }
    }
    (layers, before)
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 * 1e-9
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays a training thread: computes, posts, waits.
    struct Thread {
        now: u64,
        computed: Computed,
        program: Program,
    }

    impl Thread {
        fn compute(&mut self, microseconds: u64) {
            self.now += microseconds * 1000;
        }

        fn post(&mut self, name: &str, priority: i64) -> u32 {
            let begin = Time(self.now);
            self.compute(7);
            let computed = self.computed;
            let tensor = Handed { name: name.into(), bytes: 4000, priority, computed };
            self.program.posted(tensor, begin, Time(self.now))
        }

        fn wait(&mut self, tensor: Option<u32>, microseconds: u64) {
            let begin = Time(self.now);
            self.compute(microseconds);
            self.program.waited(tensor, begin, Time(self.now));
        }

        fn step(&mut self) -> Option<Step> {
            self.program.begin_step(Time(self.now))
        }
    }

    fn thread() -> Thread {
        Thread { now: 5_000_000, computed: Computed::Here, program: Program::default() }
    }

    fn microseconds(seconds: f64) -> f64 {
        (seconds * 1e6 * 1e3).round() / 1e3
    }

    fn forward(step: &Step) -> Vec<f64> {
        step.layers.iter().map(|layer| microseconds(layer.forward)).collect()
    }

    fn backward(step: &Step) -> Vec<f64> {
        step.layers.iter().map(|layer| microseconds(layer.backward)).collect()
    }

    /// Three layers: forward 100, 200 and 300, backward twice that; the last is posted first.
    fn one_step(thread: &mut Thread, waits: &[usize]) -> Option<Step> {
        thread.compute(50);
        for layer in 0..3 {
            if waits.contains(&layer) {
                thread.wait(Some(2 - layer as u32), 1000);
            }
            thread.compute(100 * (layer as u64 + 1));
        }
        for layer in (0..3).rev() {
            thread.compute(200 * (layer as u64 + 1));
            thread.post(["a", "b", "c"][layer], layer as i64);
        }
        thread.wait(None, 400);
        thread.compute(30);
        thread.step()
    }

    #[test]
    fn times_between_waits_and_between_posts_are_those_of_the_layers() {
        let mut thread = thread();
        assert_eq!(thread.step(), None);
        assert_eq!(one_step(&mut thread, &[0, 1, 2]).unwrap().layers, [], "one step says little");
        let step = one_step(&mut thread, &[0, 1, 2]).unwrap();
        assert_eq!(forward(&step), [100.0, 200.0, 300.0]);
        assert_eq!(backward(&step), [200.0, 400.0, 600.0]);
        assert_eq!(microseconds(step.rest), 80.0);
        assert_eq!(microseconds(step.seconds), 50.0 + 600.0 + 3000.0 + 1200.0 + 21.0 + 430.0);
        let names: Vec<_> =
            thread.program.shape().unwrap().tensors.iter().map(|t| &*t.name).collect();
        assert_eq!(names, ["a", "b", "c"]);
    }

    #[test]
    fn layers_without_a_wait_share_what_passes_as_their_backward_passes_do() {
        let mut thread = thread();
        thread.step();
        one_step(&mut thread, &[0, 2]);
        let step = one_step(&mut thread, &[0, 2]).unwrap();
        assert_eq!(forward(&step), [100.0, 200.0, 300.0]);
        let step = one_step(&mut thread, &[]).unwrap();
        let all: f64 = forward(&step).iter().sum::<f64>() + backward(&step)[2];
        assert_eq!(all.round(), 650.0 + 600.0, "with what is before them");
        assert!(backward(&step)[2] > 500.0, "{step:?}");
    }

    #[test]
    fn what_a_thread_does_says_nothing_of_a_device_that_is_behind() {
        let mut thread = Thread { computed: Computed::Elsewhere, ..thread() };
        let mut steps = Vec::new();
        // The thread begins the next step when the device has computed only some of the last.
        for place in (0..18).map(|number| 2 - number % 3) {
            thread.compute(200 * (place + 1));
            thread.post(["a", "b", "c"][place as usize], place as i64);
            if place == 1 {
                steps.extend(thread.step());
            }
        }
        let step = steps.last().unwrap();
        assert_eq!(backward(step), [200.0, 400.0, 300.0]);
        assert_eq!(forward(step), [100.0, 200.0, 150.0]);
    }

    #[test]
    fn a_large_tensor_may_come_in_pieces() {
        let mut thread = thread();
        for _ in 0..3 {
            thread.step();
            assert_eq!([thread.post("a", 0), thread.post("a", 0), thread.post("b", 0)], [0, 0, 1]);
        }
        let step = thread.step().unwrap();
        assert_eq!(step.layers.len(), 2);
        let sizes: Vec<u64> =
            thread.program.shape().unwrap().tensors.iter().map(|t| t.bytes).collect();
        assert_eq!(sizes, [4000, 8000], "what is posted last is needed first");
    }

    #[test]
    fn a_wait_that_nobody_told_of_ends_when_everything_is_over() {
        let mut thread = thread();
        thread.step();
        thread.compute(100);
        thread.post("a", 0);
        thread.compute(5000);
        let over = Time(thread.now);
        thread.compute(30);
        thread.program.settled(over);
        assert_eq!(microseconds(thread.step().unwrap().rest), 30.0);
    }

    #[test]
    fn numbered_names_are_no_names() {
        let mut thread = thread();
        for number in 0..3 {
            thread.step();
            thread.post(&format!("collective {number}"), 0);
        }
        thread.step();
        assert_eq!(&*thread.program.shape().unwrap().tensors[0].name, "tensor 0");
    }

    #[test]
    fn a_step_that_differs_has_no_layers_and_changes_nothing() {
        let mut thread = thread();
        thread.step();
        one_step(&mut thread, &[]);
        one_step(&mut thread, &[]);
        let shape = thread.program.shape().cloned();
        thread.post("accuracy", 0);
        assert_eq!(thread.step().unwrap().layers, []);
        assert_eq!(one_step(&mut thread, &[]).unwrap().layers.len(), 3);
        assert_eq!(thread.program.shape().cloned(), shape);
    }
}
