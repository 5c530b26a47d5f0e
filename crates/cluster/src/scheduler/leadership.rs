//! Whether this scheduler is the primary: the machine of `handover`, its clock, and what its actions are here.
//!
//! What it wants done is done with its lock held, so that everybody hears of it in order; none of it waits for the network.
//! Locks are taken in this order: the machine, who is there, the requests of a frontend.

use super::store_thread::StoreThread;
use super::{Shared, frontends};
use crate::handover::store::{Entry, EpochStore};
use crate::handover::{Epoch, Process, Scheduler, SchedulerAction, Timing};
use crate::plane::{Link, Message};
use parking_lot::{Condvar, Mutex};
use ripieno_base::Time;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread;
use std::time::{Duration, Instant};

pub(super) struct Leadership {
    pub(super) me: Process,
    began: Instant,
    machine: Mutex<Machine>,
    /// The machine wants to be woken earlier than it did.
    changed: Condvar,
    /// Whether all that is asked may go to the engine.
    open: AtomicBool,
    /// The latest that is known.
    epoch: AtomicU64,
    store_thread: OnceLock<StoreThread>,
}

struct Machine {
    scheduler: Scheduler,
    out: Vec<SchedulerAction>,
    wakeup: Time,
    closed: bool,
}

impl Leadership {
    pub(super) fn new(me: Process, timing: Timing) -> Leadership {
        let scheduler = Scheduler::new(Time::ORIGIN, me, timing);
        let machine = Machine { scheduler, out: Vec::new(), wakeup: Time::ORIGIN, closed: false };
        Leadership {
            me,
            began: Instant::now(),
            machine: Mutex::new(machine),
            changed: Condvar::new(),
            open: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            store_thread: OnceLock::new(),
        }
    }

    /// Whether it is the primary, and nothing of earlier epochs is left.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The latest epoch that it knows of.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether it is the primary.
    pub(super) fn is_primary(&self) -> bool {
        self.machine.lock().scheduler.primary_epoch().is_some()
    }

    /// Whether it is the primary, or a spare that hears one.
    pub(super) fn knows_primary(&self) -> bool {
        self.machine.lock().scheduler.knows_primary()
    }

    pub(super) fn close(&self) {
        self.machine.lock().closed = true;
        self.changed.notify_all();
    }

    fn now(&self) -> Time {
        Time(i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Shared {
    /// Begins to ask the store and to keep time.
    pub(super) fn start_election(self: &Arc<Shared>, store: Box<dyn EpochStore>) -> io::Result<()> {
        let shared = Arc::downgrade(self);
        let on_held = move |held: Entry| {
            let shared = Weak::upgrade(&shared);
            shared.iter().for_each(|shared| shared.tell(|machine, now, out| machine.on_store(now, held, out)));
            shared.is_some()
        };
        let kept = self.leadership.store_thread.set(StoreThread::start(store, on_held)?);
        assert!(kept.is_ok(), "it begins once");
        let shared = Arc::clone(self);
        thread::Builder::new().name("scheduler-time".to_owned()).spawn(move || shared.keep_time()).map(drop)
    }

    fn keep_time(&self) {
        loop {
            let mut machine = self.leadership.machine.lock();
            let left = machine.wakeup - self.leadership.now();
            let left = Duration::from_nanos(u64::try_from(left.0).unwrap_or(0));
            if !left.is_zero() && !machine.closed {
                self.leadership.changed.wait_for(&mut machine, left);
            }
            if machine.closed {
                return;
            }
            drop(machine);
            self.tell(|_, _, _| {});
        }
    }

    /// Tells the machine something, and what time it is, and does what it wants done.
    pub(super) fn tell<T>(&self, tell: impl FnOnce(&mut Scheduler, Time, &mut Vec<SchedulerAction>) -> T) -> T {
        let mut machine = self.leadership.machine.lock();
        let Machine { scheduler, out, .. } = &mut *machine;
        let now = self.leadership.now();
        let told = tell(scheduler, now, out);
        if now >= scheduler.next_wakeup() {
            scheduler.on_timer(now, out);
        }
        self.leadership.epoch.store(scheduler.known().0, Ordering::Relaxed);
        if scheduler.primary_epoch().is_none() {
            // Before the engine goes.
            self.leadership.open.store(false, Ordering::Release);
        }
        for action in out.drain(..) {
            self.act(action);
        }
        self.leadership.open.store(scheduler.is_open(), Ordering::Release);
        let wakeup = scheduler.next_wakeup();
        if std::mem::replace(&mut machine.wakeup, wakeup) > wakeup {
            self.leadership.changed.notify_all();
        }
        told
    }

    fn act(&self, action: SchedulerAction) {
        match action {
            SchedulerAction::Swap(swap) => {
                self.leadership.store_thread.get().into_iter().for_each(|store_thread| store_thread.ask(swap))
            }
            SchedulerAction::Heartbeat { to, epoch } => self.say(to, &Message::Heartbeat(epoch, self.leadership.me)),
            SchedulerAction::Fenced { to, epoch } => self.say(to, &Message::Fenced(epoch)),
            SchedulerAction::Claim { to, stamp } => self.say(to, &Message::Claim { stamp, holder: self.leadership.me }),
            SchedulerAction::BecomePrimary(Epoch(epoch)) => tracing::info!(epoch, "this scheduler is the primary"),
            SchedulerAction::StepDown => self.step_down(),
            SchedulerAction::Admit(request) => {
                if let Some((frontend, served)) = self.frontend_of(request) {
                    frontends::admit(&served, &frontend, request.number);
                }
            }
            SchedulerAction::Over(request) => {
                if let Some((frontend, _)) = self.frontend_of(request) {
                    frontends::is_over(&frontend, request.number);
                }
            }
            SchedulerAction::Join { backend, .. } => self.join(backend),
            // Its connection has ended, and whoever read from it has it leave the engine.
            SchedulerAction::Leave(_) => {}
        }
    }

    fn say(&self, to: Process, message: &Message) {
        let link: Option<Arc<Link>> = self.peers.lock().link(to);
        link.iter().for_each(|link| link.send(message));
    }

    /// Forgets everything: a later scheduler is in charge. All connect again, as to one that has just begun.
    fn step_down(&self) {
        tracing::warn!(epoch = self.leadership.epoch(), "a later scheduler is in charge; this one is a spare");
        let mut peers = self.peers.lock();
        peers.links.iter().for_each(|link| link.close());
        let served = peers.served.take();
        drop(peers);
        (self.on_serving)(None);
        // Whoever still waits is answered, to nobody; that may take long.
        let end = move || served.iter().for_each(|served| served.engine.shutdown());
        if let Err(error) = thread::Builder::new().name("scheduler-end".to_owned()).spawn(end) {
            tracing::error!(%error, "no thread to end the engine");
        }
    }
}
