//! From the survivors' reports to what each does: a pure function, so that all derive the same without another word.
//! Ranges that somebody holds are handed to those who lack them; ranges that nobody holds are reduced again among all. What is
//! mixed is nobody else's to hand over: who lacks a range averages it with all others who lack it.

use super::{
    Name,
    report::{Entry, Kind, Report},
};
use paceline_job::{Rank, View, ViewVersion, WorkerId};
use std::collections::{BTreeMap, BTreeSet};

/// What becomes of an operation that not everybody has finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// These pieces, which cover what anybody lacks.
    Pieces(Vec<Piece>),
    /// These have not posted it, and the others are through with it. What is mixed these mix among themselves; anything else
    /// has failed on the others, who would know it still if anybody had it, and so it does here.
    Among(Vec<Rank>),
    /// It fails on all who have not finished it; nobody has.
    Hopeless,
}

impl Remedy {
    /// Whether nobody hands anything to anybody: those who lack it average what they have.
    pub fn mixes(&self) -> bool {
        match self {
            Remedy::Among(_) => true,
            Remedy::Pieces(pieces) => pieces.iter().all(|it| matches!(it.way, Way::Among(_))),
            Remedy::Hopeless => false,
        }
    }
}

/// A range that the same workers lack and the same worker provides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Its first element.
    pub start: u64,
    /// One past its last.
    pub end: u64,
    /// How it comes to those who lack it.
    pub way: Way,
}

/// How a piece comes to those who lack it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Way {
    /// All survivors do it again, with what they contributed.
    Again,
    /// These average what they contributed.
    Among(Vec<Rank>),
    /// The first hands it to the others. All workers of this view contributed to it.
    HandOver(Vec<Rank>, ViewVersion),
}

/// What a loss means for the samples of those who are gone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Account {
    /// Steps below this one are long over: everything of them is part of the parameters.
    pub over: u64,
    /// Who contributed to something that is final, and what that holds: from which step to before which.
    pub consumed: BTreeSet<(WorkerId, u64, u64)>,
    /// Who is gone.
    pub gone: Vec<WorkerId>,
    /// From this step on, programs of all workers go on without them: what goes back goes back there.
    pub since: BTreeMap<WorkerId, u64>,
}

impl Account {
    /// Whether what a worker that is gone computed in a step is part of the parameters. If not, its samples of that step
    /// go back.
    pub fn is_consumed(&self, worker: WorkerId, step: u64) -> bool {
        let of = |(id, first, end): &(WorkerId, u64, u64)| {
            *id == worker && (*first..*end).contains(&step)
        };
        step < self.over || self.consumed.iter().any(of)
    }
}

/// By how many uses of a name workers may be apart where they mix in groups, and some need not wait for others. It is a few
/// steps at most; the bound is for reports that cannot be.
const MOST_APART: usize = 64;

/// The remedies for all operations that anybody lacks. `reports` are in rank order.
pub fn plan(view: &View, reports: &[Report]) -> BTreeMap<Name, Remedy> {
    let mut names: BTreeSet<Name> =
        reports.iter().flat_map(|report| report.entries.keys().copied()).collect();
    names.extend(passed_by_some(reports));
    let remedies = names.into_iter().filter_map(|name| Some((name, remedy(view, reports, name)?)));
    remedies.collect()
}

/// Uses that some have posted and others have not.
fn passed_by_some(reports: &[Report]) -> impl Iterator<Item = Name> {
    let hashes: BTreeSet<u64> =
        reports.iter().flat_map(|report| report.uses.keys().copied()).collect();
    hashes.into_iter().flat_map(|hash| {
        let uses = |report: &Report| report.uses.get(&hash).copied().unwrap_or(0);
        let (least, most) = (reports.iter().map(uses).min(), reports.iter().map(uses).max());
        let apart = least.unwrap_or(0)..most.unwrap_or(0);
        apart.take(MOST_APART).map(move |uses| Name { hash, uses })
    })
}

/// What the reports say of those who are gone.
pub fn account(gone: &[WorkerId], reports: &[Report]) -> Account {
    let over = reports.iter().map(|report| report.over).max().unwrap_or(0);
    let mut consumed = BTreeSet::new();
    for worker in gone {
        let last = reports.iter().filter_map(|report| report.gone.get(worker)).max();
        let in_it = |view: &ViewVersion| Some(view) <= last;
        for report in reports {
            let passed = report.passed.iter().filter(|(_, view)| in_it(view));
            let held = report.entries.values().filter(|entry| {
                let by = entry.held.spans().iter().any(|span| in_it(&span.view));
                by && !entry.samples.is_empty()
            });
            let steps = passed.map(|((end, first), _)| *first..*end);
            let heard = report.heard.get(worker).map(|end| 0..*end);
            consumed.extend(report.told.iter().filter(|(id, ..)| id == worker));
            for steps in steps.chain(held.map(|entry| entry.samples.clone())).chain(heard) {
                consumed.insert((*worker, steps.start, steps.end));
            }
        }
    }
    Account { over, consumed, gone: gone.to_vec(), since: BTreeMap::new() }
}

