//! The slack predictor: whether newcomers may join without a request missing its deadline.

use super::table::Table;
use super::{Member, OfModel, Served};
use crate::parts::cost;
use crate::parts::devices::Device;
use crate::parts::fifo::Fifo;
use crate::parts::models::Models;
use crate::{Limits, Request};
use ripieno_base::{ModelId, Nanos, RequestSlot, Time};

/// How slack is reckoned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Estimator {
    /// Equation 2: wait until first issue, and whole single-input times of all in the table.
    Equation,
    /// What has passed, and the single-input times that are left.
    Remaining,
    /// The stack is played to its end at the cost of the batches that would run.
    Oracle,
}

/// Predicts; the vectors are scratch room.
#[derive(Debug)]
pub(super) struct Predictor {
    estimator: Estimator,
    played: Vec<Played>,
    /// Sub-batches: model, block, and where their members begin among those played.
    entries: Vec<(ModelId, usize, usize)>,
    /// When who ended in it.
    ends: Vec<(RequestSlot, Time)>,
}

/// A request in a play of the future.
#[derive(Clone, Copy, Debug)]
struct Played {
    slot: RequestSlot,
    step: u32,
    rests: bool,
}

/// What a prediction looks at: the scheduler's fields at one instant.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) now: Time,
    pub(super) device: &'a Device<Table>,
    pub(super) models: &'a Models<OfModel>,
    pub(super) members: &'a [Member],
    pub(super) fifo: &'a Fifo,
}

impl Predictor {
    pub(super) fn new(estimator: Estimator, limits: &Limits) -> Predictor {
        Predictor {
            estimator,
            played: Vec::with_capacity(limits.requests),
            entries: Vec::with_capacity(limits.requests),
            ends: Vec::with_capacity(limits.requests),
        }
    }

    /// How many of the first `fits` requests in the queue of `id` may be pushed onto the table.
    pub(super) fn admits(&mut self, scene: Scene<'_>, id: ModelId, fits: usize) -> usize {
        let Scene { now, device, models, fifo, .. } = scene;
        let newcomers = |count: usize| fifo.waiting(id).take(count).map(|request| request.slot);
        if self.estimator == Estimator::Oracle {
            // More newcomers delay everybody more, so what passes is a prefix.
            let (mut low, mut high) = (0, fits);
            while low < high {
                let middle = (low + high).div_ceil(2);
                let passes = self.all_punctual(scene, id, newcomers(middle));
                if passes { low = middle } else { high = middle - 1 }
            }
            return low;
        }
        let (mut total, mut bound) = self.of_table(scene);
        let mut admitted = 0;
        for request in fifo.waiting(id).take(fits) {
            total += device.takes(single(models.get(id), request));
            bound = bound.min(request.deadline - now);
            if total > bound {
                break;
            }
            admitted += 1;
        }
        admitted
    }

    /// Whether the requests that are here and the first `count` of the queue of `id` are answered sooner, in sum, if these
    /// preempt and catch up than if they wait and then run together.
    pub(super) fn gains(&mut self, scene: Scene<'_>, id: ModelId, count: usize) -> bool {
        let newcomers = || scene.fifo.waiting(id).take(count).map(|request| request.slot);
        self.set_up(scene);
        self.enter(id, newcomers());
        self.play_out(scene, scene.now);
        let preempted = self.sum_of_ends(scene.now);
        self.set_up(scene);
        let free = self.play_out(scene, scene.now);
        self.enter(id, newcomers());
        self.play_out(scene, free);
        preempted < self.sum_of_ends(scene.now)
    }

    fn sum_of_ends(&self, now: Time) -> i128 {
        self.ends.iter().map(|&(_, end)| i128::from((end - now).0)).sum()
    }

    /// Notes for the requests of the top sub-batch, which have just been issued, how long each is predicted to take.
    pub(super) fn note(
        &mut self,
        now: Time,
        device: &Device<Table>,
        models: &Models<OfModel>,
        members: &mut [Member],
        fifo: &Fifo,
    ) {
        let scene = Scene { now, device, models, members, fifo };
        if self.estimator != Estimator::Oracle {
            let (total, _) = self.of_table(scene);
            let newcomers = device.top().members.iter(fifo.links());
            newcomers.for_each(|slot| members[slot as usize].predicted = total);
            return;
        }
        self.set_up(scene);
        self.play_out(scene, now);
        for &(slot, end) in &self.ends {
            let member = &mut members[slot.index()];
            if member.issued == now {
                member.predicted = end - now;
            }
        }
    }

