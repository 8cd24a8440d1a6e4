//! Hierarchical: sum inside each host, ring across hosts, hand out inside each host.
//!
//! It knows which members share a host, or a rack, and nothing of the wires between them.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    fold::Fold,
    layout::{Derived, Layout, Layouts, Place},
};
use crate::{
    groups::{Seating, Terrain},
    program::{Dest, Instr, Program, Site, Slot, Source, Span, Strategy},
};
use std::{borrow::Cow, sync::Arc};

/// Memory first, wires second; or racks first, and the wires between them second.
#[derive(Debug, Default)]
pub struct Hierarchical {
    layouts: Layouts,
    racks: Option<Racks>,
}

/// What makes racks take the place of hosts.
#[derive(Debug, Default)]
struct Racks {
    /// Without one, hosts are taken for racks.
    terrain: Option<Terrain>,
    of_members: Derived<Arc<[u32]>>,
}

impl Hierarchical {
    /// The name without parameters.
    pub const NAME: &'static str = "hierarchical";
    /// The parameter that makes racks take the place of hosts.
    pub const RACKS: &'static str = "racks";

    /// Sum inside each rack of this terrain, ring across racks.
    pub(super) fn of_racks(terrain: Option<Terrain>) -> Hierarchical {
        let racks = Some(Racks { terrain, ..Racks::default() });
        Hierarchical { racks, ..Hierarchical::default() }
    }

    fn layout(&self, hosts: &Arc<[u32]>) -> Arc<Layout> {
        let Some(racks) = &self.racks else { return self.layouts.of(hosts) };
        let of_members = racks.of_members.of(hosts, |hosts| match &racks.terrain {
            None => hosts.into(),
            Some(terrain) => Seating::on(terrain, hosts).rack_of_each().into(),
        });
        self.layouts.of(&of_members)
    }
}

impl Strategy for Hierarchical {
    fn name(&self) -> Cow<'static, str> {
        match self.racks {
            None => Hierarchical::NAME.into(),
            Some(_) => format!("{}:{}", Hierarchical::NAME, Hierarchical::RACKS).into(),
        }
    }

    fn about(&self) -> &'static str {
        "Contributions are first summed inside each host, through memory; the sums then go round \
         a ring of hosts, and the result is handed out inside each host. The chunk is cut into as \
         many shards as the smallest host has members, each led by another member, so that all of \
         a host's members share the work. A wire carries 2(h-1)/h of the chunk in 2(h-1) messages \
         for h hosts, whatever the number of members. Right when several members share a host and \
         its wire; with the parameter racks, where several hosts share a rack and its uplink."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        if site.members() == 1 {
            return Box::new(Alone { span });
        }
        let layout = self.layout(&site.hosts);
        let me = layout.place(site.me);
        let shards = layout.smallest_host();
        Box::new(HierarchicalProgram { layout, me, shards, span })
    }
}

/// What memory and a ring of hosts ask of the network.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let (hosts, largest) = (layout.hosts(), layout.largest_host());
    let shards = layout.smallest_host();
    let ring_rounds = 2 * (hosts - 1);
    let inside = if largest > 1 { 2 } else { 0 };
    let shard = bytes / f64::from(shards);
    let wire = f64::from(ring_rounds) * bytes / f64::from(hosts);
    // Each of the two ways inside a host is as slow as its leader's intake. A leader also
    // contributes to the shards of the other leaders.
    let intake = f64::from(largest - 1) * shard;
    let others = f64::from(shards - 1) * shard;
    Demand {
        rounds: Sides { memory: inside, wire: ring_rounds },
        path_bytes: Sides { memory: 2.0 * intake, wire },
        busiest_bytes: Sides { memory: intake + others, wire },
        messages: ring_rounds + (largest - 1) + (shards - 1),
        fan_in: 1,
    }
}

/// One lane per shard. A shard is led by the member of the same index on every host.
#[derive(Debug)]
struct HierarchicalProgram {
    layout: Arc<Layout>,
    me: Place,
    shards: u32,
    span: Span,
}

