//! The protocol between roles: records, handshakes, tensors, and the connections that carry them.
//!
//! All input from a connection is untrusted: each frame is bounded before it is read, each field is
//! checked where it is decoded, and a malformed frame ends the connection with an error, never the
//! process.

mod frame;
mod graph;
mod handshake;
mod link;
mod message;
mod poll;
mod reader;
mod report;
mod request_result;
mod task_end;
mod tensors;
mod tls;
mod transport;

pub use crate::handover::Role;
pub use frame::{DecodeError, RECORD};
pub(crate) use graph::fits as graph_fits;
pub(crate) use handshake::CELLS;
pub use handshake::{Handshake, HandshakeError, REVISION, VERSION, accept_handshake, connect_handshake};
pub use link::{LinkBounds, PeerLink};
pub use message::{LoadCall, Message, RequestHeader, RunMember, RunTask};
pub(crate) use poll::{ConnectionHandler, HandlerQueue, Pollers};
pub use reader::MessageReader;
pub use report::RunningReport;
pub use request_result::RequestEnd;
pub use task_end::{MemberEnd, TaskEnd};
pub use tls::{MutualTls, PeerFiles};
pub(crate) use transport::PeerAddress;
pub use transport::{ByteStream, Listener, ReadBytes, Tcp, Transport};

pub use tensors::{read_tensors, write_tensors};
