//! What the demo knows of its own course: stages, steps, workers, decisions. A fold over reports; times are given, nothing is
//! asked for, and how it is shown is decided elsewhere.

use super::protocol::StepReport;
use crate::bench::statistics::median;
use paceline_job::{ByteSize, Rate, Settings};
use paceline_tune::Candidate;
use serde::Serialize;
use std::collections::VecDeque;

/// Steps that are kept to be drawn.
const DRAWN_STEPS: usize = 200;

/// Steps after a change that do not count: they are partly of before.
const WARM_UP: usize = 3;

/// What the demo goes through.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    FirstCome,
    Scheduled,
    SlowLink,
    Killed,
    Joined,
    Replay,
}

impl Stage {
    pub const ALL: [Stage; 6] = [
        Stage::FirstCome,
        Stage::Scheduled,
        Stage::SlowLink,
        Stage::Killed,
        Stage::Joined,
        Stage::Replay,
    ];

    /// For people.
    pub fn title(self) -> &'static str {
        match self {
            Stage::FirstCome => "first come, first served",
            Stage::Scheduled => "scheduled by layer",
            Stage::SlowLink => "a link slows down, tuner answers",
            Stage::Killed => "a worker is killed",
            Stage::Joined => "a worker joins",
            Stage::Replay => "the recorded run, replayed",
        }
    }

    /// What is done at its beginning.
    pub fn beginning(self) -> &'static str {
        match self {
            Stage::FirstCome => "tensors leave whole, as they come",
            Stage::Scheduled => "in pieces, those that the next step needs first before others",
            Stage::SlowLink => "first the tuner watches, to learn what is usual",
            Stage::Killed => "the same workers, in a second job that may lose and gain some",
            Stage::Joined => "starting another worker",
            Stage::Replay => "the recorded steps, played in virtual time",
        }
    }

    /// Both, with its place among all.
    pub fn announced(self) -> String {
        let place = Stage::ALL.iter().take_while(|other| **other != self).count() + 1;
        format!("[{place}/{}] {}: {}", Stage::ALL.len(), self.title(), self.beginning())
    }
}

/// How fast steps were, in the middle.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Speed {
    /// A step's seconds.
    pub seconds: f64,
    /// Of those, seconds for which the forward pass stood still.
    pub waited: f64,
    /// How many workers there were.
    pub workers: usize,
    /// Images of all workers.
    pub images: u64,
    /// How many steps it is the median of.
    pub steps: usize,
}

impl Speed {
    /// Of all workers together.
    pub fn images_per_second(&self) -> f64 {
        self.images as f64 / self.seconds
    }

    /// For people.
    pub fn text(&self) -> String {
        format!("{:.0} ms a step, {:.0} images/s", 1e3 * self.seconds, self.images_per_second())
    }
}

/// How many times as fast one is as the other; 1 is no difference.
pub fn gain(before: &Speed, after: &Speed) -> f64 {
    after.images_per_second() / before.images_per_second()
}

/// In words: how much faster or slower.
pub fn compared(before: &Speed, after: &Speed) -> String {
    let percent = 100.0 * (gain(before, after) - 1.0);
    match percent.round() {
        0.0 => "as fast".to_string(),
        percent if percent > 0.0 => format!("{percent:.0} % faster"),
        percent => format!("{:.0} % slower", -percent),
    }
}

/// What became of a worker process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Standing {
    /// It is on its way into the job.
    Coming,
    /// It trains; which share of its last step it waited.
    Training(f64),
    /// It was killed.
    Killed,
}

/// See the file's first paragraph. Steps are those of the worker with rank 0.
#[derive(Debug, Default)]
pub struct Course {
    /// Images of one worker in a step.
    batch: u64,
    /// Whose images they are.
    pub of: String,
    /// The stage in progress, and how much of it is over, from 0 to 1.
    pub stage: Option<(Stage, f64)>,
    /// What came of those that are over.
    pub results: Vec<(Stage, String)>,
    /// Steps since [`Course::begin`], with their workers.
    span: Vec<StepReport>,
    /// Seconds of the last steps, and what share of them was waiting.
    pub drawn: VecDeque<(f64, f64)>,
    /// Of the last steps.
    pub losses: VecDeque<f32>,
    /// By the number of the process.
    pub workers: Vec<Standing>,
    /// In force.
    pub settings: Option<Settings>,
    /// What links carry.
    pub rate: Option<Rate>,
    /// What the tuner last said.
    pub tuner: Option<String>,
    /// What happened last.
    pub event: String,
    /// Where a browser sees more.
    pub page: Option<String>,
    /// Of all jobs.
    pub total_steps: u64,
}

impl Course {
    /// Of a job whose workers have so many of these images in a step.
    pub fn new(batch: u64, of: &str) -> Course {
        Course { batch, of: of.to_string(), ..Course::default() }
    }

    /// Steps from now on are a span of their own.
    pub fn begin(&mut self) {
        self.span.clear();
    }

