//! One shot: everybody sends everything to everybody, and folds the lot.
//!
//! It knows nothing of hosts.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    fold::Fold,
    layout::Layout,
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::borrow::Cow;

/// A single message delay.
#[derive(Debug, Default)]
pub struct OneShot;

impl Strategy for OneShot {
    fn name(&self) -> Cow<'static, str> {
        "one_shot".into()
    }

    fn about(&self) -> &'static str {
        "Every member sends its whole contribution to every other, and each sums them all in \
         member order, so that all hold the same bits: a single message delay, paid for with n-1 \
         times the chunk on every wire. Right for tiny tensors in small groups."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        let members = site.members();
        if members == 1 {
            return Box::new(Alone { span });
        }
        Box::new(OneShotProgram { members, me: site.me, span })
    }
}

/// What flooding asks of the network.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let members = f64::from(layout.members());
    let largest = f64::from(layout.largest_host());
    let spread = layout.hosts() > 1;
    let bytes =
        Sides { memory: (largest - 1.0) * bytes, wire: largest * (members - largest) * bytes };
    Demand {
        rounds: Sides { memory: u32::from(!spread), wire: u32::from(spread) },
        path_bytes: bytes,
        busiest_bytes: bytes,
        messages: layout.members() - 1,
        fan_in: layout.hosts() - 1,
    }
}

#[derive(Debug)]
struct OneShotProgram {
    members: u32,
    me: Member,
    span: Span,
}

impl Program for OneShotProgram {
    fn lanes(&self) -> u32 {
        1
    }

    fn instr(&self, _lane: u32, pc: u32) -> Option<Instr> {
        let Span { offset, len } = self.span;
        let sends = self.members - 1;
        if pc < sends {
            // Starting with the next member, so that they do not all send to member 0 at once.
            let to = (self.me + 1 + pc) % self.members;
            let slot = Slot { lane: 0, pc: sends + self.me };
            return Some(Instr::Send { to, slot, source: Source::Own(offset), len });
        }
        let fold = Fold { count: self.members, mine: Some(self.me) };
        let index = pc - sends;
        (index < self.members)
            .then(|| fold.instr(index, |member| member, offset, len, Dest::Out(offset)))
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.members
    }
}
