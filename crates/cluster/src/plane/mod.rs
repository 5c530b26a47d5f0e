//! What roles say to each other, and how it gets there: records, greetings, tensors, and connections that carry them.
//!
//! All that comes from a connection is a stranger's: each frame is bounded before it is read, each field is checked
//! where it is decoded, and what cannot be read ends the connection with an error, never the process.

mod answers;
mod ended;
mod frame;
mod greeting;
mod link;
mod message;
mod reader;
mod report;
mod tensors;
mod transport;

pub use crate::handover::Role;
pub use ended::{Ended, MemberEnd};
pub use frame::{Garbled, RECORD};
pub use greeting::{Greeting, Unwelcome, VERSION, greet, welcome};
pub use link::{Link, LinkBounds};
pub use message::{Ask, End, Message, Run, RunMember};
pub use reader::Reader;
pub use report::Report;
pub use transport::{Listener, Stream, Tcp, Transport};

pub use tensors::{read_tensors, write_tensors};
