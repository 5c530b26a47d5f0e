//! The load: rates, the batch sizes that follow from them, losses, and the price of device time.

use super::{UnifiedEntry, UnifiedModel};
use crate::estimate::by_length::{CostsByLength, PaddedCost};
use crate::estimate::cost::largest;
use crate::estimate::occupancy::OccupancyEstimate;
use crate::estimate::rate::RateMeter;
use crate::estimate::reach::Reach;
use crate::estimate::scarcity::{MEMORY, Scarcity, Share};
use crate::tables::models::Models;
use ripieno_base::{BlockId, ModelId, Nanos, Time};
use ripieno_model::{Block, Model};

/// Planned utilisation of the devices, in thousandths; the rest absorbs random arrivals.
const UTILISATION_PERMILLE: u64 = 900;
/// Part of the largest steady batch for which requests are passed over, in thousandths: a larger
/// one passes over many for its last rows.
const TARGET_PART: u64 = 850;
/// Share of lost rows, in thousandths, above which requests are passed over for more than
/// [`TARGET_PART`] of the batch; for the whole batch at three times this share.
const SHORT_PERMILLE: u64 = 100;
/// Lost rows, in thousandths, from which batches are as large as the SLO allows, and forecasts
/// count everything.
const LOSING_PERMILLE: u64 = 30;
/// Upper bound, in thousandths, on the utilisation ρ in ρ / (1 − ρ), the number of requests that
/// wait for a device while one runs.
pub(super) const MOST_UTILISATION: u64 = 900;
/// Time between updates of what depends on rates.
pub(super) const REFRESH: Nanos = Nanos::from_millis(50);
/// Number of refreshes in the moving means of how devices are used.
const MEAN_OF: u64 = 8;
/// Number of mean batches for which a model that loses rows starts none, after which half of what
/// was learnt is forgotten: estimates that are too high would keep it from starting one.
const SILENT_BATCHES: i64 = 8;
/// Mean batches of other models that a model expects to wait for a device, if all load is theirs.
const BLOCKING_BATCHES: u64 = 2;
const SECOND: Nanos = Nanos::from_millis(1_000);

/// Rate, costs and losses of one model.
#[derive(Debug)]
pub(super) struct ModelEstimate {
    pub(super) rate: RateMeter,
    pub(super) occupancy: OccupancyEstimate,
    /// Mean device time of the whole walk by batch size, from the share of rows that run each
    /// block.
    pub(super) reach: Reach,
    /// Device time of the whole walk by batch size that is promised.
    promised: Box<[Nanos]>,
    /// The same by length, if requests are padded.
    by_length: Option<CostsByLength>,
    /// The version of the occupancy that all were derived from.
    derived_from: u64,
    /// Share of rows that were lost.
    pub(super) lost: Share,
    /// Start of the last batch, and whether rows were lost since.
    last_start: Time,
    lost_since: bool,
    /// Largest batch: that in which a row takes the least device time by profile, or as learnt if
    /// that is larger. Larger ones would make requests wait for nothing. For padded requests it
    /// would differ by length, so it is the model's.
    pub(super) max_batch: usize,
    /// The same by profile.
    cheapest_by_profile: usize,
    /// Largest batch that a steady flow at this rate could have.
    pub(super) target: usize,
    /// Rows of cells that arrive within half the SLO: no steady flow at this rate fills larger
    /// steps.
    pub(super) steady_rows: usize,
    /// Smallest batch that keeps utilisation within the planned 90 %, at most the target.
    pub(super) min_stable_batch: usize,
    /// Batch size with the shortest mean response time; `usize::MAX` if it is not below the target.
    pub(super) fastest_batch: usize,
    /// Thousandths of a device that the rate keeps busy in batches of the target size.
    pub(super) target_load: u64,
    /// The same in batches like the recent ones.
    pub(super) recent_load: u64,
    /// Rows and total device time of the recent batches.
    recent: (u64, Nanos),
    /// Mean device time of a row of the recent requests in full batches; of cells, by profile.
    pub(super) work: Nanos,
    /// Device time that its tasks since the last refresh would have needed in batches of the target
    /// size, and that in thousandths of a device: a moving mean.
    spent: Nanos,
    pub(super) need: u64,
    /// Time for which other models are expected to keep a device busy when this one needs it.
    pub(super) blocking: Nanos,
    /// Time for which its batches may keep a device busy before requests of other models that
    /// arrive meanwhile must start.
    pub(super) max_wait: Nanos,
    /// Index of dispersion of arrivals, in thousandths, at most 1,000.
    pub(super) dispersion: u64,
}

