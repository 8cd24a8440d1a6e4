//! Collectives with a root: broadcast and reduce over a tree, gather and scatter directly.
//!
//! They know nothing of hosts beyond the order in which they line members up.

use super::{Blocks, Window};
use crate::{
    program::{Dest, Instr, Member, Program, Site, Slot, Source, Span},
    strategy::Layout,
};

/// A tree that hangs from the root, seen from one member. Places are counted from the root's.
#[derive(Debug)]
pub(super) struct Tree {
    layout: Layout,
    root: u32,
    place: u32,
    shape: Shape,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// The parent of a place is the place without its lowest set bit: log2(n) messages one after
    /// another, but the root's wire carries every chunk log2(n) times.
    Binomial,
    /// Each passes on to the next: every wire carries every chunk once, but the last waits for n-1
    /// messages.
    Chain,
}

impl Tree {
    /// The shape that finishes all chunks soonest.
    pub(super) fn new(site: &Site, root: Member, chunks: u32) -> Tree {
        let members = u64::from(site.members());
        let chunks = u64::from(chunks);
        let chain_steps = members.saturating_sub(2) + chunks;
        let depth = u64::from(members.next_power_of_two().ilog2());
        let shape = if chain_steps < chunks * depth { Shape::Chain } else { Shape::Binomial };
        let layout = Layout::new(&site.hosts);
        let root = layout.position(root);
        let place = (layout.position(site.me) + site.members() - root) % site.members();
        Tree { layout, root, place, shape }
    }

    fn members(&self) -> u32 {
        self.layout.members()
    }

    fn is_root(&self) -> bool {
        self.place == 0
    }

    fn member(&self, place: u32) -> Member {
        self.layout.at((self.root + place) % self.members())
    }

    /// The parent, and our index among its children. Not for the root.
    fn parent(&self) -> (Member, u32) {
        match self.shape {
            Shape::Chain => (self.member(self.place - 1), 0),
            Shape::Binomial => {
                let index = self.place.trailing_zeros();
                (self.member(self.place - (1 << index)), index)
            }
        }
    }

    fn children(&self) -> u32 {
        let after = self.members() - 1 - self.place;
        match self.shape {
            Shape::Chain => after.min(1),
            // Child `i` is 2^i further on: below the own lowest bit, and inside the group.
            Shape::Binomial => {
                let inside = u32::BITS - after.leading_zeros();
                if self.is_root() { inside } else { inside.min(self.place.trailing_zeros()) }
            }
        }
    }

    fn child(&self, index: u32) -> Member {
        self.member(self.place + (1 << index))
    }
}

/// One lane: obtain the chunk, then pass it on, to the child with the largest subtree first.
#[derive(Debug)]
pub(super) struct BroadcastProgram {
    tree: Tree,
    span: Span,
}

impl BroadcastProgram {
    pub(super) fn new(tree: Tree, span: Span) -> BroadcastProgram {
        BroadcastProgram { tree, span }
    }
}

impl Program for BroadcastProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let into = Dest::Out(offset);
        if pc == 0 {
            return Some(if self.tree.is_root() {
                // First, so that sends read the output: in place, no send holds the input back.
                Instr::Local { source: Source::Own(offset), with: None, into, len }
            } else {
                Instr::Recv { from: self.tree.parent().0, with: None, into, len }
            });
        }
        let index = self.tree.children().checked_sub(pc)?;
        let slot = Slot { lane: 0, pc: 0 };
        let source = Source::Out(offset);
        Some(Instr::Send { to: self.tree.child(index), slot, source, len })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}

/// One lane: add the children's sums, the smallest subtree's first, then hand the sum up.
#[derive(Debug)]
pub(super) struct ReduceProgram {
    tree: Tree,
    span: Span,
}

impl ReduceProgram {
    pub(super) fn new(tree: Tree, span: Span) -> ReduceProgram {
        ReduceProgram { tree, span }
    }
}

impl Program for ReduceProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let children = self.tree.children();
        let sum = |added: u32| if added == 0 { Source::Own(offset) } else { Source::Reg(0, 0) };
        if pc < children {
            let last_at_root = self.tree.is_root() && pc + 1 == children;
            let into = if last_at_root { Dest::Out(offset) } else { Dest::Reg(0) };
            let from = self.tree.child(pc);
            return Some(Instr::Recv { from, with: Some(sum(pc)), into, len });
        }
        if pc > children {
            return None;
        }
        if self.tree.is_root() {
            // Alone, the sum is the own contribution.
            let copy = Instr::Local { source: sum(0), with: None, into: Dest::Out(offset), len };
            return (children == 0).then_some(copy);
        }
        let (to, index) = self.tree.parent();
        let slot = Slot { lane: 0, pc: index };
        Some(Instr::Send { to, slot, source: sum(children), len })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.tree.members()
    }
}

/// The root has a lane per member, so that blocks are taken as they come; the others send theirs.
#[derive(Debug)]
pub(super) enum GatherProgram {
    Root { me: Member, blocks: Blocks },
    Other { me: Member, root: Member, block: Span },
}

impl GatherProgram {
    pub(super) fn new(me: Member, root: Member, counts: &[u64], window: Window) -> GatherProgram {
        if me == root {
            return GatherProgram::Root { me, blocks: Blocks::new(counts, window) };
        }
        GatherProgram::Other { me, root, block: window.of(super::block(counts, me)) }
    }
}

impl Program for GatherProgram {
    fn lanes(&self) -> u32 {
        match self {
            GatherProgram::Root { blocks, .. } => blocks.starts.len() as u32 - 1,
            GatherProgram::Other { .. } => 1,
        }
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        if pc > 0 {
            return None;
        }
        Some(match self {
            GatherProgram::Root { me, blocks } => {
                let Span { offset, len } = blocks.within(lane);
                let into = Dest::Out(offset);
                if lane == *me {
                    let source = Source::Own(blocks.alone(lane).offset);
                    Instr::Local { source, with: None, into, len }
                } else {
                    Instr::Recv { from: lane, with: None, into, len }
                }
            }
            GatherProgram::Other { me, root, block } => Instr::Send {
                to: *root,
                slot: Slot { lane: *me, pc: 0 },
                source: Source::Own(block.offset),
                len: block.len,
            },
        })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}

/// One lane: the root sends everybody their block, its own last; the others wait for theirs.
#[derive(Debug)]
pub(super) enum ScatterProgram {
    Root { me: Member, blocks: Blocks },
    Other { root: Member, block: Span },
}

impl ScatterProgram {
    pub(super) fn new(me: Member, root: Member, counts: &[u64], window: Window) -> ScatterProgram {
        if me == root {
            return ScatterProgram::Root { me, blocks: Blocks::new(counts, window) };
        }
        ScatterProgram::Other { root, block: window.of(super::block(counts, me)) }
    }
}

impl Program for ScatterProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        match self {
            ScatterProgram::Root { me, blocks } => {
                let members = blocks.starts.len() as u32 - 1;
                if pc >= members {
                    return None;
                }
                let to = (me + 1 + pc) % members;
                let Span { offset, len } = blocks.within(to);
                let source = Source::Own(offset);
                if to == *me {
                    let into = Dest::Out(blocks.alone(to).offset);
                    return Some(Instr::Local { source, with: None, into, len });
                }
                Some(Instr::Send { to, slot: Slot { lane: 0, pc: 0 }, source, len })
            }
            ScatterProgram::Other { root, block: Span { offset, len } } => {
                let into = Dest::Out(*offset);
                let receive = Instr::Recv { from: *root, with: None, into, len: *len };
                (pc == 0).then_some(receive)
            }
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        1
    }
}
