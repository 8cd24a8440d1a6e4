//! Parameter server: every shard of the chunk has a server that sums it and hands it back.
//!
//! Servers are workers themselves, or members of their own who only serve. It knows nothing of
//! hosts: shards are spread evenly over the servers.

use super::{
    alone::Alone,
    demand::{Demand, Sides},
    fold::Fold,
    layout::Layout,
};
use crate::program::{Dest, Instr, Member, Program, Site, Slot, Source, Span, Strategy};
use std::{borrow::Cow, num::NonZeroU32};

/// One server for each shard; every member receives the total.
#[derive(Debug, Default)]
pub enum ParameterServer {
    /// Every member serves.
    #[default]
    All,
    /// So many members serve, and contribute like the others.
    Some(NonZeroU32),
    /// So many members, the last ones, only serve: what they hold is not counted. At least one
    /// member is left to contribute.
    Apart(NonZeroU32),
}

impl Strategy for ParameterServer {
    fn name(&self) -> Cow<'static, str> {
        match self {
            ParameterServer::All => Self::NAME.into(),
            ParameterServer::Some(servers) => format!("{}:{servers}", Self::NAME).into(),
            ParameterServer::Apart(servers) => format!("{}:{servers}:apart", Self::NAME).into(),
        }
    }

    fn about(&self) -> &'static str {
        "The chunk is cut into one shard per server. Every member sends each shard to its server, \
         which sums the contributions in member order and sends the result back: two message \
         delays whatever the size of the group. By default all members serve, which loads every \
         wire alike; `parameter_server:2` lets two of them serve, and with \
         `parameter_server:2:apart` the last two only serve and contribute nothing. Right where \
         latency is high, or where a few members have faster wires."
    }

    fn contributors(&self, members: u32) -> u32 {
        match self {
            ParameterServer::All | ParameterServer::Some(_) => members,
            ParameterServer::Apart(servers) => members.saturating_sub(servers.get()).max(1),
        }
    }

    fn program(&self, site: &Site, span: Span) -> Box<dyn Program> {
        let members = site.members();
        if members == 1 {
            return Box::new(Alone { span });
        }
        let contributors = self.contributors(members);
        let servers = match self {
            ParameterServer::All => members,
            ParameterServer::Some(servers) => servers.get().min(members),
            ParameterServer::Apart(_) => members - contributors,
        };
        Box::new(ParameterServerProgram { members, contributors, servers, me: site.me, span })
    }
}

impl ParameterServer {
    pub(super) const NAME: &str = "parameter_server";

    /// What follows the name and a colon: `2` or `2:apart`.
    pub(super) fn with_parameters(text: &str) -> Option<ParameterServer> {
        match text.split_once(':') {
            None => text.parse().ok().map(ParameterServer::Some),
            Some((servers, "apart")) => servers.parse().ok().map(ParameterServer::Apart),
            Some(_) => None,
        }
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
    /// The first so many members contribute.
    contributors: u32,
    servers: u32,
    me: Member,
    span: Span,
}

impl ParameterServerProgram {
    fn server(&self, shard: u32) -> Member {
        if self.contributors < self.members {
            return self.contributors + shard;
        }
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

    fn contributes(&self, member: Member) -> bool {
        member < self.contributors
    }

    /// Whom a server answers, in this order: contributors first, they are waited for; and each
    /// server begins with another one.
    fn answered(&self, answer: u32) -> Option<Member> {
        let others = self.members - self.contributors;
        if others == 0 {
            return (answer + 1 < self.members).then(|| (self.me + 1 + answer) % self.members);
        }
        let number = self.me - self.contributors;
        if answer < self.contributors {
            return Some((number + answer) % self.contributors);
        }
        let answer = answer - self.contributors;
        (answer + 1 < others).then(|| self.contributors + (number + 1 + answer) % others)
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
            let result = u32::from(self.contributes(self.me));
            if pc < result {
                let slot = Slot { lane: self.lane(server, shard), pc: self.me };
                return Some(Instr::Send { to: server, slot, source: Source::Own(offset), len });
            }
            let receive = Instr::Recv { from: server, with: None, into: Dest::Out(offset), len };
            return (pc == result).then_some(receive);
        }
        if pc < self.contributors {
            let mine = self.contributes(self.me).then_some(self.me);
            let fold = Fold { count: self.contributors, mine };
            return Some(fold.instr(pc, |member| member, offset, len, Dest::Out(offset)));
        }
        let to = self.answered(pc - self.contributors)?;
        let slot = Slot { lane: self.lane(to, shard), pc: u32::from(self.contributes(to)) };
        Some(Instr::Send { to, slot, source: Source::Out(offset), len })
    }

    fn divisor(&self, _lane: u32) -> u32 {
        self.contributors
    }
}
