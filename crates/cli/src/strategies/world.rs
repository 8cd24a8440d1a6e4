//! A small world: one strategy's programs for a few ranks, what the checker proves of them, and how that is said. It
//! does not know how it is asked for or where its words go.

use super::text::{count, wrapped};
use paceline_sync::{
    checker::{Expectation, Matrix, Proof, Violation, check, contraction},
    listing,
    program::{Instr, Program, Semantics, Site, Span, Strategy},
};
use serde::Serialize;
use std::{borrow::Cow, sync::Arc};

/// How many steps the mixing of an averaging strategy is followed.
const STEPS: u64 = 32;

/// With more ranks it is not followed: that takes their square for each step. Plans of groups are proven by themselves.
const MOST_FOLLOWED: u32 = 64;

/// A disagreement below this is rounding of the proof's own arithmetic.
const NOTHING: f64 = 1e-9;

/// How many ranks, on how many hosts; no host is empty.
#[derive(Clone, Copy, Debug)]
pub struct WorldSize {
    /// At least one.
    pub ranks: u32,
    /// From one to the number of ranks.
    pub hosts: u32,
}

impl WorldSize {
    /// Neighbours together, hosts as equal as can be.
    pub fn host_of_each_rank(self) -> Arc<[u32]> {
        let ranks = Span { offset: 0, len: self.ranks.into() };
        (0..self.hosts)
            .flat_map(|host| (0..ranks.part(host, self.hosts).len).map(move |_| host))
            .collect()
    }
}

/// All programs of one chunk.
pub struct World<'a> {
    strategy: &'a dyn Strategy,
    size: WorldSize,
    span: Span,
    step: u64,
    programs: Vec<Box<dyn Program>>,
}

/// What a world and its proof look like to other programs.
#[derive(Serialize)]
pub struct WorldJson {
    strategy: Cow<'static, str>,
    ranks: u32,
    hosts: Arc<[u32]>,
    elements: u64,
    step: u64,
    rounds: u32,
    messages: u64,
    elements_sent: u64,
    busiest_rank_messages: u64,
    busiest_rank_elements: u64,
    /// Averaging strategies only: what is left of the disagreement after [`STEPS`] steps.
    #[serde(skip_serializing_if = "Option::is_none")]
    disagreement_left: Option<f64>,
    programs: Vec<ProgramJson>,
}

#[derive(Serialize)]
struct ProgramJson {
    rank: u32,
    lanes: Vec<Vec<Instr>>,
}

