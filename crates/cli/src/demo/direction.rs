//! How the demo's stages are directed: what workers are told, how long they train, what is heard and shown meanwhile. Which stage
//! follows which, and what is measured of it, is said in `stages.rs`.

use super::{
    course::{Course, Speed, Stage, Standing},
    outcome::Span,
    protocol::{Invitation, Order, Report, StepReport, Wish},
    show::Show,
    staff::Staff,
    stages::{USUAL_SECONDS, WORKERS},
};
use crate::{
    bench::{interrupt::Interrupt, statistics::median},
    ui::{self, Feed, Page, record::What},
};
use anyhow::{Context, Result, bail};
use paceline_job::{Rate, Settings};
use paceline_net::{Coordinator, CoordinatorConfig, Log, Secret};
use paceline_sync::agreement::Limits;
use paceline_tune::{Candidate, Decision};
use std::{
    net::{Ipv4Addr, SocketAddr},
    ops::Range,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

/// A stage has so many steps at least, however short it is to be.
pub(super) const LEAST_STEPS: usize = 8;

/// What waits may take for something that takes a moment.
pub(super) const A_MOMENT: Duration = Duration::from_secs(100);

/// A view is drawn so often at least, and a wait lasts so long at least.
const SOON: Duration = Duration::from_millis(100);
const AT_LEAST: Duration = Duration::from_millis(5);

/// What the stages are run with.
pub struct Conditions {
    /// Whose images they are, for people.
    pub of: String,
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

/// The demo while it runs.
pub struct Demo<'s> {
    pub(super) conditions: Conditions,
    pub(super) staff: Staff,
    pub(super) show: &'s mut Show,
    pub(super) course: Course,
    pub(super) interrupt: Interrupt,
    pub(super) wish: Wish,
    pub(super) decisions: Vec<Decision>,
    /// Where pages hear of it, if there are any.
    feed: Option<Arc<Feed>>,
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
            course: Course::new(conditions.batch, &conditions.of),
            conditions,
            show,
            interrupt,
            wish: Wish::default(),
            decisions: Vec::new(),
            feed: None,
            part: 0.0..1.0,
        }
    }

    /// Tell this page, too.
    pub fn shown_on(mut self, page: Option<&Page>) -> Result<Demo<'s>> {
        if let Some(page) = page {
            self.feed = Some(page.feed.clone());
            page.feed.begin(described("workers start".to_string(), None));
            if let Some(link) = &page.link {
                self.show.line(&format!("page at {link}"))?;
                self.course.page = Some(link.clone());
            }
        }
        Ok(self)
    }

    fn note(&self, text: &str) {
        if let Some(feed) = &self.feed {
            feed.add(What::Note { text: text.to_string() });
        }
    }

    /// Start all workers, and see what computing takes them while all of them compute.
    pub(super) fn gather(&mut self) -> Result<f64> {
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
    pub(super) fn meet(
        &mut self,
        elastic: Option<Limits>,
        settings: Settings,
        rate: Rate,
    ) -> Result<Job> {
        if let Some(feed) = &self.feed {
            let (program, tuning) = match elastic {
                None => ("first job: scheduled, slowed down, tuned, recorded", Some("replay")),
                Some(_) => ("second job: workers come and go", None),
            };
            feed.begin(described(program.to_string(), tuning.map(str::to_string)));
        }
        let secret = Secret::random()?;
        let listen = SocketAddr::from((Ipv4Addr::LOCALHOST, self.conditions.port));
        let coordinator = Coordinator::start(CoordinatorConfig {
            settings,
            log: Log::silent(),
            elastic,
            quiet: true,
            observer: self.feed.as_ref().map(|feed| feed.observer()),
            ..CoordinatorConfig::new(listen, WORKERS, secret.clone())
        })?;
        let coordinator = Arc::new(coordinator);
        if let Some(feed) = &self.feed {
            feed.attend(&coordinator)?;
        }
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
    pub(super) fn leave(&mut self, job: Job) -> Result<()> {
        self.wish(Wish { end: true, ..self.wish })?;
        self.all_say(|report| matches!(report, Report::Left).then_some(()))?;
        job.end();
        Ok(())
    }

    pub(super) fn wish(&mut self, wish: Wish) -> Result<()> {
        self.wish = wish;
        self.staff.tell_all(&Order::Wish(wish))
    }

    fn pace(&mut self, rate: Rate) -> Result<()> {
        self.course.rate = Some(rate);
        self.staff.tell_all(&Order::Pace(Some(rate)))
    }

    /// A stage from its beginning until so much of it is over: the steps that count.
    pub(super) fn stage(
        &mut self,
        stage: Stage,
        seconds: f64,
        until: f64,
    ) -> Result<Vec<StepReport>> {
        self.begin(stage, until)?;
        self.run(self.scaled(seconds), LEAST_STEPS)?;
        Ok(self.course.counted())
    }

    pub(super) fn speed(&self, steps: &[StepReport]) -> Result<Speed> {
        self.course.speed_of(steps).context("no step was made")
    }

    /// A stage begins, of which what follows next is so much.
    pub(super) fn begin(&mut self, stage: Stage, until: f64) -> Result<()> {
        self.course.stage = Some((stage, 0.0));
        self.part = 0.0..until;
        self.course.event = stage.beginning().to_string();
        self.note(&stage.announced());
        self.show.line(&stage.announced())?;
        self.show.refresh(&self.course)
    }

    /// What follows next is more of the stage.
    pub(super) fn go_on_to(&mut self, until: f64) {
        self.part = self.part.end..until;
    }

    /// Let workers train for so long, and for so many steps at least. What is seen begins anew.
    pub(super) fn run(&mut self, time: Duration, steps: usize) -> Result<()> {
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
    pub(super) fn hear(&mut self, until: Instant) -> Result<Option<(usize, Report)>> {
        self.show.refresh(&self.course)?;
        let now = Instant::now();
        let heard = self.staff.next(until.clamp(now + AT_LEAST, now + SOON))?;
        match heard {
            Some((number, Report::Step(step))) => {
                self.course.see(number, step.clone());
                Ok(Some((number, Report::Step(step))))
            }
            // A thought that was begun in a job that is over changes nothing any more.
            Some((_, Report::Decided(_))) if !self.is_tuned() => Ok(None),
            Some((_, Report::Decided(decision))) => {
                self.course.tuner = Some(decision.to_string());
                self.show.line(&format!("tuner: {decision}"))?;
                self.decisions.push(*decision);
                Ok(None)
            }
            other => Ok(other),
        }
    }

    fn is_tuned(&self) -> bool {
        matches!(self.course.stage, Some((Stage::SlowLink, _)))
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

    /// Let workers train as [`Demo::run`] does; how fast they are under each of the settings that come into force, the last of
    /// which has so many steps at least.
    pub(super) fn run_by_settings(&mut self, time: Duration, steps: usize) -> Result<Vec<Span>> {
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

    pub(super) fn over(&mut self, stage: Stage, result: String) {
        self.course.result(stage, result.clone());
        self.note(&format!("{}: {result}", stage.title()));
        // A line that cannot be shown shows at the next.
        let _ = self.show.line(&format!("  {result}"));
    }

    pub(super) fn say(&mut self, text: &str) -> Result<()> {
        self.course.event = text.to_string();
        self.note(text);
        self.show.line(text)?;
        self.show.refresh(&self.course)
    }

    pub(super) fn scaled(&self, seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds * self.conditions.seconds / USUAL_SECONDS as f64)
    }
}

/// A job while it runs.
pub(super) struct Job {
    coordinator: Arc<Coordinator>,
    secret: Secret,
}

/// What a page is told of a job before it runs.
fn described(program: String, tuning: Option<String>) -> ui::record::Job {
    ui::record::Job { name: "demo".to_string(), program, tuning, ..ui::record::Job::default() }
}

impl Job {
    /// Its port is free when this returns: whoever looks at who is there does so for a moment only.
    fn end(self) {
        let begin = Instant::now();
        while Arc::strong_count(&self.coordinator) > 1 && begin.elapsed() < A_MOMENT {
            std::thread::sleep(AT_LEAST);
        }
    }

    pub(super) fn invitation(&self, number: usize, rank: Option<u32>, traces: &Path) -> Invitation {
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
pub(super) fn machine(number: usize) -> String {
    format!("machine-{number}")
}