impl ModelEstimate {
    pub(super) fn new(model: &Model, max_batch: usize) -> ModelEstimate {
        // The batch sizes of cells do not depend on these.
        let first = || Model::whole("", model.blocks[0].profile.clone(), model.slo);
        let reach = if model.walk.is_unfolded() { Reach::new(&first()) } else { Reach::new(model) };
        let promised: Box<[Nanos]> =
            if model.walk.is_unfolded() { Box::default() } else { model.profile().table().into() };
        let mut load = ModelEstimate {
            rate: RateMeter::new(),
            occupancy: OccupancyEstimate::default(),
            by_length: model.has_lengths().then(|| CostsByLength::new(model, promised.len())),
            promised,
            reach,
            derived_from: 0,
            lost: Share::default(),
            last_start: Time::ORIGIN,
            lost_since: false,
            max_batch,
            cheapest_by_profile: 1,
            target: 1,
            steady_rows: usize::MAX,
            min_stable_batch: 1,
            fastest_batch: usize::MAX,
            target_load: 0,
            recent_load: 0,
            recent: (1, Nanos::ZERO),
            work: Nanos::ZERO,
            spent: Nanos::ZERO,
            need: 0,
            blocking: Nanos::ZERO,
            max_wait: Nanos::MAX,
            dispersion: 1_000,
        };
        load.reset_max_batch(model, max_batch);
        load.target = load.largest_within(Nanos(model.slo.0 / 2)).max(1);
        load.derive_by_length(model);
        load
    }

    /// Returns the mean device time of a batch of the whole walk.
    pub(super) fn mean(&self, rows: usize) -> Nanos {
        self.reach.latency(rows.min(self.reach.largest()))
    }

    /// Returns the device time that a batch of the whole walk is promised to stay within;
    /// `Nanos::MAX` beyond the largest batch.
    pub(super) fn promised(&self, rows: usize) -> Nanos {
        self.promised.get(rows - 1).copied().unwrap_or(Nanos::MAX)
    }

    /// Returns the largest batch whose promised time is at most `span`; 0 if there is none.
    pub(super) fn largest_within(&self, span: Nanos) -> usize {
        self.promised.partition_point(|&promised| promised <= span).min(self.max_batch)
    }

    /// Returns the mean and the promised device time of a batch from a block on.
    pub(super) fn of_blocks(&self, model: &Model, from: BlockId, rows: usize, length: u32) -> (Nanos, Nanos) {
        self.in_sequence(self.usual(model, from, rows).map(|(block, rows)| block.cost(rows, length)))
    }

