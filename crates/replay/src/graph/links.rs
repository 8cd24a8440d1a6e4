//! Which links the communication of a critical path is on, and for how long. How the path is found is not known here.

use super::Piece;
use crate::Over;
use paceline_job::{Rank, graph::Graph};
use serde::Serialize;
use std::collections::HashMap;

/// A link's part of the critical path.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LinkShare {
    /// The host of those that send.
    pub from: String,
    /// The host of those that receive; the same, where it is memory that they share.
    pub to: String,
    /// A step.
    pub milliseconds: f64,
    /// As much of it as messages waited for others that shared their way, or were before them. The rest is what they take
    /// where nothing else moves.
    pub waiting_ms: f64,
    /// Of the step.
    pub share: f64,
}

impl LinkShare {
    /// Of a path over so many steps of so many milliseconds: links, longest first, and the milliseconds a step of
    /// communication that is on none.
    pub fn along(graph: &Graph, path: &[Piece], steps: f64, step: f64) -> (Vec<LinkShare>, f64) {
        let host = |rank: Rank| graph.workers[rank.index()].host.as_str();
        let mut sums: HashMap<(&str, &str), (u64, u64)> = HashMap::new();
        let mut elsewhere = 0;
        for piece in path {
            let Piece::Operation { from: begin, to: end, over, .. } = *piece else { continue };
            let length = end.0 - begin.0;
            match over {
                Over::Link { from, to } => {
                    sums.entry((host(from), host(to))).or_default().0 += length;
                }
                Over::Queue { from, to } => {
                    sums.entry((host(from), host(to))).or_default().1 += length;
                }
                Over::Worker(_) | Over::Unknown => elsewhere += length,
            }
        }
        let milliseconds = |nanoseconds: u64| nanoseconds as f64 / 1e6 / steps;
        let mut shares: Vec<LinkShare> = sums
            .into_iter()
            .map(|((from, to), (moving, waiting))| LinkShare {
                from: from.to_string(),
                to: to.to_string(),
                milliseconds: milliseconds(moving + waiting),
                waiting_ms: milliseconds(waiting),
                share: milliseconds(moving + waiting) / step,
            })
            .collect();
        shares.sort_by(|one, other| {
            let by_time = other.milliseconds.total_cmp(&one.milliseconds);
            by_time.then_with(|| (&one.from, &one.to).cmp(&(&other.from, &other.to)))
        });
        (shares, milliseconds(elsewhere))
    }
}
