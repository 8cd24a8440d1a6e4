//! Policies in programs of Rust, on real workers: what they read and what they change is the same on all of them at one step.

mod cluster;

use cluster::{WIRINGS, Wiring, run};
use paceline_job::{ByteSize, ReduceOp, Settings};
use paceline_net::{Operation, Worker};
use paceline_sync::{
    collective::Collective,
    policy::{Moment, Policy, Wishes},
};
use paceline_tune::policies;
use std::time::Duration;

/// What held in a step: batch, factor on the learning rate, mode, partition.
type Step = (Option<u64>, f64, String, ByteSize);

/// Trains, until it is enough, on a gradient that is known: 1 on average, and most of that off on each side.
fn train(
    worker: &Worker,
    policies: Vec<Box<dyn Policy>>,
    enough: impl Fn(&[Step]) -> bool,
) -> Vec<Step> {
    let mut adapted = worker.attach(policies, Some(4));
    let mut course = Vec::new();
    while !enough(&course) {
        // An agreement takes a few steps, not as many as fit into nothing.
        std::thread::sleep(Duration::from_millis(1));
        let partition = worker.view().settings.partition;
        let mode = adapted.mode().to_string();
        course.push((adapted.batch(), adapted.learning_rate(), mode, partition));
        let mut gradient = [if worker.rank().0 == 0 { 0.1_f64 } else { 1.9 }];
        let own = gradient[0].powi(2);
        let operation =
            Operation::new("gradient", Collective::AllReduce { len: 1 }).reduce(ReduceOp::Average);
        worker.run_in_place(operation, &mut gradient).unwrap();
        adapted.report_norms(own, gradient[0].powi(2));
        adapted.report("loss", f64::from(worker.rank().0));
        adapted.next_step().unwrap();
    }
    assert_eq!(adapted.take_refusals(), [""; 0]);
    adapted.end();
    course
}

#[test]
fn a_policy_that_comes_with_paceline_adapts_a_program_on_all_workers_at_one_step() {
    let entries = "[[at]]\nstep = 3\nbatch = 16\nlearning_rate = 0.5\nmode = \"local\"\n\
                   [[at]]\nstep = 5\npartition = \"64KiB\"\n";
    let courses = run(2, Settings::default(), Wiring::Shared, |worker| {
        let schedule = policies::parse("schedule:file", |_| Ok(entries.to_string())).unwrap();
        let small = |course: &[Step]| course.last().is_some_and(|it| it.3 == ByteSize::kib(64));
        // What is in force in a step is the same on all workers, so all have enough at the same.
        train(&worker, vec![schedule], |course| small(course) || course.len() == 30_000)
    });
    assert_eq!(courses[0], courses[1]);
    let of = |course: &[Step]| (course[0].clone(), course[course.len() - 1].clone());
    let (first, last) = of(&courses[0]);
    assert_eq!(first, (Some(4), 1.0, String::new(), Settings::default().partition));
    assert_eq!(last, (Some(16), 0.5, "local".to_string(), ByteSize::kib(64)));
}

#[test]
fn batches_grow_with_the_noise_of_gradients_that_a_program_reports() {
    let courses = run(2, Settings::default(), Wiring::Tcp, |worker| {
        let policy =
            policies::parse("noise_scale:most=8,rule=linear,every=2", |_| Err(String::new()));
        train(&worker, vec![policy.unwrap()], |course| course.len() == 12)
    });
    assert_eq!(courses[0], courses[1]);
    let batches: Vec<_> = courses[0].iter().map(|step| (step.0, step.1)).collect();
    assert!(batches.starts_with(&[(Some(4), 1.0)]), "{batches:?}");
    // |G|² = (2·1 − 1.81) / 1 and V = 4·2·(1.81 − 1) / 1: 34 samples, and 8 are allowed on each of two.
    assert!(batches.ends_with(&[(Some(8), 2.0)]), "{batches:?}");
}

/// Wants what no other worker wants, and sees what all say.
struct Dice(u64, Vec<Option<f64>>);

impl Policy for Dice {
    fn before_step(&mut self, moment: &Moment, wishes: &mut Wishes) {
        self.1.push(moment.loss);
        wishes.batch = (moment.step == 2).then_some(self.0);
    }

    fn after_train(&mut self, _: &Moment, _: &mut Wishes) {
        let heard = self.1.iter().flatten().collect::<Vec<_>>();
        assert!(heard.len() > 4 && heard.iter().all(|loss| **loss == 1.0), "{heard:?}");
    }
}

#[test]
fn of_workers_whose_policies_want_something_else_the_first_decides_and_all_read_the_same() {
    for wiring in WIRINGS {
        let courses = run(3, Settings::default(), wiring, |worker| {
            let wish = 100 + u64::from(worker.rank().0);
            train(&worker, vec![Box::new(Dice(wish, Vec::new()))], |course| course.len() == 8)
        });
        assert!(courses.iter().all(|course| *course == courses[0]), "{courses:?}");
        assert_eq!(courses[0].last().unwrap().0, Some(100));
    }
}
