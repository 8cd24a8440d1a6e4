//! When a job of several processes ends, and how: a state machine that is told what happened and answers
//! what to do. It owns no process and no clock, and it does not know how anything is reported.

use paceline_job::Rank;

/// How a worker ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ending {
    /// Whether the worker did what it was started for.
    pub fn is_success(self) -> bool {
        self == Ending::Exited(0)
    }

    /// The code that a shell would report for it.
    pub fn exit_code(self) -> u8 {
        match self {
            Ending::Exited(code) => (code & 0xff) as u8,
            Ending::Killed(signal) => signal_exit_code(signal),
        }
    }
}

/// The code that a shell reports for a program that a signal ended.
fn signal_exit_code(signal: i32) -> u8 {
    (128 + (signal & 0x7f)) as u8
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// These workers ended; nobody knows in which order.
    Ended(Vec<(Rank, Ending)>),
    /// One more process runs, with the next number. It is a spare until it takes part.
    Started,
    /// This one takes part.
    Entered(Rank),
    /// Another number of workers was asked for: those who failed before are not missed any more, and not replaced.
    Resized,
    /// The job is to have so many workers.
    Wanted(usize),
    /// Workers are done with all there was to do: nobody is needed any more.
    Done,
    /// The job goes on while at least so many workers live; none if each that fails ends it.
    Needs(Option<usize>),
    /// This worker was asked to leave the job: that it ends says nothing about the others.
    Retired(Rank),
    /// Somebody asks the job to end (SIGINT, SIGTERM, SIGHUP).
    Asked(i32),
    /// A signal that means something to the program only.
    PassOn(i32),
    /// The time that [`Action::StartClock`] named is over.
    TimeOver,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send this signal to every worker and to the processes it started.
    Signal(i32),
    /// Tell [`Event::TimeOver`] after this long; a clock that runs already begins anew.
    StartClock(Wait),
    /// Somebody should read that the job ends, and why.
    Announce(Cause),
    /// Somebody should read that this worker failed, and the job goes on.
    Bear(Rank, Ending, Replacement),
    /// Wait no longer.
    GiveUp,
}

/// Whether another process is started in place of one that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replacement {
    /// Nobody asked for that.
    Unasked,
    /// It is, for the n-th time of so many.
    Started(usize, usize),
    /// All those times are used up.
    Exhausted(usize),
}

/// What a process was to the job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A worker.
    Taken,
    /// It had not come to take part, or waited as a spare.
    None,
}

/// How long to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// A moment in which a failure may turn out to be the consequence of another.
    Hearing,
    /// The grace period: a worker may write its checkpoint.
    Grace,
    /// As long as the system may need to end a killed process.
    Death,
}

/// Why the job ends before all workers are through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// This worker failed first.
    Failure(Rank, Ending),
    /// Somebody sent this signal.
    Asked(i32),
}

/// What became of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// What the command exits with.
    pub exit_code: u8,
    /// Why the job ended early, if it did and not everybody was through in spite of it.
    pub cause: Option<Cause>,
    /// Workers that failed by themselves in the same moment as the first.
    pub also_failed: Vec<(Rank, Ending)>,
    /// Workers that even SIGKILL did not end.
    pub stuck: Vec<Rank>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Running,
    /// A worker exited with an error. It may have lost a peer that a signal ended: a dying process closes
    /// its connections before anybody can see that it is dead.
    Hearing,
    /// The workers were asked to end and have their grace period.
    Ending,
    /// They were killed.
    Killed,
}

/// The state of a job's processes.
#[derive(Debug)]
pub struct Supervision {
    endings: Vec<Option<Ending>>,
    phase: Phase,
    cause: Option<Cause>,
    /// Those that failed before anybody was blamed, as they were seen.
    failed: Vec<(Rank, Ending)>,
    also_failed: Vec<(Rank, Ending)>,
    /// See [`Event::Needs`].
    needed: Option<usize>,
    retired: Vec<Rank>,
    /// How many workers the job is to have.
    wanted: usize,
    /// Processes that do not take part yet, and those of them that ended so.
    spare: Vec<Rank>,
    /// How many spares to keep.
    spares: usize,
    /// How many processes may be started in place of ones that failed, and how many were.
    restarts: (usize, usize),
    /// So many failed and are not replaced.
    vacant: usize,
    done: bool,
}

