//! Device time by model, from starts and ends of tasks.
//!
//! Tasks of a lane run one after the other, lanes of a device concurrently; a device with several
//! running tasks is shared equally between them. While a task runs, only one sum over all devices
//! is read.
//!
//! Device time is *nominal*: that of a device which is as fast as the profiles. A device that needs
//! 300 % of them does a third of the work in the same time. An error of the profile is learnt only
//! as far as the device's speed does not explain it, and a slow device counts once: in the total
//! capacity.

use crate::Limits;
use crate::parts::devices::takes;
use ripieno_base::{DeviceId, LaneId, ModelId, Nanos, TaskId, Time};

/// Device time in use.
#[derive(Debug)]
pub(crate) struct DeviceTimes {
    lanes: usize,
    depth: usize,
    devices: Vec<DeviceLoad>,
    /// The tasks of each lane, the running one first: a ring per lane.
    queues: Vec<RunningTask>,
    rings: Vec<Ring>,
    /// The lane of each task in flight.
    places: Vec<Option<u32>>,
    /// Total speed of the devices with a task, and the sum of the times since which they have not
    /// been accounted for, each times its speed.
    busy: i64,
    since: i128,
    present: usize,
    /// Total speed of all present devices.
    speed: i64,
}

/// The speed of a device that is as fast as the profiles.
const NOMINAL: i64 = 1 << 20;

#[derive(Clone, Copy, Debug)]
struct DeviceLoad {
    /// Time up to which it has been accounted for.
    since: Time,
    /// Number of lanes with a task.
    active: u32,
    present: bool,
    /// Its latency relative to the profiles, in percent.
    percent: u32,
}

impl DeviceLoad {
    fn speed(&self) -> i64 {
        NOMINAL * 100 / i64::from(self.percent)
    }
}

/// A task that starts, and its device time by the profile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Started {
    pub(crate) task: TaskId,
    pub(crate) model: ModelId,
    pub(crate) cost: Nanos,
}

/// A task in flight: its model, its device time so far, the expected time for which its lane is
/// busy, and the start of that time if the task is the first of the lane.
#[derive(Clone, Copy, Debug)]
struct RunningTask {
    model: ModelId,
    used: Nanos,
    takes: Nanos,
    since: Time,
}

const NONE: RunningTask = RunningTask { model: ModelId(0), used: Nanos::ZERO, takes: Nanos::ZERO, since: Time::ORIGIN };

#[derive(Clone, Copy, Debug, Default)]
struct Ring {
    first: usize,
    len: usize,
}

impl DeviceTimes {
    pub(crate) fn new(limits: &Limits, present: usize) -> DeviceTimes {
        let lanes = limits.devices * limits.lanes;
        let device = |at: usize| DeviceLoad { since: Time::ORIGIN, active: 0, present: at < present, percent: 100 };
        DeviceTimes {
            lanes: limits.lanes,
            depth: limits.depth,
            devices: (0..limits.devices).map(device).collect(),
            queues: vec![NONE; lanes * limits.depth],
            rings: vec![Ring::default(); lanes],
            places: Vec::with_capacity(2 * limits.tasks()),
            busy: 0,
            since: 0,
            present,
            speed: NOMINAL * present as i64,
        }
    }

    /// Returns the number of present devices.
    pub(crate) fn present(&self) -> usize {
        self.present
    }

    /// Adds a device of profiled speed, or removes one; `spend` receives its work until now.
    pub(crate) fn set_present(
        &mut self,
        now: Time,
        device: DeviceId,
        present: bool,
        spend: impl FnMut(ModelId, Nanos),
    ) {
        if present {
            self.set_percent(now, device, 100, spend);
        }
        let known = &mut self.devices[device.index()];
        let was = std::mem::replace(&mut known.present, present);
        self.present = self.present + usize::from(present) - usize::from(was);
        self.speed += known.speed() * (i64::from(present) - i64::from(was));
    }

