//! What strangers may take: bytes, connections, time and threads.
//!
//! Every byte that a client makes the server hold is reserved from one [`budget`] before it is allocated, and stays
//! reserved until it is freed; one peer has a share of it ([`shares`]). Every connection is one of a bounded number of
//! [`places`] and must show progress ([`connection`]); work that keeps a core busy, and loads of models, run few at a time
//! ([`loads`]).

pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod loads;
pub(crate) mod places;
pub(crate) mod shares;
pub(crate) mod socket;
