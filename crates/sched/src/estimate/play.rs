//! Forecasts the ends of the requests on a device by the latency profiles, with and without
//! newcomers, to decide whether joining pays.
//!
//! The batches of a device are a stack of cohorts. The top cohort runs block by block, and merges
//! with the one below it as soon as both are before the same block. One cohort that newcomers catch
//! up with is the shortest such stack.
//!
//! Early exits cannot be predicted, so a forecast assumes that every request runs all blocks. A
//! block that runs until its end is assumed to take a predicted number of steps.

use super::cost;
use crate::tables::cohorts::{CohortId, Cohorts};
use crate::tables::devices::takes;
use crate::tables::models::Models;
use crate::tables::requests::Requests;
use crate::{Limits, Request};
use ripieno_base::{ModelId, RequestSlot, Time};
use ripieno_model::Block;

/// The initial state of a forecast: a scheduler's tables at one instant.
#[derive(Debug)]
pub struct Forecast<'a, T, C> {
    /// The current time.
    pub now: Time,
    /// Latency of the device relative to the profiles, in percent.
    pub percent: u32,
    /// The models.
    pub models: &'a Models<T>,
    /// Predicted number of steps of a block that runs until its end.
    pub until_end: fn(&T) -> u32,
    /// The live requests.
    pub requests: &'a Requests,
    /// The batches that have begun.
    pub cohorts: &'a Cohorts<C>,
    /// The cohorts on the device; the top one is the last.
    pub stack: &'a [CohortId],
}

impl<T, C> Clone for Forecast<'_, T, C> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, C> Copy for Forecast<'_, T, C> {}

/// The forecast for newcomers that join.
#[derive(Clone, Copy, Debug)]
pub struct Joining {
    /// Whether the sum of all latencies, of requests on the device and of newcomers, is smaller if
    /// they join.
    pub pays: bool,
    /// Ends of the last request on the device: including newcomers if they join, and without them
    /// if they do not.
    pub ends: [Time; 2],
}

/// A forecaster. The vectors are scratch memory.
#[derive(Debug)]
pub struct Play {
    /// The members of all batches of the forecast.
    played: Vec<ForecastCohort>,
    /// The batches: model, next block, and the index in `played` of their first member.
    entries: Vec<(ModelId, usize, usize)>,
    /// The requests that have ended, and the times.
    ends: Vec<(RequestSlot, Time)>,
}

/// A request in a forecast.
#[derive(Clone, Copy, Debug)]
struct ForecastCohort {
    /// Slot of the request.
    slot: RequestSlot,
    /// Next step of the request in its block.
    step: u32,
    /// True if the request skips the current block.
    rests: bool,
}

impl Play {
    /// Creates the scratch space of a play for these limits.
    pub fn new(limits: &Limits) -> Play {
        Play {
            played: Vec::with_capacity(limits.requests),
            entries: Vec::with_capacity(limits.requests),
            ends: Vec::with_capacity(limits.requests),
        }
    }

    /// Compares two options for newcomers of model `id`: they run first and catch up with the
    /// stack, or they run by themselves once the stack has ended, or from `elsewhere` on, when
    /// another device is free for them.
    pub fn join<T, C>(
        &mut self,
        forecast: Forecast<'_, T, C>,
        elsewhere: Time,
        id: ModelId,
        newcomers: impl Iterator<Item = RequestSlot> + Clone,
    ) -> Joining {
        self.reset(forecast);
        self.enter(id, newcomers.clone());
        let then = self.run_to_end(forecast, forecast.now);
        let joined = self.sum_of_ends(forecast.now);
        self.reset(forecast);
        let before = self.run_to_end(forecast, forecast.now);
        self.enter(id, newcomers);
        self.run_to_end(forecast, before.min(elsewhere));
        Joining { pays: joined < self.sum_of_ends(forecast.now), ends: [then, before] }
    }

