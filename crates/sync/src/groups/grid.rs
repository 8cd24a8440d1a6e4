//! Groups for members of whom none is nearer than another: lines of a grid, one axis after another.
//!
//! With n = p₁·p₂·…·p_d members, a line of axis i has p_i of them, and the values of a line are averaged. After all d
//! axes each member holds the exact average of all: for n = k^d after d steps, in groups of k.

use crate::program::Member;

/// The groups of each step. Axes have prime lengths, so a prime number of members is one line.
pub(super) fn divisions(members: u32) -> Vec<Vec<Vec<Member>>> {
    let mut steps = Vec::new();
    // The distance between neighbours of a line.
    let mut stride = 1;
    for side in prime_factors(members) {
        let first = (0..members).filter(|member| (member / stride).is_multiple_of(side));
        let line = |member: Member| (0..side).map(|at| member + at * stride).collect();
        steps.push(first.map(line).collect());
        stride *= side;
    }
    if steps.is_empty() {
        steps.push((0..members).map(|member| vec![member]).collect());
    }
    steps
}

/// Ascending; none for 1.
fn prime_factors(mut number: u32) -> Vec<u32> {
    let mut factors = Vec::new();
    let mut factor = 2;
    while factor * factor <= number {
        if number.is_multiple_of(factor) {
            factors.push(factor);
            number /= factor;
        } else {
            factor += 1;
        }
    }
    if number > 1 {
        factors.push(number);
    }
    factors
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_grid_has_an_axis_for_each_prime_factor() {
        assert!(prime_factors(1).is_empty());
        assert_eq!(prime_factors(60), [2, 2, 3, 5]);
        assert_eq!(divisions(1), vec![vec![vec![0]]]);
        assert_eq!(
            divisions(6),
            vec![vec![vec![0, 1], vec![2, 3], vec![4, 5]], vec![vec![0, 2, 4], vec![1, 3, 5]]]
        );
    }
}
