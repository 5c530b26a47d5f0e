//! Mapping of a `config.pbtxt`'s priority levels to the server's.

/// Number of the server's priority levels; 1 is the most urgent.
pub const LEVELS: u64 = 9;

/// Priority levels of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Levels {
    /// Number of levels, at least 1.
    count: u64,
    /// Level of requests without a valid level.
    default: u64,
}

impl Default for Levels {
    /// Returns the server's levels, with the middle one as the default.
    fn default() -> Levels {
        Levels { count: LEVELS, default: LEVELS.div_ceil(2) }
    }
}

impl Levels {
    /// Returns `None` if there are no levels, or if the default is not among them.
    pub fn new(count: u64, default: u64) -> Option<Levels> {
        (1..=count).contains(&default).then_some(Levels { count, default })
    }

    /// Maps a request's level to the server's. If the model has more levels than the server,
    /// neighbours share one.
    pub fn to_server_level(&self, named: u64) -> u64 {
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
    fn requests_without_a_level_get_the_default() {
        let of = |levels: Levels| [0, 1, 2, 3, 9, 10, u64::MAX].map(|level| levels.to_server_level(level));
        assert_eq!(of(Levels::default()), [5, 1, 2, 3, 9, 5, 5]);
        assert_eq!(of(Levels::new(2, 1).unwrap()), [1, 1, 2, 1, 1, 1, 1]);
        assert_eq!([Levels::new(2, 3), Levels::new(2, 0), Levels::new(0, 0)], [None; 3]);
    }

    #[test]
    fn more_levels_than_there_are_keep_their_order() {
        let many = Levels::new(18, 18).unwrap();
        assert_eq!([1, 2, 3, 17, 18, 0].map(|level| many.to_server_level(level)), [1, 1, 2, 9, 9, 9]);
        assert_eq!(Levels::new(u64::MAX, u64::MAX).unwrap().to_server_level(0), LEVELS);
    }
}
