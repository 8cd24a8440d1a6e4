//! What a keeper does when somebody is lost: workers tell each other what they hold, and each does its part of the plan that follows.
//! How operations begin and end otherwise, and what a plan is, is not known here.

use super::{Exchange, Keeper, Operation, Order, Part, Phase, Source, hear, irrecoverable};
use crate::{
    collective::Collective,
    event::{OpId, Post},
    recovery::{
        Name,
        plan::{Account, Piece, Remedy, Way, account, plan},
        report::{Entry, Kind, REPORT_BYTES, Report},
    },
};
use paceline_job::{Dtype, Rank, ReduceOp, View, WorkerId};
use std::{collections::BTreeMap, ops::Range, sync::Arc};

impl Keeper {
    /// This view is in force instead of the one before, in which somebody is gone. The engine before is stopped for
    /// good; `finals` says what it had finished of each of its operations.
    pub fn succeed(
        &mut self,
        view: Arc<View>,
        finals: impl Fn(OpId) -> Vec<Range<u64>>,
        out: &mut Vec<Order>,
    ) {
        let last = self.view.version;
        for id in self.view.ids().filter(|id| view.rank_of(*id).is_none()) {
            self.gone.insert(id, last);
            self.unaccounted.push(id);
        }
        let parts = std::mem::take(&mut self.parts);
        for (op, part) in (0..).map(OpId).zip(parts) {
            match part {
                Some(Part::Of(name, range, view, partners)) => {
                    let Some(operation) = self.operations.get_mut(&name) else { continue };
                    for within in finals(op) {
                        hear(&mut self.heard, &partners, operation.post.holds);
                        let (start, end) = (range.start + within.start, range.start + within.end);
                        operation.held.add(start..end.min(range.end), view);
                    }
                }
                Some(Part::Other(ticket, name)) => {
                    let peer = self.unaccounted.last().and_then(|id| self.view.rank_of(*id));
                    out.push(Order::Fail(ticket, irrecoverable(name, peer.unwrap_or(Rank(0)))));
                }
                Some(Part::HandedOver(_) | Part::Lengths | Part::Reports) | None => {}
            }
        }
        self.coming.push_back(view.clone());
        self.view = view;
        self.expected.clear();
        self.account = None;
        let names: Vec<Name> = self.operations.keys().copied().collect();
        for name in names {
            if let Some(operation) = self.operations.get_mut(&name) {
                operation.parts = 0;
            }
            self.finish_if_whole(name, out);
        }
        let report = self.report().encode();
        let length = (report.len() as u64).to_le_bytes().to_vec();
        self.exchange = Some(Exchange { report, lengths: Vec::new() });
        let counts = vec![8; self.view.size()];
        self.all_gather(Part::Lengths, length, counts, out);
    }