    fn sum_of_ends(&self, now: Time) -> i128 {
        self.ends.iter().map(|&(_, end)| i128::from((end - now).0)).sum()
    }

    /// Returns whether all requests meet their deadlines if newcomers run first.
    pub fn all_in_time<T, C>(
        &mut self,
        forecast: Forecast<'_, T, C>,
        id: ModelId,
        newcomers: impl Iterator<Item = RequestSlot>,
    ) -> bool {
        self.reset(forecast);
        self.enter(id, newcomers);
        let mut at = forecast.now;
        while let Some((late, then)) = self.play(forecast, at) {
            if late {
                return false;
            }
            at = then;
        }
        true
    }

    /// Returns the end of each request of the stack.
    pub fn ends<T, C>(&mut self, forecast: Forecast<'_, T, C>) -> &[(RequestSlot, Time)] {
        self.reset(forecast);
        self.run_to_end(forecast, forecast.now);
        &self.ends
    }

    /// Starts a forecast with the stack.
    fn reset<T, C>(&mut self, Forecast { cohorts, stack, .. }: Forecast<'_, T, C>) {
        self.played.clear();
        self.entries.clear();
        self.ends.clear();
        for &id in stack {
            let cohort = cohorts.get(id);
            self.entries.push((cohort.model, cohort.block.index(), self.played.len()));
            self.played.extend(cohorts.members(id).map(|slot| {
                let step = cohorts.step(slot);
                ForecastCohort { slot, step: step.unwrap_or(0), rests: step.is_none() }
            }));
        }
    }

    /// Puts newcomers on top.
    fn enter(&mut self, id: ModelId, newcomers: impl Iterator<Item = RequestSlot>) {
        self.entries.push((id, 0, self.played.len()));
        self.played.extend(newcomers.map(|slot| ForecastCohort { slot, step: 0, rests: false }));
    }

    /// Runs all batches to their end; returns the time of the last.
    fn run_to_end<T, C>(&mut self, forecast: Forecast<'_, T, C>, from: Time) -> Time {
        let mut at = from;
        while let Some((_, then)) = self.play(forecast, at) {
            at = then;
        }
        at
    }

    /// Runs the top batch until a member is done with its block. Returns whether a request ended
    /// late, and the time after it.
    fn play<T, C>(&mut self, forecast: Forecast<'_, T, C>, at: Time) -> Option<(bool, Time)> {
        while let [.., below, top] = self.entries.as_slice()
            && (below.0, below.1) == (top.0, top.1)
        {
            self.entries.pop();
        }
        let &(id, block, start) = self.entries.last()?;
        let served = forecast.models.get(id);
        let until_end = (forecast.until_end)(&served.own);
        let request = |played: &ForecastCohort| forecast.requests.get(played.slot.0);
        let left =
            |played: &ForecastCohort| steps_left(&served.model.blocks[block], request(played), until_end, played.step);
        let active = self.played[start..].iter().filter(|played| !played.rests);
        let rows: usize = active.clone().map(|played| request(played).rows as usize).sum();
        let steps = active.clone().map(left).min().unwrap_or(1);
        let length = active.map(|played| request(played).extent.length).max().unwrap_or(1);
        let cost = served.model.blocks[block].cost(rows.max(1), length) * i64::from(steps);
        let then = at + takes(forecast.percent, cost);
        for played in self.played[start..].iter_mut().filter(|played| !played.rests) {
            played.rests = left(played) == steps;
            played.step += steps;
        }
        let mut late = false;
        if block + 1 == served.model.blocks.len() {
            let ended = |played: &ForecastCohort| played.rests;
            for played in self.played[start..].iter().filter(|played| ended(played)) {
                late |= request(played).deadline < then;
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

/// Returns the predicted number of remaining steps of a block; one for a decoder that continues
/// beyond the prediction.
fn steps_left(block: &Block, request: &Request, until_end: u32, done: u32) -> u32 {
    cost::steps(block, request, until_end).saturating_sub(done).max(1)
}
