//! The course of the demo: which stage follows which, what is changed in each and what is measured of it. How processes are
//! started and how it looks is not known here.

use super::{
    course::{Speed, Stage, Standing, compared},
    direction::{A_MOMENT, Demo, Job, LEAST_STEPS, machine},
    learner::{Learner, Precedence},
    outcome::{Outcome, Span},
    prediction::{self, Elsewhere, Prediction},
    protocol::{Order, Report, StepReport, Wish},
    rates,
    worker::RECORDED_STEPS,
};
use anyhow::{Context, Result, bail};
use paceline_job::{ByteSize, Rate, Settings, StrategyChoice};
use paceline_sync::agreement::Limits;
use paceline_tune::Candidate;
use std::time::{Duration, Instant};

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

/// Steps that compute for more seconds make the demo longer than it is meant to be.
const LONG_STEP: f64 = 0.5;

/// By what links slow down.
const SLOWDOWN: f64 = 3.0;

/// Tensors leave whole and as they come: what most frameworks do without being asked for anything else.
fn first_come() -> Settings {
    let strategy = StrategyChoice("ring".to_string());
    Settings { strategy, partition: ByteSize::mib(64), ..Settings::default() }.fifo()
}

/// Tensors leave in pieces, and few of them at a time.
fn scheduled() -> Settings {
    Settings { partition: ByteSize::kib(256), credit: ByteSize::kib(256), ..first_come() }
}

impl Demo<'_> {
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
        let megabytes = gradient_bytes as f64 / 1e6;
        self.say(&format!(
            "a step computes for {computing:.0} ms and shares {megabytes:.1} MB of gradients"
        ))?;
        self.say(&format!("links are paced to {rate}/s in each direction"))?;
        if compute_seconds > LONG_STEP {
            let remedy =
                if cfg!(debug_assertions) { "build it with --release" } else { "try --batch 8" };
            self.show.line(&format!("that is long, and so will be the demo: {remedy}"))?;
        }
        let job = self.meet(None, first_come(), rate)?;
        let mut first_come_steps = self.stage(Stage::FirstCome, FIRST_COME, 1.0)?;
        self.over(Stage::FirstCome, format!("{} so far", self.speed(&first_come_steps)?.text()));

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
        let [first, then] = [first_come_speed, scheduled_speed].map(|speed| 1e3 * speed.seconds);
        // Of all turns, as that of the second stage, which is compared with it.
        self.course.result(Stage::FirstCome, first_come_speed.text());
        let text = format!("{then:.0} ms a step, first come {first:.0}: {faster}");
        self.over(Stage::Scheduled, text);

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

    /// A short time under what is in force now.
    fn turn(&mut self) -> Result<Vec<StepReport>> {
        self.run(self.scaled(TURN), LEAST_STEPS)?;
        Ok(self.course.counted())
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

    /// A link slows down: what steps take before, then, and after the tuner's last word.
    fn slow_link(&mut self, rate: Rate) -> Result<(Span, Span, Option<Span>)> {
        self.begin(Stage::SlowLink, 0.2)?;
        self.show
            .line("  settings are a strategy, the size of pieces and how much is in flight")?;
        self.staff.tell(0, &Order::Tune)?;
        let mut before = self.run_by_settings(Duration::ZERO, WATCHED_STEPS)?;
        self.staff.tell(SLOW_WORKER, &Order::Pace(Some(rate)))?;
        self.go_on_to(1.0);
        self.say(&format!("the link of worker {SLOW_WORKER} is paced to {rate}/s from now on"))?;
        let mut spans = self.run_by_settings(self.scaled(SLOW), LEAST_STEPS)?;
        let watched = before.pop().context("no step was made")?;
        let last = spans.pop().context("no step was made")?;
        Ok(match spans.into_iter().next() {
            Some(slow) if slow.settings != last.settings => (watched, slow, Some(last)),
            // What the tuner tried, if anything, it went back from.
            _ => (watched, last, None),
        })
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
        self.begin(Stage::Joined, 1.0)?;
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
        self.begin(Stage::Replay, 1.0)?;
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
