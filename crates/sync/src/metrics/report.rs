//! What workers tell each other of themselves: always as many bytes, so that workers who disagree about what a step is
//! still understand each other. What others say is not trusted to make sense.

use super::{FlowMetrics, JobMetrics, JobShape, LayerMetrics, WorkerMetrics};
use crate::event::name_hash;
use paceline_job::{Rank, Settings, ViewVersion};
use std::sync::Arc;

/// Times of so many layers are told. Where there are more, neighbours are told together.
const TOLD_LAYERS: usize = 512;

/// Step, fingerprint, view and number of layers.
const HEAD_BYTES: usize = 24;

/// Seconds, upload, download and the rest.
const NUMBERS: usize = 4;

/// What came of so many peers is told: as many as most strategies have neighbours.
pub const TOLD_FLOWS: usize = 8;

/// Sender, all bytes, those that were timed, and seconds.
const FLOW_BYTES: usize = 16;

/// The length of a report.
pub const REPORT_BYTES: usize =
    HEAD_BYTES + FLOW_BYTES * TOLD_FLOWS + 4 * (NUMBERS + 2 * TOLD_LAYERS);

/// What one worker says; nothing, before its first step is over.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// The last step that is in it.
    pub step: u64,
    /// In force during that step.
    pub view: ViewVersion,
    /// The fingerprint of what the worker takes the job to synchronise; 0 while it does not know.
    pub shape: u64,
    /// The worker's own.
    pub metrics: WorkerMetrics,
}

impl JobShape {
    /// Equal for equal shapes, on all machines, and never 0.
    pub fn fingerprint(&self) -> u64 {
        let tensors = self.tensors.iter();
        tensors
            .fold(0x9e37_79b9_7f4a_7c15_u64 ^ u64::from(self.scheduled), |hash, tensor| {
                let next = name_hash(&tensor.name, None) ^ tensor.bytes;
                (hash.rotate_left(5) ^ next).wrapping_mul(0x0000_0100_0000_01b3)
            })
            .max(1)
    }
}

impl Report {
    /// As it travels. Numbers keep seven digits.
    pub fn encode(&self) -> Box<[u8]> {
        let mut bytes = Vec::with_capacity(REPORT_BYTES);
        let WorkerMetrics { seconds, upload, download, rest, layers, flows } = &self.metrics;
        bytes.extend(self.step.to_le_bytes());
        bytes.extend(self.shape.to_le_bytes());
        bytes.extend(self.view.0.to_le_bytes());
        bytes.extend(u32::try_from(layers.len()).unwrap_or(u32::MAX).to_le_bytes());
        let nothing = FlowMetrics { from: Rank(0), all: 0.0, bytes: 0.0, seconds: 0.0 };
        for flow in flows.iter().chain(std::iter::repeat(&nothing)).take(TOLD_FLOWS) {
            bytes.extend(flow.from.0.to_le_bytes());
            for number in [flow.all, flow.bytes, flow.seconds] {
                bytes.extend((number as f32).to_le_bytes());
            }
        }
        let mut put = |number: f64| bytes.extend((number as f32).to_le_bytes());
        [seconds, upload, download, rest].into_iter().for_each(|number| put(*number));
        for together in layers.chunks(told_together(layers.len())) {
            put(together.iter().map(|layer| layer.forward).sum());
            put(together.iter().map(|layer| layer.backward).sum());
        }
        bytes.resize(REPORT_BYTES, 0);
        bytes.into()
    }

    /// `None` for what no worker says.
    pub fn decode(bytes: &[u8]) -> Option<Report> {
        if bytes.len() != REPORT_BYTES {
            return None;
        }
        let (head, rest) = bytes.split_at(HEAD_BYTES);
        let (flows, numbers) = rest.split_at(FLOW_BYTES * TOLD_FLOWS);
        let (flows, _) = flows.as_chunks::<FLOW_BYTES>();
        let flow = |flow: &[u8; FLOW_BYTES]| {
            let [from, all, bytes, seconds] = *flow.as_chunks::<4>().0 else { return None };
            let numbers = [all, bytes, seconds].map(|it| f64::from(f32::from_le_bytes(it)));
            let [all, bytes, seconds] = numbers;
            let tells = |number: f64| number.is_finite() && number > 0.0;
            let flow = FlowMetrics { from: Rank(u32::from_le_bytes(from)), all, bytes, seconds };
            numbers.into_iter().all(tells).then_some(flow)
        };
        let flows = flows.iter().filter_map(flow).collect();
        let word = |at: usize| Some(u64::from_le_bytes(head.get(at..at + 8)?.try_into().ok()?));
        let half = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
        let (step, shape, view, count) = (word(0)?, word(8)?, half(16)?, half(20)? as usize);
        let mut numbers = numbers.chunks_exact(4).map(|bytes| {
            let number = f32::from_le_bytes(bytes.try_into().ok()?);
            (number.is_finite() && number >= 0.0).then_some(f64::from(number))
        });
        let mut next = || numbers.next().flatten();
        let (seconds, upload, download, rest) = (next()?, next()?, next()?, next()?);
        // Who claims more layers than anybody can post would have us make room for them.
        let mut layers = Vec::with_capacity(count.min(TOLD_LAYERS));
        if count > MOST_LAYERS {
            return None;
        }
        let together = told_together(count);
        while layers.len() < count {
            let (forward, backward) = (next()?, next()?);
            let here = together.min(count - layers.len());
            let share = (here as f64).recip();
            let layer = LayerMetrics { forward: forward * share, backward: backward * share };
            layers.extend(std::iter::repeat_n(layer, here));
        }
        let metrics = WorkerMetrics { seconds, upload, download, rest, layers, flows };
        Some(Report { step, view: ViewVersion(view), shape, metrics })
    }
}

