//! Which rate a link of the demo is given. Pure functions.

use paceline_job::Rate;

/// Rates that people would say, in Mbit/s.
const RATES: [f64; 16] = [
    1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 50.0, 70.0, 100.0, 150.0, 200.0, 300.0, 500.0,
];

/// A rate at which a step's gradients take about as long as its computing: there communication matters, and can be hidden.
pub fn suitable(workers: usize, bytes: usize, compute_seconds: f64) -> Rate {
    let workers = workers as f64;
    // What each worker of a ring sends.
    let bytes = 2.0 * (workers - 1.0) / workers * bytes as f64;
    spoken(Rate::from_bytes_per_second(bytes / compute_seconds.max(1e-3)))
}

/// The nearest that people would say.
pub fn spoken(rate: Rate) -> Rate {
    let wanted = rate.bytes_per_second() * 8.0 / 1e6;
    let apart = |megabits: &f64| (megabits / wanted).ln().abs();
    let nearest = RATES.into_iter().min_by(|one, other| apart(one).total_cmp(&apart(other)));
    Rate::from_bits_per_second(1e6 * nearest.unwrap_or(wanted))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_that_people_say() {
        for (given, said) in [(97e6, "100mbit"), (34e6, "30mbit"), (4e9, "500mbit"), (1.0, "1mbit")]
        {
            assert_eq!(spoken(Rate::from_bits_per_second(given)).to_string(), said);
        }
    }
}
