//! Double tree: two binary trees, each carrying half of the chunk.
//!
//! A binary tree alone wastes half of the wires, because its leaves only ever send one way. In two
//! complementary trees an inner node of one is a leaf of the other (Sanders, Speck and Träff,
//! 2009), so every wire is busy. It knows nothing of hosts beyond the order in which they line
//! members up.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    layout::{Layout, Layouts},
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::{borrow::Cow, sync::Arc};

/// Two complementary in-order trees.
#[derive(Debug, Default)]
pub struct DoubleTree {
    layouts: Layouts,
}

impl Strategy for DoubleTree {
    fn name(&self) -> Cow<'static, str> {
        "double_tree".into()
    }

    fn about(&self) -> &'static str {
        "Two binary trees, one for each half of the chunk; the inner nodes of one are the leaves \
         of the other, so that no wire idles. Sums climb to the root and the result descends: \
         about 2 log2(n) messages one after another, and every member sends at most twice the \
         chunk. Right for many members, where a ring's 2(n-1) messages take too long."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        if site.members() == 1 {
            return Box::new(Alone { span });
        }
        let layout = self.layouts.of(&site.hosts);
        let position = layout.position(site.me);
        let lanes = [Side::First, Side::Second].map(|side| {
            let tree = Tree { members: site.members(), side };
            Node::new(tree, position, &layout, span.part(side as u32, 2))
        });
        Box::new(DoubleTreeProgram { members: site.members(), lanes })
    }
}

/// What two trees ask of the network. Which edges leave a host depends on the numbers, so they are
/// counted.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let members = layout.members();
    let depth = tree_depth(members);
    let host_of = |position| layout.place(layout.at(position)).host as usize;
    let mut far = 0;
    let mut wire_edges = vec![0_u32; layout.hosts() as usize];
    let mut memory_edges = vec![0_u32; members as usize];
    for side in [Side::First, Side::Second] {
        let tree = Tree { members, side };
        for label in 1..members {
            let mut crossings = 0;
            let (mut below, mut first_edge) = (label, true);
            // At most `depth` hops.
            while let Some(above) = tree.parent(below) {
                let ends = [tree.position(below), tree.position(above)];
                let hosts = ends.map(host_of);
                crossings += u32::from(hosts[0] != hosts[1]);
                if first_edge && hosts[0] != hosts[1] {
                    hosts.into_iter().for_each(|host| wire_edges[host] += 1);
                } else if first_edge {
                    ends.into_iter().for_each(|position| memory_edges[position as usize] += 1);
                }
                (below, first_edge) = (above, false);
            }
            far = far.max(crossings);
        }
    }
    let near = depth - far;
    // An edge carries half of the chunk up and half down: each of its ends sends once.
    let busiest = |edges: &[u32]| f64::from(edges.iter().copied().max().unwrap_or(0)) * bytes / 2.0;
    // A node takes both children's halves through one wire; the second waits for the first.
    let path = |levels: u32| 2.0 * f64::from(levels) * bytes;
    Demand {
        rounds: Sides { memory: 2 * near, wire: 2 * far },
        path_bytes: Sides { memory: path(near), wire: path(far) },
        busiest_bytes: Sides { memory: busiest(&memory_edges), wire: busiest(&wire_edges) },
        messages: if members == 2 { 2 } else { 4 },
        fan_in: 2.min(layout.hosts() - 1),
    }
}

/// Hops from the root to the deepest leaf.
fn tree_depth(members: u32) -> u32 {
    u32::BITS - members.saturating_sub(1).leading_zeros()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    First = 0,
    Second = 1,
}

/// A tree over positions. In the first tree a node's label is its position.
///
/// Label 0 is the root and has one child, the largest power of two below `members`. Any other label
/// with lowest set bit `b` has the children `label - b/2` and `label + b/2`; where the latter does
/// not exist, the next smaller power of two is tried. So odd labels are leaves and even labels are
/// not.
#[derive(Clone, Copy, Debug)]
struct Tree {
    members: u32,
    side: Side,
}

impl Tree {
    fn label(self, position: u32) -> u32 {
        match self.side {
            Side::First => position,
            // Mirroring swaps even and odd. With an odd number of members it does not; a shift
            // does, except at position 0, which is an inner node twice.
            Side::Second if self.members.is_multiple_of(2) => self.members - 1 - position,
            Side::Second => (position + self.members - 1) % self.members,
        }
    }

    fn position(self, label: u32) -> u32 {
        match self.side {
            Side::First => label,
            Side::Second if self.members.is_multiple_of(2) => self.members - 1 - label,
            Side::Second => (label + 1) % self.members,
        }
    }

