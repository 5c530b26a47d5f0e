//! Estimates of one model: arrivals, costs, losses, and the batch sizes that follow from them.

use super::former::Former;
use crate::estimate::by_length::{CostsByLength, PaddedCost};
use crate::estimate::cost::largest;
use crate::estimate::occupancy::OccupancyEstimate;
use crate::estimate::rate::RateMeter;
use crate::estimate::reach::Reach;
use crate::estimate::scarcity::{MEMORY, Share};
use ripieno_base::{BlockId, Nanos, Permille, Time};
use ripieno_model::{Block, Model};

/// Part of the target size up to which requests are passed over to fill a batch. A larger batch
/// would pass over many requests for its last rows.
const TARGET_PART: Permille = Permille::from_parts(850);
/// Share of lost rows above which requests are passed over for more than [`TARGET_PART`] of the
/// target. At three times this share, they are passed over for the whole target.
const SHORT: Permille = Permille::from_parts(100);
/// Share of lost rows above which requests are passed over for the target size, not only for the
/// smallest stable one, and forecasts leave nothing out.
const LOSING: Permille = Permille::from_parts(30);
/// Time without a batch, in batches of the target size, after which a model that loses rows forgets
/// half of what it learnt. It is at least the SLO. Estimates that are too high would otherwise keep
/// the model from starting a batch.
const SILENT_BATCHES: i64 = 8;
/// Silence after which nothing fills a batch, in batches of twice its size. Random arrivals are
/// rarely silent for longer while they still fill one.
const SILENT_FILLS: i64 = 2;
/// Number of refreshes in the moving means of how devices are used.
const MEAN_OF: u64 = 8;
/// Time between updates of what depends on rates.
pub(super) const REFRESH: Nanos = Nanos::from_millis(50);
/// The span over which rates are counted as rows.
pub(super) const SECOND: Nanos = Nanos::from_millis(1_000);

/// Estimates of one model, by purpose.
#[derive(Debug)]
pub(super) struct ModelEstimate {
    /// The former of the model's tasks.
    pub(super) former: Former,
    /// The flow of newcomers.
    pub(super) arrivals: ArrivalEstimate,
    /// Durations, profiled and learnt.
    pub(super) costs: CostEstimate,
    /// Rows that were lost, and the silence after them.
    pub(super) losses: Losses,
    /// Batch sizes that follow from rate and costs.
    pub(super) sizes: BatchSizes,
    /// Device time that the model needs.
    pub(super) demand: Demand,
    /// Times for which models wait for each other.
    pub(super) waits: Waits,
}

/// The flow of newcomers.
#[derive(Debug)]
pub(super) struct ArrivalEstimate {
    /// Rate of arriving rows.
    pub(super) rate: RateMeter,
    /// Index of dispersion of arrivals, at most 1.
    pub(super) dispersion: Permille,
}

/// Durations, profiled and learnt.
#[derive(Debug)]
pub(super) struct CostEstimate {
    /// Learnt duration of a task by its profiled one.
    pub(super) occupancy: OccupancyEstimate,
    /// Mean device time of the whole walk by batch size, from the share of rows that run each
    /// block.
    pub(super) reach: Reach,
    /// Promised device time of the whole walk, by batch size.
    promised: Box<[Nanos]>,
    /// Mean and promised device time by batch size and length, if requests are padded.
    by_length: Option<CostsByLength>,
    /// The version of the occupancy that all of these were derived from.
    derived_from: u64,
}

/// Rows that were lost, and the silence after them.
#[derive(Debug)]
pub(super) struct Losses {
    /// Share of recent rows that were lost.
    pub(super) lost: Share,
    /// Start of the last batch, or the last time at which learnt costs were halved.
    last_start: Time,
    /// Whether rows were lost since that start.
    lost_since: bool,
}