    /// A worker process has made a step. Only those of rank 0 count.
    pub fn see(&mut self, number: usize, step: StepReport) {
        let share = if step.seconds > 0.0 { step.waited / step.seconds } else { 0.0 };
        self.stand(number, Standing::Training(share.clamp(0.0, 1.0)));
        if step.rank != 0 {
            return;
        }
        if let Some(settings) = &step.settings {
            self.settings = Some((**settings).clone());
        }
        self.total_steps += 1;
        keep(&mut self.drawn, (step.seconds, share));
        if step.loss.is_finite() {
            keep(&mut self.losses, step.loss);
        }
        self.span.push(step);
    }

    /// What came of a stage, in place of what was said of it before.
    pub fn result(&mut self, stage: Stage, text: String) {
        self.results.retain(|(other, _)| *other != stage);
        self.results.push((stage, text));
    }

    /// What a worker process is about.
    pub fn stand(&mut self, number: usize, standing: Standing) {
        if self.workers.len() <= number {
            self.workers.resize(number + 1, Standing::Coming);
        }
        self.workers[number] = standing;
    }

    /// How many steps the present span has.
    pub fn steps(&self) -> usize {
        self.span.len()
    }

    /// The steps of this span that count: without the first few, and with the workers that were there last.
    pub fn counted(&self) -> Vec<StepReport> {
        let workers = self.span.last().map(|step| step.workers);
        let counted = self.span.iter().skip(WARM_UP);
        counted.filter(|step| Some(step.workers) == workers).cloned().collect()
    }

    /// How fast the steps of this span are; `None` if none counts.
    pub fn speed(&self) -> Option<Speed> {
        self.speed_of(&self.counted())
    }

    /// How fast steps are that counted, of this span or others.
    pub fn speed_of(&self, counted: &[StepReport]) -> Option<Speed> {
        let workers = counted.last()?.workers;
        let middle =
            |of: fn(&StepReport) -> f64| median(&counted.iter().map(of).collect::<Vec<_>>());
        Some(Speed {
            seconds: middle(|step| step.seconds)?,
            waited: middle(|step| step.waited)?,
            workers,
            images: workers as u64 * self.batch,
            steps: counted.len(),
        })
    }

    /// The longest step of this span.
    pub fn longest(&self) -> f64 {
        self.span.iter().map(|step| step.seconds).fold(0.0, f64::max)
    }

    /// What is in force, for people.
    pub fn in_force_said(&self) -> String {
        let Some(Candidate { strategy, partition, credit }) = self.in_force() else {
            return String::new();
        };
        let pieces = match partition < ByteSize::mib(64) {
            true => format!("in pieces of {partition}"),
            false => "whole tensors".to_string(),
        };
        let flight = match credit < ByteSize::UNLIMITED {
            true => format!("{credit} in flight"),
            false => "any number in flight".to_string(),
        };
        format!("{strategy}, {pieces}, {flight}")
    }

    /// What a tuner may change of what is in force.
    pub fn in_force(&self) -> Option<Candidate> {
        self.settings.as_ref().map(Candidate::of)
    }
}

fn keep<T>(list: &mut VecDeque<T>, item: T) {
    if list.len() == DRAWN_STEPS {
        list.pop_front();
    }
    list.push_back(item);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(rank: u32, seconds: f64, workers: usize) -> StepReport {
        StepReport {
            step: 0,
            seconds,
            waited: seconds / 4.0,
            rank,
            workers,
            images: 128.0,
            loss: 1.0,
            settings: None,
        }
    }

    #[test]
    fn speed_is_the_median_of_what_follows_the_first_steps() {
        let mut course = Course::new(32, "");
        for seconds in [9.0, 9.0, 9.0, 0.1, 0.2, 5.0] {
            course.see(0, step(0, seconds, 4));
            course.see(1, step(1, 7.0, 4));
        }
        let speed = course.speed().unwrap();
        assert_eq!((speed.seconds, speed.workers, speed.steps), (0.2, 4, 3));
        assert_eq!(speed.images_per_second(), 4.0 * 32.0 / 0.2);
        assert_eq!(course.longest(), 9.0);
        course.begin();
        assert!(course.speed().is_none());
    }

    #[test]
    fn speeds_are_compared_by_images_not_by_steps() {
        let speed = |seconds, workers| {
            let images = 32 * workers as u64;
            Speed { seconds, waited: 0.0, workers, images, steps: 9 }
        };
        assert_eq!(compared(&speed(0.2, 4), &speed(0.16, 4)), "25 % faster");
        assert_eq!(compared(&speed(0.1, 4), &speed(0.1, 3)), "25 % slower");
        assert_eq!(compared(&speed(0.1, 4), &speed(0.1001, 4)), "as fast");
    }

    #[test]
    fn steps_with_other_workers_than_the_last_do_not_count() {
        let mut course = Course::default();
        for (seconds, workers) in [(1.0, 4), (1.0, 4), (1.0, 4), (1.0, 4), (2.0, 3), (2.0, 3)] {
            course.see(0, step(0, seconds, workers));
        }
        assert_eq!(course.speed().map(|speed| (speed.seconds, speed.steps)), Some((2.0, 2)));
    }

    #[test]
    fn what_is_drawn_is_bounded() {
        let mut course = Course::default();
        (0..1000).for_each(|_| course.see(0, step(0, 1.0, 4)));
        assert_eq!((course.drawn.len(), course.losses.len()), (DRAWN_STEPS, DRAWN_STEPS));
    }
}
