//! Who meets whom in a round-robin tournament: pairs for any number of players and any round, by the circle method.

use crate::program::Member;

/// With whom `me` is paired in the tournament's round `lot`; `None` for the one who sits out.
///
/// With an odd number, players `a` and `b` meet in the round `a + b` modulo their number, and who
/// would meet themselves sits out. With an even number the last player stands apart and meets that
/// one.
pub(crate) fn partner(members: u32, me: Member, lot: u64) -> Option<Member> {
    if members < 2 {
        return None;
    }
    let circle = members - 1 + members % 2;
    let round = (lot % u64::from(circle)) as u32;
    let meets_itself = |player: u32| (round + circle - player) % circle == player;
    if me == circle {
        // `circle` is odd, so (circle + 1) / 2 halves modulo `circle`.
        let half = u64::from(round) * u64::from(circle.div_ceil(2)) % u64::from(circle);
        return Some(half as Member);
    }
    if meets_itself(me) {
        return (members.is_multiple_of(2)).then_some(circle);
    }
    Some((round + circle - me) % circle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partners_agree_on_each_other_and_at_most_one_sits_out() {
        for members in 1..=65 {
            for lot in 0..70 {
                let alone = (0..members).filter(|me| match partner(members, *me, lot) {
                    Some(other) => {
                        assert_ne!(other, *me);
                        assert_eq!(partner(members, other, lot), Some(*me));
                        false
                    }
                    None => true,
                });
                assert_eq!(alone.count() as u32, members % 2, "{members} members, lot {lot}");
            }
        }
    }

    #[test]
    fn over_all_rounds_every_two_members_meet_once() {
        for members in [2, 5, 8, 13] {
            let rounds = u64::from(members - 1 + members % 2);
            for me in 0..members {
                let mut met: Vec<_> =
                    (0..rounds).filter_map(|lot| partner(members, me, lot)).collect();
                met.sort_unstable();
                assert_eq!(met, (0..members).filter(|other| *other != me).collect::<Vec<_>>());
            }
        }
    }
}
