//! Drives the machines of the hand-over in real time over TCP: one thread a process, which waits for sockets and timers.
//!
//! Schedulers listen; everybody dials all schedulers, and backends the frontends as well, so a spare that takes over has its
//! connections already. Both ends of a connection say hello first, which tells who speaks. A message to whom there is no
//! connection is lost, and so is what a peer does not take: the protocol expects that. A thread for each connection was
//! rejected, since a thousand backends would wake a thousand threads; tokio, since its timers tick in milliseconds on threads
//! that other work may hold.

mod keeper;
mod link;
mod node;
mod parts;

pub use node::{Handle, Machine, Node, Post, Settings};
pub use parts::{BackendPart, Deliver, Execute, FrontendPart, Schedule, SchedulerPart, Submit};