/// Batch sizes that follow from rate and costs, in rows. `docs/internals/scheduler.md` names them
/// under "Batch sizes".
#[derive(Debug)]
pub(super) struct BatchSizes {
    /// Size of the largest batch: the size at which a row takes the least device time, by profile
    /// or as learnt, whichever is larger. In larger batches requests would wait for nothing. Padded
    /// models keep the largest size of their model, since the best one differs by length.
    pub(super) max_batch: usize,
    /// Largest batch in which a row takes the least device time by profile. Padded models keep the
    /// largest size of their model.
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
}

/// Device time that the model needs.
#[derive(Debug)]
pub(super) struct Demand {
    /// Number of devices that the rate keeps busy in batches of the target size.
    pub(super) target_load: Permille,
    /// Number of devices that the rate keeps busy in batches like the recent ones.
    pub(super) recent_load: Permille,
    /// Rows and total device time of the recent batches.
    recent: (u64, Nanos),
    /// Mean device time that a row of the recent requests takes in a full batch. For models in
    /// cells it is the profiled one.
    pub(super) work: Nanos,
    /// Device time that the model's tasks since the last refresh would have needed in batches of
    /// the target size.
    spent: Nanos,
    /// Moving mean of `spent` over the time that has passed: the number of devices that the model
    /// needs.
    pub(super) need: Permille,
}

/// Times for which models wait for each other.
#[derive(Debug)]
pub(super) struct Waits {
    /// Time for which other models are expected to keep a device busy when this one needs it.
    pub(super) blocking: Nanos,
    /// Time for which the model's batches may keep a device busy before requests of other models
    /// that arrive meanwhile must start.
    pub(super) max_wait: Nanos,
}

impl ModelEstimate {
    pub(super) fn new(model: &Model, max_batch: usize, former: Former) -> ModelEstimate {
        let first = || Model::whole("", model.blocks[0].profile.clone(), model.slo);
        let (reach, promised): (Reach, Box<[Nanos]>) = match former {
            Former::Cells => (Reach::new(&first()), Box::default()),
            Former::Batches | Former::Padded => (Reach::new(model), model.profile().table().into()),
        };
        let by_length = (former == Former::Padded).then(|| CostsByLength::new(model, promised.len()));
        let costs =
            CostEstimate { occupancy: OccupancyEstimate::default(), reach, promised, by_length, derived_from: 0 };
        let mut load = ModelEstimate {
            former,
            arrivals: ArrivalEstimate { rate: RateMeter::new(), dispersion: Permille::WHOLE },
            costs,
            losses: Losses { lost: Share::default(), last_start: Time::ORIGIN, lost_since: false },
            sizes: BatchSizes {
                max_batch,
                cheapest_by_profile: 1,
                target: 1,
                steady_rows: usize::MAX,
                min_stable_batch: 1,
                fastest_batch: usize::MAX,
            },
            demand: Demand {
                target_load: Permille::ZERO,
                recent_load: Permille::ZERO,
                recent: (1, Nanos::ZERO),
                work: Nanos::ZERO,
                spent: Nanos::ZERO,
                need: Permille::ZERO,
            },
            waits: Waits { blocking: Nanos::ZERO, max_wait: Nanos::MAX },
        };
        load.reset_max_batch(model, max_batch);
        load.sizes.target = load.largest_within(Nanos(model.slo.0 / 2)).max(1);
        load.derive_by_length(model);
        load
    }

    /// Returns the mean device time of a batch of the whole walk.
    pub(super) fn mean(&self, rows: usize) -> Nanos {
        self.costs.reach.latency(rows.min(self.costs.reach.largest()))
    }

    /// Returns the device time that a batch of the whole walk is promised to stay within;
    /// `Nanos::MAX` beyond the largest batch.
    pub(super) fn promised(&self, rows: usize) -> Nanos {
        self.costs.promised.get(rows - 1).copied().unwrap_or(Nanos::MAX)
    }

    /// Returns the largest batch whose promised time is at most `span`; 0 if there is none.
    pub(super) fn largest_within(&self, span: Nanos) -> usize {
        self.costs.promised.partition_point(|&promised| promised <= span).min(self.sizes.max_batch)
    }

