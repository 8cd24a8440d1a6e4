use super::*;
use crate::{metrics::Pace, policy::Moment};
use paceline_job::ByteSize;

/// Wants something in one step, and notes what it is shown.
struct Wanting {
    step: u64,
    wishes: Wishes,
    shown: Vec<Moment>,
}

impl Policy for Wanting {
    fn metrics(&self) -> Vec<String> {
        vec!["accuracy".to_string()]
    }

    fn after_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        self.shown.push(moment.clone());
        if moment.step == self.step {
            *wishes = self.wishes.clone();
        }
    }

    fn state(&self) -> Option<String> {
        Some(self.step.to_string())
    }

    fn restore(&mut self, state: &str) -> Result<(), crate::policy::StateError> {
        let wrong = |_| crate::policy::StateError {
            policy: "wanting",
            problem: format!("`{state}` is no step"),
        };
        self.step = state.parse().map_err(wrong)?;
        Ok(())
    }
}

fn adaptation(wishes: Wishes) -> Adaptation {
    let policy = Wanting { step: 1, wishes, shown: Vec::new() };
    Adaptation::new(vec![Box::new(policy)], Some(4))
}

/// What two workers say, summed.
fn exchange(workers: &mut [Adaptation; 2], settings: &Settings) -> Vec<f64> {
    let mut rank = 0;
    let said = workers.each_mut().map(|worker| {
        let company = Company { rank, size: 2, settings };
        rank += 1;
        worker.say(rank as f64, None, company)
    });
    said[0].iter().zip(&said[1]).map(|(one, other)| one + other).collect()
}

#[test]
fn what_worker_0_wants_all_follow_three_steps_later_and_what_others_want_nobody() {
    let wishes = |batch, mode: &str| Wishes {
        batch: Some(batch),
        mode: Some(mode.to_string()),
        ..Wishes::default()
    };
    let settings = Settings::default();
    let mut workers = [adaptation(wishes(8, "local")), adaptation(wishes(32, "pairs"))];
    let mut sums: Option<Vec<f64>> = None;
    let mut followed = Vec::new();
    for _ in 0..6 {
        if let Some(sums) = &sums {
            workers.iter_mut().for_each(|worker| worker.hear(sums));
        }
        sums = Some(exchange(&mut workers, &settings));
        for (rank, worker) in workers.iter_mut().enumerate() {
            worker.call(Edge::StepOver, Company { rank, size: 2, settings: &settings });
        }
        let both = workers.each_mut().map(|worker| worker.follow().mode);
        assert_eq!(both[0], both[1]);
        let batches = workers.each_ref().map(|worker| worker.talk.batch());
        assert_eq!(batches[0], batches[1]);
        followed.push((batches[0], both[0].clone()));
    }
    let (before, local) = ((Some(4), None), Some("local".to_string()));
    let after = (Some(8), None);
    let expected = [before.clone(), before.clone(), before, (Some(8), local), after.clone(), after];
    assert_eq!(followed, expected);
}

#[test]
fn what_policies_read_is_the_mean_of_what_workers_said_and_a_newcomer_goes_on_from_it() {
    let settings = Settings::default();
    let mut workers = [adaptation(Wishes::default()), adaptation(Wishes::default())];
    for (worker, loss) in workers.iter_mut().zip([1.0, 3.0]) {
        worker.report("loss", loss);
        worker.report("nobody asked", loss);
        worker.report_norms(5.0, 1.5);
    }
    workers[1].report("accuracy", 0.5);
    let sums = exchange(&mut workers, &settings);
    workers.iter_mut().for_each(|worker| worker.hear(&sums));
    let company = Company { rank: 1, size: 2, settings: &settings };
    let moment = workers[1].talk.moment(company);
    assert_eq!((moment.loss, moment.seconds), (Some(2.0), Some(1.5)));
    assert_eq!(moment.reported, [("accuracy".to_string(), 0.5)].into());
    // |G|² = (2·3 − 5) / 1 and V = 4·2·(5 − 3) / 1.
    let near = |found: Option<f64>, expected: f64| (found.unwrap() - expected).abs() < 1e-9;
    assert!(near(moment.squared_norm, 1.0) && near(moment.variance, 16.0), "{moment:?}");
    assert_eq!(moment.throughput, Some(8.0 / 1.5));

    let mut newcomer = adaptation(Wishes::default());
    let said = newcomer.resume(&workers[0].remember(Some(&sums)), 2).unwrap();
    assert_eq!(said, Some(sums));
    assert_eq!(newcomer.talk.moment(company), moment);
    let mut other = Adaptation::new(Vec::new(), None);
    let refused = other.resume(&newcomer.remember(None), 2);
    assert_eq!(refused, Err(MemoryError::Others { ours: 0, theirs: 1 }));
    assert!(matches!(newcomer.resume("{", 2), Err(MemoryError::Unreadable(_))));
}

