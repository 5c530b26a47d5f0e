//! Those that decide: one for all models, or several with a matchmaker; and who is asked about what.

use crate::Clock;
use crate::answer::Gate;
use crate::mailbox::{Mail, Mailbox, Order};
use crate::scheduler_loop::SchedulerLoop;
use crate::scheduler_thread::SharedScheduler;
use crate::shards::{Exchange, Link};
use crate::turns::Turns;
use ripieno_base::{ModelId, TaskId};
use ripieno_sched::{Limits, Matchmaker, shard_of};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::{self, JoinHandle};

/// All that decide.
pub(crate) struct Schedulers {
    each: Vec<Arc<SharedScheduler>>,
    exchange: Option<Arc<Exchange<SchedulerLoop>>>,
    /// The most tasks in flight, and of several, the tasks that each numbers.
    tasks: usize,
}

/// They have ended.
#[derive(Debug)]
pub(crate) struct Stopped;

/// Their threads.
pub(crate) struct Threads {
    schedulers: Vec<JoinHandle<()>>,
    matchmaker: Option<JoinHandle<()>>,
}

impl Schedulers {
    pub(crate) fn new(clock: Clock, limits: &Limits, count: usize, matchmaker: Option<&Matchmaker>) -> Schedulers {
        let turns = |_| Arc::new(Turns::new(clock, Arc::new(Mailbox::new(limits, count))));
        let turns: Vec<Arc<Turns<SchedulerLoop>>> = (0..count).map(turns).collect();
        let exchange =
            matchmaker.map(|matchmaker| Arc::new(Exchange::new(clock, limits, matchmaker.models(), turns.clone())));
        let each = turns.into_iter().map(|turns| SharedScheduler::new(turns, exchange.clone())).collect();
        Schedulers { each, exchange, tasks: limits.tasks() }
    }

    /// Starts a thread for each of these loops, and one for the matchmaker; all or none.
    pub(crate) fn start(
        &self,
        clock: Clock,
        loops: Vec<SchedulerLoop>,
        matchmaker: Option<Matchmaker>,
        gate: &Arc<Gate>,
    ) -> io::Result<Threads> {
        let mut threads = Threads { schedulers: Vec::with_capacity(loops.len()), matchmaker: None };
        let started = self.start_each(clock, loops, matchmaker, gate, &mut threads);
        if let Err(error) = started {
            self.stop();
            self.join(threads);
            return Err(error);
        }
        Ok(threads)
    }

    fn start_each(
        &self,
        clock: Clock,
        loops: Vec<SchedulerLoop>,
        matchmaker: Option<Matchmaker>,
        gate: &Arc<Gate>,
        threads: &mut Threads,
    ) -> io::Result<()> {
        for (at, (looped, shared)) in loops.into_iter().zip(&self.each).enumerate() {
            let (shared, gate) = (Arc::clone(shared), Arc::clone(gate));
            let name = match self.each.len() {
                1 => "ripieno-scheduler".to_owned(),
                _ => format!("ripieno-shard-{at}"),
            };
            threads.schedulers.push(thread::Builder::new().name(name).spawn(move || shared.run(looped, gate))?);
        }
        if let Some((exchange, matchmaker)) = self.exchange.clone().zip(matchmaker) {
            let (gate, builder) = (Arc::clone(gate), thread::Builder::new().name("ripieno-matchmaker".to_owned()));
            threads.matchmaker = Some(builder.spawn(move || exchange.run(clock, matchmaker, gate))?);
        }
        Ok(())
    }

    /// Has all end: whoever is unanswered is answered.
    pub(crate) fn stop(&self) {
        self.each.iter().for_each(|scheduler| scheduler.mailbox().post(Mail::Stop));
    }

    /// Waits until all have ended, the matchmaker last.
    pub(crate) fn join(&self, threads: Threads) {
        for scheduler in threads.schedulers {
            if scheduler.join().is_err() {
                tracing::error!("the scheduler thread panicked; all clients were answered");
            }
        }
        self.exchange.iter().for_each(|exchange| exchange.stop());
        if threads.matchmaker.is_some_and(|matchmaker| matchmaker.join().is_err()) {
            tracing::error!("the matchmaker thread panicked; all clients were answered");
        }
    }

    /// Has each look after what was left to it.
    pub(crate) fn look(&self) {
        self.each.iter().for_each(|scheduler| scheduler.look());
    }

    /// Whether they run.
    pub(crate) fn are_alive(&self) -> bool {
        self.each.iter().all(|scheduler| !scheduler.mailbox().is_closed())
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    pub(crate) fn at(&self, at: usize) -> &SharedScheduler {
        &self.each[at]
    }

    /// The one that decides about a model.
    pub(crate) fn of_model(&self, id: ModelId) -> &SharedScheduler {
        self.at(shard_of(id, self.len()))
    }

    /// The one that started a task. Shards number theirs one after the other; what runs in one piece, as it likes.
    pub(crate) fn of_task(&self, id: TaskId) -> &SharedScheduler {
        self.at(if self.len() == 1 { 0 } else { id.index() / self.tasks })
    }

    /// The mailboxes of all but one.
    pub(crate) fn others(&self, but: usize) -> Vec<Arc<Mailbox>> {
        let others = self.each.iter().enumerate().filter(|(at, _)| *at != but);
        others.map(|(_, other)| Arc::clone(other.mailbox())).collect()
    }

    /// One's way to ask for devices, if it does not have them all.
    pub(crate) fn link(&self) -> Option<Link> {
        self.exchange.as_ref().map(|exchange| exchange.link())
    }

    /// Gives an order that concerns a model.
    pub(crate) fn order_of(&self, id: ModelId, order: Order) -> Result<(), Stopped> {
        give(self.of_model(id), order)
    }

    /// Gives an order to all, made for each by its number.
    pub(crate) fn order_all(&self, order: impl Fn(usize) -> Order) -> Result<(), Stopped> {
        self.each.iter().enumerate().try_for_each(|(at, scheduler)| give(scheduler, order(at)))
    }
}

/// Gives an order and waits until it is carried out. The caller holds the engine's order lock.
fn give(scheduler: &SharedScheduler, order: Order) -> Result<(), Stopped> {
    let (confirm, confirmed) = sync_channel(1);
    scheduler.mailbox().post(Mail::Order(order, confirm));
    confirmed.recv().map_err(|_| Stopped)
}
