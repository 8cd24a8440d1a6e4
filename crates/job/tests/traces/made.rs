//! Making traces as PyTorch's profiler writes them. Times are microseconds.

use paceline_job::{
    Rank,
    trace::{
        Kind, Problem, Span, SpanId, Stamp, Trace, WorkerTrace,
        chrome::{Event, Header, Writer},
    },
};

pub const MAIN: i64 = 100;
pub const AUTOGRAD: i64 = 200;
const PROCESS: i64 = 99;

/// The events of one worker.
pub struct Made {
    pub header: Header,
    pub events: Vec<Event>,
}

impl Made {
    pub fn new(rank: u32, world: u32) -> Made {
        Made { header: Header::of_worker(Rank(rank), world), events: Vec::new() }
    }

    fn on_thread(
        &mut self,
        category: &str,
        thread: i64,
        name: &str,
        begin: i64,
        length: u64,
    ) -> &mut Event {
        let external = self.events.len() as i64 + 1;
        let event = Event::complete(name, Stamp(begin * 1000), length * 1000)
            .category(category)
            .on(PROCESS, thread)
            .with("External id", external);
        self.events.push(event);
        self.events.last_mut().expect("one was pushed")
    }

    pub fn operator(&mut self, thread: i64, name: &str, begin: i64, length: u64) -> &mut Event {
        self.on_thread("cpu_op", thread, name, begin, length)
    }

    pub fn annotation(&mut self, thread: i64, name: &str, begin: i64, length: u64) -> &mut Event {
        self.on_thread("user_annotation", thread, name, begin, length)
    }

    pub fn call(&mut self, thread: i64, name: &str, begin: i64, length: u64, id: i64) {
        let event = self.on_thread("cuda_runtime", thread, name, begin, length);
        event.args.insert("correlation".into(), id.into());
    }

    fn on_stream(
        &mut self,
        category: &str,
        stream: i64,
        name: &str,
        begin: i64,
        length: u64,
        id: i64,
    ) -> &mut Event {
        let event = Event::complete(name, Stamp(begin * 1000), length * 1000)
            .category(category)
            .on(0, stream)
            .with("device", 0)
            .with("stream", stream)
            .with("correlation", id)
            .with("External id", 100_000 + id);
        self.events.push(event);
        self.events.last_mut().expect("one was pushed")
    }

    pub fn kernel(
        &mut self,
        stream: i64,
        name: &str,
        begin: i64,
        length: u64,
        id: i64,
    ) -> &mut Event {
        self.on_stream("kernel", stream, name, begin, length, id)
    }

    pub fn copy(&mut self, stream: i64, name: &str, begin: i64, length: u64, id: i64) {
        self.on_stream("gpu_memcpy", stream, name, begin, length, id);
    }

    pub fn sync(&mut self, stream: i64, begin: i64, id: i64) -> &mut Event {
        self.on_stream("cuda_sync", stream, "Sync", begin, 1, id)
    }

    /// The bytes of the file.
    pub fn bytes(&self) -> Vec<u8> {
        let mut writer = Writer::new(Vec::new(), &self.header).expect("memory can be written");
        for event in &self.events {
            writer.write(event).expect("memory can be written");
        }
        writer.finish().expect("memory can be written")
    }

    /// Read again.
    pub fn read(&self) -> (WorkerTrace, Vec<Problem>) {
        let trace = Trace::read_bytes("trace.json.gz", self.bytes()).expect("it holds spans");
        (trace.workers[0].clone(), trace.problems)
    }

    /// A worker of data-parallel training for some steps of 1000 microseconds: forward on the main thread, backward on
    /// autograd's, a bucket reduced on a stream of its own, an update that waits for it.
    pub fn training(rank: u32, world: u32, steps: i64) -> Made {
        let mut made = Made::new(rank, world);
        for step in 0..steps {
            let at = |offset: i64| step * 1000 + offset;
            let id = |number: i64| step * 100 + number;
            made.annotation(MAIN, &format!("ProfilerStep#{step}"), at(0), 990);
            made.operator(MAIN, "aten::linear", at(10), 50)
                .args
                .insert("Sequence number".into(), step.into());
            made.call(MAIN, "cudaLaunchKernel", at(20), 10, id(1));
            made.kernel(7, "gemm", at(40), 100, id(1));
            made.operator(
                AUTOGRAD,
                "autograd::engine::evaluate_function: LinearBackward",
                at(100),
                200,
            );
            made.call(AUTOGRAD, "cudaLaunchKernel", at(110), 10, id(2));
            made.kernel(7, "gemm_backward", at(150), 200, id(2));
            made.operator(AUTOGRAD, "record_param_comms", at(250), 40);
            made.call(AUTOGRAD, "cudaEventRecord", at(251), 1, id(3));
            made.call(AUTOGRAD, "cudaStreamWaitEvent", at(252), 1, id(4));
            made.call(AUTOGRAD, "cudaLaunchKernel", at(255), 10, id(5));
            let reduce =
                made.kernel(40, "ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", at(360), 300, id(5));
            for (key, value) in
                [("Collective name", "allreduce"), ("dtype", "Float"), ("Process Group Name", "0")]
            {
                reduce.args.insert(key.into(), value.into());
            }
            reduce.args.insert("In msg nelems".into(), 1000.into());
            reduce.args.insert("Group size".into(), world.into());
            made.annotation(MAIN, "Optimizer.step#SGD.step", at(320), 100);
            made.call(MAIN, "cudaStreamWaitEvent", at(325), 1, id(6));
            made.operator(MAIN, "aten::add_", at(330), 50);
            made.call(MAIN, "cudaLaunchKernel", at(340), 10, id(7));
            made.kernel(7, "update", at(665), 50, id(7));
            made.call(MAIN, "cudaDeviceSynchronize", at(430), 300, id(8));
        }
        made
    }
}

/// The only span with this name that begins at or after a time.
pub fn span<'a>(worker: &'a WorkerTrace, name: &str, from: i64) -> (SpanId, &'a Span) {
    let mut found = worker.spans.iter().enumerate();
    let (at, span) = found
        .find(|(_, span)| &*span.name == name && span.begin >= Stamp(from * 1000))
        .unwrap_or_else(|| panic!("no span {name}"));
    (SpanId(at as u32), span)
}

/// What a span waited for, by name.
pub fn after<'a>(worker: &'a WorkerTrace, span: &Span) -> Vec<&'a str> {
    span.after.iter().map(|id| &*worker.spans[id.0 as usize].name).collect()
}

pub fn count(worker: &WorkerTrace, is: impl Fn(&Kind) -> bool) -> usize {
    worker.spans.iter().filter(|span| is(&span.kind)).count()
}

#[track_caller]
pub fn reported(problems: &[Problem], part: &str, times: u64) {
    let found = problems.iter().find(|problem| problem.text.contains(part));
    assert_eq!(found.map(|problem| problem.times), Some(times), "{part}: {problems:#?}");
}
