//! Workers that come to a running job and leave it, as real processes: they get the state from those who have it, all end
//! with equal parameters, and every sample of the epoch is trained on once, also where somebody is killed at the worst
//! moment. The processes are this very program, asked for its one ignored test.

mod elastic_support;

use elastic_support::Process;
use paceline_job::{Rank, ReduceOp, View, WorkerId};
use paceline_net::{
    JoinConfig, Log, NetError, Operation, Region, Secret, Sharing, Transport, Worker, WorkerConfig,
    coordinator::{Answer, Coordinator, CoordinatorConfig, Question, Standing, ask},
    join,
};
use paceline_sync::{
    agreement::Limits,
    collective::Collective,
    event::Holds,
    sampler::{Deal, Position, Sampler, Shuffle},
};
use std::{
    collections::BTreeMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};
use tempfile::TempPath;

const PARAMETERS: usize = 400_000;
const SAMPLES: u64 = 3000;
const BATCH: u64 = 6;

/// A step of a job that is held until a test has seen enough: long enough that others come before all is done.
const HELD_STEP: Duration = Duration::from_millis(200);

/// A training program, as somebody would write it.
struct Program {
    worker: Worker,
    parameters: Vec<f32>,
    sampler: Sampler,
    /// The last deals, with their steps and whom they were for.
    deals: Vec<(u64, Deal, Vec<WorkerId>)>,
    /// Parameters that are on their way to those who listen in this step, and how many others there are.
    sharing: Option<(Sharing, usize)>,
}

impl Program {
    /// Those who came get the parameters while the others go on, and only listen in this step.
    fn begin_to_share(&mut self, has_state: bool) {
        let standings = self.worker.roll_call(u8::from(has_state)).unwrap();
        let senders = (0..).map(Rank).zip(&standings).filter(|(_, has_it)| **has_it != 0);
        let senders: Vec<Rank> = senders.map(|(rank, _)| rank).collect();
        let regions: Vec<Region> = self.parameters.chunks_mut(PARAMETERS / 8).map(region).collect();
        // SAFETY: memory of our own, which is not written before it is finished.
        let sharing = unsafe { self.worker.begin_share(&senders, "parameters", &regions) };
        let listeners: Vec<Rank> =
            (senders.len() as u32..standings.len() as u32).map(Rank).collect();
        self.worker.listen(&listeners);
        self.sharing = Some((sharing, senders.len()));
    }

    /// Those who came get the state. The position's length is not known beforehand.
    fn share(&mut self, has_state: bool) {
        let Position { epoch, dealt, returned } = self.sampler.position().clone();
        let mut head = [epoch, dealt, returned.len() as u64];
        // SAFETY: memory of our own, untouched until it returns.
        unsafe { self.worker.share("head", &[region(&mut head)], has_state) }.unwrap();
        let mut ranges: Vec<u64> = returned.iter().flat_map(|it| [it.start, it.end]).collect();
        ranges.resize(2 * head[2] as usize, 0);
        let regions = [region(&mut ranges), region(&mut self.parameters)];
        // SAFETY: as above.
        unsafe { self.worker.share("state", &regions, has_state) }.unwrap();
        let returned = ranges.chunks(2).map(|pair| pair[0]..pair[1]).collect();
        self.sampler.restore(Position { epoch: head[0], dealt: head[1], returned }).unwrap();
    }

    /// What lost workers had and nobody trained on goes back.
    fn take_back(&mut self) {
        for account in self.worker.take_losses() {
            for (step, deal, ids) in &self.deals {
                for id in account.gone.iter().filter(|id| !account.is_consumed(**id, *step)) {
                    if let Some(rank) = ids.iter().position(|it| it == id) {
                        println!("back {step} {id}");
                        self.sampler.give_back(deal, &[rank]).unwrap();
                    }
                }
            }
        }
    }