    /// Sets the latency of a device relative to the profiles. Returns whether it has changed;
    /// `spend` receives its work until now.
    pub(crate) fn set_percent(
        &mut self,
        now: Time,
        device: DeviceId,
        percent: u32,
        spend: impl FnMut(ModelId, Nanos),
    ) -> bool {
        self.advance(now, device, spend);
        let known = &mut self.devices[device.index()];
        let (before, was) = (known.speed(), std::mem::replace(&mut known.percent, percent.max(1)));
        let faster = known.speed() - before;
        if known.active > 0 {
            (self.busy, self.since) = (self.busy + faster, self.since + i128::from(faster) * i128::from(now.0));
        }
        self.speed += if known.present { faster } else { 0 };
        known.percent != was
    }

    /// Returns the time in which all devices (at least one) do this amount of work.
    pub(crate) fn together(&self, work: i64) -> i64 {
        let speed = i128::from(if self.present == 0 { NOMINAL } else { self.speed });
        (i128::from(work) * i128::from(NOMINAL) / speed).clamp(0, i128::from(i64::MAX)) as i64
    }

    /// Returns the device time within a span.
    pub(crate) fn within(&self, span: Nanos) -> i64 {
        (i128::from(span.0) * i128::from(self.speed) / i128::from(NOMINAL)).min(i128::from(i64::MAX)) as i64
    }

    /// Returns the duration of a profiled cost on the fastest device.
    pub(crate) fn at_best(&self, cost: Nanos) -> Nanos {
        let present = self.devices.iter().filter(|device| device.present);
        takes(present.map(|device| device.percent).min().unwrap_or(100), cost)
    }

    /// Returns the device time of running tasks that `spend` has not received.
    pub(crate) fn running(&self, now: Time) -> Nanos {
        let running = (i128::from(now.0) * i128::from(self.busy) - self.since) / i128::from(NOMINAL);
        Nanos(running.clamp(0, i128::from(i64::MAX)) as i64)
    }

    /// Records the start of a task with this cost; `spend` receives the device's work until now.
    pub(crate) fn start(
        &mut self,
        now: Time,
        started: Started,
        (device, lane): (DeviceId, LaneId),
        spend: impl FnMut(ModelId, Nanos),
    ) {
        let Started { task, model, cost } = started;
        self.advance(now, device, spend);
        let takes = takes(self.devices[device.index()].percent, cost);
        let at = device.index() * self.lanes + lane.index();
        let ring = &mut self.rings[at];
        assert!(ring.len < self.depth, "a policy exceeded the depth of {} on {device:?}", self.depth);
        self.queues[at * self.depth + (ring.first + ring.len) % self.depth] =
            RunningTask { model, used: Nanos::ZERO, takes, since: now };
        ring.len += 1;
        if ring.len == 1 {
            self.activate(now, device, 1);
        }
        if self.places.len() <= task.index() {
            self.places.resize(task.index() + 1, None);
        }
        self.places[task.index()] = Some(at as u32);
    }

    /// Records the end of a task; returns its device time.
    pub(crate) fn end(&mut self, now: Time, task: TaskId, spend: impl FnMut(ModelId, Nanos)) -> Nanos {
        let at = self.places[task.index()].take().expect("the driver ends tasks in flight") as usize;
        let device = DeviceId((at / self.lanes) as u16);
        self.advance(now, device, spend);
        let ring = &mut self.rings[at];
        let used = self.queues[at * self.depth + ring.first].used;
        *ring = Ring { first: (ring.first + 1) % self.depth, len: ring.len - 1 };
        self.queues[at * self.depth + ring.first].since = now;
        if ring.len == 0 {
            self.activate(now, device, -1);
        }
        used
    }