impl<'a> World<'a> {
    /// Make the programs.
    pub fn new(strategy: &'a dyn Strategy, size: WorldSize, span: Span, step: u64) -> World<'a> {
        let programs = programs(strategy, size, span, step);
        World { strategy, size, span, step, programs }
    }

    /// Run the checker.
    pub fn prove(&self) -> Result<Proof, Violation> {
        check(&self.programs, &self.expectation())
    }

    /// A space-time diagram.
    pub fn draw(&self) -> Result<String, Violation> {
        listing::svg(&self.programs)
    }

    /// One rank's program.
    pub fn listing(&self, rank: u32) -> String {
        listing::describe(self.programs[rank as usize].as_ref())
    }

    /// What was proven, in a few sentences.
    pub fn words(&self, proof: &Proof) -> String {
        let WorldSize { ranks, hosts } = self.size;
        let promises = match self.strategy.semantics() {
            Semantics::Reduce => [
                match self.strategy.contributors(ranks) {
                    workers if workers < ranks => format!(
                        "Every rank ends with the {} of the first {}, exactly once; the others only serve.",
                        if workers == 1 { "contribution" } else { "contributions" },
                        count(workers.into(), "rank"),
                    ),
                    _ => "Every rank ends with every rank's contribution, exactly once.".to_string(),
                },
                "All ranks add an element in the same order: results are equal to the last bit.".to_string(),
            ],
            Semantics::Averaging => [
                "Every rank ends with an average, and over all ranks each contribution weighs the same."
                    .to_string(),
                match self.disagreement_left() {
                    None => format!(
                        "What is left of disagreement is followed for up to {MOST_FOLLOWED} ranks."
                    ),
                    Some(left) if left < NOTHING => {
                        format!("After {STEPS} steps from this one, all ranks agree.")
                    }
                    Some(left) => format!(
                        "Over {STEPS} steps from this one, disagreement shrinks to {left:.1e} of what it was, or less."
                    ),
                },
            ],
        };
        let costs = format!(
            "The longest chain is {}; the busiest rank sends {} with {}, {:.2} times the chunk.",
            count(proof.rounds.into(), "message"),
            count(proof.busiest_messages, "message"),
            count(proof.busiest_elements, "element"),
            proof.busiest_elements as f64 / self.span.len as f64,
        );
        let others = [
            "Every message finds its receiver: nobody waits for ever.".to_string(),
            "In place, nothing is read after it was overwritten, and each result is written once."
                .to_string(),
            costs,
        ];
        let sentences: String = promises.iter().chain(&others).map(|it| wrapped(it)).collect();
        format!(
            "Proven for {} on {} and {}:\n{sentences}",
            count(ranks.into(), "rank"),
            count(hosts.into(), "host"),
            count(self.span.len, "element"),
        )
    }

    /// For other programs, with the instructions of these ranks.
    pub fn to_json(&self, proof: &Proof, listed: &[u32]) -> WorldJson {
        let instructions = |rank: u32| {
            let program = &self.programs[rank as usize];
            let lane = |lane| (0..).map_while(|pc| program.instr(lane, pc)).collect();
            ProgramJson { rank, lanes: (0..program.lanes()).map(lane).collect() }
        };
        WorldJson {
            strategy: self.strategy.name(),
            ranks: self.size.ranks,
            hosts: self.size.host_of_each_rank(),
            elements: self.span.len,
            step: self.step,
            rounds: proof.rounds,
            messages: proof.messages,
            elements_sent: proof.elements,
            busiest_rank_messages: proof.busiest_messages,
            busiest_rank_elements: proof.busiest_elements,
            disagreement_left: self.disagreement_left(),
            programs: listed.iter().map(|rank| instructions(*rank)).collect(),
        }
    }

    fn expectation(&self) -> Expectation {
        Expectation::of_strategy(self.strategy, self.size.ranks, self.span)
    }

    /// For averaging strategies: what is left of the disagreement after some steps, for the element that
    /// fares worst.
    fn disagreement_left(&self) -> Option<f64> {
        if self.strategy.semantics() != Semantics::Averaging || self.size.ranks > MOST_FOLLOWED {
            return None;
        }
        let expectation = self.expectation();
        let mixings: Vec<Vec<(Span, Matrix)>> = (self.step..self.step.saturating_add(STEPS))
            .map(|step| {
                let programs = programs(self.strategy, self.size, self.span, step);
                check(&programs, &expectation).map(|proof| proof.mixing)
            })
            .collect::<Result<_, Violation>>()
            .ok()?;
        // Between two borders of any step, all elements fare alike.
        let borders = mixings.iter().flatten().map(|(span, _)| span.offset);
        let of_element = |element: u64| {
            let mixing = |step: &Vec<(Span, Matrix)>| {
                let holds = |span: &Span| span.offset <= element && element < span.end();
                step.iter().find(|(span, _)| holds(span)).map(|(_, matrix)| matrix.clone())
            };
            let period: Option<Vec<Matrix>> = mixings.iter().map(mixing).collect();
            period.map_or(1.0, |period| contraction(&period))
        };
        let mut elements: Vec<u64> = borders.collect();
        elements.sort_unstable();
        elements.dedup();
        Some(elements.into_iter().map(of_element).fold(0.0, f64::max))
    }
}

fn programs(
    strategy: &dyn Strategy,
    size: WorldSize,
    span: Span,
    step: u64,
) -> Vec<Box<dyn Program>> {
    let hosts = size.host_of_each_rank();
    let site = |me| Site { hosts: Arc::clone(&hosts), me, step, seed: 0 };
    (0..size.ranks).map(|me| strategy.program(&site(me), span)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use paceline_sync::strategy;

    #[test]
    fn hosts_are_filled_evenly_with_neighbours() {
        let hosts = |ranks, hosts| WorldSize { ranks, hosts }.host_of_each_rank().to_vec();
        assert_eq!(hosts(4, 2), [0, 0, 1, 1]);
        assert_eq!(hosts(5, 2), [0, 0, 0, 1, 1]);
        assert_eq!(hosts(3, 3), [0, 1, 2]);
    }

    #[test]
    fn every_strategy_is_proven_in_small_worlds() {
        let span = Span { offset: 0, len: 16 };
        for strategy in strategy::all() {
            for (ranks, hosts) in [(1, 1), (4, 1), (6, 3), (7, 2)] {
                let world = World::new(strategy.as_ref(), WorldSize { ranks, hosts }, span, 0);
                let proof = world.prove().unwrap();
                assert!(world.words(&proof).starts_with("Proven for "));
            }
        }
    }

    #[test]
    fn averaging_brings_ranks_together_and_summing_has_no_such_number() {
        let span = Span { offset: 0, len: 4 };
        let left = |name: &str| {
            let strategy = strategy::find(name).unwrap();
            let size = WorldSize { ranks: 4, hosts: 1 };
            World::new(strategy.as_ref(), size, span, 0).disagreement_left()
        };
        assert!(left("gossip").unwrap() < 0.5);
        assert_eq!(left("ring"), None);
    }
}
