//! What one worker shows of itself: the smoothed sum of what its program does and what its wires carry. Moments come in,
//! in the order in which they were seen, and [`WorkerMetrics`] come out after each step.

use super::{
    Computed, Handed, JobShape, LayerMetrics, Report, Smoothed, Totals, WorkerMetrics,
    program::Program,
};
use crate::{collective::Collective, event::Post};
use paceline_job::{ReduceOp, Time, ViewVersion};
use std::sync::Arc;

/// See the file's first paragraph.
#[derive(Clone, Debug, Default)]
pub struct Meter {
    program: Program,
    totals: Totals,
    /// The step that was begun last, and the view in force since then.
    current: Option<(u64, ViewVersion)>,
    /// The step whose end is in the metrics last.
    measured: Option<(u64, ViewVersion)>,
    steps_in_view: u64,
    shape: Option<Arc<JobShape>>,
    seconds: Smoothed,
    rest: Smoothed,
    upload: Smoothed,
    download: Smoothed,
    /// Forward and backward.
    layers: Vec<[Smoothed; 2]>,
}

impl Meter {
    fn counts(post: &Post) -> bool {
        matches!(post.collective, Collective::AllReduce { .. })
            && (post.reduce == ReduceOp::Sum || post.reduce.divides())
            && post.dtype.is_float()
            && post.group.is_none()
    }

    /// What is to be known of the tensor of an operation, if that is one of those that a step is made of:
    /// gradients are summed by all workers.
    pub fn tensor(post: &Post, computed: Computed) -> Option<Handed> {
        Meter::counts(post).then(|| Handed {
            name: post.name.clone(),
            bytes: post.collective.elements() * post.dtype.size() as u64,
            priority: post.priority,
            computed,
        })
    }

    /// A [tensor](Meter::tensor) was posted; handing it over took from `begin` until `end`. The
    /// number is for [`Meter::waited`].
    pub fn posted(&mut self, tensor: Handed, begin: Time, end: Time) -> u32 {
        self.program.posted(tensor, begin, end)
    }

    /// The training thread waited from `begin` until `end`, for an operation that counts if it has a number.
    pub fn waited(&mut self, tensor: Option<u32>, begin: Time, end: Time) {
        self.program.waited(tensor, begin, end);
    }

    /// Before a step begins: since when all that was posted is over, if it is.
    pub fn settled(&mut self, since: Option<Time>) {
        since.into_iter().for_each(|since| self.program.settled(since));
    }

    /// Step `step` begins, in this view; `totals` is what wires have carried so far. The one before it is over.
    pub fn begin_step(&mut self, step: u64, view: ViewVersion, at: Time, totals: Totals) {
        let carried = totals.since(&std::mem::replace(&mut self.totals, totals));
        let ended = self.program.begin_step(at);
        let before = self.current.replace((step, view));
        let (Some(ended), Some((_, in_force))) = (ended, before) else { return };
        if self.measured.is_none_or(|(_, measured)| measured != in_force) {
            self.steps_in_view = 0;
        }
        self.measured = before;
        self.steps_in_view += 1;
        if self.steps_in_view <= 2 {
            // How long steps took before says nothing of those under other settings, and the first of these shares the
            // wire with what was posted before it: it only counts as long as it is the only one.
            (self.seconds, self.rest) = Default::default();
        }
        self.seconds.add(ended.seconds);
        self.rest.add(ended.rest);
        carried.sent.rate().into_iter().for_each(|rate| self.upload.add(rate));
        carried.received.rate().into_iter().for_each(|rate| self.download.add(rate));
        self.add_layers(&ended.layers);
    }

    fn add_layers(&mut self, layers: &[LayerMetrics]) {
        if self.shape.as_ref() != self.program.shape() {
            self.shape = self.program.shape().cloned();
            let count = self.shape.as_ref().map_or(0, |shape| shape.tensors.len());
            self.layers = vec![Default::default(); count];
        }
        for ([forward, backward], layer) in self.layers.iter_mut().zip(layers) {
            forward.add(layer.forward);
            backward.add(layer.backward);
        }
    }

    /// What steps have in common, once that is known.
    pub fn shape(&self) -> Option<&Arc<JobShape>> {
        self.shape.as_ref()
    }

    /// What to tell the others, but for what came since the last report; `None` before the first step is over.
    pub fn report(&self) -> Option<Report> {
        let (step, view) = self.measured?;
        let layers = self.layers.iter().map(|[forward, backward]| LayerMetrics {
            forward: forward.value(),
            backward: backward.value(),
        });
        let metrics = WorkerMetrics {
            seconds: self.seconds.value(),
            upload: self.upload.value(),
            download: self.download.value(),
            rest: self.rest.value(),
            layers: layers.collect(),
            flows: Vec::new(),
        };
        let shape = self.shape.as_ref().map_or(0, |shape| shape.fingerprint());
        Some(Report { step, view, shape, metrics })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{event::OpId, metrics::Carried};
    use paceline_job::Dtype;

    fn post(name: &str) -> Post {
        Post {
            reduce: ReduceOp::Average,
            ..Post::new(OpId(0), name, Collective::AllReduce { len: 1000 }, Dtype::F32)
        }
    }

    #[test]
    fn only_sums_of_all_workers_make_a_step() {
        let gradient = post("gradient");
        assert!(Meter::counts(&gradient));
        let in_use = Post { dtype: Dtype::U8, reduce: ReduceOp::Max, ..gradient.clone() };
        let of_some = Post { group: Some([].into()), ..gradient.clone() };
        let broadcast = Collective::Broadcast { root: 0, len: 1000 };
        let parameters = Post { collective: broadcast, ..gradient };
        assert!([in_use, of_some, parameters].iter().all(|post| !Meter::counts(post)));
    }

    #[test]
    fn a_new_view_is_judged_by_its_own_steps() {
        let (mut meter, mut at) = (Meter::default(), 0);
        for step in 0..20 {
            let view = ViewVersion(if step < 10 { 1 } else { 2 });
            meter.begin_step(step, view, Time(at), Totals::default());
            at += if step < 10 { 50_000_000 } else { 20_000_000 };
        }
        let report = meter.report().unwrap();
        assert_eq!((report.step, report.view), (18, ViewVersion(2)));
        assert!((report.metrics.seconds - 0.02).abs() < 1e-9, "{}", report.metrics.seconds);
    }

    #[test]
    fn rates_are_of_what_was_carried_in_the_step() {
        let mut meter = Meter::default();
        for step in 0..5 {
            let sent = Carried { bytes: step * 2_000_000, nanoseconds: step * 1_000_000 };
            let totals = Totals { sent, ..Totals::default() };
            meter.begin_step(step, ViewVersion(1), Time(step * 10_000), totals);
        }
        let metrics = meter.report().unwrap().metrics;
        assert!((metrics.upload / 2e9 - 1.0).abs() < 1e-9, "{}", metrics.upload);
        assert_eq!(metrics.download, 0.0);
    }
}