/// How an operation stands with one survivor.
enum Standing<'a> {
    Known(&'a Entry),
    /// Finished, and known to be finished by all.
    Over,
    /// Not posted yet.
    Absent,
}

fn remedy(view: &View, reports: &[Report], name: Name) -> Option<Remedy> {
    let standings: Vec<Standing> = reports.iter().map(|report| standing(report, name)).collect();
    let mut entries = standings.iter().filter_map(|standing| match standing {
        Standing::Known(entry) => Some(*entry),
        _ => None,
    });
    let Some(first) = entries.next() else {
        // Of what was reduced or handed over, whoever is through knows that all are.
        let absent = |(_, it): &(Rank, &Standing)| matches!(it, Standing::Absent);
        let lacking = (0..).map(Rank).zip(&standings).filter(absent);
        return Some(Remedy::Among(lacking.map(|(rank, _)| rank).collect()));
    };
    if entries.any(|entry| entry.len != first.len || entry.kind != first.kind) {
        return Some(Remedy::Hopeless);
    }
    let mut edges = BTreeSet::from([0, first.len]);
    for standing in &standings {
        if let Standing::Known(entry) = standing {
            edges.extend(entry.held.spans().iter().flat_map(|span| [span.start, span.end]));
        }
    }
    let edges: Vec<u64> = edges.into_iter().collect();
    let mut pieces: Vec<(u64, u64, Origin)> = Vec::new();
    for pair in edges.windows(2) {
        let origin = match Origin::of(&standings, pair[0]) {
            origin if origin.lacking.is_empty() => continue,
            origin if origin.holding.is_empty() && !can_be_redone(view, &standings, first) => {
                return Some(Remedy::Hopeless);
            }
            origin => origin,
        };
        match pieces.last_mut() {
            Some((_, end, last)) if *end == pair[0] && *last == origin => *end = pair[1],
            _ => pieces.push((pair[0], pair[1], origin)),
        }
    }
    if pieces.is_empty() {
        return None;
    }
    let pieces = pieces.into_iter().enumerate().map(|(index, (start, end, origin))| {
        let Origin { holding, lacking, view } = origin;
        let way = match (view, holding.is_empty()) {
            _ if first.kind == Kind::Mix => Way::Among(lacking),
            (Some(view), false) => {
                // Those who have it take turns.
                let holder = holding[index % holding.len()];
                Way::HandOver(std::iter::once(holder).chain(lacking).collect(), view)
            }
            _ => Way::Again,
        };
        Piece { start, end, way }
    });
    Some(Remedy::Pieces(pieces.collect()))
}

fn standing(report: &Report, name: Name) -> Standing<'_> {
    match report.entries.get(&name) {
        Some(entry) => Standing::Known(entry),
        None if report.uses.get(&name.hash).is_some_and(|uses| *uses > name.uses) => Standing::Over,
        None => Standing::Absent,
    }
}

/// Whether all of those whom it takes are there: everybody's contribution, or the root.
fn can_be_redone(view: &View, standings: &[Standing], entry: &Entry) -> bool {
    let nobody_is_through = !standings.iter().any(|it| matches!(it, Standing::Over));
    match entry.kind {
        Kind::Reduce => nobody_is_through,
        Kind::Mix => true,
        Kind::Broadcast(root) => nobody_is_through && view.rank_of(root).is_some(),
    }
}

/// Who has an element, and who lacks it.
#[derive(PartialEq, Eq)]
struct Origin {
    holding: Vec<Rank>,
    lacking: Vec<Rank>,
    view: Option<ViewVersion>,
}

