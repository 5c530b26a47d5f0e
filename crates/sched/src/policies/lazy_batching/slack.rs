//! The slack predictor: whether newcomers may join without a request missing its deadline.

use super::table::Table;
use super::{Member, Served};
use crate::{Limits, Request};
use ripieno_base::{Links, List, ModelId, Nanos, RequestSlot, Time};
use ripieno_model::{Block, Extent, Steps};

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
    ghosts: Vec<Ghost>,
    /// Sub-batches: model, block, and where their members begin among the ghosts.
    entries: Vec<(ModelId, usize, usize)>,
    /// When who ended in it.
    ends: Vec<(RequestSlot, Time)>,
}

/// A request in a play of the future.
#[derive(Clone, Copy, Debug)]
struct Ghost {
    slot: RequestSlot,
    step: u32,
    rests: bool,
}

type Models = [Option<Served>];

/// What a prediction looks at: the scheduler's fields at one instant.
#[derive(Clone, Copy)]
pub(super) struct Scene<'a> {
    pub(super) now: Time,
    pub(super) table: &'a Table,
    pub(super) models: &'a Models,
    pub(super) members: &'a [Member],
    pub(super) links: &'a Links,
}

impl Predictor {
    pub(super) fn new(estimator: Estimator, limits: &Limits) -> Predictor {
        Predictor {
            estimator,
            ghosts: Vec::with_capacity(limits.requests),
            entries: Vec::with_capacity(limits.requests),
            ends: Vec::with_capacity(limits.requests),
        }
    }

