//! Reproducible pseudo-random numbers for uses where quality does not matter: tie-breaking, and
//! arbitrary weights and inputs. Workloads use a better generator (`ripieno-workload`).

/// A linear congruential generator. It returns only the high bits of its state, because the low
/// bits are poor.
#[derive(Clone, Debug)]
pub struct Lcg(u64);

impl Lcg {
    /// Creates a generator with a seed.
    pub fn new(seed: u64) -> Lcg {
        Lcg(seed)
    }

    /// Returns 32 random bits.
    pub fn bits(&mut self) -> u32 {
        (self.next() >> 32) as u32
    }

    /// Returns a random number below `bound`, which must be at least 1.
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
        let (mut random, mut counts) = (Lcg::new(1), [0; 7]);
        (0..7_000).for_each(|_| counts[random.below(7) as usize] += 1);
        assert!(counts.iter().all(|count| (900..1_100).contains(count)), "{counts:?}");
        assert_eq!((random.below(1), Lcg::new(1).bits()), (0, Lcg::new(1).bits()));
        assert_ne!(Lcg::new(1).bits(), Lcg::new(2).bits());
    }
}