    /// Returns the time until this amount of waiting work has begun, where each device takes its
    /// part once a lane of it is free. The rest of a long task delays no request that another
    /// device takes.
    pub(crate) fn begun_after(&self, now: Time, work: i64) -> Nanos {
        let present = || self.devices.iter().enumerate().filter(|(_, device)| device.present);
        let free = || present().map(|(at, device)| (self.free_after(now, at).0, i128::from(device.speed())));
        let work = i128::from(work) * i128::from(NOMINAL);
        let mut after = i64::MAX;
        loop {
            let (taking, sum) = free()
                .filter(|&(free, _)| free < after)
                .fold((0, work), |(taking, sum), (free, speed)| (taking + speed, sum + speed * i128::from(free)));
            let evened = (sum / taking.max(1)).min(i128::from(i64::MAX)) as i64;
            if taking == 0 || evened >= after {
                return Nanos(if taking == 0 { free().map(|(free, _)| free).min().unwrap_or(0) } else { after });
            }
            after = evened;
        }
    }

    /// Returns the expected time until a lane of a device is free.
    fn free_after(&self, now: Time, device: usize) -> Nanos {
        let left = |at: usize| {
            let Ring { first, len } = self.rings[at];
            let task = |nth: usize| &self.queues[at * self.depth + (first + nth) % self.depth];
            let behind = (1..len).map(|nth| task(nth).takes).sum::<Nanos>();
            let running = if len > 0 { (task(0).takes - (now - task(0).since)).max(Nanos::ZERO) } else { Nanos::ZERO };
            running + behind
        };
        (device * self.lanes..(device + 1) * self.lanes).map(left).min().unwrap_or(Nanos::ZERO)
    }

    /// Accounts for the work of a device until `now`.
    fn advance(&mut self, now: Time, device: DeviceId, mut spend: impl FnMut(ModelId, Nanos)) {
        let known = self.devices[device.index()];
        let DeviceLoad { since, active, percent, .. } = known;
        if active == 0 {
            return;
        }
        let each = Nanos((now - since).scale(100, u64::from(percent)).0 / i64::from(active));
        let first = device.index() * self.lanes;
        for at in first..first + self.lanes {
            let Ring { first, len } = self.rings[at];
            if len > 0 {
                let task = &mut self.queues[at * self.depth + first];
                task.used += each;
                spend(task.model, each);
            }
        }
        self.since += i128::from(known.speed()) * i128::from(now.0 - since.0);
        self.devices[device.index()].since = now;
    }