#[test]
fn sums_that_cannot_be_are_passed_over() {
    let mut worker = adaptation(Wishes::default());
    for sums in [&[][..], &[1.0; 3], &[0.0; 20], &[1.0; 99]] {
        worker.hear(sums);
        assert_eq!(worker.talk.observed(), None);
    }
}

#[test]
fn steps_in_which_workers_do_not_meet_share_the_time_between_those_in_which_they_do() {
    let mut talk = Talk::new([], None);
    talk.pass_step();
    talk.pass_step();
    talk.time(6.0, 1);
    assert_eq!(talk.own_seconds(), 2.0);
    talk.begin_step();
    talk.time(6.0, 1);
    assert_eq!(talk.own_seconds(), 6.0);
    let sums = talk.say(0, None);
    talk.hear(&sums);
    assert_eq!(talk.observed().map(|observed| (observed.step, observed.seconds)), Some((3, 6.0)));
}

#[test]
fn whoever_goes_on_keeps_what_fits_it_and_no_number_is_lost_in_text() {
    let mut talk = Talk::new(["accuracy".to_string()], Some(4));
    for _ in 0..=Pace::WINDOW {
        talk.time(0.1 + 0.2, 2);
        talk.begin_step();
    }
    talk.report("loss", f64::NAN);
    let said = talk.say(0, None);
    talk.follow_batch(16);
    let text = talk.remember(Some(&said)).text();
    let resume = |talk: &mut Talk, size| talk.resume(Remembered::read(&text).unwrap(), size);

    let mut alike = Talk::new(["accuracy".to_string()], Some(8));
    let heard = resume(&mut alike, 2).unwrap();
    let bits = |numbers: &[f64]| numbers.iter().map(|it| it.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&heard), bits(&said));
    assert_eq!((alike.step(), alike.batch()), (talk.step(), Some(16)));

    // Who reads other numbers cannot hear what was said.
    let mut other = Talk::new([], Some(8));
    assert_eq!(resume(&mut other, 2), None);
    assert_eq!(other.batch(), Some(16));
}

#[test]
fn a_batch_that_nobody_agreed_on_stays_the_programs_own_and_other_workers_have_another_pace() {
    let mut talk = Talk::new([], Some(4));
    for _ in 0..=Pace::WINDOW {
        talk.time(0.5, 2);
        talk.begin_step();
    }
    let remembered = talk.remember(None);
    assert!(remembered.usual.is_some());
    for (size, usual) in [(2, remembered.usual), (3, None)] {
        let mut later = Talk::new([], Some(8));
        later.resume(remembered.clone(), size);
        assert_eq!((later.batch(), later.pace.usual()), (Some(8), usual));
    }
}

#[test]
fn what_worker_0_wanted_when_it_was_lost_the_next_one_says_and_proposes() {
    let wishes = Wishes {
        batch: Some(8),
        partition: Some(ByteSize(1 << 20)),
        credit: Some(ByteSize(1 << 21)),
        ..Wishes::default()
    };
    let mut settings = Settings::default();
    let mut workers = [adaptation(wishes.clone()), adaptation(wishes)];
    let mut asked = Vec::new();
    for _ in 0..2 {
        exchange(&mut workers, &settings);
        for (rank, worker) in workers.iter_mut().enumerate() {
            asked.push(worker.call(Edge::StepOver, Company { rank, size: 2, settings: &settings }));
            worker.follow();
        }
    }
    let proposed: Vec<_> = asked.iter().map(|asked| asked.settings.is_some()).collect();
    assert_eq!(proposed, [false, false, true, false], "worker 0 alone proposes");
    // Both say it, but worker 0 is lost before anybody hears of it.
    let [_, left] = &mut workers;
    let said = left.say(1.0, None, Company { rank: 1, size: 2, settings: &settings });
    let mut proposals = Vec::new();
    let mut sums = said;
    for _ in 0..4 {
        left.hear(&sums);
        let company = Company { rank: 0, size: 1, settings: &settings };
        sums = left.say(1.0, None, company);
        proposals.extend(left.call(Edge::StepOver, company).settings);
        if let Some(proposed) = proposals.last() {
            settings = proposed.clone();
        }
        left.follow();
    }
    assert_eq!(left.talk.batch(), Some(8));
    assert_eq!(proposals.len(), 1, "{proposals:?}");
    assert_eq!((settings.partition, settings.credit), (ByteSize(1 << 20), ByteSize(1 << 21)));
}

#[test]
fn throughput_is_the_same_where_workers_have_unlike_batches() {
    let settings = Settings::default();
    let mut workers = [adaptation(Wishes::default()), adaptation(Wishes::default())];
    workers[1].talk.set_batch(Some(12));
    let sums = exchange(&mut workers, &settings);
    workers.iter_mut().for_each(|worker| worker.hear(&sums));
    let seen = workers.each_ref().map(|worker| worker.talk.throughput());
    assert_eq!(seen, [Some(16.0 / 1.5); 2]);
}
