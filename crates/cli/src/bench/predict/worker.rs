//! The measured worker's side: all-reduces with a rest and a barrier between any two, so that every one begins on
//! all workers at the same time, on a network that has come to rest. It does not know how either is done.
//!
//! Back to back, a worker that is through early begins the next all-reduce while others still wait for messages of
//! the last, and its bytes queue before theirs. Each delay then makes the next one longer: recursive doubling over
//! eight hosts settles at two and a half times the time that it takes from a common start. Both are real; only the
//! latter is a property of one all-reduce. And a token bucket lets through at once what it has saved up: after a rest
//! that is always the same.

use super::super::worker::{Subject, Sums};
use anyhow::Result;
use std::time::Duration;

/// A subject whose calls take turns: all-reduce, barrier, all-reduce, barrier.
pub struct Aligned {
    subject: Box<dyn Subject>,
    rest: Duration,
    next: Turn,
}

#[derive(Clone, Copy)]
enum Turn {
    AllReduce,
    Barrier,
}

impl Aligned {
    /// The first call all-reduces; before each barrier it rests.
    pub fn new(subject: Box<dyn Subject>, rest: Duration) -> Aligned {
        Aligned { subject, rest, next: Turn::AllReduce }
    }
}

impl Subject for Aligned {
    fn about(&self) -> String {
        self.subject.about()
    }

    fn place(&self) -> (u32, u32) {
        self.subject.place()
    }

    fn sums(&self) -> Sums {
        self.subject.sums()
    }

    fn allocate(&mut self, lengths: &[usize]) -> Result<()> {
        self.next = Turn::AllReduce;
        self.subject.allocate(lengths)
    }

    fn buffers(&mut self) -> Vec<&mut [f32]> {
        self.subject.buffers()
    }

    fn barrier(&mut self) -> Result<()> {
        self.subject.barrier()
    }

    fn all_reduce(&mut self) -> Result<()> {
        match self.next {
            Turn::AllReduce => {
                self.next = Turn::Barrier;
                self.subject.all_reduce()
            }
            Turn::Barrier => {
                self.next = Turn::AllReduce;
                std::thread::sleep(self.rest);
                self.subject.barrier()
            }
        }
    }
}