    fn activate(&mut self, now: Time, device: DeviceId, lanes: i32) {
        let known = &mut self.devices[device.index()];
        let was = known.active > 0;
        known.active = known.active.wrapping_add_signed(lanes);
        let is = known.active > 0;
        if is && !was {
            known.since = now;
        }
        let speed = known.speed() * (i64::from(is) - i64::from(was));
        (self.busy, self.since) = (self.busy + speed, self.since + i128::from(speed) * i128::from(now.0));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn started(task: TaskId, model: ModelId, cost: Nanos) -> Started {
        Started { task, model, cost }
    }

    const LIMITS: Limits = Limits { requests: 1, models: 2, devices: 2, lanes: 2, depth: 2, batch: 1, nodes: 0 };

    #[test]
    fn waiting_work_begins_as_devices_become_free() {
        let mut times = DeviceTimes::new(&LIMITS, 2);
        let at = |at| Time::ORIGIN + Nanos(at);
        let mut start = |task: u32, takes: i64, device: u16, lane: u16| {
            let place = (DeviceId(device), LaneId(lane));
            times.start(at(0), started(TaskId(task), ModelId(0), Nanos(takes)), place, |_, _| {});
        };
        start(0, 100, 0, 0);
        start(1, 60, 0, 1);
        start(2, 10, 1, 0);
        start(3, 30, 1, 0);
        start(4, 90, 1, 1);
        // The devices are free from 60 and 40 on.
        let started = |now: i64, work: i64| times.begun_after(at(now), work).0;
        assert_eq!([started(0, 0), started(0, 10), started(0, 20), started(0, 40)], [40, 50, 60, 70]);
        // Later by five than expected.
        times.end(at(15), TaskId(2), |_, _| {});
        assert_eq!([times.begun_after(at(15), 0).0, times.begun_after(at(15), 21).0], [30, 48]);
        times.set_present(at(15), DeviceId(1), false, |_, _| {});
        assert_eq!(times.begun_after(at(15), 5), Nanos(50));
        assert_eq!(times.begun_after(at(15), i64::MAX), Nanos(i64::MAX), "what never ends");
    }

    #[test]
    fn lanes_share_a_device_and_tasks_of_a_lane_follow_each_other() {
        let mut times = DeviceTimes::new(&LIMITS, 2);
        let mut spent = [0; 2];
        let at = |at| Time::ORIGIN + Nanos(at);
        let (a, b) = (ModelId(0), ModelId(1));
        let mut spend = |model: ModelId, time: Nanos| spent[model.index()] += time.0;
        times.start(at(0), started(TaskId(0), a, Nanos(30)), (DeviceId(0), LaneId(0)), &mut spend);
        times.start(at(0), started(TaskId(1), b, Nanos(30)), (DeviceId(0), LaneId(0)), &mut spend);
        times.start(at(10), started(TaskId(2), b, Nanos(30)), (DeviceId(0), LaneId(1)), &mut spend);
        assert_eq!(times.running(at(30)), Nanos(20));
        let used = [(30, 0), (40, 1), (45, 2)].map(|(now, task)| times.end(at(now), TaskId(task), &mut spend));
        assert_eq!(used, [Nanos(20), Nanos(5), Nanos(20)]);
        assert_eq!(times.running(at(90)), Nanos::ZERO);
        assert_eq!(spent, [20, 25]);
        assert_eq!(times.present(), 2);
        times.set_present(at(90), DeviceId(1), false, |_, _| {});
        assert_eq!(times.present(), 1);
    }

    #[test]
    fn time_on_a_slow_device_counts_as_the_work_done() {
        let mut times = DeviceTimes::new(&Limits { lanes: 1, ..LIMITS }, 2);
        let at = |at| Time::ORIGIN + Nanos(at);
        let mut spent = 0;
        let mut spend = |_, time: Nanos| spent += time.0;
        let lane = |device| (DeviceId(device), LaneId(0));
        times.start(at(0), started(TaskId(0), ModelId(0), Nanos(200)), lane(1), &mut spend);
        assert!(times.set_percent(at(40), DeviceId(1), 400, &mut spend));
        assert!(!times.set_percent(at(40), DeviceId(1), 400, &mut spend));
        assert_eq!(times.running(at(80)), Nanos(10), "a quarter of what has passed since");
        assert_eq!([times.together(100), times.within(Nanos(100))], [80, 125]);
        assert_eq!(times.end(at(240), TaskId(0), &mut spend), Nanos(90));
        // Tasks that start from now on take four times as long as they cost; the devices are free
        // from 40 and 60 on.
        times.start(at(240), started(TaskId(1), ModelId(0), Nanos(10)), lane(1), &mut spend);
        times.start(at(240), started(TaskId(2), ModelId(0), Nanos(60)), lane(0), &mut spend);
        let started = |times: &DeviceTimes, work| times.begun_after(at(240), work);
        assert_eq!([0, 5, 15].map(|work| started(&times, work)), [40, 60, 68].map(Nanos));
        assert_eq!(times.at_best(Nanos(7)), Nanos(7));
        times.set_present(at(240), DeviceId(0), false, &mut spend);
        assert_eq!((times.at_best(Nanos(7)), times.together(100)), (Nanos(28), 400));
        times.set_present(at(250), DeviceId(1), false, &mut spend);
        times.set_present(at(250), DeviceId(1), true, &mut spend);
        assert_eq!((times.together(100), spent), (100, 92), "a device that joins again is as fast as the profiles");
    }
}
