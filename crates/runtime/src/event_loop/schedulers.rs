//! All scheduler loops, and the routing of requests, results and commands to them. A server has one
//! loop, or several shards with a matchmaker.

use crate::Clock;
use crate::event_loop::LoopRunner;
use crate::event_loop::mailbox::{EngineCommand, Mail, Mailbox};
use crate::event_loop::scheduler_loop::SchedulerLoop;
use crate::event_loop::scheduler_thread::SharedScheduler;
use crate::requests::answer::DrainGate;
use crate::shards::{MatchmakerLink, ShardRouter};
use ripieno_base::{ModelId, TaskId};
use ripieno_policies::{Matchmaker, shard_of};
use ripieno_sched::Limits;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};

/// All scheduler loops.
pub(crate) struct Schedulers {
    each: Vec<Arc<SharedScheduler>>,
    router: Option<Arc<ShardRouter<SchedulerLoop>>>,
    /// Largest number of tasks in flight. With several shards, each shard has a range of this many
    /// task ids.
    tasks: usize,
}

/// Error of a command: the schedulers have ended.
#[derive(Debug)]
pub(crate) struct Stopped;

/// The threads of the schedulers.
pub(crate) struct SchedulerThreads {
    schedulers: Vec<JoinHandle<()>>,
    matchmaker: Option<JoinHandle<()>>,
}

impl Schedulers {
    pub(crate) fn new(clock: Clock, limits: &Limits, count: usize, matchmaker: Option<&Matchmaker>) -> Schedulers {
        let runner = |_| Arc::new(LoopRunner::new(clock, Arc::new(Mailbox::new(limits, count))));
        let runner: Vec<Arc<LoopRunner<SchedulerLoop>>> = (0..count).map(runner).collect();
        let router =
            matchmaker.map(|matchmaker| Arc::new(ShardRouter::new(clock, limits, matchmaker.models(), runner.clone())));
        let each = runner.into_iter().map(|runner| SharedScheduler::new(runner, router.clone())).collect();
        Schedulers { each, router, tasks: limits.tasks() }
    }

    /// Starts one thread per loop and one for the matchmaker. If one cannot be started, all are
    /// ended.
    pub(crate) fn start(
        &self,
        clock: Clock,
        loops: Vec<SchedulerLoop>,
        matchmaker: Option<Matchmaker>,
        gate: &Arc<DrainGate>,
    ) -> io::Result<SchedulerThreads> {
        let mut threads = SchedulerThreads { schedulers: Vec::with_capacity(loops.len()), matchmaker: None };
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
        gate: &Arc<DrainGate>,
        threads: &mut SchedulerThreads,
    ) -> io::Result<()> {
        for (at, (event_loop, shared)) in loops.into_iter().zip(&self.each).enumerate() {
            let (shared, gate) = (Arc::clone(shared), Arc::clone(gate));
            let name = match self.each.len() {
                1 => "ripieno-scheduler".to_owned(),
                _ => format!("ripieno-shard-{at}"),
            };
            threads.schedulers.push(thread::Builder::new().name(name).spawn(move || shared.run(event_loop, gate))?);
        }
        if let Some((router, matchmaker)) = self.router.clone().zip(matchmaker) {
            let (gate, builder) = (Arc::clone(gate), thread::Builder::new().name("ripieno-matchmaker".to_owned()));
            threads.matchmaker = Some(builder.spawn(move || router.run(clock, matchmaker, gate))?);
        }
        Ok(())
    }

    /// Stops all loops, which answer their unanswered clients.
    pub(crate) fn stop(&self) {
        self.each.iter().for_each(|scheduler| scheduler.mailbox().post(Mail::Stop));
    }

    /// Waits until all scheduler threads have ended, then until the matchmaker has ended.
    pub(crate) fn join(&self, threads: SchedulerThreads) {
        for scheduler in threads.schedulers {
            if scheduler.join().is_err() {
                tracing::error!("the scheduler thread panicked; all clients were answered");
            }
        }
        if let Some(router) = &self.router {
            router.stop();
        }
        if threads.matchmaker.is_some_and(|matchmaker| matchmaker.join().is_err()) {
            tracing::error!("the matchmaker thread panicked; all clients were answered");
        }
    }

    /// Wakes each loop to handle its mailbox.
    pub(crate) fn wake_all(&self) {
        self.each.iter().for_each(|scheduler| scheduler.wake());
    }

    /// Whether all loops run.
    pub(crate) fn are_alive(&self) -> bool {
        self.each.iter().all(|scheduler| !scheduler.mailbox().is_closed())
    }

    pub(crate) fn len(&self) -> usize {
        self.each.len()
    }

    pub(crate) fn at(&self, at: usize) -> &SharedScheduler {
        &self.each[at]
    }

    /// Returns the scheduler of a model.
    pub(crate) fn for_model(&self, id: ModelId) -> &SharedScheduler {
        self.at(shard_of(id, self.len()))
    }

    /// Returns the scheduler that started a task. Each shard has its own range of task ids; an
    /// unsharded scheduler may use any id.
    pub(crate) fn for_task(&self, id: TaskId) -> &SharedScheduler {
        self.at(if self.len() == 1 { 0 } else { id.index() / self.tasks })
    }

    /// Returns the mailboxes of all schedulers except `but`.
    pub(crate) fn others(&self, but: usize) -> Vec<Arc<Mailbox>> {
        let others = self.each.iter().enumerate().filter(|(at, _)| *at != but);
        others.map(|(_, other)| Arc::clone(other.mailbox())).collect()
    }

    /// Returns a shard's connection to the matchmaker, if the scheduler is sharded.
    pub(crate) fn link(&self) -> Option<MatchmakerLink> {
        self.router.as_ref().map(|router| router.link())
    }

    /// Sends a command that concerns one model, and waits until it is executed.
    pub(crate) fn command_for_model(&self, id: ModelId, command: EngineCommand) -> Result<(), Stopped> {
        confirmed(&post_command(self.for_model(id), command))
    }

    /// Sends the command `command(i)` to the i-th scheduler, for all schedulers. Then waits until
    /// each command is executed.
    pub(crate) fn command_all(&self, command: impl Fn(usize) -> EngineCommand) -> Result<(), Stopped> {
        let schedulers = self.each.iter().enumerate();
        let sent: Vec<_> = schedulers.map(|(at, scheduler)| post_command(scheduler, command(at))).collect();
        sent.iter().try_for_each(confirmed)
    }
}

/// Sends a command. The caller must hold the engine's command lock until the command is confirmed.
fn post_command(scheduler: &SharedScheduler, command: EngineCommand) -> Receiver<()> {
    let (confirm, confirmation) = sync_channel(1);
    scheduler.mailbox().post(Mail::Order(command, confirm));
    confirmation
}

/// Waits until a command is executed.
fn confirmed(confirmation: &Receiver<()>) -> Result<(), Stopped> {
    confirmation.recv().map_err(|_| Stopped)
}
