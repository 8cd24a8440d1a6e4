//! Operations that a script posts: mostly the same under one name on every worker, sometimes not, sometimes
//! such as no group can perform.

use super::script::Script;
use paceline_job::{Dtype, Rank, ReduceOp};
use paceline_sync::{
    collective::Collective,
    event::{Holds, OpId, Post},
};
use std::sync::Arc;

/// The caller's memory.
#[derive(Debug)]
pub struct Tensor {
    pub input_bytes: u64,
    pub output_bytes: u64,
}

/// How many names there are.
pub const NAMES: usize = SHAPES.len();

/// What everybody means by a name; see [`collective`] for the numbers. Every fourth is for two only.
const SHAPES: [usize; 9] = [34, 44, 35, 47, 53, 103, 30, 38, 10];

/// An operation of worker `me`, and its memory.
pub fn draw(script: &mut Script<'_>, name: usize, op: OpId, me: Rank, size: u32) -> (Post, Tensor) {
    let shape = if script.once_in(16) { usize::from(script.byte()) } else { SHAPES[name] };
    let group = group(script, name, size);
    let members = group.as_ref().map_or(size, |ranks| ranks.len() as u32);
    let member = match &group {
        None => me.0,
        Some(ranks) => ranks.iter().position(|rank| *rank == me).unwrap_or(0) as u32,
    };
    let collective = collective(shape, member, members);
    let dtype = Dtype::ALL[shape % Dtype::ALL.len()];
    let in_place = script.once_in(2) && collective.in_place_allowed();
    let element_bytes = dtype.size() as u64;
    let (mut input, mut output) = (collective.input_len(member), collective.output_len(member));
    if in_place {
        (input, output) = (input.max(output), input.max(output));
    }
    let tensor =
        Tensor { input_bytes: input * element_bytes, output_bytes: output * element_bytes };
    let post = Post {
        op,
        name: format!("tensor {name}").into(),
        collective,
        dtype,
        reduce: ReduceOp::ALL[shape % ReduceOp::ALL.len()],
        priority: i64::from(script.byte()),
        group,
        in_place,
        listeners: 0,
        holds: Holds::Nothing,
    };
    (post, tensor)
}

/// All, a fixed part of them, or whatever the script says.
fn group(script: &mut Script<'_>, name: usize, size: u32) -> Option<Arc<[Rank]>> {
    if script.once_in(32) {
        let ranks = (0..script.below(4)).map(|_| Rank(script.below(size as usize + 1) as u32));
        return Some(ranks.collect());
    }
    match name % 4 {
        0 => Some([Rank(1), Rank(0)].into()),
        _ => None,
    }
}

/// The rest of `shape` by 11 is the kind, then come the length and the root.
fn collective(shape: usize, me: u32, members: u32) -> Collective {
    let len = [0, 1, 5, 64, 200][shape / 11 % 5];
    let root = (shape / 55) as u32 % (members + u32::from(shape % 97 == 96)).max(1);
    let counts: Arc<[u64]> = (0..u64::from(members)).map(|member| len * member % 70).collect();
    let pairs = |transposed: bool| -> Arc<[u64]> {
        let count = |from: u32, to: u32| u64::from(from * 7 + to * 3) * len % 31;
        (0..members)
            .map(|other| if transposed { count(other, me) } else { count(me, other) })
            .collect()
    };
    match shape % 11 {
        0 | 1 => Collective::AllReduce { len },
        2 => Collective::ReduceScatter { counts },
        3 => Collective::AllGather { counts },
        4 => Collective::Broadcast { root, len },
        5 => Collective::Reduce { root, len },
        6 => Collective::Gather { root, counts },
        7 => Collective::Scatter { root, counts },
        8 => Collective::AllToAll { sends: pairs(false), receives: pairs(true) },
        9 if me == 0 => Collective::Send { to: 1, len },
        9 => Collective::Recv { from: 0, len },
        _ => Collective::Barrier,
    }
}
