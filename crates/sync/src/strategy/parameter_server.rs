//! Parameter server: every shard of the chunk has a server that sums it and hands it back.
//!
//! It knows nothing of hosts: shards are spread evenly over the members.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    fold::Fold,
    layout::Layout,
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::borrow::Cow;

/// Sharded servers that are members themselves; every member contributes and receives.
#[derive(Debug, Default)]
pub struct ParameterServer {
    /// How many members serve; `None`: all of them.
    pub servers: Option<u32>,
}

impl Strategy for ParameterServer {
    fn name(&self) -> Cow<'static, str> {
        match self.servers {
            None => "parameter_server".into(),
            Some(servers) => format!("parameter_server:{servers}").into(),
        }
    }

    fn about(&self) -> &'static str {
        "The chunk is cut into one shard per server. Every member sends each shard to its server, \
         which sums the contributions in member order and sends the result back: two message \
         delays whatever the size of the group. By default all members serve, which loads every \
         wire alike; `parameter_server:2` lets two of them serve. Right where latency is high, or \
         where a few members have faster wires."
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        let members = site.members();
        if members == 1 {
            return Box::new(Alone { span });
        }
        let servers = self.servers.unwrap_or(members).clamp(1, members);
        Box::new(ParameterServerProgram { members, servers, me: site.me, span })
    }
}

/// What servers on all members ask of the network.
pub(super) fn demand(layout: &Layout, bytes: f64) -> Demand {
    let members = f64::from(layout.members());
    let largest = f64::from(layout.largest_host());
    let shard = bytes / members;
    // There and back: each of a host's members exchanges a shard with each member elsewhere.
    let wire = 2.0 * largest * (members - largest) * shard;
    let memory = 2.0 * (largest - 1.0) * shard;
    let spread = layout.hosts() > 1;
    let bytes = Sides { memory, wire };
    Demand {
        rounds: Sides { memory: if spread { 0 } else { 2 }, wire: if spread { 2 } else { 0 } },
        path_bytes: bytes,
        busiest_bytes: bytes,
        messages: 2 * (layout.members() - 1),
        fan_in: layout.hosts() - 1,
    }
}

/// One lane per shard.
#[derive(Debug)]
struct ParameterServerProgram {
    members: u32,
    servers: u32,
    me: Member,
    span: Span,
}

impl ParameterServerProgram {
    fn server(&self, shard: u32) -> Member {
        if self.servers == self.members {
            return shard;
        }
        let spread = u64::from(shard) * u64::from(self.members) / u64::from(self.servers);
        spread as Member
    }

    /// Members begin with different shards, so that they do not all send to the same server at
    /// once.
    fn lane(&self, member: Member, shard: u32) -> u32 {
        self.wrap(shard + self.servers - member % self.servers)
    }

    /// Modulo the number of servers, for numbers below twice that: divisions are slow.
    fn wrap(&self, number: u32) -> u32 {
        if number >= self.servers { number - self.servers } else { number }
    }
}

impl Program for ParameterServerProgram {
    fn lanes(&self) -> u32 {
        self.servers
    }

    fn instr(&self, lane: u32, pc: u32) -> Option<Instr> {
        let shard = self.wrap(lane + self.me % self.servers);
        let Span { offset, len } = self.span.part(shard, self.servers);
        let server = self.server(shard);
        if self.me != server {
            return match pc {
                0 => Some(Instr::Send {
                    to: server,
                    slot: Slot { lane: self.lane(server, shard), pc: self.me },
                    source: Source::Own(offset),
                    len,
                }),
                1 => Some(Instr::Recv { from: server, with: None, into: Dest::Out(offset), len }),
                _ => None,
            };
        }
        if pc < self.members {
            let fold = Fold { count: self.members, mine: self.me };
            return Some(fold.instr(pc, |member| member, offset, len, Dest::Out(offset)));
        }
        let answer = pc - self.members;
        if answer + 1 >= self.members {
            return None;
        }
        let to = (self.me + 1 + answer) % self.members;
        let slot = Slot { lane: self.lane(to, shard), pc: 1 };
        Some(Instr::Send { to, slot, source: Source::Out(offset), len })
    }

    fn divisor(&self) -> u32 {
        self.members
    }
}