    /// Returns the blocks from one on, each with the rows of a batch that have usually not left.
    fn usual<'a>(&self, model: &'a Model, from: BlockId, rows: usize) -> impl Iterator<Item = (&'a Block, usize)> {
        model.blocks.iter().skip(from.index()).zip(self.reach.usual_rows(from, rows))
    }

    /// Returns the costs of padded requests.
    pub(super) fn padded(&self) -> &CostsByLength {
        self.by_length.as_ref().expect("requests are padded")
    }

    /// Returns the mean and the promised device time of tasks in sequence.
    fn in_sequence(&self, profiled: impl Iterator<Item = Nanos>) -> (Nanos, Nanos) {
        if self.occupancy.version() == 0 {
            let profiled = profiled.sum();
            return (profiled, profiled);
        }
        let (mut mean, mut squares) = (Nanos::ZERO, 0);
        for profiled in profiled {
            mean += self.occupancy.mean(profiled);
            squares += (self.occupancy.deviation(profiled).0 as u128).pow(2);
        }
        (mean, OccupancyEstimate::promised(mean, squares))
    }

    /// Returns the mean device time of one task.
    pub(super) fn of_task(&self, block: &Block, rows: usize, length: u32) -> Nanos {
        self.occupancy.mean(block.cost(rows, length))
    }

    /// Returns the mean device time of steps that are profiled to take `left`, in batches like one
    /// that is profiled to take `step`.
    pub(super) fn of_steps(&self, left: Nanos, step: Nanos) -> Nanos {
        if self.occupancy.version() == 0 {
            return left;
        }
        left.scale(self.occupancy.mean(step).0.cast_unsigned(), step.0.max(1).cast_unsigned())
    }

    /// Returns the part of a batch's device time that is wasted compared with batches of the target
    /// size, in thousandths.
    pub(super) fn waste(&self, rows: usize, cost: impl Fn(usize) -> Nanos) -> u64 {
        let target = self.target.max(1);
        let (own, best) = (i128::from(cost(rows).0), i128::from(cost(target).0));
        let used = best * rows as i128 * 1_000 / (own * target as i128).max(1);
        1_000 - used.clamp(0, 1_000) as u64
    }

    /// Returns the batch size for which requests are passed over.
    pub(super) fn wanted_batch(&self) -> usize {
        let short = (self.lost.permille().saturating_sub(SHORT_PERMILLE) * 1_000 / (2 * SHORT_PERMILLE)).min(1_000);
        let part = TARGET_PART + (1_000 - TARGET_PART) * short / 1_000;
        let target = (self.target as u64 * part / 1_000).max(1) as usize;
        if self.is_losing() { target } else { self.min_stable_batch.min(target) }
    }

    /// Records the start of a batch, which takes `cost` on average.
    pub(super) fn on_start(&mut self, now: Time, rows: usize, cost: Nanos) {
        let (all, took) = self.recent;
        let halved = 1 + u64::from(all > MEMORY);
        self.recent = (all / halved + rows as u64, Nanos(took.0 / halved as i64) + cost);
        self.lost.observe(rows, false);
        (self.last_start, self.lost_since) = (now, false);
    }

    /// Records work that the best batches would have done in `time`.
    pub(super) fn on_work(&mut self, time: Nanos) {
        self.spent += time;
    }

    /// Records the work of a newcomer, per row.
    pub(super) fn on_newcomer(&mut self, work: Nanos) {
        let step = (work - self.work).0 / MEAN_OF as i64;
        self.work = if self.work == Nanos::ZERO { work } else { self.work + Nanos(step) };
    }

    /// Returns the rows of a full batch: the largest that leaves, on average, half of the time that
    /// a lone row has to spare.
    pub(super) fn full_batch(&self, slo: Nanos) -> usize {
        let most = Nanos((slo + self.mean(1)).0 / 2);
        largest(self.max_batch, |rows| self.mean(rows) <= most).max(1)
    }

    /// Returns the mean device time of a row in full batches, of a request of this length.
    pub(super) fn in_full_batch(&self, slo: Nanos, length: u32) -> Nanos {
        let full = self.full_batch(slo);
        Nanos(self.of_batch(full, length).0 / full as i64)
    }

    /// Returns the mean device time of a batch with requests of up to this length.
    pub(super) fn of_batch(&self, rows: usize, length: u32) -> Nanos {
        match &self.by_length {
            Some(costs) => costs.mean(rows, costs.place(length)),
            None => self.mean(rows),
        }
    }

    /// Returns whether more than a few of the recent rows were lost.
    pub(super) fn is_losing(&self) -> bool {
        self.lost.permille() > LOSING_PERMILLE
    }

    /// Records lost rows.
    pub(super) fn on_lost(&mut self, rows: usize) {
        self.lost.observe(rows, true);
        self.lost_since |= rows > 0;
    }

    /// Updates costs with what was learnt. The costs of all batch sizes are derived anew only if
    /// `may_derive`; returns whether they were.
    fn refresh_costs(&mut self, now: Time, model: &Model, may_derive: bool) -> bool {
        // While no task starts none is measured, so estimates that are too high would stay so.
        let silence = model.slo.max(self.mean(self.target) * SILENT_BATCHES);
        if self.lost_since && now - self.last_start > silence && self.occupancy.version() > 0 {
            self.occupancy.halve();
            (self.last_start, self.lost_since) = (now, false);
        }
        if model.walk.is_unfolded() {
            return false;
        }
        let stale = self.derived_from != self.occupancy.version() || self.reach.exits_changed();
        if stale && may_derive {
            self.derive(model);
        } else {
            self.reach.refresh(model, |block, rows| self.occupancy.mean(block.profile.latency(rows)));
        }
        stale && may_derive
    }

    /// Derives the costs of all batch sizes.
    fn derive(&mut self, model: &Model) {
        self.derived_from = self.occupancy.version();
        self.reach.settle_exits();
        self.reach.recompute(model, |block, rows| self.occupancy.mean(block.profile.latency(rows)));
        let mut longest = Nanos::ZERO;
        for rows in 1..=self.promised.len() {
            let profiled = self.usual(model, BlockId(0), rows).map(|(block, rows)| block.profile.latency(rows));
            longest = longest.max(self.in_sequence(profiled).1);
            self.promised[rows - 1] = longest;
        }
        self.derive_by_length(model);
    }

    fn derive_by_length(&mut self, model: &Model) {
        let Some(mut costs) = self.by_length.take() else { return };
        costs.derive(|rows, length| {
            let (mean, promised) = self.of_blocks(model, BlockId(0), rows, length);
            PaddedCost { mean, promised }
        });
        self.by_length = Some(costs);
    }

    /// Replaces everything that was derived from the profile.
    pub(super) fn on_new_profile(&mut self, model: &Model, max_batch: usize) {
        self.occupancy = OccupancyEstimate::default();
        if !model.walk.is_unfolded() {
            self.derive(model);
        }
        self.reset_max_batch(model, max_batch);
    }

    /// Finds the largest batch, of at most `most` rows, of a new profile.
    fn reset_max_batch(&mut self, model: &Model, most: usize) {
        (self.max_batch, self.cheapest_by_profile) = (most, most);
        if !model.walk.is_unfolded() && !model.has_lengths() {
            let profile = model.profile();
            self.cheapest_by_profile = cheapest_batch(most, |rows| profile.latency(rows));
            self.max_batch = self.cheapest_by_profile;
        }
    }

    /// Updates the need of device time.
    fn refresh_need(&mut self, elapsed: Nanos) {
        let used = std::mem::take(&mut self.spent).scale(1_000, elapsed.0.max(1).cast_unsigned());
        self.need = moving_mean(self.need, used.0.max(0).cast_unsigned(), elapsed);
    }

    /// Updates what depends on the rate alone.
    fn refresh_target(&mut self, now: Time, model: &Model, max_batch: usize) {
        self.rate.catch_up(now);
        let Some(rate) = self.rate.rate(now) else {
            (self.target_load, self.recent_load) = (0, 0);
            return;
        };
        if model.walk.is_unfolded() {
            self.steady_rows = rate.rows_in(Nanos(model.slo.0 / 2)).max(1) as usize;
            return;
        }
        if self.cheapest_by_profile < max_batch {
            let learnt = cheapest_batch(max_batch, |rows| self.mean(rows));
            self.max_batch = learnt.max(self.cheapest_by_profile);
        }
        let fits = |batch: usize| self.promised(batch) + rate.gather_time(batch) <= model.slo;
        self.target = largest(self.max_batch, fits).max(1);
        let known = self.rate.dispersion_permille(now).filter(|_| rate.window >= SECOND);
        self.dispersion = known.unwrap_or(1_000).min(1_000);
        self.recent_load = rate.load_permille(self.recent.0 as usize, self.recent.1);
        self.target_load = match model.has_lengths() {
            // The cost of the longest requests says little about the others.
            true => self.recent_load,
            false => rate.load_permille(self.target, self.mean(self.target)),
        };
    }

    /// Finds the batch sizes that carry the rate, and that answer soonest, beside other models that
    /// keep `others` thousandths of a device busy. `room` is the part of the devices, in
    /// thousandths of one, that this model may use.
    fn refresh_sizes(&mut self, now: Time, room: u64, others: u64, devices: u64) {
        let Some(rate) = self.rate.rate(now) else { return };
        let load = |batch: usize| rate.load_permille(batch, self.mean(batch));
        let min_stable_batch = 1 + largest(self.target - 1, |batch| load(batch) > room);
        let response_time = |batch: usize| {
            let (cost, load) = (self.mean(batch), load(batch) + others);
            match (1_000 * devices).saturating_sub(load) {
                0 => Nanos(i64::MAX - batch as i64),
                idle => {
                    let queue = cost.scale(load * self.dispersion, idle * 2_000);
                    cost + Nanos(rate.gather_time(batch - 1).0 / 2) + queue
                }
            }
        };
        let fastest = (1..=self.target).min_by_key(|&batch| response_time(batch));
        self.fastest_batch = fastest.filter(|batch| *batch < self.target).unwrap_or(usize::MAX);
        self.min_stable_batch = min_stable_batch;
    }
}