    fn parent(self, label: u32) -> Option<u32> {
        if label == 0 {
            return None;
        }
        let bit = label & label.wrapping_neg();
        let wanted = (label ^ bit) | (bit << 1);
        Some(if wanted < self.members { wanted } else { label ^ bit })
    }

    /// In the order they are summed: the lower label first.
    fn children(self, label: u32) -> [Option<u32>; 2] {
        if label == 0 {
            let largest = 1 << (tree_depth(self.members) - 1);
            return [Some(largest), None];
        }
        let bit = label & label.wrapping_neg();
        if bit == 1 {
            return [None, None];
        }
        let mut step = bit / 2;
        while step > 0 && label + step >= self.members {
            step /= 2;
        }
        [Some(label - bit / 2), (step > 0).then_some(label + step)]
    }
}

/// A neighbour in a tree, and the instruction that receives what we send it.
#[derive(Clone, Copy, Debug)]
struct Neighbour {
    member: Member,
    pc: u32,
}

/// One member's place in one tree; its lane is: receive from the children, send to the parent,
/// receive from the parent, send to the children.
#[derive(Clone, Copy, Debug)]
struct Node {
    parent: Option<Neighbour>,
    children: [Option<Neighbour>; 2],
    half: Span,
}

impl Node {
    fn new(tree: Tree, position: u32, layout: &Arc<Layout>, half: Span) -> Node {
        let label = tree.label(position);
        let neighbour = |label, pc| Neighbour { member: layout.at(tree.position(label)), pc };
        let parent = tree.parent(label).map(|parent| {
            let second = tree.children(parent)[1] == Some(label);
            neighbour(parent, u32::from(second))
        });
        let children = tree.children(label).map(|child| {
            // A child hears from its parent after its own children and its own send.
            child.map(|child| {
                neighbour(child, 1 + tree.children(child).iter().flatten().count() as u32)
            })
        });
        Node { parent, children, half }
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.half;
        let children = self.children.iter().flatten().count() as u32;
        if pc < children {
            let with = if pc == 0 { Source::Own(offset) } else { Source::Reg(0, 0) };
            // Only the root has no parent, and it has one child.
            let into = if self.parent.is_none() { Dest::Out(offset) } else { Dest::Reg(0) };
            let from = self.children[pc as usize]?.member;
            return Some(Instr::Recv { from, with: Some(with), into, len });
        }
        let to_child = |index: u32| {
            let child = (*self.children.get(index as usize)?)?;
            let slot = Slot { lane, pc: child.pc };
            Some(Instr::Send { to: child.member, slot, source: Source::Out(offset), len })
        };
        let Some(parent) = self.parent else {
            return to_child(pc - children);
        };
        match pc - children {
            0 => {
                let source = if children == 0 { Source::Own(offset) } else { Source::Reg(0, 0) };
                let slot = Slot { lane, pc: parent.pc };
                Some(Instr::Send { to: parent.member, slot, source, len })
            }
            1 => {
                Some(Instr::Recv { from: parent.member, with: None, into: Dest::Out(offset), len })
            }
            after => to_child(after - 2),
        }
    }
}

#[derive(Debug)]
struct DoubleTreeProgram {
    members: u32,
    lanes: [Node; 2],
}

impl Program for DoubleTreeProgram {
    fn lanes(&self) -> u32 {
        2
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        self.lanes.get(lane as usize)?.instr(lane, pc)
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.members
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_child_knows_the_parent_that_knows_it() {
        for members in 2..200 {
            let tree = Tree { members, side: Side::First };
            let mut named = vec![0; members as usize];
            for label in 0..members {
                for child in tree.children(label).into_iter().flatten() {
                    assert_eq!(tree.parent(child), Some(label), "{child} of {members}");
                    named[child as usize] += 1;
                }
            }
            assert_eq!(named[0], 0);
            assert!(named[1..].iter().all(|times| *times == 1), "{members}: {named:?}");
        }
    }

    #[test]
    fn inner_nodes_of_one_tree_are_leaves_of_the_other() {
        for members in 2..200 {
            let inner = |side, position| {
                let tree = Tree { members, side };
                assert_eq!(tree.position(tree.label(position)), position);
                tree.children(tree.label(position))[0].is_some()
            };
            let twice = (0..members)
                .filter(|position| inner(Side::First, *position) == inner(Side::Second, *position));
            // One more inner node than leaves cannot be complementary everywhere.
            assert_eq!(twice.count() as u32, members % 2, "{members} members");
        }
    }
}