    /// Returns the mean and the promised device time of a batch that starts at block `from`.
    pub(super) fn of_blocks(&self, model: &Model, from: BlockId, rows: usize, length: u32) -> (Nanos, Nanos) {
        self.in_sequence(self.usual(model, from, rows).map(|(block, rows)| block.cost(rows, length)))
    }

    /// Returns the blocks from one on, each with the rows of a batch that have usually not left.
    fn usual<'a>(&self, model: &'a Model, from: BlockId, rows: usize) -> impl Iterator<Item = (&'a Block, usize)> {
        model.blocks.iter().skip(from.index()).zip(self.costs.reach.usual_rows(from, rows))
    }

    /// Returns the costs of padded requests.
    pub(super) fn padded(&self) -> &CostsByLength {
        self.costs.by_length.as_ref().expect("requests are padded")
    }

    /// Returns the mean and the promised device time of tasks in sequence.
    fn in_sequence(&self, profiled: impl Iterator<Item = Nanos>) -> (Nanos, Nanos) {
        if self.costs.occupancy.version() == 0 {
            let profiled = profiled.sum();
            return (profiled, profiled);
        }
        let (mut mean, mut squares) = (Nanos::ZERO, 0);
        for profiled in profiled {
            mean += self.costs.occupancy.mean(profiled);
            squares += (self.costs.occupancy.deviation(profiled).0 as u128).pow(2);
        }
        (mean, OccupancyEstimate::promised(mean, squares))
    }

    /// Returns the mean device time of one task.
    pub(super) fn of_task(&self, block: &Block, rows: usize, length: u32) -> Nanos {
        self.costs.occupancy.mean(block.cost(rows, length))
    }

    /// Returns a function that turns the profiled duration of steps into their mean device time.
    /// The steps run in batches like one that is profiled to take `step`.
    pub(super) fn steps_like(&self, step: Nanos) -> impl Fn(Nanos) -> Nanos + use<> {
        let mean = if self.costs.occupancy.version() == 0 { step } else { self.costs.occupancy.mean(step) };
        move |left| if mean == step { left } else { left.scale(mean.0.cast_unsigned(), step.0.max(1).cast_unsigned()) }
    }

    /// Returns the part of a batch's device time that is wasted compared with batches of the target
    /// size. It is zero after a silence of [`SILENT_FILLS`] batches of twice the size: then no wait
    /// would fill the batch.
    pub(super) fn waste(&self, now: Time, rows: usize, cost: impl Fn(usize) -> Nanos) -> Permille {
        let target = self.sizes.target.max(1);
        if now > self.arrivals.rate.last() + cost((2 * rows).min(self.sizes.max_batch)) * SILENT_FILLS {
            return Permille::ZERO;
        }
        let (own, best) = (i128::from(cost(rows).0), i128::from(cost(target).0));
        let used = best * rows as i128 * 1_000 / (own * target as i128).max(1);
        Permille::from_parts(used.clamp(0, 1_000) as u64).complement()
    }

    /// Returns the size up to which a batch passes over requests to fill up.
    pub(super) fn wanted_batch(&self) -> usize {
        let beyond = (self.losses.lost.permille() - SHORT).parts() * 1_000 / (2 * SHORT.parts());
        let part = TARGET_PART.parts() + TARGET_PART.complement().parts() * beyond.min(1_000) / 1_000;
        let target = (self.sizes.target as u64 * part / 1_000).max(1) as usize;
        if self.is_losing() { target } else { self.sizes.min_stable_batch.min(target) }
    }

    /// Records the start of a batch, which takes `cost` on average.
    pub(super) fn on_start(&mut self, now: Time, rows: usize, cost: Nanos) {
        let (all, took) = self.demand.recent;
        let halved = 1 + u64::from(all > MEMORY);
        self.demand.recent = (all / halved + rows as u64, Nanos(took.0 / halved as i64) + cost);
        self.losses.lost.observe(rows, false);
        (self.losses.last_start, self.losses.lost_since) = (now, false);
    }

    /// Records work that the best batches would have done in `time`.
    pub(super) fn on_work(&mut self, time: Nanos) {
        self.demand.spent += time;
    }

    /// Records the work of a newcomer, per row.
    pub(super) fn on_newcomer(&mut self, work: Nanos) {
        let step = (work - self.demand.work).0 / MEAN_OF as i64;
        self.demand.work = if self.demand.work == Nanos::ZERO { work } else { self.demand.work + Nanos(step) };
    }

    /// Returns the rows of a full batch: the largest that leaves, on average, half of the time that
    /// a lone row has to spare. While rows are lost, it is at least the target, since requests are
    /// passed over for that. Padded requests are the exception: their groups are smaller.
    pub(super) fn full_batch(&self, slo: Nanos, length: u32) -> usize {
        let most = Nanos((slo + self.of_batch(1, length)).0 / 2);
        let target = if self.is_losing() && self.costs.by_length.is_none() { self.sizes.target } else { 1 };
        largest(self.sizes.max_batch, |rows| self.of_batch(rows, length) <= most).max(target)
    }

    /// Returns the mean device time of a row in full batches, of a request of this length.
    pub(super) fn in_full_batch(&self, slo: Nanos, length: u32) -> Nanos {
        let full = self.full_batch(slo, length);
        Nanos(self.of_batch(full, length).0 / full as i64)
    }

    /// Returns the mean device time of a batch with requests of up to this length.
    pub(super) fn of_batch(&self, rows: usize, length: u32) -> Nanos {
        match &self.costs.by_length {
            Some(costs) => costs.mean(rows, costs.place(length)),
            None => self.mean(rows),
        }
    }

    /// Returns whether more than a few of the recent rows were lost.
    pub(super) fn is_losing(&self) -> bool {
        self.losses.lost.permille() > LOSING
    }

    /// Records lost rows.
    pub(super) fn on_lost(&mut self, rows: usize) {
        self.losses.lost.observe(rows, true);
        self.losses.lost_since |= rows > 0;
    }

    /// Updates costs with what was learnt. The costs of all batch sizes are derived anew only if
    /// `may_derive`; returns whether they were.
    pub(super) fn refresh_costs(&mut self, now: Time, model: &Model, may_derive: bool) -> bool {
        // While no task starts none is measured, so estimates that are too high would stay so.
        let silence = model.slo.max(self.mean(self.sizes.target) * SILENT_BATCHES);
        if self.losses.lost_since && now - self.losses.last_start > silence && self.costs.occupancy.version() > 0 {
            self.costs.occupancy.halve();
            (self.losses.last_start, self.losses.lost_since) = (now, false);
        }
        if self.former == Former::Cells {
            return false;
        }
        let stale = self.costs.derived_from != self.costs.occupancy.version() || self.costs.reach.exits_changed();
        if stale && may_derive {
            self.derive(model);
        } else {
            self.costs.reach.refresh(model, |block, rows| self.costs.occupancy.mean(block.profile.latency(rows)));
        }
        stale && may_derive
    }

    /// Derives the costs of all batch sizes.
    fn derive(&mut self, model: &Model) {
        self.costs.derived_from = self.costs.occupancy.version();
        self.costs.reach.settle_exits();
        self.costs.reach.recompute(model, |block, rows| self.costs.occupancy.mean(block.profile.latency(rows)));
        let mut longest = Nanos::ZERO;
        for rows in 1..=self.costs.promised.len() {
            let profiled = self.usual(model, BlockId(0), rows).map(|(block, rows)| block.profile.latency(rows));
            longest = longest.max(self.in_sequence(profiled).1);
            self.costs.promised[rows - 1] = longest;
        }
        self.derive_by_length(model);
    }

    fn derive_by_length(&mut self, model: &Model) {
        let Some(mut costs) = self.costs.by_length.take() else { return };
        costs.derive(|rows, length| {
            let (mean, promised) = self.of_blocks(model, BlockId(0), rows, length);
            PaddedCost { mean, promised }
        });
        self.costs.by_length = Some(costs);
    }

    /// Replaces everything that was derived from the profile.
    pub(super) fn on_new_profile(&mut self, model: &Model, max_batch: usize) {
        self.costs.occupancy = OccupancyEstimate::default();
        if self.former != Former::Cells {
            self.derive(model);
        }
        self.reset_max_batch(model, max_batch);
    }

    /// Finds the largest batch, of at most `most` rows, of a new profile.
    fn reset_max_batch(&mut self, model: &Model, most: usize) {
        (self.sizes.max_batch, self.sizes.cheapest_by_profile) = (most, most);
        if self.former == Former::Batches {
            let profile = model.profile();
            self.sizes.cheapest_by_profile = cheapest_batch(most, |rows| profile.latency(rows));
            self.sizes.max_batch = self.sizes.cheapest_by_profile;
        }
    }

    /// Returns the time in which as many rows come again, at most `slo`.
    pub(super) fn doubles_in(&self, now: Time, slo: Nanos, rows: usize) -> Nanos {
        self.arrivals.rate.rate(now).map_or(slo, |rate| rate.gather_time(rows).min(slo))
    }

    /// Updates the need of device time.
    pub(super) fn refresh_need(&mut self, elapsed: Nanos) {
        let used = Permille::of(std::mem::take(&mut self.demand.spent), elapsed);
        self.demand.need = moving_mean(self.demand.need, used, elapsed);
    }

    /// Updates what depends on the rate alone.
    pub(super) fn refresh_target(&mut self, now: Time, model: &Model, max_batch: usize) {
        self.arrivals.rate.catch_up(now);
        let Some(rate) = self.arrivals.rate.rate(now) else {
            (self.demand.target_load, self.demand.recent_load) = (Permille::ZERO, Permille::ZERO);
            return;
        };
        if self.former == Former::Cells {
            self.sizes.steady_rows = rate.rows_in(Nanos(model.slo.0 / 2)).max(1) as usize;
            return;
        }
        if self.sizes.cheapest_by_profile < max_batch {
            let learnt = cheapest_batch(max_batch, |rows| self.mean(rows));
            self.sizes.max_batch = learnt.max(self.sizes.cheapest_by_profile);
        }
        let fits = |batch: usize| self.promised(batch) + rate.gather_time(batch) <= model.slo;
        self.sizes.target = largest(self.sizes.max_batch, fits).max(1);
        let known = self.arrivals.rate.dispersion(now).filter(|_| rate.window >= SECOND);
        self.arrivals.dispersion = known.unwrap_or(Permille::WHOLE).min(Permille::WHOLE);
        self.demand.recent_load = rate.load(self.demand.recent.0 as usize, self.demand.recent.1);
        self.demand.target_load = match self.former {
            // The cost of the longest requests says little about the others.
            Former::Padded => self.demand.recent_load,
            _ => rate.load(self.sizes.target, self.mean(self.sizes.target)),
        };
    }

    /// Finds the batch sizes that carry the rate, and that answer soonest, beside other models that
    /// keep `others` devices busy. `room` is the number of devices that this model may use.
    pub(super) fn refresh_sizes(&mut self, now: Time, room: Permille, others: Permille, devices: u64) {
        let Some(rate) = self.arrivals.rate.rate(now) else { return };
        let load = |batch: usize| rate.load(batch, self.mean(batch));
        let min_stable_batch = 1 + largest(self.sizes.target - 1, |batch| load(batch) > room);
        let response_time = |batch: usize| {
            let (cost, load) = (self.mean(batch), load(batch) + others);
            match (1_000 * devices).saturating_sub(load.parts()) {
                0 => Nanos(i64::MAX - batch as i64),
                idle => {
                    let queue = cost.scale(load.parts() * self.arrivals.dispersion.parts(), idle * 2_000);
                    cost + Nanos(rate.gather_time(batch - 1).0 / 2) + queue
                }
            }
        };
        let fastest = (1..=self.sizes.target).min_by_key(|&batch| response_time(batch));
        self.sizes.fastest_batch = fastest.filter(|batch| *batch < self.sizes.target).unwrap_or(usize::MAX);
        self.sizes.min_stable_batch = min_stable_batch;
    }
}

