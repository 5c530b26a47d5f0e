//! Forms the batches of models whose requests are padded to the longest of their batch.
//!
//! The most urgent waiting requests, sorted by length, are cut into groups by dynamic programming.
//! The cut has the least total wait, counted as if the groups ran one after the other, the shortest
//! first, and further requests waited meanwhile. A group makes none of its requests late that would
//! be in time alone. Each group is an offer; the arbiter chooses by weight, time and deadlines, as
//! among any offers.
//!
//! While rows are lost, the requests that would make their group smaller are passed over first.
//! Otherwise groups would shrink with the time that the most urgent requests have left, carry less
//! of the load, and leave the next ones still less time.

use super::UnifiedScheduler;
use super::arbiter::{OfferedTask, TaskOffer};
use super::load::MOST_UTILISATION;
use crate::estimate::by_length::LengthPlace;
use crate::tables::cohorts::CohortId;
use ripieno_base::{DeviceId, ModelId, Permille, Time};
use ripieno_model::DropRule;

/// Number of requests that are divided: it bounds the time of a decision.
const MOST_REQUESTS: usize = 160;
/// Bound on the number of groups.
pub(super) const MOST_GROUPS: usize = MOST_REQUESTS;

/// A waiting request.
#[derive(Clone, Copy, Debug)]
struct PaddedRequest {
    /// Length of the request.
    length: u32,
    /// Place of the length in the table of costs.
    place: LengthPlace,
    /// Rows of the request.
    rows: u32,
    /// Slot of the request.
    slot: u32,
    /// Latest end of the member's group; [`Time::NEVER`] if the member is late on this device even
    /// alone.
    due: Time,
}

/// The requests of a model that were divided last, and the ends of the groups.
#[derive(Debug)]
pub(super) struct LengthGroups {
    /// The divided requests, by length.
    members: Vec<PaddedRequest>,
    /// End of each group among the members.
    ends: Vec<usize>,
    /// Scratch: slots of members that are passed over.
    hurried: Vec<u32>,
    /// Scratch: from each member on, the least total wait, and the end of its group.
    best: Vec<(i128, usize)>,
}

impl LengthGroups {
    pub(super) fn new() -> LengthGroups {
        LengthGroups {
            members: Vec::with_capacity(MOST_REQUESTS),
            ends: Vec::with_capacity(MOST_REQUESTS),
            hurried: Vec::with_capacity(MOST_REQUESTS),
            best: Vec::with_capacity(MOST_REQUESTS + 1),
        }
    }

    /// Returns the members of a group.
    fn group(&self, number: usize) -> &[PaddedRequest] {
        let start = if number == 0 { 0 } else { self.ends[number - 1] };
        &self.members[start..self.ends[number]]
    }
}

impl UnifiedScheduler {
    /// Adds the offers of a model for a free device.
    pub(super) fn offer_groups(&mut self, now: Time, device: DeviceId, id: ModelId) {
        let mut groups = self.models.get_mut(id).own.groups.take().expect("requests are padded");
        self.collect(now, device, id, &mut groups);
        while self.models.get(id).load.is_losing() {
            self.divide(now, device, id, &mut groups, false);
            self.list_hurried(now, device, id, &mut groups);
            if groups.hurried.is_empty() {
                break;
            }
            self.pass_over(id, &groups.hurried);
            self.collect(now, device, id, &mut groups);
        }
        self.divide(now, device, id, &mut groups, true);
        let served = self.models.get(id);
        for number in 0..groups.ends.len() {
            let members = groups.group(number);
            let rows: usize = members.iter().map(|member| member.rows as usize).sum();
            let PaddedRequest { place, .. } = members[members.len() - 1];
            let (state, costs) = (&self.devices[device], served.load.padded());
            let promised = state.takes(costs.promised(rows, place));
            let outlook = self.outlook(now, id, members.iter().map(|member| member.slot), promised);
            let cost = |rows: usize| costs.mean(rows, place);
            let offer = TaskOffer {
                whole: state.takes(cost(rows)),
                doubles_in: served.load.doubles_in(now, served.model.slo, rows),
                // A group of at least the target size wastes nothing.
                waste: if rows < served.load.sizes.target {
                    served.load.waste(now, rows, cost)
                } else {
                    Permille::ZERO
                },
                ..self.offer(id, OfferedTask::Group(number), outlook)
            };
            self.offers.push(offer);
        }
        self.models.get_mut(id).own.groups = Some(groups);
    }

