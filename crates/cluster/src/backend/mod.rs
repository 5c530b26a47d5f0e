//! The backend's role: one device of an executor, at the orders of a scheduler elsewhere.
//!
//! A session lasts as long as the connection to the scheduler. When that ends, all of it goes: the device with what it
//! holds, the connections to frontends. Then the backend connects again, with a fresh device: nobody waits for what it
//! had. A device that hangs keeps its backend away until it has ended, as it should.

mod session;
mod source;
mod tasks;

use crate::description::Description;
use crate::plane::{Greeting, Link, LinkBounds, Message, Reader, Role, Transport, Unwelcome, greet};
use parking_lot::{Condvar, Mutex};
use ripieno_executor::{Engine as Executor, Loaded};
use session::Session;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long to wait before connecting again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_secs(2);

/// A model that is loaded here.
pub struct BackendModel {
    /// What the scheduler is told of it.
    pub description: Description,
    /// What runs.
    pub loaded: Arc<dyn Loaded>,
}

/// A backend, not connected yet.
pub struct Backend {
    /// How machines are connected.
    pub transport: Arc<dyn Transport>,
    /// The address of the scheduler.
    pub scheduler: String,
    /// Opens the device; it has loaded the models.
    pub executor: Arc<dyn Executor>,
    /// The most tasks on each of its lanes.
    pub depth: usize,
    /// The models, in the order of their names.
    pub models: Arc<[BackendModel]>,
}

/// Tells a role that it is to end.
#[derive(Default)]
pub struct Stop {
    state: Mutex<Stopping>,
    told: Condvar,
}

#[derive(Default)]
struct Stopping {
    told: bool,
    link: Option<Arc<Link>>,
}

impl Stop {
    /// Has the backend leave: it begins nothing new, ends what it holds, and goes.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.told = true;
        state.link.iter().for_each(|link| link.send(&Message::Leave));
        self.told.notify_all();
    }

    /// Ends its connection at once, as a crash would.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.told = true;
        state.link.iter().for_each(|link| link.close());
        self.told.notify_all();
    }

    fn is_told(&self) -> bool {
        self.state.lock().told
    }

    /// What is to be told of it; false if it is to end already.
    fn follow(&self, link: Option<Arc<Link>>) -> bool {
        let mut state = self.state.lock();
        state.link = link;
        !state.told
    }

    fn wait(&self, span: Duration) {
        let mut state = self.state.lock();
        if !state.told {
            self.told.wait_for(&mut state, span);
        }
    }
}

impl Backend {
    /// Serves until it is told to stop. Connects again whenever the connection ends.
    pub fn run(&self, stop: &Stop) {
        let (mut epoch, mut again, mut said) = (0, AGAIN_MIN, String::new());
        while !stop.is_told() {
            let (served, ended) = self.session(&mut epoch, stop);
            let cause = ended.map_or_else(|error| error.to_string(), |()| "the connection has ended".to_owned());
            if !stop.is_told() && cause != said {
                tracing::warn!(scheduler = self.scheduler, "{cause}; connecting again");
                said = cause;
            }
            again = if served { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
            stop.wait(again);
        }
    }

    /// Whether it was given a device's part, and how the session ended.
    fn session(&self, epoch: &mut u64, stop: &Stop) -> (bool, Result<(), Unwelcome>) {
        let connected = self.connect(*epoch);
        let (greeting, link, mut reader) = match connected {
            Ok(connected) => connected,
            Err(error) => return (false, Err(error)),
        };
        *epoch = greeting.epoch;
        if !stop.follow(Some(Arc::clone(&link))) {
            link.close();
        }
        let session = Session::new(self, greeting.epoch, Arc::clone(&link));
        let ended = session.follow(&mut reader);
        stop.follow(None);
        link.close();
        (session.close(), ended.map_err(Unwelcome::Io))
    }

    fn connect(&self, epoch: u64) -> Result<(Greeting, Arc<Link>, Reader), Unwelcome> {
        let stream = self.transport.connect(&self.scheduler, CONNECT)?;
        let greeting =
            greet(&*stream, Greeting::new(Role::Backend, epoch), Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "backend-send")?;
        let models: Vec<&Description> = self.models.iter().map(|model| &model.description).collect();
        let models = serde_json::to_string(&models).map_err(io::Error::other)?;
        link.send(&Message::Offer { depth: self.depth as u32, models });
        Ok((greeting, link, Reader::new(stream, Link::SILENCE)))
    }
}