impl HierarchicalProgram {
    /// Members of a host begin with different shards, their own first.
    fn lane(&self, index: u32, shard: u32) -> u32 {
        (shard + self.shards - index % self.shards) % self.shards
    }

    /// A leader's lane: fold the host, go round the ring of hosts, answer the host.
    fn lead(&self, shard: Span, pc: u32) -> Option<Instr> {
        let Span { offset, len } = shard;
        let host_size = self.layout.host_size(self.me.host);
        let hosts = self.layout.hosts();
        if pc < host_size {
            let fold = Fold { count: host_size, mine: Some(self.me.index) };
            let total = if hosts == 1 { Dest::Out(offset) } else { Dest::Reg(0) };
            let from = |index| self.layout.member(self.me.host, index);
            return Some(fold.instr(pc, from, offset, len, total));
        }
        let ring_pc = pc - host_size;
        let ring_end = 4 * (hosts - 1);
        if ring_pc < ring_end {
            return Some(self.round_hosts(shard, ring_pc));
        }
        let answer = ring_pc - ring_end;
        if answer + 1 >= host_size {
            return None;
        }
        let index = (self.me.index + 1 + answer) % host_size;
        Some(Instr::Send {
            to: self.layout.member(self.me.host, index),
            slot: Slot { lane: self.lane(index, self.me.index), pc: 1 },
            source: Source::Out(offset),
            len,
        })
    }

    /// The ring of the `ring` strategy, over hosts: register 0 holds this host's sum, register 1
    /// what passes.
    fn round_hosts(&self, shard: Span, ring_pc: u32) -> Instr {
        let hosts = self.layout.hosts();
        let here = self.me.host;
        let host_sum = |segment: Span| match self.layout.host_size(here) {
            1 => Source::Own(segment.offset),
            _ => Source::Reg(0, segment.offset - shard.offset),
        };
        // Message `r` is sent by instruction 2r and received by instruction 2r+1.
        let message = ring_pc / 2;
        let summed = hosts - 2;
        let received = |message: u32| shard.part((here + 2 * hosts - 1 - message) % hosts, hosts);
        if ring_pc.is_multiple_of(2) {
            let (segment, source) = match message.checked_sub(1) {
                None => {
                    let segment = shard.part(here, hosts);
                    (segment, host_sum(segment))
                }
                Some(before) if before < summed => (received(before), Source::Reg(1, 0)),
                Some(before) => {
                    let segment = received(before);
                    (segment, Source::Out(segment.offset))
                }
            };
            let next = (here + 1) % hosts;
            // A leader leads the shard of its own index, which is its lane 0.
            let slot = Slot { lane: 0, pc: self.layout.host_size(next) + ring_pc + 1 };
            let to = self.layout.member(next, self.me.index);
            return Instr::Send { to, slot, source, len: segment.len };
        }
        let segment = received(message);
        let with = (message <= summed).then(|| host_sum(segment));
        let into = if message < summed { Dest::Reg(1) } else { Dest::Out(segment.offset) };
        let from = self.layout.member((here + hosts - 1) % hosts, self.me.index);
        Instr::Recv { from, with, into, len: segment.len }
    }
}

impl Program for HierarchicalProgram {
    fn lanes(&self) -> u32 {
        self.shards
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        let index = (lane + self.me.index % self.shards) % self.shards;
        let shard = self.span.part(index, self.shards);
        if self.me.index == index {
            return self.lead(shard, pc);
        }
        let leader = self.layout.member(self.me.host, index);
        let Span { offset, len } = shard;
        match pc {
            0 => Some(Instr::Send {
                to: leader,
                slot: Slot { lane: 0, pc: self.me.index },
                source: Source::Own(offset),
                len,
            }),
            1 => Some(Instr::Recv { from: leader, with: None, into: Dest::Out(offset), len }),
            _ => None,
        }
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.layout.members()
    }
}
