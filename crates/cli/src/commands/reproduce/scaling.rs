//! Backends that join and leave as the scheduler's metrics advise, by the rule of the simulator's
//! autoscaler.

use crate::commands::cluster_demo::processes::get;
use anyhow::Context as _;
use ripieno_base::Time;
use ripieno_reproduce::{ClusterLoad, LiveScaling, LiveWindow};
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

/// Time between two looks at whether the load has ended.
const POLL: Duration = Duration::from_millis(20);

/// A cluster whose backends come and go.
pub(super) trait ScalableCluster {
    fn add_backend(&mut self) -> anyhow::Result<()>;

    /// Asks the backend that came last to leave.
    fn release_backend(&mut self) -> anyhow::Result<()>;

    /// Returns the number of backends that have not been asked to leave.
    fn backends(&self) -> usize;

    /// Returns the address of the scheduler's metrics.
    fn metrics(&self) -> anyhow::Result<SocketAddr>;
}

/// The controller, with its readings.
pub(super) struct BackendScaling {
    scaling: LiveScaling,
    begun: Instant,
    /// The latest advised numbers of devices.
    desired: VecDeque<usize>,
    readings: Vec<ScalingReading>,
}

/// A reading of the scheduler's metrics, which cover the last seconds.
struct ScalingReading {
    end_s: f64,
    devices: f64,
    idle: f64,
    desired: usize,
}

impl BackendScaling {
    pub(super) fn new(scaling: LiveScaling, begun: Instant) -> BackendScaling {
        BackendScaling { scaling, begun, desired: VecDeque::new(), readings: Vec::new() }
    }

    /// Follows the advice until the load is over, and reads it once for each of `windows`.
    pub(super) fn follow(
        &mut self,
        cluster: &mut dyn ScalableCluster,
        windows: usize,
        is_over: &dyn Fn() -> bool,
    ) -> anyhow::Result<()> {
        let every = Duration::from_nanos(self.scaling.every.0.unsigned_abs());
        while self.readings.len() < windows {
            let (over, next) = (is_over(), every * (self.readings.len() as u32 + 1));
            if !over && self.begun.elapsed() < next {
                thread::sleep(POLL);
                continue;
            }
            let page = get(&cluster.metrics()?, "/metrics").context("the scheduler's metrics cannot be read")?;
            let value = |name: &str| page.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<f64>().ok());
            let desired = value("ripieno_desired_devices ").unwrap_or(cluster.backends() as f64) as usize;
            let (devices, idle) = (value("ripieno_devices "), value("ripieno_idle_ratio "));
            self.readings.push(ScalingReading {
                end_s: next.as_secs_f64(),
                devices: devices.unwrap_or(cluster.backends() as f64),
                idle: idle.unwrap_or(0.0),
                desired,
            });
            if !over {
                self.scale(cluster, desired)?;
            }
        }
        Ok(())
    }

    /// Starts the backends that are missing; lets backends leave once the last readings agree.
    fn scale(&mut self, cluster: &mut dyn ScalableCluster, desired: usize) -> anyhow::Result<()> {
        let LiveScaling { range: (least, most), release_after, .. } = self.scaling;
        let desired = desired.clamp(least, most);
        if self.desired.len() == release_after {
            self.desired.pop_front();
        }
        self.desired.push_back(desired);
        let keep = self.desired.iter().copied().max().unwrap_or(desired);
        for _ in cluster.backends()..desired {
            cluster.add_backend()?;
        }
        if self.desired.len() == release_after {
            for _ in keep..cluster.backends() {
                cluster.release_backend()?;
            }
        }
        Ok(())
    }

    /// Returns the windows between the readings, with the requests that were due in each.
    pub(super) fn windows(&self, load: &ClusterLoad, in_time: &[bool]) -> Vec<LiveWindow> {
        let span_s = self.scaling.every.as_secs_f64();
        let window = |reading: &ScalingReading| {
            let &ScalingReading { end_s, devices, idle, desired: desired_devices } = reading;
            let is_due = |at: Time| {
                let at_s = (at - Time::ORIGIN).as_secs_f64();
                at_s >= end_s - span_s && at_s < end_s
            };
            let due = load.arrivals.iter().zip(in_time).filter(|((at, _), _)| is_due(*at));
            let (all, good) = due.fold((0.0, 0.0), |(all, good), (_, &in_time)| (all + 1.0, good + f64::from(in_time)));
            let (offered_rps, goodput_rps) = (all / span_s, good / span_s);
            let busy_devices = devices * (1.0 - idle);
            LiveWindow { end_s, span_s, offered_rps, goodput_rps, devices, busy_devices, desired_devices }
        };
        self.readings.iter().map(window).collect()
    }
}
