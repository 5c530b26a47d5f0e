//! Arrivals, lengths and traces; seeded.
