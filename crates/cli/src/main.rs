//! The `ripieno` binary.
fn main() {}
