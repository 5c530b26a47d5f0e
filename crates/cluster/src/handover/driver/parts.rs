//! The three machines with their hosts, as a node drives them.

use super::keeper::Keeper;
use super::node::{Handle, Machine, Post};
use crate::handover::action::SchedulerAction;
use crate::handover::backend::{Backend, BackendAction};
use crate::handover::frontend::{Frontend, FrontendAction, Full};
use crate::handover::ids::{Epoch, Process, RequestId, Role, Stamp};
use crate::handover::message::{Answer, Message, Outcome, Wanted};
use crate::handover::scheduler::Scheduler;
use crate::handover::store::{Entry, EpochStore};
use ripieno_base::{ModelId, Nanos, Time};

/// Decides which requests run where and when, while this scheduler reigns.
pub trait Schedule {
    /// Hears what happens: all actions that are the host's.
    fn on_action(&mut self, now: Time, action: SchedulerAction);

    /// Starts and refuses what it wants to. It is asked again until it does nothing.
    fn decide(&mut self, now: Time, scheduler: &mut Scheduler, out: &mut Vec<SchedulerAction>);
}

/// A scheduler and its host.
#[derive(Debug)]
pub struct SchedulerPart<H> {
    scheduler: Scheduler,
    host: H,
    keeper: Keeper,
    out: Vec<SchedulerAction>,
}

impl<H: Schedule> SchedulerPart<H> {
    /// The scheduler asks this store, on a thread of its own.
    pub fn new(scheduler: Scheduler, host: H, store: Box<dyn EpochStore>, handle: Handle<Entry>) -> SchedulerPart<H> {
        SchedulerPart { scheduler, host, keeper: Keeper::new(store, handle), out: Vec::new() }
    }

    fn settle(&mut self, now: Time, post: &mut Post) {
        loop {
            if self.out.is_empty() {
                self.host.decide(now, &mut self.scheduler, &mut self.out);
            }
            if self.out.is_empty() {
                return;
            }
            for action in std::mem::take(&mut self.out) {
                match action {
                    SchedulerAction::Greet(message) => post.greet(message),
                    SchedulerAction::Send { to, message } => post.send(to, message),
                    SchedulerAction::Swap(swap) => self.keeper.ask(swap),
                    action => self.host.on_action(now, action),
                }
            }
        }
    }
}

impl<H: Schedule> Machine for SchedulerPart<H> {
    type Order = Entry;
    const ROLE: Role = Role::Scheduler;

    fn epoch(&self) -> Epoch {
        self.scheduler.known()
    }

    fn on_message(&mut self, now: Time, from: Process, message: &Message, post: &mut Post) {
        self.scheduler.on_message(now, from, message, &mut self.out);
        self.settle(now, post);
    }

    fn on_lost(&mut self, now: Time, who: Process, post: &mut Post) {
        self.scheduler.on_lost(now, who, &mut self.out);
        // At once, if that was the primary.
        self.on_timer(now, post);
    }

    fn on_order(&mut self, now: Time, held: Entry, post: &mut Post) {
        self.scheduler.on_store(now, held, &mut self.out);
        self.settle(now, post);
    }

    fn on_timer(&mut self, now: Time, post: &mut Post) {
        self.scheduler.on_timer(now, &mut self.out);
        self.settle(now, post);
    }

    fn next_wakeup(&self) -> Time {
        self.scheduler.next_wakeup()
    }
}

/// Runs batches. Their ends are orders to the node.
pub trait Execute {
    /// Begins a batch.
    fn begin(&mut self, now: Time, batch: Stamp, members: Vec<Wanted>);

    /// An order was obeyed: the last one.
    fn obeyed(&mut self, _now: Time, _last: Stamp) {}
}

/// A backend and its host.
#[derive(Debug)]
pub struct BackendPart<E> {
    backend: Backend,
    host: E,
    out: Vec<BackendAction>,
}