    fn deal(&mut self, step: u64, view: &View) -> bool {
        let workers = self.sharing.as_ref().map_or(view.size(), |(_, workers)| *workers);
        let batches = vec![BATCH; workers];
        let Some(deal) = self.sampler.deal(&batches).unwrap() else { return false };
        let rank = self.worker.rank().index();
        let samples: Vec<String> = deal.of(rank).map(|it| it.to_string()).collect();
        let me = view.workers[rank].id;
        println!("dealt {step} {me} {}", samples.join(","));
        self.deals.push((step, deal, view.ids().take(workers).collect()));
        self.deals.retain(|(of, ..)| of + 3 > step);
        true
    }

    fn train(&mut self, step: u64, view: &Arc<View>, listens: bool) {
        let me = view.workers[self.worker.rank().index()].id.0;
        let mut gradient: Vec<f32> = match listens {
            true => vec![0.0; PARAMETERS],
            false => (0..PARAMETERS).map(|at| (at as u64 % 13 + me + step) as f32).collect(),
        };
        // A sum of the program's own, which holds nobody's samples.
        self.worker.all_reduce("loss", &mut [1.0_f32], ReduceOp::Average).unwrap();
        let average = Operation::new("gradient", Collective::AllReduce { len: PARAMETERS as u64 })
            .reduce(ReduceOp::Average)
            .holds(Holds::Step);
        self.worker.run_in_place(average, &mut gradient).unwrap();
        if let Some((sharing, workers)) = self.sharing.take() {
            self.worker.finish_share(sharing).unwrap();
            // The average over some of those who do not listen: whoever is lost may be in it or not.
            let ids: Vec<u64> = view.ids().take(workers).map(|id| id.0).collect();
            let means = (1..1 << workers).map(|some: usize| {
                let of = ids.iter().enumerate().filter(|(at, _)| some >> at & 1 == 1);
                of.map(|(_, id)| *id as f32).sum::<f32>() / some.count_ones() as f32
            });
            let found = gradient[0] - step as f32;
            assert!(
                means.into_iter().any(|mean| (mean - found).abs() < 1e-3),
                "{found} of {ids:?}"
            );
        }
        for (parameter, gradient) in self.parameters.iter_mut().zip(&gradient) {
            *parameter = 0.5 * *parameter + gradient;
        }
    }
}

fn region<T>(values: &mut [T]) -> Region {
    (values.as_mut_ptr().cast(), size_of_val(values))
}

#[test]
#[ignore = "a process of the other tests"]
fn worker_that_comes_and_goes() {
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let secret = Secret::from_text(&variable("JOB_SECRET"), "the test").unwrap();
    let joined = join(JoinConfig::new(variable("JOB_ADDRESS"), secret)).unwrap();
    let transport = match variable("JOB_TRANSPORT").as_str() {
        "tcp" => Transport::Tcp,
        _ => Transport::Auto,
    };
    let worker =
        Worker::start(joined, WorkerConfig { transport, ..WorkerConfig::default() }).unwrap();
    let (die_at, listening) = (variable("JOB_DIE"), variable("JOB_WAY") == "listening");
    let (parameters, sampler) = (vec![1.0; PARAMETERS], Sampler::new(SAMPLES, Shuffle::Seeded(1)));
    let mut program = Program { worker, parameters, sampler, deals: Vec::new(), sharing: None };
    let mut step = 0;
    let (mut entered, mut was_heard) = (false, false);
    println!("ready");
    if program.worker.is_outside() {
        program.parameters.fill(0.0);
        let entry = match program.worker.enter() {
            Err(NetError::JobOver) => return println!("not needed"),
            entered => entered.unwrap(),
        };
        println!("entered {}", entry.step);
        if die_at == "entered" {
            std::process::abort();
        }
        (step, entered) = (entry.step, true);
        if listening {
            program.begin_to_share(false);
            if die_at == "listening" {
                std::process::abort();
            }
            program.train(step, &entry.view, true);
            step += 1;
            program.worker.begin_step(step).unwrap();
            // Nothing that is told now is of a step that this worker was dealt something of.
            program.worker.take_losses();
        }
        program.share(false);
    }
    loop {
        let view = match entered {
            true => program.worker.view(),
            false => match program.worker.begin_step(step) {
                Ok(view) => view,
                Err(NetError::Retired) => return println!("retired at {step}"),
                Err(error) => panic!("{error}"),
            },
        };
        println!("step {step} of {} with {}", program.worker.rank(), view.size());
        if die_at == "wishing" && step == 5 {
            program.worker.propose_members(9).unwrap();
        }
        if let Some(reason) = program.worker.take_refusal() {
            println!("refused: {reason}");
        }
        program.take_back();
        if program.worker.has_newcomers() && !entered {
            if die_at == "sharing" && !listening {
                std::process::abort();
            }
            match listening {
                true => program.begin_to_share(true),
                false => program.share(true),
            }
            if die_at == "sharing" {
                std::process::abort();
            }
            was_heard = listening;
        } else if std::mem::take(&mut was_heard) {
            program.share(true);
        }
        entered = false;
        if !program.deal(step, &view) {
            // All are here, so nothing of the last step can come back after the next beginning.
            program.worker.barrier("end").unwrap();
            step += 1;
            program.worker.begin_step(step).unwrap();
            program.take_back();
            if program.sampler.left() == 0 {
                break;
            }
            step += 1;
            continue;
        }
        program.train(step, &view, false);
        step += 1;
        if std::path::Path::new(&variable("JOB_HELD_BY")).exists() {
            std::thread::sleep(HELD_STEP);
        }
    }
    let mut hasher = DefaultHasher::new();
    program.parameters.iter().for_each(|value| value.to_bits().hash(&mut hasher));
    drop(program);
    println!("parameters {:016x}", hasher.finish());
}

