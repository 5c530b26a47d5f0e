//! A front end, as a backend sees it: rows are pulled from there and outputs pushed to it, over one warm connection.
//!
//! The connection is made when the scheduler tells of the front end, on a thread that then reads from it; what is sent
//! before it stands waits. Once it has ended it stays so: what was asked for on it is lost, and what is asked for later
//! needs another.

use crate::plane::{Greeting, Link, LinkBounds, Message, Reader, Role, Transport, greet};
use parking_lot::Mutex;
use ripieno_executor::Tensor;
use std::io;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

const CONNECT: Duration = Duration::from_secs(2);

/// The most messages that wait for the connection.
const MOST_WAITING: usize = 1 << 16;

/// Where rows come from.
pub(super) struct Source {
    pub(super) address: String,
    state: Mutex<State>,
}

enum State {
    Connecting(Vec<Message>),
    Up(Arc<Link>),
    Down,
}

/// Hears of rows by tag, and at last that no further ones come.
pub(super) trait Receiver: Send + Sync + 'static {
    fn on_rows(&self, tag: u64, inputs: Option<Vec<Tensor>>);
    fn on_lost(&self, frontend: u32);
}

impl Source {
    /// Of a front end at this address.
    pub(super) fn connect(
        transport: Arc<dyn Transport>,
        (frontend, address): (u32, String),
        epoch: u64,
        receiver: Weak<impl Receiver>,
    ) -> Arc<Source> {
        let source = Arc::new(Source { address, state: Mutex::new(State::Connecting(Vec::new())) });
        let own = Arc::clone(&source);
        let read = move || {
            if let Err(error) = own.read(&*transport, epoch, &receiver) {
                tracing::info!(frontend, address = own.address, %error, "the connection to a frontend has ended");
            }
            own.close();
            receiver.upgrade().iter().for_each(|receiver| receiver.on_lost(frontend));
        };
        if let Err(error) = thread::Builder::new().name("backend-pull".to_owned()).spawn(read) {
            tracing::error!(%error, "no thread for a frontend's connection");
            source.close();
        }
        source
    }

    fn read(&self, transport: &dyn Transport, epoch: u64, receiver: &Weak<impl Receiver>) -> io::Result<()> {
        let stream = transport.connect(&self.address, CONNECT)?;
        greet(&*stream, Greeting::new(Role::Backend, epoch), Role::Frontend).map_err(io::Error::other)?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::DATA, "backend-push")?;
        if !self.stand(&link) {
            link.close();
        }
        let mut reader = Reader::new(stream, Link::SILENCE);
        loop {
            match reader.read()? {
                Message::Here => {}
                Message::Rows { tag, inputs } => match receiver.upgrade() {
                    Some(receiver) => receiver.on_rows(tag, inputs),
                    None => return Ok(()),
                },
                other => return Err(io::Error::other(format!("it says {other:?}, which is not its part"))),
            }
        }
    }

    /// The connection stands; false if nobody wants it any more.
    fn stand(&self, link: &Arc<Link>) -> bool {
        let mut state = self.state.lock();
        let State::Connecting(waiting) = &mut *state else { return false };
        waiting.drain(..).for_each(|message| link.send(&message));
        *state = State::Up(Arc::clone(link));
        true
    }

    /// Sends something; false if it cannot get there.
    pub(super) fn send(&self, message: Message) -> bool {
        match &mut *self.state.lock() {
            State::Connecting(waiting) if waiting.len() < MOST_WAITING => waiting.push(message),
            State::Up(link) if !link.is_closed() => link.send(&message),
            _ => return false,
        }
        true
    }

    pub(super) fn close(&self) {
        if let State::Up(link) = std::mem::replace(&mut *self.state.lock(), State::Down) {
            link.close();
        }
    }
}
