//! Independent random streams from one seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

/// The generator of all workloads; its output for a seed is fixed by its published algorithm.
pub type SeededRng = Xoshiro256PlusPlus;

/// Returns the stream `index` of `seed`. Streams of neighbouring seeds or indices are independent:
/// both numbers go through a full mixing step before they are combined, so `(1, 2)` and `(2, 1)`
/// differ as well.
pub fn stream(seed: u64, index: u64) -> SeededRng {
    SeededRng::seed_from_u64(splitmix64(splitmix64(seed) ^ index))
}

/// Returns a real number in [0, 1), with the full 53 bits of precision of a double.
pub fn unit(random: &mut SeededRng) -> f64 {
    (random.next_u64() >> 11) as f64 / (1u64 << 53) as f64
}

/// Returns a whole number below `bound`, which is at least 1; uniform up to one part in 2^64 /
/// `bound`.
pub fn below(random: &mut SeededRng, bound: u64) -> u64 {
    ((u128::from(random.next_u64()) * u128::from(bound)) >> 64) as u64
}

/// The output step of the splitmix64 generator: a bijection that spreads each input bit over the
/// whole word.
fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn streams_of_neighbours_differ() {
        let firsts: BTreeSet<u64> =
            (0..32).flat_map(|seed| (0..32).map(move |index| stream(seed, index).next_u64())).collect();
        assert_eq!(firsts.len(), 32 * 32);
    }

    #[test]
    fn unit_is_uniform_below_one() {
        let mut random = stream(3, 3);
        let values: Vec<f64> = (0..10_000).map(|_| unit(&mut random)).collect();
        assert!(values.iter().all(|value| (0.0..1.0).contains(value)));
        assert!((values.iter().sum::<f64>() / 10_000.0 - 0.5).abs() < 0.02);
    }

    #[test]
    fn each_number_below_a_bound_is_drawn_alike() {
        let mut random = stream(5, 1);
        let mut counts = [0; 7];
        (0..7_000).for_each(|_| counts[below(&mut random, 7) as usize] += 1);
        assert!(counts.iter().all(|count| (850..1_150).contains(count)), "{counts:?}");
        assert_eq!(below(&mut random, 1), 0);
    }

    #[test]
    fn the_generator_is_fixed() {
        expect_test::expect!["e220a8397b1dcdaf"].assert_eq(&format!("{:016x}", splitmix64(0)));
        expect_test::expect!["3f8506cb87cd7d91"].assert_eq(&format!("{:016x}", stream(1, 0).next_u64()));
    }
}