impl Supervision {
    /// `size` workers run.
    pub fn new(size: usize) -> Supervision {
        Supervision {
            endings: vec![None; size],
            phase: Phase::Running,
            cause: None,
            failed: Vec::new(),
            also_failed: Vec::new(),
            needed: None,
            retired: Vec::new(),
            wanted: size,
            spare: Vec::new(),
            spares: 0,
            restarts: (0, 0),
            vacant: 0,
            done: false,
        }
    }

    /// Keep so many spares, and start so many processes at most in place of ones that fail.
    pub fn replacing(self, spares: usize, restarts: usize) -> Supervision {
        Supervision { spares, restarts: (restarts, 0), ..self }
    }

    /// How many processes to start. Spares take part before others are started in their place: those would be in their way just
    /// then.
    pub fn missing(&self) -> usize {
        if self.phase != Phase::Running || self.is_done() {
            return 0;
        }
        let workers = self.staying() + self.vacant;
        let ready = self.living() - self.taking_part();
        let keep = if workers < self.wanted && ready > 0 { 0 } else { self.spares };
        (self.wanted + keep).saturating_sub(workers + ready)
    }

    /// How many workers live that were not asked to leave.
    fn staying(&self) -> usize {
        let staying = |(rank, ending): &(Rank, Option<Ending>)| {
            ending.is_none() && !self.retired.contains(rank)
        };
        self.workers().filter(staying).count()
    }

    /// How many workers live that take part.
    pub fn taking_part(&self) -> usize {
        self.workers().filter(|(_, ending)| ending.is_none()).count()
    }

    /// How many processes have not ended.
    pub fn living(&self) -> usize {
        self.endings.iter().filter(|ending| ending.is_none()).count()
    }

    /// Something happened; what is to be done?
    pub fn on_event(&mut self, event: Event) -> Vec<Action> {
        match (event, self.phase) {
            (Event::Ended(endings), _) => self.on_ended(&endings),
            (Event::Started, _) => {
                self.spare.push(Rank(self.endings.len() as u32));
                self.endings.push(None);
                Vec::new()
            }
            (Event::Entered(rank), _) => {
                self.spare.retain(|spare| *spare != rank);
                Vec::new()
            }
            (Event::Resized, _) => {
                self.vacant = 0;
                Vec::new()
            }
            (Event::Wanted(wanted), _) => {
                self.wanted = wanted;
                Vec::new()
            }
            (Event::Done, _) => {
                self.done = true;
                Vec::new()
            }
            (Event::Needs(needed), _) => {
                self.needed = needed;
                Vec::new()
            }
            (Event::Retired(rank), _) => {
                if !self.retired.contains(&rank) {
                    self.retired.push(rank);
                }
                Vec::new()
            }
            (Event::PassOn(signal), _) => vec![Action::Signal(signal)],
            (Event::Asked(signal), Phase::Running) => self.end_early(Cause::Asked(signal), signal),
            (Event::Asked(_) | Event::TimeOver, Phase::Hearing) => self.judge(),
            // Whoever asks twice does not want to wait.
            (Event::Asked(_) | Event::TimeOver, Phase::Ending) => {
                self.phase = Phase::Killed;
                vec![Action::Signal(libc::SIGKILL), Action::StartClock(Wait::Death)]
            }
            (Event::TimeOver, Phase::Killed) => vec![Action::GiveUp],
            (Event::Asked(_), Phase::Killed) | (Event::TimeOver, Phase::Running) => Vec::new(),
        }
    }