/// The load of all models together.
#[derive(Debug)]
pub(super) struct LoadEstimate {
    scarcity: Scarcity,
    /// Mean duration of a batch.
    pub(super) mean_batch: Nanos,
    /// Thousandths of a device that all models in batches keep busy, in batches like the recent
    /// ones; models in cells are not counted.
    pub(super) recent_load: u64,
    /// The same in batches of the target size (of padded models, like the recent ones).
    pub(super) target_load: u64,
    /// Device time that the recent tasks used, and what part of all that is, in thousandths: a
    /// moving mean.
    used: Nanos,
    pub(super) busy: u64,
    /// Work of the recent tasks, in the device time that the best batches would have needed.
    best_case_work: Nanos,
    /// The part of the device time, in thousandths, that the best batches would have needed: a
    /// moving mean over 8 refreshes.
    pub(super) utilisation: u64,
    pub(super) refreshed: Time,
    /// The model whose costs may be derived next.
    next_derived: ModelId,
}

impl LoadEstimate {
    pub(super) fn new() -> LoadEstimate {
        LoadEstimate {
            scarcity: Scarcity::default(),
            mean_batch: Nanos::ZERO,
            recent_load: 0,
            target_load: 0,
            used: Nanos::ZERO,
            busy: 0,
            best_case_work: Nanos::ZERO,
            utilisation: 0,
            refreshed: Time::ORIGIN,
            next_derived: ModelId(0),
        }
    }

