//! The backend's role: one device of an executor, at the orders of a scheduler elsewhere.
//!
//! It is connected to all schedulers, and obeys the one whose claim was the latest ([`sessions`]). Each claim begins a session
//! with a fresh device. What ran under the claim before runs on and its outputs go to the frontends; the scheduler is told
//! of it, and gives nothing new before it has ended. So a device that hangs keeps its backend away, as it should. A
//! scheduler whose connection ends leaves all as it is: what it has ordered is run.

mod session;
mod sessions;
mod source;
mod tasks;

use crate::description::Description;
use crate::handover::{Epoch, Process, Stamp};
use crate::plane::{Greeting, Link, LinkBounds, Message, Reader, Role, Transport, Unwelcome, greet};
use parking_lot::{Condvar, Mutex};
use ripieno_executor::{Engine as Executor, Loaded};
use sessions::Sessions;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// How long connecting may take.
const CONNECT: Duration = Duration::from_secs(2);

/// How long to wait before connecting again, at first and at most.
const AGAIN_MIN: Duration = Duration::from_millis(50);
const AGAIN_MAX: Duration = Duration::from_millis(250);

/// A model that is loaded here.
pub struct BackendModel {
    /// What the scheduler is told of it.
    pub description: Description,
    /// What runs.
    pub loaded: Arc<dyn Loaded>,
}

/// Hears of the orders that are obeyed: the claim, whose it is, and whether it is the claim itself or a batch under it.
pub type OnOrder = Arc<dyn Fn(Stamp, Process, bool) + Send + Sync>;

/// A backend, not connected yet.
pub struct Backend {
    /// How machines are connected.
    pub transport: Arc<dyn Transport>,
    /// The addresses of all schedulers.
    pub schedulers: Vec<String>,
    /// Opens the device; it has loaded the models.
    pub executor: Arc<dyn Executor>,
    /// The most tasks on each of its lanes.
    pub depth: usize,
    /// The models, in the order of their names.
    pub models: Arc<[BackendModel]>,
    /// Nobody of an earlier epoch is obeyed.
    pub epoch: Epoch,
    /// Hears what is obeyed.
    pub on_order: Option<OnOrder>,
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
    links: Vec<Arc<Link>>,
}

impl Stop {
    /// Has the backend leave: it begins nothing new, ends what it holds, and goes.
    pub fn leave(&self) {
        let mut state = self.state.lock();
        state.told = true;
        state.links.iter().for_each(|link| link.send(&Message::Leave));
        self.told.notify_all();
    }

    /// Ends its connections at once, as a crash would.
    pub fn cut(&self) {
        let mut state = self.state.lock();
        state.told = true;
        state.links.iter().for_each(|link| link.close());
        self.told.notify_all();
    }

    /// Whether a scheduler has taken it, and it is not to end.
    pub fn is_connected(&self) -> bool {
        let state = self.state.lock();
        !state.told && state.links.iter().any(|link| !link.is_closed())
    }

    fn is_told(&self) -> bool {
        self.state.lock().told
    }

    /// This is to be told of it; false if it is to end already.
    fn follow(&self, link: &Arc<Link>) -> bool {
        let mut state = self.state.lock();
        state.links.push(Arc::clone(link));
        !state.told
    }

    /// This is not any more.
    fn unfollow(&self, link: &Arc<Link>) {
        self.state.lock().links.retain(|other| !Arc::ptr_eq(other, link));
    }

    fn wait(&self, span: Duration) {
        let mut state = self.state.lock();
        if !state.told {
            self.told.wait_for(&mut state, span);
        }
    }
}

impl Backend {
    /// Serves until it is told to stop. Connects again whenever a connection ends.
    pub fn run(self, stop: &Stop) {
        let sessions = Sessions::new(self);
        thread::scope(|scope| {
            for scheduler in &sessions.backend.schedulers {
                let sessions = &sessions;
                let follow = move || sessions.follow(scheduler, stop);
                if let Err(error) = thread::Builder::new().name("backend-obey".to_owned()).spawn_scoped(scope, follow) {
                    tracing::error!(scheduler, %error, "no thread for a scheduler");
                }
            }
        });
        sessions.close();
    }
}

impl Sessions {
    /// Keeps up the connection to a scheduler.
    fn follow(self: &Arc<Sessions>, scheduler: &str, stop: &Stop) {
        let (mut again, mut said) = (AGAIN_MIN, String::new());
        while !stop.is_told() {
            let (stood, ended) = self.connection(scheduler, stop);
            let cause = ended.map_or_else(|error| error.to_string(), |()| "the connection has ended".to_owned());
            if !stop.is_told() && cause != said {
                tracing::warn!(scheduler, "{cause}; connecting again");
                said = cause;
            }
            again = if stood { AGAIN_MIN } else { (again * 2).min(AGAIN_MAX) };
            stop.wait(again);
        }
    }

    /// Whether the connection stood, and how it ended.
    fn connection(self: &Arc<Sessions>, scheduler: &str, stop: &Stop) -> (bool, Result<(), Unwelcome>) {
        let (link, mut reader) = match self.connect(scheduler) {
            Ok(connected) => connected,
            Err(error) => return (false, Err(error)),
        };
        if !stop.follow(&link) {
            link.close();
        }
        let mut stood = false;
        let ended = self.obey(&link, &mut reader, &mut stood);
        stop.unfollow(&link);
        link.close();
        (stood, ended.map_err(Unwelcome::Io))
    }

    fn connect(&self, scheduler: &str) -> Result<(Arc<Link>, Reader), Unwelcome> {
        let stream = self.backend.transport.connect(scheduler, CONNECT)?;
        let own = Greeting::new(Role::Backend, self.epoch().0);
        greet(&*stream, own, Role::Scheduler).inspect_err(|_| stream.close())?;
        let link = Link::start(Arc::clone(&stream), LinkBounds::CONTROL, "backend-send")?;
        let models: Vec<&Description> = self.backend.models.iter().map(|model| &model.description).collect();
        let models = serde_json::to_string(&models).map_err(io::Error::other)?;
        link.send(&Message::Offer { depth: self.backend.depth as u32, models });
        Ok((link, Reader::new(stream, Link::SILENCE)))
    }
}