/// Returns the batch of at most `most` rows in which a row takes the least time, the largest of
/// equal ones.
fn cheapest_batch(most: usize, cost: impl Fn(usize) -> Nanos) -> usize {
    let of_row = |rows: usize, other: usize| i128::from(cost(rows).0) * other as i128;
    (1..=most).rev().min_by(|&one, &other| of_row(one, other).cmp(&of_row(other, one))).unwrap_or(1)
}

/// Returns a moving mean over about [`MEAN_OF`] refreshes, after a value that held for `elapsed`.
pub(super) fn moving_mean(mean: Permille, value: Permille, elapsed: Nanos) -> Permille {
    let weight = (elapsed.0 / REFRESH.0).clamp(1, MEAN_OF as i64).cast_unsigned();
    mean.toward(value, weight, MEAN_OF)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ripieno_model::{LengthProfiles, Profile, Walk};

    const MS: fn(i64) -> Nanos = Nanos::from_millis;

    /// A model that takes b + 4 ms, in batches of up to 32 rows.
    fn estimate(slo_ms: i64) -> (Model, ModelEstimate) {
        let model = Model::whole("m", Profile::linear(1.0, 4.0, 32).unwrap(), MS(slo_ms));
        let estimate = ModelEstimate::new(&model, 32, Former::Batches);
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
        let (mut model, _) = estimate(100);
        model.walk = Walk::Repeat;
        let mut load = ModelEstimate::new(&model, 32, Former::of(&model));
        let now = |ms: i64| Time::ORIGIN + MS(ms);
        for ms in 0..2_000 {
            load.arrivals.rate.record(now(ms), 2);
        }
        load.refresh_target(now(2_000), &model, 32);
        assert!((95..=105).contains(&load.sizes.steady_rows), "{}", load.sizes.steady_rows);
    }

    #[test]
    fn no_batch_costs_more_a_row_than_a_smaller_one() {
        let of = |ms: &[i64]| {
            let table: Vec<Nanos> = ms.iter().map(|&ms| MS(ms)).collect();
            let model = Model::whole("m", Profile::from_table(&table).unwrap(), MS(100));
            let load = ModelEstimate::new(&model, table.len(), Former::of(&model));
            (load.sizes.max_batch, load.largest_within(MS(60)), load.sizes.target)
        };
        assert_eq!(of(&[2, 4, 6, 8]), (4, 4, 4), "equal ones");
        assert_eq!(of(&[2, 5, 9, 14]), (1, 1, 1));
        assert_eq!(of(&[4, 5, 6, 9, 9, 30]), (5, 5, 5));
        // Short requests may gain by batches where the longest do not.
        let table = Profile::from_table(&[MS(5), MS(11), MS(18)]).unwrap();
        let lengths = LengthProfiles::new(vec![(1, Profile::linear(0.1, 2.0, 3).unwrap()), (9, table.clone())]);
        let block = Block { lengths: Some(lengths.unwrap()), ..Block::new("b", table) };
        let model = Model { blocks: vec![block], ..Model::whole("m", Profile::linear(1.0, 1.0, 3).unwrap(), MS(100)) };
        assert_eq!(ModelEstimate::new(&model, 3, Former::of(&model)).sizes.max_batch, 3);
    }

    #[test]
    fn the_need_of_devices_is_a_moving_mean() {
        let (_, mut load) = estimate(100);
        for _ in 0..64 {
            load.on_work(Nanos(REFRESH.0 / 4));
            load.refresh_need(REFRESH);
        }
        assert!((240..=250).contains(&load.demand.need.parts()), "{:?}", load.demand.need);
        load.refresh_need(REFRESH * 100);
        assert_eq!(load.demand.need, Permille::ZERO);
    }
}