/// A job of real processes.
struct Job {
    coordinator: Coordinator,
    secret: Secret,
    transport: &'static str,
    way: &'static str,
    processes: Vec<Process>,
    /// Of jobs that keep spares: while it is there, steps are long.
    held_by: Option<TempPath>,
}

impl Job {
    fn start(workers: usize, transport: &'static str) -> Job {
        Job::of(&vec![""; workers], transport)
    }

    /// Each worker with the moment at which it dies, if it does.
    fn of(workers: &[&str], transport: &'static str) -> Job {
        Job::that(workers, transport, "standing still")
    }

    /// And how newcomers get the state.
    fn that(workers: &[&str], transport: &'static str, way: &'static str) -> Job {
        Job::with(workers, transport, way, None)
    }

    /// Whoever comes waits until somebody is missing.
    fn keeping_spares(workers: usize) -> Job {
        let held_by = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        Job::with(&vec![""; workers], "auto", "standing still", Some(held_by))
    }

    fn with(
        workers: &[&str],
        transport: &'static str,
        way: &'static str,
        held_by: Option<TempPath>,
    ) -> Job {
        let secret = Secret::random().unwrap();
        let coordinator = Coordinator::start(CoordinatorConfig {
            elastic: Some(Limits::default()),
            spares: held_by.is_some(),
            log: Log::silent(),
            ..CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), workers.len(), secret.clone())
        })
        .unwrap();
        let mut job = Job { coordinator, secret, transport, way, processes: Vec::new(), held_by };
        workers.iter().for_each(|die_at| job.add(die_at));
        job
    }

    fn add(&mut self, die_at: &str) {
        let held_by = self.held_by.as_ref().map_or("", |file| file.to_str().unwrap());
        let variables = [
            ("JOB_TRANSPORT", self.transport),
            ("JOB_DIE", die_at),
            ("JOB_WAY", self.way),
            ("JOB_HELD_BY", held_by),
        ];
        let address = self.coordinator.address().to_string();
        let test = "worker_that_comes_and_goes";
        self.processes.push(Process::start(test, &address, &self.secret, &variables));
    }

    /// Read on until the first process comes to a step.
    fn reach(&mut self, step: u64) {
        self.processes[0].read_until(&format!("step {step} ")).unwrap();
    }

    /// Let all end, and see that those who finished are so many, with equal parameters, and every sample counted once.
    fn finish(mut self, finished: usize) -> Vec<Vec<String>> {
        drop(self.held_by.take());
        let ends: Vec<Option<String>> =
            self.processes.iter_mut().map(|process| process.read_until("parameters ")).collect();
        let said: Vec<Vec<String>> = self.processes.iter().map(|it| it.said.clone()).collect();
        let ends: Vec<String> = ends.into_iter().flatten().collect();
        assert_eq!(ends.len(), finished, "{said:#?}");
        assert!(ends.iter().all(|end| *end == ends[0]), "{ends:?}");
        let lines = said.iter().flatten();
        let back: Vec<&str> = lines.clone().filter_map(|line| line.strip_prefix("back ")).collect();
        let mut counts: BTreeMap<u64, usize> = (0..SAMPLES).map(|sample| (sample, 0)).collect();
        for line in lines.filter_map(|line| line.strip_prefix("dealt ")) {
            let (of, samples) = line.rsplit_once(' ').unwrap();
            if !back.contains(&of) {
                let samples = samples.split(',').map(|sample| sample.parse::<u64>().unwrap());
                samples.for_each(|sample| *counts.entry(sample).or_default() += 1);
            }
        }
        let wrong: Vec<_> = counts.iter().filter(|(_, count)| **count != 1).collect();
        assert!(wrong.is_empty(), "samples and how often: {wrong:?}, back: {back:?}");
        said
    }
}

