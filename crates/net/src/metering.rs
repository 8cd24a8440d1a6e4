//! What a running worker sees of itself, and what all workers see together. Posts and waits are noted where they happen; when a
//! step begins, the one before it becomes metrics, and every few steps workers tell each other by a small collective that
//! nobody waits for. What the numbers mean is `paceline_sync::metrics`' to say.

use crate::{
    pending::Handle,
    runtime::{
        carried::{Carried, Counting},
        helm::lock,
        trace::monotonic_nanoseconds,
    },
    worker::{Operation, Worker},
};
use paceline_job::{Dtype, Rank, Settings, Time, View};
use paceline_sync::{
    collective::Collective,
    event::Post,
    metrics::{
        self, Cadence, Computed, Flows, Handed, JobMetrics, JobShape, Meter, REPORT_BYTES, Traffic,
    },
    scheduler::Priority,
};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

/// Under which workers tell each other.
const NAME: &str = "paceline metrics";

/// Ahead of tensors: a report is as long as a few packets. Behind them it would stand still for as long as a step sends,
/// and be taken for stalled where that is long.
const URGENCY: Priority = -1;

/// See the file's first paragraph.
#[derive(Debug)]
pub(crate) struct Metering {
    meter: Mutex<Meter>,
    carried: Arc<Carried>,
    exchange: Mutex<Exchange>,
    latest: Mutex<Latest>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Latest {
    /// With the view of those who reported.
    metrics: Option<(Arc<JobMetrics>, Arc<View>)>,
    /// Whether there will be no others.
    closed: bool,
}

#[derive(Debug, Default)]
struct Exchange {
    /// In force since the last step began.
    view: Option<Arc<View>>,
    cadence: Cadence,
    underway: Option<Gathering>,
    /// What came from others since this worker last reported.
    flows: Flows,
}

/// Everybody's reports on their way to this worker.
#[derive(Debug)]
struct Gathering {
    handle: Handle,
    /// This worker's own report, and room for all. Vectors, since their memory stays where it is.
    memory: (Vec<u8>, Vec<u8>),
    about: About,
}

/// What this worker knows of the step that a report is about.
#[derive(Debug)]
struct About {
    shape: Option<Arc<JobShape>>,
    /// In force during that step.
    settings: Settings,
    /// Of those who report.
    view: Arc<View>,
}

impl Drop for Gathering {
    fn drop(&mut self) {
        if self.handle.poll().is_none() {
            // A worker that leaves does not wait for it; whoever still drives may write there.
            std::mem::forget(std::mem::take(&mut self.memory));
        }
    }
}

impl Metering {
    /// For the worker, and for its driver.
    pub(crate) fn new(rank: Rank, view: &View) -> (Arc<Metering>, Counting) {
        let carried = Arc::<Carried>::default();
        let counting = Counting::new(Traffic::new(rank, view), carried.clone());
        let metering = Metering {
            meter: Mutex::default(),
            carried,
            exchange: Mutex::default(),
            latest: Mutex::default(),
            changed: Condvar::new(),
        };
        (Arc::new(metering), counting)
    }

    /// The program is about to hand an operation over.
    pub(crate) fn posting(post: &Post, computed: Computed) -> Posting {
        let tensor = Meter::tensor(post, computed);
        Posting { begin: tensor.as_ref().map_or(Time::ZERO, |_| now()), tensor }
    }

    /// It has. The number is for [`Metering::waited`], if it is part of a step.
    pub(crate) fn posted(&self, Posting { tensor, begin }: Posting) -> Option<u32> {
        let number = lock(&self.meter).posted(tensor?, begin, now());
        // Reports that come while a step computes are known before it ends, which in slow jobs is long.
        self.collect(&mut lock(&self.exchange));
        Some(number)
    }

    /// The program waited since `begin`.
    pub(crate) fn waited(&self, tensor: Option<u32>, begin: Time) {
        lock(&self.meter).waited(tensor, begin, now());
    }

