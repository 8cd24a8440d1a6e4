//! What metrics cost where they are collected: nanoseconds for each moment that is noted.
//!
//! `cargo run --release -p paceline-sync --example meter`

use paceline_job::{Rank, Settings, Time, View, ViewVersion};
use paceline_sync::{
    engine::Engine,
    event::{Action, Event, OpId, Post},
    metrics::{Computed, Meter, Totals, Traffic},
};
use std::{hint::black_box, sync::Arc, time::Instant};

const TENSORS: usize = 161;
const STEPS: u64 = 2000;

fn main() {
    let posts: Vec<Post> = (0..TENSORS).map(post).collect();
    let mut meter = Meter::default();
    let (mut posting, mut waiting, mut beginning) = (0, 0, 0);
    for step in 0..STEPS {
        let at = |number: usize| Time(step * 100_000_000 + 100_000 * number as u64);
        let since = Instant::now();
        meter.begin_step(step, ViewVersion(1), at(0), Totals::default());
        beginning += since.elapsed().as_nanos();
        let since = Instant::now();
        for number in 0..TENSORS {
            meter.waited(Some((TENSORS - 1 - number) as u32), at(number), at(number));
        }
        waiting += since.elapsed().as_nanos();
        let since = Instant::now();
        for (number, post) in posts.iter().enumerate() {
            if let Some(tensor) = Meter::tensor(post, Computed::Here) {
                black_box(meter.posted(tensor, at(TENSORS + number), at(TENSORS + number)));
            }
        }
        posting += since.elapsed().as_nanos();
    }
    let each = STEPS as f64 * TENSORS as f64;
    println!("a post              {:7.1} ns", posting as f64 / each);
    println!("a wait              {:7.1} ns", waiting as f64 / each);
    println!("a step's beginning  {:7.1} ns", beginning as f64 / STEPS as f64);
    println!("a message           {:7.1} ns", message());
    let since = Instant::now();
    for _ in 0..1_000_000 {
        black_box(Instant::now());
    }
    println!("a look at the clock {:7.1} ns", since.elapsed().as_nanos() as f64 / 1e6);
}

fn post(number: usize) -> Post {
    Post {
        reduce: paceline_job::ReduceOp::Average,
        priority: number as i64,
        ..Post::new(
            OpId(number as u32),
            format!("layer{}.{}.convolution.weight", number / 10, number % 10),
            paceline_sync::collective::Collective::AllReduce { len: 1 << 20 },
            paceline_job::Dtype::F32,
        )
    }
}

/// Handed over, and delivered.
fn message() -> f64 {
    const MESSAGES: u64 = 2_000_000;
    let view = Arc::new(View::on_hosts(vec!["a".into(), "b".into()], Settings::default()));
    let mut traffic = Traffic::new(Rank(0), &view);
    // An engine's first message has a token like all others.
    let mut engine = Engine::new(Rank(0), view).expect("`auto` is known");
    let mut actions = Vec::new();
    engine.handle(Time::ZERO, Event::Post(Box::new(post(0))), &mut actions);
    let token = actions.iter().find_map(|action| match action {
        Action::Send { token, .. } => *token,
        _ => None,
    });
    let token = token.expect("a worker sends its part");
    let since = Instant::now();
    for number in 0..MESSAGES {
        traffic.sending(Time(number * 1000), Rank(1), token, 1 << 19);
        traffic.delivered(Time(number * 1000 + 900), token);
    }
    black_box(traffic.totals());
    since.elapsed().as_nanos() as f64 / MESSAGES as f64
}
