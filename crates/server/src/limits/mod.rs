//! Limits on the resources that clients use: memory, connections, time and threads.
//!
//! Every byte that a client makes the server hold is reserved from one [`budget`] before it is
//! allocated, and stays reserved until it is freed. Each peer has a share ([`peer_budgets`]).
//! Connections are limited in number ([`slots`]) and must show progress ([`connection`]). CPU-bound
//! work and repository changes run few at a time ([`loads`]).

pub(crate) mod budget;
pub(crate) mod call;
pub(crate) mod connection;
pub(crate) mod loads;
pub(crate) mod peer_budgets;
pub(crate) mod slots;
pub(crate) mod socket;
