//! Numbers that look random and are the same in every run: who is asked first, weights and inputs whose values are of no
//! interest. Workloads draw from a better generator, which is a library's (`ripieno-workload`).

/// A linear congruential generator. Its high bits are good, its low ones are not: only the former are given out.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// The numbers that belong to a seed.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// 32 bits.
    pub fn bits(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_below_a_bound_comes_about_as_often() {
        let (mut random, mut counts) = (Random::new(1), [0; 7]);
        (0..7_000).for_each(|_| counts[random.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        assert_eq!((random.below(1), Random::new(1).bits()), (0, Random::new(1).bits()));
        assert_ne!(Random::new(1).bits(), Random::new(2).bits());
    }
}
