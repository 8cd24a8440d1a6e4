//! One collective over a group, with its inputs and its right results, worked out without programs or
//! networks.

use paceline_job::{Dtype, Rank, ReduceOp};
use paceline_replay::contents::Tensor;
use paceline_sync::{collective::Collective, strategy};
use std::sync::Arc;

/// One collective over a group.
#[derive(Clone, Debug)]
pub struct Operation {
    pub name: Arc<str>,
    pub group: Option<Arc<[Rank]>>,
    pub members: Vec<Rank>,
    /// What each member posts.
    pub collectives: Vec<Collective>,
    pub dtype: Dtype,
    pub reduce: ReduceOp,
    pub in_place: bool,
    /// How urgent it is to each member: they need not agree.
    pub priorities: Vec<i64>,
    /// Which of the scenario's views it is posted in.
    pub view: usize,
    pub inputs: Vec<Vec<u8>>,
}

impl Operation {
    pub fn member(&self, rank: Rank) -> Option<usize> {
        self.members.iter().position(|member| *member == rank)
    }

    /// Compare a member's result with the right one.
    pub fn check(&self, strategy: &str, member: usize, tensor: &Tensor) -> Result<(), String> {
        let reads_output = !tensor.out.is_empty();
        if matches!(self.collectives[member], Collective::Barrier) || !reads_output {
            return Ok(());
        }
        if tensor.written.contains(&false) {
            return Err(format!("member {member} of {self:?} has output that nobody wrote"));
        }
        let is_gossip = strategy == "gossip" && self.reduce == ReduceOp::Mix;
        if is_gossip && matches!(self.collectives[member], Collective::AllReduce { .. }) {
            let mut pairs = (0..self.members.len())
                .map(|other| if other == member { vec![member] } else { vec![member, other] });
            let close = |pair: Vec<usize>| self.near(&self.reduced(&pair), &tensor.out);
            if pairs.any(close) {
                return Ok(());
            }
            return Err(format!("member {member} of {self:?} averaged with nobody"));
        }
        let right = self.right_result(member, self.contributors(strategy));
        if self.near(&right, &tensor.out) {
            return Ok(());
        }
        Err(format!("member {member} of {self:?} has {:?} and not {right:?}", tensor.out))
    }

    fn block(counts: &[u64], member: usize, size: usize) -> std::ops::Range<usize> {
        let start = counts[..member].iter().sum::<u64>() as usize * size;
        start..start + counts[member] as usize * size
    }

    /// How many members' inputs an all-reduce counts: in a group, all.
    fn contributors(&self, strategy: &str) -> usize {
        match strategy::by_name(strategy) {
            Some(strategy) if self.group.is_none() => {
                strategy.contributors(self.members.len() as u32) as usize
            }
            _ => self.members.len(),
        }
    }

    fn right_result(&self, member: usize, contributors: usize) -> Vec<u8> {
        let size = self.dtype.size();
        let everybody: Vec<usize> = (0..self.members.len()).collect();
        match &self.collectives[member] {
            Collective::AllReduce { .. } => self.reduced(&everybody[..contributors]),
            Collective::Reduce { .. } => self.reduced(&everybody),
            Collective::ReduceScatter { counts } => {
                self.reduced(&everybody)[Operation::block(counts, member, size)].to_vec()
            }
            Collective::AllGather { .. } | Collective::Gather { .. } => self.inputs.concat(),
            Collective::Broadcast { root, .. } => self.inputs[*root as usize].clone(),
            Collective::Scatter { root, counts } => {
                self.inputs[*root as usize][Operation::block(counts, member, size)].to_vec()
            }
            Collective::AllToAll { .. } => {
                let blocks = self.inputs.iter().zip(&self.collectives).map(|(input, theirs)| {
                    let Collective::AllToAll { sends, .. } = theirs else { unreachable!() };
                    input[Operation::block(sends, member, size)].to_vec()
                });
                blocks.collect::<Vec<_>>().concat()
            }
            Collective::Recv { from, .. } => self.inputs[*from as usize].clone(),
            Collective::Send { .. } | Collective::Barrier => Vec::new(),
        }
    }

    /// The combination of some members' inputs, in this order.
    fn reduced(&self, members: &[usize]) -> Vec<u8> {
        macro_rules! with_type {
            ($type:ty, $add:expr, $multiply:expr) => {{
                let mut sums: Vec<$type> = numbers!($type, &self.inputs[members[0]]);
                for member in &members[1..] {
                    for (sum, value) in sums.iter_mut().zip(numbers!($type, &self.inputs[*member]))
                    {
                        *sum = match self.reduce {
                            ReduceOp::Sum | ReduceOp::Average | ReduceOp::Mix => $add(*sum, value),
                            ReduceOp::Product => $multiply(*sum, value),
                            ReduceOp::Min => {
                                if value < *sum {
                                    value
                                } else {
                                    *sum
                                }
                            }
                            ReduceOp::Max => {
                                if value > *sum {
                                    value
                                } else {
                                    *sum
                                }
                            }
                        };
                    }
                }
                if self.reduce.divides() {
                    sums.iter_mut().for_each(|sum| *sum /= members.len() as $type);
                }
                sums.iter().flat_map(|sum| sum.to_le_bytes()).collect()
            }};
        }
        match self.dtype {
            Dtype::F32 => with_type!(f32, |a, b| a + b, |a, b| a * b),
            Dtype::I64 => with_type!(i64, i64::wrapping_add, i64::wrapping_mul),
            _ => with_type!(u8, u8::wrapping_add, u8::wrapping_mul),
        }
    }

    /// Equal, or for floats nearly so: they are summed in another order here.
    fn near(&self, right: &[u8], result: &[u8]) -> bool {
        if self.dtype != Dtype::F32 {
            return right == result;
        }
        let pairs = numbers!(f32, right).into_iter().zip(numbers!(f32, result));
        right.len() == result.len()
            && pairs.into_iter().all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs()))
    }
}

macro_rules! numbers {
    ($type:ty, $bytes:expr) => {{
        let chunks = $bytes.chunks_exact(size_of::<$type>());
        let number = |bytes: &[u8]| <$type>::from_le_bytes(bytes.try_into().expect("exact"));
        chunks.map(number).collect::<Vec<$type>>()
    }};
}
use numbers;