    /// Collects the most urgent requests, by length. Drops or passes over, by the drop rule, those
    /// that are late even alone. Requests that are late only on this device are left to other
    /// devices where the rule drops hopeless requests.
    fn collect(&mut self, now: Time, device: DeviceId, id: ModelId, groups: &mut LengthGroups) {
        let UnifiedScheduler { models, requests, pending, load, devices, .. } = self;
        let served = models.get_mut(id);
        let drop = served.drop;
        groups.members.clear();
        let mut next = served.queue.head();
        while let Some(slot) = next.filter(|_| groups.members.len() < MOST_REQUESTS) {
            next = requests.links.next(slot);
            let request = requests.get(slot);
            let (length, rows, deadline) = (request.extent.length, request.rows, request.deadline);
            let place = served.load.padded().place(length);
            let alone = served.load.padded().mean(rows as usize, place);
            let late = now + devices[device].takes(alone) > deadline;
            if drop != DropRule::Never && now + alone > deadline {
                served.own.queue.pass_over(requests, now, slot, drop, pending);
                served.own.load.on_lost(rows as usize);
                load.observe(rows as usize, true);
            } else if drop != DropRule::Hopeless || !late {
                groups.members.push(PaddedRequest {
                    length,
                    place,
                    rows,
                    slot,
                    due: if late { Time::NEVER } else { deadline },
                });
            }
        }
        groups.members.sort_unstable_by_key(|member| (member.length, member.slot));
    }

    /// Lists the members that would be late in their group. To be in time for them, the group would
    /// have to be smaller. Lists none if nothing else waits.
    fn list_hurried(&self, now: Time, device: DeviceId, id: ModelId, groups: &mut LengthGroups) {
        let (state, served) = (&self.devices[device], self.models.get(id));
        let (mut hurried, mut hurried_rows) = (std::mem::take(&mut groups.hurried), 0);
        hurried.clear();
        for members in (0..groups.ends.len()).map(|number| groups.group(number)).filter(|members| members.len() > 1) {
            let rows: usize = members.iter().map(|member| member.rows as usize).sum();
            let longest = members[members.len() - 1].place;
            let end = now + state.takes(served.load.padded().promised(rows, longest));
            for member in members.iter().filter(|member| member.due < end) {
                hurried.push(member.slot);
                hurried_rows += u64::from(member.rows);
            }
        }
        if hurried_rows == served.queue.rows() {
            hurried.clear();
        }
        groups.hurried = hurried;
    }

    /// Passes over the listed requests: they run where no other request needs the device.
    fn pass_over(&mut self, id: ModelId, hurried: &[u32]) {
        let UnifiedScheduler { models, requests, load, .. } = self;
        let served = models.get_mut(id);
        for &slot in hurried {
            load.observe(requests.get(slot).rows as usize, true);
            served.own.queue.remove(requests, slot);
            served.own.queue.push_overdue(requests, slot);
        }
    }

    /// Cuts the members into the groups with the least total wait. With `heeds`, a group makes none
    /// of its requests late.
    fn divide(&self, now: Time, device: DeviceId, id: ModelId, groups: &mut LengthGroups, heeds: bool) {
        let served = self.models.get(id);
        let LengthGroups { members, ends, best, .. } = groups;
        let (state, costs) = (&self.devices[device], served.load.padded());
        let (count, most) = (members.len(), served.load.sizes.max_batch);
        let devices = self.devices.present().max(1);
        // The nearer the devices are to saturation, the more requests arrive while groups run.
        let load = self.load.target_load.parts() / devices as u64;
        let load = load.min(MOST_UTILISATION.parts());
        let (waiting, divided) =
            (served.queue.rows(), members.iter().map(|member| u64::from(member.rows)).sum::<u64>());
        let arriving = i128::from(waiting * load / (1_000 - load));
        best.clear();
        best.resize(count + 1, (0, count));
        let mut behind = i128::from(waiting - divided);
        for from in (0..count).rev() {
            behind += i128::from(members[from].rows);
            let (mut rows, mut due, mut least) = (0, Time::NEVER, (i128::MAX, from + 1));
            for to in from..count {
                rows += members[to].rows as usize;
                due = due.min(members[to].due);
                if rows > most && to > from {
                    break;
                }
                let takes = costs.mean(rows, members[to].place);
                // The group's own rows wait on one device, all others on any.
                let waits = rows as i128 * devices as i128 + behind - rows as i128 + arriving;
                let own = i128::from(takes.0) * waits;
                if own >= least.0 {
                    // Longer groups take longer still.
                    break;
                }
                if heeds && to > from && now + state.takes(costs.promised(rows, members[to].place)) > due {
                    break;
                }
                least = least.min((own + best[to + 1].0, to + 1));
            }
            best[from] = least;
        }
        ends.clear();
        let mut at = 0;
        while at < count {
            at = best[at].1;
            ends.push(at);
        }
    }

    /// Moves a group from the queue into a cohort on a device.
    pub(super) fn open_group(&mut self, now: Time, device: DeviceId, id: ModelId, number: usize) -> CohortId {
        let UnifiedScheduler { models, requests, cohorts, load, .. } = self;
        let served = models.get_mut(id);
        let groups = served.own.groups.take().expect("requests are padded");
        let cohort = cohorts.open(id, ());
        let mut rows = 0;
        for member in groups.group(number) {
            served.own.queue.remove(requests, member.slot);
            cohorts.push(cohort, requests.get(member.slot));
            rows += member.rows as usize;
        }
        let longest = groups.group(number).last().expect("a group has members");
        let mean = served.load.padded().mean(rows, longest.place);
        served.own.load.on_start(now, rows, mean);
        served.own.groups = Some(groups);
        load.observe(rows, false);
        load.on_start(now);
        self.hold(device, id, cohort);
        cohort
    }
}
