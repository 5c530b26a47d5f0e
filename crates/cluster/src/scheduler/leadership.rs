//! The leadership of this scheduler: the state machine of `handover`, its clock, and the execution
//! of its actions.
//!
//! Actions are executed with the state machine's lock held, so that all peers see them in order. No
//! action waits for the network. Lock order: the state machine, the peers, the requests of a
//! frontend.

use super::store_thread::StoreThread;
use super::{SchedulerShared, frontends};
use crate::handover::store::{EpochEntry, EpochStore};
use crate::handover::{ElectionCause, Epoch, ProcessId, SchedulerAction, SchedulerMachine, Timing};
use crate::plane::{Message, PeerLink};
use parking_lot::{Condvar, Mutex};
use ripieno_base::{Nanos, Time};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

pub(super) struct Leadership {
    pub(super) me: ProcessId,
    began: Instant,
    state: Mutex<LeadershipState>,
    /// Signals that the state machine needs an earlier wake-up.
    changed: Condvar,
    /// Whether requests go to the engine directly.
    open: AtomicBool,
    /// The latest known epoch.
    epoch: AtomicU64,
    /// Number of times that it became the primary.
    elections: AtomicU64,
    /// Time for which it follows after it was deposed.
    rest: Nanos,
    store_thread: OnceLock<StoreThread>,
}

struct LeadershipState {
    machine: SchedulerMachine,
    out: Vec<SchedulerAction>,
    wakeup: Time,
    closed: bool,
}

impl Leadership {
    pub(super) fn new(me: ProcessId, timing: Timing) -> Leadership {
        let scheduler = SchedulerMachine::new(Time::ORIGIN, me, timing);
        let machine = LeadershipState { machine: scheduler, out: Vec::new(), wakeup: Time::ORIGIN, closed: false };
        Leadership {
            me,
            began: Instant::now(),
            state: Mutex::new(machine),
            changed: Condvar::new(),
            open: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            elections: AtomicU64::new(0),
            rest: timing.rest,
            store_thread: OnceLock::new(),
        }
    }

    /// Returns true if it is the primary, and nothing of earlier epochs is left.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the latest known epoch.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Returns the number of times that it became the primary.
    pub(super) fn elections(&self) -> u64 {
        self.elections.load(Ordering::Relaxed)
    }

    /// Returns true if it is the primary.
    pub(super) fn is_primary(&self) -> bool {
        self.state.lock().machine.primary_epoch().is_some()
    }

