//! Levels of priority, as a `config.pbtxt` counts them, on the scale of the server.

/// How many levels the server tells apart; 1 is the most urgent.
pub const LEVELS: u64 = 9;

/// The levels of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// How many there are; at least 1.
    count: u64,
    /// Where requests stand that name none of them.
    default: u64,
}

impl Default for Levels {
    /// Those of the server; who names none stands in the middle.
    fn default() -> Levels {
        Levels { count: LEVELS, default: LEVELS.div_ceil(2) }
    }
}

impl Levels {
    /// None if there are no levels, or if the default is none of them.
    pub fn new(count: u64, default: u64) -> Option<Levels> {
        (1..=count).contains(&default).then_some(Levels { count, default })
    }

    /// The server's level of a request that names this one. More levels than the server's share those, in their order.
    pub fn of(&self, named: u64) -> u64 {
        let level = if (1..=self.count).contains(&named) { named } else { self.default };
        match self.count <= LEVELS {
            true => level,
            false => (u128::from(level) * u128::from(LEVELS)).div_ceil(u128::from(self.count)) as u64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_names_no_level_stands_at_the_default() {
        let of = |levels: Levels| [0, 1, 2, 3, 9, 10, u64::MAX].map(|level| levels.of(level));
        assert_eq!(of(Levels::default()), [5, 1, 2, 3, 9, 5, 5]);
        assert_eq!(of(Levels::new(2, 1).unwrap()), [1, 1, 2, 1, 1, 1, 1]);
        assert_eq!([Levels::new(2, 3), Levels::new(2, 0), Levels::new(0, 0)], [None; 3]);
    }

    #[test]
    fn more_levels_than_there_are_keep_their_order() {
        let many = Levels::new(18, 18).unwrap();
        assert_eq!([1, 2, 3, 17, 18, 0].map(|level| many.of(level)), [1, 1, 2, 9, 9, 9]);
        assert_eq!(Levels::new(u64::MAX, u64::MAX).unwrap().of(0), LEVELS);
    }
}