    fn on_ended(&mut self, endings: &[(Rank, Ending)]) -> Vec<Action> {
        for (rank, ending) in endings {
            self.endings[rank.index()] = Some(*ending);
        }
        if !matches!(self.phase, Phase::Running | Phase::Hearing) {
            return Vec::new();
        }
        let spare = |rank: &Rank| self.spare.contains(rank);
        let (spares, workers): (Vec<_>, Vec<_>) = endings.iter().partition(|(it, _)| spare(it));
        let failed = workers.into_iter().filter(|(_, ending)| !ending.is_success());
        // A spare that ends has failed, however it does, unless nobody is needed any more.
        let mut borne: Vec<(Rank, Ending)> =
            if self.is_done() { Vec::new() } else { spares.into_iter().collect() };
        let mut actions = Vec::new();
        if self.phase == Phase::Running && self.goes_on() {
            borne.extend(failed);
        } else {
            self.failed.extend(failed);
            let killed = self.failed.iter().any(|(_, ending)| matches!(ending, Ending::Killed(_)));
            match self.phase {
                _ if self.failed.is_empty() => {}
                _ if killed || self.taking_part() == 0 => actions = self.judge(),
                Phase::Running => {
                    self.phase = Phase::Hearing;
                    actions.push(Action::StartClock(Wait::Hearing));
                }
                _ => {}
            }
        }
        if self.phase == Phase::Running {
            for (rank, ending) in borne {
                actions.push(Action::Bear(rank, ending, self.replace(rank)));
            }
            if self.taking_part() == 0 && self.living() > 0 {
                // Those who wait to take part wait in vain.
                self.phase = Phase::Ending;
                actions.extend([Action::Signal(libc::SIGTERM), Action::StartClock(Wait::Grace)]);
            }
        }
        actions
    }

    /// One that failed is replaced if it is missed and that may be.
    fn replace(&mut self, rank: Rank) -> Replacement {
        let (most, made) = self.restarts;
        let one_too_many = !self.spare.contains(&rank) && self.staying() >= self.wanted;
        if self.retired.contains(&rank) || one_too_many || self.is_done() {
            Replacement::Unasked
        } else if made < most {
            self.restarts.1 += 1;
            Replacement::Started(made + 1, most)
        } else {
            self.vacant += 1;
            if most == 0 { Replacement::Unasked } else { Replacement::Exhausted(most) }
        }
    }

    /// What a process is to the job, or was.
    pub fn part(&self, rank: Rank) -> Part {
        if self.spare.contains(&rank) { Part::None } else { Part::Taken }
    }

    /// Whether nobody is needed any more.
    fn is_done(&self) -> bool {
        self.done || self.is_anybody_through()
    }

    /// Whether somebody is through with all there was to do.
    fn is_anybody_through(&self) -> bool {
        self.workers().any(|(rank, ending)| {
            ending == Some(Ending::Exited(0)) && !self.retired.contains(&rank)
        })
    }

    /// Who takes part, or did.
    fn workers(&self) -> impl Iterator<Item = (Rank, Option<Ending>)> {
        let ranks = (0..).map(Rank).zip(self.endings.iter().copied());
        ranks.filter(|(rank, _)| !self.spare.contains(rank))
    }

    /// Whether failures are borne: enough are left, or some are through with all there was to do.
    fn goes_on(&self) -> bool {
        self.needed.is_some_and(|needed| self.is_anybody_through() || self.staying() >= needed)
    }

    /// Blame a worker. Of several that failed, one that a signal ended is the likelier culprit: the others
    /// lost a peer, noticed, and exited. Otherwise the one that was seen first.
    fn judge(&mut self) -> Vec<Action> {
        let mut failed = std::mem::take(&mut self.failed);
        failed.sort_by_key(|(_, ending)| matches!(ending, Ending::Exited(_)));
        let Some(((rank, ending), rest)) = failed.split_first() else { return Vec::new() };
        self.also_failed = rest.to_vec();
        self.end_early(Cause::Failure(*rank, *ending), libc::SIGTERM)
    }

    fn end_early(&mut self, cause: Cause, signal: i32) -> Vec<Action> {
        self.cause = Some(cause);
        self.phase = Phase::Ending;
        vec![Action::Announce(cause), Action::Signal(signal), Action::StartClock(Wait::Grace)]
    }