/// Whether some process had a step with so many workers.
fn was(said: &[Vec<String>], size: usize) -> bool {
    let end = format!(" with {size}");
    said.iter().flatten().any(|line| line.starts_with("step ") && line.ends_with(&end))
}

#[test]
fn a_newcomer_gets_the_state_and_all_end_with_equal_parameters_and_every_sample_once() {
    for (transport, way) in [
        ("auto", "standing still"),
        ("tcp", "standing still"),
        ("auto", "listening"),
        ("tcp", "listening"),
    ] {
        let mut job = Job::that(&[""; 2], transport, way);
        job.reach(5);
        job.add("");
        job.reach(20);
        let said = job.finish(3);
        assert!(was(&said, 3), "{transport}, {way}");
    }
}

#[test]
fn one_that_is_killed_while_somebody_listens_is_not_missed() {
    for (old, newcomer, finished) in [("", "listening", 2), ("sharing", "", 2)] {
        let mut job = Job::that(&["", old], "auto", "listening");
        job.reach(5);
        job.add(newcomer);
        job.finish(finished);
    }
}

/// Wait for something that comes soon.
fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..3000 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("not in half a minute: {what}");
}

#[test]
fn workers_that_are_asked_to_leave_finish_their_step_and_the_others_go_on() {
    let mut job = Job::keeping_spares(4);
    job.reach(3);
    job.coordinator.resize(2).unwrap();
    until("two have left", || job.coordinator.census().unwrap().retired.len() == 2);
    let said = job.finish(2);
    assert!(was(&said, 2));
    let retired = said.iter().flatten().filter(|line| line.contains("retired at"));
    assert_eq!(retired.count(), 2, "{said:#?}");
}

#[test]
fn nobody_is_asked_to_leave_in_place_of_one_that_is_dying() {
    let mut job = Job::keeping_spares(4);
    job.reach(3);
    // The coordinator need not know yet.
    job.processes[1].kill();
    job.coordinator.resize(3).unwrap();
    until("three are left", || job.coordinator.status().unwrap().members.len() == 3);
    assert_eq!(job.coordinator.census().unwrap().retired, [0; 0]);
    let said = job.finish(3);
    assert!(was(&said, 3), "{said:#?}");
}

#[test]
fn a_newcomer_that_is_killed_as_it_enters_is_not_missed() {
    let mut job = Job::start(3, "auto");
    job.reach(5);
    job.add("entered");
    let said = job.finish(3);
    assert!(was(&said, 4), "it entered: {said:#?}");
}

#[test]
fn a_state_that_loses_a_sender_comes_from_the_others() {
    let mut job = Job::of(&["", "", "sharing"], "auto");
    job.reach(5);
    job.add("");
    let said = job.finish(3);
    assert!(was(&said, 4) && was(&said, 3), "{said:#?}");
}

