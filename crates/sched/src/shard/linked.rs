//! Several shards and a matchmaker whose messages take time: what the halves do on threads or machines of their own, in
//! virtual time.
//!
//! With no delay it decides exactly as [`Fused`](super::Fused) does, however many shards there are; a property test holds
//! it to that. With a delay it tells what sharding costs.

use super::{DeviceChoice, Grant, Matchmaker, ModelShard, Rules, ToMatchmaker};
use crate::{Control, Limits, Outbox, Request, Scheduler, Setup, TaskDone};
use ripieno_base::{DeviceId, ModelId, Nanos, RequestSlot, TaskId, Time};
use std::collections::VecDeque;

/// The shard that a model belongs to.
pub fn shard_of(model: ModelId, shards: usize) -> usize {
    model.index() % shards
}

/// Shards and their matchmaker, to be run by someone who carries their messages.
pub struct Halves {
    /// The shards; a model belongs to the one at its id modulo their number.
    pub shards: Vec<ModelShard>,
    /// The matchmaker.
    pub matchmaker: Matchmaker,
}

impl Halves {
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: &Rules, shards: usize) -> Halves {
        let limits = &setup.limits;
        let mut halves = Halves {
            shards: (0..shards).map(|number| ModelShard::new(limits, number, rules.clone())).collect(),
            matchmaker: Matchmaker::new(limits, choice, shards),
        };
        for (id, model) in (0..).map(ModelId).zip(&setup.models) {
            let loaded = Control::ModelLoaded(id, Box::new(model.clone()));
            halves.shards[shard_of(id, shards)].on_control(Time::ORIGIN, loaded);
        }
        for device in (0..setup.devices as u16).map(DeviceId) {
            let joined = Control::DeviceJoined(device);
            halves.shards.iter_mut().for_each(|shard| shard.on_control(Time::ORIGIN, joined.clone()));
        }
        // What is there from the start is known to both halves.
        let news = halves.shards.iter_mut().flat_map(ModelShard::take_news);
        news.for_each(|news| halves.matchmaker.on_mail(Time::ORIGIN, news));
        halves
    }
}

/// Shards, a matchmaker, and links between them.
pub(crate) struct Linked {
    shards: Vec<ModelShard>,
    matchmaker: Matchmaker,
    delay: Nanos,
    limits: Limits,
    /// Messages to the matchmaker by the moment of their arrival, in order.
    to_matchmaker: VecDeque<(Time, ToMatchmaker)>,
    /// Grants to shards, likewise.
    to_shards: VecDeque<(Time, Grant)>,
    /// Which shard a live request belongs to, by slot.
    shard_of: Vec<u16>,
}

impl Linked {
    /// Builds `shards` shards, to which models go in turn.
    pub(crate) fn new(setup: &Setup, choice: DeviceChoice, rules: &Rules, shards: usize, delay: Nanos) -> Linked {
        let limits = &setup.limits;
        // Offers are sent for each change and live as long as the link is; one settle writes a bounded number.
        let burst = limits.models + 2 * limits.tasks();
        let Halves { shards, matchmaker } = Halves::new(setup, choice, rules, shards);
        Linked {
            shards,
            matchmaker,
            delay,
            limits: *limits,
            to_matchmaker: VecDeque::with_capacity(64 * burst),
            to_shards: VecDeque::with_capacity(limits.tasks()),
            shard_of: vec![0; limits.requests],
        }
    }

    fn shard_of_model(&self, model: ModelId) -> usize {
        shard_of(model, self.shards.len())
    }

    /// Delivers what has arrived and settles, until nothing more arrives at this instant.
    fn turn(&mut self, now: Time, out: &mut Outbox) {
        for shard in &mut self.shards {
            shard.settle(now, out);
        }
        // Releases and offers of one settle arrive together, as they do in one mailbox.
        self.to_matchmaker.extend(out.take_mail().map(|mail| (now + self.delay, mail)));
        while let Some((_, mail)) = self.to_matchmaker.pop_front_if(|(at, _)| *at <= now) {
            self.matchmaker.on_mail(now, mail);
        }
    }

    fn deliver_grants(&mut self, now: Time) -> bool {
        let mut delivered = false;
        while let Some((_, grant)) = self.to_shards.pop_front_if(|(at, _)| *at <= now) {
            let shard = self.shard_of_model(grant.model);
            self.shards[shard].on_grant(now, grant);
            delivered = true;
        }
        delivered
    }
}

impl Scheduler for Linked {
    fn on_request(&mut self, now: Time, request: &Request) {
        let shard = self.shard_of_model(request.model);
        self.shard_of[request.slot.index()] = shard as u16;
        self.shards[shard].on_request(now, request);
    }

    fn on_task_done(&mut self, now: Time, done: &TaskDone<'_>) {
        self.shards[done.task.index() / self.limits.tasks()].on_task_done(now, done);
    }

    fn on_control(&mut self, now: Time, control: Control) {
        let shard = match &control {
            Control::ModelLoaded(id, _) | Control::ModelUnloaded(id) => self.shard_of_model(*id),
            Control::ProfileReplaced { model, .. } => self.shard_of_model(*model),
            Control::Cancelled(request) => usize::from(self.shard_of[request.index()]),
            Control::DeviceJoined(_) | Control::DeviceLeft(_) | Control::DeviceSlowed { .. } => {
                self.shards.iter_mut().for_each(|shard| shard.on_control(now, control.clone()));
                return;
            }
        };
        self.shards[shard].on_control(now, control);
    }

    fn settle(&mut self, now: Time, out: &mut Outbox) {
        self.deliver_grants(now);
        loop {
            self.turn(now, out);
            let Some(grant) = self.matchmaker.next_grant(now) else { return };
            self.to_shards.push_back((now + self.delay, grant));
            self.deliver_grants(now);
        }
    }

    fn next_wakeup(&self) -> Time {
        let shards = self.shards.iter().map(ModelShard::next_wakeup).min().unwrap_or(Time::NEVER);
        let mail = self.to_matchmaker.front().map_or(Time::NEVER, |(at, _)| *at);
        let grants = self.to_shards.front().map_or(Time::NEVER, |(at, _)| *at);
        shards.min(self.matchmaker.next_wakeup()).min(mail).min(grants)
    }

    fn members(&self, task: TaskId) -> &[RequestSlot] {
        self.shards[task.index() / self.limits.tasks()].members(task)
    }
}