    /// The times of all requests in the table, and the shortest span in which they must be over.
    fn of_table(&self, scene: Scene<'_>) -> (Nanos, Nanos) {
        let Scene { now, device, models, members, fifo } = scene;
        let (mut total, mut bound) = (Nanos::ZERO, Nanos::MAX);
        for entry in device.stack() {
            let served = models.get(entry.model);
            for slot in entry.members.iter(fifo.links()) {
                let (request, member) = (fifo.requests.get(slot), &members[slot as usize]);
                let (span, time) = match self.estimator {
                    Estimator::Equation => (request.deadline - member.issued, single(served, request)),
                    Estimator::Remaining | Estimator::Oracle => {
                        (request.deadline - now, remaining(served, request, member, entry.block.index()))
                    }
                };
                (total, bound) = (total + device.takes(time), bound.min(span));
            }
        }
        (total, bound)
    }

    /// Plays the stack with the newcomers on top to its end.
    fn all_punctual(&mut self, scene: Scene<'_>, id: ModelId, newcomers: impl Iterator<Item = RequestSlot>) -> bool {
        self.set_up(scene);
        self.enter(id, newcomers);
        let mut at = scene.now;
        while let Some((late, then)) = self.play(scene, at) {
            if late {
                return false;
            }
            at = then;
        }
        true
    }

    /// Puts newcomers on top.
    fn enter(&mut self, id: ModelId, newcomers: impl Iterator<Item = RequestSlot>) {
        self.entries.push((id, 0, self.played.len()));
        self.played.extend(newcomers.map(|slot| Played { slot, step: 0, rests: false }));
    }

    /// Plays to the end, and says when that is.
    fn play_out(&mut self, scene: Scene<'_>, from: Time) -> Time {
        let mut at = from;
        while let Some((_, then)) = self.play(scene, at) {
            at = then;
        }
        at
    }

    /// Begins with what the table holds.
    fn set_up(&mut self, Scene { device, members, fifo, .. }: Scene<'_>) {
        self.played.clear();
        self.entries.clear();
        self.ends.clear();
        for entry in device.stack() {
            self.entries.push((entry.model, entry.block.index(), self.played.len()));
            self.played.extend(entry.members.iter(fifo.links()).map(|slot| {
                let Member { step, rests, .. } = members[slot as usize];
                Played { slot: RequestSlot(slot), step, rests }
            }));
        }
    }

    /// Runs the top sub-batch until somebody is done with its block. Whether somebody ended late, and when it is then.
    fn play(&mut self, Scene { device, models, fifo, .. }: Scene<'_>, at: Time) -> Option<(bool, Time)> {
        while let [.., below, top] = self.entries.as_slice()
            && (below.0, below.1) == (top.0, top.1)
        {
            self.entries.pop();
        }
        let &(id, block, start) = self.entries.last()?;
        let served = models.get(id);
        let left = |played: &Played| steps_left(served, block, fifo.request(played.slot), played.step);
        let active = self.played[start..].iter().filter(|played| !played.rests);
        let rows: usize = active.clone().map(|played| fifo.request(played.slot).rows as usize).sum();
        let steps = active.clone().map(left).min().unwrap_or(1);
        let length = active.map(|played| fifo.request(played.slot).extent.length).max().unwrap_or(1);
        let then = at + device.takes(served.model.blocks[block].cost(rows.max(1), length) * i64::from(steps));
        for played in self.played[start..].iter_mut().filter(|played| !played.rests) {
            played.rests = steps_left(served, block, fifo.request(played.slot), played.step) == steps;
            played.step += steps;
        }
        let mut late = false;
        if block + 1 == served.model.blocks.len() {
            let ended = |played: &Played| played.rests;
            for played in self.played[start..].iter().filter(|played| ended(played)) {
                late |= fifo.request(played.slot).deadline < then;
                self.ends.push((played.slot, then));
            }
            let kept = self.played[start..].iter().filter(|played| !ended(played)).count();
            self.played[start..].sort_unstable_by_key(ended);
            self.played.truncate(start + kept);
        } else if self.played[start..].iter().all(|played| played.rests) {
            self.played[start..].iter_mut().for_each(|played| (played.step, played.rests) = (0, false));
            self.entries.last_mut().expect("it was there").1 += 1;
        }
        if self.played.len() == start {
            self.entries.pop();
        }
        Some((late, then))
    }
}

/// How long a request takes alone: Algorithm 1.
pub(super) fn single(served: &Served, request: &Request) -> Nanos {
    cost::alone(&served.model, request, served.dec_timesteps)
}

/// How long it would take alone from here on.
fn remaining(served: &Served, request: &Request, member: &Member, block: usize) -> Nanos {
    let blocks = &served.model.blocks;
    let left = if member.rests { 0 } else { steps_left(served, block, request, member.step) };
    let whole = |block| cost::of_step(block, request) * i64::from(cost::steps(block, request, served.dec_timesteps));
    let later: Nanos = blocks[block + 1..].iter().map(whole).sum();
    cost::of_step(&blocks[block], request) * i64::from(left) + later
}

/// Steps of a block that are predicted to be left; a decoder that goes on beyond the prediction has one more.
fn steps_left(served: &Served, block: usize, request: &Request, done: u32) -> u32 {
    cost::steps(&served.model.blocks[block], request, served.dec_timesteps).saturating_sub(done).max(1)
}