    /// Returns whether rates are to be updated.
    pub(super) fn is_stale(&self, now: Time) -> bool {
        now - self.refreshed >= REFRESH
    }

    /// Updates everything that depends on rates.
    pub(super) fn refresh(&mut self, now: Time, models: &mut Models<UnifiedModel>, devices: usize) {
        let elapsed = now - self.refreshed;
        let span = elapsed * devices.max(1) as i64;
        let part = |time: Nanos| time.scale(1_000, span.0.max(1).cast_unsigned()).0.max(0).cast_unsigned();
        self.utilisation = moving_mean(self.utilisation, part(self.best_case_work), elapsed);
        self.busy = moving_mean(self.busy, part(self.used), elapsed);
        (self.refreshed, self.best_case_work, self.used) = (now, Nanos::ZERO, Nanos::ZERO);
        // Deriving the costs of large batches takes a while, so it is one model's turn at a time.
        let (mut derived, next) = (false, self.next_derived);
        for (id, served) in models.iter_mut() {
            let max_batch = served.max_batch;
            if served.own.load.refresh_costs(now, &served.model, !derived && id >= next) {
                (derived, self.next_derived) = (true, ModelId(id.0 + 1));
            }
            served.own.load.refresh_need(elapsed);
            served.own.load.refresh_target(now, &served.model, max_batch);
        }
        if !derived {
            self.next_derived = ModelId(0);
        }
        let sum = |of: fn(&ModelEstimate) -> u64| models.iter().map(|(_, served)| of(&served.load)).sum::<u64>();
        let (target_load, recent_load) = (sum(|load| load.target_load), sum(|load| load.recent_load));
        let devices = devices.max(1) as u64;
        let (mut batches, mut work) = (0, Nanos::ZERO);
        for (_, served) in models.iter_mut().filter(|(_, served)| !served.model.walk.is_unfolded()) {
            let most = devices.min(served.model.instances.max(1) as u64);
            let load = &mut served.own.load;
            let share = UTILISATION_PERMILLE * devices * load.target_load / target_load.max(1);
            let room = share.min(UTILISATION_PERMILLE * most);
            load.refresh_sizes(now, room, recent_load - load.recent_load, devices);
            let rows = load.rate.rate(now).map_or(0, |rate| rate.rows_in(SECOND));
            batches += rows / load.min_stable_batch as u64;
            work += load.mean(load.min_stable_batch).scale(rows, load.min_stable_batch as u64);
        }
        (self.recent_load, self.target_load) = (recent_load, target_load);
        self.mean_batch = Nanos(work.0 / batches.max(1) as i64);
        self.refresh_waits(now, models, devices);
    }

