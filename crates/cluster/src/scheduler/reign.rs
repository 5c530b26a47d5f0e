//! Whether this scheduler is the primary: the machine of `handover`, its clock, and what its actions are here.
//!
//! What it wants done is done with its lock held, so that everybody hears of it in order; none of it waits for the network.
//! Locks are taken in this order: the machine, who is there, the requests of a frontend.

use super::keeper::Keeper;
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

pub(super) struct Reign {
    pub(super) me: Process,
    began: Instant,
    machine: Mutex<Machine>,
    /// The machine wants to be woken earlier than it did.
    stirred: Condvar,
    /// Whether all that is asked may go to the engine.
    open: AtomicBool,
    /// The latest that is known.
    epoch: AtomicU64,
    keeper: OnceLock<Keeper>,
}

struct Machine {
    scheduler: Scheduler,
    out: Vec<SchedulerAction>,
    wakeup: Time,
    closed: bool,
}

impl Reign {
    pub(super) fn new(me: Process, timing: Timing) -> Reign {
        let scheduler = Scheduler::new(Time::ORIGIN, me, timing);
        let machine = Machine { scheduler, out: Vec::new(), wakeup: Time::ORIGIN, closed: false };
        Reign {
            me,
            began: Instant::now(),
            machine: Mutex::new(machine),
            stirred: Condvar::new(),
            open: AtomicBool::new(false),
            epoch: AtomicU64::new(0),
            keeper: OnceLock::new(),
        }
    }

    /// Whether it reigns, and nothing of earlier reigns is left.
    pub(super) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The latest reign that it knows of.
    pub(super) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Relaxed)
    }

    /// Whether it is the primary.
    pub(super) fn reigns(&self) -> bool {
        self.machine.lock().scheduler.reigns().is_some()
    }

    pub(super) fn close(&self) {
        self.machine.lock().closed = true;
        self.stirred.notify_all();
    }

    fn now(&self) -> Time {
        Time(i64::try_from(self.began.elapsed().as_nanos()).unwrap_or(i64::MAX))
    }
}

impl Shared {
    /// Begins to ask the store and to keep time.
    pub(super) fn reign(self: &Arc<Shared>, store: Box<dyn EpochStore>) -> io::Result<()> {
        let shared = Arc::downgrade(self);
        let on_held = move |held: Entry| {
            let shared = Weak::upgrade(&shared);
            shared.iter().for_each(|shared| shared.tell(|machine, now, out| machine.on_store(now, held, out)));
            shared.is_some()
        };
        let kept = self.reign.keeper.set(Keeper::start(store, on_held)?);
        assert!(kept.is_ok(), "it begins once");
        let shared = Arc::clone(self);
        thread::Builder::new().name("scheduler-time".to_owned()).spawn(move || shared.keep_time()).map(drop)
    }

    fn keep_time(&self) {
        loop {
            let mut machine = self.reign.machine.lock();
            let left = machine.wakeup - self.reign.now();
            let left = Duration::from_nanos(u64::try_from(left.0).unwrap_or(0));
            if !left.is_zero() && !machine.closed {
                self.reign.stirred.wait_for(&mut machine, left);
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
        let mut machine = self.reign.machine.lock();
        let Machine { scheduler, out, .. } = &mut *machine;
        let now = self.reign.now();
        let told = tell(scheduler, now, out);
        if now >= scheduler.next_wakeup() {
            scheduler.on_timer(now, out);
        }
        self.reign.epoch.store(scheduler.known().0, Ordering::Relaxed);
        if scheduler.reigns().is_none() {
            // Before the engine goes.
            self.reign.open.store(false, Ordering::Release);
        }
        for action in out.drain(..) {
            self.act(action);
        }
        self.reign.open.store(scheduler.is_open(), Ordering::Release);
        let wakeup = scheduler.next_wakeup();
        if std::mem::replace(&mut machine.wakeup, wakeup) > wakeup {
            self.reign.stirred.notify_all();
        }
        told
    }

    fn act(&self, action: SchedulerAction) {
        match action {
            SchedulerAction::Swap(swap) => self.reign.keeper.get().into_iter().for_each(|keeper| keeper.ask(swap)),
            SchedulerAction::Heartbeat { to, epoch } => self.say(to, &Message::Lead(epoch, self.reign.me)),
            SchedulerAction::Fenced { to, epoch } => self.say(to, &Message::Fenced(epoch)),
            SchedulerAction::Claim { to, stamp } => self.say(to, &Message::Claim { stamp, holder: self.reign.me }),
            SchedulerAction::Lead(Epoch(epoch)) => tracing::info!(epoch, "this scheduler is the primary"),
            SchedulerAction::Follow => self.step_down(),
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
            SchedulerAction::Part(_) => {}
        }
    }

    fn say(&self, to: Process, message: &Message) {
        let link: Option<Arc<Link>> = self.peers.lock().link(to);
        link.iter().for_each(|link| link.send(message));
    }

    /// Forgets everything: a later scheduler is in charge. All connect again, as to one that has just begun.
    fn step_down(&self) {
        tracing::warn!(epoch = self.reign.epoch(), "a later scheduler is in charge; this one is a spare");
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
