//! Sums as hash-consed expressions: two sums are the same number exactly when they were added in
//! the same order.
//!
//! Addition of floats commutes but does not associate, so an expression is a tree whose nodes are
//! unordered pairs. Equal trees share one number; comparing them is comparing numbers. It knows
//! nothing of memory or messages.

use crate::program::Member;
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// The number of an expression. Member `m`'s contribution is expression `m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct ExprId(u32);

/// All sums seen in one execution.
#[derive(Debug)]
pub(super) struct Expressions {
    nodes: Vec<Node>,
    sums: FxHashMap<(ExprId, ExprId), ExprId>,
}

#[derive(Debug)]
struct Node {
    /// The two summands; a contribution has none.
    parts: Option<(ExprId, ExprId)>,
    /// One bit per member.
    contributors: Box<[u64]>,
    count: u32,
}

impl Expressions {
    pub(super) fn new(members: u32) -> Expressions {
        let words = members.div_ceil(64) as usize;
        let nodes = (0..members)
            .map(|member| {
                let mut contributors = vec![0; words].into_boxed_slice();
                contributors[member as usize / 64] = 1 << (member % 64);
                Node { parts: None, contributors, count: 1 }
            })
            .collect();
        Expressions { nodes, sums: FxHashMap::default() }
    }

    pub(super) fn contribution(member: Member) -> ExprId {
        ExprId(member)
    }

    /// The sum of two expressions; or a member that has contributed to both.
    pub(super) fn sum(&mut self, a: ExprId, b: ExprId) -> Result<ExprId, Member> {
        let parts = (a.min(b), a.max(b));
        if let Some(known) = self.sums.get(&parts) {
            return Ok(*known);
        }
        let pairs = self.node(a).contributors.iter().zip(&self.node(b).contributors);
        if let Some((word, both)) = pairs.clone().map(|(a, b)| a & b).enumerate().find(|x| x.1 != 0)
        {
            return Err(word as u32 * 64 + both.trailing_zeros());
        }
        let contributors = pairs.map(|(a, b)| a | b).collect();
        let count = self.node(a).count + self.node(b).count;
        // Each sum is made by an instruction of a bounded program, so 32 bits suffice.
        let id = ExprId(self.nodes.len() as u32);
        self.nodes.push(Node { parts: Some(parts), contributors, count });
        self.sums.insert(parts, id);
        Ok(id)
    }

    /// How many members contribute.
    pub(super) fn count(&self, id: ExprId) -> u32 {
        self.node(id).count
    }

    /// Who contributes, as bits.
    pub(super) fn contributors(&self, id: ExprId) -> &[u64] {
        &self.node(id).contributors
    }

    /// Whether a member contributes.
    pub(super) fn contributes(&self, id: ExprId, member: Member) -> bool {
        self.contributors(id)[member as usize / 64] >> (member % 64) & 1 == 1
    }

    /// The first of so many members who does not contribute.
    pub(super) fn missing(&self, id: ExprId, members: u32) -> Option<Member> {
        (0..members).find(|member| !self.contributes(id, *member))
    }

    /// For people: `((0+1)+2)`, cut off after a line.
    pub(super) fn show(&self, id: ExprId) -> String {
        let mut text = String::new();
        self.write(id, &mut text);
        text
    }

    fn write(&self, id: ExprId, text: &mut String) {
        const LINE: usize = 80;
        if text.len() > LINE {
            if !text.ends_with('…') {
                text.push('…');
            }
            return;
        }
        match self.node(id).parts {
            None => {
                // Writing to a string cannot fail.
                let _ = write!(text, "{}", id.0);
            }
            Some((a, b)) => {
                text.push('(');
                self.write(a, text);
                text.push('+');
                self.write(b, text);
                text.push(')');
            }
        }
    }

    fn node(&self, id: ExprId) -> &Node {
        &self.nodes[id.0 as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_commute_but_do_not_associate() {
        let mut all = Expressions::new(3);
        let [a, b, c] = [0, 1, 2].map(Expressions::contribution);
        let ab = all.sum(a, b).unwrap();
        assert_eq!(all.sum(b, a), Ok(ab));
        let bc = all.sum(b, c).unwrap();
        let left = all.sum(ab, c).unwrap();
        assert_ne!(all.sum(a, bc), Ok(left));
        assert_eq!(all.sum(left, bc), Err(1));
        assert_eq!((all.count(left), all.missing(left, 3), all.missing(ab, 3)), (3, None, Some(2)));
    }
}
