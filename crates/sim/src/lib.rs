//! Driver A: virtual time, emulated devices, checkers.