    /// How many of the first `fits` requests in the queue of `id` may be pushed onto the table.
    pub(super) fn admits(&mut self, scene: Scene<'_>, id: ModelId, fits: usize) -> usize {
        let Scene { now, models, members, links, .. } = scene;
        let queue = &served(models, id).waiting;
        if self.estimator == Estimator::Oracle {
            // More newcomers delay everybody more, so what passes is a prefix.
            let (mut low, mut high) = (0, fits);
            while low < high {
                let middle = (low + high).div_ceil(2);
                let newcomers = walk(links, queue).take(middle);
                let passes = self.all_punctual(scene, id, newcomers);
                if passes { low = middle } else { high = middle - 1 }
            }
            return low;
        }
        let (mut total, mut bound) = self.of_table(scene);
        let mut admitted = 0;
        for slot in walk(links, queue).take(fits) {
            let request = &members[slot.index()].request;
            total += single(served(models, id), request);
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
        let newcomers = || walk(scene.links, &served(scene.models, id).waiting).take(count);
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
    pub(super) fn note(&mut self, now: Time, table: &Table, models: &Models, members: &mut [Member], links: &Links) {
        let newcomers = &table.top().members;
        let scene = Scene { now, table, models, members, links };
        if self.estimator != Estimator::Oracle {
            let (total, _) = self.of_table(scene);
            walk(links, newcomers).for_each(|slot| members[slot.index()].predicted = total);
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
        let Scene { now, table, models, members, links } = scene;
        let (mut total, mut bound) = (Nanos::ZERO, Nanos::MAX);
        for entry in table.stack() {
            let served = served(models, entry.model);
            for member in walk(links, &entry.members).map(|slot| &members[slot.index()]) {
                let (span, time) = match self.estimator {
                    Estimator::Equation => (member.request.deadline - member.issued, single(served, &member.request)),
                    Estimator::Remaining | Estimator::Oracle => {
                        (member.request.deadline - now, remaining(served, member, entry.block.index()))
                    }
                };
                (total, bound) = (total + time, bound.min(span));
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
        self.entries.push((id, 0, self.ghosts.len()));
        self.ghosts.extend(newcomers.map(|slot| Ghost { slot, step: 0, rests: false }));
    }

    /// Plays to the end, and says when that is.
    fn play_out(&mut self, scene: Scene<'_>, from: Time) -> Time {
        let mut at = from;
        while let Some((_, then)) = self.play(scene, at) {
            at = then;
        }
        at
    }

    /// Puts the table on the stage.
    fn set_up(&mut self, Scene { table, members, links, .. }: Scene<'_>) {
        self.ghosts.clear();
        self.entries.clear();
        self.ends.clear();
        for entry in table.stack() {
            self.entries.push((entry.model, entry.block.index(), self.ghosts.len()));
            let ghost = |slot: RequestSlot| {
                let Member { step, rests, .. } = members[slot.index()];
                Ghost { slot, step, rests }
            };
            self.ghosts.extend(walk(links, &entry.members).map(ghost));
        }
    }

    /// Runs the top sub-batch until somebody is done with its block. Whether somebody ended late, and when it is then.
    fn play(&mut self, Scene { models, members, .. }: Scene<'_>, at: Time) -> Option<(bool, Time)> {
        while let [.., below, top] = self.entries.as_slice()
            && (below.0, below.1) == (top.0, top.1)
        {
            self.entries.pop();
        }
        let &(id, block, start) = self.entries.last()?;
        let served = served(models, id);
        let left = |ghost: &Ghost| steps_left(served, block, &members[ghost.slot.index()].request, ghost.step);
        let active = self.ghosts[start..].iter().filter(|ghost| !ghost.rests);
        let rows: usize = active.clone().map(|ghost| members[ghost.slot.index()].request.rows as usize).sum();
        let steps = active.map(left).min().unwrap_or(1);
        let then = at + served.model.blocks[block].profile.latency(rows.max(1)) * i64::from(steps);
        for ghost in self.ghosts[start..].iter_mut().filter(|ghost| !ghost.rests) {
            ghost.rests = steps_left(served, block, &members[ghost.slot.index()].request, ghost.step) == steps;
            ghost.step += steps;
        }
        let mut late = false;
        if block + 1 == served.model.blocks.len() {
            let ended = |ghost: &Ghost| ghost.rests;
            for ghost in self.ghosts[start..].iter().filter(|ghost| ended(ghost)) {
                late |= members[ghost.slot.index()].request.deadline < then;
                self.ends.push((ghost.slot, then));
            }
            let kept = self.ghosts[start..].iter().filter(|ghost| !ended(ghost)).count();
            self.ghosts[start..].sort_unstable_by_key(ended);
            self.ghosts.truncate(start + kept);
        } else if self.ghosts[start..].iter().all(|ghost| ghost.rests) {
            self.ghosts[start..].iter_mut().for_each(|ghost| (ghost.step, ghost.rests) = (0, false));
            self.entries.last_mut().expect("it was there").1 += 1;
        }
        if self.ghosts.len() == start {
            self.entries.pop();
        }
        Some((late, then))
    }
}

/// How long a request takes alone: Algorithm 1.
pub(super) fn single(served: &Served, request: &Request) -> Nanos {
    let time = |block: &Block| one(block, request) * i64::from(steps(served, block, request.extent));
    served.model.blocks.iter().map(time).sum()
}

/// How long it would take alone from here on.
fn remaining(served: &Served, member: &Member, block: usize) -> Nanos {
    let blocks = &served.model.blocks;
    let left = if member.rests { 0 } else { steps_left(served, block, &member.request, member.step) };
    let later = blocks[block + 1..]
        .iter()
        .map(|block| one(block, &member.request) * i64::from(steps(served, block, member.request.extent)));
    one(&blocks[block], &member.request) * i64::from(left) + later.sum()
}

/// A node's latency for one input.
fn one(block: &Block, request: &Request) -> Nanos {
    block.profile.latency(request.rows as usize)
}

/// How often a request is predicted to run a block.
fn steps(served: &Served, block: &Block, extent: Extent) -> u32 {
    let most = extent.steps(block.steps);
    match (block.steps, served.dec_timesteps) {
        (Steps::UntilEnd, Some(predicted)) => predicted.clamp(1, most.max(1)),
        _ => most,
    }
}

/// Steps of a block that are predicted to be left; a decoder that goes on beyond the prediction has one more.
fn steps_left(served: &Served, block: usize, request: &Request, done: u32) -> u32 {
    steps(served, &served.model.blocks[block], request.extent).saturating_sub(done).max(1)
}

fn served(models: &Models, id: ModelId) -> &Served {
    models[id.index()].as_ref().expect("a model stays while its requests live")
}

/// The requests of a list, from the front.
fn walk<'a>(links: &'a Links, list: &List) -> impl Iterator<Item = RequestSlot> + use<'a> {
    std::iter::successors(list.front(), |&slot| links.next(slot)).map(RequestSlot)
}