    /// What became of the job, as far as is known now.
    pub fn outcome(&self) -> Outcome {
        let all_through = self.workers().all(|(_, ending)| ending == Some(Ending::Exited(0)));
        let cause = self.cause.filter(|_| !all_through);
        let exit_code = match cause {
            None => 0,
            Some(Cause::Failure(_, ending)) => ending.exit_code(),
            Some(Cause::Asked(signal)) => signal_exit_code(signal),
        };
        let ranks = (0..).map(Rank).zip(&self.endings);
        let stuck = ranks.filter(|(_, ending)| ending.is_none()).map(|(rank, _)| rank).collect();
        Outcome { exit_code, cause, also_failed: self.also_failed.clone(), stuck }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SIGHUP, SIGINT, SIGKILL, SIGSEGV, SIGTERM, SIGUSR1};

    fn ended(endings: &[(u32, Ending)]) -> Event {
        Event::Ended(endings.iter().map(|(rank, ending)| (Rank(*rank), *ending)).collect())
    }

    fn missing(job: &mut Supervision, wanted: usize) -> usize {
        job.on_event(Event::Wanted(wanted));
        job.missing()
    }

    #[test]
    fn a_job_whose_workers_exit_with_zero_one_by_one_succeeds() {
        let mut job = Supervision::new(2);
        assert_eq!(job.on_event(ended(&[(1, Ending::Exited(0))])), []);
        assert_eq!(job.living(), 1);
        assert_eq!(job.on_event(ended(&[(0, Ending::Exited(0))])), []);
        let outcome = job.outcome();
        assert_eq!((outcome.exit_code, outcome.cause, job.living()), (0, None, 0));
    }

    #[test]
    fn the_first_failure_ends_the_others_and_gives_the_exit_code() {
        let mut job = Supervision::new(3);
        let hearing = [Action::StartClock(Wait::Hearing)];
        assert_eq!(job.on_event(ended(&[(1, Ending::Exited(7))])), hearing);
        let actions = job.on_event(Event::TimeOver);
        let cause = Cause::Failure(Rank(1), Ending::Exited(7));
        let gently = [Action::Signal(SIGTERM), Action::StartClock(Wait::Grace)];
        assert_eq!(actions[0], Action::Announce(cause));
        assert_eq!(actions[1..], gently);
        assert_eq!(job.on_event(ended(&[(0, Ending::Killed(SIGTERM))])), []);
        assert_eq!(
            job.on_event(Event::TimeOver),
            [Action::Signal(SIGKILL), Action::StartClock(Wait::Death)]
        );
        assert_eq!(job.on_event(ended(&[(2, Ending::Killed(SIGKILL))])), []);
        let outcome = job.outcome();
        assert_eq!(outcome.exit_code, 7);
        assert_eq!(outcome.cause, Some(cause));
        assert_eq!((outcome.also_failed, outcome.stuck), (vec![], vec![]));
    }

    #[test]
    fn of_failures_seen_together_the_signal_comes_first() {
        let mut job = Supervision::new(3);
        let segfault = Ending::Killed(SIGSEGV);
        job.on_event(ended(&[(0, Ending::Exited(1)), (1, Ending::Exited(0)), (2, segfault)]));
        let outcome = job.outcome();
        assert_eq!(outcome.cause, Some(Cause::Failure(Rank(2), segfault)));
        assert_eq!(outcome.also_failed, [(Rank(0), Ending::Exited(1))]);
        assert_eq!(outcome.exit_code, 139);
    }

