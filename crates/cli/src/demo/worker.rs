//! A worker of the demo: a process of its own that does what it is ordered and tells what it sees. It trains with the others
//! step by step; workers may be lost, come and go in the middle of it.

use super::{
    images::Data,
    learner::{Learner, Lesson, Precedence, region},
    protocol::{Invitation, Order, Report, StepReport, Wish},
};
use crate::exit;
use anyhow::{Context, Result, bail};
use clap::Args;
use paceline_job::{Rank, Settings, View, WorkerId};
use paceline_learn::nn::right_classes;
use paceline_net::{
    Buffers, JoinConfig, Operation, Pace, Pending, Recording, Secret, TraceConfig, Transport,
    Worker, WorkerConfig, join, monotonic_nanoseconds,
};
use paceline_sync::{
    collective::Collective,
    sampler::{Deal, Position, Sampler, Shuffle},
};
use paceline_tune::{Decision, Logged, Method, Surroundings};
use std::{
    io::{self, BufRead, Write},
    path::PathBuf,
    process::ExitCode,
    sync::{
        Arc,
        mpsc::{Receiver, channel},
    },
    time::Instant,
};

/// The hidden command of one worker.
pub const SUBCOMMAND: &str = "demo-worker";

/// Steps of a trace that count.
pub const RECORDED_STEPS: u64 = 20;

/// Rehearsals. A quarter of them are faster than what counts: what else the machine does should not.
const REHEARSALS: usize = 12;

/// What a search draws, and in which order images come, follows from these.
const TUNING_SEED: u64 = 1;
const SHUFFLING_SEED: u64 = 1;

/// Ahead of all gradients: a few bytes that the next step waits for.
const AT_ONCE: i64 = -1;

/// Images that are judged together.
const JUDGED_AT_ONCE: usize = 100;

#[derive(Clone, Debug, Args)]
pub struct WorkerArgs {
    /// Where images are, if not in the command.
    #[arg(long)]
    data: Option<PathBuf>,
    /// Images of one worker in a step.
    #[arg(long)]
    batch: u64,
}

