//! What survivors tell each other after a loss: which operations each knows, and what of them it holds final. A list of
//! numbers; reading it is a total function that allocates no more than it was given.

use super::{
    Name,
    held::{Held, Span},
};
use paceline_job::{ViewVersion, WorkerId};
use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

/// The longest report, in bytes. It bounds what a broken peer makes others allocate; a report of a thousand tensors in a
/// thousand pieces each is half of it.
pub const REPORT_BYTES: u64 = 64 << 20;

/// How an operation can be recovered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From contributions that are kept: an all-reduce, or a barrier.
    Reduce,
    /// From contributions that are kept, among those who lack it: an average over some, which others need not have alike.
    Mix,
    /// From whoever has it: a broadcast of this worker's.
    Broadcast(WorkerId),
}

/// What a worker says of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The step it was posted in.
    pub step: u64,
    /// Its elements.
    pub len: u64,
    /// How it can be recovered.
    pub kind: Kind,
    /// The steps of whose samples it holds what all workers made.
    pub samples: Range<u64>,
    /// What is final of it.
    pub held: Held,
}

/// See the file's first paragraph.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The step that its worker is in.
    pub step: u64,
    /// Views that are in force, each with the step from which programs go by it.
    pub since: BTreeMap<ViewVersion, u64>,
    /// Steps below this one are long over everywhere.
    pub over: u64,
    /// Later steps of which something is over everywhere: by their end and beginning, the earliest view in which that was
    /// reduced.
    pub passed: BTreeMap<(u64, u64), ViewVersion>,
    /// What some workers averaged among themselves: everything that a worker trained on before that step is in it.
    pub heard: BTreeMap<WorkerId, u64>,
    /// What its worker was told of samples of those who are gone: whose, and from which step to before which they count.
    pub told: BTreeSet<(WorkerId, u64, u64)>,
    /// Who is gone, each with the last view that it is known to have been in.
    pub gone: BTreeMap<WorkerId, ViewVersion>,
    /// How often each name was used here.
    pub uses: BTreeMap<u64, u32>,
    /// Operations that are in progress here, or may be elsewhere.
    pub entries: BTreeMap<Name, Entry>,
}

impl Report {
    /// The wire form.
    pub fn encode(&self) -> Vec<u8> {
        let mut words = vec![self.step, self.since.len() as u64];
        words.extend(self.since.iter().flat_map(|(view, step)| [u64::from(view.0), *step]));
        words.extend([self.over, self.passed.len() as u64]);
        words.extend(
            self.passed.iter().flat_map(|((end, first), view)| [*end, *first, u64::from(view.0)]),
        );
        words.push(self.heard.len() as u64);
        words.extend(self.heard.iter().flat_map(|(id, end)| [id.0, *end]));
        words.push(self.told.len() as u64);
        words.extend(self.told.iter().flat_map(|(id, first, end)| [id.0, *first, *end]));
        words.push(self.gone.len() as u64);
        words.extend(self.gone.iter().flat_map(|(id, view)| [id.0, u64::from(view.0)]));
        words.push(self.uses.len() as u64);
        for (name, uses) in &self.uses {
            words.extend([*name, u64::from(*uses)]);
        }
        words.push(self.entries.len() as u64);
        for (name, entry) in &self.entries {
            let (kind, root) = match entry.kind {
                Kind::Reduce => (0, 0),
                Kind::Mix => (2, 0),
                Kind::Broadcast(root) => (1, root.0),
            };
            words.extend([name.hash, u64::from(name.uses), entry.step, entry.len, kind, root]);
            words.extend([entry.samples.start, entry.samples.end]);
            words.push(entry.held.spans().len() as u64);
            for span in entry.held.spans() {
                words.extend([span.start, span.end, u64::from(span.view.0)]);
            }
        }
        words.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Read a report; nothing if it is none.
    pub fn decode(bytes: &[u8]) -> Option<Report> {
        let (chunks, rest) = bytes.as_chunks::<8>();
        let mut words = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk));
        let mut next = || words.next();
        let small = |word: u64| u32::try_from(word).ok();
        let mut report = Report { step: next()?, ..Report::default() };
        for _ in 0..next()? {
            report.since.insert(ViewVersion(small(next()?)?), next()?);
        }
        report.over = next()?;
        for _ in 0..next()? {
            report.passed.insert((next()?, next()?), ViewVersion(small(next()?)?));
        }
        for _ in 0..next()? {
            report.heard.insert(WorkerId(next()?), next()?);
        }
        for _ in 0..next()? {
            report.told.insert((WorkerId(next()?), next()?, next()?));
        }
        for _ in 0..next()? {
            report.gone.insert(WorkerId(next()?), ViewVersion(small(next()?)?));
        }
        for _ in 0..next()? {
            report.uses.insert(next()?, small(next()?)?);
        }
        for _ in 0..next()? {
            let name = Name { hash: next()?, uses: small(next()?)? };
            let (step, len) = (next()?, next()?);
            let kind = match (next()?, next()?) {
                (0, _) => Kind::Reduce,
                (1, root) => Kind::Broadcast(WorkerId(root)),
                (2, _) => Kind::Mix,
                _ => return None,
            };
            let samples = next()?..next()?;
            let mut spans = Vec::new();
            for _ in 0..next()? {
                let (start, end) = (next()?, next()?);
                spans.push(Span { start, end, view: ViewVersion(small(next()?)?) });
            }
            let held = Held::checked(spans, len)?;
            report.entries.insert(name, Entry { step, len, kind, samples, held });
        }
        (rest.is_empty() && next().is_none()).then_some(report)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reports_survive_the_wire() {
        let held = Held::whole(7, ViewVersion(3));
        let entry = |kind| Entry { step: 5, len: 7, kind, samples: 5..6, held: held.clone() };
        let name = |uses| Name { hash: 99, uses };
        let report = Report {
            step: 6,
            since: [(ViewVersion(3), 5)].into(),
            over: 4,
            passed: [((5, 4), ViewVersion(2))].into(),
            heard: [(WorkerId(6), 3)].into(),
            told: [(WorkerId(5), 2, 4)].into(),
            gone: [(WorkerId(5), ViewVersion(3))].into(),
            uses: [(99, 3)].into(),
            entries: [
                (name(1), entry(Kind::Reduce)),
                (name(2), entry(Kind::Broadcast(WorkerId(8)))),
                (name(3), entry(Kind::Mix)),
            ]
            .into(),
        };
        assert_eq!(Report::decode(&report.encode()), Some(report));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report_or_none(
            words in proptest::collection::vec(prop_oneof![0u64..4, any::<u64>()], 0..40),
            cut in 0usize..8,
        ) {
            let mut bytes: Vec<u8> = words.into_iter().flat_map(u64::to_le_bytes).collect();
            bytes.truncate(bytes.len().saturating_sub(cut));
            if let Some(report) = Report::decode(&bytes) {
                prop_assert_eq!(Report::decode(&report.encode()), Some(report));
            }
        }
    }
}