    /// A step begins in this view. All workers say so between the same two operations.
    pub(crate) fn begin_step(&self, worker: &Worker, step: u64, view: &Arc<View>) {
        let mut exchange = lock(&self.exchange);
        let before = exchange.view.replace(view.clone());
        let others = before.as_ref().is_some_and(|before| !before.ids().eq(view.ids()));
        {
            let mut meter = lock(&self.meter);
            if others {
                // What steps took with others says nothing of these, and who has just come knows nothing of them: all begin
                // anew, in the same step. Reports under way have come or failed with whoever is gone, and not on all alike.
                *meter = Meter::default();
                (exchange.cadence, exchange.underway, exchange.flows) = Default::default();
            }
            meter.settled(self.carried.idle_since());
            meter.begin_step(step, view.version, now(), self.carried.totals());
        }
        if exchange.cadence.must_hear(step)
            && let Some(gathering) = &exchange.underway
        {
            // Who does not know what was said does not know when to speak next. It was ahead of all that was sent since, so
            // that it is there unless another worker has stopped. Bounded by the settings' timeout.
            let _ = gathering.handle.wait();
        }
        self.collect(&mut exchange);
        if !exchange.cadence.is_due(step) {
            return;
        }
        let (mut report, shape) = {
            let meter = lock(&self.meter);
            (meter.report().unwrap_or_default(), meter.shape().cloned())
        };
        report.metrics.flows = exchange.flows.since(worker.inward(view));
        let report = report.encode();
        let settings = before.as_ref().unwrap_or(view).settings.clone();
        let about = About { shape, settings, view: view.clone() };
        if view.size() > 1 {
            exchange.underway = Some(Gathering::start(worker, report.into(), about));
        } else {
            self.publish(&mut exchange.cadence, &report, &about);
        }
    }

    /// Take everybody's reports, if they have come.
    fn collect(&self, exchange: &mut Exchange) {
        let Some(ended) = exchange.underway.as_ref().and_then(|open| open.handle.poll()) else {
            return;
        };
        let Some(Gathering { memory, about, .. }) = &exchange.underway else { return };
        match ended {
            Ok(()) => self.publish(&mut exchange.cadence, &memory.1, about),
            // It fails where a worker is gone, which those hear who wait for tensors.
            Err(_) => exchange.cadence.hear(None),
        }
        exchange.underway = None;
    }

    fn publish(&self, cadence: &mut Cadence, reports: &[u8], about: &About) {
        let metrics = metrics::agree(reports, about.shape.as_ref(), &about.settings);
        cadence.hear(metrics.as_ref());
        if let Some(metrics) = metrics {
            lock(&self.latest).metrics = Some((Arc::new(metrics), about.view.clone()));
            self.changed.notify_all();
        }
    }

    /// What all workers last saw.
    pub(crate) fn latest(&self) -> Option<Arc<JobMetrics>> {
        lock(&self.latest).metrics.as_ref().map(|(metrics, _)| metrics.clone())
    }

    /// Wait for metrics of a later step than `than`, and the view of those who reported; `None` if there will be none.
    pub(crate) fn later(&self, than: Option<u64>) -> Option<(Arc<JobMetrics>, Arc<View>)> {
        let known = |latest: &Latest| latest.metrics.as_ref().map(|(metrics, _)| metrics.step);
        let waited = self
            .changed
            .wait_while(lock(&self.latest), |latest| !latest.closed && known(latest) <= than);
        let latest = waited.unwrap_or_else(PoisonError::into_inner);
        latest.metrics.clone().filter(|(metrics, _)| !latest.closed && Some(metrics.step) > than)
    }

    /// Nobody drives any more.
    pub(crate) fn close(&self) {
        lock(&self.exchange).underway = None;
        lock(&self.latest).closed = true;
        self.changed.notify_all();
    }
}

/// An operation that is being handed over, and since when.
pub(crate) struct Posting {
    tensor: Option<Handed>,
    begin: Time,
}

/// The clock of all moments here.
pub(crate) fn now() -> Time {
    Time(monotonic_nanoseconds())
}

impl Gathering {
    fn start(worker: &Worker, report: Vec<u8>, about: About) -> Gathering {
        let counts: Arc<[u64]> = vec![REPORT_BYTES as u64; worker.size()].into();
        let operation = Operation::new(NAME, Collective::AllGather { counts }).priority(URGENCY);
        let mut all = vec![0; REPORT_BYTES * worker.size()];
        // SAFETY: a report has the length that the counts say, and `all` has room for one of each worker; both are kept
        // until the operation ended, or for ever.
        let handle = unsafe {
            worker.start_unwatched(operation, Dtype::U8, report.as_ptr(), all.as_mut_ptr())
        };
        Gathering { handle, memory: (report, all), about }
    }
}

impl Worker {
    /// What came from each worker of the view; nothing where another is in force already.
    fn inward(&self, view: &View) -> Vec<(Rank, metrics::Came)> {
        self.with_core(|core| match &core.counting {
            Some(counting) if core.engine.view().ids().eq(view.ids()) => counting.inward(),
            _ => Vec::new(),
        })
    }

    /// What all workers last saw of the job: the same on every worker for the same step. It is a few steps old, and there is
    /// none before the first steps are over, nor where nobody calls `begin_step`.
    pub fn metrics(&self) -> Option<Arc<JobMetrics>> {
        self.metering()?.latest()
    }
}
