//! Independent random streams from one seed.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::SeedableRng;

/// The generator that every workload draws from; its output for a seed is fixed by its published algorithm.
pub type Random = Xoshiro256PlusPlus;

/// The stream `index` of `seed`. Streams of neighbouring seeds or indices share nothing: both numbers go through a
/// full mixing step before they meet, so `(1, 2)` and `(2, 1)` differ as well.
pub fn stream(seed: u64, index: u64) -> Random {
    Random::seed_from_u64(splitmix64(splitmix64(seed) ^ index))
}

/// The output step of the splitmix64 generator: a bijection that spreads each input bit over the whole word.
fn splitmix64(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand_xoshiro::rand_core::Rng;
    use std::collections::BTreeSet;

    #[test]
    fn streams_of_neighbours_differ() {
        let firsts: BTreeSet<u64> =
            (0..32).flat_map(|seed| (0..32).map(move |index| stream(seed, index).next_u64())).collect();
        assert_eq!(firsts.len(), 32 * 32);
    }

    #[test]
    fn the_generator_is_fixed() {
        expect_test::expect!["e220a8397b1dcdaf"].assert_eq(&format!("{:016x}", splitmix64(0)));
        expect_test::expect!["3f8506cb87cd7d91"].assert_eq(&format!("{:016x}", stream(1, 0).next_u64()));
    }
}
