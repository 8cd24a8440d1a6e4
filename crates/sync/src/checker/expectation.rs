//! What a set of programs should leave: for each member, which input it may read and what its
//! output must hold.
//!
//! This is the definition of every collective, written down without a word about how it is done.

use crate::{
    collective::Collective,
    program::{Member, Semantics, Span, Strategy},
};

/// What each member is given and must end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Expectation {
    /// The first so many members contribute to totals and mixtures.
    pub contributors: u32,
    /// Whether input and output are the same memory. The stricter case where it is allowed at all.
    pub in_place: bool,
    /// One per member.
    pub shares: Vec<Share>,
}

/// One member's part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    /// What it may read.
    pub input: Span,
    /// What it must write, once, and nothing else.
    pub output: Vec<Wanted>,
}

/// What a range of the output must hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The range.
    pub span: Span,
    /// Its content.
    pub what: What,
}

/// The content of a range; `from` is the input element that belongs to the range's first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Every contributor's input, exactly once.
    Total {
        /// First element.
        from: u64,
    },
    /// Some members' inputs, averaged, so that every member has the same weight over all outputs.
    Mixture {
        /// First element.
        from: u64,
    },
    /// One member's input.
    Copy {
        /// Whose.
        of: Member,
        /// First element.
        from: u64,
    },
}

impl Expectation {
    /// Every member's contribution on every member, in place.
    pub fn all_reduce(members: u32, span: Span) -> Expectation {
        Expectation::everywhere(members, members, span, What::Total { from: span.offset })
    }

    /// A fair mixing on every member, in place.
    pub fn averaging(members: u32, span: Span) -> Expectation {
        Expectation::everywhere(members, members, span, What::Mixture { from: span.offset })
    }

    /// What a strategy promises for a chunk.
    pub fn of_strategy(strategy: &dyn Strategy, members: u32, span: Span) -> Expectation {
        let from = span.offset;
        let what = match strategy.semantics() {
            Semantics::Reduce => What::Total { from },
            Semantics::Averaging => What::Mixture { from },
        };
        Expectation::everywhere(members, strategy.contributors(members), span, what)
    }

    /// What a whole collective promises, all chunks together, given what each member posts.
    pub fn of_collective(posts: &[Collective]) -> Expectation {
        let shares = (0..posts.len() as Member).map(|me| share(posts, me)).collect();
        let in_place = posts.iter().all(Collective::in_place_allowed);
        Expectation { contributors: posts.len() as u32, in_place, shares }
    }

    /// Those who do not contribute have no input that could be read.
    fn everywhere(members: u32, contributors: u32, span: Span, what: What) -> Expectation {
        let share = |member| Share {
            input: if member < contributors { span } else { Span { len: 0, ..span } },
            output: vec![Wanted { span, what }],
        };
        Expectation { contributors, in_place: true, shares: (0..members).map(share).collect() }
    }
}

fn share(posts: &[Collective], me: Member) -> Share {
    let mine = &posts[me as usize];
    let input = Span { offset: 0, len: mine.input_len(me) };
    let whole = |len: u64, what: What| vec![Wanted { span: Span { offset: 0, len }, what }];
    let output = match mine {
        Collective::AllReduce { len } => whole(*len, What::Total { from: 0 }),
        Collective::Barrier => whole(1, What::Total { from: 0 }),
        Collective::Reduce { root, len } if *root == me => whole(*len, What::Total { from: 0 }),
        Collective::ReduceScatter { counts } => {
            whole(counts[me as usize], What::Total { from: start(counts, me) })
        }
        Collective::Broadcast { root, len } => whole(*len, What::Copy { of: *root, from: 0 }),
        Collective::AllGather { counts } => gathered(counts, |_| 0),
        Collective::Gather { root, counts } if *root == me => gathered(counts, |_| 0),
        Collective::Scatter { root, counts } => {
            whole(counts[me as usize], What::Copy { of: *root, from: start(counts, me) })
        }
        Collective::AllToAll { receives, .. } => {
            gathered(receives, |of| match &posts[of as usize] {
                Collective::AllToAll { sends, .. } => start(sends, me),
                _ => 0,
            })
        }
        Collective::Recv { from, len } => whole(*len, What::Copy { of: *from, from: 0 }),
        Collective::Reduce { .. } | Collective::Gather { .. } | Collective::Send { .. } => {
            Vec::new()
        }
    };
    Share { input, output }
}

/// One block from each member, concatenated.
fn gathered(counts: &[u64], from: impl Fn(Member) -> u64) -> Vec<Wanted> {
    let block = |of: Member| Wanted {
        span: Span { offset: start(counts, of), len: counts[of as usize] },
        what: What::Copy { of, from: from(of) },
    };
    (0..counts.len() as Member).map(block).collect()
}

fn start(counts: &[u64], member: Member) -> u64 {
    counts[..member as usize].iter().sum()
}