    /// Returns true if it is the primary, or a spare that receives heartbeats from one.
    pub(super) fn knows_primary(&self) -> bool {
        self.state.lock().machine.knows_primary()
    }

    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.changed.notify_all();
    }

    fn now(&self) -> Time {
        Time(i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl SchedulerShared {
    /// Starts the thread for the store and the one for timers.
    pub(super) fn start_election(self: &Arc<SchedulerShared>, store: Box<dyn EpochStore>) -> io::Result<()> {
        let shared = Arc::downgrade(self);
        let on_held = move |held: EpochEntry| {
            let shared = Weak::upgrade(&shared);
            if let Some(shared) = &shared {
                shared.update(|machine, now, out| machine.on_store(now, held, out));
            }
            shared.is_some()
        };
        let kept = self.leadership.store_thread.set(StoreThread::start(store, on_held)?);
        assert!(kept.is_ok(), "it begins once");
        let shared = Arc::clone(self);
        thread::Builder::new().name("scheduler-time".to_owned()).spawn(move || shared.run_timer()).map(drop)
    }

    fn run_timer(&self) {
        loop {
            let mut state = self.leadership.state.lock();
            let left = state.wakeup - self.leadership.now();
            let left = Duration::from_nanos(u64::try_from(left.0).unwrap_or(0));
            if !left.is_zero() && !state.closed {
                self.leadership.changed.wait_for(&mut state, left);
            }
            if state.closed {
                return;
            }
            drop(state);
            self.update(|_, _, _| {});
        }
    }

    /// Passes an input and the time to the state machine, and executes its actions.
    pub(super) fn update<T>(
        &self,
        input: impl FnOnce(&mut SchedulerMachine, Time, &mut Vec<SchedulerAction>) -> T,
    ) -> T {
        let mut state = self.leadership.state.lock();
        let LeadershipState { machine, out, .. } = &mut *state;
        let now = self.leadership.now();
        machine.on_awake(now);
        let result = input(machine, now, out);
        if now >= machine.next_wakeup() {
            machine.on_timer(now, out);
        }
        self.leadership.epoch.store(machine.known().0, Ordering::Relaxed);
        if machine.primary_epoch().is_none() {
            // Cleared before the engine is taken away.
            self.leadership.open.store(false, Ordering::Release);
        }
        let cause = machine.election_cause();
        for action in out.drain(..) {
            self.apply(action, cause);
        }
        self.leadership.open.store(machine.is_open(), Ordering::Release);
        let wakeup = machine.next_wakeup();
        if std::mem::replace(&mut state.wakeup, wakeup) > wakeup {
            self.leadership.changed.notify_all();
        }
        result
    }

    fn apply(&self, action: SchedulerAction, cause: ElectionCause) {
        match action {
            SchedulerAction::Swap(swap) => {
                if let Some(store_thread) = self.leadership.store_thread.get() {
                    store_thread.request_swap(swap);
                }
            }
            SchedulerAction::Heartbeat { to, epoch, reach } => {
                self.send_to(to, &Message::Heartbeat(epoch, self.leadership.me, Some(reach)))
            }
            SchedulerAction::Fenced { to, epoch } => self.send_to(to, &Message::Fenced(epoch)),
            SchedulerAction::Claim { to, stamp } => {
                self.send_to(to, &Message::Claim { stamp, holder: self.leadership.me })
            }
            SchedulerAction::BecomePrimary(Epoch(epoch)) => {
                self.leadership.elections.fetch_add(1, Ordering::Relaxed);
                tracing::info!(epoch, %cause, "this scheduler is the primary: {cause}");
            }
            SchedulerAction::StepDown => self.step_down(),
            SchedulerAction::Admit(request) => {
                if let Some((frontend, sub_clusters)) = self.frontend_of(request) {
                    frontends::admit(&sub_clusters, &frontend, request.number);
                }
            }
            SchedulerAction::Completed(request) => {
                if let Some((frontend, _)) = self.frontend_of(request) {
                    frontends::complete_inherited(&frontend, request.number);
                }
            }
            SchedulerAction::Join { backend, .. } => self.join(backend),
            // The thread that read the backend's connection removes its device from the engine.
            SchedulerAction::Leave(_) => {}
        }
    }

    fn send_to(&self, to: ProcessId, message: &Message) {
        let link: Option<Arc<PeerLink>> = self.peers.lock().link(to);
        if let Some(link) = link {
            link.send(message);
        }
    }

    /// Drops all state because a later scheduler is the primary. All peers reconnect, as to a
    /// scheduler that has just started.
    fn step_down(&self) {
        tracing::warn!(
            epoch = self.leadership.epoch(),
            "a later scheduler is in charge; this one follows it, and stands again after {} ms at the earliest",
            self.leadership.rest.as_millis_f64()
        );
        let mut peers = self.peers.lock();
        peers.links.iter().for_each(|link| link.close());
        let served = std::mem::take(&mut peers.sub_clusters);
        peers.lists_models = false;
        drop(peers);
        (self.on_serving)(None);
        // Requests in the engine are answered, although no connection is left to send that to; it
        // may take long.
        let end = move || {
            served.iter().for_each(|part| part.engine.shutdown());
        };
        if let Err(error) = thread::Builder::new().name("scheduler-end".to_owned()).spawn(end) {
            tracing::error!(%error, "no thread to end the engine");
        }
    }
}