#[test]
fn whoever_comes_to_a_job_that_keeps_spares_waits_until_it_is_wanted_or_somebody_is_lost() {
    let mut job = Job::keeping_spares(2);
    job.reach(3);
    // Working, and spares, at one moment.
    let count = |job: &Job| {
        let status = job.coordinator.status().unwrap();
        let of = |standing| status.members.iter().filter(|it| it.standing == standing).count();
        (of(Standing::Working), of(Standing::Spare))
    };
    // They are let in as they came.
    for (spares, die_at) in (1..).zip(["", "entered", ""]) {
        job.add(die_at);
        while count(&job).1 < spares {
            job.processes[0].read_until("step ").unwrap();
        }
    }
    assert_eq!(count(&job).0, 2);
    assert_eq!(job.coordinator.census().unwrap().entered.len(), 2);
    // One of the three dies as it enters; another takes its place.
    job.coordinator.resize(4).unwrap();
    while count(&job) != (4, 0) {
        job.processes[0].read_until("step ").unwrap();
    }
    let census = job.coordinator.census().unwrap();
    assert_eq!((census.wanted, census.entered.len(), census.done), (4, 5, false));
    let said = job.finish(4);
    assert!(was(&said, 4), "{said:#?}");
}

#[test]
fn a_spare_that_nobody_needs_hears_that_the_job_is_over() {
    let mut job = Job::keeping_spares(2);
    job.reach(3);
    job.add("");
    job.processes[2].read_until("ready").unwrap();
    let said = job.finish(2);
    assert!(said[2].iter().any(|line| line == "not needed"), "{said:#?}");
    assert!(!was(&said, 3), "{said:#?}");
}

#[test]
fn whoever_holds_the_secret_may_ask_from_elsewhere() {
    let mut job = Job::keeping_spares(3);
    job.reach(3);
    let address = job.coordinator.address().to_string();
    let stranger = ask(&address, &Secret::random().unwrap(), Question::Status).unwrap_err();
    assert!(stranger.to_string().contains("secret"), "{stranger}");

    let put = |question| ask(&address, &job.secret, question).unwrap();
    let Answer::Status(status) = put(Question::Status) else { panic!("another answer") };
    assert_eq!(status.members.len(), 3);
    // Workers are started by others here.
    let Answer::Refused(reason) = put(Question::Resize(4)) else { panic!("another answer") };
    assert!(reason.contains("has 3 workers, and nobody here starts more"), "{reason}");
    assert_eq!(put(Question::Resize(2)), Answer::Begun);
    let said = job.finish(2);
    assert!(said.iter().flatten().any(|line| line.contains("retired at")), "{said:#?}");
}

#[test]
fn a_wish_for_workers_that_nobody_starts_is_refused_with_the_reason() {
    let mut job = Job::of(&["wishing", ""], "auto");
    let reason = job.processes[0].read_until("refused: ").expect("it hears why");
    assert!(reason.contains("nobody here starts more, up to 9"), "{reason}");
    job.finish(2);
}

#[test]
fn the_coordinator_says_how_the_job_stands() {
    let mut job = Job::start(2, "auto");
    job.reach(3);
    let status = job.coordinator.status().unwrap();
    let ranks: Vec<Option<u32>> = status.members.iter().map(|member| member.rank).collect();
    assert_eq!(ranks, [Some(0), Some(1)]);
    assert!(status.members.iter().all(|member| member.standing == Standing::Working));
    let error = job.coordinator.resize(0).unwrap_err().to_string();
    assert!(error.contains("limits"), "{error}");
    job.finish(2);
}

#[test]
fn an_elastic_job_refuses_strategies_that_do_not_count_all_workers() {
    let mut config =
        CoordinatorConfig::new("127.0.0.1:0".parse().unwrap(), 2, Secret::random().unwrap());
    config.elastic = Some(Limits::default());
    config.settings.strategy = paceline_job::StrategyChoice("parameter_server:1:apart".to_string());
    let error = Coordinator::start(config).unwrap_err();
    assert!(matches!(error, NetError::StrategyNotElastic { .. }), "{error}");
}
