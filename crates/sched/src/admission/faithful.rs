//! Runs a published policy as its paper describes it, without what a server learns for a policy.

use crate::{Control, Scheduler, SchedulerLayer};
use ripieno_base::Time;

/// A policy that plans by the real deadlines, and by the profiles and speeds that were known at the
/// start.
pub(crate) struct Faithful {
    /// The policy.
    policy: Box<dyn Scheduler>,
}

impl Faithful {
    pub(crate) fn new(policy: Box<dyn Scheduler>) -> Faithful {
        Faithful { policy }
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
            Control::ProfileReplaced { .. } | Control::DeviceSlowed { .. } | Control::NetworkDelayed(_) => {}
            control => self.policy.on_control(now, control),
        }
    }

    fn takes_real_deadlines(&self) -> bool {
        true
    }
}