/// More than any step posts.
const MOST_LAYERS: usize = 1 << 14;

/// How many of so many layers are told together.
fn told_together(layers: usize) -> usize {
    layers.div_ceil(TOLD_LAYERS).max(1)
}

/// What all workers' reports say together, each of [`REPORT_BYTES`], by rank. `shape` and `settings` are this worker's own.
/// `None` if they are of different steps or views, or take the job for different ones: it is the same for all workers,
/// since each knows what all said.
pub fn agree(
    reports: &[u8],
    shape: Option<&Arc<JobShape>>,
    settings: &Settings,
) -> Option<JobMetrics> {
    let reports: Vec<Report> =
        reports.chunks(REPORT_BYTES).map(Report::decode).collect::<Option<_>>()?;
    let (step, view, fingerprint) =
        reports.first().map(|first| (first.step, first.view, first.shape))?;
    let alike =
        |report: &Report| (report.step, report.view, report.shape) == (step, view, fingerprint);
    let shape = shape.cloned().filter(|_| fingerprint > 0).unwrap_or_default();
    let layers = shape.tensors.len();
    let mine = layers == 0 || shape.fingerprint() == fingerprint;
    if !mine || !reports.iter().all(|report| alike(report) && report.metrics.layers.len() == layers)
    {
        return None;
    }
    let workers = reports.into_iter().map(|report| report.metrics).collect();
    Some(JobMetrics { step, view, settings: settings.clone(), shape, workers })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::TensorShape;
    use proptest::prelude::*;

    fn report(layers: usize) -> Report {
        let layers = (0..layers)
            .map(|n| LayerMetrics { forward: n as f64 / 1024.0, backward: n as f64 / 512.0 })
            .collect();
        let flows = vec![FlowMetrics { from: Rank(3), all: 8e6, bytes: 4e6, seconds: 0.125 }];
        let metrics =
            WorkerMetrics { seconds: 0.25, upload: 1e9, download: 5e8, rest: 0.125, layers, flows };
        Report { step: 40, view: ViewVersion(3), shape: 7, metrics }
    }

    #[test]
    fn a_report_comes_back_as_it_was_told() {
        for layers in [0, 1, 161, TOLD_LAYERS] {
            let told = report(layers);
            assert_eq!(Report::decode(&told.encode()), Some(told));
        }
    }

    #[test]
    fn of_too_many_layers_the_sum_is_told() {
        let told = report(2000);
        let heard = Report::decode(&told.encode()).unwrap();
        let sum =
            |report: &Report| report.metrics.layers.iter().map(|layer| layer.forward).sum::<f64>();
        assert_eq!(heard.metrics.layers.len(), 2000);
        assert!((sum(&heard) / sum(&told) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn workers_who_disagree_say_nothing_together() {
        let tensors = (0..2).map(|n| TensorShape { name: n.to_string().into(), bytes: 4 << n });
        let shape = Arc::new(JobShape { tensors: tensors.collect(), scheduled: true });
        let mine = Report { shape: shape.fingerprint(), ..report(2) };
        let said = |other: Report| {
            let bytes = [mine.encode(), other.encode()].concat();
            agree(&bytes, Some(&shape), &Settings::default())
        };
        let together = said(mine.clone()).unwrap();
        assert_eq!((together.step, together.workers.len(), together.speed()), (40, 2, 4.0));
        assert_eq!(said(Report { step: 45, ..mine.clone() }), None);
        assert_eq!(said(Report { view: ViewVersion(4), ..mine.clone() }), None);
        assert_eq!(said(Report { shape: 9, ..mine.clone() }), None);
        assert_eq!(said(Report { metrics: report(3).metrics, ..mine.clone() }), None);
    }

    #[test]
    fn before_steps_are_known_speed_is() {
        let unknown = Report { shape: 0, ..report(0) };
        let bytes = [unknown.encode(), unknown.encode()].concat();
        let together = agree(&bytes, None, &Settings::default()).unwrap();
        assert_eq!((together.speed(), together.shape.tensors.len()), (4.0, 0));
    }

    proptest! {
        #[test]
        fn noise_is_no_report_that_breaks_anything(noise in prop::collection::vec(any::<u8>(), 0..3 * REPORT_BYTES)) {
            let _ = agree(&noise, None, &Settings::default());
        }
    }
}