/// Run the hidden command.
pub fn run(arguments: &WorkerArgs) -> Result<ExitCode> {
    let pace = Pace::default();
    let orders = listen(pace.clone())?;
    let worked = Program::new(arguments, orders, pace).and_then(Program::obey);
    if let Err(error) = &worked {
        say(&Report::Failed(exit::said(error)))?;
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

/// Orders as they come. A pace holds at once, in the middle of a step.
fn listen(pace: Pace) -> Result<Receiver<Order>> {
    let (to, from) = channel();
    let read = move || {
        for line in io::stdin().lock().lines().map_while(Result::ok) {
            let heard = match serde_json::from_str(&line) {
                Ok(Order::Pace(rate)) => {
                    pace.set(rate);
                    continue;
                }
                Ok(order) => to.send(order).is_ok(),
                Err(_) => false,
            };
            if !heard {
                return;
            }
        }
    };
    std::thread::Builder::new().name("orders".to_string()).spawn(read)?;
    Ok(from)
}

fn say(report: &Report) -> Result<()> {
    let mut line = serde_json::to_string(report)?;
    line.push('\n');
    Ok(io::stdout().lock().write_all(line.as_bytes())?)
}

/// What a worker has from job to job.
struct Program {
    data: Data,
    learner: Learner,
    sampler: Sampler,
    orders: Receiver<Order>,
    pace: Pace,
    batch: u64,
}

impl Program {
    fn new(arguments: &WorkerArgs, orders: Receiver<Order>, pace: Pace) -> Result<Program> {
        let data = Data::load(arguments.data.as_deref())?;
        let sampler = Sampler::new(data.train.len() as u64, Shuffle::Seeded(SHUFFLING_SEED));
        say(&Report::Loaded)?;
        let (learner, batch) = (Learner::new(), arguments.batch);
        Ok(Program { data, learner, sampler, orders, pace, batch })
    }

    /// Until there is nothing more to do.
    fn obey(mut self) -> Result<()> {
        // Who orders has gone when orders end.
        while let Ok(order) = self.orders.recv() {
            match order {
                Order::Measure => self.measure()?,
                Order::Join(invitation) => {
                    Job::enter(&mut self, &invitation)?.train()?;
                    say(&Report::Left)?;
                }
                Order::Judge => self.judge()?,
                Order::Quit => return Ok(()),
                // Of a job that is over.
                Order::Pace(_) | Order::Wish(_) | Order::Propose(_) | Order::Tune => {}
            }
        }
        Ok(())
    }

    fn measure(&mut self) -> Result<()> {
        let mut seconds = Vec::new();
        for _ in 0..REHEARSALS {
            let (images, labels) = self.data.train.batch(0..self.batch as usize);
            let begin = Instant::now();
            self.learner.rehearse(images, &labels)?;
            seconds.push(begin.elapsed().as_secs_f64());
        }
        seconds.sort_by(f64::total_cmp);
        say(&Report::Measured { seconds: seconds[REHEARSALS / 4] })
    }

    fn judge(&mut self) -> Result<()> {
        let of = self.data.test.len();
        let mut right = 0;
        for first in (0..of).step_by(JUDGED_AT_ONCE) {
            let (images, labels) = self.data.test.batch(first..(first + JUDGED_AT_ONCE).min(of));
            right += right_classes(&self.learner.output(images), &labels);
        }
        say(&Report::Judged { right, of })
    }
}

/// A job that this worker takes part in.
struct Job<'p> {
    program: &'p mut Program,
    worker: Worker,
    traces: PathBuf,
    step: u64,
    /// Whether this step was begun by entering the job.
    entered: bool,
    /// What this worker was last ordered, and what holds.
    ordered: Wish,
    wish: Wish,
    /// Everybody's sums, on their way.
    exchange: Option<Pending<f32>>,
    /// What this worker adds to them.
    lesson: Option<(Lesson, usize)>,
    /// Means over all workers: images and their loss.
    seen: (f32, f32),
    /// The last deals, with their steps and whom they were for.
    deals: Vec<(u64, Deal, Vec<WorkerId>)>,
    recording: Option<Traced>,
    /// What was last told of them.
    settings: Option<Settings>,
    /// Of the step that is not over yet, and when it began.
    view: Option<Arc<View>>,
    began: u64,
}

/// A recording, and the first step of it that counts.
struct Traced {
    recording: Recording,
    first: u64,
}

impl<'p> Job<'p> {
    /// Join it; if it is running, get what the others have learned.
    fn enter(program: &'p mut Program, invitation: &Invitation) -> Result<Job<'p>> {
        let secret = Secret::from_text(&invitation.secret, "the demo")?;
        let joined = join(JoinConfig {
            rank: invitation.rank.map(Rank),
            host: Some(invitation.host.clone()),
            ..JoinConfig::new(&invitation.coordinator, secret)
        })?;
        let config = WorkerConfig {
            transport: Transport::Tcp,
            pace: Some(program.pace.clone()),
            // Slowness is what the demo is about.
            report: Some(Box::new(|_, _| ())),
            ..WorkerConfig::default()
        };
        let worker = Worker::start(joined, config)?;
        let mut job = Job {
            program,
            worker,
            traces: invitation.traces.clone(),
            step: 0,
            entered: false,
            ordered: Wish::default(),
            wish: Wish::default(),
            exchange: None,
            lesson: None,
            seen: (0.0, f32::NAN),
            deals: Vec::new(),
            recording: None,
            settings: None,
            view: None,
            began: monotonic_nanoseconds(),
        };
        say(&Report::Joined)?;
        if job.worker.is_outside() {
            job.step = job.worker.enter()?.step;
            job.entered = true;
            job.share(false)?;
        }
        Ok(job)
    }

    /// Until all leave.
    fn train(mut self) -> Result<()> {
        loop {
            self.hear()?;
            if self.wish.end {
                self.program.learner.settle()?;
                return self.write_trace();
            }
            self.look_for_orders()?;
            self.end_step()?;
            let view = if self.entered { self.worker.view() } else { self.begin_step()? };
            self.entered = false;
            self.record()?;
            self.tell_others()?;
            self.learn(&view)?;
            self.view = Some(view);
            self.step += 1;
        }
    }

    /// The step before is over where the next begins.
    fn end_step(&mut self) -> Result<()> {
        let now = monotonic_nanoseconds();
        let began = std::mem::replace(&mut self.began, now);
        let Some(view) = self.view.take() else { return Ok(()) };
        let step = self.step - 1;
        if let Some(Traced { recording, first }) = &self.recording
            && (*first..first + RECORDED_STEPS).contains(&step)
        {
            recording.step(step, began, now);
        }
        let settings = (self.settings.as_ref() != Some(&view.settings)).then(|| {
            self.settings = Some(view.settings.clone());
            Box::new(view.settings.clone())
        });
        say(&Report::Step(StepReport {
            step,
            seconds: now.saturating_sub(began) as f64 / 1e9,
            waited: self.program.learner.take_waited(),
            rank: self.worker.rank().0,
            workers: view.size(),
            images: self.seen.0,
            loss: self.seen.1,
            settings,
        }))
    }

    fn begin_step(&mut self) -> Result<Arc<View>> {
        let view = self.worker.begin_step(self.step)?;
        self.take_back();
        if self.worker.has_newcomers() {
            self.program.learner.settle()?;
            self.share(true)?;
        }
        Ok(view)
    }

    /// What all said in the step before.
    fn hear(&mut self) -> Result<()> {
        let Some(exchange) = self.exchange.take() else { return Ok(()) };
        let Buffers::InPlace(sums) = exchange.wait()? else { bail!("started in place") };
        let [loss, _, images, wish] = *sums else { bail!("four sums were started") };
        self.seen = (images, loss / images.max(1.0));
        self.wish = Wish::decode(wish);
        Ok(())
    }

    /// Say what the last step came to, and, if it is ours to say, what is wished.
    fn tell_others(&mut self) -> Result<()> {
        let (loss, right, images) = match self.lesson.take() {
            Some((Lesson { loss, right }, images)) => (loss * images as f32, right, images),
            None => (0.0, 0, 0),
        };
        let leads = self.worker.rank() == Rank(0);
        let wish = if leads { self.ordered.encode() } else { 0.0 };
        let terms = vec![loss, right as f32, images as f32, wish];
        let operation = Operation::new("exchange", Collective::AllReduce { len: 4 });
        let operation = operation.priority(AT_ONCE);
        self.exchange = Some(self.worker.start_with(operation, Buffers::InPlace(terms.into()))?);
        Ok(())
    }

    fn look_for_orders(&mut self) -> Result<()> {
        while let Ok(order) = self.program.orders.try_recv() {
            match order {
                Order::Wish(wish) => self.ordered = wish,
                Order::Propose(settings) => drop(self.worker.propose(settings)?),
                Order::Tune => self.tune()?,
                Order::Quit => bail!("it was ordered to end in the middle of a job"),
                Order::Measure | Order::Join(_) | Order::Judge | Order::Pace(_) => {}
            }
        }
        Ok(())
    }

    fn tune(&self) -> Result<()> {
        let decisions = self.worker.decisions();
        Ok(self.worker.tune(move |view| {
            let tuner = Method::Replay.tuner(&Surroundings::of(view), TUNING_SEED);
            Some(Box::new(Logged::new(tuner, Told { decided: Box::new(decisions.clone()) })))
        })?)
    }

    fn learn(&mut self, view: &View) -> Result<()> {
        let batches = vec![self.program.batch; view.size()];
        let sampler = &mut self.program.sampler;
        let deal = match sampler.deal(&batches)? {
            Some(deal) => deal,
            None => {
                sampler.next_epoch();
                sampler.deal(&batches)?.context("an epoch without images")?
            }
        };
        let samples = deal.of(self.worker.rank().index()).map(|sample| sample as usize);
        let (images, labels) = self.program.data.train.batch(samples);
        self.deals.push((self.step, deal, view.ids().collect()));
        self.deals.retain(|(step, ..)| step + 3 > self.step);
        let precedence =
            if self.wish.in_order { Precedence::ByLayer } else { Precedence::FirstCome };
        let recording = self.recording.as_ref().map(|traced| &traced.recording);
        let learner = &mut self.program.learner;
        let lesson = learner.step(&self.worker, precedence, images, &labels, recording)?;
        self.worker.tell(Some(lesson.loss.into()), Some(labels.len() as u64));
        self.lesson = Some((lesson, labels.len()));
        Ok(())
    }

    /// What lost workers had and nobody trained on is dealt again. Where an epoch has ended meanwhile, it is not: that is the same
    /// for all.
    fn take_back(&mut self) {
        for account in self.worker.take_losses() {
            for (step, deal, ids) in &self.deals {
                for id in account.gone.iter().filter(|id| !account.is_consumed(**id, *step)) {
                    if let Some(rank) = ids.iter().position(|it| it == id) {
                        let _ = self.program.sampler.give_back(deal, &[rank]);
                    }
                }
            }
        }
    }

    /// Those who came get what the others have learned, and where they are in the images.
    fn share(&mut self, has_state: bool) -> Result<()> {
        let Program { learner, sampler, .. } = &mut *self.program;
        let Position { epoch, dealt, returned } = sampler.position().clone();
        let mut head = [epoch, dealt, returned.len() as u64];
        // SAFETY: memory of our own that nobody touches until it returns.
        unsafe { self.worker.share("head", &[region(&mut head)], has_state) }?;
        // More than that cannot come back: a share of each of the last deals.
        if head[2] > 1024 {
            bail!("{} parts of an epoch came back", head[2]);
        }
        let mut ranges: Vec<u64> = returned.iter().flat_map(|it| [it.start, it.end]).collect();
        ranges.resize(2 * head[2] as usize, 0);
        let mut regions = learner.regions();
        regions.push(region(&mut ranges));
        // SAFETY: as above; parameters do not overlap.
        unsafe { self.worker.share("state", &regions, has_state) }?;
        let returned = ranges.chunks(2).map(|pair| pair[0]..pair[1]).collect();
        Ok(sampler.restore(Position { epoch: head[0], dealt: head[1], returned })?)
    }

    /// Begin or end a recording, as is wished. One step before those that count is recorded, and one after.
    fn record(&mut self) -> Result<()> {
        match &self.recording {
            None if self.wish.record => {
                let recording = self.worker.trace(&TraceConfig::new(&self.traces))?;
                recording.switch(true);
                self.recording = Some(Traced { recording, first: self.step + 1 });
            }
            Some(Traced { recording, first }) if self.step == first + RECORDED_STEPS + 1 => {
                recording.finish(self.program.learner.description());
            }
            _ => {}
        }
        Ok(())
    }

    fn write_trace(&mut self) -> Result<()> {
        let Some(Traced { recording, .. }) = self.recording.take() else { return Ok(()) };
        recording.finish(self.program.learner.description());
        if let Some(written) = recording.wait() {
            written?;
        }
        say(&Report::Recorded)
    }
}

/// Where a tuner's decisions go: to whoever started this worker, and to pages.
struct Told {
    decided: Box<dyn Fn(String) + Send>,
}

impl Write for Told {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let decision: Decision = serde_json::from_slice(line)?;
        say(&Report::Decided(Box::new(decision))).map_err(io::Error::other)?;
        (self.decided)(String::from_utf8_lossy(line).trim().to_string());
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
