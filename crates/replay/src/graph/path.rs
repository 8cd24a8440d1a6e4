//! The critical path: the chain of nodes and operations of which each began when the one before it was over, from the
//! end of a run back to the time where it is asked for. Operations are followed message by message where that was noted.

use super::play::{Cause, Played};
use crate::{Over, Stretch, WayBack};
use paceline_job::{
    Rank, Time,
    graph::{Graph, NodeId, OperationId, Role},
};
use paceline_sync::event::OpId;
use std::{cell::OnceCell, collections::HashMap};

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
    /// Somebody waited for an operation: one stretch after another from when its last member took part, or where it is
    /// known what its messages waited for, from the post that they follow from.
    Operation {
        /// Which was waited for; what is on its way may belong to another that had to leave first.
        operation: OperationId,
        /// From when.
        from: Time,
        /// To when.
        to: Time,
        /// What the time was spent on.
        over: Over,
    },
}

/// The pieces from `since` to the end of the last step, in order of time. What began earlier is cut off there.
pub fn critical_path(graph: &Graph, played: &Played, since: Time) -> Vec<Piece> {
    // Operations that nobody waits for may go on after the last step.
    let ends =
        (0..graph.nodes.len()).filter(|&node| matches!(graph.nodes[node].role, Role::StepEnd(_)));
    let last = ends.max_by_key(|&node| (played.ends[node], node));
    let mut pieces = Vec::new();
    let posts = OnceCell::new();
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
                let rank = graph.nodes[node.index()].rank;
                let way = Way::back(graph, played, operation, rank, from, &posts);
                let late = way.stretches.into_iter().take_while(|stretch| stretch.to > since);
                pieces.extend(late.map(|Stretch { from, to, over }| Piece::Operation {
                    operation,
                    from: from.max(since),
                    to,
                    over,
                }));
                let Some(post) = way.post else { break };
                post
            }
        };
    }
    pieces.reverse();
    pieces
}

/// How an operation's end came about: stretches that follow on each other, latest first, and the post before them.
struct Way {
    stretches: Vec<Stretch>,
    post: Option<NodeId>,
}

/// Nodes by what they post, made when it is first needed.
type Posts = OnceCell<HashMap<(OperationId, Rank), NodeId>>;

impl Way {
    /// From when an operation was over on a worker.
    fn back(
        graph: &Graph,
        played: &Played,
        operation: OperationId,
        rank: Rank,
        over: Time,
        posts: &Posts,
    ) -> Way {
        let noted = played.waits.as_ref().and_then(|waits| waits.back(OpId(operation.0), rank));
        let WayBack { mut stretches, post } = noted.unwrap_or_default();
        let node_of = |(op, poster): (OpId, Rank)| {
            let posts = posts.get_or_init(|| posting(graph));
            posts.get(&(OperationId(op.0), poster)).copied()
        };
        if let Some(post) = post.and_then(node_of) {
            return Way { stretches, post: Some(post) };
        }
        // What is known ends somewhere: from there on, the last member is taken to be the reason.
        stretches.retain(|stretch| stretch.over != Over::Unknown);
        // Who only gives is through before others take part: then it was its own post.
        let is_before = |post: &NodeId| played.ends[post.index()] <= over;
        let post = played.last_posts[operation.index()].filter(is_before);
        let post = post.or_else(|| node_of((OpId(operation.0), rank)));
        let posted = post.map_or(Time::ZERO, |post| played.ends[post.index()]);
        stretches.retain(|stretch| stretch.to > posted);
        if let Some(first) = stretches.last_mut() {
            first.from = first.from.max(posted);
        }
        let known = stretches.last().map_or(over, |first| first.from);
        if posted < known {
            stretches.push(Stretch { from: posted, to: known, over: Over::Unknown });
        }
        Way { stretches, post }
    }
}

fn posting(graph: &Graph) -> HashMap<(OperationId, Rank), NodeId> {
    let nodes = graph.nodes.iter().enumerate();
    let posts = nodes.filter_map(|(place, node)| match node.role {
        Role::Post(operation) => Some(((operation, node.rank), NodeId(place as u32))),
        _ => None,
    });
    posts.collect()
}