    /// Updates for how long models wait for each other.
    fn refresh_waits(&self, now: Time, models: &mut Models<UnifiedModel>, devices: u64) {
        // Half of a model's slack on each device: equally urgent requests need as much again.
        let wait = |served: &UnifiedEntry| {
            let slack = (served.model.slo - served.load.mean(1)).max(Nanos::ZERO);
            Nanos(slack.0 / 2).scale(devices, 1)
        };
        let active = models.iter().filter(|(_, served)| served.load.rate.rate(now).is_some());
        let batched = active.filter(|(_, served)| !served.model.walk.is_unfolded());
        let mut shortest = [(Nanos::MAX, None); 2];
        for (id, served) in batched {
            let wait = (wait(served), Some(id));
            if wait.0 < shortest[0].0 {
                shortest = [wait, shortest[0]];
            } else if wait.0 < shortest[1].0 {
                shortest[1] = wait;
            }
        }
        let all = self.recent_load.max(1);
        for (id, served) in models.iter_mut() {
            let load = &mut served.own.load;
            let others = self.recent_load - load.recent_load;
            load.blocking = self.mean_batch.scale(BLOCKING_BATCHES * others, all * devices);
            load.max_wait = if shortest[0].1 == Some(id) { shortest[1].0 } else { shortest[0].0 };
        }
    }

    /// Returns the price of device time, in parts of [`WHOLE`](crate::estimate::scarcity::WHOLE).
    pub(super) fn price(&self, now: Time) -> u64 {
        self.scarcity.price(now, self.mean_batch)
    }

    /// Records rows that start, or (`passed`) that are passed over, dropped or refused.
    pub(super) fn observe(&mut self, rows: usize, passed: bool) {
        self.scarcity.observe(rows, passed);
    }

    /// Records the start of a batch.
    pub(super) fn on_start(&mut self, now: Time) {
        self.scarcity.note_activity(now, self.mean_batch);
    }

    /// Records work that used a device for `time`; the best batches would have done it in `best`.
    pub(super) fn on_work(&mut self, time: Nanos, best: Nanos) {
        self.used += time;
        self.best_case_work += best;
    }
}