    /// An exchange brought these bytes. An error names the worker that sent what is no report.
    pub fn exchanged(&mut self, op: OpId, bytes: &[u8], out: &mut Vec<Order>) -> Result<(), Rank> {
        let part = self.parts.get_mut(op.0 as usize).and_then(Option::take);
        let Some(exchange) = &mut self.exchange else { return Ok(()) };
        match part {
            Some(Part::Lengths) => {
                let (lengths, _) = bytes.as_chunks::<8>();
                let lengths: Vec<u64> = lengths.iter().map(|it| u64::from_le_bytes(*it)).collect();
                if let Some(rank) = lengths.iter().position(|length| *length > REPORT_BYTES) {
                    return Err(Rank(rank as u32));
                }
                exchange.lengths = lengths.clone();
                let report = std::mem::take(&mut exchange.report);
                self.all_gather(Part::Reports, report, lengths, out);
                Ok(())
            }
            Some(Part::Reports) => {
                let mut reports = Vec::new();
                let mut rest = bytes;
                for (rank, length) in (0..).map(Rank).zip(std::mem::take(&mut exchange.lengths)) {
                    let (report, others) = rest.split_at_checked(length as usize).ok_or(rank)?;
                    reports.push(Report::decode(report).ok_or(rank)?);
                    rest = others;
                }
                self.exchange = None;
                self.recover(&reports, out);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    pub(super) fn all_gather(
        &mut self,
        part: Part,
        input: Vec<u8>,
        counts: Vec<u64>,
        out: &mut Vec<Order>,
    ) {
        let name = if matches!(part, Part::Lengths) { "\u{1}lengths" } else { "\u{1}reports" };
        let output_bytes = counts.iter().sum::<u64>() as usize;
        let post = Post {
            priority: i64::MIN,
            in_place: false,
            ..Post::new(
                self.part(part),
                name,
                Collective::AllGather { counts: counts.into() },
                Dtype::U8,
            )
        };
        out.push(Order::Exchange { post, input, output_bytes });
    }

    pub(super) fn report(&self) -> Report {
        let entry = |op: &Operation| Entry {
            step: op.step,
            len: op.len,
            kind: op.kind,
            samples: op.samples.clone(),
            held: op.held.clone(),
        };
        let entries = self.operations.iter().map(|(name, op)| (*name, entry(op))).collect();
        Report {
            step: self.step,
            since: self.since.clone(),
            over: self.over,
            passed: self.passed.clone(),
            heard: self.heard.clone(),
            told: self.told.clone(),
            gone: self.gone.clone(),
            uses: self.uses.clone(),
            entries,
        }
    }

    /// All reports are here: everybody now does what follows from them.
    pub(super) fn recover(&mut self, reports: &[Report], out: &mut Vec<Order>) {
        self.over = reports.iter().map(|report| report.over).fold(self.over, u64::max);
        for (id, last) in reports.iter().flat_map(|report| &report.gone) {
            let known = self.gone.entry(*id).or_insert(*last);
            *known = (*known).max(*last);
        }
        self.agree_on_steps(reports);
        self.account = (!self.unaccounted.is_empty()).then(|| {
            let since = |id: &WorkerId| {
                let without = self.coming.iter().find(|view| view.rank_of(*id).is_none());
                without.and_then(|view| self.since.get(&view.version).copied())
            };
            let since = self.unaccounted.iter().map(|id| (*id, since(id).unwrap_or(self.step)));
            Account { since: since.collect(), ..account(&self.unaccounted, reports) }
        });
        for (name, remedy) in plan(&self.view, reports) {
            let step = reports.iter().find_map(|report| Some(report.entries.get(&name)?.step));
            let step = step.unwrap_or(self.step);
            if self.operations.get(&name).is_some_and(|op| op.phase != Phase::Queued) {
                self.apply(name, remedy, out);
            } else if self.operations.contains_key(&name)
                || self.uses.get(&name.hash).is_none_or(|uses| *uses <= name.uses)
            {
                self.expected.insert(name, (step, remedy));
            }
        }
        for postponed in std::mem::take(&mut self.postponed) {
            self.take(postponed, out);
        }
        self.tell_account_if_recovered(out);
    }

    /// From which step callers go by the views that came in force: by this one from the first that nobody has begun, by
    /// one before as somebody may do already.
    pub(super) fn agree_on_steps(&mut self, reports: &[Report]) {
        for report in reports {
            self.since.extend(report.since.iter().map(|(view, step)| (*view, *step)));
        }
        let first = reports.iter().map(|report| report.step + 1).fold(self.step + 1, u64::max);
        self.since.entry(self.view.version).or_insert(first);
        self.follow_settings();
        let since = &self.since;
        self.coming.retain(|view| since.contains_key(&view.version));
    }

    /// Others may go by settings that somebody's loss kept from here. They are those of the view that came with it, since no
    /// others are agreed on before everybody has that.
    pub(super) fn follow_settings(&mut self) {
        let missed = self.since.range(self.known.version..self.view.version);
        for version in missed.map(|(version, _)| *version).filter(|it| *it > self.known.version) {
            let place = self.coming.partition_point(|view| view.version < version);
            if let Some(next) = self.coming.get(place).filter(|next| next.version > version) {
                let before = place.checked_sub(1).map_or(&self.known, |at| &self.coming[at]);
                let settings = next.settings.clone();
                let view = View { version, settings, ..(**before).clone() };
                self.coming.insert(place, Arc::new(view));
            }
        }
    }

    /// Do our part of a remedy.
    pub(super) fn apply(&mut self, name: Name, remedy: Remedy, out: &mut Vec<Order>) {
        let Some(operation) = self.operations.get(&name) else { return };
        let complete = operation.phase == Phase::Complete;
        let pieces = match remedy {
            Remedy::Pieces(pieces) => pieces,
            Remedy::Among(ranks) if operation.kind == Kind::Mix => {
                vec![Piece { start: 0, end: operation.len, way: Way::Among(ranks) }]
            }
            Remedy::Hopeless | Remedy::Among(_) if complete => return,
            Remedy::Hopeless | Remedy::Among(_) => return self.give_up(name, out),
        };
        let me = self.view.rank_of(self.me);
        for Piece { start, end, way } in pieces {
            let Some(operation) = self.operations.get(&name) else { return };
            let (ticket, len) = (operation.ticket, end - start);
            let (part, collective, group, source) = match way {
                Way::Again if complete => continue,
                Way::Again => {
                    let collective = match (&operation.post.collective, operation.kind) {
                        (Collective::AllReduce { .. }, _) => Collective::AllReduce { len },
                        (_, Kind::Broadcast(root)) => {
                            let root = self.view.rank_of(root).map_or(0, |rank| rank.0);
                            Collective::Broadcast { root, len }
                        }
                        (other, Kind::Reduce | Kind::Mix) => other.clone(),
                    };
                    let part = Part::Of(name, start..end, self.view.version, [].into());
                    (part, collective, None, Source::Caller(ticket, start))
                }
                Way::Among(ranks) if me.is_none_or(|me| !ranks.contains(&me)) => continue,
                Way::Among(ranks) => {
                    let partners = match operation.partners.is_empty() {
                        true => [].into(),
                        false => self.view.workers_at(&ranks),
                    };
                    let part = Part::Of(name, start..end, self.view.version, partners);
                    let group: Arc<[Rank]> = ranks.into();
                    (
                        part,
                        Collective::AllReduce { len },
                        Some(group),
                        Source::Caller(ticket, start),
                    )
                }
                Way::HandOver(ranks, view) => {
                    let place = ranks.iter().position(|rank| Some(*rank) == me);
                    let (part, source) = match (place, complete) {
                        (None, _) => continue,
                        (Some(0), true) => {
                            (Part::HandedOver(name), Source::Retained(ticket, start))
                        }
                        (Some(0), false) => (Part::HandedOver(name), Source::Output(ticket, start)),
                        (Some(_), true) => continue,
                        (Some(_), false) => {
                            let part = Part::Of(name, start..end, view, [].into());
                            (part, Source::Output(ticket, start))
                        }
                    };
                    let group: Arc<[Rank]> = ranks.into();
                    (part, Collective::Broadcast { root: 0, len }, Some(group), source)
                }
            };
            // What is mixed is in nobody else's copy as it will be here.
            let receives = matches!(part, Part::Of(..)) && operation.kind != Kind::Mix;
            let op = self.part(part);
            let listeners = match &group {
                None => self.operations.get(&name).map(|op| self.listening(&op.listeners)),
                Some(_) => None,
            };
            let Some(operation) = self.operations.get_mut(&name) else { return };
            operation.parts += 1;
            operation.recovering |= receives;
            let in_place = !matches!(source, Source::Caller(..)) || operation.post.in_place;
            let post = Post {
                op,
                name: format!("\u{1}{:016x}.{}.{start}", name.hash, name.uses).into(),
                collective,
                reduce: match operation.kind {
                    // Over all whom the plan names.
                    Kind::Mix => ReduceOp::Average,
                    Kind::Reduce | Kind::Broadcast(_) => operation.post.reduce,
                },
                group,
                in_place,
                listeners: listeners.unwrap_or(0),
                ..operation.post.clone()
            };
            out.push(Order::Post(post, source));
        }
    }

    /// Whether something of earlier steps is elsewhere and not here yet.
    pub(super) fn is_recovering_before(&self, step: u64) -> bool {
        let recovering = |operation: &Operation| operation.recovering && operation.step < step;
        self.exchange.is_some()
            || self.expected.values().any(|(posted, remedy)| *posted < step && !remedy.mixes())
            || self.operations.values().any(recovering)
    }

    pub(super) fn tell_account_if_recovered(&mut self, out: &mut Vec<Order>) {
        let Some(account) = self.account.take() else { return };
        let (open, told): (BTreeMap<_, _>, BTreeMap<_, _>) =
            account.since.iter().partition(|(_, since)| self.is_recovering_before(**since));
        let of = |since: BTreeMap<WorkerId, u64>| {
            let gone: Vec<WorkerId> = since.keys().copied().collect();
            (!gone.is_empty()).then(|| Account { gone, since, ..account.clone() })
        };
        self.unaccounted.retain(|id| open.contains_key(id));
        self.told.extend(account.consumed.iter().filter(|(id, ..)| told.contains_key(id)));
        out.extend(of(told).map(Order::Recovered));
        self.account = of(open);
    }
}
