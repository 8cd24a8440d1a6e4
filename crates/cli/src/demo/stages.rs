//! The course of the demo: which stage follows which, what is changed in each and what is measured of it. How processes are
//! started and how it looks is not known here.

use super::{
    course::{Course, Speed, Stage, Standing, compared},
    learner::{Learner, Precedence},
    outcome::{Outcome, Span},
    prediction::{self, Elsewhere, Prediction},
    protocol::{Invitation, Order, Report, StepReport, Wish},
    rates,
    show::Show,
    staff::Staff,
    worker::RECORDED_STEPS,
};
use crate::bench::{interrupt::Interrupt, statistics::median};
use anyhow::{Context, Result, bail};
use paceline_job::{ByteSize, Rate, Settings, StrategyChoice};
use paceline_net::{Coordinator, CoordinatorConfig, Log, Secret};
use paceline_sync::agreement::Limits;
use paceline_tune::{Candidate, Decision};
use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// Workers of the jobs.
pub const WORKERS: usize = 4;

/// The number of the one whose link slows down, and who is killed later.
const SLOW_WORKER: usize = WORKERS - 1;

/// What the whole takes, if it is not said otherwise.
pub const USUAL_SECONDS: u64 = 110;

/// Seconds of stages, of the usual whole.
const FIRST_COME: f64 = 9.0;
const SCHEDULED: f64 = 8.0;
const TURN: f64 = 4.0;
const SLOW: f64 = 32.0;
const WHOLE: f64 = 8.0;
const WITHOUT: f64 = 10.0;
const TOGETHER: f64 = 12.0;

/// How often first come and scheduled are measured again, by turns.
const TURNS: usize = 2;

/// A tuner learns in so many steps what is usual.
const WATCHED_STEPS: usize = 24;

/// A stage has so many steps at least, however short it is to be.
const LEAST_STEPS: usize = 8;

/// What waits may take for something that takes a moment.
const A_MOMENT: Duration = Duration::from_secs(100);

/// By what links slow down.
const SLOWDOWN: f64 = 3.0;

/// What the stages are run with.
pub struct Conditions {
    /// What links carry; what suits the machine if `None`.
    pub rate: Option<Rate>,
    /// What all stages together are to take.
    pub seconds: f64,
    /// Images of one worker in a step.
    pub batch: u64,
    /// Where the coordinator listens; anywhere if 0.
    pub port: u16,
    /// Where traces go.
    pub traces: PathBuf,
}

/// Tensors leave whole and as they come: what most frameworks do without being asked for anything else.
fn first_come() -> Settings {
    let strategy = StrategyChoice("ring".to_string());
    Settings { strategy, partition: ByteSize::mib(64), ..Settings::default() }.fifo()
}

/// Tensors leave in pieces, and few of them at a time.
fn scheduled() -> Settings {
    Settings { partition: ByteSize::kib(256), credit: ByteSize::kib(256), ..first_come() }
}

/// The demo while it runs.
pub struct Demo<'s> {
    conditions: Conditions,
    staff: Staff,
    show: &'s mut Show,
    course: Course,
    interrupt: Interrupt,
    wish: Wish,
    decisions: Vec<Decision>,
    /// Which part of the stage is in progress.
    part: Range<f64>,
}