impl Origin {
    fn of(standings: &[Standing], element: u64) -> Origin {
        let mut origin = Origin { holding: Vec::new(), lacking: Vec::new(), view: None };
        for (rank, standing) in (0..).map(Rank).zip(standings) {
            match standing {
                Standing::Over => {}
                Standing::Absent => origin.lacking.push(rank),
                Standing::Known(entry) => match entry.held.at(element) {
                    Some(view) => {
                        origin.holding.push(rank);
                        origin.view = origin.view.or(Some(view));
                    }
                    None => origin.lacking.push(rank),
                },
            }
        }
        origin
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recovery::held::Held;
    use paceline_job::Settings;

    const NAME: Name = Name { hash: 1, uses: 0 };

    fn known(held: &[(u64, u64, u32)], kind: Kind) -> Report {
        let mut entry = Entry { step: 3, len: 8, kind, samples: 3..4, held: Held::default() };
        held.iter().for_each(|(start, end, view)| entry.held.add(*start..*end, ViewVersion(*view)));
        let (uses, entries) = ([(1, 1)].into(), [(NAME, entry)].into());
        Report { over: 2, uses, entries, ..Report::default() }
    }

    fn absent() -> Report {
        Report { over: 2, ..Report::default() }
    }

    fn remedy(reports: &[Report]) -> Option<Remedy> {
        let view = View::local(reports.len(), Settings::default());
        plan(&view, reports).remove(&NAME)
    }

    fn pieces(reports: &[Report]) -> Vec<Piece> {
        match remedy(reports) {
            Some(Remedy::Pieces(pieces)) => pieces,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_somebody_holds_is_handed_over_and_the_rest_is_reduced_again() {
        let reduce = Kind::Reduce;
        let reports =
            [known(&[(0, 2, 1)], reduce), known(&[(1, 4, 1)], reduce), known(&[], reduce)];
        let way = |ranks: &[u32]| {
            Way::HandOver(ranks.iter().copied().map(Rank).collect(), ViewVersion(1))
        };
        let expected = [
            (0, 1, way(&[0, 1, 2])),
            (1, 2, way(&[1, 2])),
            (2, 4, way(&[1, 0, 2])),
            (4, 8, Way::Again),
        ];
        let expected = expected.map(|(start, end, way)| Piece { start, end, way });
        assert_eq!(pieces(&reports), expected);
    }

    #[test]
    fn what_all_have_needs_no_remedy_and_who_is_through_gives_none() {
        let whole = || known(&[(0, 8, 1)], Kind::Reduce);
        assert_eq!(remedy(&[whole(), whole()]), None);
        let through = Report { uses: [(1, 1)].into(), ..absent() };
        assert_eq!(remedy(&[whole(), through]), None);
    }

    #[test]
    fn what_nobody_holds_is_done_again_as_a_whole_with_those_who_are_late() {
        let again = Piece { start: 0, end: 8, way: Way::Again };
        assert_eq!(pieces(&[known(&[], Kind::Reduce), absent()]), [again]);
    }

    #[test]
    fn what_is_mixed_is_averaged_by_those_who_lack_it_and_kept_by_those_who_have_it() {
        let mix = Kind::Mix;
        let through = Report { uses: [(1, 1)].into(), ..absent() };
        let reports = [known(&[(0, 2, 1)], mix), known(&[(1, 4, 1)], mix), through, absent()];
        let among = |start, end, ranks: &[u32]| {
            let ranks = ranks.iter().copied().map(Rank).collect();
            Piece { start, end, way: Way::Among(ranks) }
        };
        let expected = [
            among(0, 1, &[1, 3]),
            among(1, 2, &[3]),
            among(2, 4, &[0, 3]),
            among(4, 8, &[0, 1, 3]),
        ];
        assert_eq!(pieces(&reports), expected);
        let through = Report { uses: [(1, 1)].into(), ..absent() };
        let among = Remedy::Among(vec![Rank(1), Rank(2)]);
        assert_eq!(remedy(&[through, absent(), absent()]), Some(among));
        let far = Report { uses: [(1, u32::MAX)].into(), ..absent() };
        assert_eq!(plan(&View::local(2, Settings::default()), &[far, absent()]).len(), MOST_APART);
    }

    #[test]
    fn a_broadcast_lives_as_long_as_its_root_or_all_of_it_elsewhere() {
        let kind = Kind::Broadcast(WorkerId(9));
        assert_eq!(remedy(&[known(&[(0, 7, 1)], kind), known(&[], kind)]), Some(Remedy::Hopeless));
        assert_eq!(pieces(&[known(&[(0, 8, 1)], kind), absent()]).len(), 1);
        let kind = Kind::Broadcast(WorkerId(1));
        assert_eq!(pieces(&[known(&[], kind), absent()])[0].way, Way::Again);
    }

    #[test]
    fn samples_are_consumed_where_a_survivor_holds_something_of_theirs() {
        let reports = [known(&[(0, 2, 4)], Kind::Reduce), known(&[(2, 3, 5)], Kind::Reduce)];
        let [mut one, two] = reports;
        // Not everybody need know how long a worker was there.
        one.gone = [(WorkerId(7), ViewVersion(3)), (WorkerId(8), ViewVersion(4))].into();
        one.passed = [((3, 2), ViewVersion(4))].into();
        let account = account(&[WorkerId(7), WorkerId(8)], &[one.clone(), two.clone()]);
        assert!(account.is_consumed(WorkerId(8), 2) && !account.is_consumed(WorkerId(7), 2));
        assert!(!account.is_consumed(WorkerId(7), 3), "reduced after it was gone");
        assert!(account.is_consumed(WorkerId(8), 3));
        // What only says something of workers holds none of their samples.
        let mut aside = known(&[(0, 8, 4)], Kind::Reduce);
        aside.entries.values_mut().for_each(|entry| entry.samples = 0..0);
        assert!(!self::account(&[WorkerId(8)], &[aside]).is_consumed(WorkerId(8), 3));
        // A copy that some averaged among themselves holds all that its worker had trained on.
        let heard = Report { heard: [(WorkerId(8), 3)].into(), ..absent() };
        let account = self::account(&[WorkerId(7), WorkerId(8)], &[heard]);
        assert!(account.is_consumed(WorkerId(8), 2) && !account.is_consumed(WorkerId(8), 3));
        assert!(!account.is_consumed(WorkerId(7), 2));
        let account = self::account(&[WorkerId(7), WorkerId(8)], &[one, two]);
        assert!(account.is_consumed(WorkerId(7), 1) && !account.is_consumed(WorkerId(8), 4));
    }
}
