//! Runs a published policy as its paper describes it, without what a server learns for a policy.

use ripieno_base::Time;
use ripieno_sched::admission::Shapes;
use ripieno_sched::{Control, Scheduler, SchedulerLayer, Setup};

/// A policy that plans by the real deadlines, and by the profiles and speeds that were known at the
/// start.
pub(crate) struct Faithful {
    /// The policy.
    policy: Box<dyn Scheduler>,
}

impl Faithful {
    /// Wraps a policy in what keeps its answers right: no request is refused in front of it.
    /// `policy` was built for `setup` with the limits of [`Shapes::widen`]. `part` is its number
    /// among the shards, and their number.
    pub(crate) fn new(policy: Box<dyn Scheduler>, setup: &Setup, part: (usize, usize)) -> Faithful {
        Faithful { policy: Box::new(Shapes::new(policy, &setup.models, &setup.limits, part)) }
    }
}

impl SchedulerLayer for Faithful {
    fn inner(&self) -> &dyn Scheduler {
        &*self.policy
    }

    fn inner_mut(&mut self) -> &mut dyn Scheduler {
        &mut *self.policy
    }

    fn on_control(&mut self, now: Time, control: Control) {
        match control {
            Control::ProfileReplaced { .. }
            | Control::DeviceSlowed { .. }
            | Control::NetworkDelayed(_)
            | Control::GatherMeasured(..) => {}
            control => self.policy.on_control(now, control),
        }
    }

    fn takes_real_deadlines(&self) -> bool {
        true
    }
}