impl<'s> Demo<'s> {
    /// Nothing is started yet.
    pub fn new(
        conditions: Conditions,
        data: Option<&Path>,
        show: &'s mut Show,
        interrupt: Interrupt,
    ) -> Demo<'s> {
        Demo {
            staff: Staff::new(interrupt.clone(), conditions.batch, data),
            course: Course::new(conditions.batch),
            conditions,
            show,
            interrupt,
            wish: Wish::default(),
            decisions: Vec::new(),
            part: 0.0..1.0,
        }
    }

    /// All stages.
    pub fn play(mut self) -> Result<Outcome> {
        let compute_seconds = self.gather()?;
        let gradient_bytes = Learner::gradient_bytes();
        let rate = self
            .conditions
            .rate
            .unwrap_or_else(|| rates::suitable(WORKERS, gradient_bytes, compute_seconds));
        let slow_rate = rates::spoken(rate.scaled(1.0 / SLOWDOWN));
        let computing = 1e3 * compute_seconds;
        self.say(&format!("a step computes for {computing:.0} ms; links carry {rate} each way"))?;
        let job = self.meet(None, first_come(), rate)?;
        let mut first_come_steps = self.stage(Stage::FirstCome, FIRST_COME, 1.0)?;
        self.over(Stage::FirstCome, self.speed(&first_come_steps)?.text());

        self.schedule(Precedence::ByLayer)?;
        let mut scheduled_steps = self.stage(Stage::Scheduled, SCHEDULED, 0.3)?;
        self.say("both again, by turns: no machine is equally fast all the time")?;
        for turn in 1..=TURNS {
            self.go_on_to(0.3 + 0.5 * turn as f64 / TURNS as f64);
            self.schedule(Precedence::FirstCome)?;
            first_come_steps.extend(self.turn()?);
            self.schedule(Precedence::ByLayer)?;
            scheduled_steps.extend(self.turn()?);
        }
        self.go_on_to(1.0);
        self.wish(Wish { record: true, ..self.wish })?;
        self.say("recording a trace of the next steps")?;
        self.run(Duration::ZERO, RECORDED_STEPS as usize + 6)?;
        let first_come_speed = self.speed(&first_come_steps)?;
        let scheduled_speed = self.speed(&scheduled_steps)?;
        let faster = compared(&first_come_speed, &scheduled_speed);
        self.over(Stage::Scheduled, format!("{}, {faster}", scheduled_speed.text()));

        let (watched, slow, tuned) = self.slow_link(slow_rate)?;
        let text = match &tuned {
            Some(Span { speed, .. }) => {
                let faster = compared(&slow.speed, speed);
                let [slow, tuned] = [slow.speed, *speed].map(|speed| 1e3 * speed.seconds);
                format!("{slow:.0} ms a step, tuned {tuned:.0} ({faster})")
            }
            None => format!("{}, settings kept", slow.speed.text()),
        };
        self.over(Stage::SlowLink, text);
        self.leave(job)?;

        let job = self.meet(Some(Limits::default()), scheduled(), rate)?;
        self.wish(Wish { in_order: true, ..Wish::default() })?;
        let whole = self.stage(Stage::Killed, WHOLE, 0.4)?;
        let whole = self.speed(&whole)?;
        let (without, longest_seconds) = self.kill_one()?;
        let images = without.images_per_second();
        let text = format!("{images:.0} images/s, longest step {longest_seconds:.2} s");
        self.over(Stage::Killed, text);
        let (together, joining_seconds, longest_joining_seconds) = self.add_one(&job)?;
        let images = together.images_per_second();
        let text = format!("{images:.0} images/s, in after {joining_seconds:.1} s");
        self.over(Stage::Joined, text);
        self.leave(job)?;
        let (right, judged) = self.judge()?;
        self.staff.dismiss()?;

        let stages = elsewhere(&first_come_speed, &slow, tuned.as_ref(), slow_rate);
        let (recorded, predictions) = self.predict(stages)?;
        let [predicted_first_come, predicted_slow, ..] = predictions[..] else {
            bail!("two stages were asked about")
        };
        Ok(Outcome {
            compute_seconds,
            gradient_bytes,
            rate,
            slow_rate,
            first_come: first_come_speed,
            scheduled: scheduled_speed,
            watched,
            slow,
            tuned,
            decisions: self.decisions,
            whole,
            without,
            longest_seconds,
            together,
            joining_seconds,
            longest_joining_seconds,
            recorded,
            predicted_first_come,
            predicted_slow,
            predicted_tuned: predictions.get(2).copied(),
            right,
            judged,
            steps: self.course.total_steps,
        })
    }

    /// Start all workers, and see what computing takes them while all of them compute.
    fn gather(&mut self) -> Result<f64> {
        self.say("starting 4 workers")?;
        for _ in 0..WORKERS {
            let number = self.staff.hire()?;
            self.course.stand(number, Standing::Coming);
        }
        self.all_say(|report| matches!(report, Report::Loaded).then_some(()))?;
        self.staff.tell_all(&Order::Measure)?;
        let seconds = self.all_say(|report| match report {
            Report::Measured { seconds } => Some(*seconds),
            _ => None,
        })?;
        median(&seconds).context("nobody computed")
    }

    /// A coordinator, and all workers with it.
    fn meet(&mut self, elastic: Option<Limits>, settings: Settings, rate: Rate) -> Result<Job> {
        let secret = Secret::random()?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, self.conditions.port));
        let coordinator = Coordinator::start(CoordinatorConfig {
            settings,
            log: Log::silent(),
            elastic,
            quiet: true,
            ..CoordinatorConfig::new(listen, WORKERS, secret.clone())
        })?;
        let job = Job { coordinator, secret };
        self.pace(rate)?;
        self.wish = Wish::default();
        for number in self.staff.present() {
            let invitation = job.invitation(number, Some(number as u32), &self.conditions.traces);
            self.staff.tell(number, &Order::Join(invitation))?;
        }
        self.all_say(|report| matches!(report, Report::Joined).then_some(()))?;
        Ok(job)
    }

    /// All leave at one step, with equal parameters.
    fn leave(&mut self, job: Job) -> Result<()> {
        self.wish(Wish { end: true, ..self.wish })?;
        self.all_say(|report| matches!(report, Report::Left).then_some(()))?;
        drop(job);
        Ok(())
    }

    fn wish(&mut self, wish: Wish) -> Result<()> {
        self.wish = wish;
        self.staff.tell_all(&Order::Wish(wish))
    }

    fn pace(&mut self, rate: Rate) -> Result<()> {
        self.course.rate = Some(rate);
        self.staff.tell_all(&Order::Pace(Some(rate)))
    }

    /// A stage from its beginning until so much of it is over: the steps that count.
    fn stage(&mut self, stage: Stage, seconds: f64, until: f64) -> Result<Vec<StepReport>> {
        self.begin(stage, until);
        self.say(stage.beginning())?;
        self.run(self.scaled(seconds), LEAST_STEPS)?;
        Ok(self.course.counted())
    }

    /// A short time under what is in force now.
    fn turn(&mut self) -> Result<Vec<StepReport>> {
        self.run(self.scaled(TURN), LEAST_STEPS)?;
        Ok(self.course.counted())
    }

    fn speed(&self, steps: &[StepReport]) -> Result<Speed> {
        self.course.speed_of(steps).context("no step was made")
    }

    /// A stage begins, of which what follows next is so much.
    fn begin(&mut self, stage: Stage, until: f64) {
        self.course.stage = Some((stage, 0.0));
        self.part = 0.0..until;
    }

    /// What follows next is more of the stage.
    fn go_on_to(&mut self, until: f64) {
        self.part = self.part.end..until;
    }

    /// Let tensors leave in this order from now on; returns when all workers do so.
    fn schedule(&mut self, precedence: Precedence) -> Result<()> {
        let in_order = precedence == Precedence::ByLayer;
        let settings = if in_order { scheduled() } else { first_come() };
        self.wish(Wish { in_order, ..self.wish })?;
        self.staff.tell(0, &Order::Propose(settings.clone()))?;
        let (wanted, deadline) = (Candidate::of(&settings), Instant::now() + A_MOMENT);
        while self.course.in_force() != Some(wanted.clone()) {
            if Instant::now() >= deadline {
                bail!("{wanted} does not come into force");
            }
            self.hear(deadline)?;
        }
        Ok(())
    }

    /// Let workers train for so long, and for so many steps at least. What is seen begins anew.
    fn run(&mut self, time: Duration, steps: usize) -> Result<()> {
        self.course.begin();
        let begin = Instant::now();
        while begin.elapsed() < time || self.course.steps() < steps {
            self.progress(begin.elapsed(), time, steps);
            self.hear(begin + time)?;
        }
        Ok(())
    }

    /// Both the time and the steps must be over.
    fn progress(&mut self, elapsed: Duration, time: Duration, steps: usize) {
        let of_time = elapsed.as_secs_f64() / time.as_secs_f64().max(1e-9);
        let of_steps = self.course.steps() as f64 / steps.max(1) as f64;
        let share = of_time.min(of_steps).min(1.0);
        if let Some((_, shown)) = &mut self.course.stage {
            // It does not go back where steps are counted anew.
            let now = self.part.start + (self.part.end - self.part.start) * share;
            *shown = shown.max(now);
        }
    }

    /// The next report, if there is one soon.
    fn hear(&mut self, until: Instant) -> Result<Option<(usize, Report)>> {
        self.show.refresh(&self.course)?;
        let soon = Instant::now() + Duration::from_millis(100);
        let heard =
            self.staff.next(until.min(soon).max(Instant::now() + Duration::from_millis(5)))?;
        match heard {
            Some((number, Report::Step(step))) => {
                self.course.see(number, step.clone());
                Ok(Some((number, Report::Step(step))))
            }
            Some((_, Report::Decided(decision))) => {
                self.course.tuner = Some(decision.to_string());
                self.show.line(&format!("tuner: {decision}"))?;
                self.decisions.push(*decision);
                Ok(None)
            }
            other => Ok(other),
        }
    }

    /// Wait until all who are there have said something.
    fn all_say<T>(&mut self, wanted: impl Fn(&Report) -> Option<T>) -> Result<Vec<T>> {
        let deadline = Instant::now() + A_MOMENT;
        let mut missing = self.staff.present();
        let mut said = Vec::new();
        while !missing.is_empty() {
            if Instant::now() >= deadline {
                bail!("workers {missing:?} do not answer");
            }
            if let Some((number, report)) = self.hear(deadline)?
                && let Some(answer) = wanted(&report)
            {
                missing.retain(|one| *one != number);
                said.push(answer);
            }
        }
        Ok(said)
    }

    /// A link slows down: what steps take before, then, and after the tuner's last word.
    fn slow_link(&mut self, rate: Rate) -> Result<(Span, Span, Option<Span>)> {
        self.begin(Stage::SlowLink, 0.2);
        self.staff.tell(0, &Order::Tune)?;
        self.say(Stage::SlowLink.beginning())?;
        let watched = self.run_by_settings(Duration::ZERO, WATCHED_STEPS)?;
        self.staff.tell(SLOW_WORKER, &Order::Pace(Some(rate)))?;
        self.go_on_to(1.0);
        self.say(&format!("the link of worker {SLOW_WORKER} carries {rate} from now on"))?;
        let mut spans = self.run_by_settings(self.scaled(SLOW), LEAST_STEPS)?;
        let last = |spans: &mut Vec<Span>| spans.pop().context("no step was made");
        let watched = last(&mut { watched })?;
        let tuned = last(&mut spans)?;
        Ok(match spans.into_iter().next() {
            Some(slow) => (watched, slow, Some(tuned)),
            None => (watched, tuned, None),
        })
    }

    /// Let workers train as [`Demo::run`] does; how fast they are under each of the settings that come into force, the last of
    /// which has so many steps at least.
    fn run_by_settings(&mut self, time: Duration, steps: usize) -> Result<Vec<Span>> {
        let mut spans = Vec::new();
        self.course.begin();
        let begin = Instant::now();
        let mut in_force = self.course.in_force();
        while begin.elapsed() < time || self.course.steps() < steps {
            self.progress(begin.elapsed(), time, steps);
            self.hear(begin + time)?;
            let now = self.course.in_force();
            if now != in_force {
                spans.extend(self.span(in_force));
                in_force = now;
                self.course.begin();
            }
        }
        spans.extend(self.span(in_force));
        Ok(spans)
    }

    fn span(&self, settings: Option<Candidate>) -> Option<Span> {
        Some(Span { settings: settings?, speed: self.course.speed()? })
    }

    fn kill_one(&mut self) -> Result<(Speed, f64)> {
        let victim = SLOW_WORKER;
        let pid = self.staff.pid(victim).unwrap_or_default();
        self.say(&format!("killing worker {victim} (process {pid})"))?;
        self.staff.kill(victim);
        self.go_on_to(1.0);
        self.course.stand(victim, Standing::Killed);
        self.run(self.scaled(WITHOUT), LEAST_STEPS)?;
        Ok((self.course.speed().context("no step was made")?, self.course.longest()))
    }

    fn add_one(&mut self, job: &Job) -> Result<(Speed, f64, f64)> {
        self.begin(Stage::Joined, 1.0);
        self.say(Stage::Joined.beginning())?;
        self.course.begin();
        let begin = Instant::now();
        let newcomer = self.staff.hire()?;
        self.course.stand(newcomer, Standing::Coming);
        let deadline = begin + A_MOMENT;
        loop {
            if Instant::now() >= deadline {
                bail!("the new worker does not come into the job");
            }
            match self.hear(deadline)? {
                Some((number, Report::Loaded)) if number == newcomer => {
                    self.staff.tell(newcomer, &Order::Pace(self.course.rate))?;
                    let invitation = job.invitation(newcomer, None, &self.conditions.traces);
                    self.staff.tell(newcomer, &Order::Join(invitation))?;
                    self.staff.tell(newcomer, &Order::Wish(self.wish))?;
                }
                Some((number, Report::Step(_))) if number == newcomer => break,
                _ => {}
            }
        }
        let (joining, longest) = (begin.elapsed().as_secs_f64(), self.course.longest());
        self.run(self.scaled(TOGETHER), LEAST_STEPS)?;
        Ok((self.course.speed().context("no step was made")?, joining, longest))
    }

    fn judge(&mut self) -> Result<(usize, usize)> {
        self.begin(Stage::Replay, 1.0);
        self.say("judging images that nobody trained on")?;
        self.staff.tell(0, &Order::Judge)?;
        let deadline = Instant::now() + A_MOMENT;
        while Instant::now() < deadline {
            if let Some((_, Report::Judged { right, of })) = self.hear(deadline)? {
                return Ok((right, of));
            }
        }
        bail!("worker 0 does not answer")
    }

    /// On a thread of its own, so that the user can leave meanwhile.
    fn predict(&mut self, stages: Vec<Elsewhere>) -> Result<(Prediction, Vec<Prediction>)> {
        self.say(Stage::Replay.beginning())?;
        let traces = self.conditions.traces.clone();
        let predicting = std::thread::Builder::new()
            .name("replay".to_string())
            .spawn(move || prediction::predict(&traces, &stages))?;
        while !predicting.is_finished() {
            self.interrupt.check()?;
            self.show.refresh(&self.course)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        let (recorded, others) = predicting.join().ok().context("the replay failed")??;
        let Prediction { predicted_ms, measured_ms } = recorded;
        let text = format!("{predicted_ms:.0} ms a step predicted, {measured_ms:.0} measured");
        self.over(Stage::Replay, text);
        self.show.refresh(&self.course)?;
        Ok((recorded, others))
    }

    fn over(&mut self, stage: Stage, result: String) {
        self.course.results.push((stage, result.clone()));
        // A line that cannot be shown shows at the next.
        let _ = self.show.line(&format!("  {result}"));
    }

    fn say(&mut self, text: &str) -> Result<()> {
        self.course.event = text.to_string();
        self.show.line(text)?;
        self.show.refresh(&self.course)
    }

    fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds * self.conditions.seconds / USUAL_SECONDS as f64)
    }
}

/// A job while it runs.
struct Job {
    coordinator: Coordinator,
    secret: Secret,
}

impl Job {
    fn invitation(&self, number: usize, rank: Option<u32>, traces: &Path) -> Invitation {
        Invitation {
            coordinator: self.coordinator.address().to_string(),
            secret: self.secret.to_hex(),
            rank,
            host: machine(number),
            traces: traces.to_path_buf(),
        }
    }
}

/// The machine that a worker stands for.
fn machine(number: usize) -> String {
    format!("machine-{number}")
}

/// What was measured under other conditions than the recorded steps.
fn elsewhere(first: &Speed, slow: &Span, tuned: Option<&Span>, rate: Rate) -> Vec<Elsewhere> {
    let first = Elsewhere {
        settings: Candidate::of(&first_come()),
        first_come: true,
        slow: None,
        measured_ms: 1e3 * first.seconds,
    };
    let spans = [Some(slow), tuned].into_iter().flatten().map(|span| Elsewhere {
        settings: span.settings.clone(),
        first_come: false,
        slow: Some((machine(SLOW_WORKER), rate)),
        measured_ms: 1e3 * span.speed.seconds,
    });
    std::iter::once(first).chain(spans).collect()
}
