//! The order of turns: every contender once in each round, alternating, and a different one first each
//! time. A contender that fails leaves; the others go on. It does not know what the numbers mean.

use super::{
    group::Group, interrupt::Interrupt, progress::Progress, protocol::Turn, report::LeftOut,
    workload::Workload,
};
use anyhow::Result;

/// Measures one workload: the turns of each seat, round by round. A seat is emptied, and `left_out` says
/// why, when its contender fails.
///
/// # Errors
/// Only if the user wants to leave.
pub fn measure(
    workload: &Workload,
    rounds: u32,
    seats: &mut [Option<Group>],
    left_out: &mut Vec<LeftOut>,
    progress: &Progress,
    interrupt: &Interrupt,
) -> Result<Vec<Vec<Turn>>> {
    let mut turns = vec![Vec::new(); seats.len()];
    for round in 0..rounds {
        for seat in order(round, seats.len()) {
            if let Some(group) = &mut seats[seat] {
                progress.turn(&workload.name, group.name());
                match group.turn(workload, interrupt) {
                    Ok(turn) => turns[seat].push(turn),
                    Err(error) => {
                        interrupt.check()?;
                        let name = group.name().to_string();
                        let why = format!("{error:#}");
                        progress.note(&format!("{name} failed at {}: {why}", workload.name));
                        left_out.push(LeftOut { name, why });
                        seats[seat] = None;
                    }
                }
            }
            progress.advance();
        }
    }
    Ok(turns)
}

/// The seats in the order of their turns.
fn order(round: u32, seats: usize) -> impl Iterator<Item = usize> {
    (0..seats).map(move |turn| (turn + round as usize) % seats)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_seat_has_one_turn_a_round_and_the_lead_rotates() {
        assert_eq!(order(0, 3).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(order(1, 3).collect::<Vec<_>>(), [1, 2, 0]);
        assert_eq!(order(5, 3).collect::<Vec<_>>(), [2, 0, 1]);
        assert_eq!(order(1, 0).count(), 0);
    }
}
