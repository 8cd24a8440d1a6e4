//! Threads that wait for collectives of Gloo, which run on threads of its own. No event says so: a wait is put where PyTorch waits.
//! What a collective is, is found out elsewhere.

use super::{
    ROUNDING,
    gather::{Class, Gathered},
    nesting::Nesting,
    threads::busy,
};
use crate::trace::{Kind, LaneId, Phase, Span, SpanId, Stamp, problems::Problems};
use std::collections::BTreeMap;

/// What the wait is called.
const NAME: &str = "wait for Gloo";

/// Put waits on the threads that handed collectives over: for those of a backward pass after the pass, in their order, as DDP does
/// it; for others as soon as they were handed over. A wait is where the thread does nothing until the collective is over; one
/// that the recorded times refute is not taken. Adds spans.
pub fn wait_for_collectives(
    gathered: &Gathered,
    nesting: &Nesting,
    spans: &mut Vec<Span>,
    problems: &mut Problems,
) {
    let mut handed: BTreeMap<LaneId, Vec<(usize, usize)>> = BTreeMap::new();
    for (at, (span, note)) in spans.iter().zip(&gathered.notes).enumerate() {
        if matches!(span.kind, Kind::Collective(_))
            && note.class == Class::Annotation
            && let Some(post) = span.after.first()
        {
            let post = post.0 as usize;
            handed.entry(gathered.raw[post].lane).or_default().push((post, at));
        }
    }
    let turns = turns(gathered, nesting);
    let (mut tied, mut refuted) = (0, 0);
    for (lane, mut collectives) in handed {
        collectives.sort_unstable();
        let thread = Thread { gathered, nesting, busy: busy(gathered, nesting, spans, lane) };
        let mut waits: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
        let mut before = 0;
        for (post, at) in collectives {
            let place = thread.wait(post, at, &turns, before);
            match place {
                Some(place) => waits.entry(place).or_default().push(at),
                None => refuted += 1,
            }
            if nesting.phases[post] == Phase::Backward {
                before = place.unwrap_or(before);
            }
        }
        for (place, collectives) in waits {
            tied += collectives.len() as u64;
            let begin = thread.end(place);
            let over = collectives.iter().map(|at| gathered.raw[*at].end()).max();
            let next = thread.begin(place + 1).unwrap_or(Stamp(i64::MAX));
            spans.push(Span {
                name: NAME.into(),
                lane,
                begin,
                length: over.map_or(0, |over| over.min(next).since(begin)),
                kind: Kind::Wait,
                after: collectives.into_iter().map(|at| SpanId(at as u32)).collect(),
            });
        }
    }
    problems.add_times(
        "the file does not say when threads wait for Gloo; they are taken to do so after the backward pass, or at once outside of it",
        tied,
    );
    problems.add_times(
        "a thread went on before a collective of Gloo was over; nothing waits for it",
        refuted,
    );
}

/// When the pass that comes after a backward pass begins, in order: an update or the next forward pass.
fn turns(gathered: &Gathered, nesting: &Nesting) -> Vec<Stamp> {
    let is_turn = |phase: Phase| matches!(phase, Phase::Forward | Phase::Update);
    let all = gathered.raw.iter().zip(&nesting.phases);
    all.filter(|(_, phase)| is_turn(**phase)).map(|(raw, _)| raw.begin).collect()
}

/// What one thread did, one after another, without what lies inside.
struct Thread<'a> {
    gathered: &'a Gathered,
    nesting: &'a Nesting,
    busy: Vec<usize>,
}

impl Thread<'_> {
    fn begin(&self, place: usize) -> Option<Stamp> {
        self.busy.get(place).map(|at| self.gathered.raw[*at].begin)
    }

    fn end(&self, place: usize) -> Stamp {
        self.gathered.raw[self.busy[place]].end()
    }

    /// After which of its doings the thread waits for a collective, from `before` on if it is one of a backward pass.
    fn wait(&self, post: usize, at: usize, turns: &[Stamp], before: usize) -> Option<usize> {
        let posted = self.gathered.raw[post].begin;
        let own = self.busy.partition_point(|at| self.gathered.raw[*at].begin <= posted);
        let own = own.checked_sub(1)?;
        let is_backward = |at: usize| self.nesting.phases[at] == Phase::Backward;
        // Nothing of a pass comes after the next one's begin.
        let turn = turns.partition_point(|turn| *turn <= posted);
        let turn = turns.get(turn).copied().filter(|_| is_backward(post));
        let turn = turn.unwrap_or(Stamp(i64::MAX));
        let limit = self.busy.partition_point(|at| self.gathered.raw[*at].begin < turn);
        let mut first = own;
        if is_backward(post) {
            let last = self.busy[own..limit].iter().rposition(|at| is_backward(*at));
            first = last.map_or(own, |last| own + last).max(before);
        }
        let over = self.gathered.raw[at].end();
        let waits =
            |place: &usize| self.begin(place + 1).is_none_or(|next| over.since(next) <= ROUNDING);
        (first..limit).find(waits)
    }
}