impl<E: Execute> BackendPart<E> {
    /// The backend runs batches by this host.
    pub fn new(backend: Backend, host: E) -> BackendPart<E> {
        BackendPart { backend, host, out: Vec::new() }
    }

    fn settle(&mut self, now: Time, post: &mut Post) {
        for action in self.out.drain(..) {
            match action {
                BackendAction::Greet(message) => post.greet(message),
                BackendAction::Send { to, message } => post.send(to, message),
                BackendAction::Begin { batch, members } => self.host.begin(now, batch, members),
            }
        }
    }
}

impl<E: Execute> Machine for BackendPart<E> {
    /// A batch that has ended, and how.
    type Order = (Stamp, Outcome);
    const ROLE: Role = Role::Backend;

    fn epoch(&self) -> Epoch {
        self.backend.last().epoch
    }

    fn on_message(&mut self, now: Time, from: Process, message: &Message, post: &mut Post) {
        if self.backend.on_message(from, message, &mut self.out) {
            self.host.obeyed(now, self.backend.last());
        }
        self.settle(now, post);
    }

    fn on_lost(&mut self, _now: Time, _who: Process, _post: &mut Post) {}

    fn on_order(&mut self, now: Time, (batch, outcome): (Stamp, Outcome), post: &mut Post) {
        self.backend.on_ended(now, batch, outcome, &mut self.out);
        self.settle(now, post);
    }

    fn on_timer(&mut self, now: Time, post: &mut Post) {
        self.backend.on_timer(now, &mut self.out);
        self.settle(now, post);
    }

    fn next_wakeup(&self) -> Time {
        self.backend.next_wakeup()
    }
}

/// Has the answers.
pub trait Deliver {
    /// What was submitted under this tag has this name, or there is no place for it.
    fn submitted(&mut self, tag: u64, request: Result<RequestId, Full>);

    /// A request that was submitted has ended, once.
    fn delivered(&mut self, now: Time, answer: Answer);
}

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub struct Submit {
    /// Its name until it has another.
    pub tag: u64,
    /// What is to be run.
    pub model: ModelId,
    /// For so long an answer is of use.
    pub left: Nanos,
}

/// A frontend and its host.
#[derive(Debug)]
pub struct FrontendPart<C> {
    frontend: Frontend,
    host: C,
    out: Vec<FrontendAction>,
}

impl<C: Deliver> FrontendPart<C> {
    /// The frontend answers by this host.
    pub fn new(frontend: Frontend, host: C) -> FrontendPart<C> {
        FrontendPart { frontend, host, out: Vec::new() }
    }

    fn settle(&mut self, now: Time, post: &mut Post) {
        for action in self.out.drain(..) {
            match action {
                FrontendAction::Greet(message) => post.greet(message),
                FrontendAction::Send { to, message } => post.send(to, message),
                FrontendAction::Deliver(answer) => self.host.delivered(now, answer),
            }
        }
    }
}

impl<C: Deliver> Machine for FrontendPart<C> {
    type Order = Submit;
    const ROLE: Role = Role::Frontend;

    fn epoch(&self) -> Epoch {
        self.frontend.epoch()
    }

    fn on_message(&mut self, now: Time, from: Process, message: &Message, post: &mut Post) {
        self.frontend.on_message(now, from, message, &mut self.out);
        self.settle(now, post);
    }

    fn on_lost(&mut self, _now: Time, _who: Process, _post: &mut Post) {}

    fn on_order(&mut self, now: Time, order: Submit, post: &mut Post) {
        let deadline = now + order.left;
        let request = self.frontend.submit(now, order.model, deadline, &mut self.out);
        self.host.submitted(order.tag, request);
        self.settle(now, post);
    }

    fn on_timer(&mut self, now: Time, post: &mut Post) {
        self.frontend.on_timer(now, &mut self.out);
        self.settle(now, post);
    }

    fn next_wakeup(&self) -> Time {
        self.frontend.next_wakeup()
    }
}