/// Returns the batch of at most `most` rows in which a row takes the least time, the largest of
/// equal ones.
fn cheapest_batch(most: usize, cost: impl Fn(usize) -> Nanos) -> usize {
    let of_row = |rows: usize, other: usize| i128::from(cost(rows).0) * other as i128;
    (1..=most).rev().min_by(|&one, &other| of_row(one, other).cmp(&of_row(other, one))).unwrap_or(1)
}

/// Returns a moving mean over about [`MEAN_OF`] refreshes, after a value that held for `elapsed`.
fn moving_mean(mean: u64, value: u64, elapsed: Nanos) -> u64 {
    let weight = (elapsed.0 / REFRESH.0).clamp(1, MEAN_OF as i64).cast_unsigned();
    (mean * (MEAN_OF - weight) + value * weight) / MEAN_OF
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::{LengthProfiles, Profile, Walk};

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    /// A model that takes b + 4 ms, in batches of up to 32 rows.
    fn estimate(slo_ms: i64) -> (Model, ModelEstimate) {
        let model = Model::whole("m", Profile::linear(1.0, 4.0, 32).unwrap(), MS(slo_ms));
        let estimate = ModelEstimate::new(&model, 32);
        (model, estimate)
    }

    #[test]
    fn a_full_batch_leaves_half_of_the_slack_of_a_lone_row() {
        let (model, load) = estimate(41);
        assert_eq!(load.in_full_batch(model.slo, 1), Nanos(MS(23).0 / 19));
        let (model, load) = estimate(1_000);
        assert_eq!(load.in_full_batch(model.slo, 1), Nanos(MS(36).0 / 32));
        let (model, load) = estimate(5);
        assert_eq!(load.in_full_batch(model.slo, 1), MS(5), "one row at least");
    }

    #[test]
    fn a_full_step_holds_what_arrives_in_half_the_slo() {
        let (mut model, mut load) = estimate(100);
        model.walk = Walk::Repeat;
        let now = |ms: i64| Time::ORIGIN + MS(ms);
        for ms in 0..2_000 {
            load.rate.record(now(ms), 2);
        }
        load.refresh_target(now(2_000), &model, 32);
        assert!((95..=105).contains(&load.steady_rows), "{}", load.steady_rows);
    }

    #[test]
    fn no_batch_costs_more_a_row_than_a_smaller_one() {
        let of = |ms: &[i64]| {
            let table: Vec<Nanos> = ms.iter().map(|&ms| MS(ms)).collect();
            let model = Model::whole("m", Profile::from_table(&table).unwrap(), MS(100));
            let load = ModelEstimate::new(&model, table.len());
            (load.max_batch, load.largest_within(MS(60)), load.target)
        };
        assert_eq!(of(&[2, 4, 6, 8]), (4, 4, 4), "equal ones");
        assert_eq!(of(&[2, 5, 9, 14]), (1, 1, 1));
        assert_eq!(of(&[4, 5, 6, 9, 9, 30]), (5, 5, 5));
        // Short requests may gain by batches where the longest do not.
        let table = Profile::from_table(&[MS(5), MS(11), MS(18)]).unwrap();
        let lengths = LengthProfiles::new(vec![(1, Profile::linear(0.1, 2.0, 3).unwrap()), (9, table.clone())]);
        let block = Block { lengths: Some(lengths.unwrap()), ..Block::new("b", table) };
        let model = Model { blocks: vec![block], ..Model::whole("m", Profile::linear(1.0, 1.0, 3).unwrap(), MS(100)) };
        assert_eq!(ModelEstimate::new(&model, 3).max_batch, 3);
    }

    #[test]
    fn the_need_of_devices_is_a_moving_mean() {
        let (_, mut load) = estimate(100);
        for _ in 0..64 {
            load.on_work(Nanos(REFRESH.0 / 4));
            load.refresh_need(REFRESH);
        }
        assert!((240..=250).contains(&load.need), "{}", load.need);
        load.refresh_need(REFRESH * 100);
        assert_eq!(load.need, 0);
    }
}