    #[test]
    fn an_elastic_job_bears_failures_as_long_as_enough_are_left_or_some_are_through() {
        let mut job = Supervision::new(3);
        job.on_event(Event::Needs(Some(2)));
        let killed = Ending::Killed(SIGKILL);
        let borne = |rank| Action::Bear(Rank(rank), killed, Replacement::Unasked);
        assert_eq!(job.on_event(ended(&[(1, killed)])), [borne(1)]);
        assert_eq!(missing(&mut job, 3), 0, "nobody asked for that");
        job.on_event(Event::Resized);
        assert_eq!(missing(&mut job, 3), 1);
        job.on_event(Event::Started);
        assert_eq!((job.living(), job.taking_part(), missing(&mut job, 3)), (3, 2, 0));
        job.on_event(Event::Entered(Rank(3)));
        assert_eq!(job.taking_part(), 3);
        job.on_event(Event::Retired(Rank(3)));
        assert_eq!((job.taking_part(), missing(&mut job, 2)), (3, 0));
        assert_eq!(job.on_event(ended(&[(3, Ending::Exited(0))])), []);
        let cause = Cause::Failure(Rank(2), killed);
        assert_eq!(job.on_event(ended(&[(2, killed)]))[0], Action::Announce(cause));

        let mut done = Supervision::new(2);
        done.on_event(Event::Needs(Some(2)));
        done.on_event(ended(&[(0, Ending::Exited(0))]));
        assert_eq!(done.on_event(ended(&[(1, killed)])), [borne(1)]);
        assert_eq!((done.outcome().exit_code, missing(&mut done, 2)), (0, 0));

        // One that has left and is still about its own ending makes no job out of failures.
        let (mut left, failed) = (Supervision::new(3), Ending::Exited(1));
        left.on_event(Event::Needs(Some(1)));
        left.on_event(Event::Retired(Rank(2)));
        for (rank, ending) in [(1, failed), (0, failed), (2, Ending::Exited(0))] {
            left.on_event(ended(&[(rank, ending)]));
        }
        assert_eq!(left.outcome().exit_code, 1);
    }

    #[test]
    fn those_who_fail_are_replaced_as_often_as_that_may_be() {
        let mut job = Supervision::new(2).replacing(1, 2);
        job.on_event(Event::Needs(Some(1)));
        assert_eq!(missing(&mut job, 2), 1, "a spare");
        job.on_event(Event::Started);
        let (killed, failed) = (Ending::Killed(SIGKILL), Ending::Exited(1));
        let borne = |rank, ending, replacement| [Action::Bear(Rank(rank), ending, replacement)];
        let actions = job.on_event(ended(&[(0, killed)]));
        assert_eq!(actions, borne(0, killed, Replacement::Started(1, 2)));
        assert_eq!(missing(&mut job, 2), 0, "the spare goes first");
        assert_eq!(missing(&mut job, 4), 2);
        job.on_event(Event::Entered(Rank(2)));
        assert_eq!(missing(&mut job, 2), 1, "the spare took its place");
        job.on_event(Event::Started);
        // A spare that ends by itself is no use, whatever its code.
        let actions = job.on_event(ended(&[(3, Ending::Exited(0))]));
        assert_eq!(actions, borne(3, Ending::Exited(0), Replacement::Started(2, 2)));
        assert_eq!((job.taking_part(), missing(&mut job, 2)), (2, 1));
        job.on_event(Event::Started);
        let actions = job.on_event(ended(&[(4, failed)]));
        assert_eq!(actions, borne(4, failed, Replacement::Exhausted(2)));
        assert_eq!(missing(&mut job, 2), 0);
        job.on_event(Event::Resized);
        assert_eq!(missing(&mut job, 2), 1, "who asks gets what was asked for");
    }

    #[test]
    fn one_that_fails_where_enough_are_left_is_not_missed() {
        let mut job = Supervision::new(4).replacing(0, 2);
        job.on_event(Event::Needs(Some(1)));
        job.on_event(Event::Wanted(3));
        let killed = Ending::Killed(SIGKILL);
        let borne = |rank, replacement| [Action::Bear(Rank(rank), killed, replacement)];
        assert_eq!(job.on_event(ended(&[(0, killed)])), borne(0, Replacement::Unasked));
        assert_eq!(job.missing(), 0);
        assert_eq!(job.on_event(ended(&[(1, killed)])), borne(1, Replacement::Started(1, 2)));
        assert_eq!(job.missing(), 1);
    }

