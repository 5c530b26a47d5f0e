//! Weighted round robins of several frontends that do not know of each other.
//!
//! One frontend spreads a model's requests evenly over its places. Several frontends do so
//! independently. Together they may send a few consecutive requests to the same place, and with
//! more frontends this is more likely. The frontend of a request, and each frontend's starting
//! place, come from a generator with a fixed seed, so that runs are reproducible.

use ripieno_base::Lcg;

/// The round robin state of each frontend and model.
#[derive(Debug)]
pub(crate) struct Frontends {
    /// Number of frontends.
    count: usize,
    /// Number of models.
    models: usize,
    /// Number of places, of all models together.
    places: usize,
    /// Per frontend and place, the credit of the round robin.
    credits: Vec<u64>,
    /// Per frontend and model, the next place, relative to the model's first one and modulo their
    /// number.
    next: Vec<u32>,
    /// Source of random choices.
    random: Lcg,
}

impl Frontends {
    pub(crate) fn new(count: usize, models: usize, places: usize) -> Frontends {
        let (credits, next) = (vec![0; count * places], vec![0; count * models]);
        Frontends { count, models, places, credits, next, random: Lcg::new(1) }
    }

    /// Restarts the round robins with other places.
    pub(crate) fn restart(&mut self) {
        self.credits.fill(0);
        // The first frontend begins at the first place, so that one frontend is deterministic.
        for at in self.models..self.next.len() {
            self.next[at] = self.random.below(1 << 16) as u32;
        }
    }

    /// Returns the place for the next request of a model with the places `first..first + count`.
    /// `share` returns the share of a place; `largest` is the largest of them.
    pub(crate) fn choose(
        &mut self,
        model: usize,
        (first, count): (usize, usize),
        largest: u64,
        share: impl Fn(usize) -> u64,
    ) -> usize {
        let frontend = if self.count == 1 { 0 } else { self.random.below(self.count as u64) as usize };
        let next = &mut self.next[frontend * self.models + model];
        // Each visit adds a place's share to its credit; a place with at least the largest share is
        // taken. A place with the largest share is taken at every visit, so one round is enough.
        loop {
            let place = first + *next as usize % count;
            *next = ((place - first + 1) % count) as u32;
            let credit = &mut self.credits[frontend * self.places + place];
            *credit += share(place);
            if *credit >= largest {
                *credit -= largest;
                return place;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven requests over places with shares of 4, 2 and 1, each gets its part, interleaved.
    #[test]
    fn one_frontend_is_a_weighted_round_robin() {
        let shares = [4, 2, 1];
        let mut one = Frontends::new(1, 1, 3);
        one.restart();
        let places: Vec<_> = (0..14).map(|_| one.choose(0, (0, 3), 4, |place| shares[place])).collect();
        assert_eq!(places, [0, 0, 1, 0, 0, 1, 2, 0, 0, 1, 0, 0, 1, 2]);
    }

    #[test]
    fn several_frontends_keep_the_parts_but_not_the_order() {
        let count = |frontends: usize| {
            let mut many = Frontends::new(frontends, 1, 4);
            many.restart();
            let places: Vec<_> = (0..8_000).map(|_| many.choose(0, (0, 4), 1, |_| 1)).collect();
            let repeated = places.windows(2).filter(|pair| pair[0] == pair[1]).count();
            (places.iter().filter(|&&place| place == 2).count(), repeated)
        };
        assert_eq!(count(1), (2_000, 0));
        let (at_place_2, repeated) = count(8);
        assert!(at_place_2.abs_diff(2_000) <= 8 && repeated > 1_000, "{at_place_2} {repeated}");
    }
}
