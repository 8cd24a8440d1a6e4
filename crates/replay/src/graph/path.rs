//! The critical path: the chain of nodes and operations of which each began when the one before it was over, from the
//! end of a run back to the time where it is asked for.

use super::play::{Cause, Played};
use paceline_job::{
    Time,
    graph::{Graph, NodeId, OperationId},
};

/// A piece of the critical path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// A node computed, or the observed gap before it passed.
    Node {
        /// Which.
        node: NodeId,
        /// From when what it waited for was over.
        from: Time,
        /// To its end.
        to: Time,
    },
    /// An operation was on its way.
    Operation {
        /// Which.
        operation: OperationId,
        /// From when its last member took part.
        from: Time,
        /// To when it was over where that was waited for.
        to: Time,
    },
}

/// The pieces from `since` to the end of the last step, in order of time. What began earlier is cut off there.
pub fn critical_path(graph: &Graph, played: &Played, since: Time) -> Vec<Piece> {
    let last = (0..graph.nodes.len()).max_by_key(|&node| (played.ends[node], node));
    let mut pieces = Vec::new();
    let Some(mut node) = last.map(|node| NodeId(node as u32)) else { return pieces };
    // Every turn goes to something that ended earlier, or at the same time and before in the graph's order.
    for _ in 0..=graph.nodes.len() {
        let to = played.ends[node.index()];
        if to <= since {
            break;
        }
        let cause = played.causes[node.index()];
        let begin = Time(played.begins[node.index()].0 - graph.nodes[node.index()].gap);
        let from = if cause == Cause::Start { Time::ZERO } else { begin };
        if from < to {
            pieces.push(Piece::Node { node, from: from.max(since), to });
        }
        node = match cause {
            Cause::Start => break,
            Cause::Node(before) => before,
            Cause::Operation(operation) => {
                let Some(post) = played.last_posts[operation.index()] else { break };
                let posted = played.ends[post.index()];
                if posted < from && from > since {
                    pieces.push(Piece::Operation { operation, from: posted.max(since), to: from });
                }
                post
            }
        };
    }
    pieces.reverse();
    pieces
}