    #[test]
    fn spares_count_for_nobody_and_end_with_the_others() {
        let mut job = Supervision::new(2).replacing(1, 5);
        job.on_event(Event::Needs(Some(2)));
        job.on_event(Event::Started);
        let killed = Ending::Killed(SIGKILL);
        let actions = job.on_event(ended(&[(0, killed)]));
        let cause = Cause::Failure(Rank(0), killed);
        assert_eq!(actions[..2], [Action::Announce(cause), Action::Signal(SIGTERM)]);

        let mut job = Supervision::new(1).replacing(1, 5);
        job.on_event(Event::Needs(Some(1)));
        job.on_event(Event::Started);
        job.on_event(Event::Done);
        assert_eq!(missing(&mut job, 1), 0);
        let gently = [Action::Signal(SIGTERM), Action::StartClock(Wait::Grace)];
        assert_eq!(job.on_event(ended(&[(0, Ending::Exited(0))])), gently);
        assert_eq!(job.on_event(ended(&[(1, Ending::Killed(SIGTERM))])), []);
        let outcome = job.outcome();
        assert_eq!((outcome.exit_code, outcome.cause, job.living()), (0, None, 0));

        // All failed, though all were done: that is no success.
        let mut job = Supervision::new(1).replacing(1, 5);
        job.on_event(Event::Needs(Some(1)));
        job.on_event(Event::Started);
        job.on_event(Event::Done);
        job.on_event(ended(&[(0, Ending::Exited(3)), (1, Ending::Exited(0))]));
        assert_eq!(job.outcome().exit_code, 3);
    }

    #[test]
    fn a_signal_that_shows_in_the_hearing_takes_the_blame() {
        let mut job = Supervision::new(3);
        job.on_event(ended(&[(0, Ending::Exited(3))]));
        let cause = Cause::Failure(Rank(2), Ending::Killed(SIGKILL));
        let actions = job.on_event(ended(&[(2, Ending::Killed(SIGKILL))]));
        assert_eq!(actions[0], Action::Announce(cause));
        assert_eq!(job.outcome().also_failed, [(Rank(0), Ending::Exited(3))]);
        assert_eq!(job.outcome().exit_code, 137);
    }

    #[test]
    fn without_a_signal_the_first_that_was_seen_is_blamed_when_all_have_ended() {
        let mut job = Supervision::new(2);
        job.on_event(ended(&[(1, Ending::Exited(4))]));
        let actions = job.on_event(ended(&[(0, Ending::Exited(5))]));
        assert_eq!(actions[0], Action::Announce(Cause::Failure(Rank(1), Ending::Exited(4))));
        assert_eq!(job.outcome().exit_code, 4);
    }

    #[test]
    fn whoever_asks_twice_does_not_wait_for_the_grace_period() {
        let mut job = Supervision::new(1);
        let actions = job.on_event(Event::Asked(SIGINT));
        assert_eq!(actions[1..], [Action::Signal(SIGINT), Action::StartClock(Wait::Grace)]);
        let actions = job.on_event(Event::Asked(SIGINT));
        assert_eq!(actions, [Action::Signal(SIGKILL), Action::StartClock(Wait::Death)]);
        assert_eq!(job.on_event(Event::Asked(SIGINT)), []);
        job.on_event(ended(&[(0, Ending::Killed(SIGKILL))]));
        assert_eq!(job.outcome().exit_code, 130);
    }

    #[test]
    fn workers_that_finish_well_when_asked_to_end_make_a_success() {
        let mut job = Supervision::new(2);
        job.on_event(Event::Asked(SIGTERM));
        job.on_event(ended(&[(0, Ending::Exited(0)), (1, Ending::Exited(0))]));
        let outcome = job.outcome();
        assert_eq!((outcome.exit_code, outcome.cause), (0, None));
    }

    #[test]
    fn a_signal_for_the_program_changes_nothing_else() {
        let mut job = Supervision::new(1);
        assert_eq!(job.on_event(Event::PassOn(SIGUSR1)), [Action::Signal(SIGUSR1)]);
        assert_eq!(job.outcome().cause, None);
    }

    #[test]
    fn what_survives_its_killing_is_given_up_and_named() {
        let mut job = Supervision::new(2);
        job.on_event(Event::Asked(SIGHUP));
        job.on_event(ended(&[(0, Ending::Killed(SIGHUP))]));
        job.on_event(Event::TimeOver);
        assert_eq!(job.on_event(Event::TimeOver), [Action::GiveUp]);
        assert_eq!(job.outcome().stuck, [Rank(1)]);
    }
}
